"""First in, first out: the simplest eviction, a baseline; not in the paper."""

from __future__ import annotations

from collections import OrderedDict
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
        self._order.update(dict.fromkeys(blocks))

    def evict(self, pinned: Container[int]) -> int:
        for block in self._order:
            if block not in pinned:
                del self._order[block]
                return block
        raise LookupError("every stored block is pinned")

    def remove(self, block: int) -> None:
        del self._order[block]
