"""Segmented LRU: Karedla, Love and Wherry, IEEE Computer 27(3), 1994 (for disk caches); not in the paper."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mooncake_bench.api import Eviction

if TYPE_CHECKING:
    from collections.abc import Container, Sequence


@dataclass
class SLRU(Eviction):
    """An LRU of new blocks, on probation, which gives up blocks, and one of those used again, protected.

    ``protected`` is the second one's share of the capacity: what it cannot hold returns to probation. A use is a
    ``touch`` by a later request than the one that stored the block. A pinned block whose turn has come goes round
    once more.
    """

    name = "slru"
    protected: float = 0.8

    def __post_init__(self) -> None:
        if not 0 <= self.protected <= 1:
            raise ValueError(f"protected is a share of the capacity, 0 to 1, found {self.protected}")

    def open(self, capacity_blocks: int) -> None:
        self._probation: OrderedDict[int, int] = OrderedDict()  # block: request that stored it; oldest use first
        self._protected: OrderedDict[int, int] = OrderedDict()
        self._protected_size = int(capacity_blocks * self.protected)
        self._request = 0

    def begin(self, blocks: Sequence[int], now_ms: float) -> None:
        self._request += 1

    def insert(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        probation, request = self._probation, self._request
        for block in blocks:
            probation[block] = request

    def touch(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        probation, protected, now = self._probation, self._protected, self._request
        for block in blocks:
            if block in protected:
                protected.move_to_end(block)
            elif probation[block] == now:
                probation.move_to_end(block)
            else:
                protected[block] = probation.pop(block)
                if len(protected) > self._protected_size:
                    block, request = protected.popitem(last=False)
                    probation[block] = request

    def evict(self, pinned: Container[int]) -> int:
        for queue in (self._probation, self._protected):
            for _ in range(len(queue)):
                block, request = queue.popitem(last=False)
                if block not in pinned:
                    return block
                queue[block] = request
        raise LookupError("every stored block is pinned")

    def replace(self, blocks: Sequence[int], positions: Sequence[int], pinned: Container[int]) -> Sequence[int]:
        if pinned:
            return super().replace(blocks, positions, pinned)
        probation, protected, request, victims = self._probation, self._protected, self._request, []
        for block in blocks:
            victims.append((probation or protected).popitem(last=False)[0])
            probation[block] = request
        return victims

    def remove(self, block: int) -> None:
        del (self._probation if block in self._probation else self._protected)[block]
