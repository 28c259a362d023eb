"""The cluster in motion: one event loop over arrivals, prefills, transfers and decode boundaries.

At equal times: faults and role changes, then transfer ends, prefill ends, decode boundaries, ticks, arrivals, and the
first steps of idle coupled instances; then creation order (rule 2). What happens to a request before its first token is
in :mod:`mooncake_bench.sim.prefilling`, or in :mod:`mooncake_bench.sim.coupling` where instances do both; what happens
after it in :mod:`mooncake_bench.sim.decoding`.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from mooncake_bench.errors import InvariantError, PolicyError, faults
from mooncake_bench.hardware.cost import PS_PER_MS
from mooncake_bench.sim import cancelling
from mooncake_bench.sim import job as status
from mooncake_bench.sim.brain import policy_fault
from mooncake_bench.sim.core import CoredNetwork
from mooncake_bench.sim.coupling import Coupling, Rules
from mooncake_bench.sim.decoding import Decoding
from mooncake_bench.sim.inlining import Inlining
from mooncake_bench.sim.network import Flow, Network
from mooncake_bench.sim.pipeline import PipelinedPrefilling, is_pipelined
from mooncake_bench.sim.prefilling import Prefilling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mooncake_bench.hardware.cost import CostModel
    from mooncake_bench.sim.brain import Brain
    from mooncake_bench.sim.clients import Clients
    from mooncake_bench.sim.decode import Decoder
    from mooncake_bench.sim.elastic import Elastic
    from mooncake_bench.sim.job import Job
    from mooncake_bench.sim.loading import DecodeRules
    from mooncake_bench.sim.pool import Pool
    from mooncake_bench.sim.prefill import PrefillNode
    from mooncake_bench.sim.state import ClusterState
    from mooncake_bench.sim.tiers import Tiers

# rank at equal times; below it the order of creation (of the flow, of the prefill, of the call) or the instance id
FAULT, TRANSFER, PREFILL, BOUNDARY, TICK, ARRIVAL, START = (rank << 48 for rank in range(7))
Handler = Any


class Cluster:
    """All instances, and what happens to them."""

    def __init__(
        self,
        cost: CostModel,
        pool: Pool,
        state: ClusterState,
        brain: Brain,
        coupled: Rules | None = None,
        core_bytes_per_s: int | None = None,
        decode: DecodeRules | None = None,
    ) -> None:
        """``core_bytes_per_s``: what the core of the network carries, if less than all NICs."""
        self.cost = cost
        self.pool = pool
        self.state = state
        self.brain = brain
        self.now = self.rank = 0  # of what happens, or happened last
        # (time, rank and tie, epoch, handler, subject); stale when the subject's epoch has moved on
        self._heap: list[tuple[int, int, int, Handler, Any]] = []
        self._calls = 0
        self._weak = 0  # calls in the heap that do not happen when nothing else does
        self.events = 0
        self.jobs: list[Job] = []
        self.policy_ns: list[int] = []
        self.rejected = 0  # requests, so far
        self.occupancy: list[int] = []  # after each arrival: when, slots in use in the pool, different blocks there
        self.routings: list[int] | None = None  # rows in order of admission, if that may not be the order of the trace
        # attempts that came to nothing: request row, when, prefill instance, start of the prefill, what of it was done
        self.lost: list[int] = []
        self.clients: Clients | None = None  # where they do more than ask once
        self.elastic: Elastic | None = None  # where instances may fail or change their role
        self.tiers: Tiers | None = None  # where prefill nodes have SSDs
        # told of every event that is over; nobody, mostly
        self.watchers: list[Callable[[int], None]] = [brain.view.observe] if brain.view.follows else []
        # how each kind of action of a policy is carried out; the answer says why it cannot be
        self.actions: dict[type, Callable[[Any, int], str | None]] = {}
        self._on_flow_end = self._flow_ended
        self.arriving = True  # more arrivals may come
        links = [int(rate) for rate in cost.nic_bytes_per_s], self._post_flow, self._rate_changed
        self.network = Network(*links) if core_bytes_per_s is None else CoredNetwork(*links, core_bytes_per_s)
        self.prefilling = PipelinedPrefilling(self, PREFILL) if is_pipelined(cost) else Prefilling(self)
        self.inlining = Inlining(self) if decode is not None and decode.inline else None
        self.decoding = Decoding(self, decode)
        self.coupling = None if coupled is None else Coupling(self, coupled, BOUNDARY)
        state.rebuild = self._fill_tables

    # events

    def _post_flow(self, time: int, flow: Flow, epoch: int) -> None:
        heappush(self._heap, (time, TRANSFER + flow.number, epoch, self._on_flow_end, flow))

    def post_transfer(self, time: int, flow: Flow, epoch: int, handler: Handler) -> None:
        """A flow of another network ends then, unless its epoch has moved on; its number is unlike all others."""
        heappush(self._heap, (time, TRANSFER + flow.number, epoch, handler, flow))

    def post_prefill(self, time: int, number: int, node: PrefillNode) -> None:
        """``node`` ends its ``number``-th prefill of the cluster then."""
        heappush(self._heap, (time, PREFILL + number, node.epoch, self.prefilling.ended, node))

    def post_boundary(self, time: int, decoder: Decoder, epoch: int) -> None:
        """A decode boundary, unless the decoder's epoch has moved on by then."""
        heappush(self._heap, (time, BOUNDARY + decoder.instance, epoch, _boundary, decoder))

    def post_start(self, time: int, decoder: Decoder, epoch: int) -> None:
        """The same after all arrivals of that moment."""
        heappush(self._heap, (time, START + decoder.instance, epoch, _boundary, decoder))

    def post_call(self, time: int, rank: int, handler: Handler, subject: Any) -> None:
        """``handler(subject, now)`` then, among calls (:meth:`call_at`), unless the subject's epoch has moved on."""
        self._calls += 1
        heappush(self._heap, (time, rank + self._calls, subject.epoch, handler, subject))

    def take_place(self) -> int:
        """A place in the order of calls, for one that is made later."""
        self._calls += 1
        return self._calls

    def call_at(
        self, time: int, rank: int, call: Callable[[int], None], *, weak: bool = False, place: int | None = None
    ) -> Call:
        """Let ``call(now)`` happen then, among events of ``rank`` in the order of these calls.

        A ``weak`` one does not happen when nothing else is left to happen before it. ``place``: taken before.
        """
        made = Call(self._weakly(call) if weak else call)
        heappush(self._heap, (time, rank + (place or self.take_place()), 0, _called, made))
        return made

    def end_transfer_at(self, time: int, call: Callable[[int], None]) -> Call:
        """Let a transfer that is not the network's end then."""
        return self.call_at(time, TRANSFER, call)

    def _weakly(self, call: Callable[[int], None]) -> Callable[[int], None]:
        self._weak += 1

        def happen(now: int) -> None:
            self._weak -= 1
            call(now)

        return happen

    @property
    def idle(self) -> bool:
        """Nothing will happen any more."""
        return not self.arriving and len(self._heap) <= self._weak

    def run(self, arrivals: Iterable[Job], progress: Callable[[int, int], None] | None = None) -> bool:
        """Everything from the first arrival to the last event. False when interrupted (Ctrl-C): what was done stays.

        ``arrivals`` are the requests in order of arrival, each asked for when the one before has arrived.
        """
        try:
            for job in arrivals:
                self._until((job.arrival_ps, START))
                self._come(job)
                if progress is not None and not (job.row + 1) & 255:
                    progress(job.row + 1, self.now)
            self.arriving = False
            while not self.idle:
                time, rank = self._heap[0][:2]
                self._until((time, rank + 1) if self._weak else (inf,))
        except KeyboardInterrupt:
            return False
        return True

    def _until(self, bound: tuple[float, ...]) -> None:
        """All events before a time and a rank."""
        heap, watchers = self._heap, self.watchers
        while heap and heap[0] < bound:
            time, rank, epoch, handler, subject = heappop(heap)
            if epoch != subject.epoch:
                continue
            if time < self.now:
                raise InvariantError(f"the clock went backwards from {self.now} to {time} ps")
            self.now, self.rank = time, rank
            handler(subject, time)
            self.events += 1
            if watchers:
                self._watched(time)

    def _watched(self, now: int) -> None:
        for watch in tuple(self.watchers):
            watch(now)

    def _come(self, job: Job) -> None:
        self.now = now = job.arrival_ps
        self.rank = START
        self.arrive(job, now)
        index = self.pool.index
        self.occupancy += (now, index.slots, len(index.holders))
        if self.watchers:
            self._watched(now)

    # arrival

    def arrive(self, job: Job, now: int) -> None:
        """A request comes for the first time: it is routed, and admitted or turned away."""
        if self.clients is not None:
            self.clients.came(job, now)
        if self.elastic is not None and (reason := self.elastic.nobody()):
            self.jobs.append(job)
            self.fail(job, now, reason)
            return
        if self.pool.expiring:
            self._expire(job, now)
        began = perf_counter_ns()
        reason = self.brain.decide(job, now)
        self.policy_ns.append(perf_counter_ns() - began)
        self.jobs.append(job)
        self._admit(job, now, reason)

    def try_again(self, job: Job, now: int) -> None:
        """Route a request anew whose last attempt is over and forgotten (:meth:`start_over`)."""
        if self.clients is not None and (reason := self.clients.gone(job, now)):
            self.fail(job, now, reason)
            return
        job.request = job.request._replace(attempt=job.attempts)
        job.attempts += 1
        job.waited_ps = now - job.arrival_ps
        if self.elastic is not None and (reason := self.elastic.nobody()):
            self.fail(job, now, reason)
            return
        if self.pool.expiring:
            self._expire(job, now)
        self.decoding.asked = job
        began = perf_counter_ns()
        reason = self.brain.decide(job, now)
        self.policy_ns.append(perf_counter_ns() - began)
        self.decoding.asked = None
        self._admit(job, now, reason)

    def _admit(self, job: Job, now: int, reason: str | None) -> None:
        if reason is not None:
            self.reject(job, now, status.AT_ARRIVAL, reason)
            return
        inlined = self.inlining is not None and self.inlining.accept(job, now)
        if not inlined:
            (self.coupling or self.prefilling).accept(job, now)
        if self.routings is not None and self.coupling is None:  # where instances do both, hits are counted later
            self.routings.append(job.row)
        view = self.brain.view
        if view.follows and job.prefill >= 0:  # else it was turned away at once, to come back
            (view.inlined if inlined else view.routed)(job, now)

    def _expire(self, job: Job, now: int) -> None:
        """Evictions that want to may give up blocks before an arrival's hits are seen."""
        for node in self.pool.expiring:
            try:
                node.expire(now / PS_PER_MS + node.clock_ms)
            except PolicyError:
                raise
            except faults() as error:
                raise policy_fault(node.eviction, job, error) from error

    # network

    def _flow_ended(self, flow: Flow, now: int) -> None:
        self.network.stop(now, flow)
        done, owner = flow.done, flow.owner
        flow.owner = None  # its owner holds the flow: no cycles for the collector
        assert done is not None
        done(now, owner)

    def _rate_changed(self, now: int, flow: Flow) -> None:
        self.prefilling.fetch_rate_changed(now, flow)

    # accounts

    def unroute(self, job: Job) -> None:
        """It is no longer on its way to a decode batch."""
        if job.decode >= 0:
            self.state.routed_tokens[job.decode] -= job.context

    def end(self, job: Job, now: int, fate: int) -> None:
        """The one place where a request gets its status."""
        job.status = fate
        job.end_ps = now
        if self.clients is not None:
            self.clients.ended(job, now)

    def reject(self, job: Job, now: int, stage: int, reason: str) -> None:
        """An admission turned it away."""
        job.rejections += 1
        if self.clients is not None and self.clients.come_back(job, now):
            return
        job.reject_stage = stage
        job.reject_reason = self.brain.reason_id(reason)
        self.rejected += 1
        self.end(job, now, status.REJECTED)
        self.brain.tell("rejected", job, now)

    def cancel(self, job: Job, now: int, reason: str) -> bool:
        """Call a request off, wherever it is: it fails for this reason. Whether it was still under way."""
        return cancelling.cancel(self, job, now, reason)

    def give_up(self, job: Job, now: int, reason: str) -> None:
        """A cancelled request that is nowhere any more fails; what it did is lost, and where it was is forgotten."""
        self.brain.tell("failed", job, now)
        self.start_over(job, now)
        job.reject_reason = self.brain.reason_id(reason)
        self.end(job, now, status.FAILED)

    def fail(self, job: Job, now: int, reason: str) -> None:
        """It cannot be served, and why."""
        if not hasattr(job, "prefill"):
            job.start_over(now)  # it was never routed: what the records need is not there
        job.reject_reason = self.brain.reason_id(reason)
        self.end(job, now, status.FAILED)
        self.brain.tell("failed", job, now)

    def start_over(self, job: Job, now: int) -> None:
        """Forget an attempt that is over, of a request that is nowhere any more; what it cost is noted."""
        if self.inlining is not None:
            self.inlining.forget(job)
        self.lost += (job.row, now, job.prefill, job.start_ps, job.spent_ps(now))
        job.start_over(now)

    def _fill_tables(self) -> None:
        """A policy looks at single requests for the first time: enter those that are under way."""
        state = self.state
        for job in self.jobs:
            if job.status != status.UNFINISHED or job is self.decoding.asked or job.prefill < 0:
                continue
            if job.first_token_ps < 0:
                prefill = -1 if self.inlining is not None and job.row in self.inlining.rows else job.prefill
                state.promised.put(job.row, job.decode, job.context, prefill, job.mark)
            elif job in self.decoding.decoders[job.decode].members:
                state.joined.put(job.row, job.decode, job.joined_ps, job.context - job.joined_step)
            elif job.kv_arrival_ps < 0:
                state.promised.put(job.row, job.decode, job.context, -1, job.first_token_ps)
            else:
                state.waiting.put(job.row, job.decode, job.kv_arrival_ps, job.context)


class Call:
    """Something to happen once; it does not when its epoch has moved on."""

    __slots__ = ("call", "epoch")

    def __init__(self, call: Callable[[int], None]) -> None:
        self.call = call
        self.epoch = 0


def _called(made: Call, now: int) -> None:
    made.call(now)


def _boundary(decoder: Decoder, now: int) -> None:
    decoder.at_boundary(now)
