"""First in, first out: the simplest eviction, a baseline; not in the paper."""

from __future__ import annotations

from collections import OrderedDict
from itertools import filterfalse, islice
from typing import TYPE_CHECKING

from mooncake_bench.api import Eviction

if TYPE_CHECKING:
    from collections.abc import Container, Sequence


class FIFO(Eviction):
    """Gives up the block stored longest ago, however often it was used."""

    name = "fifo"

    def open(self, capacity_blocks: int) -> None:
        self._order: OrderedDict[int, None] = OrderedDict()  # oldest insertion first

    def insert(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        order = self._order
        for block in blocks:
            order[block] = None

    def evict(self, pinned: Container[int]) -> int:
        order = self._order
        for block in order:
            if block not in pinned:
                del order[block]
                return block
        raise LookupError("every stored block is pinned")

    def evict_many(self, count: int, pinned: Container[int]) -> Sequence[int]:
        victims = list(islice(filterfalse(pinned.__contains__, self._order), count))
        for block in victims:
            del self._order[block]
        return victims

    def replace(self, blocks: Sequence[int], positions: Sequence[int], pinned: Container[int]) -> Sequence[int]:
        if pinned:
            return super().replace(blocks, positions, pinned)
        order, victims = self._order, []
        for block in blocks:
            victims.append(order.popitem(last=False)[0])
            order[block] = None
        return victims

    def remove(self, block: int) -> None:
        del self._order[block]
