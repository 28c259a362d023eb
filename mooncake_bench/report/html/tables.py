"""A sheet as the page shows it: cells with the number that they are sorted by, and what each column means."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from mooncake_bench.report.markup import text_columns
from mooncake_bench.report.sheets import SHEETS
from mooncake_bench.results.metrics import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mooncake_bench.report.sheets import Sheet

_NUMBER = re.compile(r"[<>+]?(-?)[−]?(\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)(?: ?(TB|GB|MB|kB|B)\b)?")
_BYTES = {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1.0}
LONGEST_NUMBER = 32  # letters of a cell, an interval among them
_BIT = 1e-9  # what < and > move a number by: ">99.9 %" comes after "99.9 %"


class Cell(NamedTuple):
    """What stands in a table, and the number that it is sorted by; None: a gap, sorted last."""

    text: str
    number: float | None


class Definition(NamedTuple):
    """What a column's numbers are: the metric behind it, in words."""

    header: str
    metric: str
    text: str


@dataclass(frozen=True)
class Table:
    """A sheet, ready for the page. ``words``: which columns hold words; ``name``: of a downloaded file."""

    name: str
    sheet: Sheet
    words: tuple[bool, ...]
    rows: tuple[tuple[Cell, ...], ...]
    definitions: tuple[Definition, ...] = ()


def tables(sheets: Iterable[Sheet], *, words: bool = False) -> list[Table]:
    """Each sheet as a table of the page; ``words``: every column holds words."""
    made: list[Table] = []
    for sheet in sheets:
        name = file_name(sheet.title, [each.name for each in made])
        kinds = tuple([True] * len(sheet.headers) if words else _words_in(sheet))
        rows = tuple(
            tuple(Cell(text, None if kind else sort_number(text)) for text, kind in zip(row, kinds, strict=True))
            for row in sheet.rows
        )
        made.append(Table(name, sheet, kinds, rows, _definitions(sheet)))
    return made


def _words_in(sheet: Sheet) -> list[bool]:
    """Which columns hold words: also those with a cell that begins as a number, and goes on as a sentence."""
    long = [any(len(row[i]) > LONGEST_NUMBER for row in sheet.rows) for i in range(len(sheet.headers))]
    return [plain or sentence for plain, sentence in zip(text_columns(sheet), long, strict=True)]


def file_name(title: str, taken: Sequence[str]) -> str:
    """The letters and digits of a title up to any detail, numbered where taken."""
    name = "-".join(re.findall(r"[a-z0-9]+", re.split("[:,]", title.lower())[0]))[:60] or "table"
    return name if name not in taken else f"{name}-{sum(each.startswith(name) for each in taken) + 1}"


def sort_number(text: str) -> float | None:
    """The number that a cell's text begins with, in bytes where it is a size; None where there is none."""
    match = _NUMBER.match(text)
    if match is None:
        return None
    value = float(match[2].replace(",", "")) * _BYTES.get(match[3] or "", 1.0) * (-1 if match[1] else 1)
    return value + {"<": -_BIT, ">": _BIT}.get(text[0], 0)


def _definitions(sheet: Sheet) -> tuple[Definition, ...]:
    """What the columns of one of the usual sheets mean; none for another."""
    for title, columns, _ in SHEETS:
        if title == sheet.title:
            found = (
                Definition(column.header, column.metric, _meaning(column.metric))
                for column in columns
                if not column.ratio and not column.samples
            )
            return tuple(found)
    return ()


def _meaning(name: str) -> str:
    metric = BY_NAME[name]
    unit = f"; {metric.unit}" if metric.unit else ""
    return f"{metric.definition} ({metric.population}{unit})"
