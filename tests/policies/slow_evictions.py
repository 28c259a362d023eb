"""Caches written slowly from the pseudocode of their papers: lists that are searched, one reference at a time."""

from __future__ import annotations

from collections import defaultdict


class Clock:
    """Corbató 1968: a ring of pages with a reference bit each."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.ring: list[list[int]] = []  # [block, bit], from the hand on

    def access(self, x: int) -> bool:
        for page in self.ring:
            if page[0] == x:
                page[1] = 1
                return True
        if len(self.ring) == self.size:
            while self.ring[0][1]:
                page = self.ring.pop(0)
                self.ring.append([page[0], 0])
            self.ring.pop(0)
        self.ring.append([x, 0])
        return False


class Sieve:
    """NSDI'24, algorithm 1: ``queue[0]`` is the head (newest), the last element the tail."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.queue: list[int] = []
        self.visited: dict[int, bool] = {}
        self.hand: int | None = None

    def access(self, x: int) -> bool:
        if x in self.queue:
            self.visited[x] = True
            return True
        if len(self.queue) == self.size:
            o = self.queue[-1] if self.hand is None else self.hand
            while self.visited[o]:
                self.visited[o] = False
                before = self.prev(o)
                o = self.queue[-1] if before is None else before
            self.hand = self.prev(o)
            self.queue.remove(o)
        self.queue.insert(0, x)
        self.visited[x] = False
        return False

    def prev(self, o: int) -> int | None:
        at = self.queue.index(o)
        return self.queue[at - 1] if at else None


class S3FIFO:
    """SOSP'23, algorithm 1, evicting one block at a time and looking into the ghost as the reference comes."""

    def __init__(self, size: int, promote: int = 2) -> None:
        self.size, self.promote = size, promote
        self.small: list[int] = []
        self.main: list[int] = []
        self.ghost: list[int] = []
        self.freq: dict[int, int] = {}

    def access(self, x: int) -> bool:
        if x in self.small or x in self.main:
            self.freq[x] = min(self.freq[x] + 1, 3)
            return True
        known = x in self.ghost
        if known:
            self.ghost.remove(x)
        while len(self.small) + len(self.main) == self.size:
            if len(self.small) >= max(1, int(0.1 * self.size)):
                self.evict_small()
            else:
                self.evict_main()
        (self.main if known else self.small).append(x)
        self.freq[x] = 0
        return False

    def evict_small(self) -> None:
        while self.small:
            t = self.small.pop(0)
            if self.freq[t] >= self.promote:
                self.main.append(t)
                self.freq[t] = 0
            else:
                self.ghost.append(t)
                if len(self.ghost) > int(0.9 * self.size):
                    self.ghost.pop(0)
                return

    def evict_main(self) -> None:
        while self.main:
            t = self.main.pop(0)
            if self.freq[t] == 0:
                return
            self.freq[t] -= 1
            self.main.append(t)


class TwoQ:
    """VLDB'94, figure 2: A1in, A1out and Am; the tail of each list is its last element."""

    def __init__(self, size: int) -> None:
        self.size, self.kin, self.kout = size, int(size * 0.25), int(size * 0.5)
        self.a1in: list[int] = []
        self.a1out: list[int] = []
        self.am: list[int] = []

    def access(self, x: int) -> bool:
        if x in self.am:
            self.am.remove(x)
            self.am.insert(0, x)
            return True
        if x in self.a1in:
            return True
        if x in self.a1out:
            self.a1out.remove(x)
            self.reclaim()
            self.am.insert(0, x)
        else:
            self.reclaim()
            self.a1in.insert(0, x)
        return False

    def reclaim(self) -> None:
        if len(self.a1in) + len(self.am) < self.size:
            return
        if len(self.a1in) > self.kin or not self.am:
            self.a1out.insert(0, self.a1in.pop())
            if len(self.a1out) > self.kout:
                self.a1out.pop()
        else:
            self.am.pop()


class ARC:
    """FAST'03, figure 4; the least recently used is each list's last element."""

    def __init__(self, size: int) -> None:
        self.c, self.p = size, 0.0
        self.t1: list[int] = []
        self.t2: list[int] = []
        self.b1: list[int] = []
        self.b2: list[int] = []

    def access(self, x: int) -> bool:
        t1, t2, b1, b2 = self.t1, self.t2, self.b1, self.b2
        if x in t1 or x in t2:  # case I
            (t1 if x in t1 else t2).remove(x)
            t2.insert(0, x)
            return True
        if x in b1:  # case II
            self.p = min(self.p + (1 if len(b1) >= len(b2) else len(b2) / len(b1)), self.c)
            self.replace(x)
            b1.remove(x)
            t2.insert(0, x)
        elif x in b2:  # case III
            self.p = max(self.p - (1 if len(b2) >= len(b1) else len(b1) / len(b2)), 0)
            self.replace(x)
            b2.remove(x)
            t2.insert(0, x)
        else:  # case IV
            total = len(t1) + len(t2) + len(b1) + len(b2)
            if len(t1) + len(b1) == self.c:
                if len(t1) < self.c:
                    b1.pop()
                    self.replace(x)
                else:
                    t1.pop()
            elif total >= self.c:
                if total == 2 * self.c:
                    b2.pop()
                self.replace(x)
            t1.insert(0, x)
        return False

    def replace(self, x: int) -> None:
        if self.t1 and (len(self.t1) > self.p or (x in self.b2 and len(self.t1) == self.p)):
            self.b1.insert(0, self.t1.pop())
        else:
            self.b2.insert(0, self.t2.pop())


