"""What the KVCache pool gave over time: hits, and how many replicas a block had."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.report.figure import Axis, Figure, Panel, Series
from mooncake_bench.report.figures._curves import sentences
from mooncake_bench.report.figures._over_time import clock, columns, line, samples, thinned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.report.figures._over_time import Clock
    from mooncake_bench.results import Run
    from mooncake_bench.results.steps import Floats

NAME = "cache"
TITLE = "Cache hits and replicas over time"
DESCRIPTION = (
    "Share of prompt tokens found in the pool, of requests whose prefill began, by time of arrival; and mean number of "
    "copies of a block."
)
TAKES = "runs"
STRETCHES = 60  # of time, over each of which hits are summed
UNSEEN = "Runs made before the pool's stores were recorded show no replicas."


def draw(runs: Sequence[Run], labels: Sequence[str]) -> Figure:
    """Hits of the requests whose prefill began, and slots in use over different blocks, of all stores together."""
    time = clock(runs)
    panels = tuple(panel for panel in (_hits(runs, labels, time), _replicas(runs, labels, time)) if panel.series)
    if not panels or not time.span_ms:
        return Figure(NAME, TITLE, (), tuple(labels), empty="no prefill began in these runs, so nothing was looked up")
    seen = all(run.timeline.column("pool_blocks").null_count < len(run.timeline) for run in runs)
    width = f"{columns(time.span_ms, STRETCHES)[1] / 1000:g} s"
    apart = ", a line a run: not the same requests began" if sum(each.dashed for each in panels[0].series) > 1 else ""
    hits = (
        f"Hits: of requests that arrived within {width}, by tokens; dashed: what an infinite cache would find{apart}."
    )
    return Figure(NAME, TITLE, panels, tuple(labels), sentences(hits, "" if seen else UNSEEN, thinned(runs)))


def _hits(runs: Sequence[Run], labels: Sequence[str], time: Clock) -> Panel:
    """Hits of each run, and of an infinite cache: a curve of its own for each run, or one where all are the same."""
    pairs = [pair for i, (run, label) in enumerate(zip(runs, labels, strict=True))
             if (pair := _hit_curves(run, label, i, time))]  # fmt: skip
    found, ceilings = [hits for hits, _ in pairs], [ceiling for _, ceiling in pairs]
    if len({ceiling.y for ceiling in ceilings}) == 1:
        run = ceilings[0].run if len(runs) == 1 else None
        ceilings = [replace(ceilings[0], label="infinite cache", run=run)]
    return Panel("Hits", time.axis, Axis("share of prompt tokens", low=0), (*found, *ceilings))


def _hit_curves(run: Run, label: str, place: int, time: Clock) -> tuple[Series, Series] | None:
    """Hits, and those of an infinite cache, of the requests whose prefill began; None where none did."""
    edges = columns(time.span_ms, STRETCHES)
    table = run.requests.select(["arrival_ms", "input_tokens", "hit_tokens", "ceiling_tokens"])
    arrival, tokens, hits, ceiling = (table.column(name).to_numpy().astype(np.float64) for name in table.column_names)
    began = ~np.isnan(hits)
    if not began.any():
        return None
    stretch = np.clip((arrival[began] // edges[1]).astype(np.int64), 0, len(edges) - 2)
    whole, found, most = (
        np.bincount(stretch, np.nan_to_num(part[began]), len(edges) - 1).astype(np.float64)
        for part in (tokens, hits, ceiling)
    )
    at = edges / time.ms
    bound = _stairs(f"infinite cache, {label}", at, most, whole, place, dashed=True)
    return _stairs(label, at, found, whole, place, dashed=False), bound


def _stairs(label: str, edges: Floats, part: Floats, whole: Floats, place: int, *, dashed: bool) -> Series:
    """Part over whole in each stretch, a gap where there is no whole."""
    shares = [a / b if b else None for a, b in zip(part.tolist(), whole.tolist(), strict=True)]
    return Series(label, tuple(edges.tolist()), (*shares, shares[-1]), place, "step", dashed)


def _replicas(runs: Sequence[Run], labels: Sequence[str], time: Clock) -> Panel:
    series = []
    for place, (run, label) in enumerate(zip(runs, labels, strict=True)):
        slots, blocks = samples(run, "pool_blocks"), samples(run, "pool_distinct_blocks")
        copies = np.full(len(slots), np.nan)
        np.divide(slots, blocks, out=copies, where=blocks > 0)
        if not np.isnan(copies).all():
            series.append(line(run, copies, label, place, time))
    return Panel("Replicas", time.axis, Axis("copies of a block, mean", low=1), tuple(series))
