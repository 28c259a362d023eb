"""What ``vllm bench serve --save-result`` writes, without the lists of ``--save-detailed``.

Latencies are over the completed requests, population deviations as that tool takes them. What a simulation has no
number for is null: peaks by the second, and the deviation of the pooled token gaps, which are never listed here.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mooncake_bench.results.exporters._values import Completed, only

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mooncake_bench.results.run import Run

NAME = "vllm-json"
DESCRIPTION = "the file that vllm bench serve saves: duration, throughputs, TTFT, TPOT, ITL and E2EL"
EXTENSION = ".json"

LATENCIES = {"ttft": "ttft_ms", "tpot": "tpot_ms", "itl": "itl_ms", "e2el": "e2e_ms"}  # theirs -> ours
PERCENTS = (90, 95, 99)


def export(runs: Sequence[Run]) -> str:
    """The file's content. Raises ResultError for several runs."""
    run = only(runs, NAME)
    return json.dumps(dict(_entries(run, Completed(run))), indent=2, allow_nan=False) + "\n"


def _entries(run: Run, done: Completed) -> Iterator[tuple[str, Any]]:
    setup = run.manifest["setup"]
    yield "date", run.manifest.get("created")
    yield "backend", "mooncake-bench"
    yield "label", run.label
    yield "model_id", setup["model"]
    yield "tokenizer_id", None
    yield "num_prompts", done.facts.offered
    yield "request_rate", done.value("offered_rps")
    yield "burstiness", None
    yield "max_concurrency", None
    yield "duration", done.duration_s()
    yield "completed", done.value("completed_requests")
    yield "failed", done.facts.offered - int(done.value("completed_requests"))
    for theirs, ours in (("input", "input_tokens"), ("output", "output_tokens")):
        yield f"total_{theirs}_tokens", int(done.column(ours).sum())
    yield "request_throughput", done.value("request_throughput_rps")
    yield "request_goodput", done.value("request_goodput_rps")
    yield "output_throughput", done.value("output_throughput_tokens_per_s")
    yield "total_token_throughput", done.value("total_throughput_tokens_per_s")
    yield "max_output_tokens_per_s", None
    yield "max_concurrent_requests", None
    for theirs, ours in LATENCIES.items():
        yield from _latency(theirs, ours, done)


def _latency(theirs: str, ours: str, done: Completed) -> Iterator[tuple[str, Any]]:
    values = None if ours == "itl_ms" else done.column(ours)
    yield f"mean_{theirs}_ms", done.value(f"mean_{ours}")
    yield f"median_{theirs}_ms", done.value(f"p50_{ours}")
    yield f"std_{theirs}_ms", float(values.std()) if values is not None and len(values) else None
    for percent in PERCENTS:
        yield f"p{percent}_{theirs}_ms", done.value(f"p{percent}_{ours}")
