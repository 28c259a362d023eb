"""One node's block pool: a dict of blocks, scanned in full whenever a question is asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mooncake_bench.api import Eviction


@dataclass
class Block:
    ready: bool = False  # False: promised, a hit on its own node only
    pins: int = 0


@dataclass
class Pool:
    capacity: int
    policy: Eviction
    stored: dict[int, Block] = field(default_factory=dict)
    evictions: int = 0
    refused: int = 0

    def leading(self, blocks: Sequence[int], ready_only: bool = False) -> int:
        """How many blocks from the head are here, up to the first miss."""
        count = 0
        for block in blocks:
            here = self.stored.get(block)
            if here is None or (ready_only and not here.ready):
                break
            count += 1
        return count

    def expire(self, now_ms: float) -> None:
        """The policy gives up blocks of its own accord."""
        for block in self.policy.expire(now_ms, {block for block, state in self.stored.items() if state.pins}):
            assert self.stored.pop(block).pins == 0, f"expired {block}, which is pinned"
            self.evictions += 1

    def commit(self, blocks: Sequence[int], tail_first: bool, now_ms: float) -> tuple[list[int], list[int]]:
        """Pin what is present, take slots for the missing (head first), touch; returns those pinned and those new."""
        self.policy.begin(blocks, now_ms)
        mine = [block for block in dict.fromkeys(blocks) if block in self.stored]
        self.pin(mine)
        there = len(mine)
        pinned = {block for block, state in self.stored.items() if state.pins}
        for position, block in enumerate(blocks):
            if block in self.stored:
                continue
            if len(self.stored) >= self.capacity:
                if len(pinned) == len(self.stored):
                    self.refused += len(set(blocks) - self.stored.keys())
                    break
                victim = self.policy.evict(pinned)
                assert victim in self.stored.keys() - pinned, f"evicted {victim}"
                del self.stored[victim]
                self.evictions += 1
            self.stored[block] = Block(pins=1)
            self.policy.insert([block], [position])
            pinned.add(block)
            mine.append(block)
        self.touch(blocks, range(len(blocks)), tail_first)
        return mine, mine[there:]

    def touch(self, blocks: Sequence[int], positions: Iterable[int], tail_first: bool) -> None:
        pairs = [(b, i) for b, i in zip(blocks, positions, strict=True) if b in self.stored]
        if tail_first:
            pairs.reverse()
        if pairs:
            self.policy.touch([b for b, _ in pairs], [i for _, i in pairs])

    def pin(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self.stored[block].pins += 1

    def unpin(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self.stored[block].pins -= 1

    def make_ready(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self.stored[block].ready = True

    def drop(self, blocks: Iterable[int]) -> None:
        """Their request left the queue unserved: unpin them, and forget the promised ones that nobody else pins."""
        for block in blocks:
            state = self.stored[block]
            state.pins -= 1
            if not state.ready and not state.pins:
                del self.stored[block]
                self.policy.remove(block)
