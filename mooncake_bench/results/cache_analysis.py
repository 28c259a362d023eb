"""What a cache analysis found: policies and bounds at capacities, under each definition of a hit."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from mooncake_bench.results.cache_notices import notices

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mooncake_bench.cache import Assignment, Point, TouchOrder

BOUND = "optimum"  # the offline bound that every policy is held against
REFERENCE_TOKENS = 3_000_000  # about 1 TB of KVCache of the papers' models, a node's DRAM


class Definition(NamedTuple):
    """A hit ratio: the counts it divides, and in words."""

    name: str
    hits: str  # a field of Point
    of: str  # a field of Point
    found: str
    whole: str

    @property
    def ratio_name(self) -> str:
        """What its ratio is called in JSON, CSV and parquet."""
        return f"hit_ratio_{self.name.replace('-', '_')}"

    def ratio(self, point: Point) -> float | None:
        """Hits over the denominator; None where that is 0."""
        whole = getattr(point, self.of)
        return getattr(point, self.hits) / whole if whole else None


DEFINITIONS = {
    each.name: each
    for each in (
        Definition("blocks", "prefix_blocks", "blocks", "leading blocks of prompts found", "blocks"),
        Definition("tokens", "prefix_tokens", "tokens", "leading tokens of prompts found", "prompt tokens"),
        Definition(
            "full-blocks", "prefix_full_blocks", "full_blocks", "leading full blocks of prompts found", "full blocks"
        ),
        Definition("per-block", "block_hits", "blocks", "blocks found, each looked up by itself", "blocks"),
    )
}
USUAL = "blocks"


class Capacity(NamedTuple):
    """A size of each pool as it was written, and in blocks (None: infinite)."""

    text: str
    blocks: int | None

    @property
    def name(self) -> str:
        """As it was written, with separators where that is a count of blocks."""
        return f"{self.blocks:,}" if self.blocks is not None and self.text.isdecimal() else self.text


@dataclass(frozen=True)
class Model:
    """How the trace is served; the fields are those of :class:`mooncake_bench.cache.Point`."""

    touch_order: TouchOrder = "forward"
    pools: int = 1
    assignment: Assignment = "round-robin"  # no effect on one pool
    ready_after_ms: float = 0.0
    warm_requests: int = 0


@dataclass(frozen=True)
class Analysis:
    """Points of several policies at several capacities, with the bound and the ceiling that hold for all of them."""

    trace_name: str
    trace_sha256: str
    trace_requests: int
    model: Model
    capacities: tuple[Capacity, ...]
    labels: tuple[str, ...]  # of policies, in the order given; the bound is not among them
    offline: frozenset[str]  # labels of those that see the future
    points: Mapping[tuple[str, int | None], Point]  # by label and capacity of each pool
    bounds: Mapping[int | None, Point]  # the optimum of one pool as large as all together, by capacity of each pool;
    # without waiting for blocks to be ready
    ceiling: Point  # one infinite pool; what it says of the work (requests, blocks, tokens) is true of every point

    def of_bound(self, label: str, capacity: Capacity, definition: Definition) -> float | None:
        """A policy's hits over the bound's; None where the bound has none."""
        most = getattr(self.bounds[capacity.blocks], definition.hits)
        return getattr(self.points[label, capacity.blocks], definition.hits) / most if most else None

    def finite(self) -> tuple[Capacity, ...]:
        """The capacities at which something can be evicted."""
        return tuple(capacity for capacity in self.capacities if capacity.blocks is not None)

    def reference(self) -> Capacity | None:
        """The finite capacity nearest to 3 M tokens, where reasons are shown first; None where there is none."""
        aim = math.log(REFERENCE_TOKENS / self.ceiling.block_tokens)
        finite = self.finite()
        return min(finite, key=lambda each: abs(math.log(each.blocks or 1) - aim)) if finite else None


def rows(analysis: Analysis) -> Iterator[dict[str, Any]]:
    """Every number of every policy and bound at every capacity: plain values, undefined ones None.

    ``capacity_blocks`` is what each of the row's ``pools`` holds; a bound's one pool is as large as all that are
    studied, and ``capacity`` and ``studied_capacity_blocks`` say beside which size it stands.
    """
    for capacity in analysis.capacities:
        bound = analysis.bounds[capacity.blocks]
        for label in analysis.labels:
            role = "offline" if label in analysis.offline else "policy"
            point = analysis.points[label, capacity.blocks]
            yield _row(analysis, label, role, capacity, point, bound)
        yield _row(analysis, BOUND, "bound", capacity, bound, bound)
    yield _row(analysis, "infinite", "ceiling", Capacity("inf", None), analysis.ceiling, analysis.ceiling)


def _row(analysis: Analysis, label: str, role: str, capacity: Capacity, point: Point, bound: Point) -> dict[str, Any]:
    ago = point.evicted_ago_ms or {}
    return {
        "trace": analysis.trace_name,
        "trace_sha256": analysis.trace_sha256,
        "policy": label,
        "spec": point.spec,
        "role": role,
        "capacity": capacity.text,
        "studied_capacity_blocks": capacity.blocks,
        "capacity_blocks": point.capacity_blocks,
        "pools": point.pools,
        "assignment": point.assignment,
        "touch_order": point.touch_order,
        "ready_after_ms": point.ready_after_ms,
        "warm_requests": point.warm_requests,
        "block_tokens": point.block_tokens,
        "requests": point.requests,
        "blocks": point.blocks,
        "full_blocks": point.full_blocks,
        "tokens": point.tokens,
        "block_hits": point.block_hits,
        "prefix_blocks": point.prefix_blocks,
        "prefix_full_blocks": point.prefix_full_blocks,
        "prefix_tokens": point.prefix_tokens,
        "requests_with_hit": point.requests_with_hit,
        **{each.ratio_name: each.ratio(point) for each in DEFINITIONS.values()},
        "prefix_blocks_over_full_blocks": point.prefix_blocks_over_full_blocks,
        "prefix_blocks_over_bound": point.prefix_blocks / bound.prefix_blocks if bound.prefix_blocks else None,
        **{f"misses_{name}": count for name, count in asdict(point.misses).items()},
        **{f"requests_first_miss_{name}": count for name, count in asdict(point.requests_by_first_miss).items()},
        "evictions": point.evictions,
        **{f"evicted_ago_{q}_ms": ago.get(q) for q in ("p50", "p90", "p99")},
        "peak_blocks": point.peak_blocks,
        "most_requests_of_a_pool": max(point.pool_requests),
        "pools_without_requests": point.pool_requests.count(0),
    }


def plain(analysis: Analysis) -> dict[str, Any]:
    """The analysis as strict JSON holds it: the work and the model once, then one object a point."""
    return {
        "trace": {
            "name": analysis.trace_name,
            "sha256": analysis.trace_sha256,
            "requests": analysis.trace_requests,
            "block_tokens": analysis.ceiling.block_tokens,
        },
        "model": _model(analysis.model),
        "definitions": {
            each.name: f"{each.hits} / {each.of}: {each.found}, of all {each.whole}" for each in DEFINITIONS.values()
        },
        "capacities": [capacity._asdict() for capacity in analysis.capacities],
        "points": list(rows(analysis)),
        "notices": list(notices(analysis)),
    }


def _model(model: Model) -> dict[str, Any]:
    assignment = model.assignment if model.pools > 1 else None
    return {"service": "instant, in trace order"} | asdict(model) | {"assignment": assignment}
