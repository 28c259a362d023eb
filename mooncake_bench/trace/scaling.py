"""More load from one trace, in three ways that are not the same.

* **time**: the same requests, faster. Users think and read faster, too: turns may come before the answer they wait
  for (:func:`mooncake_bench.trace.sessions.early_turns`).
* **copies**: the whole trace several times at once, each copy a little later and with blocks of its own.
* **sessions**: more (or fewer) users. Whole sessions are drawn again with blocks of their own, each about when it was:
  moved by at most :data:`MOVE_SHARE` of the trace's span, and not beyond its ends. So load rises by the factor at every
  time, rush hours stay rush hours, the times between a session's turns stay, and no turn is lost. The first generation
  of sessions is the trace itself.

A trace whose arrivals lie on a coarse grid stays on it, unless ``max_offset_ms`` is given: copies have no offset, and
new sessions are moved from tick to tick.

What copies still share with the original is ``shared``: ``openings`` (system prompts and documents that several
conversations begin with, see :func:`openings`), ``roots`` (only first blocks among them) or ``none``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench.errors import TraceError, nearest
from mooncake_bench.trace.grid import GRID_SLACK, coarse_grid_ms
from mooncake_bench.trace.model import NO_SESSION
from mooncake_bench.trace.rows import by_time, entries_of, numbered, picked, remade
from mooncake_bench.trace.schema import MAX_SPAN_MS
from mooncake_bench.trace.sessions import MAX_FOLLOWERS, infer
from mooncake_bench.trace.synth import stream

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mooncake_bench.trace.model import Floats, Ints, Trace

SHARED = ("openings", "roots", "none")
MAX_FACTOR = 10_000.0
MOVE_SHARE = 1 / 60  # of the span: how far a new session may lie from the one it is drawn from; a minute of an hour


WAYS = {  # what a factor has to be
    "time": f"a number above 0 that leaves a span of at most {MAX_SPAN_MS:g} ms",
    "copies": f"a whole number from 1 to {MAX_FACTOR:,.0f} (by sessions takes fractions)",
    "sessions": f"above 0 and at most {MAX_FACTOR:,.0f}",
}


def check_factor(by: str, factor: float) -> None:
    """Raises TraceError for a factor that fits no trace; ``by`` is time, copies or sessions."""
    whole = by != "copies" or (factor >= 1 and factor % 1 == 0)
    if not 0 < factor <= (np.finfo(np.float64).max if by == "time" else MAX_FACTOR) or not whole:
        raise _bad_factor(by, factor)


def _bad_factor(by: str, factor: float) -> TraceError:
    return TraceError(f"scale by {by}: factor is {factor:g}; expected {WAYS[by]}")


def check_max_offset(span_ms: float, offset_ms: float) -> None:
    """Raises TraceError for a largest offset of copies that is none, or too large for a trace of ``span_ms``."""
    if not 0 <= offset_ms <= MAX_SPAN_MS - span_ms:
        expected = f"a number >= 0 that leaves a span of at most {MAX_SPAN_MS:g} ms"
        raise TraceError(f"scale by copies: largest offset is {offset_ms:g} ms; expected {expected}")


def scale_time(trace: Trace, factor: float) -> Trace:
    """The same requests ``factor`` times as fast: arrivals, and delays where known, divided by it.

    Raises TraceError for a factor that is not above 0, or so small that the trace gets absurdly long.
    """
    check_factor("time", factor)
    if trace.span_ms / factor > MAX_SPAN_MS:
        raise _bad_factor("time", factor)
    delay_ms = None if trace.delay_ms is None else trace.delay_ms / factor
    return remade(trace, f"time scaled by {factor:g}", arrival_ms=trace.arrival_ms / factor, delay_ms=delay_ms)


def scale_copies(
    trace: Trace, copies: float, seed: int = 0, shared: str = "openings", max_offset_ms: float | None = None
) -> Trace:
    """The trace and ``copies - 1`` more of it, interleaved; each begins at most ``max_offset_ms`` later.

    Offsets are uniform; None: at most the trace's mean gap between arrivals, or none where they lie on a coarse grid,
    which copies at other times would hide. Raises TraceError for another number of
    copies than a whole one from 1, and a negative offset.
    """
    check_factor("copies", copies)
    grid_ms = coarse_grid_ms(trace.arrival_ms) if max_offset_ms is None else None
    usual_ms = trace.span_ms / max(1, len(trace) - 1) if grid_ms is None else 0.0
    limit_ms = usual_ms if max_offset_ms is None else max_offset_ms
    check_max_offset(trace.span_ms, limit_ms)
    offsets = stream(seed, "scale/copies").random(int(copies)) * limit_ms
    rows = np.arange(len(trace))
    parts = [_Part(rows, trace.arrival_ms + (offsets[copy] if copy else 0.0)) for copy in range(int(copies))]
    offset = f"offsets up to {limit_ms:g} ms" if grid_ms is None else f"no offsets: all on the grid of {grid_ms:g} ms"
    done = f"{copies:g} copies, {offset}, shared blocks: {shared}, seed {seed}"
    return _joined(trace, parts, shared, done)


def scale_sessions(trace: Trace, factor: float, seed: int = 0, shared: str = "openings") -> Trace:
    """``factor`` times as many sessions; a fraction of them is drawn without replacement.

    Requests without a session are sessions of one. Sessions that the trace does not give are inferred
    (:mod:`mooncake_bench.trace.sessions`); a notice and ``metadata["session_ids"]`` say so. Raises TraceError when no
    session is left or the factor is no number above 0.
    """
    check_factor("sessions", factor)
    named, notices = _with_sessions(trace)
    lives = _Lives(named)
    count = lives.count
    whole, more = int(factor), round((factor - int(factor)) * count)
    if whole == 0 and more == 0:
        raise TraceError(f"scale by sessions: factor {factor:g} leaves 0 of {count:,} sessions; give more")
    chosen = [np.arange(count)] * whole
    if more:
        chosen.append(np.sort(stream(seed, "scale/sessions/which").permutation(count)[:more]))
    draws = stream(seed, "scale/sessions/start")
    parts = [lives.part(kept, draws.random(len(kept)) if number else None) for number, kept in enumerate(chosen)]
    total = sum(map(len, chosen))
    done = f"sessions scaled by {factor:g}: {total:,} of {count:,}, shared blocks: {shared}, seed {seed}"
    return _joined(named, parts, shared, done, notices)


def _with_sessions(trace: Trace) -> tuple[Trace, list[str]]:
    """The trace with a session id for each request, and what is to be said of them."""
    if trace.session_id is not None:
        return trace, []
    if not trace.has_prefix_ids:
        alone = "the trace has neither sessions nor prefix ids: each request was taken for a session of its own"
        return trace, [alone]
    session_id = infer(trace)
    found = f"{int(session_id.max(initial=-1)) + 1:,} sessions for {len(trace):,} requests"
    facts = dict(trace.metadata) | {"session_ids": "inferred from prefix growth"}
    named = remade(trace, "sessions inferred from prefix growth", session_id=session_id, metadata=facts)
    return named, [f"sessions were inferred from prefix growth: {found}"]


class _Lives:
    """When each session begins and ends; requests without one are sessions of one."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.label = _every_session(trace)
        self.count = int(self.label.max(initial=-1)) + 1
        self.first, self.last = np.full(self.count, np.inf), np.zeros(self.count)
        np.minimum.at(self.first, self.label, trace.arrival_ms)
        np.maximum.at(self.last, self.label, trace.arrival_ms)
        self.grid_ms = coarse_grid_ms(trace.arrival_ms)

    def part(self, kept: Ints, draws: Floats | None) -> _Part:
        """The requests of the sessions ``kept``; moved where there are ``draws``, uniform in [0, 1)."""
        wanted = np.zeros(self.count, np.bool_)
        wanted[kept] = True
        rows = np.flatnonzero(wanted[self.label])
        arrival_ms = self.trace.arrival_ms[rows]
        if draws is None:
            return _Part(rows, arrival_ms)
        move_ms = np.zeros(self.count)
        move_ms[kept] = self._moves(kept, draws)
        moved = np.clip(arrival_ms + move_ms[self.label[rows]], 0.0, self.trace.span_ms)  # clip: rounding alone
        return _Part(rows, moved if self.grid_ms is None else self._on_ticks(moved))

    def _moves(self, kept: Ints, draws: Floats) -> Floats:
        """How much later (below 0: earlier) each session is, ms; whole steps of a coarse grid."""
        most_ms = MOVE_SHARE * self.trace.span_ms
        earliest = -np.minimum(most_ms, self.first[kept])
        latest = np.minimum(most_ms, self.trace.span_ms - self.last[kept])
        if self.grid_ms is None:
            anywhere: Floats = earliest + draws * (latest - earliest)
            return anywhere
        low, high = np.ceil(earliest / self.grid_ms - GRID_SLACK), np.floor(latest / self.grid_ms + GRID_SLACK)
        moves: Floats = self.grid_ms * (low + np.floor(draws * (high - low + 1)))
        return moves

    def _on_ticks(self, moved: Floats) -> Floats:
        """Times at the trace's own nearest one where that is within the slack of its grid: clocks tick unevenly."""
        assert self.grid_ms is not None
        ticks = np.unique(self.trace.arrival_ms)
        after = np.clip(np.searchsorted(ticks, moved), 1, len(ticks) - 1)
        nearest_ms = np.where(moved - ticks[after - 1] <= ticks[after] - moved, ticks[after - 1], ticks[after])
        return np.where(np.abs(nearest_ms - moved) <= GRID_SLACK * self.grid_ms, nearest_ms, moved)


