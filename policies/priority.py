"""Priority queues: urgent requests are prefilled first, and waiting makes urgent; not in the paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.api import Cluster, Request, Route, Router

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass
class Priority(Router):
    """Prefills the highest priority first, then the earliest arrival; routes by the least estimated TTFT.

    A higher number is more urgent. Every ``ageing_ms`` of waiting counts as one priority more, so that nobody starves;
    ``inf`` lets nobody age. The TTFT is estimated as if queues were first come, first served, with the longest prefix
    fetched from another instance where that comes sooner.
    """

    name = "priority"
    ageing_ms: float = 60_000.0

    def __post_init__(self) -> None:
        if not self.ageing_ms > 0:
            raise ValueError(f"ageing_ms must be a duration above 0, or inf, found {self.ageing_ms}")

    def route(self, request: Request, cluster: Cluster) -> Route:
        hit, remote = cluster.cached_tokens(request), cluster.fetchable_tokens(request)
        best = int(remote.argmax())
        fetch = np.maximum(remote[best] - hit, 0)
        alone = cluster.queue_ms + cluster.prefill_ms(request, hit)
        fetched = cluster.queue_ms + cluster.fetch_ms(fetch, best) + cluster.prefill_ms(request, hit + fetch)
        fetched[fetch == 0] = np.inf
        ttft = np.minimum(alone, fetched)
        p = int(ttft.argmin())
        return Route(prefill=p, fetch_from=best if fetched[p] < alone[p] else None, ttft_ms=float(ttft[p]))

    def order(self, instance: int, queue: Sequence[Request], cluster: Cluster) -> int:
        # as much is added to everybody's by now, so the time of arrival is enough to compare ages
        urgency = [request.priority - request.arrival_ms / self.ageing_ms for request in queue]
        return max(range(len(queue)), key=lambda i: (urgency[i], -queue[i].arrival_ms, -i))
