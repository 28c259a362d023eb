"""The four routers that both papers compare: times to first token over a grid of settings, and which order holds where.

No admission: nothing is rejected, so every router serves the same requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from math import exp, log
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mooncake_bench.results.words import DASH
from mooncake_bench.sim.setup import Setup
from mooncake_bench.studies import replays

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mooncake_bench.sim.replay import Replay
    from mooncake_bench.trace import Trace

ROUTERS = ("random", "load-balancing", "cache-aware", "kvcache-centric")  # slowest first, as both papers have them
BEST = ROUTERS[-1]
PS_PER_S = 1e12
SLO_S = 30.0


class Times(NamedTuple):
    """Time to first token of the requests of one replay, s; ``within``: the share of them in 30 s."""

    mean: float
    low: float  # 5th percentile
    lower: float  # first quartile
    median: float
    upper: float  # third quartile
    high: float  # 95th percentile
    within: float


@dataclass(frozen=True)
class Point:
    """One setting: the value of one free parameter, the others as they are judged."""

    axis: str  # the parameter, empty for the point that is judged
    value: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)  # of the setup
    specs: Mapping[str, str] = field(default_factory=dict)  # policy SPEC of a router that has parameters here
    seed: int = 0  # of random; the others draw nothing

    def setup(self, router: str) -> Setup:
        """What is replayed for one router here."""
        seed = self.seed if router == "random" else 0
        return Setup(policy=self.specs.get(router, router), seed=seed, **self.changes)


Found = dict[str, Times]  # by router


def play(trace: Trace, points: Sequence[Point]) -> list[Found]:
    """Times of every router at every point; what two points share is replayed once."""
    wanted = [{router: point.setup(router) for router in ROUTERS} for point in points]
    setups = list(dict.fromkeys(setup for each in wanted for setup in each.values()))
    times = dict(zip(setups, replays.each(trace, setups, times_of), strict=True))
    return [{router: times[setup] for router, setup in each.items()} for each in wanted]


def times_of(replay: Replay) -> Times:
    """Times to first token of a replay in which every request got one."""
    waits = (replay.columns["first_token_ps"] - replay.columns["arrival_ps"]) / PS_PER_S
    low, lower, median, upper, high = np.quantile(waits, (0.05, 0.25, 0.5, 0.75, 0.95)).tolist()
    return Times(float(waits.mean()), low, lower, median, upper, high, float((waits <= SLO_S).mean()))


def average(times: Sequence[Times]) -> Times:
    """The mean of each statistic over replays, such as those of several seeds."""
    return Times(*(float(np.mean(each)) for each in zip(*times, strict=True)))


def over_best(found: Mapping[str, Times], router: str, what: str = "mean") -> float:
    """A router's statistic over kvcache-centric's."""
    ratio: float = getattr(found[router], what) / getattr(found[BEST], what)
    return ratio


def in_order(found: Mapping[str, Times], what: str = "mean") -> bool:
    """Whether each router is slower than the next."""
    return all(getattr(found[slow], what) > getattr(found[fast], what) for slow, fast in pairwise(ROUTERS))


# ---- ranges


def axes(points: Sequence[Point]) -> list[str]:
    """The free parameters that the points vary."""
    return list(dict.fromkeys(point.axis for point in points if point.axis))


def spans(points: Sequence[Point], found: Sequence[Found], holds: Callable[[Found], bool]) -> Iterator[str]:
    """A line a free parameter: at which of the values tried something holds."""
    for axis in axes(points):
        here = [(point.value, holds(each)) for point, each in zip(points, found, strict=True) if point.axis == axis]
        yield f"{axis}: {span(here)}"


def span(tried: Sequence[tuple[str, bool]]) -> str:
    """The values at which something holds, and those at which it does not, in the order they were tried."""
    yes, no = ([value for value, holds in tried if holds == wanted] for wanted in (True, False))
    if not no:
        return f"at all of {', '.join(yes)}"
    if not yes:
        return f"at none of {', '.join(no)}"
    return f"at {', '.join(yes)}, not at {', '.join(no)}"


def met_at(places: Sequence[float], values: Sequence[float], target: float) -> float | None:
    """Where values first pass ``target`` between two places, the logarithms taken as lines; None where nowhere."""
    for (here, value), (there, following) in pairwise(zip(places, values, strict=True)):
        low, high = sorted((value, following))
        if low <= target <= high and low > 0:
            part = 0.0 if low == high else (log(target) - log(value)) / (log(following) - log(value))
            return exp(log(here) + part * (log(there) - log(here)))
    return None


# ---- text


def seconds(value: float | None) -> str:
    """A time with three digits or so: 92.1, 6.26, 314."""
    return (
        DASH if value is None else f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 20 else f"{value:.2f}"
    )


def values(points: Sequence[Point], found: Sequence[Found]) -> Iterator[dict[str, Any]]:
    """Every statistic of every router at every point, as plain values."""
    for point, each in zip(points, found, strict=True):
        for router, times in each.items():
            yield {
                "parameter": point.axis or "as judged",
                "value": point.value,
                "router": point.specs.get(router, router),
                "seed": point.setup(router).seed,
                **{f"{name}_ttft_s": getattr(times, name) for name in Times._fields if name != "within"},
                "within_30s_ratio": times.within,
                "mean_over_kvcache_centric": over_best(each, router),
            }
