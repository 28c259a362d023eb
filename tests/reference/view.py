"""What policies see (api.Cluster), worked out from the whole state on each access and kept until the next change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.api import Columns, Request

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .engine import Engine
    from .state import Job

MS = 1e9  # picoseconds in a millisecond


class View:
    """The exact view: the state now. Arrays span all instances; the wrong role reads inf for times and 0 for hits."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._kept: dict[object, object] = {}
        self._version = -1

    def _keep(self, key, make):
        if self._version != self._engine.version:
            self._kept.clear()
            self._version = self._engine.version
        if key not in self._kept:
            made = make()
            for array in made if isinstance(made, tuple) else (made,):
                array.setflags(write=False)
            self._kept[key] = made
        return self._kept[key]

    @property
    def now_ms(self) -> float:
        return self._engine.now / MS

    @property
    def is_prefill(self):
        return np.array([i < self._engine.P for i in range(self._engine.N)])

    @property
    def is_decode(self):
        return ~self.is_prefill

    @property
    def block_tokens(self) -> int:
        return self._engine.block_tokens

    @property
    def ttft_slo_ms(self) -> float:
        return self._engine.ttft_slo_ms

    @property
    def tbt_slo_ms(self) -> float:
        return self._engine.tbt_slo_ms

    @property
    def vram_tokens(self):
        return np.where(self.is_decode, self._engine.cost.vram_tokens, 0)

    # prefill pool
    @property
    def queue_ms(self):
        return self._keep("queue_ms", lambda: self._per_prefill(lambda i: self._queue_ps(i) / MS, np.inf, float))

    @property
    def queue_requests(self):
        engine = self._engine
        return self._keep(
            "queue_requests",
            lambda: self._per_prefill(
                lambda i: len(engine.nodes[i].queue) + (engine.nodes[i].running is not None), 0, np.int64
            ),
        )

    def cached_tokens(self, request: Request):
        return self._keep(("cached", request.row), lambda: self._hits(request, ready_only=False))

    def fetchable_tokens(self, request: Request):
        return self._keep(("fetchable", request.row), lambda: self._hits(request, ready_only=True))

    def fetch_ms(self, tokens, holder: int):
        nic = self._engine.cost.nic_bytes_per_s
        ms = tokens * (1e3 * self._engine.cost.kv_bytes_per_token / np.minimum(nic[holder], nic))
        return np.where(self.is_prefill, ms, np.inf)

    def prefill_ms(self, request: Request, cached):
        computed = np.maximum(1, request.input_tokens - np.asarray(cached))
        ms = self._engine.cost.prefill_ms(computed, request.input_tokens - computed)
        return np.where(self.is_prefill, ms, np.inf)

    def _per_prefill(self, value, other, dtype):
        engine = self._engine
        return np.array([value(i) if i < engine.P else other for i in range(engine.N)], dtype=dtype)

    def _hits(self, request: Request, ready_only: bool):
        engine = self._engine
        block, n = engine.block_tokens, request.input_tokens
        return self._per_prefill(
            lambda i: min(engine.nodes[i].pool.leading(request.blocks, ready_only) * block, n), 0, np.int64
        )

    def _queue_ps(self, i: int) -> int:
        engine = self._engine
        node = engine.nodes[i]
        wait = sum(job.estimate_ps for job in node.queue)
        if node.running is not None:
            wait += node.running_end_ps - engine.now
        elif node.head is not None and node.head.fetch is not None:
            wait += engine.remaining_fetch_ps(node.head.fetch)
        return wait

    # decode pool
    @property
    def decode_batch(self):
        return self._keep("decode_batch", lambda: self._per_decode(lambda d: len(d.batch)))

    @property
    def decode_tokens(self):
        return self._keep("decode_tokens", lambda: self._per_decode(lambda d: sum(map(self._context, d.batch))))

    @property
    def routed_tokens(self):
        return self._keep("routed_tokens", self._routed)

    @property
    def joined(self) -> Columns:
        jobs = [job for d in self._engine.decoders for job in d.batch]
        return self._keep("joined", lambda: self._columns(jobs, [job.last_join_ps / MS for job in jobs]))

    @property
    def waiting(self) -> Columns:
        jobs = [job for d in self._engine.decoders for job in (*d.preempted, *d.waiting)]
        return self._keep("waiting", lambda: self._columns(jobs, [job.columns["kv_arrival_ps"] / MS for job in jobs]))

    @property
    def promised(self) -> Columns:
        jobs = self._engine.promised
        return self._keep("promised", lambda: self._columns(jobs, self._prefilled_ms(jobs)))

    def step_ms(self, batch, tokens):
        return np.where(self.is_decode, self._engine.cost.step_ms(batch, tokens), np.inf)

    def _per_decode(self, value):
        engine = self._engine
        return np.array([0] * engine.P + [value(d) for d in engine.decoders], dtype=np.int64)

    def _context(self, job: Job) -> int:
        """The tokens of its context; a step that ends at this very moment counts."""
        decoder = self._engine.decoders[job.decode - self._engine.P]
        ending = decoder.stepping and decoder.step_end_ps == self._engine.now and job in decoder.batch
        return job.context + ending

    def _routed(self):
        tokens = self._per_decode(lambda d: sum(job.context for job in (*d.preempted, *d.waiting)))
        for job in self._engine.promised:
            tokens[job.decode] += job.context
        return tokens

    def _prefilled_ms(self, jobs: Iterable[Job]) -> list[float]:
        """When the prefill of each ended, or is expected to end as its queue stands now."""
        engine, ends = self._engine, {}
        for node in engine.nodes:
            end = engine.now
            if node.running is not None:
                end = ends[node.running] = node.running_end_ps
            elif node.head is not None and node.head.fetch is not None:
                end += engine.remaining_fetch_ps(node.head.fetch)
            for job in node.queue:
                end = ends[job] = end + job.estimate_ps
        if engine.promised_end == "routing":  # another reading, kept to measure what it changes
            ends = {job: (job.request.arrival_ms + job.route.ttft_ms) * MS for job in ends}
        done = ((job, job.columns["first_token_ps"]) for job in jobs)
        return [(first if first >= 0 else ends[job]) / MS for job, first in done]

    def _columns(self, jobs: Iterable[Job], since: Iterable[float]) -> Columns:
        jobs = list(jobs)
        return Columns(
            np.array([job.decode for job in jobs], dtype=np.int64),
            np.array(list(since), dtype=float),
            np.array([self._context(job) for job in jobs], dtype=np.int64),
        )
