"""The three admissions of rule 9, in plain numpy over the exact view."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mooncake_bench.api import Admission


def decode_load(cluster, batch, tokens):
    """ℓ_D of each instance for a batch and its context; 0 over nothing."""
    step = cluster.step_ms(batch, tokens) / cluster.tbt_slo_ms
    room = tokens / np.maximum(cluster.vram_tokens, 1)
    return np.where(batch > 0, np.maximum(step, room), 0.0)[cluster.is_decode]


def add(batch, tokens, columns, keep=slice(None)):
    """Add the requests of ``columns[keep]`` to their instances."""
    np.add.at(batch, columns.instance[keep], 1)
    np.add.at(tokens, columns.instance[keep], columns.tokens[keep])


@dataclass
class Baseline(Admission):
    name = "reference-baseline"

    def reject(self, request, route, cluster):
        return "ttft" if route.ttft_ms / cluster.ttft_slo_ms > 1 else None

    def reject_decode(self, request, route, cluster):
        batch, tokens = cluster.decode_batch.copy(), cluster.decode_tokens.copy()
        add(batch, tokens, cluster.waiting)
        batch[route.decode] += 1
        tokens[route.decode] += request.input_tokens + 1
        own = decode_load(cluster, batch, tokens)[int(cluster.is_decode[: route.decode].sum())]
        return "decode" if own > 1 else None


@dataclass
class Early(Baseline):
    name = "reference-early"
    recheck: bool = False
    per_instance: bool = False

    def loads(self, request, route, cluster):
        batch, tokens = cluster.decode_batch.copy(), cluster.decode_tokens.copy()
        add(batch, tokens, cluster.waiting)
        batch[route.decode] += 1
        tokens[route.decode] += request.input_tokens + 1
        ld = decode_load(cluster, batch, tokens)
        if self.per_instance:
            return ld[int(cluster.is_decode[: route.decode].sum())]
        return ld.mean()

    def reject(self, request, route, cluster):
        if route.ttft_ms / cluster.ttft_slo_ms > 1:
            return "ttft"
        return "decode" if self.loads(request, route, cluster) > 1 else None

    def reject_decode(self, request, route, cluster):
        return super().reject_decode(request, route, cluster) if self.recheck else None


@dataclass
class Predictive(Early):
    name = "reference-predictive"
    td_ms: float = 10_000.0

    def loads(self, request, route, cluster):
        t = cluster.now_ms + route.ttft_ms
        batch = np.zeros(len(cluster.is_decode), dtype=np.int64)
        tokens = np.zeros_like(batch)
        for columns in (cluster.joined, cluster.waiting, cluster.promised):
            add(batch, tokens, columns, (columns.since_ms <= t) & (columns.since_ms + self.td_ms > t))
        batch[route.decode] += 1
        tokens[route.decode] += request.input_tokens + 1
        return decode_load(cluster, batch, tokens).mean()
