"""Greedy-Dual-Size with Frequency (Cherkasova, HPL-98-69R1, section 3) and LFU with Dynamic Aging (Arlitt et al.,
"Evaluating content management techniques for Web proxy caches", 2000, section 3); not in the paper."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Literal

import numpy as np

from mooncake_bench.api import Eviction, Request

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from numpy.random import Generator

    from mooncake_bench.api import Cluster

    Group = OrderedDict[int, int]


class LFUDA(Eviction):
    """LFU that ages: gives up the block of the least age + uses, the age being that sum for the last block given up.

    The sum is set at each use, with the age of that moment; of equal sums the one set first goes. A use is being
    stored, or a ``touch`` by a later request.
    """

    name = "lfu-da"

    def open(self, capacity_blocks: int) -> None:
        self._age = 0.0
        self._rank: dict[int, float] = {}  # age + uses x cost
        self._groups: dict[float, Group] = {}  # blocks of equal rank, and their uses
        self._heap: list[float] = []  # the ranks of all groups, empty ones included
        self._new: set[int] = set()  # stored by the present request

    def begin(self, blocks: Sequence[int], now_ms: float) -> None:
        self._new.clear()

    def insert(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        self._new.update(blocks)
        age, ranks, groups = self._age, self._rank, self._groups
        for block, worth in zip(blocks, self.worth(positions), strict=True):
            ranks[block] = rank = age + worth
            (groups.get(rank) or self._open_group(rank))[block] = 1

    def touch(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        age, ranks, groups, new = self._age, self._rank, self._groups, self._new
        for block, worth in zip(blocks, self.worth(positions), strict=True):
            group = groups[ranks[block]]
            if block in new:
                group.move_to_end(block)
                continue
            uses = group.pop(block) + 1
            ranks[block] = rank = age + uses * worth
            (groups.get(rank) or self._open_group(rank))[block] = uses

    def evict(self, pinned: Container[int]) -> int:
        while self._heap:
            rank = self._heap[0]
            group = self._groups[rank]
            if not group:
                del self._groups[heappop(self._heap)]
                continue
            block = next(iter(group))
            if block in pinned:
                rank, block = self._least_free(pinned)
                group = self._groups[rank]
            del group[block], self._rank[block]
            self._age = rank
            return block
        raise LookupError("no block is stored")

    def replace(self, blocks: Sequence[int], positions: Sequence[int], pinned: Container[int]) -> Sequence[int]:
        if pinned:
            return super().replace(blocks, positions, pinned)
        ranks, groups, heap, victims = self._rank, self._groups, self._heap, []
        group = groups[heap[0]]
        self._new.update(blocks)
        for block, worth in zip(blocks, self.worth(positions), strict=True):
            while not group:
                del groups[heappop(heap)]
                group = groups[heap[0]]
            self._age = age = heap[0]
            victim, _ = group.popitem(last=False)
            victims.append(victim)
            del ranks[victim]
            ranks[block] = rank = age + worth
            (groups.get(rank) or self._open_group(rank))[block] = 1
        return victims

    def _least_free(self, pinned: Container[int]) -> tuple[float, int]:
        for rank in sorted(self._groups):
            for block in self._groups[rank]:
                if block not in pinned:
                    return rank, block
        raise LookupError("every stored block is pinned")

    def remove(self, block: int) -> None:
        del self._groups[self._rank.pop(block)][block]

    def worth(self, positions: Sequence[int]) -> Sequence[float]:
        """What a use of a block at each of these places in the prompt is worth."""
        return [1.0] * len(positions)

    def _open_group(self, rank: float) -> Group:
        if rank not in self._groups:
            self._groups[rank] = OrderedDict()
            heappush(self._heap, rank)
        return self._groups[rank]


@dataclass
class GDSF(LFUDA):
    """``lfu-da`` whose uses are worth the prefill they save: gives up the block of the least age + uses x cost / size.

    ``cost=prefill``: the time to prefill the block after the blocks before it, on the fastest instance, in units of a
    prompt's first block: later blocks attend to more and cost more. Where no cluster is at hand (cache studies), and
    with ``cost=1``, all blocks cost the same and this is ``lfu-da``. All blocks have one size.
    """

    name = "gdsf"
    cost: Literal["prefill", 1] = "prefill"

    def __post_init__(self) -> None:
        self._cluster: Cluster | None = None
        self._costs: list[float] = []  # by position

    def start(self, cluster: Cluster, rng: Generator) -> None:
        self._cluster = cluster

    def worth(self, positions: Sequence[int]) -> Sequence[float]:
        if self._cluster is None or self.cost == 1:
            return super().worth(positions)
        while max(positions, default=-1) >= len(self._costs):
            self._costs.append(self._saving_ms(len(self._costs)))
        return [self._costs[position] / self._costs[0] for position in positions]

    def _saving_ms(self, position: int) -> float:
        assert self._cluster is not None
        tokens = self._cluster.block_tokens
        request = Request(0, 0.0, (position + 1) * tokens, ())
        cached = np.full(self._cluster.is_prefill.size, position * tokens)
        return float(self._cluster.prefill_ms(request, cached).min())
