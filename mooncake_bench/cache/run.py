"""A trace through pools of blocks, request by request."""

from __future__ import annotations

import traceback
from array import array
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mooncake_bench.cache import assign
from mooncake_bench.cache.columns import ELSEWHERE, EVICTED, FIRST_SIGHT, NONE, NOT_READY, Columns
from mooncake_bench.cache.pool import Ledger, Pool
from mooncake_bench.errors import BenchError, PolicyError, faults

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mooncake_bench.cache.point import Assignment
    from mooncake_bench.cache.spec import Chosen
    from mooncake_bench.trace import Trace

_CHUNK = 4096  # requests whose blocks are Python integers at one time


class _Beyond(NamedTuple):
    """The blocks of a prompt beyond its prefix hit, by what keeps each from being a hit."""

    stored: bool  # whether the pool has any of them
    not_ready: int
    behind_gap: int
    elsewhere: int
    gone_ms: list[float]  # when each evicted one was given up
    first: int  # the reason of the first


_HIT_ALL = _Beyond(False, 0, 0, 0, [], NONE)


class Run:
    """Pools of ``capacity`` blocks each, and a ledger of what they gave up."""

    def __init__(self, chosen: Chosen, capacity: int, pools: int, ready_after_ms: float) -> None:
        self.name = chosen.policy.name
        self.ready_after_ms = ready_after_ms
        self.ledger = Ledger()
        made = [chosen.make() for _ in range(pools)]
        try:
            self.pools = [Pool(i, capacity, one, self.ledger, alone=pools == 1) for i, one in enumerate(made)]
        except faults() as error:
            raise _fault(self.name, "open()", error) from error

    def serve(self, trace: Trace, assignment: Assignment, reverse: bool) -> Columns:
        """Serve every request in turn. Raises PolicyError for what a policy does wrong."""
        fixed = assign.fixed(trace, assignment, len(self.pools))
        pool_of = array("q") if fixed is None else array("q", fixed.tobytes())
        served = [0] * len(self.pools)
        rows: list[tuple[int, ...]] = []  # as `_columns` takes them apart
        ago_ms = array("d")
        peak = row = 0
        try:
            for row, now_ms, blocks in _requests(trace):
                self._expire(now_ms)
                if fixed is None:
                    pool_of.append(assign.longest(blocks, self.ledger.holders, served))
                    served[pool_of[row]] += 1
                pool = self.pools[pool_of[row]]
                hit = self._prefix(pool, blocks, now_ms)
                rest = self._beyond(pool, blocks[hit:], now_ms) if hit < len(blocks) else _HIT_ALL
                hits = pool.serve(blocks, now_ms, reverse, now_ms - self.ready_after_ms, -1 if rest.stored else hit)
                rows.append((hit, hits, *rest[1:4], len(rest.gone_ms), rest.first, self.ledger.evictions))
                ago_ms.extend([now_ms - gone for gone in rest.gone_ms])
                peak = max(peak, len(pool.stored_ms))
        except BenchError:
            raise
        except faults() as error:
            raise _fault(self.name, f"request {row}", error) from error
        return _columns(rows, pool_of, ago_ms, peak)

    def _expire(self, now_ms: float) -> None:
        for pool in self.pools:
            if pool.expires:
                pool.expire(now_ms)

    def _prefix(self, pool: Pool, blocks: list[int], now_ms: float) -> int:
        """Leading blocks that the pool stores, ready by now."""
        stored_ms = pool.stored_ms
        hit = 0
        for block in blocks:
            if block not in stored_ms:
                break
            hit += 1
        if self.ready_after_ms:
            ready_ms = now_ms - self.ready_after_ms
            return next((place for place in range(hit) if stored_ms[blocks[place]] > ready_ms), hit)
        return hit

    def _beyond(self, pool: Pool, blocks: list[int], now_ms: float) -> _Beyond:
        """Why these blocks, of which the first is no hit, are beyond the prefix."""
        stored_ms, gone_ms, holders = pool.stored_ms, self.ledger.gone_ms, self.ledger.holders
        ready_ms = now_ms - self.ready_after_ms
        first = self._reason(pool, blocks[0])
        if not holders and stored_ms.keys().isdisjoint(blocks):  # the common case
            return _Beyond(False, 0, 0, 0, [gone_ms[block] for block in blocks if block in gone_ms], first)
        not_ready = behind = elsewhere = 0
        gone = []
        for block in blocks:
            if block in stored_ms:
                if stored_ms[block] > ready_ms:
                    not_ready += 1
                else:
                    behind += 1
            elif block in holders:
                elsewhere += 1
            elif block in gone_ms:
                gone.append(gone_ms[block])
        return _Beyond(not_ready + behind > 0, not_ready, behind, elsewhere, gone, first)

    def _reason(self, pool: Pool, block: int) -> int:
        """Why the first block beyond a prefix is no hit."""
        if block in pool.stored_ms:
            return NOT_READY
        if block in self.ledger.holders:
            return ELSEWHERE
        return EVICTED if block in self.ledger.gone_ms else FIRST_SIGHT


def _requests(trace: Trace) -> Iterator[tuple[int, float, list[int]]]:
    """Row, arrival and blocks of each request, as Python numbers, a chunk of rows at a time."""
    for begin in range(0, len(trace), _CHUNK):
        end = min(begin + _CHUNK, len(trace))
        offsets = trace.block_offsets[begin : end + 1]
        ids = trace.block_ids[offsets[0] : offsets[-1]].tolist()
        cuts = (offsets - offsets[0]).tolist()
        for at, now_ms in enumerate(trace.arrival_ms[begin:end].tolist()):
            yield begin + at, now_ms, ids[cuts[at] : cuts[at + 1]]


def _columns(rows: list[tuple[int, ...]], pool_of: array[int], ago_ms: array[float], peak: int) -> Columns:
    table = np.array(rows, np.int64).reshape(-1, 8).T
    prefix, hits, not_ready, behind_gap, elsewhere, evicted, first_miss, total = table
    return Columns(
        prefix=prefix,
        hits=hits,
        not_ready=not_ready,
        behind_gap=behind_gap,
        elsewhere=elsewhere,
        evicted=evicted,
        first_miss=first_miss,
        evictions=np.diff(total, prepend=0),
        pool=np.frombuffer(pool_of, np.int64) if pool_of else np.zeros(0, np.int64),
        evicted_ago_ms=np.frombuffer(ago_ms, np.float64) if ago_ms else np.zeros(0),
        peak_blocks=peak,
    )


def _fault(name: str, when: str, error: BaseException) -> PolicyError:
    """A policy's own exception as one line: which policy, which request, where in its file."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return PolicyError(f"policy {name!r}, {when}: it raised {type(error).__name__}: {error}{place}")
