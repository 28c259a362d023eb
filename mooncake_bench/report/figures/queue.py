"""How many requests wait, over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_bench.report.figure import Axis, Figure, Panel
from mooncake_bench.report.figures._over_time import clock, line, samples, thinned

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    panels = tuple(
        Panel(
            title,
            time.axis,
            Axis("requests", low=0),
            tuple(
                line(run, samples(run, column), label, place, time)
                for place, (run, label) in enumerate(zip(runs, labels, strict=True))
            ),
        )
        for column, title in QUEUES.items()
    )
    return Figure(NAME, TITLE, panels, tuple(labels), thinned(runs))
