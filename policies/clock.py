"""CLOCK: Corbató, "A paging experiment with the Multics system" (1968), second chance; not in the paper."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from mooncake_bench.api import Eviction

if TYPE_CHECKING:
    from collections.abc import Container, Sequence


class Clock(Eviction):
    """Gives up the block stored longest ago, but one used since it was stored or last spared is spared once.

    A use is a ``touch`` by a later request than the one that stored the block. The hand passes pinned blocks by.
    """

    name = "clock"

    def open(self, capacity_blocks: int) -> None:
        self._ring: OrderedDict[int, int] = OrderedDict()  # block: request that stored it; from the hand on
        self._used: set[int] = set()  # the reference bits
        self._request = 0

    def begin(self, blocks: Sequence[int], now_ms: float) -> None:
        self._request += 1

    def insert(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        ring, request = self._ring, self._request
        for block in blocks:
            ring[block] = request

    def touch(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        ring, used, request = self._ring, self._used, self._request
        for block in blocks:
            if ring[block] != request:
                used.add(block)

    def evict(self, pinned: Container[int]) -> int:
        ring, used = self._ring, self._used
        for _ in range(2 * len(ring)):  # once around to take the bits, once more to find
            block, request = ring.popitem(last=False)
            if block in used:
                used.remove(block)
            elif block not in pinned:
                return block
            ring[block] = request
        raise LookupError("every stored block is pinned")

    def replace(self, blocks: Sequence[int], positions: Sequence[int], pinned: Container[int]) -> Sequence[int]:
        if pinned:
            return super().replace(blocks, positions, pinned)
        ring, used, victims = self._ring, self._used, []
        for block in blocks:
            victim, request = ring.popitem(last=False)
            while victim in used:
                used.remove(victim)
                ring[victim] = request
                victim, request = ring.popitem(last=False)
            victims.append(victim)
            ring[block] = self._request
        return victims

    def remove(self, block: int) -> None:
        del self._ring[block]
        self._used.discard(block)
