"""A figure's numbers as the page keeps them: for the readout under the pointer, and for the download."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mooncake_bench.report.figure import Axis, Figure, Heat, Number, Panel, Series
    from mooncake_bench.report.html.scale import Scale
    from mooncake_bench.report.html.svg import Drawn


def payload(figure: Figure, drawn: Sequence[Drawn], keys: Sequence[Sequence[int]]) -> dict[str, Any]:
    """What the page's script knows of a figure: every number in full, and where it lies. ``keys``: as in the legend."""
    panels = zip(figure.panels, drawn, keys, strict=True)
    return {"name": figure.kind, "panels": [_panel(panel, place, key) for panel, place, key in panels]}


def _panel(panel: Panel, drawn: Drawn, keys: Sequence[int]) -> dict[str, Any]:
    kept = [_series(series, key) for series, key in zip(panel.series, keys, strict=True)]
    return {
        "title": panel.title,
        "x": _axis(panel.x, drawn.x),
        "y": _axis(panel.y, drawn.y),
        "height": drawn.height,
        "series": kept,
        **({} if panel.heat is None else {"heat": _heat(panel.heat)}),
    }


def _axis(axis: Axis, scale: Scale) -> dict[str, Any]:
    place = {name: round(getattr(scale, name), 2) for name in ("start", "end")}
    names = {"categories": list(axis.categories)} if axis.categories else {}
    return {"label": axis.label, "low": scale.low, "high": scale.high, "log": scale.log, **place, **names}


def _series(series: Series, key: int) -> dict[str, Any]:
    bounds = {"low": series.low, "high": series.high}
    return {
        "label": series.label,
        "key": key,
        "shape": series.shape,
        "x": _numbers(series.x),
        "y": _numbers(series.y),
        **{name: _numbers(values) for name, values in bounds.items() if values is not None},
    }


def _heat(heat: Heat) -> dict[str, Any]:
    values = [_numbers(row) for row in heat.values]
    return {"rows": list(heat.rows), "x": _numbers(heat.x), "values": values, "label": heat.label}


def _numbers(values: Iterable[Number]) -> list[Number]:
    """In full; null for what is no number."""
    return [None if each is None or not math.isfinite(each) else _short(each) for each in values]


def _short(value: float) -> float:
    """The same number, without ``.0`` where it is whole."""
    return int(value) if value == int(value) else value
