"""A heat map as SVG: a rectangle a cell, stronger the larger its value, with a scale below."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element, SubElement

from mooncake_bench.report.html.elements import number, text
from mooncake_bench.report.html.scale import Scale, bounds, tick_text

if TYPE_CHECKING:
    from mooncake_bench.report.figure import Heat, Number, Panel

WIDTH, LEFT_LETTERS, LETTER = 480, 14, 8.2
TOP, BOTTOM, RIGHT = 10, 74, 14
ROW, TALLEST = 15.0, 640.0  # pixels of a row, and of all rows
NAME_EVERY = 11.0  # pixels that a row's name needs
SHADES = 24  # steps of the scale below


def heat_height(heat: Heat) -> float:
    """Pixels of the whole picture."""
    return TOP + BOTTOM + min(TALLEST, ROW * max(1, len(heat.rows)))


def strongest(heat: Heat) -> float:
    """The value of the strongest colour."""
    known = [value for row in heat.values for value in row if value is not None]
    return heat.high if heat.high is not None else max(known, default=1) or 1


def draw_heat(svg: Element, panel: Panel, height: float) -> tuple[Scale, Scale]:
    """Add the map to ``svg``; the scales of its x, and of its rows from 0 at the top."""
    heat = panel.heat
    assert heat is not None
    longest = min(LEFT_LETTERS, max(map(len, heat.rows), default=0))
    x = Scale(*bounds(panel.x, heat.x), 12 + LETTER * longest, WIDTH - RIGHT)
    y = Scale(0, max(1, len(heat.rows)), TOP, height - BOTTOM)
    cells = SubElement(svg, "g", {"class": "cells"})
    for row, values in enumerate(heat.values):
        for column, value in enumerate(values):
            _cell(cells, heat, x, y, row, column, value)
    words = SubElement(svg, "g", {"class": "axis"})
    _row_names(words, heat, x, y)
    for tick in x.ticks(6):
        text(words, tick_text(tick), x.at(tick) or 0, y.end + 16, "middle")
    text(words, panel.x.label, (x.start + x.end) / 2, y.end + 32, "label middle")
    _key(svg, words, heat, x, y.end + 48)
    return x, y


def _cell(cells: Element, heat: Heat, x: Scale, y: Scale, row: int, column: int, value: Number) -> None:
    if value is None:
        return
    left, right = (x.at(heat.x[i]) or 0 for i in (column, column + 1))
    top, bottom = (y.at(i) or 0 for i in (row, row + 1))
    _shaded(cells, (left, right), top + 0.5, bottom - top - 1, min(1.0, max(0.0, value / strongest(heat))))


def _row_names(words: Element, heat: Heat, x: Scale, y: Scale) -> None:
    step = (y.end - y.start) / max(1, len(heat.rows))
    for row in range(0, len(heat.rows), max(1, -int(-NAME_EVERY // step))):
        text(words, heat.rows[row], x.start - 6, (y.at(row + 0.5) or 0) + 4, "end", most=LEFT_LETTERS)


def _key(svg: Element, words: Element, heat: Heat, x: Scale, top: float) -> None:
    """The scale of colours, from 0 to the strongest."""
    cells = SubElement(svg, "g", {"class": "cells"})
    width = 120 / SHADES
    for i in range(SHADES):
        _shaded(cells, (x.start + i * width, x.start + (i + 1) * width), top, 9, (i + 1) / SHADES)
    text(words, "0", x.start, top + 22, "middle")
    text(words, tick_text(float(f"{strongest(heat):.3g}")), x.start + 120, top + 22, "middle")
    text(words, heat.label, x.start + 134, top + 9, "label")


def _shaded(cells: Element, edges: tuple[float, float], top: float, height: float, shade: float) -> None:
    """A rectangle whose edges are rounded as its neighbours' are: no gap shows between two of them."""
    left, right = (round(edge, 1) for edge in edges)
    place = {"x": left, "y": top, "width": right - left, "height": height}
    SubElement(cells, "rect", {**{name: number(size) for name, size in place.items()}, "fill-opacity": f"{shade:.3f}"})
