"""Predicted against measured, a panel a unit, points coloured by what the prediction knew of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mooncake_bench.report import plots
from mooncake_bench.studies.validate.outcome import BASES

if TYPE_CHECKING:
    from mooncake_bench.studies.validate.outcome import Done, Row

BAND = 0.10  # of the measured value, shaded


def draw(one: Done) -> Any | None:
    """A figure of a check's points, to be called inside ``plots.style()``; None where it has none."""
    units = list(dict.fromkeys(row.unit for row in one.rows if row.points))
    if not units:
        return None
    made, panels = plots.figure(1, len(units), height_in=3.2)
    for unit, panel in zip(units, panels, strict=True):
        _panel(panel, [row for row in one.rows if row.unit == unit and row.points], unit)
    made.suptitle(f"{one.id}: {one.title}", fontsize=9)
    return made


def _panel(panel: Any, rows: list[Row], unit: str) -> None:
    values = [value for row in rows for point in row.points for value in (point.measured, point.predicted)]
    ends = [0.8 * min(values), 1.25 * max(values)]
    panel.fill_between(
        ends, [(1 - BAND) * end for end in ends], [(1 + BAND) * end for end in ends], color=plots.FAINT, alpha=0.4,
        linewidth=0, label="± 10 %",
    )  # fmt: skip
    panel.plot(ends, ends, color=plots.BOUND, linewidth=0.8)
    for i, basis in enumerate(BASES):
        points = [point for row in rows if row.basis == basis for point in row.points]
        if points:
            panel.plot(
                [point.measured for point in points], [point.predicted for point in points], linestyle="none",
                marker=plots.MARKERS[i], markersize=4, color=plots.PALETTE[i], label=basis,
            )  # fmt: skip
    if max(values) > 3 * min(values) and min(values) > 0:
        panel.set_xscale("log")
        panel.set_yscale("log")
    panel.set_xlim(*ends)
    panel.set_ylim(*ends)
    panel.set_xlabel(f"measured [{unit}]")
    panel.set_ylabel(f"predicted [{unit}]")
    panel.legend(fontsize=7)
