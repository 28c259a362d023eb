"""What every JSON-lines format needs: rows piece by piece, their values, and what is wrong with a bad line."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from mooncake_bench.errors import TraceError, nearest
from mooncake_bench.trace.pieces import line_numbers, lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mooncake_bench.trace.formats import Source
    from mooncake_bench.trace.model import Floats, Ints
    from mooncake_bench.trace.pieces import Piece
    from mooncake_bench.trace.units import Timestamps

SHOWN_CHARS = 60
INT64 = range(-(2**63), 2**63)
INTEGER, NUMBER, NAME, TEXT, IDS, ANY = "integer", "number", "name", "text", "ids", "any"


@dataclass(frozen=True)
class Fields:
    """The keys of a format, each with what is expected of its value, and names other tools use for it."""

    required: dict[str, str]
    optional: dict[str, str]
    other_names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)  # key -> NUMBER, NAME, IDS or ANY; INTEGER where it is left out

    @property
    def all(self) -> dict[str, str]:
        """Every key and what is expected of it."""
        return self.required | self.optional


@dataclass(frozen=True)
class Rows:
    """The decoded lines of a piece."""

    items: list[Any]
    lines: int | Ints  # where they stand: the first one's line when they are consecutive
    piece: Piece
    source: Source
    fields: Fields

    def line(self, row: int) -> int:
        """The line on which a row stands."""
        return self.lines + row if isinstance(self.lines, int) else int(self.lines[row])

    def error(self, row: int, name: str, found: object, expected: str | None = None) -> TraceError:
        """The error line for a bad value."""
        wanted = self.fields.all.get(name, "") if expected is None else expected
        return TraceError(
            f"{self.source.label}, line {self.line(row)}, field {name!r}: found {found}; expected {wanted}"
        )


def first_row(head: bytes) -> dict[str, Any]:
    """The object on the first line; empty when there is none."""
    first = next((line for _, line in lines(head)), b"")
    if not first.lstrip().startswith(b"{"):
        return {}
    try:
        row = json.loads(first)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def rows(source: Source, decoder: msgspec.json.Decoder[Any], fields: Fields) -> Iterator[Rows]:
    """The rows of each piece. Raises TraceError for the first line that is not of the format."""
    for piece in source.pieces():
        try:
            items = decoder.decode_lines(piece.text)
        except msgspec.MsgspecError as error:
            raise diagnose(source.label, piece, decoder, fields, str(error)) from None
        found = line_numbers(piece, len(items))
        if found is None:
            raise diagnose(source.label, piece, decoder, fields, "several objects stand on one line")
        yield Rows(items, found, piece, source, fields)


def key_counts(text: bytes) -> Counter[str]:
    """How many rows have each key. The text must have been decoded before."""
    decoded = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode_lines(text)
    return Counter(key for row in decoded for key in row)


def counted_keys(found: Rows) -> Counter[str]:
    """How many rows have each key. Raises TraceError for a row that gives a known one twice."""
    counts, text = key_counts(found.piece.text), found.piece.text
    for name in found.fields.all:
        if text.count(f'"{name}"'.encode()) > counts[name]:  # twice somewhere, or a text that looks like it
            _refuse_twice(found, name)
    return counts


def _refuse_twice(found: Rows, name: str) -> None:
    quoted = f'"{name}"'.encode()
    for number, line in lines(found.piece.text, found.piece.first_line):
        if line.count(quoted) > 1 and _keys(line).count(name) > 1:
            raise TraceError(f"{found.source.label}, line {number}, field {name!r}: given twice; expected it once")


def _keys(line: bytes) -> list[str]:
    """The keys of a row as they stand, those given twice too."""
    objects: list[list[str]] = []  # the one that ends last is the row itself
    json.loads(line, object_pairs_hook=lambda pairs: objects.append([key for key, _ in pairs]))
    return objects[-1]


def tell_unknown(notices: list[str], label: str, counts: Counter[str], fields: Fields) -> None:
    """Adds the notice on keys that mean nothing to the format."""
    unknown = sorted(set(counts) - set(fields.all))
    if unknown:
        names = ", ".join(f"{shown(name)} ({counts[name]:,} rows)" for name in unknown[:8])
        more = f" and {len(unknown) - 8} more" if len(unknown) > 8 else ""
        notices.append(f"{label}: ignored fields that mean nothing here: {names}{more}")


# ---- values of rows


def ids_are_texts(head: bytes, name: str) -> dict[str, int] | None:
    """A place to number block ids in when the first row's are texts; None when they are integers."""
    ids = first_row(head).get(name)
    return {} if isinstance(ids, list) and ids and isinstance(ids[0], str) else None


def with_text_ids(fields: Fields, name: str) -> Fields:
    """The fields of a file whose block ids are texts."""
    wanted = {name: "a list of texts, as in the first row"}
    required = {key: wanted.get(key, value) for key, value in fields.required.items()}
    return replace(
        fields, required=required, optional=fields.optional | {k: v for k, v in wanted.items() if k in fields.optional}
    )


def sessions(found: Rows, name: str, values: Sequence[int | str | None]) -> Sequence[int | str | None]:
    """Session ids. Raises TraceError for an integer that is none."""
    for row, value in enumerate(values):
        if isinstance(value, int) and not 0 <= value < 2**63:
            raise found.error(row, name, value, "a text, or an integer from 0 to 2**63 - 1")
    return values


def lacks(found: Rows, row: int, name: str) -> TraceError:
    """The error line for a row without a key that it needs."""
    number = found.line(row)
    line = next(line for at, line in lines(found.piece.text, found.piece.first_line) if at == number)
    what = missing(name, json.loads(line), found.fields)
    return TraceError(f"{found.source.label}, line {number}, field {name!r}: {what}; expected {found.fields.all[name]}")


