"""Mooncake JSONL: one JSON object a line, ``{"timestamp", "input_length", "output_length", "hash_ids"}``.

``timestamp`` is in ms (integer or float), lengths in tokens; ``hash_ids`` are the prefix-chained ids of the prompt's
512-token blocks, head first, the last block partial with an id of its own. Optional: ``session_id`` (integer or
text), ``priority``, ``request_id``. Published with Mooncake (FAST'25) under Apache-2.0.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from mooncake_bench.trace.formats._jsonl import Fields, diagnose, field_counts, line_of_row, one_row_a_line, shown
from mooncake_bench.trace.model import NO_SESSION, Ints
from mooncake_bench.trace.schema import RawColumns

if TYPE_CHECKING:
    from mooncake_bench.trace.formats import Source
    from mooncake_bench.trace.model import Trace
    from mooncake_bench.trace.units import Timestamps

NAME = "mooncake-jsonl"
DESCRIPTION = "Mooncake JSONL: timestamps in ms, 512-token blocks with prefix-chained ids"

FIELDS = Fields(
    required={
        "timestamp": "a number >= 0 (ms)",
        "input_length": "an integer >= 1 (tokens)",
        "output_length": "an integer >= 1 (tokens)",
        "hash_ids": "a list of integers from 0 to 2**63 - 1",
    },
    optional={
        "session_id": "an integer or a text",
        "priority": "an integer",
        "request_id": "a text or an integer",
    },
    other_names={
        "timestamp": ("arrival_ms", "arrival_time", "arrived_at", "time", "ts"),
        "input_length": ("input_tokens", "prompt_tokens", "prompt_length", "num_prefill_tokens", "isl"),
        "output_length": ("output_tokens", "completion_tokens", "generated_tokens", "num_decode_tokens", "osl"),
        "hash_ids": ("block_ids", "block_hashes", "block_hash_ids", "prefix_hashes", "hashes"),
    },
)
_COLUMNS = {
    "timestamp": "timestamp",
    "input_tokens": "input_length",
    "output_tokens": "output_length",
    "block_ids": "hash_ids",
}


class _Row(msgspec.Struct, gc=False):
    timestamp: int | float
    input_length: int
    output_length: int
    hash_ids: list[int]
    session_id: int | str | None = None
    priority: int | None = None
    request_id: str | int | None = None


_DECODER = msgspec.json.Decoder(_Row)


def recognises(head: bytes) -> bool:
    """A line that opens an object, with one of the format's own keys somewhere in the first bytes."""
    return head.lstrip()[:1] in (b"{", b"[") and any(f'"{key}"'.encode() in head for key in FIELDS.required)


def read(source: Source) -> RawColumns:
    """All rows of the text. Raises TraceError for the first row that is not of the format."""
    try:
        rows = _DECODER.decode_lines(source.text)
    except msgspec.MsgspecError as error:
        raise diagnose(source, _DECODER, FIELDS, str(error)) from None
    if not one_row_a_line(source.text, len(rows)):
        raise diagnose(source, _DECODER, FIELDS, "several objects stand on one line")
    offsets, ids = _blocks(source, rows)
    raw = RawColumns(
        label=source.label,
        timestamp=_timestamps(source, rows),
        input_tokens=_integers(source, rows, "input_length"),
        output_tokens=_integers(source, rows, "output_length"),
        block_offsets=offsets,
        block_ids=ids,
        place=lambda row: f"line {line_of_row(source.text, row)}",
        fields=_COLUMNS,
        metadata=source.metadata | {"format": NAME},
    )
    if source.text.count(b":") != len(FIELDS.required) * len(rows):  # more keys than the four: look which
        _read_optional(source, rows, raw)
    return raw


def encode(trace: Trace) -> bytes:
    """The trace as Mooncake JSONL; reading it back gives an equal trace. Optional columns are written when present."""
    encoder = msgspec.json.Encoder()
    out = bytearray()
    for row, at in enumerate(trace.arrival_ms.tolist()):
        item: dict[str, Any] = {
            "timestamp": int(at) if at.is_integer() else at,
            "input_length": int(trace.input_tokens[row]),
            "output_length": int(trace.output_tokens[row]),
            "hash_ids": trace.blocks(row).tolist(),
        }
        if trace.session_id is not None and trace.session_id[row] != NO_SESSION:
            item["session_id"] = int(trace.session_id[row])
        if trace.priority is not None:
            item["priority"] = int(trace.priority[row])
        if trace.request_id is not None:
            item["request_id"] = trace.request_id[row]
        out += encoder.encode(item) + b"\n"
    return bytes(out)


