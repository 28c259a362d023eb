"""Who shares which blocks, how soon again, and how many blocks are in use at once: one walk over all block references.

The walk takes the references in pieces, so block ids may be a memory-mapped column far larger than the memory; what it
keeps is a few numbers a distinct block and a request. Ids that are nearly dense (0 to a few times their number) are
their own labels; others are numbered once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench import spool
from mooncake_bench.trace.rows import row_chunks
from mooncake_bench.trace.summary import summary, summary_of_counts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from mooncake_bench.trace.model import Floats, Ints, Trace

PIECE_ENTRIES = 1_000_000  # block references looked at together: each needs some 150 bytes meanwhile
DENSE = 4  # ids up to so many times their number are used as labels as they are
TOP_BLOCKS = 10
TOP_SHARES = (1, 10, 100, 1_000, 10_000, 100_000)
WINDOWS_MS = (1_000, 10_000, 60_000, 600_000, 3_600_000)
FAN_OUT = ((1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, None))  # children of a block: from, to


class Labels:
    """Small numbers for the distinct block ids of a trace, in the order of the ids."""

    def __init__(self, block_ids: Ints) -> None:
        largest = max((int(part.max()) for part in _parts(block_ids)), default=-1)
        self._values: Ints | None = None
        self.size = largest + 1  # labels are 0 .. size - 1; dense ids may leave some unused
        if largest >= DENSE * len(block_ids):
            values = np.zeros(0, np.int64)
            for part in _parts(block_ids):
                values = _merged(values, part)
            self._values, self.size = values, len(values)

    def of(self, ids: Ints) -> Ints:
        """The labels of some ids."""
        return np.asarray(ids) if self._values is None else np.searchsorted(self._values, ids)

    def ids(self, labels: Ints) -> Ints:
        """The ids that have these labels."""
        return labels if self._values is None else self._values[labels]


def _merged(known: Ints, more: Ints) -> Ints:
    """The distinct values of both, in order; by sorting, which is many times faster than np.unique's hashing."""
    values = np.concatenate((known, more))
    values.sort()
    distinct: Ints = values[np.concatenate((values[:1] == values[:1], values[1:] != values[:-1]))]
    return distinct


def _parts(values: Ints) -> Iterator[Ints]:
    for first in range(0, len(values), PIECE_ENTRIES):
        yield values[first : first + PIECE_ENTRIES]
        spool.trim()


