"""One request on its way through the cluster."""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.api import Request, Route
    from mooncake_bench.sim.network import Flow
    from mooncake_bench.sim.tiers import Load

UNFINISHED, COMPLETED, REJECTED, FAILED = range(4)
AT_ARRIVAL, AT_PREFILL, AT_DECODE = 1, 2, 3
NEVER = -1  # a time that has not come
CANCELLED = "cancelled: "  # how the reason of every request that was called off begins


class Job:
    """Everything the records need, filled in as the request moves. Times in ps, ``NEVER`` until they come."""

    __slots__ = (
        "arrival_ps",
        "attempts",
        "awaits",
        "cached_blocks",
        "computed",
        "context",
        "decode",
        "end_ps",
        "fetch",
        "fetch_blocks",
        "fetch_end_ps",
        "fetch_ideal_ps",
        "fetch_source",
        "fetch_start_ps",
        "fetched_tokens",
        "first_join_ps",
        "first_token_ps",
        "head_ps",
        "hit_blocks",
        "hit_tokens",
        "input_tokens",
        "joined_ps",
        "joined_step",
        "kv_arrival_ps",
        "left",
        "load",
        "lost_ps",
        "lost_tokens",
        "mark",
        "new_blocks",
        "output_tokens",
        "predicted_tbt_ms",
        "predicted_ttft_ms",
        "preemptions",
        "prefill",
        "prefill_ps",
        "reject_reason",
        "reject_stage",
        "rejections",
        "request",
        "route",
        "row",
        "start_ps",
        "status",
        "steps_left",
        "stored",
        "stream",
        "stream_start_ps",
        "turn_ps",
        "used_ps",
        "wait_ps",
        "waited_ps",
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
    turn_ps: int  # how long that keeps the next one of its instance waiting: as long, except in a pipeline
    predicted_ttft_ms: float
    predicted_tbt_ms: float | None
    mark: int  # work routed to its prefill instance up to and with it, ps
    joined_ps: int  # of its present stay in a batch
    joined_step: int
    new_blocks: Sequence[int]
    stored: Sequence[int]
    stream: Flow
    # on coupled instances
    left: int  # tokens that its prefill has still to compute
    used_ps: int  # its share of the steps that computed the others
    wait_ps: int  # estimate of its prefill while it queues

    def __init__(self, row: int, request: Request, arrival_ps: int, output_tokens: int) -> None:
        self.row = row
        self.request = request
        self.arrival_ps = arrival_ps
        self.input_tokens = request.input_tokens
        self.output_tokens = output_tokens
        self.context = request.input_tokens + 1
        self.steps_left = output_tokens - 1
        self.status = UNFINISHED
        self.attempts = 1
        self.used_ps = NEVER
        self.rejections = self.waited_ps = 0  # of its attempts; until the present one came
        self.lost_ps = self.lost_tokens = 0  # prefill of the attempts before this one: time, and tokens computed
        self.reject_stage = self.fetched_tokens = self.preemptions = 0
        self.reject_reason = -1
        self.head_ps = self.start_ps = self.first_token_ps = self.kv_arrival_ps = NEVER
        self.first_join_ps = self.end_ps = NEVER
        self.fetch_start_ps = self.fetch_end_ps = self.fetch_ideal_ps = self.stream_start_ps = NEVER
        self.fetch: Flow | None = None
        self.fetch_source: int | None = None
        self.fetch_blocks: Sequence[int] = ()
        self.waits_for: Job | None = None
        self.load: Load | None = None  # what it loads from its node's SSD
        self.awaits: tuple[Flow, ...] = ()  # what its prefill waits for besides its fetch

    def spent_ps(self, now: int) -> int:
        """How much of its prefill is done; on a coupled instance by the last step, of a pipeline at its first stage."""
        if self.start_ps < 0:
            return 0
        if self.used_ps >= 0:
            return self.used_ps
        return self.turn_ps if self.first_token_ps >= 0 else min(now - self.start_ps, self.turn_ps)

    def start_over(self, now: int) -> None:
        """Forget all about this attempt except what it cost: as much of its prefill as was done is lost."""
        if self.start_ps >= 0:
            spent = self.spent_ps(now)
            self.lost_ps += spent
            coupled = self.used_ps >= 0
            self.lost_tokens += self.computed - self.left if coupled else self.computed * spent // self.turn_ps
        self.prefill = self.decode = -1
        self.cached_blocks = self.hit_blocks = self.hit_tokens = self.computed = self.prefill_ps = 0
        self.predicted_ttft_ms, self.predicted_tbt_ms = nan, None
        self.context = self.input_tokens + 1
        self.steps_left = self.output_tokens - 1
        self.status = UNFINISHED
        self.reject_stage = self.fetched_tokens = self.preemptions = 0
        self.reject_reason = -1
        self.head_ps = self.start_ps = self.first_token_ps = self.kv_arrival_ps = NEVER
        self.first_join_ps = self.end_ps = NEVER
        self.fetch_start_ps = self.fetch_end_ps = self.fetch_ideal_ps = self.stream_start_ps = NEVER
        self.fetch = self.fetch_source = self.waits_for = self.load = None
        self.awaits = ()
        self.fetch_blocks = self.new_blocks = self.stored = ()
