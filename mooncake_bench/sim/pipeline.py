"""Prefill instances that are pipelines of nodes: several requests are under way on one, each behind the one before.

A request enters the first stage when the one before it has left that stage; how long it takes from there on depends on
what is still in the later stages, and on nothing that comes after it. So its first token is known when it enters, and
:mod:`mooncake_bench.sim.prefilling` stays as it is but for this: a node's ``running`` request is the one in the first
stage, whose end lets the next one in.

What has entered a stage goes through: a request that is taken out while its chunks are under way gives its later chunks
up, and the first stage at the end of the chunk that runs there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_bench.hardware.pipeline import PipelinedCost, pass_through
from mooncake_bench.sim.prefill import PrefillNode
from mooncake_bench.sim.prefilling import Prefilling

if TYPE_CHECKING:
    from mooncake_bench.hardware.pipeline import Chunks
    from mooncake_bench.sim.cluster import Cluster
    from mooncake_bench.sim.job import Job


def is_pipelined(cost: object) -> bool:
    """Whether prefill instances are groups of several nodes."""
    return isinstance(cost, PipelinedCost) and cost.group > 1


class Passage:
    """A request on its way through a group's stages; its first token does not come when its epoch has moved on."""

    __slots__ = ("epoch", "job", "node")

    def __init__(self, node: PipelineNode, job: Job) -> None:
        self.node = node
        self.job = job
        self.epoch = 0


class PipelineNode(PrefillNode):
    """A group's queue and stages; its epoch is that of the end of the first stage's turn."""

    __slots__ = ("begin_ps", "chunks", "flight", "free_ps", "idle_ps")

    def __init__(self, instance: int, stages: int) -> None:
        super().__init__(instance)
        self.idle_ps = [0] * stages  # when each stage is free of what came before the one in the first stage
        self.free_ps = [0] * stages  # and with that
        self.chunks: Chunks = []  # of the one in the first stage
        self.begin_ps = 0  # of its first chunk there
        self.flight: dict[Job, Passage] = {}  # all that is under way, in order

    @property
    def started(self) -> tuple[Job, ...]:
        return tuple(self.flight)

    def enter(self, job: Job, chunks: Chunks, begin_ps: int, alone_ps: list[int]) -> int:
        """A request takes the first stage; returns when its first token is there (ps).

        ``alone_ps``: when each stage would be done with it, if nothing else were in any.
        """
        self.running, self.chunks, self.begin_ps, self.idle_ps = job, chunks, begin_ps, self.free_ps
        empty = max(self.free_ps) <= begin_ps
        self.free_ps = alone_ps if empty else pass_through(chunks, self.free_ps, begin_ps)
        self.busy_end = self.free_ps[0]
        return self.free_ps[-1]

    def abort(self, job: Job, now: int) -> None:
        self.flight.pop(job).epoch += 1
        if job is not self.running:
            return
        begun, at = 0, self.begin_ps
        while begun < len(self.chunks) and at < now:
            work, hop = self.chunks[begun]
            at += work // len(self.free_ps) + hop
            begun += 1
        self.chunks = self.chunks[:begun]
        self.free_ps = pass_through(self.chunks, self.idle_ps, self.begin_ps)
        self.busy_end = at if begun else now
        self.epoch += 1

    def clear(self) -> None:
        super().clear()
        for passage in self.flight.values():
            passage.epoch += 1
        self.flight.clear()
        self.free_ps = [0] * len(self.free_ps)


class PipelinedPrefilling(Prefilling):
    """All prefill groups."""

    def __init__(self, cluster: Cluster, rank: int) -> None:
        """``rank``: of a prefill's end among the cluster's events."""
        assert isinstance(cluster.cost, PipelinedCost)
        self._groups = cluster.cost
        self._rank = rank
        super().__init__(cluster)

    def make_node(self, instance: int) -> PrefillNode:
        return PipelineNode(instance, self._groups.group)

    def _begin(self, node: PrefillNode, job: Job, now: int) -> int:
        assert isinstance(node, PipelineNode)
        groups, instance = self._groups, node.instance
        chunks, alone_ps = groups.priced(instance, job.computed, job.input_tokens - job.computed)
        alone = [now + done for done in alone_ps]
        end = node.enter(job, chunks, now + groups.prefill_overhead_ps(instance), alone)
        self.cluster.post_call(node.busy_end, self._rank, self._left_first_stage, node)
        node.flight[job] = passage = Passage(node, job)
        self.cluster.post_call(end, self._rank, self._through, passage)
        if self.state.tracked:
            self.state.promised.put(job.row, job.decode, job.context, -1, end)  # by now, that is known
        return end

    def _left_first_stage(self, node: PipelineNode, now: int) -> None:
        """The next one may enter."""
        node.running = None
        if node.queue:
            self._next_prefill(node, now)
        else:
            self.state.work_end[node.instance] = now

    def _through(self, passage: Passage, now: int) -> None:
        """It has left the last stage: the first token is there."""
        node, job = passage.node, passage.job
        del node.flight[job]
        self._first_token(node, job, now)

    def _abort(self, node: PrefillNode, job: Job, now: int) -> None:
        assert isinstance(node, PipelineNode)
        first = job is node.running
        node.abort(job, now)
        if first and node.busy_end > now:
            self.cluster.post_call(node.busy_end, self._rank, self._left_first_stage, node)
        elif first:
            node.running = None
