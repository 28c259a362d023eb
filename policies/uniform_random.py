"""Random routing: the weakest baseline of FAST'25 section 6.1 (figure 5) and of v3 figure 8."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.api import Cluster, Request, Route, Router

if TYPE_CHECKING:
    from numpy.random import Generator


class Random(Router):
    """Any live prefill instance, each as likely, drawn from the policy's own seeded stream; local hits only."""

    name = "random"

    def start(self, cluster: Cluster, rng: Generator) -> None:
        self._rng = rng

    def route(self, request: Request, cluster: Cluster) -> Route:
        alive = np.flatnonzero(np.isfinite(cluster.queue_ms))
        return Route(prefill=int(alive[self._rng.integers(alive.size)]))
