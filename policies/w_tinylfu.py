"""W-TinyLFU: Einziger, Friedman and Manes, ACM TOS 13(4), 2017, section 4, sized as Caffeine; not in the paper."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mooncake_bench.api import Eviction

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

MULTIPLIERS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F)  # odd, 64 bits
MASK = 2**64 - 1
MOST = 15  # four bits
HALVES = bytes(count >> 1 for count in range(256))


class Sketch:
    """TinyLFU: about how often each block was used lately. Every ``period`` uses all counts are halved.

    The first use is noted in a doorkeeper (here a set), each further one in four counters that other blocks share.
    """

    def __init__(self, capacity: int, period: int) -> None:
        bits = max(2, (4 * capacity - 1).bit_length())
        self.shift = 64 - bits
        self.width = 1 << bits
        self.cells = bytearray(len(MULTIPLIERS) << bits)
        self.door: set[int] = set()
        self.period = period
        self.uses = 0

    def add(self, blocks: Sequence[int]) -> None:
        """One use of each block."""
        door, cells = self.door, self.cells
        for block in blocks:
            if block not in door:
                door.add(block)
                continue
            for at in self._places(block):
                if cells[at] < MOST:
                    cells[at] += 1
        self.uses += len(blocks)
        if self.uses >= self.period:
            self.uses //= 2
            self.door.clear()
            self.cells = cells.translate(HALVES)

    def count(self, block: int) -> int:
        """Uses of a block, or a little more."""
        return (block in self.door) + min([self.cells[at] for at in self._places(block)])

    def exceeds(self, block: int, count: int) -> bool:
        """Whether ``count(block) > count``; most often the first counter tells that it does not."""
        if self.cells[(block * MULTIPLIERS[0] & MASK) >> self.shift] < count:
            return False
        return self.count(block) > count

    def _places(self, block: int) -> tuple[int, int, int, int]:
        a, b, c, d = MULTIPLIERS
        shift, width = self.shift, self.width
        return (
            (block * a & MASK) >> shift,
            width + ((block * b & MASK) >> shift),
            2 * width + ((block * c & MASK) >> shift),
            3 * width + ((block * d & MASK) >> shift),
        )


@dataclass
class WTinyLFU(Eviction):
    """New blocks pass a small LRU; leaving it, one enters the segmented main LRU if it was used more than its victim.

    The loser of the two is given up. ``window`` is the small LRU's share of the capacity, ``protected`` that of the
    main's second segment in the main; uses are counted by a sketch that is halved every ``sample`` x capacity uses.
    A request is one use of each of its blocks, counted as it begins; a ``touch`` by a later request than the one that
    stored the block moves it up.
    """

    name = "w-tinylfu"
    window: float = 0.01
    protected: float = 0.8
    sample: float = 10.0

    def __post_init__(self) -> None:
        for name in ("window", "protected"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is a share, 0 to 1, found {getattr(self, name)}")
        if not 1 <= self.sample < float("inf"):
            raise ValueError(f"sample must be 1 capacity of uses or more, found {self.sample}")

    def open(self, capacity_blocks: int) -> None:
        self._window: OrderedDict[int, int] = OrderedDict()  # block: request that stored it; oldest use first
        self._probation: OrderedDict[int, int] = OrderedDict()
        self._protected: OrderedDict[int, int] = OrderedDict()
        self._window_size = max(1, int(capacity_blocks * self.window))
        self._protected_size = int((capacity_blocks - self._window_size) * self.protected)
        self._sketch = Sketch(capacity_blocks, max(1, int(capacity_blocks * self.sample)))
        self._request = 0
        self._bar = -1, 0  # the last victim asked about, and its count

    def begin(self, blocks: Sequence[int], now_ms: float) -> None:
        self._request += 1
        self._sketch.add(blocks)
        self._bar = -1, 0

    def insert(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        window = self._window
        for block in blocks:
            window[block] = self._request
            if len(window) > self._window_size:  # there is room in the main
                block, request = window.popitem(last=False)
                self._probation[block] = request

    def touch(self, blocks: Sequence[int], positions: Sequence[int]) -> None:
        window, probation, protected, now = self._window, self._probation, self._protected, self._request
        for block in blocks:
            if block in window:
                window.move_to_end(block)
            elif block in protected:
                protected.move_to_end(block)
            elif probation[block] == now:
                probation.move_to_end(block)
            else:
                protected[block] = probation.pop(block)
                if len(protected) > self._protected_size:
                    block, request = protected.popitem(last=False)
                    probation[block] = request

    def evict(self, pinned: Container[int]) -> int:
        victim, home = _oldest(self._probation, pinned), self._probation
        if victim is None:
            victim, home = _oldest(self._protected, pinned), self._protected
        window_full = len(self._window) >= self._window_size or victim is None
        candidate = _oldest(self._window, pinned) if window_full else None
        if candidate is None:
            if victim is None:
                raise LookupError("every stored block is pinned")
            del home[victim]
            return victim
        request = self._window.pop(candidate)
        if victim is None or not self._wins(candidate, victim):
            return candidate
        del home[victim]
        self._probation[candidate] = request
        return victim

    def replace(self, blocks: Sequence[int], positions: Sequence[int], pinned: Container[int]) -> Sequence[int]:
        if pinned:
            return super().replace(blocks, positions, pinned)
        window, probation, now, victims = self._window, self._probation, self._request, []
        for block in blocks:
            main = probation or self._protected
            if main and len(window) < self._window_size:
                victim, _ = main.popitem(last=False)
            else:
                victim, request = window.popitem(last=False)
                if main and self._wins(victim, next(iter(main))):
                    probation[victim] = request
                    victim, _ = main.popitem(last=False)
            victims.append(victim)
            window[block] = now
        return victims

    def _wins(self, candidate: int, victim: int) -> bool:
        """Whether the window's candidate was used more than the main's victim, who is often the same as before."""
        if victim != self._bar[0]:
            self._bar = victim, self._sketch.count(victim)
        return self._sketch.exceeds(candidate, self._bar[1])

    def remove(self, block: int) -> None:
        for queue in (self._window, self._probation, self._protected):
            if block in queue:
                del queue[block]
                return
        raise KeyError(block)


def _oldest(queue: OrderedDict[int, int], pinned: Container[int]) -> int | None:
    """The free block used longest ago."""
    for block in queue:
        if block not in pinned:
            return block
    return None
