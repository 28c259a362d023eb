"""A metric against what a sweep varied, a line a policy."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING, Any

from mooncake_bench.errors import SetupError, nearest
from mooncake_bench.report.figure import Axis, Figure, Panel, Series
from mooncake_bench.report.figures._curves import sentences
from mooncake_bench.report.figures._points import POLICY, SEED, metric_axis, not_done, policies, said, settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mooncake_bench.results.sweep import Sweep

NAME = "sweep"
TITLE = "A metric against what a sweep varied"
DESCRIPTION = "A metric against a varied setting, a line a policy; over seeds, the mean and the range."
TAKES = "sweep"
OPTIONS = {
    "x": "what was varied [default: the first setting that was]",
    "y": "a metric [default: request_goodput_ratio]",
}

AIR = 0.04  # of the range of y, over the largest value of all panels


def draw(source: Sweep, labels: Sequence[str] = (), x: str = "", y: str = "request_goodput_ratio") -> Figure:
    """The lines. What else was varied, seeds apart, makes panels. ``labels`` has no effect: a sweep names its own."""
    across, metric = _varied(source, x), source.metric(y)
    others = [name for name in source.varied if name not in (across, POLICY, SEED)]
    names = policies(source)
    rows = _rows(source, [POLICY, across, *others, metric.name])
    if all(row[-1] is None for row in rows):
        return Figure(NAME, TITLE, (), tuple(names), empty=f"no point of the sweep has a {metric.name}")
    scaled = metric_axis(metric, (row[-1] for row in rows))
    rows = [(*row[:-1], None if row[-1] is None else scaled.of(row[-1])) for row in rows]
    places, axis = _places(across, [point[across] for point in source.points])
    found = [
        (settings(dict(zip(others, rest, strict=True))), {name: _of(rows, name, rest, places) for name in names})
        for rest in _groups(row[2:-1] for row in rows)
    ]
    seeds = SEED in source.varied and across != SEED
    shown = _labels(names, [lines for _, lines in found]) if seeds else dict(zip(names, names, strict=True))
    panels = _one_scale([_panel(title, axis, scaled.axis, lines, shown) for title, lines in found])
    words = "Over seeds: the mean, and the range." if seeds else ""
    return Figure(NAME, TITLE, panels, tuple(names), sentences(words, _flat(rows, across), not_done(source)))


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


def _groups(rests: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Each combination of what else was varied, a panel each; None is what no policy of the panel has.

    A policy without a setting belongs to every value of it, so it makes no panel where another policy has one.
    """
    found = list(dict.fromkeys(rests))
    columns = [[value for value in dict.fromkeys(column) if value is not None] for column in zip(*found, strict=True)]
    full = [rest for rest in found if not any(rest != other and _within(rest, other) for other in found)]
    return [combined for combined in product(*(column or [None] for column in columns))
            if any(_within(rest, combined) for rest in full)]  # fmt: skip


def _within(rest: tuple[Any, ...], panel: tuple[Any, ...]) -> bool:
    """Whether settings are those of a panel, as far as the policy has them."""
    return all(ours is None or ours == theirs for ours, theirs in zip(rest, panel, strict=True))


def _places(across: str, values: Iterable[Any]) -> tuple[Mapping[Any, float], Axis]:
    """Where each value lies along the axis; settings that a policy does not have lie nowhere."""
    known = list(dict.fromkeys(value for value in values if value is not None))
    name = "policy" if across == POLICY else across
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in known):
        return {value: float(value) for value in sorted(known)}, Axis(name)
    return {value: float(i) for i, value in enumerate(known)}, Axis(name, categories=tuple(map(said, known)))


def _of(
    rows: Sequence[tuple[Any, ...]], policy: str, rest: tuple[Any, ...], places: Mapping[Any, float]
) -> Mapping[float, list[float]]:
    """The metric's values at each place, of one policy: at every place, where it does not have the setting."""
    found: dict[float, list[float]] = defaultdict(list)
    for label, across, *others, value in rows:
        if label == policy and value is not None and _within(tuple(others), rest):
            for place in places.values() if across is None else (places[across],):
                found[place].append(value)
    return dict(sorted(found.items()))


def _labels(names: Sequence[str], panels: Sequence[Mapping[str, Mapping[float, list[float]]]]) -> dict[str, str]:
    """The policies, and that their seeds changed nothing, where no point has a range to show."""
    shown = {}
    for name in names:
        points = [values for lines in panels for values in lines[name].values()]
        fewest = min(map(len, points), default=0)
        same = fewest > 1 and all(min(values) == max(values) for values in points)
        shown[name] = f"{name} ({fewest} seeds, all alike)" if same else name
    return shown


def _flat(rows: Sequence[tuple[Any, ...]], across: str) -> str:
    """A sentence on the policies that do not have the setting along the axis."""
    without = list(dict.fromkeys(str(row[0]) for row in rows if row[1] is None))
    has = "has" if len(without) == 1 else "have"
    return f"{', '.join(without)} {has} no {across}: the same all along the axis." if without else ""


def _panel(
    title: str, across: Axis, up: Axis, lines: Mapping[str, Mapping[float, list[float]]], shown: Mapping[str, str]
) -> Panel:
    series = [_line(shown[name], i, values) for i, (name, values) in enumerate(lines.items()) if values]
    return Panel(title, across, up, tuple(series))


def _line(label: str, run: int, values: Mapping[float, list[float]]) -> Series:
    y = list(values.values())
    several = any(len(each) > 1 for each in y)
    low, high = ((tuple(map(least, y)) if several else None) for least in (min, max))
    return Series(label, tuple(values), tuple(map(fmean, y)), run, "line", low=low, high=high)


def _one_scale(panels: Sequence[Panel]) -> tuple[Panel, ...]:
    """Panels side by side show the same range of y."""
    if len(panels) < 2:
        return tuple(panels)
    ends = [
        y for panel in panels for each in panel.series for bound in (each.y, each.low, each.high) for y in bound or ()
    ]
    known = [y for y in ends if y is not None]
    low, high = min(known), max(known)
    first = panels[0].y.low
    air = AIR * (high - low if first is None else high)
    if not air:
        return tuple(panels)
    axis = replace(panels[0].y, low=low - air if first is None else first, high=high + air)
    return tuple(replace(panel, y=axis) for panel in panels)
