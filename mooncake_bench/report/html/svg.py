"""One panel of a figure as inline SVG: axes, guides, marks. Colours and dashes are the page's style sheet's.

Elements are built by :mod:`xml.etree`, which escapes every name.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element, SubElement, tostring

from mooncake_bench.report.html import guides, shapes
from mooncake_bench.report.html.elements import number, text
from mooncake_bench.report.html.heat import draw_heat, heat_height
from mooncake_bench.report.html.scale import Scale, bounds, near_zero, rounded_up, tick_text
from mooncake_bench.results.words import clean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mooncake_bench.report.figure import Axis, Guide, Number, Panel, Series
    from mooncake_bench.report.html.shapes import Manner

WIDTH, HEIGHT = 480, 290  # of a panel, in pixels of its own: the page scales it
LETTER = guides.LETTER
TOP, RIGHT, BOTTOM = 26, 14, 44
STRIP = 14  # pixels of a row of ticks above the frame
TICKS_X, TICKS_Y = 6, 5
TICKED = 8  # values of x up to which each has a tick of its own, and no other
MARGIN = 0.04  # of x, on both sides of points
GUIDE_REACH = 1.3  # a guide beyond so many times the largest value is pointed at, not drawn to scale
LONGEST_NAME = 24  # letters of a category
LINE = 14  # pixels from one line of text to the next


@dataclass(frozen=True)
class Drawn:
    """A panel's SVG, and the frame inside its axes in the SVG's own pixels, with what its edges mean."""

    svg: str
    x: Scale
    y: Scale
    height: float


def draw(panel: Panel, keys: Sequence[int], name: str, manners: Mapping[int, Manner] | None = None) -> Drawn:
    """The panel under the accessible name ``name``; ``keys``: the place in the legend of each of its series.

    ``manners``: how the series of each place are drawn, in every panel of the figure; None: as this panel asks.
    """
    if panel.heat is not None:
        height = heat_height(panel.heat)
        svg = _root(height, name)
        x, y = draw_heat(svg, panel, height)
        return Drawn(tostring(svg, encoding="unicode"), x, y, height)
    svg = _root(HEIGHT, name)
    known = shapes.manners([panel], [keys]) if manners is None else manners
    marked = any(known[key].marked for key in keys)
    x, y, strips, above = _scales(panel, marked=marked)
    _axes(svg, panel, x, y)
    inner = SubElement(svg, "svg", _clipped(x, y, len(strips), shapes.MARKER + 1 if marked else 2))
    bars = shapes.Bars(x, panel.series)
    for series, key in zip(panel.series, keys, strict=True):  # dashes of the later show the first below
        group = SubElement(inner, "g", {"class": f"series {shapes.style(series, known[key])}", "data-key": str(key)})
        shapes.draw(group, series, x, strips.get(id(series), y), bars)
        if known[key].marked:
            shapes.mark(group, series, x, y)
    guides.draw(svg, panel.guides, x, y, above, TOP)
    return Drawn(tostring(svg, encoding="unicode"), x, y, HEIGHT)


def _root(height: float, name: str) -> Element:
    return Element("svg", {"viewBox": f"0 0 {WIDTH} {number(height)}", "role": "img", "aria-label": clean(name)})


# ---- scales


def _scales(panel: Panel, *, marked: bool) -> tuple[Scale, Scale, dict[int, Scale], dict[int, guides.Label]]:
    """Of x, of y, and of the strip of each series of ticks; and the labels above the frame."""
    marks = [each for each in panel.series if each.shape == "marks"]
    drawn = [each for each in panel.series if each.shape != "marks"]
    low, high = _y_bounds(panel, drawn)
    y = Scale(low, high, HEIGHT - _bottom(panel.x), TOP, panel.y.log)
    left = 12 + LETTER * max([len(tick_text(tick)) for tick in _y_ticks(panel.y, y)], default=1)
    x = Scale(*_x_bounds(panel, marked=marked), left, WIDTH - RIGHT, panel.x.log)
    above = guides.labels(panel.guides, x, y)
    top = TOP + guides.ROW * (1 + max([each.row for each in above.values()], default=-1))
    strips = {id(each): _strip(each, top + STRIP * i) for i, each in enumerate(marks)}
    return x, replace(y, end=top + STRIP * len(marks)), strips, above


def _strip(series: Series, top: float) -> Scale:
    """Of a row of ticks: the least is a third as tall as the tallest."""
    most = max([value for value in series.y if value], default=1)
    return Scale(-most / 2, most, top + STRIP - 3, top)


def _y_bounds(panel: Panel, series: Sequence[Series]) -> tuple[float, float]:
    values = [y for each in series for y in chain(each.y, each.low or (), each.high or ())]
    values += _reached(panel.guides, values, upright=False)
    zero = any(each.shape == "bars" for each in series) or near_zero(values)
    low, high = bounds(panel.y, values, zero=zero)
    return low, high if panel.y.log or panel.y.high is not None else rounded_up(low, high, TICKS_Y)


def _x_bounds(panel: Panel, *, marked: bool) -> tuple[float, float]:
    if panel.x.categories:
        return -0.5, len(panel.x.categories) - 0.5
    values: list[Number] = [x for each in panel.series for x in each.x]
    values += _reached(panel.guides, values, upright=True)
    low, high = bounds(panel.x, values)
    if any(each.shape == "bars" for each in panel.series):
        half = _gap(panel.series) / 2
        return low - half, high + half
    if not marked and not any(each.shape == "points" for each in panel.series):
        return low, high
    if panel.x.log:
        return low / (high / low) ** MARGIN, high * (high / low) ** MARGIN
    margin = MARGIN * (high - low)
    return low - margin * (panel.x.low is None), high + margin * (panel.x.high is None)


def _gap(series: Sequence[Series]) -> float:
    """The least distance between two bars of a series; 1 where there is one bar."""
    gaps = [right - left for each in series if each.shape == "bars" for left, right in pairwise(sorted(each.x))]
    return min([gap for gap in gaps if gap > 0], default=1.0)


def _reached(given: Sequence[Guide], values: Sequence[Number], *, upright: bool) -> list[float]:
    """The guides of one direction that lie near enough to be drawn to scale."""
    most = max([value for value in values if value is not None], default=0)
    return [each.at for each in given if each.upright == upright and (not most or each.at <= GUIDE_REACH * most)]


def _bottom(axis: Axis) -> float:
    """Pixels below the frame: more where names of categories take several lines, or stand aslant."""
    if not axis.categories:
        return BOTTOM
    label = 0 if axis.label else -16
    if _slanted(axis):
        return BOTTOM + label + 3.6 * min(LONGEST_NAME, max(map(len, axis.categories)))
    return BOTTOM + label + LINE * (max(len(_wrapped(name, axis)) for name in axis.categories) - 1)


def _wrapped(name: str, axis: Axis) -> list[str]:
    """A category's name in lines as wide as its place, broken between words."""
    letters = int((WIDTH - 70) / len(axis.categories) / LETTER)
    return textwrap.wrap(name, max(4, letters), break_long_words=False) or [""]


