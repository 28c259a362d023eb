"""The marks of one series as SVG elements: lines, steps, points, bars and ticks, with their intervals."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import TYPE_CHECKING, NamedTuple
from xml.etree.ElementTree import Element, SubElement

from mooncake_bench.report.html.elements import number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mooncake_bench.report.figure import Number, Panel, Series
    from mooncake_bench.report.html.scale import Scale

Point = tuple[float, float]
MARKER = 3.4  # pixels from the middle of a point's marker to its edge
BAR_SHARE = 0.8  # of a category's width that its bars take
NOISE, FEW = 6, 100  # times its range that a restless line goes up and down, with more points than so many
MARKED = 20  # points of a line up to which each is marked
DASHES, COLOURS = 5, 7  # as many as plot_style has

# Shape of a point by the index of its run: circle, square, triangle, diamond, triangle down, plus, cross.
_MARKERS = (
    "M{r} 0A{r} {r} 0 1 1 -{r} 0A{r} {r} 0 1 1 {r} 0Z", "M-{r} -{r}H{r}V{r}H-{r}Z", "M0 -{r}L{r} {r}H-{r}Z",
    "M0 -{r}L{r} 0L0 {r}L-{r} 0Z", "M0 {r}L{r} -{r}H-{r}Z", "M-{r} 0H{r}M0 -{r}V{r}",
    "M-{r} -{r}L{r} {r}M{r} -{r}L-{r} {r}",
)  # fmt: skip


class Manner(NamedTuple):
    """How every line of one entry of the legend is drawn: without dashes, which would not be seen; with its points."""

    restless: bool = False
    marked: bool = False


def manners(panels: Sequence[Panel], keys: Sequence[Sequence[int]]) -> dict[int, Manner]:
    """One manner an entry of the legend, whatever the panel: ``keys`` are the entries of each panel's series."""
    alike: dict[int, list[Series]] = {}
    for panel, places in zip(panels, keys, strict=True):
        for series, key in zip(panel.series, places, strict=True):
            alike.setdefault(key, []).append(series)
    return {key: Manner(any(map(_restless, each)), all(map(_few, each))) for key, each in alike.items()}


def style(series: Series, manner: Manner) -> str:
    """The classes that give a series its colour and dashes: by run, by ``dashed``, and where it is restless."""
    run = "bound" if series.run is None else f"r{series.run % COLOURS} d{series.run % DASHES}"
    return run + " dashed" * series.dashed + " noisy" * manner.restless


def _restless(series: Series) -> bool:
    """Whether a line goes up and down so much that dashes would not be seen."""
    known = [value for value in series.y if value is not None]
    way = sum(abs(right - left) for left, right in pairwise(known))
    return len(known) > FEW and way > NOISE * (max(known) - min(known))


def _few(series: Series) -> bool:
    """Whether a line joins a run's points, so few that each can be marked; a bound has none."""
    return series.shape == "line" and series.run is not None and not series.dashed and len(series.x) <= MARKED


def draw(parent: Element, series: Series, x: Scale, y: Scale, bars: Bars) -> None:
    """Add the series' marks to ``parent``."""
    _DRAWERS[series.shape](parent, series, x, y, bars)


class Bars:
    """Where the bars of a panel stand: side by side in each category, in the order of series."""

    def __init__(self, x: Scale, series: Sequence[Series]) -> None:
        self._series = [each for each in series if each.shape == "bars"]
        places = sorted({value for each in self._series for value in each.x})
        gaps = [b - a for a, b in pairwise(places)]
        gap = min(gaps) if gaps else (x.high - x.low)
        self.width = BAR_SHARE * abs(x.end - x.start) * gap / (x.high - x.low) / max(1, len(self._series))

    def left(self, series: Series, middle: float) -> float:
        """The left edge of a series' bar around a category's middle, in pixels."""
        place = next(i for i, each in enumerate(self._series) if each is series)
        return middle + (place - len(self._series) / 2) * self.width


def _line(parent: Element, series: Series, x: Scale, y: Scale, _: Bars) -> None:
    _band(parent, series, x, y)
    SubElement(parent, "path", {"class": "line", "d": _path(_runs(series.x, series.y, x, y), _joined)})


def _step(parent: Element, series: Series, x: Scale, y: Scale, _: Bars) -> None:
    _band(parent, series, x, y)
    SubElement(parent, "path", {"class": "line", "d": _path(_runs(series.x, series.y, x, y), _stepped)})


def _points(parent: Element, series: Series, x: Scale, y: Scale, _: Bars) -> None:
    _whiskers(parent, series, x, y)
    mark(parent, series, x, y)


