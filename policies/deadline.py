"""Deadline drop: work whose TTFT SLO is already lost is not prefilled; not in the paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.api import Admission, Cluster, Request, Route

if TYPE_CHECKING:
    from numpy.random import Generator


class Deadline(Admission):
    """Admits all, and drops a request at its turn to prefill when its first token would come after its TTFT SLO."""

    name = "deadline"

    def start(self, cluster: Cluster, rng: Generator) -> None:
        self._prefill_ms: dict[int, float] = {}  # of the admitted requests that have not had their turn, by row

    def reject(self, request: Request, route: Route, cluster: Cluster) -> str | None:
        # Hits are settled now: once its own blocks are promised to the node, they would read as hits too.
        hit = cluster.cached_tokens(request)
        if route.fetch_from is not None:
            hit = np.maximum(hit, cluster.fetchable_tokens(request)[route.fetch_from])
        self._prefill_ms[request.row] = float(cluster.prefill_ms(request, hit)[route.prefill])
        return None

    def reject_prefill(self, request: Request, route: Route, cluster: Cluster) -> str | None:
        first_token_ms = cluster.now_ms + self._prefill_ms.pop(request.row)
        slo_ms = request.ttft_slo_ms or cluster.ttft_slo_ms
        return "ttft" if first_token_ms > request.arrival_ms + slo_ms else None
