"""How far metrics move when arrivals are jittered, and rules that allow for it."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from mooncake_bench.results.gate.rules import exact
from mooncake_bench.results.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from mooncake_bench.results.gate.sides import Side
    from mooncake_bench.results.metric import Metric, Number

PLACED = (  # metrics for which a rule is suggested
    "completed_ratio", "rejected_tokens_ratio", "request_goodput_ratio", "mean_ttft_ms", "p99_ttft_ms", "mean_tbt_ms",
    "p99_tbt_ms", "hit_ratio_tokens",
)  # fmt: skip
TOLERANCES = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)  # %


class Spread(NamedTuple):
    """A metric of a run, and over it and jittered replays of it; None where it is undefined in one of them."""

    metric: Metric
    unjittered: Number
    low: Number  # the run itself included, as in ``high``
    middle: Number  # of the jittered replays alone, as `gate --jitter` takes it
    high: Number
    relative: float | None  # (high - low) / |middle|


def spreads(side: Side) -> list[Spread]:
    """Every metric with a better side, and how far it moves under jitter."""
    return list(_spreads(side))


def _spreads(side: Side) -> Iterator[Spread]:
    assert side.jittered is not None
    for metric in METRICS:
        values = side.jittered.values.get(metric.name, ())
        if metric.better == "none" or not values:
            continue
        known = [value for value in values if value is not None]
        unjittered = side.samples[metric.name].value
        if len(known) < len(values) or unjittered is None:
            yield Spread(metric, unjittered, None, None, None, None)
            continue
        low, middle, high = min(*known, unjittered), median(known), max(*known, unjittered)
        relative = float((exact(high) - exact(low)) / abs(exact(middle))) if middle else None
        yield Spread(metric, unjittered, low, middle, high, relative)


def suggested(found: Collection[Sequence[Spread]]) -> list[str]:
    """A rule for each of the usual metrics, as wide as chance makes it over all policies, rounded up.

    A metric that is 0 or undefined in some policy gets none, for there is no part of nothing.
    """
    rules = []
    for name in PLACED:
        widths = [spread.relative for spreads in found for spread in spreads if spread.metric.name == name]
        known = [width for width in widths if width is not None]
        if known and len(known) == len(widths):
            rules.append(f"{name}:{_rounded_up(100 * max(known)):g}%")
    return rules


def _rounded_up(percent: float) -> float:
    """The next of a few round tolerances; 0 stays 0."""
    return next((each for each in (0, *TOLERANCES) if each >= percent), percent)
