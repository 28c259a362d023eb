"""ARC: Megiddo and Modha, FAST'03, figure 4 ("ARC(c)", for disk pages); not in the paper."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from mooncake_bench.api import Eviction

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    Queue = OrderedDict[int, int]  # block: request that stored it; oldest use first


class ARC(Eviction):
    """An LRU of blocks used once and one of those used again, whose sizes follow where the ghosts of both are hit.

    The paper's names: T1 and T2 hold blocks, B1 and B2 the ids of what they gave up, p is the size T1 should have.
    A use is a ``touch`` by a later request than the one that stored the block. The block that room is made for,
    which steers p, is the next absent one of the request begun. A pinned block whose turn has come goes round once
    more.
    """

    name = "arc"

    def open(self, capacity_blocks: int) -> None:
        self._c = capacity_blocks
        self._p = 0.0
        self._t1: Queue = OrderedDict()
        self._t2: Queue = OrderedDict()
        self._b1: Queue = OrderedDict()
        self._b2: Queue = OrderedDict()
        self._again: set[int] = set()  # ghosts that room has been made for
        self._made_for = -1  # what the last eviction made room for
        self._by_rule = ((self._t1, self._b1), (self._t2, self._b2))
        self._request = 0
        self._blocks: Sequence[int] = ()  # of the present request
        self._at = -1  # position of the block served last
        self._step = 1  # -1: requests are served tail first

    def begin(self, blocks: Sequence[int], now_ms: float) -> None:
        self._request += 1
        self._again.clear()
        if len(self._blocks) > 1:
            self._step = -1 if self._at == 0 else 1  # the last request ended at its head or at its tail
        self._blocks = blocks
        self._at = -1 if self._step == 1 else len(blocks)

    def insert(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        self._at = positions[-1]
        t1, t2, b1, b2 = self._t1, self._t2, self._b1, self._b2
        for block in blocks:
            if block != self._made_for and (block in b1 or block in b2):  # there was room
                self._adapt(block)
            if block in self._again:
                self._again.remove(block)
                t2[block] = self._request
            else:
                t1[block] = self._request
            ones = len(t1) + len(b1)
            if ones > self._c:
                b1.popitem(last=False)
            elif ones + len(t2) + len(b2) > 2 * self._c:
                b2.popitem(last=False)

    def touch(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        if positions:
            self._at = positions[-1]
        t1, t2, request = self._t1, self._t2, self._request
        for block in blocks:
            if block in t2:
                t2.move_to_end(block)
            elif t1[block] == request:
                t1.move_to_end(block)
            else:
                t2[block] = t1.pop(block)

    def evict(self, pinned: Container[int]) -> int:
        """The paper's REPLACE."""
        self._made_for = coming = self._coming()
        in_b2 = coming in self._b2
        if in_b2 or coming in self._b1:
            self._adapt(coming)
        size = len(self._t1)
        t1_first = size > self._p or (in_b2 and size == self._p)
        for queue, ghosts in self._by_rule if t1_first else self._by_rule[::-1]:
            for _ in range(len(queue)):
                block, request = queue.popitem(last=False)
                if block not in pinned:
                    ghosts[block] = request
                    return block
                queue[block] = request
        raise LookupError("every stored block is pinned")

    def replace(self, blocks: Sequence[int], positions: Sequence[int], pinned: Container[int]) -> Sequence[int]:
        if pinned:
            return super().replace(blocks, positions, pinned)
        t1, t2, b1, b2 = self._t1, self._t2, self._b1, self._b2
        victims = []
        for block in blocks:
            in_b2 = block in b2
            again = in_b2 or block in b1
            if again:
                self._adapt(block)
            ones = len(t1)
            if ones > self._p or (in_b2 and ones == self._p > 0) or not t2:
                victim, request = t1.popitem(last=False)
                b1[victim] = request
            else:
                victim, request = t2.popitem(last=False)
                b2[victim] = request
            victims.append(victim)
            (t2 if again or block in self._again else t1)[block] = self._request
            if len(t1) + len(b1) > self._c:
                b1.popitem(last=False)
            elif len(b1) + len(b2) > self._c:  # T1 and T2 are full
                b2.popitem(last=False)
        self._made_for, self._at = blocks[-1], positions[-1]
        return victims

    def remove(self, block: int) -> None:
        del (self._t1 if block in self._t1 else self._t2)[block]

    def _adapt(self, ghost: int) -> None:
        """A ghost that is asked for moves p towards its side, and its block will be in T2."""
        b1, b2 = self._b1, self._b2
        if ghost in b1:
            self._p = min(self._p + max(len(b2) / len(b1), 1), self._c)
            del b1[ghost]
        else:
            self._p = max(self._p - max(len(b1) / len(b2), 1), 0)
            del b2[ghost]
        self._again.add(ghost)

    def _coming(self) -> int:
        """The block that room is made for (-1: unknown)."""
        blocks, step = self._blocks, self._step
        at = self._at + step
        while 0 <= at < len(blocks):
            block = blocks[at]
            if block not in self._t1 and block not in self._t2:
                self._at = at
                return block
            at += step
        return -1
