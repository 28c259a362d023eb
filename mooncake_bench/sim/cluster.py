"""The cluster in motion: one event loop over arrivals, prefills, transfers and decode boundaries.

At equal times: transfer ends, then prefill ends, decode boundaries, arrivals; then creation order (rule 2).
"""

from __future__ import annotations

from heapq import heappop, heappush
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from mooncake_bench.errors import InvariantError, PolicyError
from mooncake_bench.hardware.cost import PS_PER_MS
from mooncake_bench.sim import job as status
from mooncake_bench.sim.brain import FAULTS, policy_fault
from mooncake_bench.sim.decode import Decoder
from mooncake_bench.sim.network import SCALE, Flow, Network
from mooncake_bench.sim.prefill import PrefillNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mooncake_bench.hardware.cost import CostModel
    from mooncake_bench.sim.brain import Brain
    from mooncake_bench.sim.job import Job
    from mooncake_bench.sim.pool import Pool
    from mooncake_bench.sim.state import ClusterState

# rank at equal times; below it the order of creation (of the flow, of the prefill) or the instance id
TRANSFER, PREFILL, BOUNDARY = (rank << 48 for rank in (1, 2, 3))
Handler = Any


class Cluster:
    """All instances, and what happens to them."""

    def __init__(
        self,
        prefill: Sequence[int],
        decode: Sequence[int],
        cost: CostModel,
        pool: Pool,
        state: ClusterState,
        brain: Brain,
    ) -> None:
        self.cost = cost
        self.pool = pool
        self.state = state
        self.brain = brain
        self.now = 0
        self._heap: list[tuple[int, int, int, Handler, Any]] = []
        self._prefills = 0
        self._on_flow_end, self._on_prefill_end = self._flow_ended, self._prefilled
        self.events = 0
        self.nodes = {i: PrefillNode(i) for i in prefill}
        self.network = Network([int(rate) for rate in cost.nic_bytes_per_s], self._post_flow, self._fetch_rate_changed)
        self.segments: list[int] = []
        self.stays: list[int] = []
        self.decoders = {
            i: Decoder(i, cost, self._post_boundary, self, state.decode, self.segments, self.stays) for i in decode
        }
        self.jobs: list[Job] = []
        self._asked: Job | None = None  # its KV has arrived and the admission is being asked: in no table
        state.rebuild = self._fill_tables
        self.policy_ns: list[int] = []
        self.fetches = self.fetched_tokens = 0
        self._kv = cost.kv_bytes_per_token * SCALE  # of one token, in the network's unit
        self._order: Callable[[int, Sequence[Job], int], int] | None = brain.order if brain.orders else None
        if brain.orders:
            state.line_ends = self._line_ends

    # events: (time, rank and tie, epoch, handler, subject); stale when the subject's epoch has moved on

    def _post_flow(self, time: int, flow: Flow, epoch: int) -> None:
        heappush(self._heap, (time, TRANSFER + flow.number, epoch, self._on_flow_end, flow))

    def _post_boundary(self, time: int, decoder: Decoder, epoch: int) -> None:
        heappush(self._heap, (time, BOUNDARY + decoder.instance, epoch, _boundary, decoder))

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
            self._reject(job, now, status.AT_ARRIVAL, reason)
            return
        state = self.state
        instance = job.prefill
        node = self.nodes[instance]
        self._claim(job, now)
        if self._order is not None:
            job.waits_for = next(
                (other for other in reversed(node.queue) if not set(other.new_blocks).isdisjoint(job.stored)), None
            )
        if job.fetch_source is not None:
            self._start_fetch(job, now)
        node.routed_ps += job.prefill_ps
        state.work_routed[instance] = job.mark = node.routed_ps
        if state.tracked:
            state.promised.put(job.row, job.decode, job.context, instance, job.mark)
        state.routed_tokens[job.decode] += job.context
        state.queue_requests[instance] += 1
        node.queue.append(job)
        node.queued_ps += job.prefill_ps
        if node.running is None and node.head is None:
            state.work_end[instance] = now + job.prefill_ps  # for the hooks that are asked before it starts
            self._next_prefill(node, now)
        else:
            state.work_end[instance] += job.prefill_ps
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

    def _claim(self, job: Job, now: int) -> None:
        """Take slots for its blocks on its node, and protect what it fetches at the source."""
        blocks, cached = job.request.blocks, job.cached_blocks
        instance = job.prefill
        try:
            job.new_blocks, job.stored = self.pool.claim(instance, blocks, cached, now)
            if job.fetch_source is not None:
                instance = job.fetch_source
                job.fetch_blocks = self.pool.claim_source(instance, blocks, cached, job.hit_blocks, now)
        except (PolicyError, InvariantError):
            raise
        except FAULTS as error:
            raise policy_fault(self.pool.nodes[instance].eviction, job, error) from error

    def _start_fetch(self, job: Job, now: int) -> None:
        source = job.fetch_source
        assert source is not None
        self.fetches += 1
        self.fetched_tokens += job.fetched_tokens
        job.fetch = self.network.start(
            now, source, job.prefill, job.fetched_tokens * self._kv, done=self._fetched, owner=job
        )

    def _fetched(self, now: int, job: Job) -> None:
        job.fetch = None
        assert job.fetch_source is not None
        self.pool.nodes[job.fetch_source].unpin(job.fetch_blocks)
        fetched = set(job.fetch_blocks)
        self.pool.nodes[job.prefill].set_ready([block for block in job.stored if block in fetched])
        node = self.nodes[job.prefill]
        if node.head is job:
            self._next_prefill(node, now)

    def _fetch_rate_changed(self, now: int, flow: Flow) -> None:
        """A node idles for this fetch: what its queue looks like changes with the rate."""
        node = self.nodes[flow.owner.prefill]
        self.state.work_end[node.instance] = node.work_end(now)

    # prefill

    def _next_prefill(self, node: PrefillNode, now: int) -> None:
        """Start the head of an idle node's queue, if its fetch is done and nothing refuses it."""
        while node.queue:
            job = node.choose(now, self._order)
            if job.fetch is not None:
                job.fetch.watched = True
                break
            reason = self.brain.reject_prefill(job, now)
            if reason is None:
                self._start_prefill(node, job, now)
                break
            self._drop_at_dequeue(node, job, now, reason)
        self.state.work_end[node.instance] = node.work_end(now)

    def _line_ends(self, now: int) -> dict[int, int]:
        """When the prefill of each routed request would end, row by row, in the order of routing."""
        ends = {}
        for node in self.nodes.values():
            end = node.work_end(now) - node.queued_ps
            if node.running is not None:
                ends[node.running.row] = end
            for job in node.queue:
                end += job.prefill_ps
                ends[job.row] = end
        return ends

    def _drop_at_dequeue(self, node: PrefillNode, job: Job, now: int, reason: str) -> None:
        """Its promised blocks go, except those a request behind it has pinned: that one will compute them."""
        node.take_head()
        store = self.pool.nodes[node.instance]
        store.unpin(job.stored)
        lost = [block for block in job.new_blocks if not store.is_ready(block)]
        store.drop([block for block in lost if block not in store.pinned])
        heirs = {block for block in lost if block in store.pinned}
        for other in node.queue:
            mine = [block for block in other.stored if block in heirs]
            if mine:
                other.new_blocks = [*other.new_blocks, *mine]
                heirs.difference_update(mine)
        node.recount = True
        self.state.work_end[node.instance] = node.work_end(now)
        self.state.queue_requests[node.instance] -= 1
        self._unroute(job)
        if self.state.tracked:
            self.state.promised.remove(job.row)
        self._reject(job, now, status.AT_PREFILL, reason)

    def _start_prefill(self, node: PrefillNode, job: Job, now: int) -> None:
        node.take_head()
        if node.recount:
            self._recount(node, job)
        node.running = job
        job.start_ps = now
        node.busy_end = end = now + job.prefill_ps
        self._prefills += 1
        heappush(self._heap, (end, PREFILL + self._prefills, node.epoch, self._on_prefill_end, node))
        size = job.input_tokens * self._kv
        job.stream = self.network.start(now, node.instance, job.decode, size, cap=size // job.prefill_ps)

    def _recount(self, node: PrefillNode, job: Job) -> None:
        """Blocks this request counted on were dropped with the request that promised them: it computes them itself."""
        is_ready = self.pool.nodes[node.instance].is_ready
        blocks = job.request.blocks
        fetched = set(job.fetch_blocks) if job.fetch_source is not None else set()
        hits = 0
        while hits < job.hit_blocks and (is_ready(blocks[hits]) or blocks[hits] in fetched):
            hits += 1
        if hits < job.hit_blocks:
            job.new_blocks = [block for block in job.stored if not is_ready(block)]
        self.brain.set_hits(job, hits)

    def _prefilled(self, node: PrefillNode, now: int) -> None:
        job = node.running
        assert job is not None
        node.running = None
        job.first_token_ps = now
        store = self.pool.nodes[node.instance]
        store.unpin(job.stored)
        store.set_ready(job.new_blocks)
        self.state.queue_requests[node.instance] -= 1
        stays = not self.brain.decides_late or self._keeps_decode(job, now)
        if self.state.tracked:
            self.state.promised.put(job.row, job.decode, job.context, -1, now)
        if job.output_tokens == 1:
            self._finish_at_first_token(job, now)
        elif stays:
            size = -(-job.input_tokens * self._kv // self.cost.layers)
            self.network.release_cap(now, job.stream, size, self._kv_arrived, job)
        else:
            self.network.stop(now, job.stream)
            size = job.input_tokens * self._kv
            job.stream = self.network.start(now, node.instance, job.decode, size, done=self._kv_arrived, owner=job)
        self.brain.tell("first_token", job, now)
        if job.output_tokens == 1:
            self.brain.tell("finished", job, now)
        if node.queue:
            self._next_prefill(node, now)
        else:
            self.state.work_end[node.instance] = now

    def _keeps_decode(self, job: Job, now: int) -> bool:
        """Whether the router, asked late, leaves the request where it was to decode; if not, its KV starts anew."""
        late = self.brain.late_decode(job, now)
        if late == job.decode:
            return True
        self._unroute(job)
        job.decode = late
        self.state.routed_tokens[late] += job.context
        return False

    def _finish_at_first_token(self, job: Job, now: int) -> None:
        self.network.stop(now, job.stream)
        if self.state.tracked:
            self.state.promised.remove(job.row)
        self._unroute(job)
        job.status = status.COMPLETED
        job.end_ps = now

    # network

    def _flow_ended(self, flow: Flow, now: int) -> None:
        self.network.stop(now, flow)
        done, owner = flow.done, flow.owner
        flow.owner = None  # its owner holds the flow: no cycles for the collector
        assert done is not None
        done(now, owner)

    def _kv_arrived(self, now: int, job: Job) -> None:
        state = self.state
        self._unroute(job)
        self._asked = job
        if state.tracked:
            state.promised.remove(job.row)
        reason = self.brain.reject_decode(job, now)
        self._asked = None
        job.kv_arrival_ps = now
        if reason is not None:
            self._reject(job, now, status.AT_DECODE, reason)
            return
        state.routed_tokens[job.decode] += job.context
        if state.tracked:
            state.waiting.put(job.row, job.decode, now, job.context)
        self.decoders[job.decode].arrive(job, now)

    # decode (what a Decoder tells)

    def joined(self, job: Job, now: int) -> None:
        """It entered a batch."""
        state = self.state
        if state.tracked:
            state.waiting.remove(job.row)
            state.joined.put(job.row, job.decode, now, job.context - job.joined_step)
        self._unroute(job)
        if job.first_join_ps < 0:
            job.first_join_ps = now
        self._tell_of_batch("joined", job, now)

    def left(self, job: Job, now: int) -> None:
        """It has all its tokens."""
        if self.state.tracked:
            self.state.joined.remove(job.row)
        job.status = status.COMPLETED
        job.end_ps = now
        self._tell_of_batch("finished", job, now)

    def swapped_out(self, job: Job, now: int) -> None:
        """It was preempted: its KV waits in DRAM."""
        job.preemptions += 1
        if self.state.tracked:
            self.state.joined.remove(job.row)
            self.state.waiting.put(job.row, job.decode, job.kv_arrival_ps, job.context)
        self.state.routed_tokens[job.decode] += job.context

    def stuck(self, job: Job, now: int) -> None:
        """Even an empty instance has no room for it."""
        if self.state.tracked:
            self.state.waiting.remove(job.row)
        self._unroute(job)
        job.status = status.FAILED
        job.end_ps = now
        self._tell_of_batch("failed", job, now)

    def _tell_of_batch(self, kind: str, job: Job, now: int) -> None:
        """Policies that listen see the batch as it is by now, before its next stretch opens."""
        if self.brain.listens:
            decoder = self.decoders[job.decode]
            self.state.decode.set(decoder.instance, now, 0, 0, decoder.batch, decoder.tokens, decoder.steps)
            self.brain.tell(kind, job, now)

    def _fill_tables(self) -> None:
        """A policy looks at single requests for the first time: enter those that are under way."""
        state = self.state
        for job in self.jobs:
            if job.status != status.UNFINISHED or job is self._asked:
                continue
            if job.first_token_ps < 0:
                state.promised.put(job.row, job.decode, job.context, job.prefill, job.mark)
            elif job in self.decoders[job.decode].members:
                state.joined.put(job.row, job.decode, job.joined_ps, job.context - job.joined_step)
            elif job.kv_arrival_ps < 0:
                state.promised.put(job.row, job.decode, job.context, -1, job.first_token_ps)
            else:
                state.waiting.put(job.row, job.decode, job.kv_arrival_ps, job.context)

    # accounts

    def _unroute(self, job: Job) -> None:
        self.state.routed_tokens[job.decode] -= job.context

    def _reject(self, job: Job, now: int, stage: int, reason: str) -> None:
        job.status = status.REJECTED
        job.end_ps = now
        job.reject_stage = stage
        job.reject_reason = self.brain.reason_id(reason)
        self.brain.tell("rejected", job, now)


def _boundary(decoder: Decoder, now: int) -> None:
    decoder.at_boundary(now)
