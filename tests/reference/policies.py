"""Small local copies of the policies that the reference numbers were published for."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np

from mooncake_bench.api import Admission, Eviction, Route, Router


@dataclass
class KVCacheCentric(Router):
    """Algorithm 1."""

    name = "reference-kvcache-centric"
    threshold: float = 4.0

    def route(self, request, cluster):
        hit, remote = cluster.cached_tokens(request), cluster.fetchable_tokens(request)
        best = int(remote.argmax())
        fetch = np.where(remote[best] > self.threshold * hit, np.maximum(remote[best] - hit, 0), 0)
        ttft = cluster.queue_ms + cluster.fetch_ms(fetch, best) + cluster.prefill_ms(request, hit + fetch)
        p = int(ttft.argmin())
        return Route(prefill=p, fetch_from=best if fetch[p] else None, ttft_ms=float(ttft[p]))


@dataclass
class CacheAware(Router):
    """Local hits only."""

    name = "reference-cache-aware"

    def route(self, request, cluster):
        ttft = cluster.queue_ms + cluster.prefill_ms(request, cluster.cached_tokens(request))
        p = int(ttft.argmin())
        return Route(prefill=p, ttft_ms=float(ttft[p]))


class AcceptAll(Admission):
    name = "reference-accept-all"

    def reject(self, request, route, cluster):
        return None


@dataclass
class LRU(Eviction):
    name = "reference-lru"
    last: OrderedDict[int, None] = field(default_factory=OrderedDict)

    def insert(self, blocks, positions):
        for block in blocks:
            self.last[block] = None

    def touch(self, blocks, positions):
        for block in blocks:
            self.last.move_to_end(block)

    def evict(self, pinned):
        victim = next(block for block in self.last if block not in pinned)
        del self.last[victim]
        return victim

    def remove(self, block):
        del self.last[block]
