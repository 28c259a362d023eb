"""LRU-K: O'Neil, O'Neil and Weikum, SIGMOD'93, section 2 and figure 2.1 (for database pages); not in the paper."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from mooncake_bench.api import Eviction

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    Uses = tuple[float, ...]  # when the last use was, ms, then the ticks of the last k uses, latest first


@dataclass
class LRUK(Eviction):
    """Gives up the block whose ``k``-th last use is longest ago; of those used less often, the one used longest ago.

    The uses of a block that left are remembered until ``retained_ms`` after the last (the paper's Retained Information
    Period, 200 s); 0 forgets them at once. A use is being stored, or a ``touch`` by a later request (the Correlated
    Reference Period is one request).
    """

    name = "lru-k"
    k: int = 2
    retained_ms: float = 200_000.0

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k must be 1 or more, found {self.k}")
        if not self.retained_ms >= 0:
            raise ValueError(f"retained_ms must be a duration of 0 or more, found {self.retained_ms}")

    def open(self, capacity_blocks: int) -> None:
        self._uses: dict[int, Uses] = {}
        self._few: OrderedDict[int, None] = OrderedDict()  # blocks of less than k uses, oldest use first
        self._heap: list[tuple[float, int]] = []  # (k-th last use, block) of the others; some outdated
        self._past: OrderedDict[int, Uses] = OrderedDict()  # what is remembered of those that left
        self._tick = 0
        self._begun = 0  # the tick at which the present request began
        self._now_ms = 0.0

    def begin(self, blocks: Sequence[int], now_ms: float) -> None:
        self._now_ms = now_ms
        self._begun = self._tick
        old = 0
        for uses in self._past.values():
            if uses[0] + self.retained_ms > now_ms:
                break
            old += 1
        for _ in range(old):
            self._past.popitem(last=False)

    def insert(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        past = self._past
        for block in blocks:
            self._tick += 1
            before = past.pop(block, ())
            self._use(block, before if before and before[0] + self.retained_ms > self._now_ms else ())

    def touch(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        for block in blocks:
            uses = self._uses[block]
            if uses[1] <= self._begun:
                self._tick += 1
                self._few.pop(block, None)
                self._use(block, uses)
            elif block in self._few:
                self._few.move_to_end(block)

    def evict(self, pinned: Container[int]) -> int:
        for block in self._few:
            if block not in pinned:
                del self._few[block]
                self._past[block] = self._uses.pop(block)
                return block
        kept = []
        victim = None
        while self._heap and victim is None:
            kth, block = heappop(self._heap)
            uses = self._uses.get(block, ())
            if len(uses) <= self.k:
                continue  # it left
            if uses[self.k] != kth:
                continue  # used since
            if block in pinned:
                kept.append((kth, block))
            else:
                victim = block
        for entry in kept:
            heappush(self._heap, entry)
        if victim is None:
            raise LookupError("every stored block is pinned")
        self._past[victim] = self._uses.pop(victim)
        return victim

    def replace(self, blocks: Sequence[int], positions: Sequence[int], pinned: Container[int]) -> Sequence[int]:
        if pinned:
            return super().replace(blocks, positions, pinned)
        uses, few, past, victims = self._uses, self._few, self._past, []
        for block in blocks:
            if few:
                victim, _ = few.popitem(last=False)
                past[victim] = uses.pop(victim)
                victims.append(victim)
            else:
                victims.append(self.evict(()))
            if block in past or self.k == 1:
                self.insert((block,), (0,))
            else:
                self._tick += 1
                uses[block] = (self._now_ms, self._tick)
                few[block] = None
        return victims

    def remove(self, block: int) -> None:
        del self._uses[block]
        self._few.pop(block, None)

    def _use(self, block: int, before: Uses) -> None:
        self._uses[block] = uses = (self._now_ms, self._tick, *before[1 : self.k])
        if len(uses) <= self.k:
            self._few[block] = None
        else:
            heappush(self._heap, (uses[self.k], block))
