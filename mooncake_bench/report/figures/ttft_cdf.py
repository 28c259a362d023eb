"""Cumulative distribution of TTFT, a curve a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.report.figures._curves import distribution, slo_guides
from mooncake_bench.report.figures._judged import MS_PER_S, ttft_s
from mooncake_bench.results.facts import Facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.report.figure import Figure
    from mooncake_bench.results import Run

NAME = "ttft-cdf"
TITLE = "TTFT of completed requests"
DESCRIPTION = (
    "Share of completed requests whose first token came within x of their arrival, a curve a run, with the SLO."
)
TAKES = "runs"


def draw(runs: Sequence[Run], labels: Sequence[str]) -> Figure:
    """The curves, in seconds."""
    values = [ttft_s(Facts(run.manifest, run), run) for run in runs]
    values = [each[~np.isnan(each)] for each in values]
    return distribution(NAME, TITLE, "TTFT, s", runs, labels, values, slo_guides(runs, "ttft", "s", MS_PER_S))
