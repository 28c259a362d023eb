"""One policy at one capacity."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_bench.cache.columns import check_numbers
from mooncake_bench.cache.point import ASSIGNMENTS, TOUCH_ORDERS
from mooncake_bench.cache.run import Run
from mooncake_bench.cache.spec import choose
from mooncake_bench.collector import no_collections
from mooncake_bench.errors import SetupError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mooncake_bench.cache.point import Assignment, Point, TouchOrder
    from mooncake_bench.cache.spec import Chosen
    from mooncake_bench.trace import Trace

MAX_POOLS = 4096


def simulate(
    trace: Trace,
    spec: str,
    capacity_blocks: int | None,
    *,
    touch_order: TouchOrder = "forward",
    pools: int = 1,
    assignment: Assignment = "round-robin",
    ready_after_ms: float = 0.0,
    warm_requests: int = 0,
    policy_dirs: Sequence[Path] = (),
) -> Point:
    """Serve the trace with ``pools`` caches of ``capacity_blocks`` each (None: infinite) under one eviction policy.

    ``spec`` is a SPEC of one eviction policy. ``ready_after_ms``: a stored block is no hit for requests that arrive
    less than this after it was stored. Raises SetupError for numbers out of range, PolicyError for a SPEC that cannot
    be used or a policy that names a block which is not stored.
    """
    chosen = choose(spec, policy_dirs)
    return serve(trace, chosen, capacity_blocks, touch_order, pools, assignment, ready_after_ms, warm_requests)


def serve(
    trace: Trace,
    chosen: Chosen,
    capacity_blocks: int | None,
    touch_order: TouchOrder,
    pools: int,
    assignment: Assignment,
    ready_after_ms: float,
    warm_requests: int,
) -> Point:
    """:func:`simulate` with a policy found before."""
    check_numbers(trace, capacity_blocks, warm_requests)
    check_choices(touch_order, pools, assignment, ready_after_ms)
    room = max(len(trace.block_ids), 1) if capacity_blocks is None else capacity_blocks
    with no_collections():
        columns = Run(chosen, room, pools, ready_after_ms).serve(trace, assignment, touch_order == "reverse")
    labels = {
        "policy": chosen.label,
        "spec": chosen.spec,
        "capacity_blocks": capacity_blocks,
        "assignment": assignment if pools > 1 else None,
        "touch_order": touch_order,
        "ready_after_ms": ready_after_ms,
    }
    return columns.point(trace, pools, warm_requests, labels)


def check_choices(touch_order: str, pools: int, assignment: str, ready_after_ms: float) -> None:
    """Raises SetupError for a word or a number that cannot be used."""
    for name, word, known in (("touch_order", touch_order, TOUCH_ORDERS), ("assignment", assignment, ASSIGNMENTS)):
        if word not in known:
            raise SetupError(f"{name} is {word!r}{nearest(str(word), known)}; expected one of {', '.join(known)}")
    if not 1 <= pools <= MAX_POOLS:
        raise SetupError(f"pools is {pools}; expected from 1 to {MAX_POOLS}")
    if not 0 <= ready_after_ms < float("inf"):
        raise SetupError(f"ready_after_ms is {ready_after_ms}; expected a finite time of 0 or more, ms")
