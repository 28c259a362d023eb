"""SIEVE: Zhang et al., NSDI'24, section 3 and algorithm 1 (there for web caches); not in the paper."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from mooncake_bench.api import Eviction

if TYPE_CHECKING:
    from collections.abc import Container, Sequence


class Sieve(Eviction):
    """A queue in order of storing, and a hand that walks from old to new, sparing what was used and giving up the rest.

    Unlike in ``clock``, a spared block keeps its place, so the hand sifts new blocks before it comes back to old ones.
    A use is a ``touch`` by a later request than the one that stored the block. The hand passes pinned blocks by.
    """

    name = "sieve"

    def open(self, capacity_blocks: int) -> None:
        self._behind: OrderedDict[int, int] = OrderedDict()  # block: request that stored it; passed by, oldest first
        self._ahead: OrderedDict[int, int] = OrderedDict()  # from the hand to the newest
        self._visited: set[int] = set()
        self._request = 0

    def begin(self, blocks: Sequence[int], now_ms: float) -> None:
        self._request += 1

    def insert(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        if not self._ahead:
            self._wrap()
        ahead = self._ahead
        for block in blocks:
            ahead[block] = self._request

    def touch(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        ahead, visited, request = self._ahead, self._visited, self._request
        for block in blocks:
            if ahead.get(block) != request:
                visited.add(block)

    def evict(self, pinned: Container[int]) -> int:
        visited = self._visited
        for _ in range(2 * (len(self._ahead) + len(self._behind))):
            if not self._ahead:
                self._wrap()
            block, request = self._ahead.popitem(last=False)
            if block in visited:
                visited.remove(block)
            elif block not in pinned:
                return block
            self._behind[block] = request
        raise LookupError("every stored block is pinned")

    def replace(self, blocks: Sequence[int], positions: Sequence[int], pinned: Container[int]) -> Sequence[int]:
        if pinned:
            return super().replace(blocks, positions, pinned)
        visited, victims = self._visited, []
        ahead, behind = self._ahead, self._behind
        for block in blocks:
            while True:
                if not ahead:
                    ahead, behind = behind, ahead
                victim, request = ahead.popitem(last=False)
                if victim not in visited:
                    break
                visited.remove(victim)
                behind[victim] = request
            victims.append(victim)
            if not ahead:
                ahead, behind = behind, ahead
            ahead[block] = self._request
        self._ahead, self._behind = ahead, behind
        return victims

    def remove(self, block: int) -> None:
        del (self._ahead if block in self._ahead else self._behind)[block]
        self._visited.discard(block)

    def _wrap(self) -> None:
        """Past the newest block the hand starts again at the oldest."""
        self._ahead, self._behind = self._behind, self._ahead
