"""A trace drawn from a specification: arrivals first, then, in order, whom each request continues and how.

A continuation looks for a conversation that was last heard of at the time its drawn lag says, at the turn its drawn
class says, and of a length near to the drawn one; so shares, lags and lengths are those of the original together,
and no request of it is repeated.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from math import inf, log
from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.trace.schema import RawColumns, finish
from mooncake_bench.trace.synthetic import draws
from mooncake_bench.trace.synthetic.blocks import check_count
from mooncake_bench.trace.synthetic.draws import Draws
from mooncake_bench.trace.synthetic.fitted import CLASS_EDGES, CLASSES, KINDS
from mooncake_bench.trace.synthetic.links import EDITS, GROWS, NOBODY, REPEATS

if TYPE_CHECKING:
    from pathlib import Path

    from mooncake_bench.trace.model import Floats, Ints, Trace
    from mooncake_bench.trace.synthetic.fitted import ArrivalCurve, Openings, Spec

NEAR = 128  # conversations nearest in time, among which one is chosen by both
LAG_UNIT_MS = 1000.0  # lags are compared by the logarithm of themselves and this, lengths by their own
OTHER_OPENING = 3.0  # what another opening counts for: as much as a factor of e^3


def trace_of(path: str | Path, seed: int = 0) -> Trace:
    """A trace of the specification in a file. Raises TraceError for a file that is none."""
    from mooncake_bench.trace.synthetic.specfile import read

    return draw(read(path), seed)


def draw(spec: Spec, seed: int = 0) -> Trace:
    """A trace of a specification: a pure function of it and the seed."""
    return finish(_Copy(spec, seed).columns(), "fitted", spec.block_tokens, "ms")


@dataclass(frozen=True)
class _Wanted:
    """What a continuation looks for."""

    now_ms: float
    lag_ms: float
    tokens: float
    opening: int


@dataclass
class _Pool:
    """Conversations at turns of one class that nobody has continued yet, by the time of their last request."""

    times_ms: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    def add(self, time_ms: float, row: int) -> None:
        """Times never fall."""
        self.times_ms.append(time_ms)
        self.rows.append(row)

    def take(self, wanted: _Wanted, lengths: list[int], openings: list[int]) -> int:
        """Remove and return the row that fits best what is wanted, of NEAR around its time."""
        middle = bisect_left(self.times_ms, wanted.now_ms - wanted.lag_ms)
        first = max(0, min(middle - NEAR // 2, len(self.rows) - NEAR))
        log_lag, log_tokens = log(wanted.lag_ms + LAG_UNIT_MS), log(wanted.tokens)
        best, at = inf, first
        for place in range(first, min(first + NEAR, len(self.rows))):
            row = self.rows[place]
            off = abs(log(wanted.now_ms - self.times_ms[place] + LAG_UNIT_MS) - log_lag)
            off += abs(log(lengths[row]) - log_tokens) + OTHER_OPENING * (openings[row] != wanted.opening)
            if off < best:
                best, at = off, place
        del self.times_ms[at]
        return self.rows.pop(at)


class _Copy:
    """One trace in the making."""

    def __init__(self, spec: Spec, seed: int) -> None:
        self.spec, self.seed = spec, seed
        self.uniform = Draws(seed, "traces fit")
        self.times_ms = _times(spec.arrivals, self.uniform)
        count = len(self.times_ms)
        self.tokens = [0] * count
        self.parent = np.full(count, NOBODY, np.int64)
        self.shared = np.zeros(count, np.int64)
        self.turn = [1] * count
        openings = spec.openings
        self.opening = self._choose_openings("opening", openings.requests, openings.without)
        self.wanted_opening = self._choose_openings("continued", openings.continued, openings.without_continued)
        self.pools = [_Pool() for _ in range(CLASSES)]

    def _choose_openings(self, purpose: str, counts: tuple[int, ...], without: int) -> list[int]:
        """An opening for each request, in proportion to counts; NOBODY: none."""
        edges = np.cumsum([*counts, without], dtype=np.float64)
        found = np.searchsorted(edges, self.uniform(purpose, len(self.times_ms)) * edges[-1], side="right")
        chosen: list[int] = np.where(found >= len(counts), NOBODY, found).tolist()
        return chosen

    def columns(self) -> RawColumns:
        """Everything that a reader would have found in a file."""
        self._lengths()
        tokens = np.array(self.tokens, np.int64)
        offsets, ids = self._blocks(tokens)
        answers = self.spec.output_tokens.each(tokens, self.uniform("output", len(tokens)))
        return RawColumns(
            label="synthetic trace 'fitted'",
            timestamp=self.times_ms,
            input_tokens=tokens,
            output_tokens=np.maximum(1, np.rint(answers)).astype(np.int64),
            block_offsets=offsets,
            block_ids=ids,
            session_id=self._sessions() if self.spec.continuations is not None else None,
            metadata={"source": "synthetic: mooncake-bench traces synth --from", "seed": str(self.seed)}
            | ({} if self.spec.prefix_ids else {"prefix_ids": "none"}),
        )

    def _lengths(self) -> None:
        """Whom each request continues, how many blocks it shares, and how long it is."""
        count, going_on = len(self.times_ms), self.spec.continuations
        fresh = self._fresh_lengths(count)
        if going_on is None:
            self.tokens = fresh
            return
        share = np.repeat(going_on.share, [len(part) for part in np.array_split(np.arange(count), len(going_on.share))])
        continues = (self.uniform("continues", count) < share).tolist()
        draws_of = {
            name: self.uniform(name, count).tolist() for name in ("class", "kind", "lag", "parent", "new", "kept")
        }
        times = self.times_ms.tolist()
        for row in range(count):
            one = {name: values[row] for name, values in draws_of.items()}
            if not (continues[row] and self._continue(row, times[row], one)):
                self.tokens[row] = fresh[row]
            number = int(np.searchsorted(CLASS_EDGES, self.turn[row], side="right"))
            self.pools[number].add(times[row], row)

    def _fresh_lengths(self, count: int) -> list[int]:
        """The length of each request, should it continue nobody."""
        openings, size = self.spec.openings, self.spec.block_tokens
        uniform = self.uniform("own", count)
        opening = np.asarray(self.opening)
        tokens = np.zeros(count, np.int64)
        for number, table in enumerate(self.spec.own_tokens):
            last = number == len(openings.blocks)
            rows = np.flatnonzero(opening == (NOBODY if last else number))
            begin = 0 if last else openings.blocks[number] * size
            tokens[rows] = begin + np.rint(table(uniform[rows])).astype(np.int64)
        found: list[int] = np.clip(tokens, 1, self.spec.longest_tokens).tolist()
        return found

    def _continue(self, row: int, now_ms: float, one: dict[str, float]) -> bool:
        """Let a request continue another; False where there is none that it could."""
        going_on = self.spec.continuations
        assert going_on is not None
        number = self._class(row, one["class"])
        if number is None:
            return False
        kind = _pick(going_on.kinds[number], one["kind"])
        table = going_on.lag_ms[kind][number].table(now_ms)
        lag = float(table(np.array([one["lag"] * table.share_below(now_ms)]))[0])
        turn = 1 if not number else CLASS_EDGES[number - 1]
        wanted = going_on.parent_tokens[kind].value(turn, one["parent"])
        looked_for = _Wanted(now_ms, lag, max(1.0, wanted), self.wanted_opening[row])
        parent = self.pools[number].take(looked_for, self.tokens, self.opening)
        self.parent[row], self.turn[row], self.opening[row] = parent, self.turn[parent] + 1, self.opening[parent]
        self.tokens[row], self.shared[row] = self._grown(self.tokens[parent], kind, one, self._opened(row))
        return True

    def _class(self, row: int, uniform: float) -> int | None:
        """The drawn class, or the nearest below it in which a conversation waits."""
        going_on = self.spec.continuations
        assert going_on is not None
        part = going_on.classes[row * len(going_on.classes) // len(self.tokens)]
        number = _pick(part, uniform)
        return next((lower for lower in range(number, -1, -1) if self.pools[lower].rows), None)

    def _opened(self, row: int) -> int:
        opening = self.opening[row]
        return 0 if opening == NOBODY else self.spec.openings.blocks[opening]

    def _grown(self, old: int, kind: int, one: dict[str, float], opened: int) -> tuple[int, int]:
        """Length of a prompt that continues one of ``old`` tokens, and how many blocks they share."""
        going_on, size, longest = self.spec.continuations, self.spec.block_tokens, self.spec.longest_tokens
        assert going_on is not None
        if kind == REPEATS:
            return old, -(-old // size)
        if kind == GROWS:
            added = max(1, round(going_on.growth_tokens.value(old, one["new"])))
            return max(old, min(old + added, longest)), old // size
        kept = min(1000.0, going_on.kept_per_mille.value(old, one["kept"]))
        blocks = min(max(round(kept * old / 1000 / size), min(opened + 1, old // size)), -(-old // size))
        begin = min(blocks * size, old)
        added = round(going_on.rewritten_per_mille.value(kept, one["new"]) * max(old - begin, 1) / 1000)
        return max(1, min(begin + max(1, added), longest)), min(blocks, old // size)

    def _blocks(self, tokens: Ints) -> tuple[Ints, Ints]:
        """Offsets and ids; new ids in order of appearance."""
        offsets = np.zeros(len(tokens) + 1, np.int64)
        np.cumsum(-(-tokens // self.spec.block_tokens), out=offsets[1:])
        check_count(int(offsets[-1]))
        if not self.spec.prefix_ids:
            return offsets, np.arange(offsets[-1])
        ids = np.empty(int(offsets[-1]), np.int64)
        chains, place, following = _Chains(self.spec.openings), offsets.tolist(), 0
        for row, parent in enumerate(self.parent.tolist()):
            begin, end = place[row], place[row + 1]
            if parent != NOBODY:
                shared = min(int(self.shared[row]), end - begin)
                ids[begin : begin + shared] = ids[place[parent] : place[parent] + shared]
            else:
                shared = min(self._opened(row), end - begin)
                following = chains.put(self.opening[row], ids[begin : begin + shared], following)
            ids[begin + shared : end] = np.arange(following, following + end - begin - shared)
            following += end - begin - shared
        return offsets, ids

    def _sessions(self) -> Ints:
        """Conversations, numbered by their first request."""
        session = np.empty(len(self.parent), np.int64)
        following = 0
        for row, parent in enumerate(self.parent.tolist()):
            session[row] = following if parent == NOBODY else session[parent]
            following += parent == NOBODY
        return session


class _Chains:
    """The block ids of openings, given out when a block is first used."""

    def __init__(self, openings: Openings) -> None:
        self.openings = openings
        self.ids = [np.full(blocks, NOBODY, np.int64) for blocks in openings.blocks]

    def put(self, opening: int, into: Ints, following: int) -> int:
        """Write the first ids of an opening; returns the next unused id."""
        if not len(into):
            return following
        own = self.ids[opening]
        common = min(self.openings.like_blocks[opening], len(into))
        if common:
            following = self.put(self.openings.like[opening], own[:common], following)
        new = np.flatnonzero(own[: len(into)] == NOBODY)
        own[new] = np.arange(following, following + len(new))
        into[:] = own[: len(into)]
        return following + len(new)


def _pick(shares: tuple[float, ...], uniform: float) -> int:
    """An index, in proportion to its share."""
    left = uniform * sum(shares)
    for index, share in enumerate(shares):
        left -= share
        if left < 0:
            return index
    return len(shares) - 1


def _times(curve: ArrivalCurve, uniform: Draws) -> Floats:
    """Arrival times in ms: each window has its count, thrown at stretches of gamma-distributed rates."""
    stretches = max(1, round(curve.window_ms / curve.burst_ms))
    weights = np.ones((len(curve.counts), stretches))
    if curve.burst_cv:
        drawn = draws.gamma_of(uniform("bursts", weights.size), 1 / curve.burst_cv**2)
        weights = np.maximum(drawn.reshape(weights.shape), 1e-9)
    total = np.concatenate((np.zeros((len(weights), 1)), np.cumsum(weights, axis=1)), axis=1)
    total /= total[:, -1:]
    window = np.repeat(np.arange(len(curve.counts)), curve.counts)
    flat = (total[:, :-1] + np.arange(len(total))[:, None]).ravel()
    edges = (np.arange(len(total))[:, None] + np.arange(stretches)[None, :] / stretches).ravel()
    place = np.interp(
        window + uniform("arrivals", len(window)), np.append(flat, len(total)), np.append(edges, len(total))
    )
    times = np.sort(np.minimum(place * curve.window_ms, np.nextafter(curve.span_ms, 0)))
    return np.floor(times / curve.grid_ms) * curve.grid_ms if curve.grid_ms else np.rint(times * 1e6) / 1e6


assert len(KINDS) == 1 + max(GROWS, REPEATS, EDITS)
