"""A figure as a short Python script that needs Matplotlib alone, for an author to restyle.

The script makes the calls that :mod:`drawing` makes, reads the numbers from a CSV file beside it, and writes the file
that it is given, ``NAME.pdf`` without one.
"""

from __future__ import annotations

import csv
import io
from pprint import pformat
from typing import TYPE_CHECKING, Any

from mooncake_bench.report import plots
from mooncake_bench.report.drawing import layout, why
from mooncake_bench.report.figure import HEADERS, rows
from mooncake_bench.report.plot_style import SETTINGS
from mooncake_bench.report.strokes import Code, Data, calls, words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mooncake_bench.report.figure import Figure, Panel
    from mooncake_bench.report.strokes import Call

LINE = 118

HEAD = '''"""{title}.{note}

Run it with Python and Matplotlib: python {name} [FILE], by default {stem}.pdf. Numbers: {data}, beside this file.
"""

import csv
import sys
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

HERE = Path(__file__)
matplotlib.rcParams.update(
{settings}
)


def number(text):
    try:
        return float(text or "nan")
    except ValueError:
        return text


def short(value, position=None):
    """500, 2k, 1.5M"""
    for unit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{{value / unit:.4g}}{{letter}}"
    return f"{{value:.4g}}"


DATA = {{}}  # a list of columns for each panel, a series each
with HERE.with_suffix(".csv").open(newline="", encoding="utf-8") as file:
    before = None
    for panel, series, *values in list(csv.reader(file))[1:]:
        if (panel, series) != before:
            DATA.setdefault(panel, []).append({{"x": [], "y": [], "low": [], "high": []}})
        before = panel, series
        for column, value in zip(DATA[panel][-1].values(), values):
            column.append(number(value))

figure = Figure(figsize=({width:g}, {height:g}), layout="constrained")
panels = figure.subplots({rows}, {columns}, squeeze=False).flatten()
'''

TAIL = """
# the legend, each name once
entries = {{}}
for axes in panels:
    for handle, label in zip(*axes.get_legend_handles_labels()):
        entries.setdefault(label, handle)
if len(entries) > 1:
    figure.legend(list(entries.values()), list(entries), loc="outside upper left", ncols={columns})
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else HERE.with_suffix(".pdf"))
"""


def numbers(figure: Figure) -> str:
    """Every number of a figure as CSV."""
    out = io.StringIO()
    written = csv.writer(out, lineterminator="\n")
    written.writerow(HEADERS)
    written.writerows(rows(figure))
    return out.getvalue()


def script(figure: Figure, stem: str, width_in: float = plots.WIDTH_IN, height_in: float | None = None) -> str:
    """The script, to be kept as ``stem.py`` beside the figure's :func:`numbers` as ``stem.csv``."""
    plan = layout(figure, width_in, height_in)
    named = {"name": f"{stem}.py", "stem": stem, "data": f"{stem}.csv"}
    head = HEAD.format(
        title=_quoted(figure.title), note=_quoted(f" {figure.note}" if figure.note else ""), **named,
        settings=_settings(), width=plan.width_in, height=round(plan.height_in, 3), rows=plan.rows,
        columns=plan.columns,
    )  # fmt: skip
    parts = [head]
    if figure.empty:
        parts.append("axes = panels[0]\n" + "\n".join(map(_line, words(why(figure, width_in)))) + "\n")
    for number, panel in enumerate(figure.panels):
        bottom = plan.bottom(figure.panels, number)
        lines = _lines(panel, number, calls(panel, number, plan.panel_in, bottom=bottom))
        parts.append("\n".join(lines) + "\n")
    unused = plan.rows * plan.columns - len(figure.panels)
    if unused:
        parts.append(f"for axes in panels[-{unused}:]:\n    axes.remove()\npanels = panels[:-{unused}]\n")
    parts.append(TAIL.format(columns=plan.legend_columns))
    return "\n".join(parts)


def _settings() -> str:
    """The look, as the argument of a call."""
    return "\n".join(f"    {line}" for line in pformat({**SETTINGS, "text.parse_math": False}, width=LINE).splitlines())


def _quoted(text: str) -> str:
    """A text inside a docstring."""
    return text.replace("\\", "\\\\").replace('"', "'")


def _lines(panel: Panel, number: int, made: Iterator[Call]) -> Iterator[str]:
    title = " ".join(panel.title.split())
    places = [sum(bool(before.x) for before in panel.series[:place]) for place in range(len(panel.series))]
    yield f"# {title or 'the panel'}"
    yield f"axes, data = panels[{number}], DATA[{panel.title!r}]"
    for call in made:
        if call.method == "heat":
            yield from _heat(panel, call)
        else:
            yield _line(call, places)


def _line(call: Call, places: Sequence[int] = ()) -> str:
    """A call as source. ``places``: of each series of the panel, which of those with points it is."""
    given = [_printed(value, places) for value in call.arguments]
    named = [f"{name}={_printed(value, places)}" for name, value in call.keywords.items() if name != "gid"]
    return f"axes.{call.method}({', '.join([*given, *named])})"


def _heat(panel: Panel, call: Call) -> Iterator[str]:
    """The rows of cells are one series each; the CSV has their left edges, so the last right one is here."""
    assert panel.heat is not None
    keywords = dict(call.keywords)
    label = keywords.pop("label")
    yield f"edges = [*data[0]['x'], {panel.heat.x[-1]!r}]"
    yield "cells = [row['y'] for row in data]"
    looks = ", ".join(f"{name}={value!r}" for name, value in keywords.items() if name != "gid")
    yield f"mesh = axes.pcolormesh(edges, {call.arguments[1]!r}, cells, {looks})"
    yield f"figure.colorbar(mesh, ax=axes, label={label!r}, pad=0.02)"


def _printed(value: Any, places: Sequence[int]) -> str:
    if isinstance(value, Data):
        return f"data[{places[value.series]}]['{value.column}']"
    return value.text if isinstance(value, Code) else repr(value)
