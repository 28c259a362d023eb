"""2Q: Johnson and Shasha, VLDB'94, section 3 ("full version") and its recommended sizes; not in the paper."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mooncake_bench.api import Eviction

if TYPE_CHECKING:
    from collections.abc import Container, Sequence


@dataclass
class TwoQ(Eviction):
    """New blocks pass a short FIFO; only one asked for again after it has left is worth a place in the long LRU.

    ``a1in`` (of the FIFO) and ``a1out`` (ids of blocks that left it) are shares of the capacity. A ``touch`` moves a
    block of the LRU to its recent end and does nothing in the FIFO, so it does not matter whether storing is followed
    by one. A pinned block whose turn has come goes round once more.
    """

    name = "2q"
    a1in: float = 0.25
    a1out: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.a1in <= 1:
            raise ValueError(f"a1in is a share of the capacity, 0 to 1, found {self.a1in}")
        if not 0 <= self.a1out < float("inf"):
            raise ValueError(f"a1out is a share of the capacity, 0 or more, found {self.a1out}")

    def open(self, capacity_blocks: int) -> None:
        self._in: OrderedDict[int, None] = OrderedDict()  # A1in, oldest first
        self._out: OrderedDict[int, None] = OrderedDict()  # A1out
        self._main: OrderedDict[int, None] = OrderedDict()  # Am, oldest use first
        self._in_size = int(capacity_blocks * self.a1in)
        self._out_size = int(capacity_blocks * self.a1out)

    def insert(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        out = self._out
        for block in blocks:
            if block in out:
                del out[block]
                self._main[block] = None
            else:
                self._in[block] = None
        while len(out) > self._out_size:
            out.popitem(last=False)

    def touch(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        main = self._main
        for block in blocks:
            if block in main:
                main.move_to_end(block)

    def evict(self, pinned: Container[int]) -> int:
        by_rule = (self._in, self._main) if len(self._in) > self._in_size else (self._main, self._in)
        for queue in by_rule:
            for _ in range(len(queue)):
                block, _ = queue.popitem(last=False)
                if block not in pinned:
                    if queue is self._in:
                        self._out[block] = None
                    return block
                queue[block] = None
        raise LookupError("every stored block is pinned")

    def replace(self, blocks: Sequence[int], positions: Sequence[int], pinned: Container[int]) -> Sequence[int]:
        if pinned:
            return super().replace(blocks, positions, pinned)
        new, out, main, victims = self._in, self._out, self._main, []
        for block in blocks:
            if len(new) > self._in_size or not main:
                victim, _ = new.popitem(last=False)
                out[victim] = None
            else:
                victim, _ = main.popitem(last=False)
            victims.append(victim)
            if block in out:
                del out[block]
                main[block] = None
            else:
                new[block] = None
            if len(out) > self._out_size:
                out.popitem(last=False)
        return victims

    def remove(self, block: int) -> None:
        del (self._in if block in self._in else self._main)[block]