def _timestamps(source: Source, rows: list[_Row]) -> Timestamps:
    values = [row.timestamp for row in rows]
    if all(type(value) is int for value in values):
        return _integers(source, rows, "timestamp")
    return np.array(values, np.float64)


def _integers(source: Source, rows: list[_Row], name: str) -> Ints:
    values = [getattr(row, name) for row in rows]
    try:
        return np.fromiter(values, np.int64, len(values))
    except OverflowError:
        row = next(row for row, value in enumerate(values) if not -(2**63) <= value < 2**63)
        raise _beyond_int64(source, row, name, values[row]) from None


def _blocks(source: Source, rows: list[_Row]) -> tuple[Ints, Ints]:
    lists = [row.hash_ids for row in rows]
    offsets = np.zeros(len(lists) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, lists), np.int64, len(lists)), out=offsets[1:])
    try:
        return offsets, np.fromiter(chain.from_iterable(lists), np.int64, int(offsets[-1]))
    except OverflowError:
        row, value = next(
            (row, value) for row, ids in enumerate(lists) for value in ids if not -(2**63) <= value < 2**63
        )
        raise _beyond_int64(source, row, "hash_ids", value) from None


def _beyond_int64(source: Source, row: int, name: str, value: int) -> Exception:
    text = str(value) if abs(value) < 10**40 else "a number of more than 40 digits"
    expected = FIELDS.required.get(name, FIELDS.optional.get(name, "")) + ": 64-bit signed at most"
    return _bare(source).error(row, name, text, expected)


def _bare(source: Source) -> RawColumns:
    """No columns, only what an error line needs."""
    none = np.zeros(0, np.int64)
    return RawColumns(
        source.label, none, none, none, none, none, place=lambda row: f"line {line_of_row(source.text, row)}"
    )


def _read_optional(source: Source, rows: list[_Row], raw: RawColumns) -> None:
    counts = field_counts(source.text)
    unknown = sorted(set(counts) - set(FIELDS.required) - set(FIELDS.optional))
    if unknown:
        names = ", ".join(f"{shown(name)} ({counts[name]:,} rows)" for name in unknown[:8])
        more = f" and {len(unknown) - 8} more" if len(unknown) > 8 else ""
        raw.notices.append(f"{source.label}: ignored fields that mean nothing here: {names}{more}")
    if "session_id" in counts:
        raw.session_id = _sessions(source, rows, raw)
    if "priority" in counts:
        raw.priority = _priorities(source, rows, raw)
    if "request_id" in counts:
        raw.request_id = _request_ids(rows, raw)


def _sessions(source: Source, rows: list[_Row], raw: RawColumns) -> Ints:
    """Session ids as integers: kept when all are, else numbered in order of first appearance."""
    values: list[Any] = [row.session_id for row in rows]
    missing = sum(value is None for value in values)
    if missing:
        raw.notices.append(f"{source.label}: {missing:,} rows have no session_id: each stands alone")
    if any(isinstance(value, str) for value in values):
        numbers: dict[Any, int] = {}
        values = [None if value is None else numbers.setdefault(value, len(numbers)) for value in values]
        raw.metadata["session_ids"] = f"{len(numbers)} names numbered by first appearance"
    for row, value in enumerate(values):
        if value is not None and not 0 <= value < 2**63:
            raise raw.error(row, "session_id", value, "a text, or an integer from 0 to 2**63 - 1")
    return np.array([NO_SESSION if value is None else value for value in values], np.int64)


def _priorities(source: Source, rows: list[_Row], raw: RawColumns) -> Ints:
    missing = sum(row.priority is None for row in rows)
    if missing:
        raw.notices.append(f"{source.label}: {missing:,} rows have no priority: they get 0, the default")
    for row, item in enumerate(rows):
        if item.priority is not None and not -(2**63) <= item.priority < 2**63:
            raise raw.error(row, "priority", item.priority, "a 64-bit integer")
    return np.array([row.priority or 0 for row in rows], np.int64)


def _request_ids(rows: list[_Row], raw: RawColumns) -> tuple[str, ...]:
    for row, item in enumerate(rows):
        if item.request_id is None:
            raise raw.error(row, "request_id", "none", "one in every row when any row has one")
    return tuple(str(row.request_id) for row in rows)