def _slanted(axis: Axis) -> bool:
    """Whether some name does not fit its place in three lines."""
    most = (WIDTH - 70) / len(axis.categories) / LETTER
    lines = [_wrapped(name, axis) for name in axis.categories]
    return any(len(each) > 3 or max(map(len, each)) > most for each in lines)


def _clipped(x: Scale, y: Scale, strips: int, around: float) -> dict[str, str]:
    """An inner picture that cuts off what lies outside fixed axes, yet not half of a line or marker at its edge."""
    left, top = x.start - around, y.end - STRIP * strips - around
    width, height = x.end - x.start + 2 * around, y.start - top + around
    place = {"x": left, "y": top, "width": width, "height": height}
    box = " ".join(map(number, (left, top, width, height)))
    return {"viewBox": box, "preserveAspectRatio": "none", **{name: number(size) for name, size in place.items()}}


# ---- axes


def _axes(svg: Element, panel: Panel, x: Scale, y: Scale) -> None:
    grid = SubElement(svg, "g", {"class": "grid"})
    words = SubElement(svg, "g", {"class": "axis"})
    _y_axis(grid, words, panel.y, x, y)
    if panel.x.categories:
        _names(words, panel.x, x, y)
    else:
        _x_axis(grid, words, _x_ticks(panel, x), x, y)
    line = f"M{number(x.start)} {number(y.start)}H{number(x.end)}"
    SubElement(svg, "path", {"class": "base", "d": line})
    text(words, panel.x.label, (x.start + x.end) / 2, HEIGHT - 6, "label middle")
    text(words, panel.y.label, 2, 13, "label")


