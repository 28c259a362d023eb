"""Prefill inlined into the steps of decode nodes, where that breaks no TBT SLO (Mooncake, FAST'25, section 5).

1. Once, when a request is routed and admitted: its whole prompt is computed in one forward beside the next step of the
   instance where it will decode if (a) nobody waits there to decode, and no other prompt waits for that step: a step
   takes one; (b) the mixed step lasts no longer than the tightest TBT SLO of that step's batch and of the request;
   (c) afterwards there is room for its context and a token more of everybody; (d) its first token comes sooner than
   from the prefill instance it was routed to, by that one's queue, the fetch or load alone and the prefill's time.
   All four are judged by the batch as it will be: who has all tokens by then has left.
2. Until then it holds its memory there. Nobody joins at the start of a mixed step: who arrives after it waits for its
   end. So what was judged holds when it comes.
3. Nothing is fetched to a decode node, which has no pool: all of the prompt is computed, and no pool gets its KVCache.
4. At the end of the step the first token is there, the KVCache where it is needed, and the request in the batch.
5. A mixed step costs what a coupled instance's does (E6). Of it, what the batch's own step would not have taken is the
   prefill's share of GPU time. Without a batch the step is a prefill.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench import spool
from mooncake_bench.hardware.cost import PS_PER_MS, to_ps
from mooncake_bench.hardware.wrapped import plain
from mooncake_bench.sim import job as status
from mooncake_bench.sim.loading import LoadingDecoder
from mooncake_bench.sim.stretch import elapsed, steps_within

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from mooncake_bench.hardware.cost import CostModel
    from mooncake_bench.sim.cluster import Cluster
    from mooncake_bench.sim.job import Job

    Column = NDArray[Any]

LOST_FIELDS = 5  # of an attempt that came to nothing, in Cluster.lost


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

    def offer(self, job: Job, now: int) -> int | None:
        """When a request would have its first token if it were the next to be computed here; None if it may not be."""
        waiting = self.preempted or self.waiting or self.stored or self.swapped or self.loading
        if waiting or self.stalled or self.pending is not None:
            return None
        begin, tokens, batch = self._next_step(now)
        if tokens + len(batch) + job.context + len(batch) + 1 > self.vram:
            return None
        step, _ = self._mixed_ps(len(batch), tokens, job)
        return begin + step if step <= min(map(self._inlining.limit_ps, (*batch, job))) else None

    def _next_step(self, now: int) -> tuple[int, int, list[Job]]:
        """When the next step begins that can be chosen still, and the context tokens and members of its batch."""
        if not self.batch and self.computing is None:
            return now, 0, []
        steps, begin = min(self.plan, 1), self.boundary
        if self.computing is None:
            gone = now - self.start
            steps = steps_within(gone, self.step, self.growth)
            steps = min(steps + (elapsed(steps, self.step, self.growth) < gone), self.plan)
            begin = self.start + elapsed(steps, self.step, self.growth)
        last = self.steps + steps
        gone_by_then = {job for end, _, job in self.finishes if end == last}.union(self.leaving)
        batch = [job for job in self.members if job not in gone_by_then]
        tokens = sum(job.context + last - job.joined_step for job in batch)
        if self.computing is not None and self.computing.output_tokens > 1:
            batch.append(self.computing)
            tokens += self.computing.context
        return begin, tokens, batch

    def _mixed_ps(self, batch: int, tokens: int, job: Job) -> tuple[int, int]:
        """A step that computes a prompt beside a batch, and the same batch's step without it."""
        if not batch:
            return self._cost.prefill_ps(self.instance, job.input_tokens, 0), 0
        contexts = self.token_ps * tokens
        mixed = self._cost.chunks_ps(self.instance, batch, [job.input_tokens], 1)
        return mixed + contexts, self.decode_ps(self.instance, batch) + contexts

    def take(self, job: Job, now: int) -> None:
        """Compute a prompt with the next step; until it is in the batch its memory is held."""
        self.pending = job
        self.held[job] = job.context + 1
        if self.batch:
            self._hasten(now)
        elif self.computing is None:
            self._set_boundary(now, 0)

    def drop(self, job: Job) -> None:
        """It is not to be computed after all."""
        self.pending = None
        del self.held[job]

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
        if self._fresh is not None and self.waiting and self.waiting[0] is self._fresh:
            self._enter(self.waiting.popleft(), now)
        if self.pending is None:
            super()._fill(now)

    def _open(self, now: int) -> None:
        job, self.pending = self.pending, None
        if job is not None and self._inlining.starts(job, now):
            self._compute(job, now)
            return
        if job is not None:
            del self.held[job]
            super()._fill(now)  # those whom it kept waiting
        super()._open(now)

    def _compute(self, job: Job, now: int) -> None:
        batch = self.batch
        self.step, alone = self._mixed_ps(batch, self.tokens, job)
        self.growth = self.token_ps * batch
        self.computing = job
        job.prefill_ps = max(0, self.step - alone)
        job.turn_ps = max(1, job.prefill_ps)
        self.columns.set(self.instance, now, self.step if batch else 0, self.growth, batch, self.tokens, self.steps)
        self._set_boundary(now + self.step, 1 if batch else 0)

    def _note_alone(self, job: Job, now: int) -> None:
        if not self.batch:
            self._inlining.alone += (self.instance, job.start_ps, now)

    def stop(self, now: int) -> list[Job]:
        mine = [job for job in (self.computing, self.pending) if job is not None]
        if self.computing is not None:
            self._note_alone(self.computing, now)
        for job in mine:
            self._inlining.leave(job)
        self.computing = self.pending = None
        return mine + super().stop(now)


