"""Load of both pools over time, a panel a run, in the form of v3's figure 9."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.report.figure import Axis, Figure, Guide, Panel
from mooncake_bench.report.figures._curves import sentences
from mooncake_bench.report.figures._over_time import clock, line, samples, thinned, ticks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.report.figures._over_time import Clock
    from mooncake_bench.results import Run
    from mooncake_bench.results.steps import Floats

NAME = "load"
TITLE = "Load of both pools over time"
DESCRIPTION = "Load of the prefill and the decode pool over time, a panel a run, with rejections marked."
TAKES = "runs"
ABOVE = 1.15  # of the highest load: room for the ticks
POOLS = ("prefill", "decode")
MEANING = (
    "Load of prefill: work routed there and not yet done, per instance, over the TTFT SLO; of decode: mean over "
    "instances of the larger of step time over TBT SLO and context over VRAM."
)
MARKED = "Ticks: requests were rejected then, at any stage."


def draw(runs: Sequence[Run], labels: Sequence[str]) -> Figure:
    """A panel a run on one scale; the colours tell the pools apart, not the runs."""
    loads = [[samples(run, f"{pool}_load_ratio") for pool in POOLS] for run in runs]
    known = [each[~np.isnan(each)] for run in loads for each in run]
    time = clock(runs)
    if not any(len(each) for each in known) or not time.span_ms:
        return Figure(NAME, TITLE, (), POOLS, empty="nothing happened in these runs")
    high = ABOVE * max(1.0, *(float(each.max()) for each in known if len(each)))
    panels = tuple(_panel(*each, time, high) for each in zip(runs, labels, loads, strict=True))
    rejected = MARKED if any(series.shape == "marks" for panel in panels for series in panel.series) else ""
    return Figure(NAME, TITLE, panels, POOLS, sentences(MEANING, rejected, thinned(runs)))


def _panel(run: Run, label: str, loads: list[Floats], time: Clock, high: float) -> Panel:
    lines = [
        line(run, load, pool, place, time)
        for place, (pool, load) in enumerate(zip(POOLS, loads, strict=True))
        if not np.isnan(load).all()  # of a pool without an instance
    ]
    rejected = sum(samples(run, f"rejected_{stage}_requests") for stage in ("arrival", "prefill", "decode"))
    marks = ticks(run, np.asarray(rejected), "rejected", time)
    series = (*lines, *(() if marks is None else (marks,)))
    return Panel(label, time.axis, Axis("load", low=0, high=high), series, (Guide("", 1.0),))
