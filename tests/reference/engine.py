"""The reference simulator: every decode step is an event, every number is worked out anew. Written from DESIGN.md."""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from mooncake_bench.api import Request

from .network import SCALE, Flow, Network
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
        self.network = Network([int(x) for x in cost.nic_bytes_per_s], self._post_transfer)
        self.promised: list[Job] = []  # admitted, KV not yet at the decode instance
        self.now = 0
        self.version = 0  # grows with every change that a view could show
        self.counters = {"events": 0, "steps": 0, "fetches": 0, "fetched_bytes": 0, "evictions": 0, "refused_blocks": 0}
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
        for node in self.nodes:
            node.pool.expire(self.now / 1e9)
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
            computed = max(1, n - hit_tokens)
            prefill_ms = self.cost.prefill_ps(p, computed, n - computed) / 1e9
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
        job.pinned, job.new = node.pool.commit(job.req.blocks, self.tail_first, self.now / 1e9)
        promises = [other for other in node.queue if set(other.new) & set(job.pinned)]
        job.waits_for = promises[-1] if promises else None
        self.promised.append(job)
        if hits > local:
            job.fetched = range(local, hits)
            tokens = min(hits * block, n) - min(local * block, n)
            job.columns["fetched_tokens"] = tokens
            source = self.nodes[job.route.fetch_from].pool  # type: ignore[index]
            job.fetch_pins = list(dict.fromkeys(job.req.blocks[local:hits]))
            source.policy.begin(job.req.blocks, self.now / 1e9)
            source.touch(job.req.blocks[local:hits], job.fetched, self.tail_first)
            source.pin(job.fetch_pins)
        self.count_hits(job, hits)
        job.estimate_ps = self.cost.prefill_ps(p, job.columns["computed_tokens"], n - job.columns["computed_tokens"])
        node.queue.append(job)
        if hits > local:
            self.counters["fetches"] += 1
            total = tokens * self.cost.kv_bytes_per_token
            self.counters["fetched_bytes"] += total
            job.fetch = self.network.add(self.now, job.route.fetch_from, p, total, None, lambda: self.fetch_end(job))
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
            while job.waits_for in node.queue:
                job = job.waits_for
            job.columns["head_ps"] = self.now
            node.head = job
            self.version += 1
            self.turn(node)

    def turn(self, node: Node) -> None:
        """The head may start if its fetch is done; then the admission has its word."""
        job = node.head
        if job.fetch is not None:
            return
        reason = self.admission.reject_prefill(job.request, job.route, self.view)
        if reason is None:
            self.start(node)
        else:
            self.drop(node, job, reason)

    def drop(self, node: Node, job: Job, reason: str) -> None:
        self.version += 1
        node.head = None
        node.queue.remove(job)
        node.dropped = True
        self.promised.remove(job)
        node.pool.drop(job.pinned)
        for block in job.new:
            if block in node.pool.stored and not node.pool.stored[block].ready:
                heir = next(other for other in node.queue if block in other.pinned)
                heir.new.append(block)
        job.columns.update(hit_blocks=0, hit_tokens=0, fetched_tokens=0, computed_tokens=0)
        self.leave(job, "rejected", "prefill", reason)

    def start(self, node: Node) -> None:
        job = node.head
        node.head = None
        node.queue.remove(job)
        node.running = job
        if node.dropped:
            self.count_hits(job, min(job.columns["hit_blocks"], self.there(node, job)))
        n, computed = job.req.input_tokens, job.columns["computed_tokens"]
        length = self.cost.prefill_ps(job.route.prefill, computed, n - computed)
        job.columns["start_ps"] = self.now
        node.running_end_ps = self.now + length
        self.version += 1
        self._post(node.running_end_ps, PREFILL_END, self._created, lambda: self.prefill_end(node, job))
        kv = n * self.cost.kv_bytes_per_token
        job.stream = self.network.add(self.now, job.route.prefill, job.decode, kv, kv * SCALE // length, None)

    @staticmethod
    def there(node: Node, job: Job) -> int:
        """Leading blocks that are ready on its node, or that it has fetched."""
        for position, block in enumerate(job.req.blocks):
            here = node.pool.stored.get(block)
            if not (here is not None and here.ready) and position not in job.fetched:
                return position
        return len(job.req.blocks)

    def prefill_end(self, node: Node, job: Job) -> None:
        node.running, node.running_end_ps = None, -1
        node.pool.make_ready(job.pinned)
        node.pool.unpin(job.pinned)
        job.columns["first_token_ps"] = self.now
        job.times.append(self.now)
        self.version += 1
        late = self.router.late_decode(job.request, job.route, self.view)
        assert job.stream is not None
        moves = late is not None and late != job.decode
        if moves:
            assert self.P <= late < self.N, f"{late} is not a decode instance"
            job.decode = job.columns["decode_instance"] = late
            job.route = job.route._replace(decode=late)
        kv = job.req.input_tokens * self.cost.kv_bytes_per_token
        if job.req.output_tokens == 1:
            self.network.remove(self.now, job.stream)
            self.promised.remove(job)
        elif moves:
            self.network.remove(self.now, job.stream)
            job.stream = self.network.add(self.now, job.route.prefill, late, kv, None, lambda: self.kv_arrival(job))
        else:
            last_layer = -(-kv * SCALE // self.cost.layers)
            self.network.release(self.now, job.stream, last_layer, lambda: self.kv_arrival(job))
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
        job.fetch = None
        mine = set(job.pinned)
        node.pool.make_ready(b for b in (job.req.blocks[i] for i in job.fetched) if b in mine)
        if node.head is job:
            self.turn(node)
            self.next_head(node)

    def remaining_fetch_ps(self, flow: Flow) -> float:
        if self.head_fetch == "uncontended":
            left = flow.size - flow.sent - flow.rate * (self.now - flow.since_ps)
            return left / min(self.network.nic[flow.source], self.network.nic[flow.target])
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
            if not decoder.batch:
                self.join(decoder)
        if decoder.batch:
            decoder.stepping = True
            self.counters["steps"] += 1
            step = self.cost.decode_ps(decoder.number, len(decoder.batch))
            step += self.cost.token_ps(decoder.number) * self.tokens(decoder)
            decoder.step_end_ps = self.now + step
            self._post_boundary(decoder, self.now + step)

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
