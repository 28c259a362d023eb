"""A cap on the prefill queue: the plain overload guard of most servers; not in the paper."""

from __future__ import annotations

from dataclasses import dataclass

from mooncake_bench.api import Admission, Cluster, Request, Route


@dataclass
class QueueCap(Admission):
    """Turns away a request whose prefill instance has ``limit`` requests queued or running already."""

    name = "queue-cap"
    limit: int = 32

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise ValueError(f"limit must be 1 or more, found {self.limit}")

    def reject(self, request: Request, route: Route, cluster: Cluster) -> str | None:
        return "queue" if cluster.queue_requests[route.prefill] >= self.limit else None
