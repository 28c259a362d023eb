"""One request on its way through the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.api import Request, Route
    from mooncake_bench.sim.network import Flow

UNFINISHED, COMPLETED, REJECTED, FAILED = range(4)
AT_ARRIVAL, AT_PREFILL, AT_DECODE = 1, 2, 3
NEVER = -1  # a time that has not come


class Job:
    """Everything the records need, filled in as the request moves. Times in ps, ``NEVER`` until they come."""

    status = UNFINISHED
    reject_stage = 0
    reject_reason = -1
    prefill = decode = -1
    route: Route | None = None
    cached_blocks = 0  # leading blocks its node held at routing
    hit_blocks = hit_tokens = fetched_tokens = computed = 0
    prefill_ps = 0  # what its prefill takes
    predicted_ttft_ms: float | None = None
    predicted_tbt_ms: float | None = None
    head_ps = start_ps = first_token_ps = kv_arrival_ps = first_join_ps = end_ps = NEVER
    joined_ps = joined_step = NEVER  # of its present stay in a batch
    context = steps_left = preemptions = 0
    fetch_source: int | None = None
    fetch: Flow | None = None
    fetch_blocks: Sequence[int] = ()
    stream: Flow | None = None
    new_blocks: Sequence[int] = ()
    stored: Sequence[int] = ()
    waits_for: Job | None = None

    def __init__(self, row: int, request: Request, arrival_ps: int, output_tokens: int) -> None:
        self.row = row
        self.request = request
        self.arrival_ps = arrival_ps
        self.input_tokens = request.input_tokens
        self.output_tokens = output_tokens
