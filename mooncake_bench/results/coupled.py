"""What instances that prefill and decode did with their time, from what a run kept of its requests and segments.

Such an instance works whenever it has a request that has not ended: nothing is fetched or sent. So it is busy from
arrivals to ends, and what it did outside its decode segments was prefill alone: no moment counts twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench.sim.parsing import parse_cluster

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from mooncake_bench.results.records import Records
    from mooncake_bench.results.steps import Ints

    Numbers = NDArray[Any]


def is_coupled(setup: Mapping[str, Any]) -> bool:
    """Whether a stored setup has instances that do both."""
    return any(role == "M" for role, _ in parse_cluster(setup["cluster"], setup["node"]))


def busy_spans(instance: Numbers, since: Numbers, until: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Instance, start and end of the times in which it has a request; ``since`` and ``until`` of each request."""
    if not len(instance):
        return instance, since, until
    order = np.lexsort((since, instance))
    instance, since, until = instance[order], since[order], until[order]
    bounds = np.flatnonzero(np.append(True, instance[1:] != instance[:-1])[: len(instance)])
    opens = np.zeros(len(instance), np.bool_)
    reached = until.copy()
    for begin, end in zip(bounds.tolist(), [*bounds[1:].tolist(), len(instance)], strict=True):
        np.maximum.accumulate(until[begin:end], out=reached[begin:end])
        opens[begin] = True
        opens[begin + 1 : end] = since[begin + 1 : end] > reached[begin : end - 1]
    first = np.flatnonzero(opens)
    last = np.append(first[1:], len(instance))[: len(first)] - 1
    return instance[first], since[first], reached[last]


def busy_spans_ps(records: Records) -> tuple[Ints, Ints, Ints]:
    """The same of a replay, ps. Of a request that came back, each attempt counts from where its prefill began."""
    raw, lost, horizon = records.replay.columns, records.replay.lost, records.replay.horizon_ps
    rows = np.flatnonzero((raw["prefill_instance"] >= 0) & (raw["arrival_ps"] <= horizon))
    since = raw["arrival_ps"][rows]
    if "attempts" in raw:
        again = raw["attempts"][rows] > 1
        since = np.where(again, raw["start_ps"][rows], since)
        rows, since = rows[since >= 0], since[since >= 0]
    end = raw["end_ps"][rows]
    found = [raw["prefill_instance"][rows].astype(np.int64), since, np.where(end >= 0, end, horizon)]
    if lost:
        ran = lost["start_ps"] >= 0
        names = ("prefill_instance", "start_ps", "lost_ps")
        found = [np.concatenate((some, lost[name][ran])) for some, name in zip(found, names, strict=True)]
    return busy_spans(*found)


def stalled(records: Records) -> tuple[Ints, Ints]:
    """Segments that a batch had to wait for, and how many of their requests did: prefill steps came between."""
    segments, stays = records.segments, records.stays
    there = stays.taking_part(segments, np.ones(len(stays), np.bool_))
    np.subtract.at(there, stays.first, 1)
    at = np.flatnonzero((segments.pause_ps > 0) & (there > 0))
    return at, there[at]
