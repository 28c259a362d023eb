"""FIFO over the leaves of the prefix tree, one of SGLang's radix cache policies (radix_cache.py); not in the paper."""

from __future__ import annotations

from heapq import heappop, heappush, heappushpop
from typing import TYPE_CHECKING

from mooncake_bench.api import Eviction

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    Entry = tuple[int, int, int | None]  # tick of storing, block, parent


class LeafFIFO(Eviction):
    """Gives up the block stored longest ago among those without stored children, however often it was used.

    A block's parent is the block before it in the prompt that stored it. The present request's own blocks go only
    when nothing else is left: the one stored last first, so that a prompt that the node cannot hold keeps its head.
    """

    name = "leaf-fifo"

    def open(self, capacity_blocks: int) -> None:
        self._stored: dict[int, Entry] = {}
        self._children: dict[int, int] = {}  # how many are stored, where there are any
        self._leaves: list[Entry] = []  # heap: all leaves, and some blocks that were; not the present request's
        self._bare: Entry | None = None  # a leaf on its way there: most often the next to go
        self._new: list[Entry] = []  # stored by the present request
        self._parents: dict[int, int | None] = {}  # of its blocks
        self._tick = 0

    def begin(self, blocks: Sequence[int], now_ms: float) -> None:
        for entry in self._new:
            if entry[1] not in self._children:
                heappush(self._leaves, entry)
        self._new = []
        self._parents = dict(zip(blocks, (None, *blocks), strict=False))

    def insert(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        stored, children, parents, new = self._stored, self._children, self._parents, self._new
        for tick, block in enumerate(blocks, self._tick + 1):
            parent = parents.get(block)
            stored[block] = entry = (tick, block, parent)
            new.append(entry)
            if parent is not None:
                children[parent] = children.get(parent, 0) + 1
        self._tick += len(blocks)

    def evict(self, pinned: Container[int]) -> int:
        victim = self._oldest(pinned)
        if victim is None:
            victim = self._last_resort(pinned)
        self.remove(victim)
        return victim

    def replace(self, blocks: Sequence[int], positions: Sequence[int], pinned: Container[int]) -> Sequence[int]:
        """While others have leaves to give up, it does not matter when the present request's blocks are stored."""
        victims: list[int] = []
        while len(victims) < len(blocks) and (victim := self._oldest(pinned)) is not None:
            self.remove(victim)
            victims.append(victim)
        done = len(victims)
        self.insert(blocks[:done], positions[:done])
        return [*victims, *super().replace(blocks[done:], positions[done:], pinned)]

    def remove(self, block: int) -> None:
        parent = self._stored.pop(block)[2]
        if parent is None:
            return
        left = self._children[parent] - 1
        if left:
            self._children[parent] = left
            return
        del self._children[parent]
        if parent in self._stored:
            if self._bare:
                heappush(self._leaves, self._bare)
            self._bare = self._stored[parent]

    def _oldest(self, pinned: Container[int]) -> int | None:
        """The free leaf stored longest ago that is not the present request's."""
        leaves, children, stored, kept = self._leaves, self._children, self._stored, []
        victim = None
        while victim is None and (leaves or self._bare):
            entry = heappushpop(leaves, self._bare) if self._bare else heappop(leaves)
            self._bare = None
            block = entry[1]
            if block in children or stored.get(block) is not entry:
                continue
            if block in pinned or block in self._parents:
                kept.append(entry)
            else:
                victim = block
        for entry in kept:
            heappush(leaves, entry)
        return victim

    def _last_resort(self, pinned: Container[int]) -> int:
        """The free leaf stored last, or, if every leaf is pinned, the free block stored last."""
        free = [block for block in self._stored if block not in pinned]
        if not free:
            raise LookupError("every stored block is pinned")
        return next((block for block in reversed(free) if block not in self._children), free[-1])
