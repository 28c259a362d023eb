"""SLRU over the leaves of the prefix tree, one of SGLang's radix cache policies (radix_cache.py); not in the paper."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mooncake_bench.api import Eviction

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    Queue = OrderedDict[int, tuple[int, int]]  # block: (uses, its last request); oldest first, of a request the tail


@dataclass
class LeafSLRU(Eviction):
    """``leaf-lru`` in two classes: blocks used by ``threshold`` requests or more go after all others.

    The request that stores a block is the first to use it. The classes have no sizes, so the protected one may come to
    fill the node. The present request's own blocks go last of all, as in ``leaf-lru``.
    """

    name = "leaf-slru"
    threshold: int = 2

    def __post_init__(self) -> None:
        if self.threshold < 1:
            raise ValueError(f"threshold must be 1 use or more, found {self.threshold}")

    def open(self, capacity_blocks: int) -> None:
        self._probation: Queue = OrderedDict()
        self._protected: Queue = OrderedDict()
        self._path: Sequence[int] = ()  # of the present request
        self._request = 0

    def begin(self, blocks: Sequence[int], now_ms: float) -> None:
        self._use(self._path, 0)  # what it stored head first now stands tail first
        self._request += 1
        self._use(blocks, 1)
        self._path = blocks

    def insert(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        queue = self._probation if self.threshold > 1 else self._protected
        for block in blocks:
            queue[block] = (1, self._request)

    def touch(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        """Told by ``begin`` already."""

    def evict(self, pinned: Container[int]) -> int:
        victim = self._oldest(pinned)
        self.remove(victim)
        return victim

    def remove(self, block: int) -> None:
        del (self._probation if block in self._probation else self._protected)[block]

    def _use(self, path: Sequence[int], times: int) -> None:
        for block in reversed(path):
            queue = self._protected if block in self._protected else self._probation
            if block in queue:
                uses = queue.pop(block)[0] + times
                queue = self._protected if uses >= self.threshold else self._probation
                queue[block] = (uses, self._request)

    def _oldest(self, pinned: Container[int]) -> int:
        for queue in (self._probation, self._protected):
            for block, (_, request) in queue.items():
                if request == self._request:
                    break
                if block not in pinned:
                    return block
        for block in (*reversed(self._path), *self._probation, *self._protected):
            if (block in self._probation or block in self._protected) and block not in pinned:
                return block
        raise LookupError("every stored block is pinned")
