"""The summary that ``aiperf profile`` writes (``profile_export_aiperf.json``, schema 1.4).

A metric over requests has a distribution, their count and sum; one of the whole run has ``avg`` alone. What is
undefined is left out, as that tool does. Its inter-token latency is a request's mean gap, our TPOT.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench.results.exporters._values import Completed, only

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mooncake_bench.results.run import Run
    from mooncake_bench.results.steps import Floats

NAME = "aiperf-json"
DESCRIPTION = "the summary that aiperf profile writes: {metric: {unit, avg, p1 … p99, min, max, std}}"
EXTENSION = ".json"

SCHEMA_VERSION = "1.4"
PERCENTS = (1, 5, 10, 25, 50, 75, 90, 95, 99)
REQUESTS = {  # theirs -> our column, unit: a distribution over completed requests
    "request_latency": ("e2e_ms", "ms"),
    "time_to_first_token": ("ttft_ms", "ms"),
    "time_to_second_token": ("first_gap_ms", "ms"),
    "inter_token_latency": ("tpot_ms", "ms"),
    "input_sequence_length": ("input_tokens", "tokens"),
    "output_sequence_length": ("output_tokens", "tokens"),
}
WHOLE = {  # theirs -> our metric, unit
    "request_count": ("completed_requests", "requests"),
    "request_throughput": ("request_throughput_rps", "requests/sec"),
    "output_token_throughput": ("output_throughput_tokens_per_s", "tokens/sec"),
    "good_request_count": ("good_requests", "requests"),
    "goodput": ("request_goodput_rps", "requests/sec"),
}


def export(runs: Sequence[Run]) -> str:
    """The file's content. Raises ResultError for several runs."""
    run = only(runs, NAME)
    return json.dumps(dict(_entries(run, Completed(run))), indent=2, allow_nan=False) + "\n"


def _entries(run: Run, done: Completed) -> Iterator[tuple[str, Any]]:
    yield "schema_version", SCHEMA_VERSION
    yield "was_cancelled", run.interrupted
    yield "is_complete", not run.interrupted
    for name, (column, unit) in REQUESTS.items():
        yield from _some(name, _distribution(done.column(column), unit))
    for name, (metric, unit) in WHOLE.items():
        yield from _some(name, _scalar(done.value(metric), unit))
    yield from _some("error_request_count", _scalar(done.facts.offered - done.value("completed_requests"), "requests"))
    yield from _some("benchmark_duration", _scalar(done.duration_s(), "sec"))
    for name, column in (("total_isl", "input_tokens"), ("total_osl", "output_tokens")):
        yield from _some(name, _scalar(float(done.column(column).sum()), "tokens"))


def _some(name: str, entry: dict[str, Any] | None) -> Iterator[tuple[str, Any]]:
    if entry is not None:
        yield name, entry


def _scalar(value: float | None, unit: str) -> dict[str, Any] | None:
    return None if value is None else {"unit": unit, "avg": float(value)}


def _distribution(values: Floats, unit: str) -> dict[str, Any] | None:
    if not len(values):
        return None
    percentiles = np.percentile(values, PERCENTS).tolist()
    entry = {"unit": unit, "avg": float(values.mean())}
    entry |= {f"p{percent}": value for percent, value in zip(PERCENTS, percentiles, strict=True)}
    return entry | {
        "min": float(values.min()),
        "max": float(values.max()),
        "std": float(values.std()),
        "count": len(values),
        "sum": float(values.sum()),
    }
