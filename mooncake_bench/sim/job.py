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

    __slots__ = (
        "arrival_ps", "cached_blocks", "computed", "context", "decode", "end_ps", "fetch", "fetch_blocks",
        "fetch_source", "fetched_tokens", "first_join_ps", "first_token_ps", "head_ps", "hit_blocks", "hit_tokens",
        "input_tokens", "joined_ps", "joined_step", "kv_arrival_ps", "mark", "new_blocks", "output_tokens",
        "predicted_tbt_ms", "predicted_ttft_ms", "preemptions", "prefill", "prefill_ps", "reject_reason",
        "reject_stage", "request", "route", "row", "start_ps", "status", "steps_left", "stored", "stream",
        "waits_for",
    )  # fmt: skip

    prefill: int
    decode: int
    route: Route
    cached_blocks: int  # leading blocks its node held at routing
    hit_blocks: int
    hit_tokens: int
    computed: int
    prefill_ps: int  # what its prefill takes
    predicted_ttft_ms: float
    predicted_tbt_ms: float | None
    mark: int  # work routed to its prefill instance up to and with it, ps
    joined_ps: int  # of its present stay in a batch
    joined_step: int
    new_blocks: Sequence[int]
    stored: Sequence[int]
    stream: Flow

    def __init__(self, row: int, request: Request, arrival_ps: int, output_tokens: int) -> None:
        self.row = row
        self.request = request
        self.arrival_ps = arrival_ps
        self.input_tokens = request.input_tokens
        self.output_tokens = output_tokens
        self.context = request.input_tokens + 1
        self.steps_left = output_tokens - 1
        self.status = UNFINISHED
        self.reject_stage = self.fetched_tokens = self.preemptions = 0
        self.reject_reason = -1
        self.head_ps = self.start_ps = self.first_token_ps = self.kv_arrival_ps = NEVER
        self.first_join_ps = self.end_ps = NEVER
        self.fetch: Flow | None = None
        self.fetch_source: int | None = None
        self.fetch_blocks: Sequence[int] = ()
        self.waits_for: Job | None = None
