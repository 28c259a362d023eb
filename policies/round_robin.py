"""Round-robin routing: the usual default of a load balancer; not in the paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.api import Cluster, Request, Route, Router

if TYPE_CHECKING:
    from numpy.random import Generator


class RoundRobin(Router):
    """The live prefill instances in turn, from the lowest id; local hits only."""

    name = "round-robin"

    def start(self, cluster: Cluster, rng: Generator) -> None:
        self._last = -1

    def route(self, request: Request, cluster: Cluster) -> Route:
        alive = np.flatnonzero(np.isfinite(cluster.queue_ms))
        turn = int(alive.searchsorted(self._last, side="right")) % alive.size
        self._last = int(alive[turn])
        return Route(prefill=self._last)