def mark(parent: Element, series: Series, x: Scale, y: Scale) -> None:
    """Add a marker at each point."""
    shape = marker(series)
    for piece in _runs(series.x, series.y, x, y):
        for left, top in piece:
            where = f"translate({number(left)} {number(top)})"
            SubElement(parent, "path", {"class": "point", "d": shape, "transform": where})


def _bars(parent: Element, series: Series, x: Scale, y: Scale, bars: Bars) -> None:
    floor = y.at(0 if not y.log else y.low) or 0
    for value, height in zip(series.x, series.y, strict=True):
        middle, top = x.at(value), y.at(height)
        if middle is None or top is None:
            continue
        place = {"x": bars.left(series, middle), "y": min(top, floor), "width": bars.width, "height": abs(floor - top)}
        SubElement(parent, "rect", {"class": "bar", **{name: number(size) for name, size in place.items()}})
    _whiskers(parent, series, x, y, lambda middle: bars.left(series, middle) + bars.width / 2)


def _marks(parent: Element, series: Series, x: Scale, y: Scale, _: Bars) -> None:
    """Ticks at x, as tall as y says; ``y`` is the scale of the strip that they stand on."""
    ends = [(x.at(value), y.at(height)) for value, height in zip(series.x, series.y, strict=True) if height]
    drawn = [f"M{number(left)} {number(y.start)}V{number(top)}" for left, top in ends if left is not None and top]
    SubElement(parent, "path", {"class": "mark", "d": "".join(dict.fromkeys(drawn))})


_DRAWERS: dict[str, Callable[[Element, Series, Scale, Scale, Bars], None]] = {
    "line": _line, "step": _step, "points": _points, "bars": _bars, "marks": _marks,
}  # fmt: skip


def marker(series: Series) -> str:
    """The path of one point, around 0 0."""
    return _MARKERS[(series.run or 0) % len(_MARKERS)].format(r=number(MARKER))


# ---- paths


def _runs(xs: Sequence[float], ys: Sequence[Number], x: Scale, y: Scale) -> Iterator[list[Point]]:
    """Points in pixels, cut where a value is missing."""
    piece: list[Point] = []
    for value, height in zip(xs, ys, strict=True):
        left, top = x.at(value), y.at(height)
        if left is not None and top is not None:
            piece.append((left, top))
        elif piece:
            yield piece
            piece = []
    if piece:
        yield piece


def _path(pieces: Iterator[list[Point]], join: Callable[[list[Point]], Iterator[Point]]) -> str:
    return "".join(_polyline(join(piece)) for piece in pieces)


def _polyline(points: Iterator[Point]) -> str:
    """``M x y L x y …``; points on the same tenth of a pixel are one. A lone point is a short dash."""
    drawn = [place for place, _ in groupby(f"{number(left)} {number(top)}" for left, top in points)]
    return f"M{drawn[0]}h1" if len(drawn) == 1 else "M" + "L".join(drawn)


def _joined(piece: list[Point]) -> Iterator[Point]:
    yield from piece


def _stepped(piece: list[Point]) -> Iterator[Point]:
    """Each value holds until the next x."""
    yield piece[0]
    for (_, before), (left, top) in pairwise(piece):
        yield left, before
        yield left, top


# ---- intervals


def _band(parent: Element, series: Series, x: Scale, y: Scale) -> None:
    if series.low is None or series.high is None:
        return
    join = _stepped if series.shape == "step" else _joined
    known = [
        (value, low, high)
        for value, low, high in zip(series.x, series.low, series.high, strict=True)
        if low is not None and high is not None
    ]
    xs = [each[0] for each in known]
    under, over = (list(_runs(xs, [each[i] for each in known], x, y)) for i in (1, 2))
    if len(under) == 1 and len(over) == 1:
        outline = [*join(over[0]), *reversed(list(join(under[0])))]
        SubElement(parent, "path", {"class": "band", "d": _polyline(iter(outline)) + "Z"})


def _whiskers(
    parent: Element, series: Series, x: Scale, y: Scale, place: Callable[[float], float] = lambda middle: middle
) -> None:
    if series.low is None or series.high is None:
        return
    drawn = ""
    for value, low, high in zip(series.x, series.low, series.high, strict=True):
        middle, bottom, top = x.at(value), y.at(low), y.at(high)
        if middle is not None and bottom is not None and top is not None:
            left = place(middle)
            ends = "".join(f"M{number(left - 3)} {number(end)}h6" for end in (bottom, top))
            drawn += f"M{number(left)} {number(bottom)}V{number(top)}{ends}"
    SubElement(parent, "path", {"class": "whisker", "d": drawn})
