"""What each instance did over time, as heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mooncake_bench.report.figure import Axis, Figure, Heat, Panel
from mooncake_bench.report.figures._curves import sentences
from mooncake_bench.report.figures._over_time import clock, columns
from mooncake_bench.results.coupled import is_coupled
from mooncake_bench.results.facts import Facts
from mooncake_bench.results.gaps import PS_PER_MS
from mooncake_bench.sim.parsing import grouped, parse_cluster

if TYPE_CHECKING:
    from mooncake_bench.report.figures._over_time import Clock
    from mooncake_bench.results import Run
    from mooncake_bench.results.steps import Floats, Ints

NAME = "instances"
TITLE = "Instances over time"
DESCRIPTION = "A heat map a pool and run: the share of time each prefill instance computes, and the mean decode batch."
TAKES = "runs"
STRETCHES = 120
LOST = "Prefill of attempts that came to nothing is not shown."
INLINED = "Prompts that decode instances computed themselves are not shown."


Map = tuple[Sequence[int], "Floats"]  # instances, and a row of values for each


class Spans(NamedTuple):
    """Times on instances: which, from when to when in ms, and how much counts meanwhile."""

    instance: Ints
    start_ms: Floats
    end_ms: Floats
    amount: Floats


def draw(runs: Sequence[Run], labels: Sequence[str]) -> Figure:
    """Two maps a run: means over each stretch of time, from prefills and decode segments."""
    time = clock(runs)
    if not time.span_ms:
        return Figure(NAME, TITLE, (), empty="nothing happened in these runs")
    edges = columns(time.span_ms, STRETCHES)
    facts = [Facts(run.manifest, run) for run in runs]
    decoding = [_map(decode_spans(each), edges, set_up(run, "DM")) for each, run in zip(facts, runs, strict=True)]
    most = max((float(values.max()) for _, values in decoding if values.size), default=0.0) or 1.0
    panels: list[Panel] = []
    for run, label, batches in zip(runs, labels, decoding, strict=True):
        name = f"{label}: " if len(runs) > 1 else ""
        shared = is_coupled(run.manifest["setup"])  # several prompts are computed at once
        unit, high = ("requests at once", None) if shared else ("share of time", 1.0)
        prefills = _map(prefill_spans(run), edges, set_up(run, "PM"))
        panels.append(_panel(f"{name}prefill", unit, prefills, time, edges, high))
        panels.append(_panel(f"{name}decode", "batch, requests", batches, time, edges, most))
    lost = any((each.all_rows("lost_prefill_ms") > 0).any() for each in facts)
    inlined = any(run.requests.column("inlined").to_numpy().any() for run in runs)
    note = sentences(LOST if lost else "", INLINED if inlined else "")
    return Figure(NAME, TITLE, tuple(panel for panel in panels if panel.heat), note=note)


def _map(spans: Spans, edges: Floats, ids: Sequence[int]) -> Map:
    """Of these instances, and of those that worked though they had another role at first."""
    there = sorted({*ids, *np.unique(spans.instance).tolist()})
    return there, means(spans, edges, there)


def _panel(title: str, label: str, shown: Map, time: Clock, edges: Floats, high: float | None) -> Panel:
    ids, values = shown
    rows = tuple(map(str, ids))
    cells = tuple(tuple(row) for row in values.tolist())
    heat = Heat(rows, tuple((edges / time.ms).tolist()), cells, label, high) if rows else None
    return Panel(title, time.axis, Axis("instance"), heat=heat)


def set_up(run: Run, roles: str) -> list[int]:
    """Ids of the instances that were set up for one of these roles."""
    setup = run.manifest["setup"]
    nodes = grouped(parse_cluster(setup["cluster"], setup["node"]), int(setup.get("prefill.group") or 1), "")
    return [instance for instance, (role, _) in enumerate(nodes) if role in roles]


def prefill_spans(run: Run) -> Spans:
    """Every prefill that began on a prefill instance; one still running when the replay stopped ends there."""
    table, horizon_ms = run.requests, float(run.manifest["horizon_ms"])
    names = ("arrival_ms", "retry_wait_ms", "queue_ms", "fetch_ms", "prefill_ms", "prefill_instance")
    arrival, waited, queue, fetch, spent, instance = (table.column(name).to_numpy() for name in names)
    start = arrival + np.nan_to_num(waited) + queue + fetch
    ran = ~np.isnan(start) & ~np.isnan(instance.astype(np.float64))
    ran &= ~table.column("inlined").to_numpy()
    nodes = int(run.manifest["setup"].get("prefill.group") or 1)
    if nodes > 1:  # a pipeline is as busy as one of its stages
        spent = (table.column("prefill_gpu_ms").to_numpy() - table.column("lost_prefill_ms").to_numpy()) / nodes
    end = np.where(np.isnan(spent), horizon_ms, np.minimum(start + spent, horizon_ms))
    return Spans(instance[ran].astype(np.int64), start[ran], end[ran], np.ones(int(ran.sum())))


def decode_spans(facts: Facts) -> Spans:
    """Every decode segment, with its batch."""
    found = facts.segments
    return Spans(found.instance, found.start_ps / PS_PER_MS, found.end_ps / PS_PER_MS, found.batch.astype(np.float64))


def means(spans: Spans, edges: Floats, ids: Sequence[int]) -> Floats:
    """Mean amount of each instance over each stretch of time; shape (instances, stretches)."""
    found = [_mean(spans, edges, spans.instance == instance) for instance in ids]
    return np.array(found).reshape(len(ids), len(edges) - 1)


def _mean(spans: Spans, edges: Floats, mine: Floats) -> Floats:
    """By the integral of the amount up to each edge: its slope changes where a span begins and where it ends."""
    moments = np.concatenate((spans.start_ms[mine], spans.end_ms[mine]))
    slopes = np.concatenate((spans.amount[mine], -spans.amount[mine]))
    order = np.argsort(moments, kind="stable")
    moments, slopes = moments[order], slopes[order]
    before = np.searchsorted(moments, edges, "left")
    sums = np.concatenate(([0.0], np.cumsum(slopes)))[before]
    weighted = np.concatenate(([0.0], np.cumsum(slopes * moments)))[before]
    found: Floats = np.diff(sums * edges - weighted) / np.diff(edges)
    return np.maximum(found, 0.0)
