"""TTFT and TBT of a run's completed requests, as its SLOs judge them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.results.gaps import gap_stats
from mooncake_bench.results.spooled import numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.results import Run
    from mooncake_bench.results.facts import Facts
    from mooncake_bench.results.steps import Floats

STORED = {"tail10": "tbt_ms", "max": "tbt_max_ms"}
WORDS = {
    "tail10": "mean of a request's longest 10 % of token gaps",
    "max": "a request's longest token gap",
    "mean": "mean of a request's token gaps",
    "p99": "99th percentile of a request's token gaps",
}
MS_PER_S = 1000


def ttft_s(facts: Facts, _: Run) -> Floats:
    """TTFT of each completed request, s."""
    values: Floats = facts.column("ttft_ms")[facts.completed]
    return values / MS_PER_S


def tbt_ms(facts: Facts, run: Run) -> Floats:
    """TBT of each completed request by the metric that its SLO judges, ms; nan where it has no gap."""
    metric = facts.manifest["setup"]["slo.tbt_metric"]
    if metric in STORED:
        stored: Floats = facts.column(STORED[metric])[facts.completed]
        return stored
    wanted = np.zeros(len(facts.counted), np.bool_)
    wanted[facts.counted] = facts.completed
    exclude = facts.manifest["setup"]["slo.first_gap"] == "exclude"
    gap_ps = numbers(run.stays.column("gap_ps"))
    gaps = gap_stats(facts.segments, facts.stays, gap_ps, wanted, exclude_first=exclude, p99=metric == "p99")
    return gaps.metric_ms(metric)[wanted]


def metric_words(runs: Sequence[Run]) -> str:
    """What a TBT is in these runs, in a sentence."""
    metrics = dict.fromkeys(str(run.manifest["setup"]["slo.tbt_metric"]) for run in runs)
    excluded = {run.manifest["setup"]["slo.first_gap"] == "exclude" for run in runs}
    first = {True: ", the first one left out", False: ""}[True in excluded] if len(excluded) == 1 else ""
    return f"TBT: {' or '.join(WORDS[metric] for metric in metrics)}{first}."
