"""What the reference keeps of requests and instances."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mooncake_bench.api import Request, Route

    from .network import Flow
    from .pool import Pool


@dataclass(frozen=True)
class Req:
    """One row of a trace."""

    row: int
    arrival_ps: int
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]


@dataclass
class Result:
    requests: list[dict[str, Any]]  # one dict a request, in the order given
    token_times_ps: list[list[int]]  # every token's time, first token included
    counters: dict[str, float]


@dataclass(eq=False)
class Job:
    """An offered request on its way."""

    req: Req
    request: Request
    columns: dict[str, Any]
    times: list[int]
    route: Route = None  # type: ignore[assignment]
    decode: int = -1
    context: int = 0  # tokens its KV holds: n + 1 until its first step
    steps_left: int = 0
    last_join_ps: int = -1
    estimate_ps: int = 0  # E by the hits counted at routing
    pinned: list[int] = field(default_factory=list)
    new: list[int] = field(default_factory=list)  # those of them that it took slots for
    waits_for: Job | None = None
    fetch: Flow | None = None
    fetch_pins: list[int] = field(default_factory=list)
    fetched: range = range(0)  # positions of the prompt's blocks brought by the fetch
    stream: Flow | None = None


@dataclass(eq=False)
class Node:
    pool: Pool
    queue: list[Job] = field(default_factory=list)  # routed, not started (the head included)
    head: Job | None = None  # whose turn it is, waiting for its fetch
    running: Job | None = None
    running_end_ps: int = -1
    dropped: bool = False  # a routed request was turned away here before its prefill


@dataclass(eq=False)
class Decoder:
    number: int
    vram: int
    batch: list[Job] = field(default_factory=list)  # in join order
    waiting: deque[Job] = field(default_factory=deque)  # in KV-arrival order
    preempted: deque[Job] = field(default_factory=deque)
    stepping: bool = False
    step_end_ps: int = -1  # of the step under way
    posted: bool = False  # a boundary is pending
