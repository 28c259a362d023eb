"""Hot blocks copied by decision; not in the paper, where they spread as requests fetch them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from mooncake_bench.api import Cluster, Replicate, Request, Route, Router

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.random import Generator


@dataclass
class HotReplicas(Router):
    """Least estimated TTFT from each instance's own hits; at every tick hot prefixes are copied to who lacks them.

    A prefix is hot when ``uses`` requests since the last tick began with it; the ``prefixes`` most used ones are
    copied, each from the instance that has most of it. No request fetches.
    """

    name = "hot-replicas"
    tick_ms: float = 10_000.0
    uses: int = 4
    prefixes: int = 8

    def __post_init__(self) -> None:
        for name in ("uses", "prefixes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is a number from 1, found {getattr(self, name)}")

    def start(self, cluster: Cluster, rng: Generator) -> None:
        self._recent: list[Request] = []

    def route(self, request: Request, cluster: Cluster) -> Route:
        self._recent.append(request)
        ttft = cluster.queue_ms + cluster.prefill_ms(request, cluster.cached_tokens(request))
        p = int(ttft.argmin())
        return Route(prefill=p, ttft_ms=float(ttft[p]))

    def on_tick(self, cluster: Cluster) -> Sequence[Replicate]:
        recent, self._recent = self._recent, []
        used = Counter(chain.from_iterable(request.blocks for request in recent))
        hot: dict[int, tuple[Request, int]] = {}  # the last block of a hot prefix: who has it, and its length
        for request in recent:
            length = 0
            for block in request.blocks:
                if used[block] < self.uses:
                    break
                length += 1
            if length:
                hot[request.blocks[length - 1]] = request, length
        hottest = sorted(hot, key=lambda block: -used[block])[: self.prefixes]
        return [copy for block in hottest for copy in self._copies(*hot[block], cluster)]

    def _copies(self, request: Request, length: int, cluster: Cluster) -> list[Replicate]:
        ready, had = cluster.fetchable_tokens(request), cluster.cached_tokens(request)
        source = int(ready.argmax())
        tokens = min(int(ready[source]), length * cluster.block_tokens)
        blocks = request.blocks[: tokens // cluster.block_tokens]
        lacking = (cluster.is_prefill & (had < len(blocks) * cluster.block_tokens)).nonzero()[0].tolist()
        return [Replicate(source, target, blocks) for target in lacking if target != source]
