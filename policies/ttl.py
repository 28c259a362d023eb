"""Time to live: a block unused for five minutes goes, as in Anthropic's prompt caching; not in the paper."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mooncake_bench.api import Eviction

if TYPE_CHECKING:
    from collections.abc import Container, Sequence


@dataclass
class TTL(Eviction):
    """Gives up every block unused for ``ttl_ms``, room or not; a full node gives up the block used longest ago.

    Storing and a ``touch`` are uses, at the time of the request begun; a block is dead once its last use is ``ttl_ms``
    ago. A pinned block goes when it is free.
    """

    name = "ttl"
    ttl_ms: float = 300_000.0

    def __post_init__(self) -> None:
        if not self.ttl_ms > 0:
            raise ValueError(f"ttl_ms must be a duration above 0, found {self.ttl_ms}")

    def open(self, capacity_blocks: int) -> None:
        self._used_ms: OrderedDict[int, float] = OrderedDict()  # oldest use first
        self._now_ms = 0.0

    def begin(self, blocks: Sequence[int], now_ms: float) -> None:
        self._now_ms = now_ms

    def expire(self, now_ms: float, pinned: Container[int]) -> Sequence[int]:
        dead = []
        for block, used_ms in self._used_ms.items():
            if used_ms + self.ttl_ms > now_ms:
                break
            if block not in pinned:
                dead.append(block)
        for block in dead:
            del self._used_ms[block]
        return dead

    def insert(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        self._used_ms.update(dict.fromkeys(blocks, self._now_ms))

    def touch(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        used_ms, now_ms = self._used_ms, self._now_ms
        for block in blocks:
            used_ms[block] = now_ms
            used_ms.move_to_end(block)

    def evict(self, pinned: Container[int]) -> int:
        for block in self._used_ms:
            if block not in pinned:
                del self._used_ms[block]
                return block
        raise LookupError("every stored block is pinned")

    def replace(self, blocks: Sequence[int], positions: Sequence[int], pinned: Container[int]) -> Sequence[int]:
        if pinned:
            return super().replace(blocks, positions, pinned)
        used_ms, now_ms, victims = self._used_ms, self._now_ms, []
        for block in blocks:
            victims.append(used_ms.popitem(last=False)[0])
            used_ms[block] = now_ms
        return victims

    def remove(self, block: int) -> None:
        del self._used_ms[block]
