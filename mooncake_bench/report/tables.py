"""Runs on paper or screen: one entry point, five formats."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mooncake_bench.errors import ResultError, nearest
from mooncake_bench.report import markup
from mooncake_bench.report.letters import shows_all
from mooncake_bench.report.sheets import Report, Sheet, report
from mooncake_bench.report.why_sheets import why_sheets
from mooncake_bench.results.compare import Comparison, compare
from mooncake_bench.results.run import Run
from mooncake_bench.results.split import split
from mooncake_bench.results.why import why as reasons_of
from mooncake_bench.results.words import clean

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console, ConsoleOptions
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

FORMATS = ("table", "json", "csv", "markdown", "latex")
NARROWEST = 20  # columns: text is wrapped to no less
WHOLE_NAME = 16  # columns: a shorter policy name is never broken
# Where a name may be broken: behind a space, and behind these signs, but no number's sign or thousands separator.
_JOINT = re.compile(r"(?<=\s)(?=\S)|(?<=\S[:+=/_-])(?=\S)|(?<=,)(?=[^\s\d])")
# What an encoding that lacks them shows instead.
_PLAIN = str.maketrans({"×": "x", "–": "-", "±": "+-", "…": "...", "≤": "<=", "≥": ">=", "−": "-", "’": "'"})


def render(
    runs: Comparison | Run | Sequence[Run],
    fmt: str = "table",
    *,
    width: int | None = None,
    encoding: str | None = "utf-8",
    color: bool = False,
    by: str | None = None,
    force: bool = False,
    why: int | None = None,
) -> str:
    """A comparison, or one or several runs (the first is the reference), as text that ends with a newline.

    ``fmt`` is one of :data:`FORMATS`. ``width`` in columns (None: the terminal's, or 80), ``encoding`` and ``color``
    (which NO_COLOR overrides) say what the reader's screen can show; ``by`` splits a table; ``why`` splits each
    difference of mean TTFT and shows so many requests that made it. Raises ResultError for an unknown format or runs
    that are not comparable.
    """
    if fmt not in FORMATS:
        raise ResultError(f"--format {fmt!r}: expected one of {', '.join(FORMATS)}{nearest(fmt, FORMATS)}")
    comparison = _comparison(runs, force)
    reasons = [] if why is None else reasons_of(comparison, why)
    if fmt == "json":
        more = {"why": [each.to_dict() for each in reasons]} if reasons else {}
        return markup.table_json(comparison, _groups(comparison, by), ascii_only=not shows_all(encoding), more=more)
    if fmt == "csv":
        if by is not None:
            raise ResultError("--by: no effect with --format csv, which lists the metrics of whole runs; use json")
        return markup.table_csv(comparison)
    content = report(comparison, by)
    if reasons:
        sheets = why_sheets(reasons, comparison.labels[comparison.reference])
        content = replace(content, sheets=(*content.sheets, *sheets))
    if fmt == "markdown":
        return markup.markdown(content)
    return markup.latex(content) if fmt == "latex" else screen(content, width, encoding, color=color)


def _comparison(runs: Comparison | Run | Sequence[Run], force: bool) -> Comparison:
    if isinstance(runs, Comparison):
        return runs
    return compare([runs] if isinstance(runs, Run) else runs, force=force)


def _groups(comparison: Comparison, by: str | None) -> list[dict[str, Any]]:
    if by is None:
        return []
    return [
        {"label": label, by: name, "metrics": markup.json_values(run.metrics(where))}
        for label, run in zip(comparison.labels, comparison.runs, strict=True)
        for name, where in split(run, by)
    ]


def screen(content: Report, width: int | None = None, encoding: str | None = "utf-8", *, color: bool = False) -> str:
    """A report for a terminal: tables by rich, plain ASCII where the encoding cannot show more."""
    from rich.console import Console

    out = io.StringIO()
    shown = max(NARROWEST, width or Console().width)
    console = Console(
        file=out, width=shown, force_terminal=color, color_system="auto" if color else None, highlight=False,
        markup=False, emoji=False, legacy_windows=False,
    )  # fmt: skip
    unicode = shows_all(encoding)
    for line in content.head:
        _line(console, line)
    for sheet in content.sheets:
        console.print()
        _print_sheet(console, sheet, unicode=unicode)
    if content.notices:
        console.print()
    for notice in content.notices:
        _line(console, f"! {notice}", "yellow")
    text = "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"
    return text if unicode else text.translate(_PLAIN).encode("ascii", "backslashreplace").decode("ascii")


def _line(console: Console, text: str, style: str = "") -> None:
    """One fact, wrapped with an indent."""
    from rich.padding import Padding
    from rich.text import Text

    lines = Text(clean(text), style=style).wrap(console, console.width - 2)
    for i, line in enumerate(lines):
        console.print(Padding(line, (0, 0, 0, 2 if i else 0)))


def _print_sheet(console: Console, sheet: Sheet, *, unicode: bool) -> None:
    console.print(clean(sheet.title), style="bold")
    width = console.width
    table = _table(sheet, width, unicode=unicode)
    console.width = max(width, _needed(table, console))  # a digit cut off is worse than a line too long
    console.print(table)
    console.width = width
    for note in sheet.notes:
        _line(console, note, "dim")


def _needed(table: Table, console: Console) -> int:
    """The width at which every column has its least width."""
    least = sum(column.min_width or 0 for column in table.columns)
    gaps = len(table.columns) * (table.padding[1] + 1)  # the padding, and what the box puts between columns
    return least + gaps


def _table(sheet: Sheet, width: int, *, unicode: bool) -> Table:
    """The first column gives way when the screen is narrow, and the gaps between columns before it; numbers never."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    cells = [[Text(clean(cell)) for cell in row] for row in (sheet.headers, *sheet.rows)]
    widest = [max(row[i].cell_len for row in cells) for i in range(len(sheet.headers))]
    gap = 1 if not unicode or sum(widest) + 2 * len(widest) - 1 <= width else 0
    table = Table(
        box=box.SIMPLE_HEAD if unicode else box.ASCII2, pad_edge=False, padding=(0, gap, 0, 0), show_edge=False,
        header_style="bold",
    )  # fmt: skip
    for i, header in enumerate(cells[0]):
        least = widest[i] if i else min(widest[0], WHOLE_NAME)
        table.add_column(header, justify="right" if i else "left", no_wrap=bool(i), overflow="fold", min_width=least)
    for name, *values in cells[1:]:
        table.add_row(_Name(name), *values)
    return table


class _Name:
    """The text of a first column, broken at spaces and signs where it is too long, and within a word only as a last."""

    def __init__(self, text: Text) -> None:
        self.text = text

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.measure import Measurement

        return Measurement(1, self.text.cell_len).with_maximum(options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from rich.text import Text

        for line in folded(self.text.plain, options.max_width):
            yield Text(line, overflow="fold")


def folded(name: str, width: int) -> list[str]:
    """A name in lines of at most ``width`` columns."""
    from rich.cells import cell_len, chop_cells

    lines = [""]
    for part in _JOINT.split(name):
        if cell_len((lines[-1] + part).rstrip()) <= width:
            lines[-1] += part
        else:
            lines += chop_cells(part, width)
    return [line.rstrip() for line in lines if line]
