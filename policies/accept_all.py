"""No admission control: how the paper's routing experiments (FAST'25 figure 5) are read here."""

from __future__ import annotations

from mooncake_bench.api import Admission, Cluster, Request, Route


class AcceptAll(Admission):
    """Every request is admitted."""

    name = "accept-all"

    def reject(self, request: Request, route: Route, cluster: Cluster) -> str | None:
        return None
