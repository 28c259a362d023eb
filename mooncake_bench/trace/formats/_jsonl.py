"""What every JSON-lines format needs: finding the bad line, and saying what is wrong with it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from mooncake_bench.errors import TraceError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mooncake_bench.trace.formats import Source

SHOWN_CHARS = 60


@dataclass(frozen=True)
class Fields:
    """The keys of a format, each with what is expected of its value, and names other tools use for it."""

    required: dict[str, str]
    optional: dict[str, str]
    other_names: dict[str, tuple[str, ...]]


def lines(text: bytes) -> Iterator[tuple[int, bytes]]:
    """Line numbers from 1 and the lines that are not blank."""
    for number, line in enumerate(text.split(b"\n"), start=1):
        if line.strip():
            yield number, line


def line_of_row(text: bytes, row: int) -> int:
    """The line on which row ``row`` (from 0) stands, blank lines counted."""
    return next(number for index, (number, _) in enumerate(lines(text)) if index == row)


def field_counts(text: bytes) -> Counter[str]:
    """How many rows have each key. The text must have been decoded before."""
    rows = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode_lines(text)
    return Counter(key for row in rows for key in row)


def one_row_a_line(text: bytes, rows: int) -> bool:
    """Whether ``rows`` decoded objects stand on as many lines (the decoder does not mind where lines end)."""
    return sum(1 for _ in lines(text)) == rows


def diagnose(source: Source, decoder: msgspec.json.Decoder[Any], fields: Fields, error: str) -> TraceError:
    """The error line for the first row that ``decoder`` refuses."""
    for number, line in lines(source.text):
        try:
            decoder.decode(line)
        except msgspec.MsgspecError as reason:
            return TraceError(f"{source.label}, line {number}{_complaint(line, fields, reason)}")
    return TraceError(f"{source.label}: {error}")


def _complaint(line: bytes, fields: Fields, reason: Exception) -> str:
    wanted = f"one object a line with {', '.join(fields.required)}"
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return f": found {shown(line.decode())}, which is not JSON ({reason}); expected {wanted}"
    if not isinstance(row, dict):
        return f": found {_kind(row)}; expected {wanted}"
    for name, expected in fields.required.items():
        if name not in row:
            return f", field {name!r}: {_missing(name, row, fields)}; expected {expected}"
    for name, expected in (fields.required | fields.optional).items():
        found = _wrong(name, row.get(name), fields)
        if found:
            return f", field {name!r}: found {found}; expected {expected}"
    return f": {reason}; expected {wanted}"


def _missing(name: str, row: dict[str, Any], fields: Fields) -> str:
    for other in fields.other_names.get(name, ()):
        if other in row:
            return f"missing; found {other!r} in its place, which this format does not know: rename it to {name!r}"
    unknown = [key for key in row if key not in fields.required and key not in fields.optional and len(key) < 40]
    hint = nearest(name, unknown).replace("did you mean", "is it").replace("; ", ": ", 1)
    return f"missing; found the fields {', '.join(map(shown, list(row)[:12])) or 'none'}{hint}"


def _wrong(name: str, value: Any, fields: Fields) -> str:
    """How a value that the decoder refused looks; empty when this one is fine."""
    if value is None and name in fields.optional:
        return ""
    if name in ("session_id", "request_id"):
        return "" if _is_integer(value) or isinstance(value, str) else _kind(value)
    if name == "timestamp":
        return "" if _is_finite(value) else _kind(value)
    if name == "hash_ids":
        return _wrong_list(value)
    return "" if _is_integer(value) else _kind(value)


def _wrong_list(value: Any) -> str:
    if not isinstance(value, list):
        return _kind(value)
    bad = next((item for item in value if not _is_integer(item) or abs(item) >= 2**64), None)
    if bad is None and None not in value:
        return ""
    return f"{_kind(bad)} in the list"


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
