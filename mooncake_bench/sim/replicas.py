"""Copies of hot blocks that a policy asks for at a tick (:class:`mooncake_bench.api.Replicate`).

A copy is a transfer over the network like any other. Its blocks are pinned on both sides until it ends; at the target
they take slots and are promised at once, as those of a fetch are, and a request there that counts on them waits for it.
"""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING

from mooncake_bench.api import Replicate
from mooncake_bench.errors import InvariantError, PolicyError, faults

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.sim.cluster import Cluster
    from mooncake_bench.sim.job import Job
    from mooncake_bench.sim.network import Flow


class Replica:
    """One copy under way."""

    __slots__ = ("blocks", "flow", "prefill", "source", "waiting")

    flow: Flow

    def __init__(self, source: int, target: int, blocks: Sequence[int]) -> None:
        self.source = source
        self.prefill = target  # the instance
        self.blocks = blocks
        self.waiting: dict[Job, None] = {}  # requests that count on it


class Replicas:
    """All copies under way."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._size = cluster.pool.index.block_tokens * cluster.prefilling.kv  # of a block; a partial one counts whole
        self._coming: dict[int, dict[int, Replica]] = {}  # by target and block
        self.count = self.tokens = 0
        cluster.prefilling.replicas = self
        cluster.actions[Replicate] = self.wanted

    # a policy's wish

    def wanted(self, action: Replicate, now: int) -> str | None:
        """Carry it out; or say why not. One whose target has all the blocks is left alone."""
        source, target, blocks = action
        reason = self._why_not(source, target, blocks)
        if reason is not None:
            return reason
        source, target = int(source), int(target)
        holder, ready = self._cluster.pool.nodes[source], list(blocks)
        absent = [block for block in ready if not holder.is_ready(block)]
        if absent and self._cluster.brain.view.exact:
            return f"instance {source} does not have block {absent[0]!r} ready"
        if absent:  # a late view cannot know: what is no longer there is not copied, nor what would be behind it
            ready = ready[: ready.index(absent[0])]
        try:
            self._start(source, target, ready, now)
        except (PolicyError, InvariantError):
            raise
        except faults() as error:
            return f"the eviction policy raised {type(error).__name__}: {error}"
        return None

    def _why_not(self, source: object, target: object, blocks: object) -> str | None:
        prefills = self._cluster.brain.prefill_instances
        for instance in (source, target):
            if not isinstance(instance, Integral) or int(instance) not in prefills:
                return f"instance {instance!r} is no prefill instance that takes requests"
        if source == target:
            return "source and target are the same instance"
        if self._cluster.brain.view.local:
            return "no node copies from another here (pool.scope is local)"
        try:
            wanted = list(blocks)  # type: ignore[call-overload]
        except TypeError:
            return f"its blocks are {blocks!r}; give a list of block ids"
        if len(set(wanted)) != len(wanted):
            return "it names a block twice"
        return None

    def _start(self, source: int, target: int, blocks: Sequence[int], now: int) -> None:
        cluster = self._cluster
        copied = cluster.pool.claim_copy(target, blocks, now)
        if not copied:
            return
        replica = Replica(source, target, copied)
        cluster.pool.nodes[source].pin(copied)
        self._coming.setdefault(target, {}).update(dict.fromkeys(copied, replica))
        self.count += 1
        self.tokens += len(copied) * cluster.pool.index.block_tokens
        size = len(copied) * self._size
        replica.flow = cluster.network.start(now, source, target, size, done=self._copied, owner=replica)

    # what becomes of it

    def hold(self, job: Job) -> None:
        """A request that counts on blocks which are still coming waits for them."""
        coming = self._coming.get(job.prefill)
        if not coming:
            return
        hits = job.request.blocks[: job.hit_blocks]
        for replica in dict.fromkeys(coming[block] for block in hits if block in coming):
            replica.waiting[job] = None
            job.awaits = (*job.awaits, replica.flow)

    def let_go(self, job: Job) -> None:
        """A request no longer waits."""
        for flow in job.awaits:
            if isinstance(flow.owner, Replica):
                del flow.owner.waiting[job]
                job.awaits = tuple(other for other in job.awaits if other is not flow)

    def _copied(self, now: int, replica: Replica) -> None:
        nodes = self._cluster.pool.nodes
        self._forget(replica)
        nodes[replica.source].unpin(replica.blocks)
        nodes[replica.prefill].set_ready(replica.blocks)
        nodes[replica.prefill].unpin(replica.blocks)
        for job in tuple(replica.waiting):
            self._cluster.prefilling.arrived(job, replica.flow, now)

    def cut_off(self, instance: int, now: int) -> None:
        """Copies from and to a dead instance, which is empty by now, come to nothing."""
        cluster = self._cluster
        for replica in {id(r): r for coming in self._coming.values() for r in coming.values()}.values():
            if instance not in (replica.source, replica.prefill):
                continue
            self._forget(replica)
            replica.flow.owner = None
            cluster.network.stop(now, replica.flow)
            if instance == replica.prefill:
                cluster.pool.nodes[replica.source].unpin(replica.blocks)
                continue
            cluster.prefilling.take_back(replica.prefill, replica.blocks)
            for job in tuple(replica.waiting):
                cluster.prefilling.arrived(job, replica.flow, now)

    def counters(self) -> dict[str, int | float]:
        """What happened."""
        each = self._cluster.cost.kv_bytes_per_token
        return {"replications": self.count, "replicated_bytes": self.tokens * each}

    def _forget(self, replica: Replica) -> None:
        coming = self._coming[replica.prefill]
        for block in replica.blocks:
            del coming[block]
