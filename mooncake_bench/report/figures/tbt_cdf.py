"""Cumulative distribution of TBT, a curve a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.report.figures._curves import distribution, slo_guides
from mooncake_bench.report.figures._judged import metric_words, tbt_ms
from mooncake_bench.results.facts import Facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.report.figure import Figure
    from mooncake_bench.results import Run

NAME = "tbt-cdf"
TITLE = "TBT of completed requests"
DESCRIPTION = "Share of completed requests with a token gap whose TBT is at most x, a curve a run, with the SLO."
TAKES = "runs"


def draw(runs: Sequence[Run], labels: Sequence[str]) -> Figure:
    """The curves, in ms, of the TBT that the SLO judges; requests without a token gap have none."""
    values = [tbt_ms(Facts(run.manifest, run), run) for run in runs]
    values = [each[~np.isnan(each)] for each in values]
    guides = slo_guides(runs, "tbt", "ms", 1)
    return distribution(NAME, TITLE, "TBT, ms", runs, labels, values, guides, metric_words(runs))
