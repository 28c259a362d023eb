"""The reference simulator: every decode step is an event, every number is worked out anew. Written from DESIGN.md.

CHOICES, where the rules leave one. [n] gives mean TTFT of the conversation trace at the defaults under Algorithm 1,
which must be 1,403.53 ms (cache-aware: 1,568.14 ms), or rule 9's counts of rejected requests, where it was measured.

 1. Remaining fetch of a head the node idles for (view.queue_ms): its projected end at the present rates, minus now
    [1,403.53]. Bytes left at the uncontended rate gives 1,402.01; leaving it out gives 1,402.54.
 2. view.promised.since_ms: the true prefill end once there; before, now + the queue as it stands (remainder of the
    running, remaining fetch of the head, E of those before, its own E) [predictive at t_d 15 s: 1,201]. The
    prediction made at routing gives 1,217.
    The end of a running prefill is its true one; later fetches in the queue are not waited for (waiting: 1,201 too).
 3. A waiting request in the predictive load ages like a promised one (gone once t_d has passed) or is not counted at
    all: the same numbers [1,201]. Counting it whatever its age gives 1,191. Leaving the candidate out gives 1,340.
    Contexts are those of now. At t_d 5-10 s no reading matters: all 758 rejections are of the TTFT.
 4. Every block of the prompt that is present is pinned at routing, holes beyond the first miss too [no effect].
 5. All stored blocks of the prompt are touched, new ones included, and blocks beyond a hole. Head first instead of
    tail first gives 1,403.58 (cache-aware 1,561.89); not touching the source of a fetch gives 1,396.48.
 6. Slots are taken one by one, an eviction and its insertion together, so an Eviction sees evict, insert, evict,
    insert.
 7. Hits are counted at routing (view, E of the queued) and once more at prefill start, from what is ready by then and
    what this request fetched. Both agree under FIFO, unless a promised request was dropped, a Router.order overtook,
    or a block refused to this request at routing was stored and fetched for a later one in between (it is then used).
 8. A request dropped when its turn came: its blocks are unpinned, those not ready and pinned by nobody else are
    removed; a fetch under way is cancelled. Its columns keep the hits and the computed tokens estimated at routing.
 9. "Its turn to prefill": when it becomes the head, before the wait for its fetch. Router.order is asked at that
    moment.
10. A fetch brings all that the holder has ready beyond the local hit (promised blocks count as local). A holder
    without a longer prefix, or the instance itself, is a wrong decision.
11. Preempted requests count their context at preemption in routed_tokens; their since_ms is the KV's arrival. A
    rejoin sets a new since_ms in view.joined, tells "joined" again, and leaves join_ps alone.
12. If the last one left cannot grow, it is preempted, and fails in a boundary at the same instant.
13. A request being asked about at arrival or at its KV's arrival is in no column of the view (nor in routed_tokens).
14. The view within an event shows what has been done so far: at a prefill end the pool is updated and the stream
    reset, then late_decode, "first_token" and "finished" are told, then the next head is called.
15. late_decode to another instance: the stream so far is lost, all V bytes are sent anew, uncapped. It is asked of
    one-token requests too, so that it leaks nothing.
16. "Creation order" is that of the flow for transfer ends, of the prefill's start for prefill ends, of the instance
    id for decode boundaries (an engine that skips steps creates them in another order), of the trace for arrivals.
17. A request rejected at arrival keeps prefill_instance -1 and counts of 0; its predicted TTFT is kept.
18. Progressive filling sets a level, not increments: a lone flow runs at exactly the NIC's rate, a capped one at its
    cap.
19. ``wrong role`` in view.fetch_ms, prefill_ms, queue_ms (decode instances) and step_ms (prefill instances) reads
    inf.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from mooncake_bench.api import Request

from .network import Flow, Network
from .pool import Pool
from .state import Decoder, Job, Node, Req, Result
from .view import View

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mooncake_bench.api import Admission, Eviction, Router

TRANSFER_END, PREFILL_END, BOUNDARY, ARRIVAL = 1, 2, 3, 5  # rule 2: which goes first at one instant


class Engine:
    def __init__(self, requests, prefill, decode, cost, router, admission, make_eviction, options) -> None:
        self.P, self.D, self.N = prefill, decode, prefill + decode
        self.cost, self.router, self.admission = cost, router, admission
        self.block_tokens: int = options["block_tokens"]
        self.ttft_slo_ms: float = options["ttft_slo_ms"]
        self.tbt_slo_ms: float = options["tbt_slo_ms"]
        self.tail_first = options["touch_order"] == "tail-first"
        self.head_fetch: str = options["head_fetch"]
        self.promised_end: str = options["promised_end"]
        self.nodes = [Node(Pool(options["pool_blocks"], make_eviction())) for _ in range(prefill)]
        for node in self.nodes:
            node.pool.policy.open(options["pool_blocks"])
        self.decoders = [Decoder(prefill + i, int(cost.vram_tokens[prefill + i])) for i in range(decode)]
        self.network = Network([float(x) for x in cost.nic_bytes_per_s], self._post_transfer)
        self.promised: list[Job] = []  # admitted, KV not yet at the decode instance
        self.now = 0
        self.version = 0  # grows with every change that a view could show
        self.counters = {"events": 0, "steps": 0, "fetches": 0, "evictions": 0, "refused_blocks": 0}
        self._events: list[tuple[int, int, int, int, Callable[[], None]]] = []
        self._created = 0
        self.view = View(self)
        self.jobs = [self._job(req, i) for i, req in enumerate(requests)]
        self.policies = {id(p): p for p in (router, admission)}.values()
        for kind, policy in zip(("router", "admission"), self.policies, strict=False):
            policy.start(self.view, np.random.default_rng([options["seed"], crc32(kind.encode())]))

    def _job(self, req: Req, order: int) -> Job:
        oracle = self.router.oracle or self.admission.oracle
        request = Request(
            req.row, req.arrival_ps / 1e9, req.input_tokens, req.blocks,
            output_tokens=req.output_tokens if oracle else None,
        )  # fmt: skip
        times = dict.fromkeys(
            ("head_ps", "start_ps", "first_token_ps", "kv_arrival_ps", "join_ps", "second_token_ps", "end_ps"), -1
        )
        counts = dict.fromkeys(("hit_blocks", "hit_tokens", "fetched_tokens", "computed_tokens", "preemptions"), 0)
        columns: dict[str, Any] = {
            "row": req.row, "arrival_ps": req.arrival_ps, "status": "unfinished",
            "reject_stage": "", "reject_reason": "", "prefill_instance": -1, "decode_instance": -1,
            **times, **counts, "predicted_ttft_ms": math.nan,
        }  # fmt: skip
        job = Job(req, request, columns, [], context=req.input_tokens + 1, steps_left=req.output_tokens - 1)
        self._post(req.arrival_ps, ARRIVAL, order, lambda: self.arrive(job))
        return job

    # clock
    def _post(self, time: int, kind: int, tie: int, do: Callable[[], None]) -> None:
        self._created += 1
        heapq.heappush(self._events, (time, kind, tie, self._created, do))

    def _post_transfer(self, time: int, flow: Flow, epoch: int) -> None:
        self._post(time, TRANSFER_END, flow.number, lambda: self.transfer_end(flow, epoch))

    def run(self) -> None:
        while self._events:
            self.now, _, _, _, do = heapq.heappop(self._events)
            self.counters["events"] += 1
            self.version += 1
            do()
        self.counters["evictions"] = sum(node.pool.evictions for node in self.nodes)
        self.counters["refused_blocks"] = sum(node.pool.refused for node in self.nodes)

    def tell(self, kind: str, job: Job) -> None:
        self.version += 1
        for policy in self.policies:
            policy.on_event(kind, job.req.row, self.view)

    # arrival: route, fill in what the router left open, admit, commit
    def arrive(self, job: Job) -> None:
        route = self.router.route(job.request, self.view)
        p = route.prefill
        assert 0 <= p < self.P, f"{p} is not a prefill instance"
        assert route.decode is None or self.P <= route.decode < self.N, f"{route.decode} is not a decode instance"
        pool, block, n = self.nodes[p].pool, self.block_tokens, job.req.input_tokens
        local, hits = pool.leading(job.req.blocks), pool.leading(job.req.blocks)
        if route.fetch_from is not None:
            hits = self.nodes[route.fetch_from].pool.leading(job.req.blocks, ready_only=True)
            assert route.fetch_from != p, "fetches from itself"
            assert hits > local, "the holder has no longer prefix"
        hit_tokens, local_tokens = min(hits * block, n), min(local * block, n)
        if route.decode is None:
            load = self.view.decode_tokens + self.view.routed_tokens + n + 1
            route = route._replace(decode=self.P + int(load[self.P :].argmin()))
        if route.ttft_ms is None:
            fetched = np.full(self.N, hit_tokens - local_tokens)
            fetch_ms = self.view.fetch_ms(fetched, route.fetch_from or 0)[p] if fetched[0] else 0.0
            prefill_ms = self.view.prefill_ms(job.request, np.full(self.N, hit_tokens))[p]
            route = route._replace(ttft_ms=float(self.view.queue_ms[p] + fetch_ms + prefill_ms))
        job.route = route
        job.columns["predicted_ttft_ms"] = route.ttft_ms
        reason = self.admission.reject(job.request, route, self.view)
        if reason is not None:
            self.leave(job, "rejected", "arrival", reason)
            return
        self.admit(job, local, hits)

    def admit(self, job: Job, local: int, hits: int) -> None:
        self.version += 1
        p, n, block = job.route.prefill, job.req.input_tokens, self.block_tokens
        node = self.nodes[p]
        job.decode = job.route.decode  # type: ignore[assignment]
        job.columns.update(prefill_instance=p, decode_instance=job.decode)
        job.pinned = node.pool.commit(job.req.blocks, self.tail_first)
        self.promised.append(job)
        if hits > local:
            job.fetched = range(local, hits)
            tokens = min(hits * block, n) - min(local * block, n)
            job.columns["fetched_tokens"] = tokens
            source = self.nodes[job.route.fetch_from].pool  # type: ignore[index]
            job.fetch_pins = list(dict.fromkeys(job.req.blocks[local:hits]))
            source.touch(job.req.blocks[local:hits], job.fetched, self.tail_first)
            source.pin(job.fetch_pins)
        self.count_hits(job, hits)
        job.estimate_ps = self.cost.prefill_ps(p, job.columns["computed_tokens"], n - job.columns["computed_tokens"])
        node.queue.append(job)
        if hits > local:
            self.counters["fetches"] += 1
            total = float(tokens * self.cost.kv_bytes_per_token)
            job.fetch = self.network.add(
                self.now, job.route.fetch_from, p, total, math.inf, lambda: self.fetch_end(job)  # type: ignore[arg-type]
            )  # fmt: skip
        self.next_head(node)

    def count_hits(self, job: Job, hits: int) -> None:
        n = job.req.input_tokens
        hit_tokens = min(hits * self.block_tokens, n)
        job.columns.update(hit_blocks=hits, hit_tokens=hit_tokens, computed_tokens=max(1, n - hit_tokens))

    # prefill
    def next_head(self, node: Node) -> None:
        """An idle node calls its next request, and starts it unless its fetch is still under way."""
        while node.running is None and node.head is None and node.queue:
            index = self.router.order(self.nodes.index(node), [job.request for job in node.queue], self.view)
            job = node.queue[index]
            job.columns["head_ps"] = self.now
            reason = self.admission.reject_prefill(job.request, job.route, self.view)
            if reason is not None:
                self.drop(node, job, reason)
                continue
            node.head = job
            self.version += 1
            if job.fetch is None:
                self.start(node)

    def drop(self, node: Node, job: Job, reason: str) -> None:
        self.version += 1
        node.queue.remove(job)
        self.promised.remove(job)
        if job.fetch is not None:
            self.nodes[job.route.fetch_from].pool.unpin(job.fetch_pins)  # type: ignore[index]
            self.network.remove(self.now, job.fetch)
            job.fetch = None
        node.pool.drop(job.pinned)
        self.leave(job, "rejected", "prefill", reason)

    def start(self, node: Node) -> None:
        job = node.head
        assert job is not None
        node.head = None
        node.queue.remove(job)
        node.running = job
        hits = 0
        for position, block in enumerate(job.req.blocks):
            here = node.pool.stored.get(block)
            if not (here is not None and here.ready) and not (job.fetch_done and position in job.fetched):
                break
            hits += 1
        self.count_hits(job, hits)
        n, computed = job.req.input_tokens, job.columns["computed_tokens"]
        length = self.cost.prefill_ps(job.route.prefill, computed, n - computed)
        job.columns["start_ps"] = self.now
        node.running_end_ps = self.now + length
        self.version += 1
        self._post(node.running_end_ps, PREFILL_END, self._created, lambda: self.prefill_end(node, job))
        kv = float(n * self.cost.kv_bytes_per_token)
        cap = kv / (length / 1e12) if length else math.inf
        job.stream = self.network.add(self.now, job.route.prefill, job.decode, kv, cap, None)

    def prefill_end(self, node: Node, job: Job) -> None:
        node.running, node.running_end_ps = None, -1
        node.pool.make_ready(job.pinned)
        node.pool.unpin(job.pinned)
        job.columns["first_token_ps"] = self.now
        job.times.append(self.now)
        self.version += 1
        late = self.router.late_decode(job.request, job.route, self.view)
        assert job.stream is not None
        if job.req.output_tokens == 1:
            self.network.remove(self.now, job.stream)
            self.promised.remove(job)
        elif late is not None and late != job.decode:
            assert self.P <= late < self.N, f"{late} is not a decode instance"
            job.decode = late
            job.columns["decode_instance"] = late
            job.route = job.route._replace(decode=late)
            self.network.remove(self.now, job.stream)
            total = float(job.req.input_tokens * self.cost.kv_bytes_per_token)
            job.stream = self.network.add(
                self.now, job.route.prefill, late, total, math.inf, lambda: self.kv_arrival(job)
            )
        else:
            floor = float(job.req.input_tokens * self.cost.kv_bytes_per_token) / self.cost.layers
            self.network.release(self.now, job.stream, floor, lambda: self.kv_arrival(job))
        self.tell("first_token", job)
        if job.req.output_tokens == 1:
            self.leave(job, "completed")
        self.next_head(node)

    # transfers
    def transfer_end(self, flow: Flow, epoch: int) -> None:
        if epoch != flow.epoch:
            return
        assert flow.done is not None
        self.network.remove(self.now, flow)
        self.version += 1
        flow.done()

    def fetch_end(self, job: Job) -> None:
        node = self.nodes[job.route.prefill]
        self.nodes[job.route.fetch_from].pool.unpin(job.fetch_pins)  # type: ignore[index]
        job.fetch, job.fetch_done = None, True
        mine = set(job.pinned)
        node.pool.make_ready(b for b in (job.req.blocks[i] for i in job.fetched) if b in mine)
        if node.head is job:
            self.start(node)

    def remaining_fetch_ps(self, flow: Flow) -> float:
        if self.head_fetch == "uncontended":
            left = flow.total - flow.sent - flow.rate * (self.now - flow.since_ps) / 1e12
            return left / min(self.network.nic[flow.source], self.network.nic[flow.target]) * 1e12
        if self.head_fetch == "none":
            return 0
        return flow.end_ps - self.now if flow.end_ps is not None else math.inf

    def kv_arrival(self, job: Job) -> None:
        decoder = self.decoders[job.decode - self.P]
        job.stream = None
        job.columns["kv_arrival_ps"] = self.now
        self.promised.remove(job)
        reason = self.admission.reject_decode(job.request, job.route, self.view)
        self.version += 1
        if reason is not None:
            self.leave(job, "rejected", "decode", reason)
            return
        decoder.waiting.append(job)
        if not decoder.stepping and not decoder.posted:
            self._post_boundary(decoder, self.now)

    # decode
    def _post_boundary(self, decoder: Decoder, time: int) -> None:
        decoder.posted = True
        self._post(time, BOUNDARY, decoder.number, lambda: self.boundary(decoder))

    def boundary(self, decoder: Decoder) -> None:
        decoder.posted = False
        if decoder.stepping:
            self.end_step(decoder)
        self.join(decoder)
        while self.tokens(decoder) + len(decoder.batch) > decoder.vram:
            job = decoder.batch.pop()
            job.columns["preemptions"] += 1
            decoder.preempted.append(job)
            self.version += 1
        if decoder.batch:
            decoder.stepping = True
            self.counters["steps"] += 1
            step = self.cost.decode_ps(decoder.number, len(decoder.batch))
            step += self.cost.token_ps(decoder.number) * self.tokens(decoder)
            self._post_boundary(decoder, self.now + step)
        elif decoder.preempted or decoder.waiting:
            self._post_boundary(decoder, self.now)

    def tokens(self, decoder: Decoder) -> int:
        return sum(job.context for job in decoder.batch)

    def end_step(self, decoder: Decoder) -> None:
        decoder.stepping = False
        for job in decoder.batch:
            job.context += 1
            job.steps_left -= 1
            job.times.append(self.now)
            if len(job.times) == 2:
                job.columns["second_token_ps"] = self.now
        for job in [job for job in decoder.batch if job.steps_left == 0]:
            decoder.batch.remove(job)
            self.leave(job, "completed")

    def join(self, decoder: Decoder) -> None:
        while decoder.preempted or decoder.waiting:
            line = decoder.preempted or decoder.waiting
            job = line[0]
            if job.context + 1 > decoder.vram:
                line.popleft()
                self.leave(job, "failed")
                continue
            if self.tokens(decoder) + job.context + len(decoder.batch) + 1 > decoder.vram:
                return
            line.popleft()
            decoder.batch.append(job)
            job.last_join_ps = self.now
            if job.columns["join_ps"] < 0:
                job.columns["join_ps"] = self.now
            self.tell("joined", job)

    def leave(self, job: Job, status: str, stage: str = "", reason: str = "") -> None:
        job.columns.update(status=status, reject_stage=stage, reject_reason=reason, end_ps=self.now)
        self.tell("finished" if status == "completed" else status, job)


def simulate(
    requests: Sequence[Req],
    prefill: int,
    decode: int,
    cost: Any,
    router: Router,
    admission: Admission,
    make_eviction: Callable[[], Eviction],
    *,
    pool_blocks: int,
    block_tokens: int,
    ttft_slo_ms: float,
    tbt_slo_ms: float,
    touch_order: str = "tail-first",
    seed: int = 0,
    head_fetch: str = "projected",
    promised_end: str = "queue",
) -> Result:
    """Replay ``requests`` (in arrival order) and return what became of each."""
    options = {
        "pool_blocks": pool_blocks, "block_tokens": block_tokens, "ttft_slo_ms": ttft_slo_ms, "tbt_slo_ms": tbt_slo_ms,
        "touch_order": touch_order, "seed": seed, "head_fetch": head_fetch,
        "promised_end": promised_end,
    }  # fmt: skip
    engine = Engine(requests, prefill, decode, cost, router, admission, make_eviction, options)
    engine.run()
    jobs = engine.jobs
    return Result([job.columns for job in jobs], [job.times for job in jobs], dict(engine.counters))
