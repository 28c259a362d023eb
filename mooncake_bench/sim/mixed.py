"""Decode instances whose steps may compute a prompt beside the batch: rules in :mod:`mooncake_bench.sim.inlining`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mooncake_bench.hardware.wrapped import plain
from mooncake_bench.sim.loading import LoadingDecoder
from mooncake_bench.sim.stretch import elapsed, steps_within

if TYPE_CHECKING:
    from mooncake_bench.hardware.cost import CostModel
    from mooncake_bench.sim.inlining import Inlining
    from mooncake_bench.sim.job import Job


class InliningDecoder(LoadingDecoder):
    """One decode instance whose steps may compute a prompt. ``pending`` is computed next, ``computing`` now."""

    __slots__ = ("_cost", "_fresh", "_inlining", "computing", "pending")

    def __init__(self, instance: int, cost: CostModel, *rest: Any, inlining: Inlining, **more: Any) -> None:
        super().__init__(instance, cost, *rest, **more)
        self._cost, self._inlining = plain(cost), inlining
        self.pending: Job | None = None
        self.computing: Job | None = None
        self._fresh: Job | None = None  # its prompt has just been computed
        inlining.decoders[instance] = self

    # what may come

    def offer(self, job: Job, computed: int, ready: int) -> int | None:
        """When a request would have its first token from here; None if it may not.

        ``computed``: tokens of its prompt; the others are there at ``ready``.
        """
        waiting = self.preempted or self.waiting or self.stored or self.swapped or self.loading
        if waiting or self.stalled or self.pending is not None:
            return None
        begin, tokens, batch = self._outlook(ready)
        step = self._mixed_ps(len(batch), tokens, computed, job.input_tokens - computed)
        fits = tokens + 2 * len(batch) + job.context + 1 <= self.vram
        return begin + step if fits and step <= min(map(self._inlining.limit_ps, (*batch, job))) else None

    def _outlook(self, at: int) -> tuple[int, int, list[Job]]:
        """When the first step from ``at`` on can begin, and the context tokens and members of its batch then.

        If nobody joins but the request whose prompt is being computed.
        """
        # of each member: its last step, and its context less the steps done
        members = {job: (end, job.context - job.joined_step) for end, _, job in self.finishes}
        time, done, step, growth, plan = self.start, self.steps, self.step, self.growth, self.plan
        coming = self.computing
        at = at if coming is None else max(at, self.boundary)
        while members or coming is not None:
            steps = min(_steps_until(at - time, step, growth), plan) if members else 0
            time, done = time + elapsed(steps, step, growth) if members else at, done + steps
            members = {job: known for job, known in members.items() if known[0] > done and job not in self.leaving}
            if coming is not None and self._inlining.joins(coming):
                members[coming] = done + coming.steps_left, coming.context - done
            coming = None
            if time >= at:
                break
            batch, tokens = len(members), sum(less + done for _, less in members.values())
            step, growth = self.decode_ps(self.instance, batch) + self.token_ps * tokens, self.token_ps * batch
            plan = min((end for end, _ in members.values()), default=done) - done
        return max(time, at), sum(less + done for _, less in members.values()), list(members)

    def _mixed_ps(self, batch: int, tokens: int, computed: int, prefix: int) -> int:
        """A step of a batch, ``tokens`` its contexts, that also computes what of a prompt follows a prefix."""
        if not batch:
            return self._cost.prefill_ps(self.instance, computed, prefix)
        step = self._cost.chunks_ps(self.instance, batch, [computed], 1)
        return step + self._cost.attend_ps(self.instance, computed) * prefix + self.token_ps * tokens

    def take(self, job: Job, now: int) -> None:
        """Compute a prompt as soon as its prefix is there; until it is in the batch its memory is held."""
        self.pending = job
        self.held[job] = job.context + 1
        if job.fetch is None:
            self.wake(now)

    def drop(self, job: Job, now: int) -> None:
        """It is not to be computed after all."""
        self.pending = None
        del self.held[job]
        self.wake(now)  # who could not join because of it may

    def wake(self, now: int) -> None:
        """Choose anew at the first step boundary from ``now`` on."""
        if self.batch:
            self._hasten(now)
        elif self.computing is None and not self.stalled:
            self._set_boundary(now, 0)

    # steps

    def at_boundary(self, now: int) -> None:
        job, self.computing = self.computing, None
        if job is not None:
            self._note_alone(job, now)
            del self.held[job]
            self._fresh = job
            self._inlining.computed(job, now)
        super().at_boundary(now)
        self._fresh = None

    def arrive(self, job: Job, now: int) -> None:
        if job is self._fresh:
            self.waiting.appendleft(job)  # it has its memory: nobody joins before it
        else:
            super().arrive(job, now)

    def _arrive_loaded(self, job: Job, now: int) -> None:
        if self.computing is not None:
            self.waiting.append(job)
        else:
            super()._arrive_loaded(job, now)

    def _hasten(self, now: int) -> None:
        if self.computing is None:
            super()._hasten(now)

    def _fill(self, now: int) -> None:
        enters = self._fresh is not None and bool(self.waiting) and self.waiting[0] is self._fresh
        if enters:
            self._enter(self.waiting.popleft(), now)
        elif self.pending is None:
            super()._fill(now)
            return
        if not (self._rules.recompute and self.preempted):  # the batch pauses for those later, and they come first
            self._join(now)
        while self.tokens + self.batch > self.vram:
            self._preempt(now)

    def _may_join(self, job: Job) -> bool:
        """Whether there is room beside the prompt to be computed too, whose step keeps the SLOs of all."""
        prompt = self.pending
        if prompt is None:
            return super()._may_join(job)
        batch, tokens = self.batch + 1, self.tokens + job.context
        step = self._mixed_ps(batch, tokens, prompt.computed, prompt.input_tokens - prompt.computed)
        limits = map(self._inlining.limit_ps, (*self.members, job, prompt))
        return tokens + 2 * batch + prompt.context + 1 <= self.vram and step <= min(limits)

    def _open(self, now: int) -> None:
        job = self.pending
        if job is None or job.fetch is not None or self._stall_ps or not self._has_memory(job):
            super()._open(now)
            return
        self.pending = None
        if self._inlining.starts(job, now):
            self._compute(job, now)
            return
        del self.held[job]
        super()._fill(now)  # those whom it kept waiting
        super()._open(now)

    def _has_memory(self, job: Job) -> bool:
        return self.tokens + 2 * self.batch + job.context + 1 <= self.vram

    def _compute(self, job: Job, now: int) -> None:
        batch, tokens = self.batch, self.tokens
        self.step = step = self._mixed_ps(batch, tokens, job.computed, job.input_tokens - job.computed)
        self.growth = self.token_ps * batch
        alone = self.decode_ps(self.instance, batch) + self.token_ps * tokens if batch else 0
        job.prefill_ps = max(0, step - alone)
        job.turn_ps = max(1, job.prefill_ps)
        self.computing = job
        self.columns.set(self.instance, now, step if batch else 0, self.growth, batch, tokens, self.steps)
        self._set_boundary(now + step, 1 if batch else 0)

    def _note_alone(self, job: Job, now: int) -> None:
        if not self.batch:
            self._inlining.alone += (self.instance, job.start_ps, now)

    def stop(self, now: int) -> list[Job]:
        mine = [job for job in (self.computing, self.pending) if job is not None]
        if self.computing is not None:
            self._note_alone(self.computing, now)
        for job in mine:
            self._inlining.leave(job, now)
        self.computing = self.pending = None
        return mine + super().stop(now)


def _steps_until(duration: int, step: int, growth: int) -> int:
    """The least whole steps that take so long, or longer."""
    if duration <= 0:
        return 0
    steps = steps_within(duration, step, growth)
    return steps + (elapsed(steps, step, growth) < duration)
