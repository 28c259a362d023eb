"""Least frequently used: v3 section 4.2 (table 1), with counts that a block loses when it leaves the node."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING

from mooncake_bench.api import Eviction

if TYPE_CHECKING:
    from collections.abc import Container, Sequence


class LFU(Eviction):
    """Gives up the block with the fewest uses since it was stored; of equals, the one used longest ago.

    A use is a ``touch``: storing a block is none, and each request touches all its blocks once, new ones included.
    Where storing is never followed by a touch, all counts are one less and the order is the same.
    """

    name = "lfu"

    def open(self, capacity_blocks: int) -> None:
        self._uses: dict[int, int] = {}
        self._by_uses: defaultdict[int, OrderedDict[int, None]] = defaultdict(OrderedDict)  # each oldest use first

    def insert(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        self._uses.update(dict.fromkeys(blocks, 0))
        self._by_uses[0].update(dict.fromkeys(blocks))

    def touch(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        for block in blocks:
            uses = self._uses[block]
            self._drop(block, uses)
            self._uses[block] = uses + 1
            self._by_uses[uses + 1][block] = None

    def evict(self, pinned: Container[int]) -> int:
        for uses in sorted(self._by_uses):
            for block in self._by_uses[uses]:
                if block not in pinned:
                    self.remove(block)
                    return block
        raise LookupError("every stored block is pinned")

    def remove(self, block: int) -> None:
        self._drop(block, self._uses.pop(block))

    def _drop(self, block: int, uses: int) -> None:
        group = self._by_uses[uses]
        del group[block]
        if not group:
            del self._by_uses[uses]
