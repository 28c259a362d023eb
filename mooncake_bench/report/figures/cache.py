"""What the KVCache pool gave over time: hits, and how many replicas a block had."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.report.figure import Axis, Figure, Panel, Series
from mooncake_bench.report.figures._curves import sentences
from mooncake_bench.report.figures._over_time import clock, columns, line, samples, thinned

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mooncake_bench.report.figures._over_time import Clock
    from mooncake_bench.results import Run
    from mooncake_bench.results.steps import Floats

NAME = "cache"
TITLE = "Cache hits and replicas over time"
DESCRIPTION = "Share of prompt tokens found in the pool by time of arrival, and mean number of copies of a block."
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
    hits = f"Hits: of requests that arrived within {width}, by tokens; dashed: what an infinite cache would find."
    return Figure(NAME, TITLE, panels, tuple(labels), sentences(hits, "" if seen else UNSEEN, thinned(runs)))


def _hits(runs: Sequence[Run], labels: Sequence[str], time: Clock) -> Panel:
    series = [each for run, label, i in zip(runs, labels, range(len(runs)), strict=True)
              for each in _hit_curves(run, label, i, time)]  # fmt: skip
    return Panel("Hits", time.axis, Axis("share of prompt tokens", low=0), tuple(series))


def _hit_curves(run: Run, label: str, place: int, time: Clock) -> Iterator[Series]:
    """Hits, and of the first run the hits of an infinite cache."""
    edges = columns(time.span_ms, STRETCHES)
    table = run.requests.select(["arrival_ms", "input_tokens", "hit_tokens", "ceiling_tokens"])
    arrival, tokens, hits, ceiling = (table.column(name).to_numpy().astype(np.float64) for name in table.column_names)
    began = ~np.isnan(hits)
    if not began.any():
        return
    stretch = np.clip((arrival[began] // edges[1]).astype(np.int64), 0, len(edges) - 2)
    whole = np.bincount(stretch, tokens[began], len(edges) - 1).astype(np.float64)
    wanted = [(label, hits, False), *([("infinite cache", ceiling, True)] if place == 0 else [])]
    for name, part, dashed in wanted:
        found = np.bincount(stretch, np.nan_to_num(part[began]), len(edges) - 1).astype(np.float64)
        yield _stairs(name, edges / time.ms, found, whole, place, dashed=dashed)


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
    return Panel("Replicas", time.axis, Axis("copies of a block, mean", low=0), tuple(series))
