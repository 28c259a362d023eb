"""What every CSV format needs: a header with names, and columns of numbers, times, names or lists.

The first line that is not blank has the columns' names, in any order; others are ignored, with a notice where the
format does not know them. Fields may be quoted but end on their line; lines end in LF or CRLF, blank ones are skipped.
Numbers are plain: a token count such as ``12.0`` or ``1,024`` is refused, for what else may it be. Arrow reads a piece
at once; where it stumbles, or might read what we would not (``0x10``), the piece is read again, slowly, field by field:
that reading decides, and finds the line to complain about.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench.errors import TraceError, nearest
from mooncake_bench.trace.formats._jsonl import shown
from mooncake_bench.trace.pieces import BYTE_ORDER_MARK, MAX_LINE_BYTES, Piece, line_numbers, lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from mooncake_bench.trace.formats import Source
    from mooncake_bench.trace.model import Ints

INTEGER, NUMBER, DATE, TEXT = "integer", "number", "date", "text"
REAL, TIME = "real", "time"  # as the first row has it: INTEGER or NUMBER, for a TIME also DATE
_INTEGER = re.compile(r"-?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DATE = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}(:?[0-9]{2})?)?"
)
MAX_DIGITS = 4_000  # Python refuses to read longer integers
DATES_FROM_CHARS = 19  # of YYYY-MM-DD HH:MM:SS: Arrow takes shorter ones, too
DATE_WANTED = "a date such as 2023-11-16 18:17:03.9799600"


@dataclass(frozen=True)
class Column:
    """A column that a format reads."""

    name: str
    kind: str
    expected: str
    optional: bool = False


@dataclass(frozen=True)
class Part:
    """The columns of a piece: int64 or float64 arrays, dates as ns since 1970, texts as Arrow strings."""

    values: dict[str, Any]
    lines: int | Ints  # where its rows stand: the first one's line when they are consecutive
    rows: int
    source: Source
    columns: dict[str, Column]

    def error(self, row: int, name: str, found: object, expected: str | None = None) -> TraceError:
        """The error line for a bad value."""
        line = self.lines + row if isinstance(self.lines, int) else int(self.lines[row])
        wanted = self.columns[name].expected if expected is None else expected
        return TraceError(f"{self.source.label}, line {line}, field {name!r}: found {found}; expected {wanted}")


def header(head: bytes) -> list[str]:
    """The names on the first line that is not blank; none where that is no CSV header."""
    first = next((line for _, line in lines(head)), b"")
    if first.lstrip()[:1] in (b"{", b"[") or b"\x00" in first:
        return []
    try:
        return [name.strip() for name in _split(first.decode("utf-8", "replace").strip("\r\n\ufeff"))]
    except csv.Error:
        return []


def _split(line: str) -> list[str]:
    """The fields of a line. Raises csv.Error for a quoted one that does not end, and the like."""
    if len(line) < csv.field_size_limit():
        return next(csv.reader([line], strict=True), [])
    before = csv.field_size_limit(MAX_LINE_BYTES)
    try:
        return next(csv.reader([line], strict=True), [])
    finally:
        csv.field_size_limit(before)


def has_any(head: bytes, names: set[str]) -> bool:
    """Whether the header has one of the names."""
    return not names.isdisjoint(header(head))


class Table:
    """A CSV file, read piece by piece."""

    def __init__(self, source: Source, columns: Sequence[Column], known: Sequence[str] = ()) -> None:
        """Raises TraceError for a header that lacks a column or has one twice."""
        self.source = source
        names = header(source.head)
        self.names = names
        self.notices: list[str] = []
        self.columns = {column.name: column for column in columns if column.name in names or not column.optional}
        self._check(columns, known)
        self._kinds = {name: column.kind for name, column in self.columns.items()}

    def has(self, name: str) -> bool:
        """Whether a column is there."""
        return name in self.columns

    def _check(self, columns: Sequence[Column], known: Sequence[str]) -> None:
        where = f"{self.source.label}, line {self.source.head_line}"
        for name, column in self.columns.items():
            if name not in self.names:
                raise TraceError(f"{where}, field {name!r}: {self._missing(name, columns)}; expected {column.expected}")
            if self.names.count(name) > 1:
                raise TraceError(f"{where}, field {name!r}: found the name twice; expected each column's once")
        ignored = [name for name in self.names if name not in self.columns and name not in known]
        if ignored:
            shown_names = ", ".join(map(shown, ignored[:8]))
            more = f" and {len(ignored) - 8} more" if len(ignored) > 8 else ""
            self.notices.append(f"{self.source.label}: ignored columns that mean nothing here: {shown_names}{more}")

    def _missing(self, name: str, columns: Sequence[Column]) -> str:
        found = ", ".join(map(shown, self.names[:12])) or "none"
        if len(self.names) == 1:
            for mark, word in ((";", "semicolons"), ("\t", "tabs")):
                if mark in self.names[0]:
                    return f"missing; found {word} between the names {found} where commas should be"
            if "\r" in self.names[0]:
                return "missing; found lines that end in CR alone where LF or CRLF should be"
        others = [other for other in self.names if other not in {column.name for column in columns}]
        same = next((other for other in others if other.lower() == name.lower()), None)
        hint = nearest(name if same is None else same, others).replace("did you mean", "is it").replace("; ", ": ", 1)
        return f"missing; found the columns {found}{hint}"

    def parts(self) -> Iterator[Part]:
        """The rows of each piece. Raises TraceError for the first field that is not what it should be."""
        headed, seen = False, False
        for piece in self.source.pieces():
            rows = piece if headed else _without_header(piece)
            headed = True
            if rows.text.strip():
                if not seen:
                    self._see_first_row(rows)
                seen = True
                yield self._quickly(rows) or self._carefully(rows)

    def _see_first_row(self, piece: Piece) -> None:
        """Whether times are numbers or dates, and dates have a zone: as in the first row."""
        _, line = next(lines(piece.text))
        try:
            cells = _split(line.decode().strip("\r\n"))
        except csv.Error:
            cells = []
        for name, kind in self._kinds.items():
            at = self.names.index(name)
            cell = cells[at].strip() if at < len(cells) else ""
            if kind in (REAL, TIME):
                self._kinds[name] = INTEGER if _INTEGER.fullmatch(cell) else NUMBER
                if kind == TIME and is_date(cell):
                    self._kinds[name] = DATE
            if self._kinds[name] == DATE:
                self._zoned = has_zone(cell)

    _zoned = False

    def kind(self, name: str) -> str:
        """What a TIME column turned out to hold: DATE, INTEGER or NUMBER; known once a part is read."""
        return self._kinds[name]

    def _quickly(self, piece: Piece) -> Part | None:
        """The piece as Arrow reads it; None where it does not, or cannot be trusted."""
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        if b"0x" in piece.text or b"0X" in piece.text or piece.text.startswith(BYTE_ORDER_MARK):
            return None
        if _quotes_stay_open(piece.text):  # Arrow would take them for closed
            return None
        positions = {name: str(self.names.index(name)) for name in self.columns}
        try:
            table = arrow_csv.read_csv(
                pa.BufferReader(piece.text),
                arrow_csv.ReadOptions(
                    use_threads=False,
                    block_size=len(piece.text) + 1,
                    column_names=[str(at) for at in range(len(self.names))],
                ),
                arrow_csv.ParseOptions(newlines_in_values=False),
                arrow_csv.ConvertOptions(
                    check_utf8=False,
                    column_types={positions[name]: self._arrow_type(name) for name in self.columns},
                    include_columns=list(positions.values()),
                    null_values=[],
                ),
            )
        except pa.ArrowException:
            return None
        cr_ends_lines = piece.text.count(b"\r") != piece.text.count(b"\r\n")  # for Arrow they do
        found = None if cr_ends_lines else line_numbers(piece, table.num_rows)
        if found is None or not table.num_rows:
            return None
        try:
            values = {name: self._plain(name, table.column(at).combine_chunks()) for name, at in positions.items()}
        except pa.ArrowException:
            return None
        return Part(values, found, table.num_rows, self.source, self.columns)

    def _arrow_type(self, name: str) -> pa.DataType:
        import pyarrow as pa

        return {INTEGER: pa.int64(), NUMBER: pa.float64(), DATE: pa.string(), TEXT: pa.string()}[self._kinds[name]]

    def _plain(self, name: str, column: Any) -> Any:
        """An Arrow column as numpy, dates as ns; texts stay as they are. Raises ArrowInvalid for what is no date."""
        if self._kinds[name] == TEXT:
            return column
        if self._kinds[name] == DATE:
            column = dates_to_ns(column, self._zoned)
        return column.to_numpy(zero_copy_only=False)

    def _carefully(self, piece: Piece) -> Part:
        """The piece field by field. Raises TraceError for the first that is not what it should be."""
        import pyarrow as pa

        columns: dict[str, list[Any]] = {name: [] for name in self.columns}
        readers = [(name, self.names.index(name), self._reader(name)) for name in self.columns]
        numbers = []
        for number, cells in self._cells(piece):
            numbers.append(number)
            for name, at, read in readers:
                found = read(cells[at].strip())
                if found is None:
                    raise self._complaint(number, name, cells[at])
                columns[name].append(found)
        values = {name: self._column(name, column, numbers, pa) for name, column in columns.items()}
        return Part(values, np.array(numbers, np.int64), len(numbers), self.source, self.columns)

    def _cells(self, piece: Piece) -> Iterator[tuple[int, list[str]]]:
        for number, line in lines(piece.text, piece.first_line):
            text = line.decode().strip("\r\n")
            try:
                cells = _split(text)
            except csv.Error as error:
                raise self._bad_line(number, f"{shown(text)} ({error})", "fields that end on their line") from None
            if len(cells) != len(self.names):
                what = f"{len(cells)} field{'s' * (len(cells) != 1)}, {shown(text)}"
                raise self._bad_line(number, what, f"{len(self.names)}, as the first line has names")
            yield number, cells

    def _bad_line(self, number: int, found: str, expected: str) -> TraceError:
        return TraceError(f"{self.source.label}, line {number}: found {found}; expected {expected}")

    def _reader(self, name: str) -> Callable[[str], Any]:
        """What reads one field: None where it is not what it should be."""
        if self._kinds[name] == INTEGER and self.columns[name].kind in (REAL, TIME):
            return lambda text: int(text) if _is_integer(text) else _number(text)
        readers: dict[str, Callable[[str], Any]] = {
            INTEGER: lambda text: int(text) if _is_integer(text) else None,
            NUMBER: _number,
            DATE: lambda text: date_ns(text, self._zoned),
            TEXT: lambda text: text,
        }
        return readers[self._kinds[name]]

    def _complaint(self, number: int, name: str, text: str) -> TraceError:
        column = self.columns[name]
        found = repr("") if not text.strip() else shown(text)
        expected = column.expected
        if self._kinds[name] == DATE:
            zone = "with" if self._zoned else "without"
            wrong_zone = is_date(text.strip()) and has_zone(text.strip()) != self._zoned
            expected = f"{DATE_WANTED}, {zone} a zone as in the first row" if wrong_zone else DATE_WANTED
        return TraceError(f"{self.source.label}, line {number}, field {name!r}: found {found}; expected {expected}")

    def _column(self, name: str, values: list[Any], numbers: list[int], pa: Any) -> Any:
        kind = self._kinds[name]
        if kind == TEXT:
            return pa.array(values, pa.string())
        if kind == NUMBER or (kind == INTEGER and any(isinstance(value, float) for value in values)):
            if kind == INTEGER:
                self._kinds[name] = NUMBER
            return np.array([float(value) for value in values], np.float64)
        try:
            return np.array(values, np.int64)
        except OverflowError:
            at = next(at for at, value in enumerate(values) if not -(2**63) <= value < 2**63)
            text = str(values[at]) if abs(values[at]) < 10**40 else "a number of more than 40 digits"
            column = self.columns[name]
            raise TraceError(
                f"{self.source.label}, line {numbers[at]}, field {name!r}: found {text}; "
                f"expected {column.expected}: 64-bit signed at most"
            ) from None


def _quotes_stay_open(text: bytes) -> bool:
    """Whether a line has an odd number of quotes."""
    if b'"' not in text:
        return False
    letters = np.frombuffer(text, np.uint8)
    ends = np.append(np.flatnonzero(letters == ord("\n")), len(letters))
    return bool((np.searchsorted(np.flatnonzero(letters == ord('"')), ends) % 2).any())


def _is_integer(text: str) -> bool:
    return _INTEGER.fullmatch(text) is not None and len(text) < MAX_DIGITS


def _number(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) else None


def dates_to_ns(column: Any, zoned: bool) -> Any:
    """Texts such as ``2023-11-16 18:17:03.9799600`` as whole ns since 1970. Raises ArrowInvalid for others."""
    import pyarrow as pa
    import pyarrow.compute as pc

    shortest = pc.min(pc.binary_length(column)).as_py()
    if shortest is not None and shortest < DATES_FROM_CHARS:
        raise pa.ArrowInvalid("a date that ends early")
    return pc.cast(pc.cast(column, pa.timestamp("ns", "UTC") if zoned else pa.timestamp("ns")), pa.int64())


def date_ns(text: str, zoned: bool) -> int | None:
    """A date as ns since 1970; None for a text that is none, or that has a zone where it should not or lacks one."""
    import pyarrow as pa

    if not is_date(text) or has_zone(text) != zoned:
        return None
    try:
        return int(dates_to_ns(pa.array([text]), zoned)[0].as_py())
    except pa.ArrowException:
        return None


def is_date(text: str) -> bool:
    """Whether a text is a date that we read."""
    return _DATE.fullmatch(text) is not None


def has_zone(text: str) -> bool:
    """Whether a date says its zone."""
    return bool(text) and (text[-1] == "Z" or "+" in text[10:] or "-" in text[10:])


def _without_header(piece: Piece) -> Piece:
    number, line = next(lines(piece.text, piece.first_line))
    end = piece.text.index(line) + len(line)
    return Piece(piece.text[end:].removeprefix(b"\n"), number + 1)
