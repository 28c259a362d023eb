"""Least frequently used: v3 section 4.2 (table 1), which does not say whether a block that leaves loses its count."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Literal

from mooncake_bench.api import Eviction

if TYPE_CHECKING:
    from collections.abc import Container, Sequence


@dataclass
class LFU(Eviction):
    """Gives up the block with the fewest uses; of equals, the one used longest ago.

    ``counts=in-cache`` forgets the uses of a block that leaves, ``perfect`` remembers them for ever. With
    ``ties=insertion`` the one of equals that was stored longest ago goes. A request uses a block once: storing it and
    touching it right after are one use.
    """

    name = "lfu"
    counts: Literal["in-cache", "perfect"] = "in-cache"
    ties: Literal["recency", "insertion"] = "recency"

    def open(self, capacity_blocks: int) -> None:
        # In-cache counts are those of touches: all are one less where storing a block is not followed by one.
        self._forgets = self.counts == "in-cache"
        self._uses: dict[int, int] = {}  # of stored blocks; with perfect counts of every block ever stored
        self._groups: dict[int, OrderedDict[int, None]] = {}  # uses: blocks, oldest use first; none is empty
        self._least = 0  # no group has fewer uses
        self._fresh: set[int] = set()  # with perfect counts: stored by the request served now, and not touched yet
        self._ages = _Ages() if self.ties == "insertion" else None

    def begin(self, blocks: Sequence[int], now_ms: float) -> None:
        self._fresh.clear()

    def insert(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        if not self._forgets:
            self._fresh.update(blocks)
        for block in blocks:
            now = 0 if self._forgets else self._uses.get(block, 0) + 1
            self._add(block, now)
            if self._ages is not None:
                self._ages.store(block)
                if now:
                    self._ages.use(block, now)

    def touch(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        uses, groups, fresh, ages = self._uses, self._groups, self._fresh, self._ages
        for block in blocks:
            now = uses[block]
            group = groups[now]
            if block in fresh:
                fresh.remove(block)
                group.move_to_end(block)
                continue
            uses[block] = above = now + 1
            del group[block]
            if not group:
                del groups[now]
            if above in groups:
                groups[above][block] = None
            else:
                self._add(block, above)
            if ages is not None:
                ages.use(block, above)

    def evict(self, pinned: Container[int]) -> int:
        groups = self._groups
        if self._least not in groups:
            self._least = min(groups, default=0)
        block = self._first(self._least, pinned) if groups else None
        if block is None:
            found = (self._first(uses, pinned) for uses in sorted(groups))
            block = next((block for block in found if block is not None), None)
        if block is None:
            raise LookupError("every stored block is pinned")
        self.remove(block)
        return block

    def replace(self, blocks: Sequence[int], positions: Sequence[int], pinned: Container[int]) -> Sequence[int]:
        if pinned or not (self._forgets or self._ages is None):
            return super().replace(blocks, positions, pinned)
        return self._replace_forgetting(blocks) if self._forgets else self._replace_remembering(blocks)

    def remove(self, block: int) -> None:
        self._drop(block, self._uses.pop(block) if self._forgets else self._uses[block])

    def _replace_forgetting(self, blocks: Sequence[int]) -> list[int]:
        """A block that comes has no uses; so, after the first, each finds a victim without any."""
        victims = [self.evict(())]
        self.insert(blocks[:1], (0,))
        uses, group = self._uses, self._groups[0]
        if self._ages is not None:
            for block in blocks[1:]:
                self._ages.store(block)
        for block in blocks[1:]:
            victim = group.popitem(last=False)[0]
            del uses[victim]
            victims.append(victim)
            uses[block] = 0
            group[block] = None
        return victims

    def _replace_remembering(self, blocks: Sequence[int]) -> list[int]:
        self._fresh.update(blocks)
        uses, groups, victims = self._uses, self._groups, []
        for block in blocks:
            if self._least not in groups:
                self._least = min(groups)
            group = groups[self._least]
            victims.append(group.popitem(last=False)[0])
            if not group:
                del groups[self._least]
            now = uses.get(block, 0) + 1
            if now in groups:
                uses[block] = now
                groups[now][block] = None
            else:
                self._add(block, now)
        return victims

    def _add(self, block: int, uses: int) -> None:
        self._uses[block] = uses
        if uses in self._groups:
            self._groups[uses][block] = None
        else:
            group = self._groups[uses] = OrderedDict()
            group[block] = None
            self._least = min(self._least, uses)

    def _drop(self, block: int, uses: int) -> None:
        group = self._groups[uses]
        del group[block]
        if not group:
            del self._groups[uses]

    def _first(self, uses: int, pinned: Container[int]) -> int | None:
        """The block of a group that goes first."""
        group = self._groups[uses]
        if self._ages is not None and uses:  # unused blocks stand in the order in which they were stored
            return self._ages.oldest(uses, group, pinned)
        return next((block for block in group if block not in pinned), None)


class _Ages:
    """The order in which the blocks of each group were stored."""

    def __init__(self) -> None:
        self._next = count()
        self._number: dict[int, int] = {}  # block: number of its insertion
        self._heaps: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)  # uses: (number, block), and old ones

    def store(self, block: int) -> None:
        self._number[block] = next(self._next)

    def use(self, block: int, uses: int) -> None:
        heappush(self._heaps[uses], (self._number[block], block))

    def oldest(self, uses: int, group: Container[int], pinned: Container[int]) -> int | None:
        """The block of ``group`` stored first; what left the group is dropped from its heap on the way."""
        heap = self._heaps[uses]
        passed = []
        found = None
        while heap and found is None:
            number, block = heap[0]
            if block not in group or self._number[block] != number:
                heappop(heap)
            elif block in pinned:
                passed.append(heappop(heap))
            else:
                found = block
        for entry in passed:
            heappush(heap, entry)
        return found
