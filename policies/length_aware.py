"""LengthAware: v3 section 4.2 (table 1), "similar to LFU but prioritizing cache blocks occurring later in requests"."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Literal

from mooncake_bench.api import Eviction

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    Key = tuple[int, int, int]


@dataclass(slots=True)
class _Stored:
    """A stored block: its place in the prompt that brought it, its uses, and the tick of the last one."""

    block: int
    position: int
    uses: int
    used: int


@dataclass
class LengthAware(Eviction):
    """LFU that heeds a block's place in its prompt. The paper's sentence can be read three ways; ``bias`` names one.

    ``evict``: of equally used blocks the later goes first (a tail is worth little without its head); ``keep``: the
    earlier goes first; ``position``: the later goes first, whatever the uses. What is still equal goes by last use.
    A use is a ``touch``, as in ``lfu``.
    """

    name = "length-aware"
    bias: Literal["evict", "keep", "position"] = "evict"

    def open(self, capacity_blocks: int) -> None:
        self._stored: dict[int, _Stored] = {}
        self._heap: list[tuple[Key, _Stored]] = []  # keys may be outdated, and then too small: uses only raise them
        self._parked: list[_Stored] = []  # taken off the heap while pinned
        self._tick = count()

    def insert(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        for block, position in zip(blocks, positions, strict=True):
            self._stored[block] = stored = _Stored(block, position, 0, next(self._tick))
            heappush(self._heap, (self._key(stored), stored))

    def touch(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        for block in blocks:
            stored = self._stored[block]
            stored.uses += 1
            stored.used = next(self._tick)

    def evict(self, pinned: Container[int]) -> int:
        self._return_unpinned(pinned)
        while self._heap:
            key, stored = heappop(self._heap)
            if self._stored.get(stored.block) is not stored:
                continue  # removed since
            if stored.block in pinned:
                self._parked.append(stored)
            elif key != (current := self._key(stored)):
                heappush(self._heap, (current, stored))
            else:
                del self._stored[stored.block]
                return stored.block
        raise LookupError("every stored block is pinned")

    def remove(self, block: int) -> None:
        del self._stored[block]

    def _return_unpinned(self, pinned: Container[int]) -> None:
        free = [stored for stored in self._parked if stored.block not in pinned]
        if free:
            self._parked = [stored for stored in self._parked if stored.block in pinned]
            for stored in free:
                heappush(self._heap, (self._key(stored), stored))

    def _key(self, stored: _Stored) -> Key:
        if self.bias == "evict":
            return stored.uses, -stored.position, stored.used
        if self.bias == "keep":
            return stored.uses, stored.position, stored.used
        return -stored.position, stored.uses, stored.used
