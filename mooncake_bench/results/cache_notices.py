"""What must be said beside the numbers of a cache analysis, lest they be misread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_bench.results.words import counted, integer, share

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mooncake_bench.cache import Point
    from mooncake_bench.results.cache_analysis import Analysis

LOPSIDED = 0.9  # of the requests: a pool that serves more works alone
LISTED = 8  # pools whose requests are told one by one
COSTLY, PLAIN = "gdsf", "lfu-da"


def notices(analysis: Analysis) -> tuple[str, ...]:
    """All of them: pools that did not share the work, policies that cannot differ here, sizes that change nothing."""
    return (*_lopsided(analysis), *_alike(analysis), *_idle(analysis))


def lopsided(analysis: Analysis) -> tuple[str, ...]:
    """Only that of pools that did not share the work: hits are then those of fewer pools than were asked for."""
    return tuple(_lopsided(analysis))


def _lopsided(analysis: Analysis) -> Iterator[str]:
    found = [
        (label, size, point)
        for label in analysis.labels
        for size in analysis.capacities
        if _is_lopsided(point := analysis.points[label, size.blocks])
    ]
    if not found:
        return
    label, size, point = max(found, key=lambda each: max(each[2].pool_requests))
    empty, most = point.pool_requests.count(0), max(point.pool_requests) / point.requests
    if empty:
        what = f"{empty} of {point.pools} pools served no request, so that their capacity was unused"
    else:
        what = f"one of {point.pools} pools served {share(most)} of the requests, the others' capacity was hardly used"
    yield (
        f"{point.assignment}: {what} ({label} at {size.name}; {_by_pool(point)}); "
        f"pools were as unequal at {len(found)} of {counted(len(analysis.points), 'point')}"
    )


def _is_lopsided(point: Point) -> bool:
    served = point.pool_requests
    return point.pools > 1 and point.requests > 0 and (max(served) > LOPSIDED * point.requests or 0 in served)


def _by_pool(point: Point) -> str:
    served = point.pool_requests
    more = len(served) - LISTED
    text = ", ".join(integer(count) for count in sorted(served, reverse=True)[:LISTED])
    return f"requests by pool, most first: {text}{f', and {more} pools more' if more > 0 else ''}"


def _alike(analysis: Analysis) -> Iterator[str]:
    size = analysis.capacities[0].blocks
    specs = {
        label: analysis.points[label, size].spec.partition(":")[0].rpartition("=")[2].strip()
        for label in analysis.labels
    }
    for label in (label for label, name in specs.items() if name == COSTLY):
        yield f"{label}: no block has a cost of its own without a cluster, so it gives up the same blocks as {PLAIN}"


def _idle(analysis: Analysis) -> Iterator[str]:
    idle = [size.name for size in analysis.finite() if not any(
        analysis.points[label, size.blocks].evictions for label in analysis.labels)]  # fmt: skip
    if idle:
        yield f"nothing was evicted at {', '.join(idle)}: a larger cache cannot find more"