def _y_ticks(axis: Axis, y: Scale) -> list[float]:
    """Round values; one more where the axis ends where it was told to, for instance just above 1."""
    return y.ticks(TICKS_Y if axis.high is None else TICKS_Y + 1)


def _y_axis(grid: Element, words: Element, axis: Axis, x: Scale, y: Scale) -> None:
    for tick in _y_ticks(axis, y) if not axis.categories else ():
        top = y.at(tick)
        assert top is not None
        SubElement(grid, "path", {"d": f"M{number(x.start)} {number(top)}H{number(x.end)}"})
        text(words, tick_text(tick), x.start - 6, top + 4, "end")


def _x_ticks(panel: Panel, x: Scale) -> list[float]:
    """Round values; where lines have few x on an axis of no fixed ends, as in a sweep, these x, if they have room."""
    own = sorted({value for each in panel.series for value in each.x if x.at(value) is not None})
    fixed = panel.x.low is not None or panel.x.high is not None
    if fixed or not 0 < len(own) <= TICKED or any(each.shape != "line" for each in panel.series):
        return x.ticks(TICKS_X)
    kept: list[float] = []
    for value in own:
        if not kept or _room(x, kept[-1], value):
            kept.append(value)
    return kept


def _room(x: Scale, left: float, right: float) -> bool:
    """Whether the names of two ticks have a place of their own."""
    apart = (x.at(right) or 0) - (x.at(left) or 0)
    return apart > LETTER * (1 + (len(tick_text(left)) + len(tick_text(right))) / 2)


def _x_axis(grid: Element, words: Element, ticks: Sequence[float], x: Scale, y: Scale) -> None:
    for tick in ticks:
        left = x.at(tick)
        assert left is not None
        SubElement(grid, "path", {"d": f"M{number(left)} {number(y.start)}V{number(y.end)}"})
        text(words, tick_text(tick), left, y.start + 16, "middle")


def _names(words: Element, axis: Axis, x: Scale, y: Scale) -> None:
    slanted = _slanted(axis)
    for place, name in enumerate(axis.categories):
        left = x.at(place)
        assert left is not None
        if slanted:
            made = text(words, name, left, y.start + 12, "end", most=LONGEST_NAME)
            made.set("transform", f"rotate(-32 {number(left)} {number(y.start + 8)})")
            continue
        for line, shown in enumerate(_wrapped(name, axis)):
            text(words, shown, left, y.start + 16 + LINE * line, "middle")


def legend_mark(series: Series, manner: Manner) -> str:
    """A small picture of how a series is drawn, for its entry in the legend."""
    svg = Element("svg", {"viewBox": "0 0 30 12", "class": "key", "aria-hidden": "true"})
    group = SubElement(svg, "g", {"class": f"series {shapes.style(series, manner)}"})
    if series.shape == "bars":
        SubElement(group, "rect", {"class": "bar", "x": "8", "y": "1", "width": "12", "height": "10"})
    elif series.shape == "points":
        SubElement(group, "path", {"class": "point", "d": shapes.marker(series), "transform": "translate(15 6)"})
    elif series.shape == "marks":
        SubElement(group, "path", {"class": "mark", "d": "M5 11V3M10 11V6M14 11V2M21 11V5M25 11V3"})
    else:
        SubElement(group, "path", {"class": "line", "d": "M0 6H30"})
    if manner.marked:
        SubElement(group, "path", {"class": "point", "d": shapes.marker(series), "transform": "translate(15 6)"})
    return tostring(svg, encoding="unicode")
