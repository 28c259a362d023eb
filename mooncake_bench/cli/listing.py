"""Lists of things (policies, traces, metrics) in every format: a column a key, a line an item."""

from __future__ import annotations

import csv
import io
import shutil
import textwrap
from typing import TYPE_CHECKING, Any

from mooncake_bench.cli.output import json_answer, screen
from mooncake_bench.results.words import clean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mooncake_bench.report.sheets import Report

MIN_LAST = 24  # columns that the last, wrapped column keeps on a narrow screen
GAP = "  "


def render_list(title: str, items: Sequence[dict[str, Any]], fmt: str) -> str:
    """Items of the same keys as text: ``json`` keeps values, the other formats show None as nothing."""
    if fmt == "json":
        return json_answer(list(items))
    rows = [[_shown(value) for value in item.values()] for item in items]
    headers = [key.replace("_", " ") for key in items[0]] if items else []
    if fmt == "table":
        return aligned(headers, rows, width=shutil.get_terminal_size().columns)
    if fmt == "csv":
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([list(items[0]) if items else [], *rows])
        return out.getvalue()
    from mooncake_bench.report.sheets import Report, Sheet

    return render_report(Report((), (Sheet(title, tuple(headers), tuple(tuple(row) for row in rows)),), ()), fmt)


def render_report(report: Report, fmt: str) -> str:
    """A report as ``table``, for this screen, ``markdown`` or ``latex``."""
    from mooncake_bench.report import markup, tables

    if fmt == "table":
        return tables.screen(report, **screen())
    return markup.markdown(report) if fmt == "markdown" else markup.latex(report)


def facts_csv(facts: dict[str, Any]) -> str:
    """One plain number or text a line, under a dotted key; what is not defined is empty."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([("key", "value"), *_flat(facts)])
    return out.getvalue()


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list | tuple):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _flat(inner, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


def aligned(headers: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> str:
    """Columns under their headers, the last one wrapped so that lines fit ``width``."""
    sizes = _sizes(headers, rows)
    return "\n".join(line for row in (headers, *rows) for line in _lines(row, sizes, width))


def grouped(headers: Sequence[str], groups: Mapping[str, Sequence[Sequence[str]]], width: int) -> str:
    """As :func:`aligned`, with the rows of each group under the group's name."""
    sizes = _sizes(headers, [row for rows in groups.values() for row in rows])
    lines = list(_lines(headers, sizes, width))
    for name, rows in groups.items():
        lines += ["", *textwrap.wrap(clean(name), width), *(line for row in rows for line in _lines(row, sizes, width))]
    return "\n".join(lines)


def _sizes(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """Letters of each column but the last."""
    return [max(map(len, column)) for column in list(zip(headers, *rows, strict=True))[:-1]]


def _lines(row: Sequence[str], sizes: Sequence[int], width: int) -> Iterator[str]:
    indent = sum(sizes) + len(GAP) * len(sizes)
    head = GAP.join(clean(cell).ljust(size) for cell, size in zip(row, sizes, strict=False))
    first, *more = textwrap.wrap(row[-1], max(width - indent, MIN_LAST), break_on_hyphens=False) or [""]
    yield clean(f"{head}{GAP if head else ''}{first}".rstrip())
    yield from (clean((" " * indent + line).rstrip()) for line in more)


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return (
        "" if value is None else f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    )
