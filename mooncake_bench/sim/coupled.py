"""Coupled instances: one set of GPUs prefills and decodes, step by step, as vLLM does.

1. An instance works in steps. A step that follows another begins when that one ends and was chosen before whatever
   arrives at that moment; an idle instance begins at the end of the moment in which something arrives.
2. ``prefill-first`` (vLLM 0.5): a step is a prefill of as many waiting prompts as fit in ``step_tokens`` (new tokens,
   whole prompts, first come, first served; the first may be longer and then goes alone), else one decode step of
   everything running. A prefill step stalls the batch. ``one-at-a-time`` is the same with one sequence: a request from
   prefill to last token, then the next. ``chunked``: the batch takes one token each, then the prompt that is half
   done, then waiting prompts, up to ``step_tokens`` in all; the last one may get a part only.
3. At most ``sequences`` requests are admitted, that is prefilling or running. Who is admitted keeps its memory.
4. Memory: whole blocks of prompts, shared between requests, kept for later ones (local prefix caching), plus every
   generated token of the admitted ones: resident * block + private <= VRAM at all times. The cache holds what is left;
   blocks of admitted requests are pinned, the eviction policy names a victim among the others when a step needs room.
   Without the cache every token is private.
5. A prompt's hits are counted when it is admitted: leading blocks whose KV is ready then. Its own become ready when its
   prefill ends. It is admitted when its blocks, its token and one token more for everybody fit.
6. Before a step in which the batch has no room to grow, the last admitted is preempted: its KV is dropped, it queues
   first again, and its context is prefilled anew (hits allowed). The token that it waits for comes with the next decode
   step, so that a recomputation makes no token. What cannot run alone fails when it is first in line.
7. Costs: :mod:`mooncake_bench.hardware.analytic`, (E6). What an engine does for a prompt (o_pre) is paid once for each
   prompt that starts, however many chunks it takes.

Runs of equal steps are advanced in closed form: decode steps as in :mod:`mooncake_bench.sim.decode`; and full chunks of
one prompt beside an unchanged batch, for each lasts the same number of picoseconds more than the one before.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop
from typing import TYPE_CHECKING

from mooncake_bench.errors import InvariantError
from mooncake_bench.sim.decode import Decoder
from mooncake_bench.sim.stretch import elapsed, steps_within

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mooncake_bench.sim.cluster import Call, Cluster
    from mooncake_bench.sim.coupling import Coupling, Rules
    from mooncake_bench.sim.job import Job
    from mooncake_bench.sim.pool import Node

STANDS_STILL = 1 << 62  # the length of a step that never ends: contexts while a prefill stalls the batch


class CoupledNode(Decoder):
    """One coupled instance. ``waiting`` are prefilled and join at the next decode step; ``preempted`` queue first."""

    __slots__ = (
        "admitted", "block_tokens", "chunks", "cost", "coupling", "growth_call", "growth_step", "head", "pausing",
        "private", "queue", "queued_ps", "rules", "starting", "store",
    )  # fmt: skip

    def __init__(self, instance: int, coupling: Coupling, cluster: Cluster, store: Node, rules: Rules) -> None:
        decoding = cluster.decoding
        super().__init__(
            instance, cluster.cost, cluster.post_boundary, decoding, cluster.state.decode, decoding.segments,
            decoding.stays,
        )  # fmt: skip
        self.cost = cluster.cost
        self.coupling = coupling
        self.store = store
        self.rules = rules
        self.block_tokens = cluster.pool.index.block_tokens if rules.prefix_cache else 0
        self.queue: deque[Job] = deque()  # not admitted; behind those that were preempted
        self.head: Job | None = None  # of the queue: sticky once chosen
        self.queued_ps = 0  # estimated prefill of all that queue
        self.admitted: dict[Job, None] = {}  # in order of admission
        self.private = 0  # tokens of the admitted that are no stored blocks; of a run: at its start
        self.chunks: list[tuple[Job, int]] = []  # prompts, and how many of their tokens a step of this run computes
        self.starting = 0  # of them: first chunks
        self.pausing = False  # a prefill step: the batch stands still
        self.growth_call: Call | None = None  # the next time that the cache gives way to generated tokens
        self.growth_step = 0  # before this step of the run

    # what comes

    def enqueue(self, job: Job, now: int) -> None:
        """It came; it is looked at when the next step is chosen."""
        line = bool(self.queue or self.preempted)
        self.queue.append(job)
        self.queued_ps += job.wait_ps
        if not self.plan:
            if self.boundary != now:
                self.boundary = now
                self.epoch += 1
                self.coupling.cluster.post_start(now, self, self.epoch)
        elif not line and not self.chunks and len(self.admitted) < self.rules.sequences:
            self.cut(now)
        self.show_queue(now)

    def cut(self, now: int) -> None:
        """Choose anew after the step that is under way, if the run goes on after that."""
        if self.plan > 1:
            steps = steps_within(now - self.start, self.step, self.growth) + 1
            if steps < self.plan:
                self._set_boundary(self.start + elapsed(steps, self.step, self.growth), steps)
                if self.growth_call is not None and self.growth_step >= steps:
                    self._forget_growth()

    def arrive(self, job: Job, now: int) -> None:
        """Its KVCache is here: it joins with the next decode step."""
        self.waiting.append(job)

    def take(self, job: Job) -> None:
        """It leaves the line."""
        if self.preempted and job in self.preempted:
            self.preempted.remove(job)
        else:
            self.queue.remove(job)
            if self.head is job:
                self.head = None
        self.queued_ps -= job.wait_ps

    def first_in_line(self, now: int) -> Job | None:
        """Who is admitted next."""
        if self.preempted:
            return self.preempted[0]
        if self.head is None and self.queue:
            self.head = self.coupling.choose(self, now)
        return self.head

    def show_queue(self, now: int) -> None:
        """Say when all that queue here would be prefilled."""
        self.coupling.state.work_end[self.instance] = self._free_at(now) + self.queued_ps

    def _free_at(self, now: int) -> int:
        """The earliest that a prompt in the queue can start, as far as a scheduler may know: not when answers end."""
        if not self.plan:
            return now
        if self.chunks:
            job, chunk = self.chunks[-1]
            left, room = job.left - chunk * self.plan, self.rules.step_tokens - self.batch
            return self.start + elapsed(self.plan - -left // max(room, 1), self.step, self.growth)
        if not (self.queue or self.preempted):
            return now
        steps = steps_within(now - self.start, self.step, self.growth)
        return self.start + elapsed(steps + 1, self.step, self.growth)  # room may come with the next step

    def line(self, now: int) -> Iterator[tuple[Job, int]]:
        """Requests whose prefill has not ended, and when it would."""
        end = self._free_at(now)
        for job, _ in self.chunks:
            yield job, end
        for job in (*self.preempted, *self.queue):
            end += job.wait_ps
            yield job, end

    # a boundary

    def at_boundary(self, now: int) -> None:
        """End a run of steps, and choose the next."""
        self.boundary = -1
        self._forget_growth()
        if self.plan:
            self._end_run(now)
        self.start = now
        self.chunks, self.starting, self.pausing = [], 0, False
        if self.rules.chunked:
            self._choose_chunked(now)
        else:
            self._choose_prefill_first(now)
        self.show_queue(now)
        self._check()

    def _end_run(self, now: int) -> None:
        """Record what the steps did: who is called off leaves, then prompts are done, then answers."""
        steps, decoding = self.plan, self.batch > 0 and not self.pausing
        if self.chunks:
            self._share_time(decoding)
        if decoding:
            self._close(now)
            self.private += self.batch * steps
        self.plan = 0
        for job, chunk in self.chunks:
            job.left -= chunk * steps
        if self.leaving:
            self._dismiss(now)
        for job, _ in self.chunks:
            if not job.left:
                self.coupling.prefilled(self, job, now)
        if decoding:
            self._leave(now)

    def _share_time(self, decoding: bool) -> None:
        """What the run took beyond its decode steps alone, shared by the tokens of its prompts."""
        extra = elapsed(self.plan, self.step, self.growth)
        if decoding:
            alone = self.decode_ps(self.instance, self.batch) + self.token_ps * self.tokens
            extra -= elapsed(self.plan, alone, self.token_ps * self.batch)
        whole = sum(chunk for _, chunk in self.chunks)
        gone = 0
        for job, chunk in self.chunks:
            job.used_ps += extra * (gone + chunk) // whole - extra * gone // whole
            gone += chunk

    def _dismiss(self, now: int) -> None:
        jobs, self.leaving = self.leaving, []
        self.chunks = [(job, chunk) for job, chunk in self.chunks if job not in jobs]
        for job in jobs:
            if job in self.members:
                self._take_out(job)
                self.release(job)
                self.listener.dismissed(job, now)
            else:
                self.coupling.dismissed(self, job, now)

    def stop(self, now: int) -> list[Job]:
        """End a step, which is lost, and forget everybody; returns all of them."""
        self._forget_growth()
        decoding = self.batch > 0 and not self.pausing
        if self.plan and self.chunks:
            self.plan = steps_within(now - self.start, self.step, self.growth)
            self._share_time(decoding)
        if not decoding:
            self.start = now  # nothing for the batch to record
        prefilling = [job for job in self.admitted if job not in self.members and job not in self.waiting]
        self.coupling.stopped(self, [*prefilling, *self.queue], now)
        jobs = [*super().stop(now), *prefilling, *self.queue]
        self.queue.clear()
        self.admitted.clear()
        self.chunks, self.head, self.queued_ps, self.private = [], None, 0, 0
        self.store.capacity = self.cache_blocks(0)
        return jobs

    def _leave(self, now: int) -> None:
        finishes = self.finishes
        while finishes and finishes[0][0] == self.steps:
            job = heappop(finishes)[2]
            self._end_stay(job)
            self.release(job)
            self.listener.left(job, now)

    def release(self, job: Job) -> None:
        """Its memory is free; its prompt stays in the cache."""
        self.free(job, self.own_tokens(job), job.stored)

    def free(self, job: Job, own: int, stored: Sequence[int]) -> None:
        """The same, told what it held."""
        del self.admitted[job]
        self.private -= own
        if self.block_tokens:
            self.store.unpin(stored)

    # the next step

    def _choose_prefill_first(self, now: int) -> None:
        while True:
            self._admit(now, self.rules.step_tokens)
            if self.chunks:
                self._open_prefill(now)
                return
            self._join(now)
            self._make_way(now)
            if self.batch or not (self.preempted or self.queue):
                self._open(now)
                return

    def _choose_chunked(self, now: int) -> None:
        self._join(now)
        while True:
            self._make_way(now)
            room = self.rules.step_tokens - self.batch
            half = next(reversed(self.admitted), None)
            if half is not None and half.left and room:
                chunk = min(room, half.left)
                self.chunks.append((half, chunk))
                room -= chunk
            self._admit(now, room)
            if self.chunks or self.batch or not (self.preempted or self.queue):
                self._open(now)
                return

    def _admit(self, now: int, room: int) -> None:
        """Who is first in line begins its prefill, as long as tokens, sequences and memory allow."""
        chunked, coupling = self.rules.chunked, self.coupling
        while room > 0 and len(self.admitted) < self.rules.sequences:
            job = self.first_in_line(now)
            if job is None:
                return
            if not self._fits_alone(job):
                coupling.failed(self, job, now)
                continue
            if not self._fits(job):
                return
            hits = self.store.ready_prefix(job.request.blocks) if self.block_tokens else 0
            computed = coupling.to_compute(job, hits)
            if self.chunks and computed > room and not chunked:
                return
            if not coupling.starts(self, job, hits, now):
                continue
            chunk = min(computed, room) if chunked else computed
            self.chunks.append((job, chunk))
            self.starting += 1
            room -= chunk

    def _fits_alone(self, job: Job) -> bool:
        """Whether an empty instance has memory for it."""
        return len(job.request.blocks) * self.block_tokens + self.own_tokens(job) + 1 <= self.vram

    def _fits(self, job: Job) -> bool:
        """Whether there is memory for it, and then for a token more of everybody."""
        tokens = self.private + self.own_tokens(job) + len(self.admitted) + 1
        if self.block_tokens:
            pinned = self.store.pinned
            tokens += self.block_tokens * (len(pinned) + sum(block not in pinned for block in job.request.blocks))
        return tokens <= self.vram

    def own_tokens(self, job: Job) -> int:
        """What it takes of memory besides stored blocks."""
        return job.context - job.input_tokens if self.block_tokens else job.context

    def _join(self, now: int) -> None:
        while self.waiting:
            self._enter(self.waiting.popleft(), now)

    def _make_way(self, now: int) -> None:
        """Preempt the last admitted until everybody in the batch has room for a token."""
        while len(self.store.pinned) * self.block_tokens + self.private + self.batch > self.vram:
            self.coupling.preempt(self, next(reversed(self.admitted)), now)

    def leave_batch(self, job: Job) -> None:
        """It is preempted from the batch."""
        self._take_out(job)

    def _open_prefill(self, now: int) -> None:
        """A step of prompts alone."""
        parts = [(job.left, job.context - 1 - job.left) for job, _ in self.chunks]
        self.step, self.growth, self.pausing = self.cost.prefills_ps(self.instance, parts), 0, True
        self.columns.set(self.instance, now, STANDS_STILL, 0, self.batch, self.tokens, self.steps)
        self._set_boundary(now + self.step, 1)

    def _open(self, now: int) -> None:
        """A run of steps that decode, or compute chunks, or both; without either, the instance is idle."""
        batch = self.batch
        if not batch and not self.chunks:
            self.step = self.growth = 0
            self.store.shrink(self.cache_blocks(0))
            self.columns.set(self.instance, now, 0, 0, 0, 0, self.steps)
            return
        self.growth = self.token_ps * batch
        plan = self._set_chunk_steps() if self.chunks else 1 << 62
        if batch:
            if not self.chunks:
                self.step = self.decode_ps(self.instance, batch) + self.token_ps * self.tokens
            self._shrink(batch)
            room = self.vram - len(self.store.pinned) * self.block_tokens - self.private
            plan = min(plan, self.finishes[0][0] - self.steps, room // batch)
        self.columns.set(self.instance, now, self.step if batch else 0, self.growth, batch, self.tokens, self.steps)
        self._set_boundary(now + elapsed(plan, self.step, self.growth), plan)
        if batch and self.block_tokens:
            self._watch_growth()

    def _set_chunk_steps(self) -> int:
        """Length and growth of a step with chunks; how many such steps there are."""
        cost, instance, chunks = self.cost, self.instance, self.chunks
        sizes = [chunk for _, chunk in chunks]
        step = cost.chunks_ps(instance, self.batch, sizes, self.starting) + self.token_ps * self.tokens
        for job, chunk in chunks:
            step += cost.attend_ps(instance, chunk) * (job.context - 1 - job.left)
        self.step = step
        job, chunk = chunks[0]
        if self.starting or len(chunks) > 1 or chunk + self.batch < self.rules.step_tokens:
            return 1
        self.growth += cost.attend_ps(instance, chunk) * chunk
        return job.left // chunk

    # the cache gives way

    def cache_blocks(self, tokens: int) -> int:
        """Blocks that fit beside so many private tokens."""
        return (self.vram - tokens) // self.block_tokens if self.block_tokens else 0

    def _shrink(self, more: int) -> None:
        """Evict until so many tokens more fit."""
        if self.block_tokens and self.store.resident * self.block_tokens + self.private + more > self.vram:
            self.coupling.shrink(self, self.cache_blocks(self.private + more))

    def _watch_growth(self) -> None:
        """Find the first step of the run that needs a block of the cache."""
        room = self.vram - self.store.resident * self.block_tokens - self.private
        steps = room // self.batch
        if steps < self.plan:
            self.growth_step = steps
            self.growth_call = self.coupling.call_at(
                self.start + elapsed(steps, self.step, self.growth), self._give_way
            )

    def _give_way(self, now: int) -> None:
        """A step of the run begins for which the cache gives up what it needs."""
        self.growth_call = None
        self._shrink(self.batch * (self.growth_step + 1))
        self._watch_growth()

    def _forget_growth(self) -> None:
        if self.growth_call is not None:
            self.growth_call.epoch += 1
            self.growth_call = None

    def _check(self) -> None:
        used = self.store.resident * self.block_tokens + self.private
        if used > self.vram or len(self.admitted) > self.rules.sequences or self.batch > len(self.admitted):
            raise InvariantError(
                f"coupled instance {self.instance} holds {used} tokens of {self.vram}, {len(self.admitted)} requests "
                f"of {self.rules.sequences} and a batch of {self.batch}"
            )
