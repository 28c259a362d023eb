"""The lease rule of the Mooncake Store (its master_service.cpp, BatchEvict); not in the paper, whose nodes are LRU."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from heapq import merge
from math import ceil, inf
from operator import itemgetter
from typing import TYPE_CHECKING

from mooncake_bench.api import Eviction

if TYPE_CHECKING:
    from collections.abc import Container, Sequence


@dataclass
class MooncakeStore(Eviction):
    """Above ``high`` of its capacity, a node gives up a share of its blocks at once, those of the oldest lease first.

    A ``touch`` by a later request than the one that stored the block (a read) gives it a lease of ``lease_ms``; storing
    gives it one that has ended. The share is max(``ratio``, use - ``high`` + ``ratio``), asked for as a request
    arrives; blocks whose lease runs never go then. The store's second pass is for soft pins, which nobody sets here. A
    store full of running leases would refuse a block; a node here must name one, and names that of the oldest lease.
    """

    name = "mooncake-store"
    lease_ms: float = 10_000.0
    high: float = 0.9
    ratio: float = 0.05

    def __post_init__(self) -> None:
        if not self.lease_ms >= 0:
            raise ValueError(f"lease_ms must be a duration of 0 or more, found {self.lease_ms}")
        for name in ("high", "ratio"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a share, 0 to 1, found {getattr(self, name)}")

    def open(self, capacity_blocks: int) -> None:
        self._capacity = capacity_blocks
        self._written: OrderedDict[int, float] = OrderedDict()  # block: end of its lease, ms; earliest first
        self._read: OrderedDict[int, float] = OrderedDict()
        self._new: set[int] = set()  # stored by the present request
        self._now_ms = 0.0

    def begin(self, blocks: Sequence[int], now_ms: float) -> None:
        self._now_ms = now_ms
        self._new.clear()

    def expire(self, now_ms: float, pinned: Container[int]) -> Sequence[int]:
        stored = len(self._written) + len(self._read)
        if not stored:
            return ()  # of a node that holds nothing, perhaps for lack of room
        use = stored / self._capacity
        if use <= self.high:
            return ()
        wanted = ceil(stored * max(self.ratio, use - self.high + self.ratio))
        return self._give_up(wanted, pinned, now_ms)

    def insert(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        self._new.update(blocks)
        for block in blocks:
            self._written[block] = self._now_ms

    def touch(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        ends_ms = self._now_ms + self.lease_ms
        for block in blocks:
            if block in self._new:
                self._written.move_to_end(block)
            else:
                self.remove(block)
                self._read[block] = ends_ms

    def evict(self, pinned: Container[int]) -> int:
        return self.evict_many(1, pinned)[0]

    def evict_many(self, count: int, pinned: Container[int]) -> Sequence[int]:
        victims = self._give_up(count, pinned)
        if len(victims) < count:
            raise LookupError("every stored block is pinned")
        return victims

    def remove(self, block: int) -> None:
        del (self._written if block in self._written else self._read)[block]

    def _give_up(self, most: int, pinned: Container[int], ended_ms: float = inf) -> list[int]:
        """The free blocks of the oldest leases, those that ended by ``ended_ms``."""
        victims: list[int] = []
        for block, lease_ms in merge(self._written.items(), self._read.items(), key=itemgetter(1)):
            if len(victims) == most or lease_ms > ended_ms:
                break
            if block not in pinned:
                victims.append(block)
        for block in victims:
            self.remove(block)
        return victims