@dataclass
class Walk:
    """What one pass over the references of a trace, in its order, has counted."""

    trace: Trace
    windows_ms: Sequence[float] = WINDOWS_MS
    ceiling_blocks: Ints = field(init=False)  # (n,) leading blocks that an earlier request has
    uses: NDArray[np.int32] = field(init=False)  # (labels,) references to each block
    depths: Ints = field(init=False)  # distinct blocks by place of their first appearance in a prompt, from 0
    gaps_ms: Floats = field(init=False)  # one for each reference to a block seen before: time since then
    kept_ms: Floats = field(init=False)  # (windows,) sum of min(gap, window)
    opened: NDArray[np.int32] = field(init=False)  # (windows, n) references not used within the window before
    closed: NDArray[np.int32] = field(init=False)  # (windows, n) references not used within the window after

    def __post_init__(self) -> None:
        trace, windows = self.trace, len(self.windows_ms)
        self.labels = Labels(trace.block_ids)
        self.ceiling_blocks = np.diff(trace.block_offsets)
        self.uses = np.zeros(self.labels.size, np.int32)
        self.depths = np.zeros(int(self.ceiling_blocks.max(initial=0)), np.int64)
        self.kept_ms = np.zeros(windows)
        self.opened = np.zeros((windows, len(trace)), np.int32)
        self.closed = np.zeros((windows, len(trace)), np.int32)
        self._gaps: list[Floats] = []
        self._last_row = np.full(self.labels.size, -1, np.int32)
        self._tree = _Tree(self.labels.size)
        for first, end in row_chunks(trace, PIECE_ENTRIES):
            self._step(first, end)
        self.gaps_ms = np.concatenate(self._gaps) if self._gaps else np.zeros(0)
        self._close()

    def _step(self, first: int, end: int) -> None:
        """Rows ``first`` to ``end``."""
        trace = self.trace
        offsets = trace.block_offsets[first : end + 1]
        label = self.labels.of(trace.block_ids[offsets[0] : offsets[-1]])
        counts = np.diff(offsets)
        row = np.repeat(np.arange(first, end), counts)
        place = np.arange(len(label)) - np.repeat(offsets[:-1] - offsets[0], counts)
        fresh = self._link(label, row, first, end)
        self.depths += np.bincount(place[fresh], minlength=len(self.depths))
        self._tree.add(label, place)
        missed = np.repeat(counts, counts)
        missed[fresh] = place[fresh]
        self.ceiling_blocks[first:end] = np.minimum.reduceat(missed, offsets[:-1] - offsets[0])

    def _link(self, label: Ints, row: Ints, first: int, end: int) -> Ints:
        """Counts uses and gaps of rows ``first`` to ``end``; returns where references stand that are their block's
        first."""
        shift = len(label).bit_length()
        key = (label.astype(np.int64) << shift) | np.arange(len(label))
        key.sort()  # by block, then in order of reference
        block, at = key >> shift, key & ((1 << shift) - 1)
        starts = np.flatnonzero(np.concatenate(([True], block[1:] != block[:-1])))
        ends = np.append(starts[1:], len(block))
        blocks, heads, tails = block[starts], at[starts], at[ends - 1]
        before = self._last_row[blocks]
        seen = before >= 0
        inner = np.flatnonzero(np.concatenate(([False], block[1:] == block[:-1])))  # all but the heads
        earlier = np.concatenate((row[at[inner - 1]], before[seen]))
        later = np.concatenate((row[at[inner]], row[heads[seen]]))
        self._reused(earlier, later, first, end)
        self.uses[blocks] += (ends - starts).astype(np.int32)
        self._last_row[blocks] = row[tails]
        fresh: Ints = heads[~seen]
        self.opened[:, first:end] += np.bincount(row[fresh] - first, minlength=end - first).astype(np.int32)
        return fresh

    def _reused(self, before: Ints, after: Ints, first: int, end: int) -> None:
        """References of the rows ``after``, from ``first`` to ``end``, to blocks that ``before`` were last to use."""
        gaps = self.trace.arrival_ms[after] - self.trace.arrival_ms[before]
        self._gaps.append(gaps)
        for i, window in enumerate(self.windows_ms):
            late = gaps > window
            self.kept_ms[i] += np.minimum(gaps, window).sum()
            self.opened[i, first:end] += np.bincount(after[late] - first, minlength=end - first).astype(np.int32)
            np.add.at(self.closed[i], before[late], 1)

    def _close(self) -> None:
        """Every block's last use."""
        last = np.bincount(self._last_row[self._last_row >= 0], minlength=len(self.trace))
        left_ms = self.trace.arrival_ms[-1] - self.trace.arrival_ms
        for i, window in enumerate(self.windows_ms):
            self.closed[i] += last.astype(np.int32)
            self.kept_ms[i] += (np.minimum(left_ms, window) * last).sum()

    @cached_property
    def unique_blocks(self) -> int:
        """How many distinct blocks there are."""
        return int(np.count_nonzero(self.uses))

    def facts(self) -> dict[str, Any]:
        """Who shares which blocks: popularity, roots, reuse, and the prefix tree's depth and fan-out."""
        trace, uses = self.trace, self.uses
        roots = np.bincount(self.labels.of(trace.block_ids[trace.block_offsets[:-1]]))
        once = int((uses == 1).sum())
        return {
            "blocks": len(trace.block_ids),
            "unique_blocks": self.unique_blocks,
            "blocks_seen_once": once,
            "seen_once_ratio": once / self.unique_blocks,
            "blocks_per_request": summary(np.diff(trace.block_offsets)),
            "root_blocks": int(np.count_nonzero(roots)),
            "top_root_share": int(roots.max()) / len(trace),
            "top_blocks": self._top_blocks(),
            "top_shares": self._top_shares(),
            "reuse_gap_ms": summary(self.gaps_ms),
            "shared_prefix_blocks": summary(self.ceiling_blocks),
            "block_depth": summary_of_counts(np.concatenate(([0], self.depths))),
            **self._tree.facts(),
        }

    def _top_blocks(self) -> list[list[int]]:
        """The most used blocks as [id, uses], of equal ones the smaller id first."""
        kept = min(TOP_BLOCKS, len(self.uses))
        least = np.partition(self.uses, len(self.uses) - kept)[len(self.uses) - kept]
        many = np.flatnonzero(self.uses >= max(1, int(least)))
        top = many[np.argsort(-self.uses[many], kind="stable")][:kept]
        return [[int(block), int(uses)] for block, uses in zip(self.labels.ids(top), self.uses[top], strict=True)]

    def _top_shares(self) -> list[dict[str, Any]]:
        """What share of all references goes to the most used 1, 10, 100 ... blocks."""
        shared = self.popularity()
        return [
            {"blocks": count, "reference_ratio": float(shared[count - 1])}
            for count in TOP_SHARES
            if count <= len(shared)
        ]

    def popularity(self) -> Floats:
        """Share of all references that go to the most used 1, 2, 3 ... blocks. Shape (unique blocks,)."""
        uses = np.sort(self.uses)[::-1][: self.unique_blocks]
        shares: Floats = np.cumsum(uses, dtype=np.int64) / len(self.trace.block_ids)
        return shares

    def working_set(self) -> list[dict[str, Any]]:
        """Distinct blocks used within each window up to a moment: their mean over time, and their largest number.

        A pool of LRU order and the largest number's size never fetches again what was used within the window; at
        least ``reused_ratio`` of all references then find their block. The last line, without a window, is the whole
        trace: the pool that never evicts.
        """
        lines = [self._within(i, window) for i, window in enumerate(self.windows_ms)]
        return [*lines, self._line(None, None, self.unique_blocks, len(self.gaps_ms))]

    def _within(self, i: int, window_ms: float) -> dict[str, Any]:
        at_ms, span_ms = self.trace.arrival_ms, self.trace.span_ms
        gone = np.concatenate(([0], np.cumsum(self.closed[i], dtype=np.int64)))
        expired = np.searchsorted(at_ms, at_ms - window_ms, side="left")  # rows whose use is longer ago than the window
        largest = int((np.cumsum(self.opened[i], dtype=np.int64) - gone[expired]).max())
        mean = float(self.kept_ms[i]) / span_ms if span_ms else None
        return self._line(window_ms, mean, largest, int((self.gaps_ms <= window_ms).sum()))

    def _line(self, window_ms: float | None, mean: float | None, largest: int, reused: int) -> dict[str, Any]:
        return {
            "window_ms": window_ms,
            "mean_blocks": mean,
            "max_blocks": largest,
            "max_tokens": largest * self.trace.block_tokens,
            "reused_blocks": reused,
            "reused_ratio": reused / len(self.trace.block_ids),
        }


