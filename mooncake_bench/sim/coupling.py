"""What happens to a request on coupled instances before its first token, and what they tell the cluster.

It does what :class:`mooncake_bench.sim.prefilling.Prefilling` does in a cluster of prefill and decode instances; after
the first token a request is in the hands of :class:`mooncake_bench.sim.decoding.Decoding` there as here. Nothing is
sent over the network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mooncake_bench.errors import InvariantError, PolicyError, faults
from mooncake_bench.sim import job as status
from mooncake_bench.sim.brain import policy_fault
from mooncake_bench.sim.coupled import CoupledNode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mooncake_bench.sim.cluster import Call, Cluster
    from mooncake_bench.sim.decode import Decoder
    from mooncake_bench.sim.job import Job
    from mooncake_bench.sim.setup import Setup


class Rules(NamedTuple):
    """How coupled instances schedule."""

    chunked: bool
    step_tokens: int
    sequences: int
    prefix_cache: bool


def rules_of(setup: Setup) -> Rules | None:
    """How a setup's coupled instances schedule; None where it has none."""
    if not setup.coupled:
        return None
    return Rules(setup.schedule == "chunked", *setup.step_limits, prefix_cache=setup.prefix_cache == "on")


class Coupling:
    """All coupled instances."""

    def __init__(self, cluster: Cluster, rules: Rules, boundary_rank: int) -> None:
        self.cluster = cluster
        self.cost, self.pool, self.state, self.brain = cluster.cost, cluster.pool, cluster.state, cluster.brain
        self._boundary_rank = boundary_rank
        self._recomputed_tokens = 0
        self.nodes = {i: CoupledNode(i, self, cluster, self.pool.nodes[i], rules) for i in self.pool.nodes}
        decoders: dict[int, Decoder] = cluster.decoding.decoders
        decoders.update(self.nodes)
        cluster.state.line_ends = self._line_ends

    def call_at(self, time: int, call: Callable[[int], None]) -> Call:
        """Let it happen then, among decode boundaries."""
        return self.cluster.call_at(time, self._boundary_rank, call)

    def accept(self, job: Job, now: int) -> None:
        """A routed and admitted request enters its instance's queue."""
        state, instance = self.state, job.prefill
        job.new_blocks = job.stored = ()
        job.wait_ps = job.prefill_ps
        job.left = job.used_ps = 0
        state.work_routed[instance] += job.prefill_ps
        job.mark = int(state.work_routed[instance])
        if state.tracked:
            state.promised.put(job.row, job.decode, job.context, instance, job.mark)
        state.routed_tokens[instance] += job.context
        state.queue_requests[instance] += 1
        self.nodes[instance].enqueue(job, now)

    def counters(self) -> dict[str, int]:
        """``recomputed_tokens``: of preempted requests, prefilled again to go on."""
        return {"recomputed_tokens": self._recomputed_tokens}

    def check_at_rest(self) -> None:
        """Raises InvariantError when an instance still has requests, or memory that is in use."""
        for instance, node in self.nodes.items():
            held = (*node.admitted, *node.queue, *node.preempted, *node.waiting, *node.members, *node.leaving)
            if held or node.private or node.queued_ps or node.tokens or self.state.queue_requests[instance]:
                raise InvariantError(
                    f"coupled instance {instance} ends with {len(held)} requests, {node.private} tokens of memory and "
                    f"{node.queued_ps} ps of prefill"
                )

    def capacities(self) -> dict[int, int]:
        """Blocks that each idle instance's cache holds, by instance id."""
        return {i: node.cache_blocks(0) for i, node in self.nodes.items()}

    def _line_ends(self, now: int) -> dict[int, int]:
        """When the prefill of each routed request would end, row by row."""
        return {job.row: end for node in self.nodes.values() for job, end in node.line(now)}

    # what a node asks

    def choose(self, node: CoupledNode, now: int) -> Job:
        """The policy's choice of the next prompt; first come, first served without one."""
        if not self.brain.orders:
            return node.queue[0]
        return node.queue[self.brain.order(node.instance, node.queue, now)]

    def to_compute(self, job: Job, hits: int) -> int:
        """Tokens of its context that so many leading blocks leave to compute: all but the one to come."""
        return max(1, job.context - 1 - min(hits * self.pool.index.block_tokens, job.input_tokens))

    def starts(self, node: CoupledNode, job: Job, hits: int, now: int) -> bool:
        """Its turn has come: it is admitted, unless the admission policy turns it away."""
        if job.start_ps < 0:
            reason = self.brain.reject_prefill(job, now)
            if reason is not None:
                self._leave_queue(node, job)
                self.cluster.reject(job, now, status.AT_PREFILL, reason)
                return False
            job.head_ps = job.start_ps = now
        node.take(job)
        job.left = self.to_compute(job, hits)
        if job.first_token_ps < 0:
            self.brain.set_hits(job, hits)
            if self.cluster.routings is not None:
                self.cluster.routings.append(job.row)
        else:
            self._recomputed_tokens += job.left
        node.private += node.own_tokens(job)
        node.admitted[job] = None
        if node.block_tokens:
            self._claim(node, job, hits, now)
        return True

    def _claim(self, node: CoupledNode, job: Job, hits: int, now: int) -> None:
        """Pin its stored blocks, and take slots for the others."""
        blocks = job.request.blocks
        node.store.capacity = (node.vram - node.private) // node.block_tokens
        try:
            job.new_blocks, job.stored = self.pool.claim(node.instance, blocks, hits, now)
        except (PolicyError, InvariantError):
            raise
        except faults() as error:
            raise policy_fault(node.store.eviction, job, error) from error
        if len(job.stored) < len(blocks):
            raise InvariantError(f"coupled instance {node.instance} has no room for a prompt that fits")

    def shrink(self, node: CoupledNode, capacity: int) -> None:
        """The cache of a node gives way."""
        try:
            node.store.shrink(capacity)
        except (PolicyError, InvariantError):
            raise
        except faults() as error:
            raise policy_fault(node.store.eviction, next(iter(node.admitted)), error) from error

    # what a node tells

    def prefilled(self, node: CoupledNode, job: Job, now: int) -> None:
        """The last of its prompt is computed: the first token is there, unless it had that before."""
        if node.block_tokens:
            node.store.set_ready(job.new_blocks)
        self.state.queue_requests[node.instance] -= 1
        job.prefill_ps = job.used_ps
        if job.first_token_ps >= 0:
            node.waiting.append(job)
            return
        job.first_token_ps = now
        if self.state.tracked:
            self.state.promised.put(job.row, job.decode, job.context, -1, now)
        if job.output_tokens == 1:
            self._finish_at_first_token(node, job, now)
            return
        self.brain.tell("first_token", job, now)
        own, stored = node.own_tokens(job), job.stored
        self.cluster.decoding.kv_arrived(now, job)  # it never has far to go
        if not node.waiting or node.waiting[-1] is not job:  # turned away, and perhaps forgotten
            node.free(job, own, stored)

    def _finish_at_first_token(self, node: CoupledNode, job: Job, now: int) -> None:
        node.release(job)
        if self.state.tracked:
            self.state.promised.remove(job.row)
        self.cluster.unroute(job)
        self.cluster.end(job, now, status.COMPLETED)
        self.brain.tell("first_token", job, now)
        self.brain.tell("finished", job, now)

    def preempt(self, node: CoupledNode, job: Job, now: int) -> None:
        """It gives way, and queues first again; what it had not computed yet is gone from the cache."""
        joined = job in node.members
        if joined:
            node.leave_batch(job)
        node.release(job)
        if joined:
            node.listener.swapped_out(job, now)
            self.state.queue_requests[node.instance] += 1
        else:
            job.preemptions += 1
            if node.block_tokens:
                self._keep_computed(node, job)
        job.new_blocks = job.stored = ()
        hits = node.store.ready_prefix(job.request.blocks) if node.block_tokens else 0
        computed = self.to_compute(job, hits)
        job.left = 0 if joined else computed
        job.wait_ps = self.cost.prefill_ps(node.instance, computed, job.context - 1 - computed)
        node.queued_ps += job.wait_ps
        node.preempted.appendleft(job)

    def cancel(self, job: Job, now: int, reason: str) -> None:
        """Call a request off: at once out of a queue, else with the step that is under way."""
        node = self.nodes[job.prefill]
        if job in node.admitted:
            self.cluster.decoding.leaving[job] = reason
            node.leaving.append(job)
        else:
            self._leave_queue(node, job)
            self.cluster.give_up(job, now, reason)
        node.cut(now)  # who was behind it may fit
        node.show_queue(now)

    def dismissed(self, node: CoupledNode, job: Job, now: int) -> None:
        """It was called off before it joined the batch; what steps computed of its prompt stays."""
        if job in node.waiting:
            node.waiting.remove(job)
        else:
            self.state.queue_requests[node.instance] -= 1
        node.release(job)
        if node.block_tokens:
            self._keep_computed(node, job)
        self.cluster.unroute(job)
        self._leave_tables(job)
        self.cluster.give_up(job, now, self.cluster.decoding.leaving.pop(job))

    def _keep_computed(self, node: CoupledNode, job: Job) -> None:
        """Of a prefill that does not go on, blocks are ready if it was done anyway, and gone otherwise."""
        if job.left:
            node.store.drop([block for block in job.new_blocks if not node.store.is_ready(block)])
        else:
            node.store.set_ready(job.new_blocks)

    def stopped(self, node: CoupledNode, jobs: Sequence[Job], now: int) -> None:
        """An instance died, on which these had no first token or had theirs computed anew."""
        for job in jobs:
            self.cluster.unroute(job)
            self._leave_tables(job)
        for job in node.preempted:
            if job.first_token_ps < 0:  # others that were preempted are told of as waiting
                self._leave_tables(job)
        self.state.queue_requests[node.instance] = 0
        self.state.work_end[node.instance] = now

    def failed(self, node: CoupledNode, job: Job, now: int) -> None:
        """Even an empty instance has no room for it."""
        self._leave_queue(node, job)
        self.cluster.end(job, now, status.FAILED)
        self.brain.tell("failed", job, now)

    def _leave_queue(self, node: CoupledNode, job: Job) -> None:
        node.take(job)
        self.state.queue_requests[node.instance] -= 1
        self.cluster.unroute(job)
        self._leave_tables(job)

    def _leave_tables(self, job: Job) -> None:
        if self.state.tracked:
            (self.state.promised if job.first_token_ps < 0 else self.state.waiting).remove(job.row)
