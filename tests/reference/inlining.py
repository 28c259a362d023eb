"""One prefill node and one decode node whose steps may compute a prompt, step by step: written from the rules alone.

Nothing is closed-form here: the decode node does one step at a time, and what it will look like later is found by doing
the steps on a copy. Transfers take one picosecond. The pool is endless, VRAM is not, but nobody is preempted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

MS = 10**9
SENT = 1  # ps
TRANSFER, PREFILL, BOUNDARY, ARRIVAL = range(4)


@dataclass
class Asked:
    """A request: times in ps."""

    arrival: int
    tokens: int
    answer: int
    blocks: tuple[int, ...]
    times: list[int] = field(default_factory=list)  # of its tokens
    inlined: bool = False
    hit: int = 0
    context: int = 0
    left: int = 0

    def begin(self) -> None:
        self.context, self.left = self.tokens + 1, self.answer - 1


@dataclass
class Decode:
    """The decode node."""

    slo: int
    vram: int
    batch: list[Asked] = field(default_factory=list)
    waiting: list[Asked] = field(default_factory=list)
    pending: Asked | None = None
    there: bool = False  # its prefix
    computing: Asked | None = None
    start: int = -1
    end: int = -1  # of the step under way; -1: idle


def step_ps(batch: list[Asked]) -> int:
    return 10 * MS + len(batch) * MS + sum(one.context for one in batch) * MS // 1000


def mixed_ps(batch: list[Asked], prompt: Asked) -> int:
    return (step_ps(batch) if batch else 0) + (prompt.tokens - prompt.hit or 1) * MS


def room(batch: list[Asked], prompt: Asked, vram: int) -> bool:
    return sum(one.context for one in batch) + 2 * len(batch) + prompt.tokens + 2 <= vram


class Reference:
    """Runs to the end when made; what each request got is written to it."""

    def __init__(self, asked: list[Asked], slo: int, vram: int, block: int) -> None:
        self.block = block
        self.node = Decode(slo, vram)
        self.heap: list[tuple[int, int, int, Any, Any]] = []
        self.made = 0
        self.ready: dict[int, bool] = {}  # blocks of the pool: whether they are computed
        self.queue: list[tuple[Asked, int]] = []
        self.prefill_end = -1
        for one in asked:
            self.post(one.arrival, ARRIVAL, self.arrive, one)
        while self.heap:
            time, _, _, call, what = heappop(self.heap)
            call(time, what)

    def post(self, time: int, rank: int, call: Any, what: Any = None) -> None:
        self.made += 1
        heappush(self.heap, (time, rank, self.made, call, what))

    # prefill

    def leading(self, one: Asked, *, ready: bool) -> int:
        count = 0
        for block in one.blocks:
            if block not in self.ready or (ready and not self.ready[block]):
                break
            count += 1
        return min(count * self.block, one.tokens)

    def arrive(self, now: int, one: Asked) -> None:
        one.begin()
        hit = self.leading(one, ready=False)
        spent = max(1, one.tokens - hit) * MS
        free = self.prefill_end + sum(work for _, work in self.queue[1:]) if self.queue else now
        if self.inline(now, one, free + spent):
            return
        one.hit = hit
        for block in one.blocks:
            self.ready.setdefault(block, False)
        self.queue.append((one, spent))
        if len(self.queue) == 1:
            self.next_prefill(now)

    def next_prefill(self, now: int) -> None:
        self.prefill_end = now + self.queue[0][1]
        self.post(self.prefill_end, PREFILL, self.prefilled)

    def prefilled(self, now: int, _: None) -> None:
        one, _ = self.queue.pop(0)
        one.times.append(now)
        self.ready.update(dict.fromkeys(one.blocks, True))
        if one.answer > 1:
            self.post(now + SENT, TRANSFER, self.come, one)
        if self.queue:
            self.next_prefill(now)

    # decode

    def come(self, now: int, one: Asked) -> None:
        self.node.waiting.append(one)
        if self.node.end < 0:
            self.post(now, BOUNDARY, self.boundary, now)

    def inline(self, now: int, one: Asked, otherwise: int) -> bool:
        node = self.node
        if node.waiting or node.pending is not None:
            return False
        one.hit = self.leading(one, ready=True)
        ready = now + (SENT if one.hit else 0)
        begin, batch = self.later(ready)
        step = mixed_ps(batch, one)
        if step > node.slo or not room(batch, one, node.vram) or begin + step >= otherwise:
            return False
        one.inlined, node.pending, node.there = True, one, not one.hit
        if one.hit:
            self.post(ready, TRANSFER, self.prefix_came)
        else:
            self.prefix_came(now, None)
        return True

    def prefix_came(self, now: int, _: None) -> None:
        node = self.node
        node.there = True
        if node.end < 0:
            self.post(now, BOUNDARY, self.boundary, now)
        elif node.start == now and node.computing is None:  # a step that begins this moment is chosen anew
            node.end = -1
            self.post(now, BOUNDARY, self.boundary, now)

    def later(self, at: int) -> tuple[int, list[Asked]]:
        """When the first step from ``at`` on can begin, and copies of who is in the batch then."""
        node = self.node
        batch = [Asked(0, one.tokens, 0, (), context=one.context, left=one.left) for one in node.batch]
        time = node.start if node.end >= 0 and node.computing is None else node.end
        if node.end < 0:
            return at, []
        coming = node.computing
        end = node.end
        while time < at or coming is not None:
            time = end
            for one in batch:
                one.context, one.left = one.context + 1, one.left - 1
            batch = [one for one in batch if one.left]
            if coming is not None and coming.answer > 1:
                batch.append(Asked(0, coming.tokens, 0, (), context=coming.context, left=coming.left))
            coming = None
            if not batch:
                return max(time, at), []
            end = time + step_ps(batch)
        return time, batch

    def boundary(self, now: int, expected: int) -> None:
        node = self.node
        if node.end >= 0 and expected != node.end:
            return
        if node.end < 0 and expected != now:
            return
        if node.end == now:
            self.end_step(now)
        node.end = -1
        self.join()
        if sum(one.context + 1 for one in node.batch) > node.vram:
            raise NotImplementedError("a preemption")
        prompt = node.pending
        if prompt is not None and node.there and room(node.batch, prompt, node.vram):
            node.pending, node.computing = None, prompt
            node.end = now + mixed_ps(node.batch, prompt)
        elif node.batch:
            node.end = now + step_ps(node.batch)
        if node.end >= 0:
            node.start = now
            self.post(node.end, BOUNDARY, self.boundary, node.end)

    def end_step(self, now: int) -> None:
        node = self.node
        for one in node.batch:
            one.times.append(now)
            one.context, one.left = one.context + 1, one.left - 1
        node.batch = [one for one in node.batch if one.left]
        prompt, node.computing = node.computing, None
        if prompt is not None:
            prompt.times.append(now)
            if prompt.answer > 1:
                node.batch.append(prompt)

    def join(self) -> None:
        node = self.node
        while node.waiting:
            larger = [*node.batch, node.waiting[0]]
            if sum(one.context for one in larger) + len(larger) > node.vram:
                return
            prompt = node.pending
            if prompt is not None and not (room(larger, prompt, node.vram) and mixed_ps(larger, prompt) <= node.slo):
                return
            node.batch.append(node.waiting.pop(0))
