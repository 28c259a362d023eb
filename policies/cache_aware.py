"""Local cache-aware routing: FAST'25 section 6.1 (figure 5), v3 figure 8; Algorithm 1 without remote prefixes."""

from __future__ import annotations

from mooncake_bench.api import Cluster, Request, Route, Router


class CacheAware(Router):
    """Least estimated TTFT from each instance's own hits: Algorithm 1, infinite threshold, nothing fetched."""

    name = "cache-aware"

    def route(self, request: Request, cluster: Cluster) -> Route:
        ttft = cluster.queue_ms + cluster.prefill_ms(request, cluster.cached_tokens(request))
        p = int(ttft.argmin())
        return Route(prefill=p, ttft_ms=float(ttft[p]))
