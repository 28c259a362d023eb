"""A metric against what a sweep varied, a line a policy."""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean
from typing import TYPE_CHECKING, Any

from mooncake_bench.errors import SetupError, nearest
from mooncake_bench.report.figure import Axis, Figure, Panel, Series
from mooncake_bench.report.figures._curves import sentences
from mooncake_bench.report.figures._points import POLICY, SEED, metric_axis, not_done, policies

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mooncake_bench.results.metric import Metric
    from mooncake_bench.results.sweep import Sweep

NAME = "sweep"
TITLE = "A metric against what a sweep varied"
DESCRIPTION = "A metric against a varied setting, a line a policy; over seeds, the mean and the range."
TAKES = "sweep"
OPTIONS = {
    "x": "what was varied [default: the first setting that was]",
    "y": "a metric [default: request_goodput_ratio]",
}


def draw(source: Sweep, labels: Sequence[str] = (), x: str = "", y: str = "request_goodput_ratio") -> Figure:
    """The lines. What else was varied, seeds apart, makes panels. ``labels`` has no effect: a sweep names its own."""
    across, metric = _varied(source, x), source.metric(y)
    others = [name for name in source.varied if name not in (across, POLICY, SEED)]
    names = policies(source)
    rows = _rows(source, [POLICY, across, *others, metric.name])
    if all(row[-1] is None for row in rows):
        return Figure(NAME, TITLE, (), tuple(names), empty=f"no point of the sweep has a {metric.name}")
    values = list(dict.fromkeys(point[across] for point in source.points))
    panels = tuple(
        _panel(title, across, values, metric, {name: _of(rows, name, rest) for name in names})
        for title, rest in _groups(rows, others)
    )
    seeds = "Over seeds: the mean, and the range." if SEED in source.varied and across != SEED else ""
    return Figure(NAME, TITLE, panels, tuple(names), sentences(seeds, not_done(source)))


def _varied(sweep: Sweep, name: str) -> str:
    """The column along the axis."""
    settings = [column for column in sweep.varied if column != POLICY]
    if not name:
        return next((column for column in (*(s for s in settings if s != SEED), *settings)), POLICY)
    known = [*settings, POLICY]
    if name not in known:
        raise SetupError(f"--x {name}: was not varied; expected one of {', '.join(known)}{nearest(name, known)}")
    return name


def _rows(sweep: Sweep, names: Sequence[str]) -> list[tuple[Any, ...]]:
    return list(zip(*(sweep.column(name) for name in names), strict=True))


def _groups(rows: Sequence[tuple[Any, ...]], others: Sequence[str]) -> list[tuple[str, tuple[Any, ...]]]:
    """Each combination of what else was varied, and its title."""
    found = dict.fromkeys(row[2:-1] for row in rows)
    return [(", ".join(f"{name} {value}" for name, value in zip(others, rest, strict=True)), rest) for rest in found]


def _of(rows: Sequence[tuple[Any, ...]], policy: str, rest: tuple[Any, ...]) -> Mapping[Any, list[float]]:
    """The metric's values at each x, of one policy."""
    found: dict[Any, list[float]] = defaultdict(list)
    for row in rows:
        if row[0] == policy and row[2:-1] == rest and row[-1] is not None:
            found[row[1]].append(float(row[-1]))
    return found


def _panel(
    title: str, across: str, values: Sequence[Any], metric: Metric, found: Mapping[str, Mapping[Any, list[float]]]
) -> Panel:
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    order = sorted(values) if numeric else values
    places = {value: float(value) if numeric else float(i) for i, value in enumerate(order)}
    axis = Axis("policy" if across == POLICY else across, categories=() if numeric else tuple(map(str, order)))
    series = [_line(name, i, places, values) for i, (name, values) in enumerate(found.items()) if values]
    return Panel(title, axis, metric_axis(metric), tuple(series))


def _line(name: str, place: int, places: Mapping[Any, float], values: Mapping[Any, list[float]]) -> Series:
    there = [value for value in places if value in values]
    y = [values[value] for value in there]
    several = any(len(each) > 1 for each in y)
    low, high = ((tuple(map(least, y)) if several else None) for least in (min, max))
    x = tuple(places[value] for value in there)
    return Series(name, x, tuple(map(fmean, y)), place, "line", low=low, high=high)
