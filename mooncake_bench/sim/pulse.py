"""How a cluster is doing just now: what a person who waits for a long replay wants to see. It changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from mooncake_bench.sim.cluster import Cluster
    from mooncake_bench.sim.setup import Setup

PS_PER_MS = 1e9


class Pulse(NamedTuple):
    """Loads are those of the timeline: 1 is at the SLO, or full. None: no instance has the role."""

    simulated_ms: float
    prefill_load_ratio: float | None
    decode_load_ratio: float | None
    queued_requests: int
    decoding_requests: int
    rejected_requests: int


def pulse(cluster: Cluster, setup: Setup) -> Pulse:
    """The state of this moment, whatever policies see of it."""
    state, view, now = cluster.state, cluster.brain.view, cluster.now
    wait_ms = np.maximum(state.work_end - now, 0)[view.is_prefill] / PS_PER_MS
    batch = state.decode.batches()
    tokens, _ = state.decode.at(now)
    step_ms = np.where(batch > 0, cluster.cost.step_ms(np.maximum(batch, 1), tokens), 0.0)
    load = np.maximum(step_ms / setup.slo_tbt_ms, tokens / np.maximum(cluster.cost.vram_tokens, 1))[view.is_decode]
    return Pulse(
        now / PS_PER_MS,
        float(wait_ms.mean()) / setup.slo_ttft_ms if len(wait_ms) else None,
        float(load.mean()) if len(load) else None,
        int(view.queue_requests[view.is_prefill].sum()),
        int(batch[view.is_decode].sum()),
        cluster.rejected,
    )
