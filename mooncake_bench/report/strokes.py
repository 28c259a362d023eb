"""A panel as calls of Matplotlib's methods, which :mod:`drawing` makes and :mod:`redraw` prints as a script.

One list of calls serves both, so that a script redraws what was drawn. Nothing here imports Matplotlib.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

from mooncake_bench.report.plot_style import BOUND, FAINT, HATCHES, PALETTE, marker, series

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mooncake_bench.report.figure import Axis, Guide, Panel, Series

DENSE = 100  # points of a line from which on it is thin
FEW = 7  # places along an axis up to which each has a tick
MARKED = 16  # points of a line up to which each has a marker
BARS = 0.82  # of the space of a category, taken by its bars
REACH = 3.0  # times the largest value: up to there a guide is drawn to scale, beyond it is pointed at
DASHES = (0, (2.5, 1.5))
LETTERS_IN = 0.062  # inches of a letter of a tick, about
TALL = 24  # letters of a y axis' name that fit beside a panel in one line
ROOM = 1.04  # of an axis that numbers end, over the largest of them


class Data(NamedTuple):
    """A column of numbers of one series: ``x``, ``y``, ``low`` or ``high``."""

    series: int
    column: str


class Code(NamedTuple):
    """A name that means something where the calls are made: ``short``, a transform, a locator."""

    text: str


SHORT, LOG_TICKS = Code("short"), Code("LogLocator(subs=(1, 2, 5))")
ACROSS, UP = Code("axes.get_yaxis_transform()"), Code("axes.get_xaxis_transform()")  # one place in data, one in axes
CORNER = Code("axes.transAxes")


@dataclass(frozen=True)
class Call:
    """One method of an axes, and what it is given."""

    method: str
    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)


def calls(panel: Panel, number: int, width_in: float, *, bottom: bool = True) -> Iterator[Call]:
    """All calls of a panel, back to front. ``number`` names its parts in the file; ``width_in`` is the panel's.

    ``bottom``: no panel below has the same x axis, so it is named here.
    """
    if panel.heat is not None:
        yield from _heat(panel)
    bars = [place for place, each in enumerate(panel.series) if each.shape == "bars"]
    for place, each in enumerate(panel.series):
        yield from _series(panel, number, place, bars) if each.x else ()
    for guide in panel.guides:
        yield from _guide(guide, panel)
    yield from _axes(panel, width_in, bottom=bottom)


def words(text: str) -> Iterator[Call]:
    """The calls of a panel that has only words to show."""
    yield Call("set_axis_off")
    yield Call("text", (0.5, 0.5, text), {"ha": "center", "va": "center", "color": FAINT})


def _series(panel: Panel, number: int, place: int, bars: Sequence[int]) -> Iterator[Call]:
    each = panel.series[place]
    x: Any = Data(place, "x") if not panel.x.categories else [int(value) for value in each.x]
    named = {"label": spoken(each.label), "gid": f"panel{number}-series{place}"}
    if each.shape == "bars":
        yield _bars(panel, each, place, bars, named)
        return
    if each.shape == "marks":
        yield Call("vlines", (x, 0.94, 1), {"transform": UP, "colors": BOUND, "linewidth": 0.5, **named})
        return
    if each.low is not None:
        bounds = (x, Data(place, "low"), Data(place, "high"))
        yield Call("fill_between", bounds, {"color": look(each)["color"], "alpha": 0.18, "linewidth": 0})
    yield Call("plot", (x, Data(place, "y")), {**look(each), **named})


def _bars(panel: Panel, each: Series, place: int, bars: Sequence[int], named: Mapping[str, Any]) -> Call:
    """Beside those of the other runs, each with a hatch of its own."""
    width = BARS / len(bars)
    shift = (bars.index(place) - (len(bars) - 1) / 2) * width
    x = [round(value + shift, 4) for value in each.x]
    run = each.run or 0
    looks = {"color": PALETTE[run % len(PALETTE)], "hatch": HATCHES[run % len(HATCHES)], "edgecolor": "white"}
    return Call("bar", (x, Data(place, "y")), {"width": round(width, 4), "linewidth": 0, **looks, **named})


def look(each: Series) -> dict[str, Any]:
    """Colour, style and marker of a line or of points: by the run, black where there is none."""
    found: dict[str, Any] = {"color": BOUND, "linestyle": "-"} if each.run is None else series(each.run)
    if each.dashed:
        found |= {"linestyle": DASHES, "linewidth": 0.9}
    if each.shape == "step":
        found["drawstyle"] = "steps-post"
    run = each.run or 0
    if each.shape == "points":
        return found | {"linestyle": "", "marker": marker(run), "fillstyle": "none" if run % 2 else "full"}
    if len(each.x) > DENSE and not each.dashed and each.shape == "line":
        found["linewidth"] = 0.9
    if each.shape == "line" and len(each.x) <= MARKED:
        found |= {"marker": "." if each.run is None else marker(run)}
    return found


def _guide(guide: Guide, panel: Panel) -> Iterator[Call]:
    """The line and its name; only its name, at the edge, where it lies far beyond all values."""
    line = {"color": FAINT, "linestyle": ":", "linewidth": 0.9}
    words = {"color": FAINT, "fontsize": 7}
    far = beyond(guide, panel)
    if not far:
        yield Call("axvline" if guide.upright else "axhline", (guide.at,), line)
    if not guide.label:
        return
    name = spoken(guide.label) + (" \N{RIGHTWARDS ARROW}" if far and guide.upright else "")
    if far:
        yield Call("text", (0.99, 0.04, name), {"transform": CORNER, "ha": "right", **words})
    elif guide.upright:
        turned = {"transform": UP, "rotation": 90, "ha": "right", "va": "bottom"}
        yield Call("text", (guide.at, 0.04, name), {**turned, **words})
    else:
        yield Call("text", (0.99, guide.at, name), {"transform": ACROSS, "ha": "right", "va": "bottom", **words})


def beyond(guide: Guide, panel: Panel) -> bool:
    """Whether a guide would leave the values in a corner."""
    values = [value for each in panel.series for value in (each.x if guide.upright else each.y) if value is not None]
    return bool(values) and guide.at > REACH * max(values) > 0


def _heat(panel: Panel) -> Iterator[Call]:
    """Cells, white for nothing: dark is more in grey too."""
    assert panel.heat is not None
    heat = panel.heat
    colours = {"cmap": "Blues", "vmin": 0, "vmax": heat.high, "gid": "heat"}
    if len(heat.rows) * len(heat.x) > MOST_CELLS:
        colours["rasterized"] = True
    yield Call(
        "heat", (Data(-1, "x"), list(range(len(heat.rows) + 1)), Data(-1, "y")), {"label": heat.label, **colours}
    )
    every = -(-len(heat.rows) // MOST_NAMES)
    at = list(range(0, len(heat.rows), every))
    yield Call("set_yticks", ([place + 0.5 for place in at], [spoken(heat.rows[place]) for place in at]))
    yield Call("invert_yaxis")
    yield Call("grid", (False,))


MOST_CELLS = 20_000  # of a heat map that are drawn as shapes
MOST_NAMES = 8  # of rows of a heat map


def _axes(panel: Panel, width_in: float, *, bottom: bool) -> Iterator[Call]:
    across = spoken(panel.x.label) if bottom else ""
    named = {"title": spoken(panel.title), "xlabel": across, "ylabel": fill(spoken(panel.y.label), TALL)}
    yield Call("set", (), {key: text for key, text in named.items() if text})
    if not panel.x.categories:
        yield from _scale("x", panel.x, [*(x for each in panel.series for x in each.x), *_reached(panel, upright=True)])
    if panel.heat is None:
        tall = (bound for each in panel.series if each.shape != "marks" for bound in (each.y, each.high or ()))
        values = [y for bound in tall for y in bound if y is not None]
        yield from _scale("y", panel.y, [*values, *_reached(panel, upright=False)])
    if places := _few_places(panel):
        yield Call("set_xticks", (places,))
    if panel.x.categories:
        yield Call("set_xlim", (-0.5, len(panel.x.categories) - 0.5))
        yield _categories(panel, width_in) if bottom else Call("set_xticks", (list(range(len(panel.x.categories))), []))


def _reached(panel: Panel, *, upright: bool) -> list[float]:
    """Where guides of one direction lie that are drawn to scale."""
    return [each.at for each in panel.guides if each.upright == upright and not beyond(each, panel)]


def _few_places(panel: Panel) -> list[float]:
    """The values along the x axis, to be its ticks, where lines have few: those of a setting that was varied."""
    places = sorted({x for each in panel.series for x in each.x})
    lines = all(each.shape == "line" for each in panel.series)
    varied = lines and 1 < len(places) <= FEW and not (panel.x.log or panel.x.categories or panel.x.low is not None)
    return places if varied else []


def _scale(letter: str, axis: Axis, values: Sequence[float]) -> Iterator[Call]:
    if axis.log:
        yield Call(f"set_{letter}scale", ("log",))
        positive = [value for value in values if value > 0]
        few = bool(positive) and max(positive) / min(positive) < 100
        if few:
            yield Call(f"{letter}axis.set_major_locator", (LOG_TICKS,))
        yield Call("tick_params", (), {"axis": letter, "which": "minor", f"label{SIDES[letter]}": False})
    bounds = {end: bound for end, bound in zip(ENDS[letter], (axis.low, axis.high), strict=True) if bound is not None}
    largest = max(values, default=0)
    if axis.low == 0 and axis.high in (None, 1) and largest > 0:  # what ends there is seen
        bounds[ENDS[letter][1]] = ROOM * (axis.high or largest)
    if bounds:
        yield Call(f"set_{letter}lim", (), bounds)
    if axis.log or max(map(abs, values), default=0) >= 1000:
        yield Call(f"{letter}axis.set_major_formatter", (SHORT,))


SIDES = {"x": "bottom", "y": "left"}
ENDS = {"x": ("left", "right"), "y": ("bottom", "top")}


def _categories(panel: Panel, width_in: float) -> Call:
    """Names of categories, aslant where they would meet."""
    names = [spoken(name) for name in panel.x.categories]
    meet = max(map(len, names)) * LETTERS_IN > 0.85 * width_in / len(names)
    turned = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if meet else {}
    return Call("set_xticks", (list(range(len(names))), names), turned)


def spoken(text: str) -> str:
    """A name as Matplotlib shows it: one that begins with an underscore would be left out of legends."""
    return f" {text}" if text.startswith("_") else text


def columns(panel: Panel) -> Mapping[Data, Any]:
    """The numbers behind the :class:`Data` of a panel; undefined is nan."""
    found: dict[Data, Any] = {}
    for place, each in enumerate(panel.series):
        for name in ("x", "y", "low", "high"):
            values = getattr(each, name)
            if values is not None:
                found[Data(place, name)] = [math.nan if value is None else value for value in values]
    if panel.heat is not None:
        cells = [[math.nan if value is None else value for value in row] for row in panel.heat.values]
        found |= {Data(-1, "x"): list(panel.heat.x), Data(-1, "y"): cells}
    return found