def _every_session(trace: Trace) -> Ints:
    """Sessions numbered from 0 by first appearance, a number of its own for each request without one."""
    if trace.session_id is None:
        return np.arange(len(trace))
    alone = trace.session_id == NO_SESSION
    label = np.where(alone, 0, np.unique(trace.session_id, return_inverse=True)[1])
    label[alone] = label.max(initial=0) + 1 + np.arange(alone.sum())
    return numbered(label)


@dataclass(frozen=True)
class _Part:
    """One generation of requests: rows of the trace, and when they arrive now."""

    rows: Ints
    arrival_ms: Floats


def _joined(trace: Trace, parts: list[_Part], shared: str, done: str, notices: list[str] | None = None) -> Trace:
    """The parts by arrival; all but the first with block, session and request ids of their own."""
    rows = np.concatenate([part.rows for part in parts])
    arrival_ms = np.concatenate([part.arrival_ms for part in parts])
    number = np.repeat(np.arange(len(parts)), [len(part.rows) for part in parts])
    order = by_time(arrival_ms)
    rows, number = rows[order], number[order]
    entries, offsets = entries_of(trace, rows)
    own = ~_shared_entries(trace, shared)[entries]
    ids, size = _room_for(trace.block_ids, len(parts))
    columns: dict[str, Any] = {
        "arrival_ms": arrival_ms[order],
        "block_offsets": offsets,
        "block_ids": ids[entries] + own * np.repeat(number, np.diff(offsets)) * size,
        "session_id": None if trace.session_id is None else _sessions(trace.session_id, rows, number, len(parts)),
        "request_id": _request_ids(trace, rows, number),
        "source_row": rows if len(parts) == 1 and trace.source_row is None else None,
    }
    for name in ("input_tokens", "output_tokens", "priority", "delay_ms"):
        column = getattr(trace, name)
        columns[name] = None if column is None else column[rows]
    return remade(trace, done, notices or (), **columns)


