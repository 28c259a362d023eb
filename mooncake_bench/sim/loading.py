"""Decode instances where KVCache takes its time to come into VRAM.

Loading: the KVCache of a request that has arrived, or was swapped out, lies in the node's DRAM. It is loaded when the
request is first in line (those swapped out before those that arrived) and would fit beside the batch, the ones that are
being loaded and the ones that are loaded and wait for the step to end. Loads of a node share its host link first come,
first served: one by one, the sum takes as long as it would in parallel and the first is ready sooner. The batch goes on
meanwhile; at the first step boundary after its load a request joins, in the order of loads, if it still fits.

Recomputing: a preempted request's KVCache is dropped. When it is first in line and fits, the instance prefills its
whole context as one step of its own, during which the batch pauses (several that fit one after the other), and it joins
when that ends. Its next token is the one that it would have had.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mooncake_bench.hardware.layerwise import move_ps
from mooncake_bench.hardware.wrapped import plain
from mooncake_bench.sim.decode import Decoder
from mooncake_bench.sim.stretch import steps_within

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_bench.hardware.cost import CostModel
    from mooncake_bench.sim.cluster import Call
    from mooncake_bench.sim.job import Job

NEVER_PS = 1 << 62  # a step that does not end: how a view sees a batch that pauses


@dataclass(frozen=True)
class DecodeRules:
    """How KVCache comes into a decode node's VRAM."""

    load_bytes_per_s: int | None
    """From its DRAM; None: at once."""
    recompute: bool
    """Whether a preempted request's KVCache is dropped and computed again, not swapped."""
    inline: bool = False
    """Whether prompts are computed in its steps, where that breaks no SLO (:mod:`mooncake_bench.sim.inlining`)."""


class LoadingDecoder(Decoder):
    """One decode instance under :class:`DecodeRules`."""

    __slots__ = (
        "_call_at", "_kv_bytes", "_noted", "_prefill_ps", "_rules", "_stall_ps", "held", "link_free_ps", "loading",
        "ready", "recomputed_tokens", "stalled", "stored", "swapped",
    )  # fmt: skip

    def __init__(
        self,
        instance: int,
        cost: CostModel,
        *rest: Any,
        rules: DecodeRules,
        call_at: Callable[[int, Callable[[int], None]], Call],
        note_load: Callable[[Job, int], None],
    ) -> None:
        """``call_at`` lets a load end; ``note_load(job, ps)`` is told what a load took, from its turn on."""
        super().__init__(instance, cost, *rest)
        self._rules, self._call_at, self._noted = rules, call_at, note_load
        self._kv_bytes = cost.kv_bytes_per_token
        self._prefill_ps = plain(cost).prefill_ps
        self.stored: deque[Job] = deque()  # KVCache in DRAM: arrived
        self.swapped: deque[Job] = deque()  # preempted
        self.loading: dict[Job, Call] = {}
        self.held: dict[Job, int] = {}  # VRAM of those that are being loaded, or are and wait to join
        self.link_free_ps = 0
        self.ready: set[Job] = set()  # preempted, and computed again
        self._stall_ps = 0  # how long the batch is to pause
        self.stalled = False  # it does
        self.recomputed_tokens = 0

    @property
    def in_line(self) -> list[Job]:
        return [*self.swapped, *self.stored, *self.loading, *self.preempted, *self.waiting]

    def arrive(self, job: Job, now: int) -> None:
        if self._rules.load_bytes_per_s is None:
            self._arrive_loaded(job, now)
            return
        self.stored.append(job)
        self._start_loads(now)

    def _arrive_loaded(self, job: Job, now: int) -> None:
        if self.stalled:
            self.waiting.append(job)
        else:
            super().arrive(job, now)

    def dismiss(self, job: Job, now: int) -> bool:
        self.ready.discard(job)
        self.held.pop(job, None)
        left = True
        if job in self.loading:
            self.loading.pop(job).epoch += 1  # what it had of the link is spent
        elif job in self.stored:
            self.stored.remove(job)
        elif job in self.swapped:
            self.swapped.remove(job)
        else:
            left = super().dismiss(job, now)
        self._start_loads(now)
        return left

    def at_boundary(self, now: int) -> None:
        self.stalled = False
        super().at_boundary(now)
        if self.stored or self.swapped:
            self._start_loads(now)

    def stop(self, now: int) -> list[Job]:
        for call in self.loading.values():
            call.epoch += 1
        others = [*self.swapped, *self.stored, *self.loading]
        if self.stalled:
            self.step, self.stalled = NEVER_PS, False
        for queue in (self.swapped, self.stored, self.loading, self.held, self.ready):
            queue.clear()
        self._stall_ps, self.link_free_ps = 0, now
        return others + super().stop(now)

    def _enter(self, job: Job, now: int) -> None:
        self.held.pop(job, None)
        self.ready.discard(job)
        super()._enter(job, now)

    def _hasten(self, now: int) -> None:
        if not self.stalled:
            super()._hasten(now)

    # loading

    def _start_loads(self, now: int) -> None:
        """Load who is first in line, as long as there is room."""
        rate = self._rules.load_bytes_per_s
        while rate is not None and (queue := self.swapped or self.stored):
            job = queue[0]
            if job.context + 1 > self.vram:
                self._arrive_loaded(queue.popleft(), now)  # the next boundary tells that it has no room
                continue
            if self._tokens_at(now) + self.batch + sum(self.held.values()) + job.context + 1 > self.vram:
                return
            queue.popleft()
            self.held[job] = job.context + 1
            taken = move_ps((job.context - 1) * self._kv_bytes, rate)  # of its last token, KVCache is still to come
            self.link_free_ps = end = max(now, self.link_free_ps) + taken
            self.loading[job] = self._call_at(end, self._load_end(job, now))

    def _tokens_at(self, now: int) -> int:
        if not self.batch or self.stalled:
            return self.tokens
        return self.tokens + self.batch * steps_within(now - self.start, self.step, self.growth)

    def _load_end(self, job: Job, began: int) -> Callable[[int], None]:
        def ended(now: int) -> None:
            del self.loading[job]
            if job.first_join_ps < 0:
                self._noted(job, now - began)
            self._arrive_loaded(job, now)

        return ended

    # preemption

    def _preempt(self, now: int) -> None:
        super()._preempt(now)
        if not self._rules.recompute and self._rules.load_bytes_per_s is not None:
            self.swapped.append(self.preempted.pop())

    def _fill(self, now: int) -> None:
        if self._rules.recompute and self.preempted:
            self._recompute()
            if self._stall_ps:
                return
        super()._fill(now)

    def _recompute(self) -> None:
        """Let the batch pause for the first in line that fit and have no KVCache."""
        tokens, batch = self.tokens, self.batch
        for job in self.preempted:
            if tokens + job.context + batch + 1 > self.vram:
                return
            tokens, batch = tokens + job.context, batch + 1
            if job not in self.ready:
                self.ready.add(job)
                self._stall_ps += self._prefill_ps(self.instance, job.context - 1, 0)
                self.recomputed_tokens += job.context - 1

    def _open(self, now: int) -> None:
        if not self._stall_ps:
            super()._open(now)
            return
        until, self._stall_ps, self.stalled = now + self._stall_ps, 0, True
        self.step = self.growth = 0
        self.columns.set(self.instance, now, NEVER_PS, 0, self.batch, self.tokens, self.steps)
        self._set_boundary(until, 0)
