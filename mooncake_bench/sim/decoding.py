"""What happens to a request after its first token: its KVCache arrives, it joins a batch, it leaves with all tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mooncake_bench.sim import job as status
from mooncake_bench.sim.decode import Decoder
from mooncake_bench.sim.loading import LoadingDecoder
from mooncake_bench.sim.mixed import InliningDecoder

if TYPE_CHECKING:
    from mooncake_bench.sim.cluster import Cluster
    from mooncake_bench.sim.job import Job
    from mooncake_bench.sim.loading import DecodeRules


class Decoding:
    """All decode instances, and what they tell."""

    def __init__(self, cluster: Cluster, rules: DecodeRules | None = None) -> None:
        self.cluster = cluster
        self.rules = rules
        self.loads: list[int] = []  # request row and how long its KVCache took into VRAM, ps
        self.state, self.brain = cluster.state, cluster.brain
        self.segments: list[int] = []
        self.stays: list[int] = []
        self.leaving: dict[Job, str] = {}  # cancelled members that leave at the next step boundary, and why
        self.asked: Job | None = None  # its KV has arrived and the admission is being asked: in no table
        self.decoders: dict[int, Decoder] = {}
        for instance in self.state.instances_of(self.state.is_decode):
            self.add(instance)

    def add(self, instance: int) -> None:
        """An instance decodes that never did."""
        cluster = self.cluster
        told = (cluster.cost, cluster.post_boundary, self, self.state.decode, self.segments, self.stays)
        if self.rules is None:
            self.decoders[instance] = Decoder(instance, *told)
            return
        more: dict[str, Any] = {"rules": self.rules, "call_at": cluster.end_transfer_at, "note_load": self._loaded}
        if cluster.inlining is None:
            self.decoders[instance] = LoadingDecoder(instance, *told, **more)
        else:
            self.decoders[instance] = InliningDecoder(instance, *told, inlining=cluster.inlining, **more)

    def _loaded(self, job: Job, load_ps: int) -> None:
        self.loads += (job.row, load_ps)

    def take_out_all(self, instance: int, now: int) -> list[Job]:
        """All that decodes or waits on an instance, which is left empty; steps that are not over are lost."""
        decoder, state = self.decoders[instance], self.state
        for job in decoder.in_line:
            self.cluster.unroute(job)
        if state.tracked:
            for job in decoder.in_line:
                state.waiting.remove(job.row)
            for job in decoder.members:
                state.joined.remove(job.row)
        return decoder.stop(now)

    def kv_arrived(self, now: int, job: Job) -> None:
        """All of a request's KVCache is at its decode instance."""
        state = self.state
        self.cluster.unroute(job)
        self.asked = job
        if state.tracked:
            state.promised.remove(job.row)
        reason = self.brain.reject_decode(job, now)
        self.asked = None
        job.kv_arrival_ps = now
        if reason is not None:
            self.cluster.reject(job, now, status.AT_DECODE, reason)
            return
        state.routed_tokens[job.decode] += job.context
        if state.tracked:
            state.waiting.put(job.row, job.decode, now, job.context)
        self.decoders[job.decode].arrive(job, now)

    def cancel(self, job: Job, now: int, reason: str) -> None:
        """Call off a request whose KV has arrived."""
        if not self.decoders[job.decode].dismiss(job, now):
            self.leaving[job] = reason
            return
        if self.state.tracked:
            self.state.waiting.remove(job.row)
        self.cluster.unroute(job)
        self.cluster.give_up(job, now, reason)

    # decode (what a Decoder tells)

    def joined(self, job: Job, now: int) -> None:
        """It entered a batch."""
        state = self.state
        if state.tracked:
            state.waiting.remove(job.row)
            state.joined.put(job.row, job.decode, now, job.context - job.joined_step)
        self.cluster.unroute(job)
        if job.first_join_ps < 0:
            job.first_join_ps = now
        self._tell_of_batch("joined", job, now)

    def left(self, job: Job, now: int) -> None:
        """It has all its tokens."""
        if self.state.tracked:
            self.state.joined.remove(job.row)
        self.cluster.end(job, now, status.COMPLETED)
        self._tell_of_batch("finished", job, now)

    def swapped_out(self, job: Job, now: int) -> None:
        """It was preempted: its KV waits in DRAM."""
        job.preemptions += 1
        if self.state.tracked:
            self.state.joined.remove(job.row)
            self.state.waiting.put(job.row, job.decode, job.kv_arrival_ps, job.context)
        self.state.routed_tokens[job.decode] += job.context

    def dismissed(self, job: Job, now: int) -> None:
        """It was cancelled, and has left its batch."""
        if self.state.tracked:
            self.state.joined.remove(job.row)
        self.show_batch(job, now)
        self.cluster.give_up(job, now, self.leaving.pop(job))

    def stuck(self, job: Job, now: int) -> None:
        """Even an empty instance has no room for it."""
        if self.state.tracked:
            self.state.waiting.remove(job.row)
        self.cluster.unroute(job)
        self.cluster.end(job, now, status.FAILED)
        self._tell_of_batch("failed", job, now)

    def _tell_of_batch(self, kind: str, job: Job, now: int) -> None:
        """Policies that listen see the batch as it is by now, before its next stretch opens."""
        if self.brain.listens:
            self.show_batch(job, now)
            self.brain.tell(kind, job, now)

    def show_batch(self, job: Job, now: int) -> None:
        """Let policies see the batch of a request's instance as it is between two steps."""
        decoder = self.decoders[job.decode]
        self.state.decode.set(decoder.instance, now, 0, 0, decoder.batch, decoder.tokens, decoder.steps)
