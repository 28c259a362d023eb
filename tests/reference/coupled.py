"""A coupled instance one step at a time, with plain lists: written from the rules of ``mooncake_bench/sim/coupled.py``.

Instances share nothing once requests are routed, so one is simulated alone. The cache is an LRU that touches a prompt's
blocks tail first, as the package's default.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass
class Limits:
    chunked: bool
    step_tokens: int
    sequences: int
    cache: bool
    vram: int
    block: int


@dataclass
class Asked:
    """What a request wants, and what came of it."""

    arrival_ps: int
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    tokens_ps: list[int] = field(default_factory=list)  # when each token came
    held_blocks: int = -1  # of its prompt, in the cache when it arrived: leading ones, promised included
    start_ps: int = -1
    hit_blocks: int = 0
    preemptions: int = 0
    prefill_share: float = 0.0  # of the time of steps, ps
    failed_ps: int = -1
    # its present prefill
    left: int = 0  # tokens to compute
    whole: int = 0  # tokens of its context to have
    new: list[int] = field(default_factory=list)  # blocks that it promised

    @property
    def generated(self) -> int:
        """Tokens whose memory it holds: those that came, or the first one to come."""
        return max(1, len(self.tokens_ps))


class Instance:
    def __init__(self, limits: Limits, cost: Any) -> None:
        self.limits, self.cost = limits, cost
        self.lru: list[int] = []  # stored blocks, least recently used first
        self.ready: set[int] = set()
        self.admitted: list[Asked] = []
        self.line: list[Asked] = []
        self.evictions = 0

    # memory

    def pinned(self) -> set[int]:
        return {block for one in self.admitted for block in one.blocks} if self.limits.cache else set()

    def private(self) -> int:
        prompts = 0 if self.limits.cache else sum(one.input_tokens for one in self.admitted)
        return prompts + sum(one.generated for one in self.admitted)

    def evict(self) -> None:
        pinned = self.pinned()
        victim = next(block for block in self.lru if block not in pinned)
        self.lru.remove(victim)
        self.ready.discard(victim)
        self.evictions += 1

    def make_room(self, tokens: int) -> None:
        """The cache gives way until so many tokens more fit."""
        while len(self.lru) * self.limits.block + self.private() + tokens > self.limits.vram:
            self.evict()

    def fits(self, one: Asked) -> bool:
        others, mine = len(self.admitted), one.generated + 1
        if not self.limits.cache:
            return self.private() + others + one.input_tokens + mine <= self.limits.vram
        blocks = len(self.pinned() | set(one.blocks))
        return blocks * self.limits.block + self.private() + others + mine <= self.limits.vram

    def fits_alone(self, one: Asked) -> bool:
        prompt = len(one.blocks) * self.limits.block if self.limits.cache else one.input_tokens
        return prompt + one.generated + 1 <= self.limits.vram

    def admit(self, one: Asked, hits: int, now: int) -> None:
        if one.start_ps < 0:
            one.start_ps = now
        if not one.tokens_ps:
            one.hit_blocks = hits
        one.whole = one.input_tokens + len(one.tokens_ps) - (1 if one.tokens_ps else 0)
        one.left = max(1, one.whole - min(hits * self.limits.block, one.input_tokens))
        self.line.remove(one)
        self.admitted.append(one)
        one.new = []
        if not self.limits.cache:
            return
        one.new = [block for block in one.blocks if block not in self.lru]
        while (len(self.lru) + len(one.new)) * self.limits.block + self.private() > self.limits.vram:
            self.evict()
        self.lru += one.new
        for block in reversed(one.blocks):
            self.lru.remove(block)
            self.lru.append(block)

    def hits(self, one: Asked) -> int:
        return next((i for i, block in enumerate(one.blocks) if block not in self.ready), len(one.blocks))

    # steps

    def decoding(self) -> list[Asked]:
        return [one for one in self.admitted if not one.left]

    def next_line(self, now: int) -> Asked | None:
        while self.line and not self.fits_alone(self.line[0]):
            self.line.pop(0).failed_ps = now
        return self.line[0] if self.line else None

    def take_prompts(self, now: int, room: int) -> list[tuple[Asked, int, bool]]:
        """Prompts admitted to this step: (who, tokens of it, whether it starts)."""
        taken: list[tuple[Asked, int, bool]] = []
        while room > 0 and len(self.admitted) < self.limits.sequences:
            one = self.next_line(now)
            if one is None or not self.fits(one):
                break
            hits = self.hits(one)
            whole = one.input_tokens + len(one.tokens_ps) - (1 if one.tokens_ps else 0)
            left = max(1, whole - min(hits * self.limits.block, one.input_tokens))
            if not self.limits.chunked and taken and left > room:
                break
            self.admit(one, hits, now)
            chunk = min(left, room) if self.limits.chunked else left
            taken.append((one, chunk, True))
            room -= chunk
        return taken

    def preempt_until_room(self) -> None:
        while len(self.pinned()) * self.limits.block + self.private() + len(self.decoding()) > self.limits.vram:
            one = self.admitted.pop()
            one.preemptions += 1
            if one.left:
                for block in one.new:
                    self.lru.remove(block)
            one.left = 0
            self.line.insert(0, one)

    def choose(self, now: int) -> tuple[list[tuple[Asked, int, bool]], list[Asked]] | None:
        """Prompts and decoding requests of the next step; None: nothing to do."""
        while True:
            if not self.limits.chunked:
                prompts = self.take_prompts(now, self.limits.step_tokens)
                if prompts:
                    return prompts, []
                self.preempt_until_room()
                batch = self.decoding()
            else:
                self.preempt_until_room()
                batch = self.decoding()
                room = self.limits.step_tokens - len(batch)
                prompts = []
                for one in self.admitted:
                    if one.left and room:
                        prompts.append((one, min(one.left, room), False))
                        room -= prompts[-1][1]
                prompts += self.take_prompts(now, room)
            if prompts or batch:
                self.make_room(len(batch))
                return prompts, batch
            if not self.line:
                return None

    def duration(self, prompts: Sequence[tuple[Asked, int, bool]], batch: Sequence[Asked]) -> int:
        cost = self.cost
        tokens = cost.token_ps(0) * sum(one.input_tokens + len(one.tokens_ps) for one in batch)
        if not prompts:
            return cost.decode_ps(0, len(batch)) + tokens
        if not self.limits.chunked:
            return cost.prefills_ps(0, [(chunk, one.whole - one.left) for one, chunk, _ in prompts])
        starting = sum(starts for _, _, starts in prompts)
        step = cost.chunks_ps(0, len(batch), [chunk for _, chunk, _ in prompts], starting)
        before = sum(cost.attend_ps(0, chunk) * (one.whole - one.left) for one, chunk, _ in prompts)
        return step + before + tokens

    def end_step(self, prompts: Sequence[tuple[Asked, int, bool]], batch: Sequence[Asked], now: int) -> None:
        for one, chunk, _ in prompts:
            one.left -= chunk
            if not one.left:
                self.ready.update(one.new)
                if not one.tokens_ps:
                    one.tokens_ps.append(now)
        for one in batch:
            one.tokens_ps.append(now)
        self.admitted = [one for one in self.admitted if one.left or len(one.tokens_ps) < one.output_tokens]


def simulate(requests: Sequence[Asked], limits: Limits, cost: Any) -> Instance:
    """Serve all of ``requests`` (in order of arrival) on one instance; each is filled in."""
    instance, coming, now = Instance(limits, cost), list(requests), 0

    def arrive(one: Asked) -> None:
        stored = instance.lru
        one.held_blocks = next((i for i, b in enumerate(one.blocks) if b not in stored), len(one.blocks))
        instance.line.append(one)

    while True:
        step = instance.choose(now)
        if step is None:
            if not coming:
                return instance
            now = coming[0].arrival_ps
            while coming and coming[0].arrival_ps == now:  # all that come at this moment, then the first step
                arrive(coming.pop(0))
            continue
        prompts, batch = step
        used = len(instance.lru) * limits.block + instance.private() + len(batch)
        assert used <= limits.vram
        assert len(instance.admitted) <= limits.sequences
        end = now + instance.duration(prompts, batch)
        extra = end - now - (instance.duration([], batch) if batch else 0)
        for one, chunk, _ in prompts:
            one.prefill_share += extra * chunk / sum(size for _, size, _ in prompts)
        while coming and coming[0].arrival_ps < end:
            arrive(coming.pop(0))
        instance.end_step(prompts, batch, end)
        now = end
