"""A distribution in a few numbers: count, sum, mean, extremes and percentiles (numpy's ``linear``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from mooncake_bench.trace.model import Floats, Ints

PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)


def summary(values: Ints | Floats) -> dict[str, Any]:
    """Count, sum, mean, extremes and percentiles; only the count when there are none."""
    if not len(values):
        return {"count": 0}
    points = np.percentile(values, PERCENTILES)
    facts = {"count": len(values), "sum": values.sum().item(), "mean": float(values.mean()), "min": values.min().item()}
    return facts | _percentiles(points) | {"max": values.max().item()}


def summary_of_counts(counts: Ints) -> dict[str, Any]:
    """:func:`summary` of whole numbers of which ``counts[i]`` are ``i``, as if they were all written out."""
    total = int(counts.sum())
    if not total:
        return {"count": 0}
    values = np.flatnonzero(counts)
    ends = np.cumsum(counts[values])
    rank = np.array(PERCENTILES) / 100 * (total - 1)
    low, high = (
        values[np.searchsorted(ends, np.minimum(at, total - 1), side="right")] for at in (np.floor(rank), np.ceil(rank))
    )
    points = low + (high - low) * (rank - np.floor(rank))
    amount = int((values * counts[values]).sum())
    facts = {"count": total, "sum": amount, "mean": amount / total, "min": int(values[0])}
    return facts | _percentiles(points) | {"max": int(values[-1])}


def _percentiles(points: Floats) -> dict[str, float]:
    return {f"p{q}": float(at) for q, at in zip(PERCENTILES, points, strict=True)}
