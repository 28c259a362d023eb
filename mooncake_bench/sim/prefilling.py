"""What happens to a request before its first token: its blocks, its fetch, its turn in the queue, its prefill."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_bench.errors import InvariantError, PolicyError
from mooncake_bench.sim import job as status
from mooncake_bench.sim.brain import FAULTS, policy_fault
from mooncake_bench.sim.network import SCALE
from mooncake_bench.sim.prefill import PrefillNode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mooncake_bench.sim.cluster import Cluster
    from mooncake_bench.sim.job import Job
    from mooncake_bench.sim.network import Flow


class Prefilling:
    """All prefill instances."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.cost, self.pool, self.state, self.brain = cluster.cost, cluster.pool, cluster.state, cluster.brain
        self.network = cluster.network
        self.nodes = {i: PrefillNode(i) for i in cluster.state.instances_of(cluster.state.is_prefill)}
        self._started = 0
        self.fetches = self.fetched_tokens = 0
        self._kv = cluster.cost.kv_bytes_per_token * SCALE  # of one token, in the network's unit
        self._order: Callable[[int, Sequence[Job], int], int] | None = None
        if cluster.brain.orders:
            self._order = cluster.brain.order
            cluster.state.line_ends = self._line_ends

    def accept(self, job: Job, now: int) -> None:
        """A routed and admitted request enters its instance's queue."""
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
        if job.decode >= 0:
            state.routed_tokens[job.decode] += job.context
        state.queue_requests[instance] += 1
        node.queue.append(job)
        node.queued_ps += job.prefill_ps
        if node.running is None and node.head is None:
            state.work_end[instance] = now + job.prefill_ps  # for the hooks that are asked before it starts
            self._next_prefill(node, now)
        else:
            state.work_end[instance] += job.prefill_ps

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

    def fetch_rate_changed(self, now: int, flow: Flow) -> None:
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
        self.cluster.unroute(job)
        if self.state.tracked:
            self.state.promised.remove(job.row)
        self.cluster.reject(job, now, status.AT_PREFILL, reason)

    def _start_prefill(self, node: PrefillNode, job: Job, now: int) -> None:
        node.take_head()
        if node.recount:
            self._recount(node, job)
        node.running = job
        job.start_ps = now
        node.busy_end = end = now + job.prefill_ps
        self._started += 1
        self.cluster.post_prefill(end, self._started, node)
        if job.decode >= 0:
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

    def ended(self, node: PrefillNode, now: int) -> None:
        """The running prefill is over: the first token is there."""
        job = node.running
        assert job is not None
        node.running = None
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
