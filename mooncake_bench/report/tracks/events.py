"""Trace events, and lanes in which slices do not overlap.

The format is the JSON of "Trace Event Format": times in us, a process and a thread for every track. Slices of one
thread may only nest, so those that overlap get lanes, each a thread of its own.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

Event = dict[str, Any]
US_PER_MS = 1000.0
LANES = 1000  # threads that a track may have


class Slice(NamedTuple):
    """Something that lasts [ms], with what a reader wants to know of it."""

    name: str
    start_ms: float
    end_ms: float
    facts: Mapping[str, Any]


def process(pid: int, name: str) -> Iterator[Event]:
    """A group of tracks, in the order of ``pid``."""
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}


def thread(pid: int, tid: int, name: str) -> Iterator[Event]:
    """A track, in the order of ``tid``."""
    yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
    yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}


def track(pid: int, number: int, name: str, slices: Sequence[Slice]) -> Iterator[Event]:
    """Slices as a track of as many lanes as overlap at once; ``number`` tells the tracks of a process apart."""
    lanes = _lanes(slices)
    for lane in range(max(lanes, default=0) + 1):
        yield from thread(pid, number * LANES + lane + 1, name if lane == 0 else f"{name}, lane {lane + 1}")
    for one, lane in zip(slices, lanes, strict=True):
        yield {
            "ph": "X",
            "name": one.name,
            "pid": pid,
            "tid": number * LANES + lane + 1,
            "ts": one.start_ms * US_PER_MS,
            "dur": max(one.end_ms - one.start_ms, 0.0) * US_PER_MS,
            "args": dict(one.facts),
        }


def _lanes(slices: Sequence[Slice]) -> list[int]:
    """The lowest free lane of each slice, in order of their starts."""
    found = [0] * len(slices)
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    used = 0
    for at in sorted(range(len(slices)), key=lambda at: slices[at].start_ms):
        while busy and busy[0][0] <= slices[at].start_ms:
            heappush(free, heappop(busy)[1])
        lane = heappop(free) if free else used
        used = max(used, lane + 1)
        found[at] = lane
        heappush(busy, (slices[at].end_ms, lane))
    return found


def counter(pid: int, name: str, times_ms: Iterable[float], values: Iterable[float | None]) -> Iterator[Event]:
    """A number over time; undefined ones are left out."""
    for time, value in zip(times_ms, values, strict=True):
        if value is not None:
            yield {"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": time * US_PER_MS, "args": {"value": value}}


def instant(pid: int, tid: int, name: str, time_ms: float, facts: Mapping[str, Any]) -> Event:
    """Something that happens at once."""
    return {
        "ph": "i", "s": "t", "name": name, "pid": pid, "tid": tid, "ts": time_ms * US_PER_MS, "args": dict(facts)
    }  # fmt: skip


def nested(pid: int, key: str, slices: Sequence[Slice]) -> Iterator[Event]:
    """Slices of one thing, the first around the others, on a track of its own."""
    outer, *inner = slices
    yield _async(pid, "b", key, outer.name, outer.start_ms, outer.facts)
    for one in inner:
        yield _async(pid, "b", key, one.name, one.start_ms, one.facts)
        yield _async(pid, "e", key, one.name, one.end_ms, {})
    yield _async(pid, "e", key, outer.name, outer.end_ms, {})


def _async(pid: int, phase: str, key: str, name: str, time_ms: float, facts: Mapping[str, Any]) -> Event:
    return {
        "ph": phase,
        "cat": "request",
        "id": key,
        "name": name,
        "pid": pid,
        "tid": 0,
        "ts": time_ms * US_PER_MS,
        "args": dict(facts),
    }
