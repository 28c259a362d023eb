"""LRU over the leaves of the prefix tree, as vLLM and SGLang (section 3.1 of its paper) evict; not in the paper."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from mooncake_bench.api import Eviction

if TYPE_CHECKING:
    from collections.abc import Container, Sequence


class LeafLRU(Eviction):
    """Gives up the block used longest ago among those without stored children; a head stays as long as its tails.

    A use is a request with the block in its prompt, told by ``begin``. Whoever uses a block uses its parent, which here
    counts as the later of the two: so the block used longest ago never has a stored child, unless that child is pinned
    and its parent is not. The present request's own blocks go only when nothing else is left, the last in its prompt
    first: a prompt that the node cannot hold keeps its head.
    """

    name = "leaf-lru"

    def open(self, capacity_blocks: int) -> None:
        self._used: OrderedDict[int, int] = OrderedDict()  # block: its last request; oldest first, and its tail first
        self._path: Sequence[int] = ()  # of the present request
        self._request = 0

    def begin(self, blocks: Sequence[int], now_ms: float) -> None:
        used = self._used
        for block in reversed(self._path):  # what it stored head first now stands tail first
            if block in used:
                used.move_to_end(block)
        self._request += 1
        for block in reversed(blocks):
            if block in used:
                used[block] = self._request
                used.move_to_end(block)
        self._path = blocks

    def insert(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        self._used.update(dict.fromkeys(blocks, self._request))

    def touch(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        """Told by ``begin`` already."""

    def evict(self, pinned: Container[int]) -> int:
        victim = self._oldest(pinned)
        del self._used[victim]
        return victim

    def replace(self, blocks: Sequence[int], positions: Sequence[int], pinned: Container[int]) -> Sequence[int]:
        """While there are others' blocks to give up, it does not matter when the present request's are stored."""
        others = takewhile(lambda item: item[1] != self._request, self._used.items())
        victims = list(islice((block for block, _ in others if block not in pinned), len(blocks)))
        for victim in victims:
            del self._used[victim]
        done = len(victims)
        self.insert(blocks[:done], positions[:done])
        return [*victims, *super().replace(blocks[done:], positions[done:], pinned)]

    def remove(self, block: int) -> None:
        del self._used[block]

    def _oldest(self, pinned: Container[int]) -> int:
        for block, request in self._used.items():
            if request == self._request:
                break
            if block not in pinned:
                return block
        for block in (*reversed(self._path), *self._used):
            if block in self._used and block not in pinned:
                return block
        raise LookupError("every stored block is pinned")
