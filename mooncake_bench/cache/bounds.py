"""What no cache can beat: offline optima that see the whole trace.

A stored block with a later use is an interval from one reference to the next. Each function decides which intervals
survive; ``dropped`` names the request at which each of the others was given up, so everything else follows from it.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.cache.columns import EVICTED, FIRST_SIGHT, NONE, Columns, check_numbers
from mooncake_bench.cache.uses import Uses, leading, uses

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from mooncake_bench.cache.point import Point, TouchOrder
    from mooncake_bench.trace import Trace
    from mooncake_bench.trace.model import Ints

    Bools = NDArray[np.bool_]

BOUNDS = ("optimum", "belady", "belady-bypass")  # names that study() takes beside SPECs

_KEPT = -1


def optimum(trace: Trace, capacity_blocks: int | None, *, warm_requests: int = 0) -> Point:
    """The exact offline optimum when a request's blocks are kept or given up together, after it was served.

    Of stored and new blocks those with the nearest next use are kept. No policy has more hits per block, and none more
    prefix blocks where ids are prefix-chained (tokens may differ by partial blocks). ``evictions`` counts the blocks
    with a later use that were not kept until then. Raises SetupError for a capacity below 1.
    """
    check_numbers(trace, capacity_blocks, warm_requests)
    seen = uses(trace, reverse=False)
    room = len(seen.row) if capacity_blocks is None else capacity_blocks
    dropped, peak = _keep_nearest(seen, seen.offsets[1:].tolist(), room)
    return _point(trace, seen, dropped, "optimum", capacity_blocks, "forward", warm_requests, peak=peak)


def belady(
    trace: Trace,
    capacity_blocks: int | None,
    *,
    bypass: bool = False,
    touch_order: TouchOrder = "forward",
    warm_requests: int = 0,
) -> Point:
    """Belady's MIN, block by block: gives up the block whose next use is farthest.

    With ``bypass`` the block that comes may itself be the one not kept; ``evictions`` then counts as that of
    :func:`optimum`. Raises SetupError for a capacity below 1.
    """
    check_numbers(trace, capacity_blocks, warm_requests)
    seen = uses(trace, reverse=touch_order == "reverse")
    room = len(seen.row) if capacity_blocks is None else capacity_blocks
    if bypass:
        dropped, peak = _keep_nearest(seen, range(1, len(seen.row) + 1), room)
        name, forced = "belady-bypass", None
    else:
        dropped, forced, peak = _replace_farthest(seen, room)
        name = "belady"
    return _point(trace, seen, dropped, name, capacity_blocks, touch_order, warm_requests, forced, peak)


def _keep_nearest(seen: Uses, ends: Iterable[int], room: int) -> tuple[Ints, int]:
    """Keep the ``room`` nearest intervals whenever a batch of references, up to each of ``ends``, has been served.

    The request at which each interval was given up, by the reference it ends at; and the most that were kept.
    """
    previous, following, row = seen.previous.tolist(), seen.following.tolist(), seen.row.tolist()
    never = len(row)
    dropped = [_KEPT] * never
    farthest: list[int] = []  # ends of intervals, negated; those in the past are the last to come up
    kept = peak = start = 0
    for end in ends:
        for at in range(start, end):
            if previous[at] >= 0 and dropped[at] == _KEPT:
                kept -= 1
            if following[at] < never:
                heappush(farthest, -following[at])
                kept += 1
        while kept > room:
            dropped[-heappop(farthest)] = row[start]
            kept -= 1
        peak = max(peak, kept)
        start = end
    return np.array(dropped, np.int64), peak


def _replace_farthest(seen: Uses, room: int) -> tuple[Ints, Ints, int]:
    """Every block that comes is stored, and the one used farthest in the future goes for it.

    As :func:`_keep_nearest`, and between these the request of each replacement.
    """
    previous, following, row = seen.previous.tolist(), seen.following.tolist(), seen.row.tolist()
    never = len(row)
    dropped = [_KEPT] * never
    farthest: list[int] = []
    replaced = []
    kept = useless = peak = (
        0  # stored blocks with a later use, and without one: which of these goes makes no difference
    )
    for at in range(never):
        if previous[at] >= 0 and dropped[at] == _KEPT:
            kept -= 1
        elif kept + useless == room:
            replaced.append(row[at])
            if useless:
                useless -= 1
            else:
                dropped[-heappop(farthest)] = row[at]
                kept -= 1
        if following[at] < never:
            heappush(farthest, -following[at])
            kept += 1
        else:
            useless += 1
        peak = max(peak, kept + useless)
    return np.array(dropped, np.int64), np.array(replaced, np.int64), peak


def _point(
    trace: Trace,
    seen: Uses,
    dropped: Ints,
    name: str,
    capacity_blocks: int | None,
    touch_order: TouchOrder,
    warm: int,
    replaced: Ints | None = None,
    peak: int = 0,
) -> Point:
    labels = {
        "policy": name,
        "spec": name,
        "capacity_blocks": capacity_blocks,
        "assignment": None,
        "touch_order": touch_order,
        "ready_after_ms": 0.0,
    }
    return _columns(trace, seen, dropped, replaced, peak).point(trace, 1, warm, labels)


def _columns(trace: Trace, seen: Uses, dropped: Ints, replaced: Ints | None, peak: int) -> Columns:
    """What follows from the request at which each reference's block had been given up."""
    again = seen.previous >= 0
    held = again & ((dropped == _KEPT) | (dropped == seen.row))  # at the arrival; it may have gone by its turn
    prefix = leading(seen, held)
    beyond = seen.place >= prefix[seen.row]
    evicted = beyond & again & ~held
    first = beyond & (seen.place == prefix[seen.row])
    reasons = np.full(len(trace), NONE, np.int64)
    reasons[seen.row[first]] = np.where(again[first], EVICTED, FIRST_SIGHT)

    def per_request(marked: Bools) -> Ints:
        return np.bincount(seen.row[marked], minlength=len(trace))

    given_up = dropped[dropped != _KEPT] if replaced is None else replaced
    nothing = np.zeros(len(trace), np.int64)
    return Columns(
        prefix=prefix,
        hits=per_request(again & (dropped == _KEPT)),
        not_ready=nothing,
        behind_gap=per_request(beyond & held),
        elsewhere=nothing,
        evicted=per_request(evicted),
        first_miss=reasons,
        evictions=np.bincount(given_up, minlength=len(trace)),
        pool=nothing,
        evicted_ago_ms=trace.arrival_ms[seen.row[evicted]] - trace.arrival_ms[dropped[evicted]],
        peak_blocks=peak,
    )
