"""Load-balancing routing: "the lightest load" of FAST'25 section 6.1 (figure 5) and of v3 figure 8."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from mooncake_bench.api import Cluster, Request, Route, Router


@dataclass
class LoadBalancing(Router):
    """The prefill instance with the least load, lowest id first; local hits only.

    The paper does not say how load is counted: ``by`` is ``queue`` (estimated time of the queued work) or
    ``requests`` (requests whose prefill has not ended).
    """

    name = "load-balancing"
    by: Literal["queue", "requests"] = "queue"

    def route(self, request: Request, cluster: Cluster) -> Route:
        load = cluster.queue_ms
        if self.by == "requests":
            load = np.where(np.isfinite(load), cluster.queue_requests, np.inf)
        return Route(prefill=int(load.argmin()))