class SLRU:
    """Karedla 1994: 20 % probation, 80 % protected; the least recently used is each list's last element."""

    def __init__(self, size: int) -> None:
        self.size, self.most = size, int(size * 0.8)
        self.probation: list[int] = []
        self.protected: list[int] = []

    def access(self, x: int) -> bool:
        if x in self.probation or x in self.protected:
            (self.probation if x in self.probation else self.protected).remove(x)
            self.protected.insert(0, x)
            if len(self.protected) > self.most:
                self.probation.insert(0, self.protected.pop())
            return True
        if len(self.probation) + len(self.protected) == self.size:
            (self.probation or self.protected).pop()
        self.probation.insert(0, x)
        return False


class LRUK:
    """SIGMOD'93, figure 2.1, without correlated references; a reference a second, all of them kept."""

    def __init__(self, size: int, k: int = 2, retained: float = 200) -> None:
        self.size, self.k, self.retained = size, k, retained
        self.hist: defaultdict[int, list[int]] = defaultdict(list)
        self.buffer: set[int] = set()
        self.now = -1

    def access(self, x: int) -> bool:
        self.now += 1
        hit = x in self.buffer
        if not hit:
            if self.hist[x] and self.now - self.hist[x][-1] >= self.retained:
                self.hist[x] = []
            if len(self.buffer) == self.size:
                self.buffer.remove(min(self.buffer, key=self.rank))
            self.buffer.add(x)
        self.hist[x].append(self.now)
        return hit

    def rank(self, x: int) -> tuple[int, int]:
        """k-th last reference (minus infinity if there were fewer), then the last one."""
        hist = self.hist[x]
        return (hist[-self.k] if len(hist) >= self.k else -1, hist[-1])


class LFUDA:
    """Arlitt 2000: key = frequency + age, the age being the last victim's key; of equal keys the one set first goes."""

    def __init__(self, size: int) -> None:
        self.size, self.age, self.now = size, 0, 0
        self.entries: dict[int, tuple[int, int, int]] = {}  # block: (key, set at, frequency)

    def access(self, x: int) -> bool:
        self.now += 1
        hit = x in self.entries
        if not hit and len(self.entries) == self.size:
            victim = min(self.entries, key=lambda block: self.entries[block])
            self.age = self.entries.pop(victim)[0]
        frequency = self.entries[x][2] + 1 if hit else 1
        self.entries[x] = (self.age + frequency, self.now, frequency)
        return hit


class ExactCounts:
    """What a TinyLFU sketch without shared counters would say: a doorkeeper, and counts up to 15 beyond it."""

    def __init__(self, period: int) -> None:
        self.period, self.uses = period, 0
        self.door: set[int] = set()
        self.counts: defaultdict[int, int] = defaultdict(int)

    def add(self, blocks: tuple[int, ...]) -> None:
        for block in blocks:
            if block in self.door:
                self.counts[block] = min(self.counts[block] + 1, 15)
            self.door.add(block)
        self.uses += len(blocks)
        if self.uses >= self.period:
            self.uses //= 2
            self.door.clear()
            self.counts = defaultdict(int, {block: count // 2 for block, count in self.counts.items()})

    def count(self, block: int) -> int:
        return (block in self.door) + self.counts[block]

    def exceeds(self, block: int, count: int) -> bool:
        return self.count(block) > count


class WTinyLFU:
    """TOS 2017, figure 5: a window LRU of 1 %, TinyLFU admission, a main SLRU of 20/80; exact counts."""

    def __init__(self, size: int) -> None:
        self.size, self.window_size = size, max(1, int(0.01 * size))
        self.most = int((size - self.window_size) * 0.8)
        self.counts = ExactCounts(10 * size)
        self.window: list[int] = []  # the least recently used is each list's last element
        self.probation: list[int] = []
        self.protected: list[int] = []

    def access(self, x: int) -> bool:
        self.counts.add((x,))
        for queue in (self.window, self.protected):
            if x in queue:
                queue.remove(x)
                queue.insert(0, x)
                return True
        if x in self.probation:
            self.probation.remove(x)
            self.protected.insert(0, x)
            if len(self.protected) > self.most:
                self.probation.insert(0, self.protected.pop())
            return True
        self.window.insert(0, x)
        if len(self.window) > self.window_size:
            candidate = self.window.pop()
            main = self.probation or self.protected
            if len(self.probation) + len(self.protected) < self.size - self.window_size:
                self.probation.insert(0, candidate)
            elif main and self.counts.count(candidate) > self.counts.count(main[-1]):
                main.pop()
                self.probation.insert(0, candidate)
        return False


SLOW = {
    "clock": Clock, "sieve": Sieve, "s3-fifo": S3FIFO, "2q": TwoQ, "arc": ARC, "slru": SLRU, "lru-k": LRUK,
    "lfu-da": LFUDA, "gdsf": LFUDA, "w-tinylfu": WTinyLFU,
}  # fmt: skip
