"""Caches that know prompts or time, written slowly: every victim is looked for among all stored blocks."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass
class Entry:
    """A stored block; ticks count references, requests count from 0."""

    position: int
    parent: int | None
    stored_tick: int
    used_tick: int
    request: int  # the last with this block in its prompt
    uses: int = 1  # requests with it in their prompt since it was stored, and the one that stored it
    end_ms: float = 0.0  # of its life or its lease
    read: bool = False


LEAF_RANKS: dict[str, Callable[[Entry], Any]] = {  # the leaf of the smallest rank is given up
    "leaf-lru": lambda entry: (entry.request, -entry.position),
    "leaf-fifo": lambda entry: entry.stored_tick,
    "leaf-slru": lambda entry: (entry.uses >= 2, entry.request, -entry.position),
}


class LeafCache:
    """Gives up leaves of the prefix tree; blocks of the present request only when there are no others."""

    def __init__(self, name: str, size: int) -> None:
        self.name, self.rank, self.size = name, LEAF_RANKS[name], size
        self.entries: dict[int, Entry] = {}
        self.tick = self.requests = 0

    def request(self, prompt: Sequence[int], reverse: bool) -> list[bool]:
        for block in prompt:
            if block in self.entries:
                self.entries[block].request = self.requests
                self.entries[block].uses += 1
        hits = [self.access(prompt, place) for place in range(len(prompt))[:: -1 if reverse else 1]]
        self.requests += 1
        return hits

    def access(self, prompt: Sequence[int], place: int) -> bool:
        self.tick += 1
        if prompt[place] in self.entries:
            return True
        if len(self.entries) == self.size:
            del self.entries[self.victim(prompt)]
        parent = prompt[place - 1] if place else None
        self.entries[prompt[place]] = Entry(place, parent, self.tick, self.tick, self.requests)
        return False

    def victim(self, prompt: Sequence[int]) -> int:
        parents = {entry.parent for entry in self.entries.values()}
        leaves = [block for block in self.entries if block not in parents]
        others = [block for block in leaves if block not in prompt]
        if others:
            return min(others, key=lambda block: self.rank(self.entries[block]))
        if self.name == "leaf-fifo":
            return max(leaves, key=lambda block: self.entries[block].stored_tick)
        return max(self.entries, key=lambda block: self.entries[block].position)


class TimedCache:
    """A time to live, or the Mooncake Store's leases."""

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size = name, size
        self.entries: dict[int, Entry] = {}
        self.tick = 0

    def request(self, prompt: Sequence[int], now_ms: float) -> list[bool]:
        for block in self.expired(now_ms):
            del self.entries[block]
        return [self.access(block, now_ms) for block in prompt]

    def expired(self, now_ms: float) -> list[int]:
        dead = sorted((block for block, entry in self.entries.items() if entry.end_ms <= now_ms), key=self.rank)
        if self.name == "ttl":
            return dead
        use = len(self.entries) / self.size
        return dead[: ceil(len(self.entries) * max(0.05, use - 0.9 + 0.05))] if use > 0.9 else []

    def access(self, block: int, now_ms: float) -> bool:
        self.tick += 1
        hit = block in self.entries
        if not hit and len(self.entries) == self.size:
            del self.entries[min(self.entries, key=self.rank)]
        length = 300_000 if self.name == "ttl" else 10_000 if hit else 0
        self.entries[block] = Entry(0, None, self.tick, self.tick, 0, end_ms=now_ms + length, read=hit)
        return hit

    def rank(self, block: int) -> tuple[float, bool, int]:
        """When its life or lease ends; of equals, what was only written first, then the oldest use."""
        entry = self.entries[block]
        return entry.end_ms, entry.read and self.name != "ttl", entry.used_tick
