"""Decode instances: continuous batching, advanced in closed form (rules 6 and 7).

At a constant batch of B requests a step lasts f(B) + c·T and T grows by B a step, so k steps from (T0, step, growth)
take k·step + growth·k(k-1)/2 picoseconds. Between two changes of the batch nothing else needs to be simulated.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Protocol

from mooncake_bench.sim.stretch import elapsed, steps_within

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_bench.hardware.cost import CostModel
    from mooncake_bench.sim.job import Job
    from mooncake_bench.sim.state import DecodeColumns


class Listener(Protocol):
    """What a decode instance tells the cluster."""

    def joined(self, job: Job, now: int) -> None: ...
    def left(self, job: Job, now: int) -> None: ...
    def swapped_out(self, job: Job, now: int) -> None: ...
    def dismissed(self, job: Job, now: int) -> None: ...
    def stuck(self, job: Job, now: int) -> None: ...


class Decoder:
    """One decode instance.

    It appends what happened to two flat lists: ``segments`` gets eight numbers a stretch (instance, start_ps,
    first_step, steps, step_ps, growth_ps, batch, tokens), ``stays`` five a stay (request row, instance, join_ps,
    first_step, steps).
    """

    __slots__ = (
        "batch", "boundary", "columns", "decode_ps", "epoch", "finishes", "growth", "instance", "leaving", "listener",
        "members", "plan", "post", "preempted", "segments", "sequence", "start", "stays", "step", "steps", "token_ps",
        "tokens", "vram", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        instance: int,
        cost: CostModel,
        post: Callable[[int, Decoder, int], None],
        listener: Listener,
        columns: DecodeColumns,
        segments: list[int],
        stays: list[int],
    ) -> None:
        self.instance = instance
        self.vram = int(cost.vram_tokens[instance])
        self.decode_ps = cost.decode_ps
        self.token_ps = cost.token_ps(instance)
        self.post = post
        self.listener = listener
        self.columns = columns
        self.segments = segments
        self.stays = stays
        self.start = 0  # of the current stretch, ps
        self.steps = 0  # done before it
        self.batch = 0
        self.tokens = 0  # context sum at its start
        self.step = 0
        self.growth = 0
        self.plan = 0  # its length in steps
        self.boundary = -1  # time of the pending boundary; -1: none
        self.epoch = 0
        self.sequence = 0
        self.finishes: list[tuple[int, int, Job]] = []  # heap of (last step, join order, request)
        self.members: dict[Job, None] = {}  # in join order
        self.waiting: deque[Job] = deque()
        self.preempted: deque[Job] = deque()
        self.leaving: list[Job] = []  # members that leave at the next step boundary, however many tokens they lack

    @property
    def in_line(self) -> list[Job]:
        """All that have arrived and are in no batch."""
        return [*self.preempted, *self.waiting]

    def arrive(self, job: Job, now: int) -> None:
        """The request's KV is complete: it joins at the first step boundary from ``now`` on."""
        self.waiting.append(job)
        if not self.batch:
            self._set_boundary(now, 0)
            return
        self._hasten(now)

    def dismiss(self, job: Job, now: int) -> bool:
        """Let a request go before it has all its tokens; whether it has left.

        A member leaves at the first step boundary from ``now`` on, which the listener is told of.
        """
        if job in self.members:
            self.leaving.append(job)
            self._hasten(now)
            return False
        line = self.preempted if job in self.preempted else self.waiting
        line.remove(job)
        if self.batch:
            self._hasten(now)  # who was behind it may fit
        return True

    def _hasten(self, now: int) -> None:
        """The stretch ends at the first step boundary from ``now`` on, if not before."""
        gone = now - self.start
        steps = steps_within(gone, self.step, self.growth)
        if elapsed(steps, self.step, self.growth) < gone:
            steps += 1
        if steps < self.plan:
            self._set_boundary(self.start + elapsed(steps, self.step, self.growth), steps)

    def at_boundary(self, now: int) -> None:
        """Leave, join, preempt; then start the next stretch."""
        self.boundary = -1
        if self.batch and self.plan:
            self._close(now)
        self.start = now
        if self.leaving:
            self._dismiss(now)
        if self.batch:
            self._leave(now)
        if self.waiting or self.preempted or self.tokens + self.batch > self.vram:
            self._fill(now)
        self._open(now)

    def _fill(self, now: int) -> None:
        """Let in who fits, and out who does not."""
        while self.waiting or self.preempted or self.tokens + self.batch > self.vram:
            self._join(now)
            while self.tokens + self.batch > self.vram:
                self._preempt(now)
            if self.batch:
                break

    def stop(self, now: int) -> list[Job]:
        """End the batch within its step, whose tokens are lost, and forget who waits; returns all of them."""
        if self.batch:
            self.plan = steps_within(now - self.start, self.step, self.growth)
            if self.plan:
                self._close(now)
        jobs = [*self.members, *self.preempted, *self.waiting]
        for job in tuple(self.members):
            self._end_stay(job)
        self.finishes.clear()
        self.preempted.clear()
        self.waiting.clear()
        self.leaving.clear()
        self.start, self.step, self.growth, self.plan, self.boundary = now, 0, 0, 0, -1
        self.epoch += 1  # the pending boundary does not come
        self.columns.set(self.instance, now, 0, 0, 0, 0, self.steps)
        return jobs

    def _set_boundary(self, time: int, plan: int) -> None:
        self.plan = plan
        if time != self.boundary:
            self.boundary = time
            self.epoch += 1
            self.post(time, self, self.epoch)

    def _close(self, now: int) -> None:
        """Record the stretch that ends here."""
        steps = self.plan
        self.segments += (
            self.instance, self.start, self.steps, steps, self.step, self.growth, self.batch, self.tokens
        )  # fmt: skip
        self.steps += steps
        self.tokens += self.batch * steps

    def _dismiss(self, now: int) -> None:
        jobs, self.leaving = self.leaving, []
        for job in jobs:
            self._take_out(job)
            self.listener.dismissed(job, now)

    def _leave(self, now: int) -> None:
        finishes = self.finishes
        while finishes and finishes[0][0] == self.steps:
            job = heappop(finishes)[2]
            self._end_stay(job)
            self.listener.left(job, now)

    def _end_stay(self, job: Job) -> None:
        done = self.steps - job.joined_step
        del self.members[job]
        self.batch -= 1
        job.context += done
        job.steps_left -= done
        self.tokens -= job.context
        self.stays += (job.row, self.instance, job.joined_ps, job.joined_step, done)

    def _join(self, now: int) -> None:
        while self.preempted or self.waiting:
            queue = self.preempted or self.waiting
            job = queue[0]
            if job.context + 1 > self.vram:
                self.listener.stuck(queue.popleft(), now)
                continue
            if not self._may_join(job):
                return
            queue.popleft()
            self._enter(job, now)

    def _may_join(self, job: Job) -> bool:
        """Whether there is room for it beside the batch, and then for a token more of everybody."""
        return self.tokens + job.context + self.batch + 1 <= self.vram

    def _enter(self, job: Job, now: int) -> None:
        """It is in the batch from the next step on."""
        self.batch += 1
        self.tokens += job.context
        self.members[job] = None
        job.joined_ps = now
        job.joined_step = self.steps
        self.sequence += 1
        heappush(self.finishes, (self.steps + job.steps_left, self.sequence, job))
        self.listener.joined(job, now)

    def _preempt(self, now: int) -> None:
        """The last joined gives way; its KV moves to DRAM until there is room."""
        job = next(reversed(self.members))
        self._take_out(job)
        self.preempted.append(job)
        self.listener.swapped_out(job, now)

    def _take_out(self, job: Job) -> None:
        """It leaves the batch before it has all its tokens."""
        self._end_stay(job)
        self.finishes = [entry for entry in self.finishes if entry[2] is not job]
        self.finishes.sort(key=lambda entry: entry[:2])

    def _open(self, now: int) -> None:
        """Start a stretch at the present batch; it lasts to the first finish or to the limit of VRAM."""
        batch = self.batch
        if not batch:
            self.step = self.growth = self.plan = 0
            self.columns.set(self.instance, now, 0, 0, 0, 0, self.steps)
            return
        self.step = step = self.decode_ps(self.instance, batch) + self.token_ps * self.tokens
        self.growth = growth = self.token_ps * batch
        plan = min(self.finishes[0][0] - self.steps, (self.vram - self.tokens) // batch)
        line = self.preempted or self.waiting
        if line and self.tokens + line[0].context + 2 * batch + 1 <= self.vram:
            plan = 1  # a preemption just made room for the first in line: it joins a step later
        self.columns.set(self.instance, now, step, growth, batch, self.tokens, self.steps)
        self.plan = plan
        self.boundary = end = now + elapsed(plan, step, growth)
        self.epoch += 1
        self.post(end, self, self.epoch)
