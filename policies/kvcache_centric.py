"""KVCache-centric routing: Algorithm 1 of FAST'25 and v3 (sections "KVCache-centric scheduling")."""

from __future__ import annotations

from dataclasses import dataclass

from mooncake_bench.api import Cluster, Request, Route, Router


@dataclass
class KVCacheCentric(Router):
    """Algorithm 1: least estimated TTFT, fetching the best remote prefix when it is far longer than the local one.

    ``threshold`` is the algorithm's kvcache_balancing_threshold, a ratio of tokens; the paper publishes no value.
    Its SLO gate is the admission's business.
    """

    name = "kvcache-centric"
    threshold: float = 4.0

    def __post_init__(self) -> None:
        if not 1 <= self.threshold < float("inf"):  # below 1, a shorter prefix would be fetched
            raise ValueError(
                f"threshold must be 1 or more and finite (cache-aware never fetches), found {self.threshold}"
            )

    def route(self, request: Request, cluster: Cluster) -> Route:
        hit, remote = cluster.cached_tokens(request), cluster.fetchable_tokens(request)  # per instance
        best = int(remote.argmax())
        fetch = (remote[best] - hit) * (remote[best] > self.threshold * hit)
        ttft = cluster.queue_ms + cluster.fetch_ms(fetch, best) + cluster.prefill_ms(request, hit + fetch)
        p = int(ttft.argmin())
        return Route(prefill=p, fetch_from=best if fetch[p] else None, ttft_ms=float(ttft[p]))
