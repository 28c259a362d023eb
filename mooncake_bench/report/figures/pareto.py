"""Two metrics of every point of a sweep, and the points that no other beats in both."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mooncake_bench.errors import SetupError
from mooncake_bench.report.figure import Figure, Panel, Series
from mooncake_bench.report.figures._curves import sentences
from mooncake_bench.report.figures._points import POLICY, metric_axis, metric_words, not_done, policies, settings
from mooncake_bench.results.words import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.results.metric import Metric
    from mooncake_bench.results.sweep import Sweep

NAME = "pareto"
TITLE = "Trade-off between two metrics"
DESCRIPTION = "Every point of a sweep by two metrics, and the frontier: the points that no other beats in both."
TAKES = "sweep"
OPTIONS = {
    "x": "a metric [default: p90_ttft_ms]",
    "y": "a metric [default: request_goodput_rps]",
}


STAIRS = "The frontier is a staircase: nothing was replayed between its points."


class Spot(NamedTuple):
    """One point of the sweep, and the settings that were varied."""

    policy: str
    x: float
    y: float
    name: str = ""


def draw(source: Sweep, labels: Sequence[str] = (), x: str = "p90_ttft_ms", y: str = "request_goodput_rps") -> Figure:
    """Points by policy, the frontier in black. ``labels`` has no effect: a sweep names its policies."""
    across, up = _metric(source, x, "--x"), _metric(source, y, "--y")
    names = policies(source)
    spots = _spots(source, across, up)
    if not spots:
        words = f"no point of the sweep has both {across.name} and {up.name}"
        return Figure(NAME, TITLE, (), tuple(names), empty=words)
    right, top = (metric_axis(metric, source.column(metric.name)) for metric in (across, up))
    spots = [spot._replace(x=right.of(spot.x), y=top.of(spot.y)) for spot in spots]
    series = [_points(name, place, spots) for place, name in enumerate(names)]
    best = frontier(spots, across.better == "higher", up.better == "higher")
    edge = _stairs([spot._replace(name=", ".join(filter(None, (spot.policy, spot.name)))) for spot in best], across)
    panel = Panel("", right.axis, top.axis, (edge, *(each for each in series if each.x)))
    undefined = len(source.done) - len(spots)
    has = "has" if undefined == 1 else "have"
    lost = f"{counted(undefined, 'point')} {has} no {across.name} or {up.name}." if undefined else ""
    direction = f"Better: {across.better} {metric_words(across)}; {up.better} {metric_words(up)}."
    return Figure(NAME, TITLE, (panel,), tuple(names), sentences(direction, STAIRS, lost, not_done(source)))


def _spots(sweep: Sweep, across: Metric, up: Metric) -> list[Spot]:
    """The points that have both metrics."""
    varied = [name for name in sweep.varied if name != POLICY]
    rows = zip(*(sweep.column(name) for name in (POLICY, across.name, up.name, *varied)), strict=True)
    return [
        Spot(policy, x, y, settings(dict(zip(varied, rest, strict=True))))
        for policy, x, y, *rest in rows
        if x is not None and y is not None
    ]


def _stairs(best: Sequence[Spot], across: Metric) -> Series:
    """The frontier from its best x on: up to the next point, the y of the last one is the best that was replayed."""
    ordered = best[::-1] if across.better == "higher" else best
    return Series("frontier", tuple(spot.x for spot in ordered), tuple(spot.y for spot in ordered), shape="step",
                  names=tuple(spot.name for spot in ordered))  # fmt: skip


def frontier(spots: Sequence[Spot], higher_x: bool, higher_y: bool) -> list[Spot]:
    """The spots of which no other is at least as good in both metrics and better in one, in order of x."""
    ordered = sorted(spots, key=lambda spot: (-spot.x if higher_x else spot.x, -spot.y if higher_y else spot.y))
    kept: list[Spot] = []
    for spot in ordered:  # from the best x on: each has to be better in y
        if not kept or (spot.y > kept[-1].y if higher_y else spot.y < kept[-1].y):
            kept.append(spot)
    return sorted(kept, key=lambda spot: spot.x)


def _points(name: str, place: int, spots: Sequence[Spot]) -> Series:
    mine = sorted(spot for spot in spots if spot.policy == name)
    x, y, names = (tuple(getattr(spot, column) for spot in mine) for column in ("x", "y", "name"))
    return Series(name, x, y, place, "points", names=names)


def _metric(sweep: Sweep, name: str, flag: str) -> Metric:
    """A metric of which less or more is better. Raises SetupError for another."""
    found = sweep.metric(name)
    if found.better == "none":
        raise SetupError(f"{flag} {name}: neither more nor less of it is better, so it has no frontier; take another")
    return found
