"""Cumulative distribution of TTFT, a curve a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.report.figures._curves import distribution, slo_guides
from mooncake_bench.results.facts import Facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.report.figure import Figure
    from mooncake_bench.results import Run
    from mooncake_bench.results.steps import Floats

NAME = "ttft-cdf"
TITLE = "TTFT of completed requests"
DESCRIPTION = "Share of completed requests whose first token came within x, a curve a run, with the SLO."
TAKES = "runs"
MS_PER_S = 1000


def draw(runs: Sequence[Run], labels: Sequence[str]) -> Figure:
    """The curves, in seconds."""
    guides = slo_guides(runs, "ttft", "s", MS_PER_S)
    return distribution(NAME, TITLE, "TTFT, s", runs, labels, [_ttft_s(run) for run in runs], guides)


def _ttft_s(run: Run) -> Floats:
    facts = Facts(run.manifest, run)
    values: Floats = facts.column("ttft_ms")[facts.completed]
    return values[~np.isnan(values)] / MS_PER_S