class _Tree:
    """The prefix tree: each block's parent, the block before it in a prompt."""

    def __init__(self, size: int) -> None:
        self._parent = np.full(size, -1, np.int64)
        self._size = size
        self._other = np.zeros(0, np.int64)  # child * size + parent, beyond the first parent seen

    def add(self, label: Ints, place: Ints) -> None:
        """The references of whole prompts, head first."""
        at = np.flatnonzero(place > 0)
        child, parent = label[at], label[at - 1]
        new = self._parent[child] < 0
        self._parent[child[new]] = parent[new]
        odd = self._parent[child] != parent
        if odd.any():
            self._other = _merged(self._other, child[odd] * self._size + parent[odd])

    def facts(self) -> dict[str, Any]:
        """Fan-out, and how many blocks follow more than one parent (0 when ids are chained)."""
        parents = np.concatenate((self._parent[self._parent >= 0], self._other % self._size))
        children = np.bincount(parents, minlength=1)
        fan_out = [
            {
                "children": _span(least, most),
                "blocks": int(((children >= least) & (children <= (most or children.max()))).sum()),
            }
            for least, most in FAN_OUT
        ]
        return {
            "branching_blocks": int((children > 1).sum()),
            "max_children": int(children.max()),
            "fan_out": fan_out,
            "blocks_with_two_parents": len(_merged(np.zeros(0, np.int64), self._other // self._size)),
        }


def _span(least: int, most: int | None) -> str:
    return f"{least}+" if most is None else str(least) if least == most else f"{least}-{most}"
