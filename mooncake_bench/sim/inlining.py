"""Prefill inlined into the steps of decode nodes, where that breaks no TBT SLO (Mooncake, FAST'25, section 5).

1. Once, when a request is routed and admitted, it is settled whether it is prefilled where it will decode: what of its
   prompt its prefill instance has not ready is computed there, in one forward beside a step of the batch. It is if
   (a) nobody waits there to decode, and no other prompt to be computed: a step takes one; (b) the mixed step lasts no
   longer than the tightest TBT SLO of its batch and of the request; (c) afterwards there is room for its context and a
   token more of everybody; (d) its first token comes sooner than from its prefill instance, by that one's queue, the
   fetch or load alone, and the prefill's time. All four are judged by the batch as it will be when the prefix is there,
   sent alone: who has all tokens by then has left.
2. The prefix is sent from the pool of its prefill instance, which has the blocks pinned meanwhile, as KVCache always
   comes to a decode node, and goes into VRAM. No pool gets what is computed here. With pool.scope local all is
   computed.
3. The mixed step is the first that begins when the prefix is there. Until then others join only if that step would keep
   its SLOs with them, and where it has memory for all. Only a prefix that comes later than alone finds a step longer
   than was judged, for contexts have grown; then it waits for memory as any other, not for a shorter step.
4. At the end of the step the first token is there, the KVCache where it is needed, and the request in the batch.
5. A mixed step costs what a coupled instance's does (E6). Of it, what the batch's own step would not have taken is the
   prefill's share of GPU time. Without a batch the step is a prefill.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench import spool
from mooncake_bench.errors import InvariantError, PolicyError, faults
from mooncake_bench.hardware.cost import PS_PER_MS, to_ps
from mooncake_bench.sim import job as status
from mooncake_bench.sim.brain import policy_fault

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from mooncake_bench.sim.cluster import Cluster
    from mooncake_bench.sim.job import Job
    from mooncake_bench.sim.mixed import InliningDecoder
    from mooncake_bench.sim.network import Flow

    Column = NDArray[Any]

LOST_FIELDS = 5  # of an attempt that came to nothing, in Cluster.lost


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
        cluster = self._cluster
        blocks = 0 if cluster.brain.view.local else self._ready_blocks(job)
        cached = min(blocks * cluster.brain.view.block_tokens, job.input_tokens)
        size = cached * cluster.prefilling.kv
        ready = now + cluster.network.alone_ps(job.prefill, job.decode, size)
        computed = max(1, job.input_tokens - cached)
        end = self.decoders[job.decode].offer(job, computed, ready)
        if end is None or end >= self._elsewhere(job, now):
            return False
        source, job.prefill = job.prefill, job.decode
        job.hit_blocks, job.hit_tokens, job.fetched_tokens, job.computed = blocks, cached, cached, computed
        job.cached_blocks = 0
        job.load = job.fetch_source = None
        job.new_blocks = job.stored = ()
        if blocks:
            self._fetch(job, source, now)
        self._place(job, end, now)
        self.decoders[job.decode].take(job, now)
        return True

    def _ready_blocks(self, job: Job) -> int:
        """Leading blocks of its prompt that its prefill instance has."""
        view = self._cluster.brain.view
        return view.actual_lengths(job.request)[len(view.is_prefill) + job.prefill]

    def _elsewhere(self, job: Job, now: int) -> int:
        """When its prefill instance would have its first token, by what it is known to have to do now."""
        cluster = self._cluster
        start = max(now, int(cluster.state.work_end[job.prefill]))
        if job.fetch_source is not None:
            size = job.fetched_tokens * cluster.prefilling.kv
            start = max(start, now + cluster.network.alone_ps(job.fetch_source, job.prefill, size))
        if job.load is not None:
            assert cluster.tiers is not None
            start = max(start, now + round(cluster.tiers.planned_ms(job.load) * PS_PER_MS))
        return start + job.prefill_ps

    def _fetch(self, job: Job, source: int, now: int) -> None:
        """Send the prefix, pinned at its source; it is the request's turn from now on."""
        cluster, prefilling = self._cluster, self._cluster.prefilling
        node = cluster.pool.nodes[source]
        try:
            blocks = cluster.pool.claim_source(source, job.request.blocks, 0, job.hit_blocks, now)
        except (PolicyError, InvariantError):
            raise
        except faults() as error:
            raise policy_fault(node.eviction, job, error) from error
        size = job.fetched_tokens * prefilling.kv
        prefilling.fetches += 1
        prefilling.fetched_tokens += job.fetched_tokens
        job.fetch_source, job.fetch_blocks = source, blocks
        job.head_ps = job.fetch_start_ps = now
        job.fetch_ideal_ps = cluster.network.alone_ps(source, job.decode, size)
        job.fetch = cluster.network.start(now, source, job.decode, size, done=self._fetched, owner=job)

    def _fetched(self, now: int, job: Job) -> None:
        self._unpin(job)
        job.fetch_end_ps = now
        self.decoders[job.decode].wake(now)

    def _unpin(self, job: Job) -> None:
        assert job.fetch_source is not None
        job.fetch = None
        self._cluster.pool.nodes[job.fetch_source].unpin(job.fetch_blocks)

    def _place(self, job: Job, end: int, now: int) -> None:
        """It is on its way to its instance's batch."""
        state = self._cluster.state
        self.rows.add(job.row)
        job.predicted_ttft_ms = (end - now) / PS_PER_MS
        job.route = job.route._replace(prefill=job.decode, fetch_from=job.fetch_source, ttft_ms=job.predicted_ttft_ms)
        job.mark = end
        if state.tracked:
            state.promised.put(job.row, job.decode, job.context, -1, end)
        state.routed_tokens[job.decode] += job.context

    # what a decoder tells

    def joins(self, job: Job) -> bool:
        """Whether a request whose prompt is being computed will be in the batch after that."""
        return job.output_tokens > 1 and job not in self._cluster.decoding.leaving

    def starts(self, job: Job, now: int) -> bool:
        """Its turn has come: it is computed, unless the admission policy turns it away."""
        cluster = self._cluster
        cluster.decoding.show_batch(job, now)
        reason = cluster.brain.reject_prefill(job, now)
        if reason is None:
            job.start_ps = now
            job.head_ps = now if job.head_ps < 0 else job.head_ps
            return True
        self.leave(job, now)
        cluster.reject(job, now, status.AT_PREFILL, reason)
        return False

    def computed(self, job: Job, now: int) -> None:
        """Its step is over: it leaves if it was called off or has all its tokens; else its KVCache is there."""
        cluster, state = self._cluster, self._cluster.state
        reason = cluster.decoding.leaving.pop(job, None)
        if reason is not None:
            self.leave(job, now)
            cluster.give_up(job, now, reason)
            return
        job.first_token_ps = now
        if state.tracked:
            state.promised.put(job.row, job.decode, job.context, -1, now)
        if job.output_tokens > 1:
            cluster.brain.tell("first_token", job, now)
            cluster.decoding.kv_arrived(now, job)
            return
        self.leave(job, now)
        cluster.end(job, now, status.COMPLETED)
        cluster.brain.tell("first_token", job, now)
        cluster.brain.tell("finished", job, now)

    def leave(self, job: Job, now: int) -> None:
        """It is no longer on its way to a batch; nor is its prefix."""
        cluster, flow = self._cluster, job.fetch
        if flow is not None:
            cluster.network.stop(now, flow)
            flow.owner = None
            self._unpin(job)
        cluster.unroute(job)
        if cluster.state.tracked:
            cluster.state.promised.remove(job.row)

    # what may become of a request

    def cancel(self, job: Job, now: int, reason: str) -> bool:
        """Call a request off whose prompt waits to be computed, at once, or is being, with its step; whether it was."""
        if job.row not in self.rows or job.first_token_ps >= 0:
            return False
        if self.decoders[job.decode].computing is job:
            self._cluster.decoding.leaving[job] = reason
            return True
        self.withdraw(job, now)
        self._cluster.give_up(job, now, reason)
        return True

    def withdraw(self, job: Job, now: int) -> None:
        """Take out a request whose prompt waits to be computed."""
        self.leave(job, now)
        self.decoders[job.decode].drop(job, now)

    def fetches(self, flow: Flow) -> bool:
        """Whether it is the prefix of a prompt that a decode node is to compute."""
        return flow.owner.row in self.rows and flow is flow.owner.fetch

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
