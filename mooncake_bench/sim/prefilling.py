"""What happens to a request before its first token: its blocks, its fetch, its turn in the queue, its prefill."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_bench.errors import InvariantError, PolicyError, faults
from mooncake_bench.sim import job as status
from mooncake_bench.sim.brain import policy_fault
from mooncake_bench.sim.network import SCALE
from mooncake_bench.sim.prefill import PrefillNode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mooncake_bench.sim.cluster import Cluster
    from mooncake_bench.sim.job import Job
    from mooncake_bench.sim.network import Flow
    from mooncake_bench.sim.replicas import Replicas
    from mooncake_bench.sim.tiers import Tiers


class Prefilling:
    """All prefill instances."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.cost, self.pool, self.state, self.brain = cluster.cost, cluster.pool, cluster.state, cluster.brain
        self.network = cluster.network
        self.nodes = {i: self.make_node(i) for i in cluster.state.instances_of(cluster.state.is_prefill)}
        self._started = 0
        self.fetches = self.fetched_tokens = 0
        self._kv = self.kv = cluster.cost.kv_bytes_per_token * SCALE  # of one token, in the network's unit
        self.tiers: Tiers | None = None  # where the nodes have SSDs
        self.replicas: Replicas | None = None  # where a policy may have blocks copied
        self._order: Callable[[int, Sequence[Job], int], int] | None = None
        if cluster.brain.orders:
            self._order = cluster.brain.order
            cluster.state.line_ends = self._line_ends

    def make_node(self, instance: int) -> PrefillNode:
        """An instance's queue, empty."""
        return PrefillNode(instance)

    def accept(self, job: Job, now: int) -> None:
        """A routed and admitted request enters its instance's queue."""
        state = self.state
        instance = job.prefill
        node = self.nodes[instance]
        self._claim(job, now)
        if self._order is not None:
            if job.attempts > 1:  # who waited for its last attempt does not wait for this one, which may wait for it
                for other in node.queue:
                    other.waits_for = None if other.waits_for is job else other.waits_for
            job.waits_for = next(
                (other for other in reversed(node.queue) if not set(other.new_blocks).isdisjoint(job.stored)), None
            )
        if job.fetch_source is not None:
            self._start_fetch(job, now)
        if job.load is not None:
            assert self.tiers is not None
            self.tiers.start(job.load, now)
        if self.replicas is not None:
            self.replicas.hold(job)
        node.routed_ps += job.turn_ps
        state.work_routed[instance] = node.routed_ps
        job.mark = node.routed_ps + job.prefill_ps - job.turn_ps
        if state.tracked:
            state.promised.put(job.row, job.decode, job.context, instance, job.mark)
        if job.decode >= 0:
            state.routed_tokens[job.decode] += job.context
        state.queue_requests[instance] += 1
        node.queue.append(job)
        node.queued_ps += job.turn_ps
        if node.running is None and node.head is None:
            state.work_end[instance] = now + job.turn_ps  # for the hooks that are asked before it starts
            self._next_prefill(node, now)
        else:
            state.work_end[instance] += job.turn_ps

    def _claim(self, job: Job, now: int) -> None:
        """Take slots for its blocks on its node, and protect what it fetches at the source."""
        blocks, cached = job.request.blocks, job.cached_blocks
        instance, fetched = job.prefill, job.hit_blocks
        if job.load is not None:
            assert self.tiers is not None
            self.tiers.pin(job.load)
            fetched = job.load.start
        try:
            job.new_blocks, job.stored = self.pool.claim(instance, blocks, cached, now)
            if job.fetch_source is not None:
                instance = job.fetch_source
                job.fetch_blocks = self.pool.claim_source(instance, blocks, cached, fetched, now)
        except (PolicyError, InvariantError):
            raise
        except faults() as error:
            raise policy_fault(self.pool.nodes[instance].eviction, job, error) from error

    def _start_fetch(self, job: Job, now: int) -> None:
        source = job.fetch_source
        assert source is not None
        self.fetches += 1
        self.fetched_tokens += job.fetched_tokens
        size = job.fetched_tokens * self._kv
        job.fetch_start_ps = now
        job.fetch_ideal_ps = self.network.alone_ps(source, job.prefill, size)
        job.fetch = self.network.start(now, source, job.prefill, size, done=self._fetched, owner=job)

    def _fetched(self, now: int, job: Job) -> None:
        job.fetch = None
        job.fetch_end_ps = now
        assert job.fetch_source is not None
        self.pool.nodes[job.fetch_source].unpin(job.fetch_blocks)
        fetched = set(job.fetch_blocks)
        self.pool.nodes[job.prefill].set_ready([block for block in job.stored if block in fetched])
        node = self.nodes[job.prefill]
        if node.head is job:
            self._next_prefill(node, now)

    def arrived(self, job: Job, flow: Flow, now: int) -> None:
        """Something other than its fetch that a request waits for has ended."""
        job.awaits = tuple(other for other in job.awaits if other is not flow)
        node = self.nodes[job.prefill]
        if node.head is job:
            self._next_prefill(node, now)

    def stop_fetch(self, job: Job, now: int) -> None:
        """Its fetch, if it has one under way, brings nothing, and nothing else is waited for."""
        if job.load is not None:
            assert self.tiers is not None
            self.tiers.stop(job, now)
        if job.awaits:
            assert self.replicas is not None
            self.replicas.let_go(job)
        flow = job.fetch
        if flow is None:
            return
        assert job.fetch_source is not None
        job.fetch = flow.owner = None
        self.network.stop(now, flow)
        self.pool.nodes[job.fetch_source].unpin(job.fetch_blocks)

    def forgo_fetch(self, job: Job, now: int) -> None:
        """A queued request goes without what it was fetching, and computes what its own node does not have."""
        self.stop_fetch(job, now)
        before, behind = job.turn_ps, job.prefill_ps - job.turn_ps
        job.fetch_source, job.fetch_blocks, job.fetched_tokens = None, (), 0
        job.route = job.route._replace(fetch_from=None)
        self.brain.set_hits(job, job.cached_blocks)
        if self.replicas is not None:
            self.replicas.hold(job)
        job.mark += job.prefill_ps - job.turn_ps - behind
        self._lengthen(self.nodes[job.prefill], job, job.turn_ps - before, now)

    def _lengthen(self, node: PrefillNode, job: Job, more_ps: int, now: int) -> None:
        """A queued request takes longer than was thought when it, and those behind it, were routed."""
        node.queued_ps += more_ps
        node.routed_ps += more_ps
        self.state.work_routed[node.instance] = node.routed_ps
        self.state.work_end[node.instance] = node.work_end(now)
        queue = list(node.queue)
        for other in queue[queue.index(job) :]:
            other.mark += more_ps
            if self.state.tracked:
                self.state.promised.put(other.row, other.decode, other.context, node.instance, other.mark)

    def fetch_rate_changed(self, now: int, flow: Flow) -> None:
        """A node idles for this fetch: what its queue looks like changes with the rate."""
        node = self.nodes[flow.owner.prefill]
        self.state.work_end[node.instance] = node.work_end(now)

    # prefill

    def _next_prefill(self, node: PrefillNode, now: int) -> None:
        """Start the head of an idle node's queue, if its fetch is done and nothing refuses it."""
        while node.queue:
            job = node.choose(now, self._order)
            if job.fetch is not None or job.awaits:
                for flow in (job.fetch, *job.awaits):
                    if flow is not None:
                        flow.watched = True
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
            for job in node.started:
                ends[job.row] = max(end, job.start_ps + job.prefill_ps)
            for job in node.queue:
                end += job.turn_ps
                ends[job.row] = end + job.prefill_ps - job.turn_ps
        return ends

    def _drop_at_dequeue(self, node: PrefillNode, job: Job, now: int, reason: str) -> None:
        """Its promised blocks go, except those a request behind it has pinned: that one will compute them."""
        node.take_head()
        self._give_back(node, job)
        self.state.work_end[node.instance] = node.work_end(now)
        self.state.queue_requests[node.instance] -= 1
        self.cluster.unroute(job)
        if self.state.tracked:
            self.state.promised.remove(job.row)
        self.cluster.reject(job, now, status.AT_PREFILL, reason)

    def _give_back(self, node: PrefillNode, job: Job) -> None:
        """A request that will not be prefilled here unpins its blocks, and those that only it promised go."""
        self.pool.nodes[node.instance].unpin(job.stored)
        self._lose(node, job.new_blocks)

    def take_back(self, instance: int, blocks: Sequence[int]) -> None:
        """These blocks, pinned and promised here by nobody's prefill, will not come."""
        self.pool.nodes[instance].unpin(blocks)
        self._lose(self.nodes[instance], blocks)

    def _lose(self, node: PrefillNode, promised: Sequence[int]) -> None:
        store = self.pool.nodes[node.instance]
        lost = [block for block in promised if not store.is_ready(block)]
        store.drop([block for block in lost if block not in store.pinned])
        heirs = {block for block in lost if block in store.pinned}
        for other in (*node.started, *node.queue):
            mine = [block for block in other.stored if block in heirs]
            if mine:
                other.new_blocks = list(dict.fromkeys((*other.new_blocks, *mine)))
                heirs.difference_update(mine)
        node.recount = True

    def _start_prefill(self, node: PrefillNode, job: Job, now: int) -> None:
        node.take_head()
        if node.recount:
            self._recount(node, job)
        job.start_ps = now
        end = self._begin(node, job, now)
        if job.decode >= 0:
            size = job.input_tokens * self._kv
            job.stream = self.network.start(now, node.instance, job.decode, size, cap=size // (end - now))
            job.stream_start_ps = now

    def _begin(self, node: PrefillNode, job: Job, now: int) -> int:
        """It runs; returns when its first token will be there (ps)."""
        node.running = job
        node.busy_end = end = now + job.prefill_ps
        self._started += 1
        self.cluster.post_prefill(end, self._started, node)
        return end

    def _recount(self, node: PrefillNode, job: Job) -> None:
        """Blocks this request counted on were dropped with the request that promised them: it computes them itself."""
        is_ready = self.pool.nodes[node.instance].is_ready
        blocks = job.request.blocks
        fetched = set(job.fetch_blocks) if job.fetch_source is not None else set()
        if job.load is not None:
            fetched.update(job.load.blocks)
        for other in node.started:  # it is ahead at every stage of a pipeline
            fetched.update(other.new_blocks)
        hits = 0
        while hits < job.hit_blocks and (is_ready(blocks[hits]) or blocks[hits] in fetched):
            hits += 1
        if hits < job.hit_blocks:
            job.new_blocks = [block for block in job.stored if not is_ready(block)]
        self.brain.set_hits(job, hits)
        if job.load is not None:
            assert self.tiers is not None
            self.tiers.recounted(job)

    def take_out_all(self, instance: int, now: int) -> list[Job]:
        """All that is queued or running on an instance, which is left empty; they hold nothing elsewhere any more."""
        node = self.nodes[instance]
        jobs = [*node.started, *node.queue]
        for job in jobs:
            self.stop_fetch(job, now)
            if job.start_ps >= 0 and job.decode >= 0:
                self.network.stop(now, job.stream)
            self.cluster.unroute(job)
            if self.state.tracked:
                self.state.promised.remove(job.row)
        node.clear()
        self.state.queue_requests[instance] = 0
        self.state.work_end[instance] = now
        return jobs

    def withdraw(self, job: Job, now: int) -> None:
        """Take out one request that has not arrived at its decode instance; :meth:`go_on` then starts the next."""
        state, node = self.state, self.nodes[job.prefill]
        if job.first_token_ps < 0:
            self.stop_fetch(job, now)
            if job.start_ps >= 0:
                self._abort(node, job, now)
            else:
                self._lengthen(node, job, -job.turn_ps, now)
                node.remove(job)
            self._give_back(node, job)
            state.queue_requests[node.instance] -= 1
            state.work_end[node.instance] = node.work_end(now)
        if job.start_ps >= 0 and job.decode >= 0:
            self.network.stop(now, job.stream)
            job.stream.owner = None
        self.cluster.unroute(job)
        if state.tracked:
            state.promised.remove(job.row)

    def _abort(self, node: PrefillNode, job: Job, now: int) -> None:
        """Give up what is being prefilled."""
        node.abort(job, now)

    def go_on(self, instance: int, now: int) -> None:
        """Start the next prefill of an idle instance, if there is one that can start."""
        node = self.nodes[instance]
        if node.running is None and node.queue:
            self._next_prefill(node, now)

    def redirect(self, job: Job, decode: int, now: int) -> None:
        """A request that has not arrived at its decode instance decodes on another one; its KV is sent anew."""
        state = self.state
        self.cluster.unroute(job)
        self.brain.view.moved(job, decode, now)
        job.decode = decode
        job.route = job.route._replace(decode=decode)
        state.routed_tokens[decode] += job.context
        if job.first_token_ps >= 0:
            self.network.stop(now, job.stream)
            job.stream = self.network.start(
                now, job.prefill, decode, job.input_tokens * self._kv, done=self.cluster.decoding.kv_arrived, owner=job
            )
            job.stream_start_ps = now
        elif job.start_ps >= 0:
            size = job.input_tokens * self._kv
            self.network.stop(now, job.stream)
            job.stream = self.network.start(now, job.prefill, decode, size, cap=size // job.prefill_ps)
            job.stream_start_ps = now
        if state.tracked and job.first_token_ps >= 0:
            state.promised.put(job.row, decode, job.context, -1, job.first_token_ps)
        elif state.tracked:
            state.promised.put(job.row, decode, job.context, job.prefill, job.mark)

    def ended(self, node: PrefillNode, now: int) -> None:
        """The running prefill is over."""
        job = node.running
        assert job is not None
        node.running = None
        self._first_token(node, job, now)
        if node.queue:
            self._next_prefill(node, now)
        else:
            self.state.work_end[node.instance] = now

    def _first_token(self, node: PrefillNode, job: Job, now: int) -> None:
        """The prefill has made the first token: its blocks are ready, and its KVCache goes where it decodes."""
        job.first_token_ps = now
        store = self.pool.nodes[node.instance]
        store.unpin(job.stored)
        store.set_ready(job.new_blocks)
        self.state.queue_requests[node.instance] -= 1
        stays = job.decode < 0 or not self.brain.decides_late or self._keeps_decode(job, now)
        if self.state.tracked:
            self.state.promised.put(job.row, job.decode, job.context, -1, now)
        if job.output_tokens == 1:
            self._finish_at_first_token(job, now)
        elif stays:
            size = -(-job.input_tokens * self._kv // self.cost.layers)
            self.network.release_cap(now, job.stream, size, self.cluster.decoding.kv_arrived, job)
        else:
            self.network.stop(now, job.stream)
            size = job.input_tokens * self._kv
            job.stream = self.network.start(
                now, node.instance, job.decode, size, done=self.cluster.decoding.kv_arrived, owner=job
            )
            job.stream_start_ps = now
        self.brain.tell("first_token", job, now)
        if job.output_tokens == 1:
            self.brain.tell("finished", job, now)

    def _keeps_decode(self, job: Job, now: int) -> bool:
        """Whether the router, asked late, leaves the request where it was to decode; if not, its KV starts anew."""
        late = self.brain.late_decode(job, now)
        if late == job.decode:
            return True
        self.cluster.unroute(job)
        job.decode = late
        self.state.routed_tokens[late] += job.context
        return False

    def _finish_at_first_token(self, job: Job, now: int) -> None:
        if job.decode >= 0:
            self.network.stop(now, job.stream)
        if self.state.tracked:
            self.state.promised.remove(job.row)
        self.cluster.unroute(job)
        self.cluster.end(job, now, status.COMPLETED)
