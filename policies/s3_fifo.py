"""S3-FIFO: Yang et al., SOSP'23, section 4 and algorithm 1 (there for web and storage caches); not in the paper."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mooncake_bench.api import Eviction

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

MOST_USES = 3  # two bits


@dataclass
class S3FIFO(Eviction):
    """Three queues: new blocks pass a small one, those used there or remembered by the ghost enter the main one.

    ``small`` and ``ghost`` are shares of the capacity (the ghost keeps ids only); ``promote`` uses in the small queue
    take a block to the main one, where each use is worth one more round. ``fill=main``: until the first eviction, new
    blocks for which the small queue has no room start in the main one (libCacheSim's later variant); the paper's
    start in the small one. A use is a ``touch`` by a later request than the one that stored the block. A pinned block
    whose turn has come goes round once more.
    """

    name = "s3-fifo"
    small: float = 0.1
    ghost: float = 0.9
    promote: int = 2
    fill: Literal["small", "main"] = "small"

    def __post_init__(self) -> None:
        if not 0 < self.small < 1:
            raise ValueError(f"small is a share of the capacity above 0 and below 1, found {self.small}")
        if not 0 <= self.ghost < float("inf"):
            raise ValueError(f"ghost is a share of the capacity, 0 or more, found {self.ghost}")
        if not 1 <= self.promote <= MOST_USES:
            raise ValueError(f"promote must be 1 to {MOST_USES} uses, found {self.promote}")

    def open(self, capacity_blocks: int) -> None:
        self._small: OrderedDict[int, int] = OrderedDict()  # block: uses; oldest first, as the others
        self._main: OrderedDict[int, int] = OrderedDict()
        self._ghost: OrderedDict[int, None] = OrderedDict()
        self._small_size = max(1, int(capacity_blocks * self.small))
        self._ghost_size = int(capacity_blocks * self.ghost)
        self._filling = self.fill == "main"
        self._new: set[int] = set()  # stored by the present request

    def begin(self, blocks: Sequence[int], now_ms: float) -> None:
        self._new.clear()

    def insert(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        self._new.update(blocks)
        small, ghost = self._small, self._ghost
        for block in blocks:
            if block in ghost:
                del ghost[block]
                self._main[block] = 0
            elif self._filling and len(small) >= self._small_size:
                self._main[block] = 0
            else:
                small[block] = 0
        while len(ghost) > self._ghost_size:
            ghost.popitem(last=False)

    def touch(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        small, main, new = self._small, self._main, self._new
        for block in blocks:
            if block not in new:
                queue = small if block in small else main
                if queue[block] < MOST_USES:
                    queue[block] += 1

    def evict(self, pinned: Container[int]) -> int:
        self._filling = False
        victim = self._evict_small(pinned) if len(self._small) >= self._small_size or not self._main else None
        if victim is None:
            victim = self._evict_main(pinned)
        if victim is None:
            victim = self._evict_small(pinned)
        if victim is None:
            raise LookupError("every stored block is pinned")
        return victim

    def replace(self, blocks: Sequence[int], positions: Sequence[int], pinned: Container[int]) -> Sequence[int]:
        if pinned:
            return super().replace(blocks, positions, pinned)
        small, ghost, victims = self._small, self._ghost, []
        self._new.update(blocks)
        for block in blocks:
            victims.append(self.evict(()))
            if block in ghost:
                del ghost[block]
                self._main[block] = 0
            else:
                small[block] = 0
            if len(ghost) > self._ghost_size:
                ghost.popitem(last=False)
        return victims

    def remove(self, block: int) -> None:
        del (self._small if block in self._small else self._main)[block]

    def _evict_small(self, pinned: Container[int]) -> int | None:
        """The oldest block of the small queue that was hardly used; those used enough move on."""
        small = self._small
        for _ in range(len(small)):
            block, uses = small.popitem(last=False)
            if uses >= self.promote:
                self._main[block] = 0
            elif block in pinned:
                small[block] = uses
            else:
                self._ghost[block] = None
                return block
        return None

    def _evict_main(self, pinned: Container[int]) -> int | None:
        """The oldest block of the main queue without a use left; every block passed loses one."""
        main = self._main
        for _ in range((MOST_USES + 1) * len(main)):
            block, uses = main.popitem(last=False)
            if uses == 0 and block not in pinned:
                return block
            main[block] = max(uses - 1, 0)
        return None
