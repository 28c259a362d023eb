"""What a picture shows, apart from how it is drawn: numbers in panels, for paper (Matplotlib) and page (inline SVG).

A figure kind (:mod:`mooncake_bench.report.figures`) makes one from runs; renderers draw it, tests read it, and a reader
downloads its numbers (:func:`rows`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

Number = float | None
Shape = Literal["line", "step", "points", "bars", "marks"]
"""``step``: the value holds until the next x. ``marks``: short ticks at x, such as rejections; y is how many."""


@dataclass(frozen=True)
class Axis:
    """A label with its unit, and the scale. ``categories``: names in place of numbers, at x = 0, 1, …"""

    label: str
    log: bool = False
    low: Number = None  # None: as the numbers ask
    high: Number = None
    categories: tuple[str, ...] = ()


@dataclass(frozen=True)
class Series:
    """Points in order of x. ``run``: index of the run it belongs to, which gives its colour; None: of no run (black).

    ``y`` of None is a gap. ``low`` and ``high``, where given, are an interval around each y. ``dashed`` tells apart two
    series of one run. ``names``: which point each is, such as the settings of a sweep's.
    """

    label: str
    x: tuple[float, ...]
    y: tuple[Number, ...]
    run: int | None = None
    shape: Shape = "line"
    dashed: bool = False
    low: tuple[Number, ...] | None = None
    high: tuple[Number, ...] | None = None
    names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Guide:
    """A straight line that means something, such as an SLO: across at a y, or up at an x."""

    label: str
    at: float
    upright: bool = False


@dataclass(frozen=True)
class Heat:
    """A map of cells: ``values[row][column]``, rows named, columns from ``x[j]`` to ``x[j + 1]``; None is empty."""

    rows: tuple[str, ...]
    x: tuple[float, ...]  # one more than columns
    values: tuple[tuple[Number, ...], ...]
    label: str  # of a value, with its unit
    high: Number = None  # value of the strongest colour; None: the largest


@dataclass(frozen=True)
class Panel:
    """One coordinate system."""

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...] = ()
    guides: tuple[Guide, ...] = ()
    heat: Heat | None = None


@dataclass(frozen=True)
class Figure:
    """Panels under one title. ``note`` says what is left out or meant, in a sentence."""

    kind: str
    title: str
    panels: tuple[Panel, ...]
    runs: tuple[str, ...] = ()  # labels, in the order of colours
    note: str = ""
    empty: str = field(default="", kw_only=True)  # why there is nothing to draw; then no panel has numbers


HEADERS = ("panel", "series", "x", "y", "low", "high", "point")


def rows(figure: Figure) -> Iterator[tuple[str | Number, ...]]:
    """Every number of a figure as rows under :data:`HEADERS`; a heat map's row name is its series, x its left edge."""
    for panel in figure.panels:
        for each in panel.series:
            none = (None,) * len(each.x)
            columns = (each.x, each.y, each.low or none, each.high or none, each.names or none)
            for x, *others in zip(*columns, strict=True):
                yield panel.title, each.label, panel.x.categories[int(x)] if panel.x.categories else x, *others
        if panel.heat is not None:
            for name, values in zip(panel.heat.rows, panel.heat.values, strict=True):
                for x, value in zip(panel.heat.x, values, strict=False):
                    yield panel.title, name, x, value, None, None, None
