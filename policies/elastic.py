"""Instances that change sides: two pools that follow the load; not in the paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.api import Action, Admission, Cluster, Request, Route, SetRole

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass
class Elastic(Admission):
    """Admits all; moves an instance to the pool whose load exceeds the other's by ``gap`` for ``patience`` ticks.

    A pool's load is the mean over its instances of, prefill: queue / TTFT SLO; decode: the larger of step / TBT SLO and
    context / VRAM. The instance with the least to do moves; none moves for ``pause`` ticks after that.
    """

    name = "elastic"
    tick_ms: float = 1000.0
    gap: float = 0.3
    patience: int = 3
    pause: int = 10

    def start(self, cluster: Cluster, rng: np.random.Generator) -> None:
        self._uneven = 0  # ticks in a row at which a pool was short: above 0 prefill, below 0 decode
        self._rest = 0

    def reject(self, request: Request, route: Route, cluster: Cluster) -> str | None:
        return None

    def on_tick(self, cluster: Cluster) -> Sequence[Action]:
        self._rest -= 1
        prefill, decode = (np.flatnonzero(mask) for mask in (cluster.is_prefill, cluster.is_decode))
        if self._rest > 0 or not (prefill.size and decode.size):
            return ()
        tokens = cluster.decode_tokens + cluster.routed_tokens
        step = np.where(cluster.decode_batch > 0, cluster.step_ms(cluster.decode_batch, cluster.decode_tokens), 0.0)
        decoding = np.maximum(step[decode] / cluster.tbt_slo_ms, tokens[decode] / cluster.vram_tokens[decode])
        more = float((cluster.queue_ms[prefill] / cluster.ttft_slo_ms).mean() - decoding.mean())
        short = int(more > self.gap) - int(more < -self.gap)
        self._uneven = self._uneven + short if short * self._uneven >= 0 else short
        if not short:
            self._uneven = 0
        if abs(self._uneven) < self.patience or (decode if short > 0 else prefill).size < 2:
            return ()
        self._uneven, self._rest = 0, self.pause
        if short > 0:
            return [SetRole(int(decode[tokens[decode].argmin()]), "prefill")]
        return [SetRole(int(prefill[cluster.queue_ms[prefill].argmin()]), "decode")]