class Inlining:
    """The requests of a cluster whose prompts decode nodes compute, until they are in a batch."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.decoders: dict[int, InliningDecoder] = {}
        self.rows: set[int] = set()  # of requests whose present, or last, attempt is inlined
        self._lost: list[int] = []  # which of the attempts that came to nothing were, by their place in Cluster.lost
        self.alone: list[int] = []  # instance, start and end of each step that computed a prompt beside no batch

    def limit_ps(self, job: Job) -> int:
        """A request's TBT SLO."""
        own = job.request.tbt_slo_ms
        return to_ps(self._cluster.brain.view.tbt_slo_ms if own is None else own)

    def accept(self, job: Job, now: int) -> bool:
        """Let a routed and admitted request be prefilled where it decodes, if it may; whether it is."""
        decoder = self.decoders[job.decode]
        end = decoder.offer(job, now)
        if end is None or end >= self._elsewhere(job, now):
            return False
        self._place(job, end, now)
        decoder.take(job, now)
        return True

    def _elsewhere(self, job: Job, now: int) -> int:
        """When its prefill instance would have its first token, by what it is known to have to do now."""
        cluster = self._cluster
        start = max(now, int(cluster.state.work_end[job.prefill]))
        if job.fetch_source is not None:
            prefilling = cluster.prefilling
            size = job.fetched_tokens * prefilling.kv
            start = max(start, now + cluster.network.alone_ps(job.fetch_source, job.prefill, size))
        if job.load is not None:
            assert cluster.tiers is not None
            start = max(start, now + round(cluster.tiers.planned_ms(job.load) * PS_PER_MS))
        return start + job.prefill_ps

    def _place(self, job: Job, end: int, now: int) -> None:
        """Nothing of a prefill instance is part of it any more."""
        state = self._cluster.state
        self.rows.add(job.row)
        job.prefill = job.decode
        job.cached_blocks = job.hit_blocks = job.hit_tokens = job.fetched_tokens = 0
        job.computed = job.input_tokens
        job.fetch_source = job.load = None
        job.new_blocks = job.stored = ()
        job.predicted_ttft_ms = (end - now) / PS_PER_MS
        job.route = job.route._replace(prefill=job.decode, fetch_from=None, ttft_ms=job.predicted_ttft_ms)
        job.mark = end
        if state.tracked:
            state.promised.put(job.row, job.decode, job.context, -1, end)
        state.routed_tokens[job.decode] += job.context

    # what a decoder tells

    def starts(self, job: Job, now: int) -> bool:
        """Its turn has come: it is computed, unless the admission policy turns it away."""
        cluster = self._cluster
        cluster.decoding.show_batch(job, now)
        reason = cluster.brain.reject_prefill(job, now)
        if reason is None:
            job.head_ps = job.start_ps = now
            return True
        self.leave(job)
        cluster.reject(job, now, status.AT_PREFILL, reason)
        return False

    def computed(self, job: Job, now: int) -> None:
        """Its step is over: it leaves if it was called off or has all its tokens; else its KVCache is there."""
        cluster, state = self._cluster, self._cluster.state
        reason = cluster.decoding.leaving.pop(job, None)
        if reason is not None:
            self.leave(job)
            cluster.give_up(job, now, reason)
            return
        job.first_token_ps = now
        if state.tracked:
            state.promised.put(job.row, job.decode, job.context, -1, now)
        if job.output_tokens > 1:
            cluster.brain.tell("first_token", job, now)
            cluster.decoding.kv_arrived(now, job)
            return
        self.leave(job)
        cluster.end(job, now, status.COMPLETED)
        cluster.brain.tell("first_token", job, now)
        cluster.brain.tell("finished", job, now)

    def leave(self, job: Job) -> None:
        """It is no longer on its way to a batch."""
        self._cluster.unroute(job)
        if self._cluster.state.tracked:
            self._cluster.state.promised.remove(job.row)

    # what may become of a request

    def cancel(self, job: Job, now: int, reason: str) -> bool:
        """Call a request off whose prompt waits to be computed, at once, or is being, with its step; whether it was."""
        if job.row not in self.rows or job.first_token_ps >= 0:
            return False
        decoder = self.decoders[job.decode]
        if decoder.computing is job:
            self._cluster.decoding.leaving[job] = reason
            return True
        decoder.drop(job)
        self.leave(job)
        self._cluster.give_up(job, now, reason)
        return True

    def forget(self, job: Job) -> None:
        """Its attempt comes to nothing, and is about to be noted as lost."""
        if job.row in self.rows:
            self.rows.remove(job.row)
            self._lost.append(len(self._cluster.lost) // LOST_FIELDS)

    # what a run keeps

    def counters(self) -> dict[str, int]:
        """``inlined_attempts``: prompts given to decode nodes, those that were called off later included."""
        return {"inlined_attempts": len(self.rows) + len(self._lost)}

    def lost_mask(self, attempts: int) -> Column:
        """Which of so many lost attempts were inlined."""
        mask = np.zeros(attempts, np.bool_)
        mask[self._lost] = True
        return mask

    def steps_alone(self) -> Column:
        """Rows of :attr:`alone`, ps."""
        return np.array(self.alone, np.int64).reshape(-1, 3)

    def amend(self, found: dict[str, Column], columns: Mapping[str, Column]) -> None:
        """Add which requests were inlined; what is told of prefill instances is not told of them."""
        size = len(columns["start_ps"])
        rows = np.array(sorted(self.rows), np.int64)
        rows = rows[columns["start_ps"][rows] >= 0]
        found["inlined"] = spool.full(size, 0, np.bool_)
        found["inlined"][rows] = True
        for name in found.keys() & {"turn_ps", "node_ps"}:
            found[name][rows] = columns["prefill_ps"][rows]
        if "vram_byte_s" in found:
            found["vram_byte_s"][rows] = np.nan
        lost = np.array(self._cluster.lost, np.int64).reshape(-1, LOST_FIELDS)[self._lost]
        found["lost_inlined_ps"] = spool.full(size, 0, np.int64)
        np.add.at(found["lost_inlined_ps"], lost[:, 0], lost[:, 4])