def _room_for(ids: Ints, parts: int) -> tuple[Ints, int]:
    """The ids, numbered anew where they are too large, and the size of their space: ``parts`` of it fit 63 bits."""
    size = int(ids.max(initial=-1)) + 1
    if size * parts < 2**63:
        return ids, size
    ids = numbered(ids)
    return ids, int(ids.max(initial=-1)) + 1


def _sessions(session_id: Ints, rows: Ints, number: Ints, parts: int) -> Ints:
    known = session_id != NO_SESSION
    ids = session_id.copy()
    ids[known], size = _room_for(session_id[known], parts)
    return np.where(known[rows], ids[rows] + number * size, NO_SESSION)


def _request_ids(trace: Trace, rows: Ints, number: Ints) -> tuple[str, ...] | None:
    """The ids of the first part as they are; a later one's with its number behind a sign that no id ends so with."""
    names = picked(trace.request_id, rows)
    if names is None or trace.request_id is None or not number.any():
        return names
    sign = "+"
    while any(sign in name for name in trace.request_id):
        sign += "+"
    return tuple(f"{name}{sign}{part}" if part else name for name, part in zip(names, number.tolist(), strict=True))


def _shared_entries(trace: Trace, shared: str) -> NDArray[np.bool_]:
    """Which entries of ``trace.block_ids`` keep their id in every copy."""
    if shared not in SHARED:
        raise TraceError(f"shared is {shared!r}; expected one of {', '.join(SHARED)}{nearest(shared, SHARED)}")
    if shared == "none" or not trace.has_prefix_ids:
        return np.zeros(len(trace.block_ids), np.bool_)
    marked = openings(trace)
    if shared == "roots":
        heads = np.zeros(len(marked), np.bool_)
        heads[trace.block_offsets[:-1]] = True
        marked &= heads
    return marked


def openings(trace: Trace) -> NDArray[np.bool_]:
    """Which entries of ``trace.block_ids`` are of an opening that many conversations share.

    A block is when it, or one after it in some prompt, is followed by more than
    :data:`~mooncake_bench.trace.sessions.MAX_FOLLOWERS` different blocks. Shape (m,).
    """
    values, label = np.unique(trace.block_ids, return_inverse=True)
    inner = np.ones(len(label), np.bool_)
    inner[trace.block_offsets[1:] - 1] = False
    before = np.flatnonzero(inner)
    edges = np.unique(label[before] * len(values) + label[before + 1])
    branching = np.bincount(edges // len(values), minlength=len(values)) > MAX_FOLLOWERS
    place = np.arange(len(label))
    deepest = np.maximum.reduceat(np.where(branching[label], place, -1), trace.block_offsets[:-1])
    upto = place <= np.repeat(deepest, np.diff(trace.block_offsets))
    flagged = np.zeros(len(values), np.bool_)
    flagged[label[upto]] = True
    return flagged[label]