def numbers(found: Rows, name: str, values: Sequence[Any]) -> Timestamps:
    """Integers where all are, else floats."""
    if all(type(value) is int for value in values):
        return integers(found, name, values)
    return floats(found, name, values)


def floats(found: Rows, name: str, values: Sequence[Any]) -> Floats:
    """Numbers as floats; None is nan."""
    try:
        return np.array([np.nan if value is None else value for value in values], np.float64)
    except OverflowError:
        row = next(row for row, value in enumerate(values) if isinstance(value, int) and abs(value) >= 10**308)
        raise _beyond(found, row, name, values[row]) from None


def integers(found: Rows, name: str, values: Sequence[int]) -> Ints:
    """64-bit integers. Raises TraceError for a larger one."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except OverflowError:
        row = next(row for row, value in enumerate(values) if value not in INT64)
        raise _beyond(found, row, name, values[row]) from None


def block_ids(found: Rows, name: str, lists: Sequence[list[Any]], texts: dict[str, int] | None) -> tuple[Ints, Ints]:
    """How many ids each row has, and all of them. ``texts`` numbers ids that are texts; None: they are integers."""
    counts = np.fromiter(map(len, lists), np.int64, len(lists))
    if texts is not None:
        flat = [texts.setdefault(text, len(texts)) for text in chain.from_iterable(lists)]
        return counts, np.array(flat, np.int64)
    try:
        return counts, np.fromiter(chain.from_iterable(lists), np.int64, int(counts.sum()))
    except OverflowError:
        row, value = next((row, value) for row, ids in enumerate(lists) for value in ids if value not in INT64)
        raise _beyond(found, row, name, value) from None


def _beyond(found: Rows, row: int, name: str, value: int) -> TraceError:
    text = str(value) if abs(value) < 10**40 else "a number of more than 40 digits"
    hint = "; larger ids can be given as texts" if found.fields.kinds.get(name) in (IDS, NAME) else ""
    return found.error(row, name, text, f"{found.fields.all.get(name, '')}: 64-bit signed at most{hint}")


# ---- what is wrong with a line


def diagnose(
    label: str, piece: Piece, decoder: msgspec.json.Decoder[Any], fields: Fields, error: str
) -> TraceError:  # fmt: skip
    """The error line for the first row that ``decoder`` refuses."""
    for number, line in lines(piece.text, piece.first_line):
        try:
            decoder.decode(line)
        except msgspec.MsgspecError as reason:
            return TraceError(f"{label}, line {number}{_complaint(line, fields, reason)}")
    return TraceError(f"{label}: {error}")


def _complaint(line: bytes, fields: Fields, reason: Exception) -> str:
    wanted = f"one object a line with {', '.join(fields.required)}"
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return f": found {shown(line.decode())}, which is not JSON ({reason}); expected {wanted}"
    if not isinstance(row, dict):
        return f": found {_kind(row)}; expected {wanted}"
    for name, value in row.items():
        if not _is_unicode(value):
            expected = fields.all.get(name, "another")
            return f", field {name[:SHOWN_CHARS]!r}: found what is not valid Unicode text; expected {expected}"
    for name, expected in fields.all.items():
        found = _wrong(name, row[name], fields) if name in row else ""
        if found:
            return f", field {name!r}: found {found}; expected {expected}"
    for name, expected in fields.required.items():
        if name not in row:
            return f", field {name!r}: {missing(name, row, fields)}; expected {expected}"
    return f": {reason}; expected {wanted}"


def missing(name: str, row: dict[str, Any], fields: Fields) -> str:
    """What is there in the place of a key that a row lacks."""
    for other in fields.other_names.get(name, ()):
        if other in row:
            return f"missing; found {other!r} in its place, which this format does not know: rename it to {name!r}"
    unknown = [key for key in row if key not in fields.all and len(key) < 40]
    hint = nearest(name, unknown).replace("did you mean", "is it").replace("; ", ": ", 1)
    return f"missing; found the fields {', '.join(map(shown, list(row)[:12])) or 'none'}{hint}"


def _is_unicode(value: Any) -> bool:
    """Whether all texts in it can be written as UTF-8: JSON can spell halves of a letter that cannot."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        return True  # nothing that deep is ours
    except UnicodeEncodeError:
        return False
    return True


def _wrong(name: str, value: Any, fields: Fields) -> str:
    """How a value that the decoder refused looks; empty when this one is fine."""
    kind = fields.kinds.get(name, INTEGER)
    if kind == ANY or (value is None and name in fields.optional):
        return ""
    if kind == IDS:
        return _wrong_list(value, fields.all[name])
    fine = {
        INTEGER: _is_integer(value),
        NUMBER: _is_finite(value),
        NAME: _is_integer(value) or isinstance(value, str),
        TEXT: isinstance(value, str),
    }
    return "" if fine[kind] else _kind(value)


def _wrong_list(value: Any, expected: str) -> str:
    if not isinstance(value, list):
        return _kind(value)
    texts = "texts" in expected
    for item in value:
        if not (isinstance(item, str) if texts else _is_integer(item) and abs(item) < 2**64):
            return f"{_kind(item)} in the list"
    return ""


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    return _is_integer(value) or (isinstance(value, float) and abs(value) < float("inf"))


def _kind(value: Any) -> str:
    """A value as a person would name it, with its type."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, str):
        return f"the text {shown(value)}"
    return json.dumps(value)[:SHOWN_CHARS]  # true, null, NaN and numbers, as the file has them


def shown(text: str) -> str:
    """A piece of the file, quoted and not too long."""
    clipped = text.strip()
    return repr(clipped if len(clipped) <= SHOWN_CHARS else clipped[:SHOWN_CHARS] + "…")
