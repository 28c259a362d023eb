"""SLRU over the leaves of the prefix tree, one of SGLang's radix cache policies (radix_cache.py); not in the paper."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import islice, takewhile
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
        probation, protected = self._probation, self._protected
        for block in reversed(self._path):  # what it stored head first now stands tail first
            if block in probation:
                probation.move_to_end(block)
            elif block in protected:
                protected.move_to_end(block)
        self._request += 1
        for block in reversed(blocks):
            if block in probation or block in protected:
                uses = (probation if block in probation else protected).pop(block)[0] + 1
                (probation if uses < self.threshold else protected)[block] = (uses, self._request)
        self._path = blocks

    def insert(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        queue = self._probation if self.threshold > 1 else self._protected
        queue.update(dict.fromkeys(blocks, (1, self._request)))

    def touch(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        """Told by ``begin`` already."""

    def evict(self, pinned: Container[int]) -> int:
        victim = self._oldest(pinned)
        self.remove(victim)
        return victim

    def replace(self, blocks: Sequence[int], positions: Sequence[int], pinned: Container[int]) -> Sequence[int]:
        """While there are others' blocks to give up, it does not matter when the present request's are stored."""
        victims: list[int] = []
        for queue in (self._probation, self._protected):
            others = takewhile(lambda item: item[1][1] != self._request, queue.items())
            found = list(islice((block for block, _ in others if block not in pinned), len(blocks) - len(victims)))
            for victim in found:
                del queue[victim]
            victims += found
        done = len(victims)
        self.insert(blocks[:done], positions[:done])
        return [*victims, *super().replace(blocks[done:], positions[done:], pinned)]

    def remove(self, block: int) -> None:
        del (self._probation if block in self._probation else self._protected)[block]

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
