"""LengthAware: v3 section 4.2 (table 1), "similar to LFU but prioritizing cache blocks occurring later in requests"."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import filterfalse, islice
from typing import TYPE_CHECKING, Literal

from mooncake_bench.api import Eviction

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

_MAJOR = 1 << 32  # places and uses stay below it, so that one number ranks by both


@dataclass
class LengthAware(Eviction):
    """LFU that heeds a block's place in its prompt. The paper's sentence can be read three ways; ``bias`` names one.

    ``evict``: of equally used blocks the later goes first (a tail is worth little without its head); ``keep``: the
    earlier goes first; ``position``: the later goes first, whatever the uses. What is still equal goes by last use.
    A use is a ``touch``: storing a block is none, and where a touch never follows, all counts are one less.
    """

    name = "length-aware"
    bias: Literal["evict", "keep", "position"] = "evict"

    def open(self, capacity_blocks: int) -> None:
        # place and use weigh in a rank; the smallest rank goes first
        self._place, self._use = {"evict": (-1, _MAJOR), "keep": (1, _MAJOR), "position": (-_MAJOR, 1)}[self.bias]
        self._ranks: dict[int, int] = {}
        self._groups: dict[int, OrderedDict[int, None]] = {}  # rank: blocks, oldest use first; none is empty
        self._heap: list[int] = []  # the ranks of all groups, and of some that are gone

    def insert(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        ranks, groups, place = self._ranks, self._groups, self._place
        for block, position in zip(blocks, positions, strict=True):
            ranks[block] = rank = position * place
            if rank in groups:
                groups[rank][block] = None
            else:
                self._found(rank, block)

    def touch(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        ranks, groups, use = self._ranks, self._groups, self._use
        for block in blocks:
            rank = ranks[block]
            ranks[block] = above = rank + use
            group = groups[rank]
            if len(group) > 1:
                del group[block]
                if above in groups:
                    groups[above][block] = None
                else:
                    self._found(above, block)
                continue
            del groups[rank]
            if above in groups:
                groups[above][block] = None
            else:  # a group of one goes up as it is
                groups[above] = group
                heappush(self._heap, above)
        if len(self._heap) > 2 * len(groups) + 1000:  # most are gone
            self._heap[:] = groups
            heapify(self._heap)

    def evict(self, pinned: Container[int]) -> int:
        if self._groups:
            for block in self._groups[self._smallest()]:
                if block not in pinned:
                    self.remove(block)
                    return block
        return self.evict_many(1, pinned)[0]

    def evict_many(self, count: int, pinned: Container[int]) -> Sequence[int]:
        victims: list[int] = []
        passed: set[int] = set()  # ranks of groups with pinned blocks only
        while len(victims) < count and len(self._groups) > len(passed):
            rank = self._smallest()
            chosen = list(islice(filterfalse(pinned.__contains__, self._groups[rank]), count - len(victims)))
            for block in chosen:
                self.remove(block)
            victims += chosen
            if len(victims) < count:
                heappop(self._heap)
                if rank in self._groups:
                    passed.add(rank)
        for rank in passed:
            heappush(self._heap, rank)
        if len(victims) < count:
            raise LookupError("every stored block is pinned")
        return victims

    def replace(self, blocks: Sequence[int], positions: Sequence[int], pinned: Container[int]) -> Sequence[int]:
        if pinned:
            return super().replace(blocks, positions, pinned)
        groups, place = self._groups, self._place
        victims = [self.evict(())]
        last = 0  # the newest block is not entered yet: it may be the next to go
        for at in range(1, len(blocks)):
            if not groups or positions[last] * place < self._smallest():
                victims.append(blocks[last])
            else:
                self.insert(blocks[last : last + 1], positions[last : last + 1])
                victims.append(self.evict(()))
            last = at
        self.insert(blocks[last : last + 1], positions[last : last + 1])
        return victims

    def remove(self, block: int) -> None:
        rank = self._ranks.pop(block)
        group = self._groups[rank]
        del group[block]
        if not group:
            del self._groups[rank]

    def _found(self, rank: int, block: int) -> None:
        """A new group."""
        group = self._groups[rank] = OrderedDict()
        group[block] = None
        heappush(self._heap, rank)

    def _smallest(self) -> int:
        """The smallest rank of a group; there is one."""
        heap, groups = self._heap, self._groups
        while heap[0] not in groups:
            heappop(heap)
        return heap[0]
