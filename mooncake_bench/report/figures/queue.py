"""How many requests wait, over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_bench.report.figure import Axis, Figure, Panel
from mooncake_bench.report.figures._curves import sentences
from mooncake_bench.report.figures._over_time import STRETCHES, band, clock, columns, line, restless, samples, thinned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.report.figures._over_time import Clock
    from mooncake_bench.results import Run

NAME = "queue"
TITLE = "Waiting requests over time"
DESCRIPTION = "Requests queued for prefill, and those whose KVCache waits to join a decode batch, a curve a run."
TAKES = "runs"
QUEUES = {"queued_requests": "Queued for prefill", "waiting_requests": "Waiting to decode"}


def draw(runs: Sequence[Run], labels: Sequence[str]) -> Figure:
    """Two panels, on all instances together."""
    time = clock(runs)
    if not time.span_ms:
        return Figure(NAME, TITLE, (), tuple(labels), empty="nothing happened in these runs")
    made = [_panel(runs, labels, column, title, time) for column, title in QUEUES.items()]
    note = sentences(*dict.fromkeys(said for _, said in made))
    return Figure(NAME, TITLE, tuple(panel for panel, _ in made), tuple(labels), note)


def _panel(runs: Sequence[Run], labels: Sequence[str], column: str, title: str, time: Clock) -> tuple[Panel, str]:
    """One queue of all runs, and what is not drawn of it."""
    found = [samples(run, column) for run in runs]
    bands = len(runs) > 1 and any(map(restless, found))
    curves = zip(runs, found, labels, range(len(runs)), strict=True)
    series = tuple((band if bands else line)(run, values, label, i, time) for run, values, label, i in curves)
    width = f"{columns(time.span_ms, STRETCHES)[1] / 1000:g} s"
    words = f"the mean of every {width}, in a band from the lowest to the highest sample." if bands else thinned(runs)
    said = f"{title}: {words[0].lower()}{words[1:]}" if words else ""
    return Panel(title, time.axis, Axis("requests", low=0), series), said
