"""The cluster in motion: one event loop over arrivals, prefills, transfers and decode boundaries.

At equal times: faults and role changes, then transfer ends, prefill ends, decode boundaries, ticks, arrivals; then
creation order (rule 2). What happens to a request before its first token is in :mod:`mooncake_bench.sim.prefilling`,
what happens after it in :mod:`mooncake_bench.sim.decoding`.
"""

from __future__ import annotations

from heapq import heappop, heappush
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from mooncake_bench.errors import InvariantError, PolicyError
from mooncake_bench.hardware.cost import PS_PER_MS
from mooncake_bench.sim import job as status
from mooncake_bench.sim.brain import FAULTS, policy_fault
from mooncake_bench.sim.decoding import Decoding
from mooncake_bench.sim.network import Flow, Network
from mooncake_bench.sim.prefilling import Prefilling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mooncake_bench.hardware.cost import CostModel
    from mooncake_bench.sim.brain import Brain
    from mooncake_bench.sim.decode import Decoder
    from mooncake_bench.sim.job import Job
    from mooncake_bench.sim.pool import Pool
    from mooncake_bench.sim.prefill import PrefillNode
    from mooncake_bench.sim.state import ClusterState

# rank at equal times; below it the order of creation (of the flow, of the prefill, of the call) or the instance id
FAULT, TRANSFER, PREFILL, BOUNDARY, TICK, ARRIVAL = (rank << 48 for rank in range(6))
Handler = Any


class Cluster:
    """All instances, and what happens to them."""

    def __init__(self, cost: CostModel, pool: Pool, state: ClusterState, brain: Brain) -> None:
        self.cost = cost
        self.pool = pool
        self.state = state
        self.brain = brain
        self.now = 0
        # (time, rank and tie, epoch, handler, subject); stale when the subject's epoch has moved on
        self._heap: list[tuple[int, int, int, Handler, Any]] = []
        self._calls = 0
        self.events = 0
        self.jobs: list[Job] = []
        self.policy_ns: list[int] = []
        self._on_flow_end = self._flow_ended
        self.arriving = True  # more arrivals may come
        self.network = Network([int(rate) for rate in cost.nic_bytes_per_s], self._post_flow, self._rate_changed)
        self.prefilling = Prefilling(self)
        self.decoding = Decoding(self)
        state.rebuild = self._fill_tables

    # events

    def _post_flow(self, time: int, flow: Flow, epoch: int) -> None:
        heappush(self._heap, (time, TRANSFER + flow.number, epoch, self._on_flow_end, flow))

    def post_prefill(self, time: int, number: int, node: PrefillNode) -> None:
        """``node`` ends its ``number``-th prefill of the cluster then."""
        heappush(self._heap, (time, PREFILL + number, node.epoch, self.prefilling.ended, node))

    def post_boundary(self, time: int, decoder: Decoder, epoch: int) -> None:
        """A decode boundary, unless the decoder's epoch has moved on by then."""
        heappush(self._heap, (time, BOUNDARY + decoder.instance, epoch, _boundary, decoder))

    def call_at(self, time: int, rank: int, call: Callable[[int], None]) -> Call:
        """Let ``call(now)`` happen then, among events of ``rank`` in the order of these calls."""
        self._calls += 1
        made = Call(call)
        heappush(self._heap, (time, rank + self._calls, 0, _called, made))
        return made

    @property
    def idle(self) -> bool:
        """Nothing will happen any more."""
        return not self.arriving and not self._heap

    def run(self, arrivals: Iterable[Job], progress: Callable[[int, int], None] | None = None) -> bool:
        """Everything from the first arrival to the last event. False when interrupted (Ctrl-C): what was done stays.

        ``arrivals`` are the requests in order of arrival, each asked for when the one before has arrived.
        """
        try:
            for job in arrivals:
                self._until(job.arrival_ps)
                self._come(job)
                if progress is not None and not (job.row + 1) & 255:
                    progress(job.row + 1, self.now)
            self.arriving = False
            self._until(None)
        except KeyboardInterrupt:
            return False
        return True

    def _until(self, end: int | None) -> None:
        """All events up to a time, that included; without one, all there are."""
        heap, view = self._heap, self.brain.view
        while heap and (end is None or heap[0][0] <= end):
            time, _, epoch, handler, subject = heappop(heap)
            if epoch != subject.epoch:
                continue
            if time < self.now:
                raise InvariantError(f"the clock went backwards from {self.now} to {time} ps")
            self.now = time
            handler(subject, time)
            self.events += 1
            if view.follows:
                view.observe(time)

    def _come(self, job: Job) -> None:
        self.now = now = job.arrival_ps
        self._arrive(job, now)
        if self.brain.view.follows:
            self.brain.view.observe(now)

    # arrival

    def _arrive(self, job: Job, now: int) -> None:
        if self.pool.expiring:
            self._expire(job, now)
        began = perf_counter_ns()
        reason = self.brain.decide(job, now)
        self.policy_ns.append(perf_counter_ns() - began)
        self.jobs.append(job)
        if reason is not None:
            self.reject(job, now, status.AT_ARRIVAL, reason)
            return
        self.prefilling.accept(job, now)
        if self.brain.view.follows:
            self.brain.view.routed(job, now)

    def _expire(self, job: Job, now: int) -> None:
        """Evictions that want to may give up blocks before an arrival's hits are seen."""
        for node in self.pool.expiring:
            try:
                node.expire(now / PS_PER_MS)
            except PolicyError:
                raise
            except FAULTS as error:
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

    def reject(self, job: Job, now: int, stage: int, reason: str) -> None:
        """An admission turned it away."""
        job.reject_stage = stage
        job.reject_reason = self.brain.reason_id(reason)
        self.end(job, now, status.REJECTED)
        self.brain.tell("rejected", job, now)

    def _fill_tables(self) -> None:
        """A policy looks at single requests for the first time: enter those that are under way."""
        state = self.state
        for job in self.jobs:
            if job.status != status.UNFINISHED or job is self.decoding.asked:
                continue
            if job.first_token_ps < 0:
                state.promised.put(job.row, job.decode, job.context, job.prefill, job.mark)
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
