"""A figure drawn with Matplotlib: for paper, at the width of a column or of a page."""

from __future__ import annotations

import textwrap
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from mooncake_bench.report import plots
from mooncake_bench.report.strokes import ACROSS, CORNER, LOG_TICKS, SHORT, UP, Code, Data, calls, columns, words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mooncake_bench.report.figure import Figure, Panel
    from mooncake_bench.report.strokes import Call

WIDE_IN = 5.0  # from here on panels stand side by side
ROW_IN, NARROW_ROW_IN = 2.3, 1.9  # height of a row of panels, by itself
HEAT_IN = 1.25  # height of a row of heat maps
EACH_ROW_IN = 0.03  # more for each instance of a heat map
SLANTED_IN = 0.35  # more for names of categories, which may stand aslant
WORDS_IN = 1.0  # height of a picture that says why there is nothing to draw
LEGEND_LINE_IN = 0.17
LETTERS_PER_IN = 15.5  # of a legend
HANDLE_LETTERS = 8  # that the line in front of a name takes the room of


class Layout(NamedTuple):
    """How a figure fills a sheet."""

    rows: int
    columns: int
    width_in: float
    height_in: float
    legend_columns: int

    @property
    def panel_in(self) -> float:
        """About how wide a panel's frame is."""
        return self.width_in / self.columns - 0.6

    def bottom(self, panels: Sequence[Panel], number: int) -> bool:
        """Whether a panel's x axis is to be named: the one below it, if any, is another."""
        below = number + self.columns
        return below >= len(panels) or panels[below].x != panels[number].x


def write(
    figure: Figure, path: str | Path, width_in: float = plots.WIDTH_IN, height_in: float | None = None, *,
    force: bool = False, flag: str = "-o", dpi: int | None = None,
) -> Path:  # fmt: skip
    """Draw into a .png, .svg or .pdf file, whole or not at all. Raises SetupError as :func:`plots.save` does."""
    with plots.style():
        return plots.save(draw(figure, width_in, height_in), path, force=force, flag=flag, dpi=dpi,
                          title=figure.title, note=figure.empty or figure.note)  # fmt: skip


def draw(figure: Figure, width_in: float = plots.WIDTH_IN, height_in: float | None = None) -> Any:
    """The drawing, to be made inside :func:`plots.style`. An empty figure says why in words."""
    from matplotlib import rcParams

    rcParams["text.parse_math"] = False  # a name may hold dollars; the style ends with its context
    plan = layout(figure, width_in, height_in)
    made, axes = plots.figure(plan.rows, plan.columns, width_in=plan.width_in, height_in=plan.height_in)
    if figure.empty:
        make(axes[0], words(why(figure, width_in)), {})
        return made
    for number, panel in enumerate(figure.panels):
        named = calls(panel, number, plan.panel_in, bottom=plan.bottom(figure.panels, number))
        make(axes[number], named, columns(panel))
    for unused in axes[len(figure.panels) :]:
        unused.remove()
    _legend(made, axes[: len(figure.panels)], plan.legend_columns)
    return made


def layout(figure: Figure, width_in: float, height_in: float | None) -> Layout:
    """Panels in one column, or in two where there is room; the height that they need, unless it is given."""
    count = len(figure.panels)
    if figure.empty:
        return Layout(1, 1, width_in, height_in or WORDS_IN, 1)
    across = 2 if count > 1 and width_in >= WIDE_IN else 1
    rows = -(-count // across)
    labels = legend_labels(figure.panels)
    fitting = _legend_columns(labels, width_in * LETTERS_PER_IN)
    lines = -(-len(labels) // fitting) if len(labels) > 1 else 0
    height = rows * max(_panel_height(panel, rows) for panel in figure.panels) + lines * LEGEND_LINE_IN
    if any(panel.x.categories for panel in figure.panels):
        height += SLANTED_IN
    return Layout(rows, across, width_in, height if height_in is None else height_in, fitting)


def _panel_height(panel: Panel, rows: int) -> float:
    if panel.heat is not None:
        return HEAT_IN + EACH_ROW_IN * len(panel.heat.rows)
    return NARROW_ROW_IN if rows > 1 else ROW_IN


def _legend_columns(labels: Sequence[str], letters: float) -> int:
    """The most columns in which the labels fit; Matplotlib fills them one after the other."""
    for most in range(len(labels), 1, -1):
        each, more = divmod(len(labels), most)  # the first columns have one more
        ends = [(place + 1) * each + min(place + 1, more) for place in range(most)]
        columns = [labels[start:end] for start, end in pairwise([0, *ends])]
        if sum(max(map(len, column)) + HANDLE_LETTERS for column in columns) <= letters:
            return most
    return 1


def legend_labels(panels: Sequence[Panel]) -> list[str]:
    """What a legend names: each label once."""
    return list(dict.fromkeys(series.label for panel in panels for series in panel.series))


def make(axes: Any, made: Any, numbers: Mapping[Data, Any]) -> None:
    """Make the calls on an axes."""
    for call in made:
        arguments = [_value(each, axes, numbers) for each in call.arguments]
        keywords = {name: _value(each, axes, numbers) for name, each in call.keywords.items()}
        if call.method == "heat":
            _heat(axes, arguments, keywords)
        else:
            _method(axes, call)(*arguments, **keywords)


def _method(axes: Any, call: Call) -> Any:
    found = axes
    for name in call.method.split("."):
        found = getattr(found, name)
    return found


def _heat(axes: Any, arguments: list[Any], keywords: dict[str, Any]) -> None:
    """Cells, and the bar that says what their colours mean."""
    label = keywords.pop("label")
    axes.figure.colorbar(axes.pcolormesh(*arguments, **keywords), ax=axes, label=label, pad=0.02)


def _value(value: Any, axes: Any, numbers: Mapping[Data, Any]) -> Any:
    if isinstance(value, Data):
        return numbers[value]
    return _meaning(value, axes) if isinstance(value, Code) else value


def _meaning(code: Code, axes: Any) -> Any:
    """What a name stands for that a script would spell out."""
    from matplotlib.ticker import LogLocator

    return {
        SHORT: _short,
        LOG_TICKS: LogLocator(subs=(1, 2, 5)),
        ACROSS: axes.get_yaxis_transform(),
        UP: axes.get_xaxis_transform(),
        CORNER: axes.transAxes,
    }[code]


def _short(value: float, _: int | None = None) -> str:
    return plots.short(value)


def _legend(made: Any, axes: Sequence[Any], most: int) -> None:
    """One for all panels, above them; none where it would name one thing only."""
    entries: dict[str, Any] = {}
    for each in axes:
        for handle, label in zip(*each.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if len(entries) > 1:
        made.legend(list(entries.values()), list(entries), loc="outside upper left", ncols=most)


def why(figure: Figure, width_in: float) -> str:
    """Why an empty figure shows nothing, in lines that fit."""
    return textwrap.fill(f"{figure.title}: {figure.empty}", int(width_in * LETTERS_PER_IN * 0.9))
