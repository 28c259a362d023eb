"""The package's own engine behind the reference's signature, so that one test holds both to the same numbers."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

from mooncake_bench.hardware.cost import CostModel
from mooncake_bench.plugins import PolicySet
from mooncake_bench.sim import replay as sim_replay
from mooncake_bench.sim.setup import Setup
from mooncake_bench.trace import Trace

from .state import Req, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mooncake_bench.api import Admission, Eviction, Router
    from mooncake_bench.sim.replay import Replay

STATUS = ("unfinished", "completed", "rejected", "failed")
STAGES = ("", "arrival", "prefill", "decode")
COPIED = (
    "arrival_ps", "prefill_instance", "decode_instance", "hit_blocks", "hit_tokens", "fetched_tokens",
    "computed_tokens", "head_ps", "start_ps", "first_token_ps", "kv_arrival_ps", "join_ps", "second_token_ps", "end_ps",
    "preemptions", "predicted_ttft_ms",
)  # fmt: skip


class Borrowed(CostModel):
    """The costs of the reference as the package wants them."""

    def __init__(self, cost: Any) -> None:
        names = ("layers", "kv_bytes_per_token", "nic_bytes_per_s", "vram_tokens")
        same = {name: getattr(cost, name) for name in names}
        super().__init__(name="borrowed", version="1", error="for tests", **same)
        for name in CostModel.__abstractmethods__:
            object.__setattr__(self, name, getattr(cost, name))

    prefill_ps = prefill_ms = decode_ps = token_ps = step_ms = None  # each object has its own


def as_trace(requests: Sequence[Req], block_tokens: int) -> Trace:
    """The rows as columns. Arrivals up to 2**51 ps come back from float milliseconds as the same picoseconds."""
    return Trace(
        name="rows",
        arrival_ms=np.array([req.arrival_ps / 1e9 for req in requests]),
        input_tokens=np.array([req.input_tokens for req in requests]),
        output_tokens=np.array([req.output_tokens for req in requests]),
        block_offsets=np.cumsum([0, *(len(req.blocks) for req in requests)]),
        block_ids=np.array([block for req in requests for block in req.blocks]),
        block_tokens=block_tokens,
    )


def replay_with(
    trace: Trace,
    setup: Setup,
    router: Router,
    admission: Admission,
    make_eviction: Callable[[], Eviction],
    cost: Any = None,
    progress: Callable[[int, int, float], None] | None = None,
) -> Replay:
    """A replay under policy objects instead of a SPEC."""
    policies = PolicySet(
        label="test", spec="test", router=router, admission=admission, evictions=make_eviction,
        oracle=router.oracle or admission.oracle, sources={},
    )  # fmt: skip
    with mock.patch.object(sim_replay.plugins, "build", return_value=policies):
        return sim_replay.run(trace, setup, progress, cost=cost)


def simulate(
    requests: Sequence[Req],
    prefill: int,
    decode: int,
    cost: Any,
    router: Router,
    admission: Admission,
    make_eviction: Callable[[], Eviction],
    *,
    pool_blocks: int,
    block_tokens: int,
    ttft_slo_ms: float,
    tbt_slo_ms: float,
    touch_order: str = "tail-first",
    seed: int = 0,
) -> Result:
    """As :func:`reference.engine.simulate`."""
    setup = Setup(
        cluster=f"{prefill}P+{decode}D", pool_blocks=pool_blocks, touch_order=touch_order, seed=seed,
        slo_ttft_ms=ttft_slo_ms, slo_tbt_ms=tbt_slo_ms,
    )  # fmt: skip
    trace = as_trace(requests, block_tokens)
    cost = cost if isinstance(cost, CostModel) else Borrowed(cost)
    return as_result(replay_with(trace, setup, router, admission, make_eviction, cost))


def as_result(replay: Replay) -> Result:
    """What happened, in the reference's words."""
    columns = {name: replay.columns[name].tolist() for name in COPIED}
    status = [STATUS[i] for i in replay.columns["status"]]
    stage = [STAGES[i] for i in replay.columns["reject_stage"]]
    reason = ["" if i < 0 else replay.reasons[i] for i in replay.columns["reject_reason"]]
    rows = [
        {"row": row, "status": status[row], "reject_stage": stage[row], "reject_reason": reason[row]}
        | {name: values[row] for name, values in columns.items()}
        for row in range(len(replay.trace))
    ]
    counters = dict(replay.counters) | {"steps": int(replay.segments["steps"].sum())}
    return Result(rows, token_times_ps(replay), counters)


def token_times_ps(replay: Replay) -> list[list[int]]:
    """Every token's time: the prefill's end, then the ends of the request's steps over its stays, one by one."""
    ends: dict[int, list[int]] = defaultdict(list)  # instance: the end of each of its steps
    segments = replay.segments
    names = ("instance", "start_ps", "first_step", "steps", "step_ps", "growth_ps")
    columns = [segments[name].tolist() for name in names]
    for instance, start, first, steps, step, growth in zip(*columns, strict=True):
        assert first == len(ends[instance]), "an instance's stretches follow each other"
        for j in range(steps):
            start += step + j * growth
            ends[instance].append(start)
    times = [[first] if first >= 0 else [] for first in replay.columns["first_token_ps"].tolist()]
    for row, instance, first, steps in zip(
        *(replay.stays[name].tolist() for name in ("request", "instance", "first_step", "steps")), strict=True
    ):
        times[row] += ends[instance][first : first + steps]
    return times
