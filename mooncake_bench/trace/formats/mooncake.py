"""Mooncake JSONL: one JSON object a line, ``{"timestamp", "input_length", "output_length", "hash_ids"}``.

``timestamp`` is in ms (integer or float), lengths in tokens; ``hash_ids`` are the prefix-chained ids of the prompt's
512-token blocks, head first, the last block partial with an id of its own. They are integers or, in every row, texts,
which are numbered by first appearance. Optional: ``session_id`` (integer or text), ``priority``, ``request_id``, and
``delay``: ms from the session's previous answer to this request. A later turn of a session may have a ``delay`` and no
``timestamp``: it is placed at the previous turn's arrival + delay, the earliest it can be.

Published with Mooncake (Qin et al., FAST'25) under Apache-2.0; also what NVIDIA Dynamo and aiperf read and write. The
conversation trace has 1,180 distinct times for 12,031 requests, about 3 s apart.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from mooncake_bench.errors import TraceError
from mooncake_bench.trace.formats import _jsonl
from mooncake_bench.trace.formats._jsonl import Fields, Rows
from mooncake_bench.trace.formats._rows import Gathered
from mooncake_bench.trace.formats._turns import place_by_delay, tell_sessions
from mooncake_bench.trace.model import NO_SESSION

if TYPE_CHECKING:
    from mooncake_bench.trace.formats import Source
    from mooncake_bench.trace.model import Trace
    from mooncake_bench.trace.schema import RawColumns

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
        "delay": "a number >= 0 (ms after the session's previous answer)",
    },
    other_names={
        "timestamp": ("arrival_ms", "arrival_time", "arrived_at", "time", "ts"),
        "input_length": ("input_tokens", "prompt_tokens", "prompt_length", "num_prefill_tokens", "isl"),
        "output_length": ("output_tokens", "completion_tokens", "generated_tokens", "num_decode_tokens", "osl"),
        "hash_ids": ("block_ids", "block_hashes", "block_hash_ids", "prefix_hashes", "hashes"),
    },
    kinds={
        "timestamp": _jsonl.NUMBER,
        "hash_ids": _jsonl.IDS,
        "session_id": _jsonl.NAME,
        "request_id": _jsonl.NAME,
        "delay": _jsonl.NUMBER,
    },
)
COLUMNS = {
    "timestamp": "timestamp",
    "input_tokens": "input_length",
    "output_tokens": "output_length",
    "block_ids": "hash_ids",
    "delay_ms": "delay",
}


class _Row(msgspec.Struct, gc=False):
    input_length: int
    output_length: int
    hash_ids: list[int]
    timestamp: int | float | msgspec.UnsetType = msgspec.UNSET
    session_id: int | str | None = None
    priority: int | None = None
    request_id: str | int | None = None
    delay: int | float | None = None


class _TextRow(_Row, gc=False):
    hash_ids: list[str]  # type: ignore[assignment]


def recognises(head: bytes) -> bool:
    """A line that opens an object, with one of the format's own keys somewhere in the first bytes."""
    if head.lstrip()[:1] not in (b"{", b"[") or b'"parent_chat_id"' in head:
        return False
    return any(f'"{key}"'.encode() in head for key in FIELDS.required)


def read(source: Source) -> RawColumns:
    """All rows of the text. Raises TraceError for the first row that is not of the format."""
    texts = _jsonl.ids_are_texts(source.head, "hash_ids")
    fields = _jsonl.with_text_ids(FIELDS, "hash_ids") if texts is not None else FIELDS
    decoder = msgspec.json.Decoder(_Row if texts is None else _TextRow)
    gathered = Gathered(source, NAME, COLUMNS)
    optional = _Optional(gathered, source.label)
    for found in _jsonl.rows(source, decoder, fields):
        stamps = _timestamps(found)
        counts, ids = _jsonl.block_ids(found, "hash_ids", [row.hash_ids for row in found.items], texts)
        gathered.add(
            found.lines,
            _jsonl.numbers(found, "timestamp", stamps),
            _jsonl.integers(found, "input_length", [row.input_length for row in found.items]),
            _jsonl.integers(found, "output_length", [row.output_length for row in found.items]),
            counts,
            ids,
        )
        if _has_other_keys(found):
            optional.add(found)
        elif gathered.has_request_ids:
            raise _no_request_id(found, 0)
    if texts is not None:
        gathered.metadata["block_ids"] = f"{len(texts)} texts numbered by first appearance"
    return optional.onto(gathered.columns())


def _timestamps(found: Rows) -> list[Any]:
    """The timestamps of rows; 0 for now where a row has a delay in its place."""
    stamps = [row.timestamp for row in found.items]
    if msgspec.UNSET in stamps:
        for row, value in enumerate(stamps):
            if value is msgspec.UNSET:
                if found.items[row].delay is None:
                    raise _jsonl.lacks(found, row, "timestamp")
                stamps[row] = 0
    return stamps


def _has_other_keys(found: Rows) -> bool:
    """Whether a row may have another key than the four that each has, unless a delay stands for a timestamp."""
    text = found.piece.text
    return text.count(b":") != len(FIELDS.required) * len(found.items) or b'"delay"' in text


class _Optional:
    """The optional keys of all pieces: what they hold, and what is to be said of them."""

    def __init__(self, gathered: Gathered, label: str) -> None:
        self.gathered = gathered
        self.label = label
        self.counts: Counter[str] = Counter()
        self.priorities = 0

    def add(self, found: Rows) -> None:
        """The optional keys of the rows added last."""
        counts = _jsonl.counted_keys(found)
        self.counts += counts
        if "session_id" in counts:
            self._sessions(found)
        if "priority" in counts:
            values = [0 if row.priority is None else row.priority for row in found.items]
            self.priorities += sum(row.priority is not None for row in found.items)
            self.gathered.add_optional("priority", _jsonl.integers(found, "priority", values))
        if "delay" in counts:
            self._delays(found, counts["timestamp"])
        if "request_id" in counts:
            self._request_ids(found)
        elif self.gathered.has_request_ids:
            raise _no_request_id(found, 0)

    def _sessions(self, found: Rows) -> None:
        values = [row.session_id for row in found.items]
        self.gathered.add_names("session_id", _jsonl.sessions(found, "session_id", values))

    def _delays(self, found: Rows, timestamps: int) -> None:
        delays = _jsonl.floats(found, "delay", [row.delay for row in found.items])
        bad = ~(np.isnan(delays) | ((delays >= 0) & np.isfinite(delays)))
        if bad.any():
            row = int(bad.argmax())
            raise found.error(row, "delay", found.items[row].delay)
        self.gathered.add_optional("delay_ms", delays, np.nan)
        if timestamps < len(found.items):
            without = [row.timestamp is msgspec.UNSET for row in found.items]
            self.gathered.add_optional("follows", np.array(without, np.int64))

    def _request_ids(self, found: Rows) -> None:
        for row, item in enumerate(found.items):
            if item.request_id is None:
                raise _no_request_id(found, row)
        if not self.gathered.add_request_ids([str(item.request_id) for item in found.items]):
            raise TraceError(
                f"{self.label}, {self.gathered.places(0)}, field 'request_id': found none; expected one in every row "
                "when any row has one"
            )

    def onto(self, raw: RawColumns) -> RawColumns:
        """The columns, with the notices on what is optional."""
        rows = len(raw.timestamp)
        _jsonl.tell_unknown(raw.notices, self.label, self.counts, FIELDS)
        tell_sessions(self.gathered, raw)
        if raw.priority is not None and self.priorities < rows:
            without = rows - self.priorities
            raw.notices.append(f"{self.label}: {without:,} rows have no priority: they get 0, the default")
        if raw.delay_ms is not None:
            place_by_delay(raw)
        return raw


def _no_request_id(found: Rows, row: int) -> TraceError:
    return found.error(row, "request_id", "none", "one in every row when any row has one")


def encode(trace: Trace) -> bytes:
    """The trace as Mooncake JSONL; reading it back gives an equal trace. Optional columns are written when present."""
    return encode_rows(trace, 0, len(trace))


def encode_rows(trace: Trace, first: int, end: int) -> bytes:
    """Some rows of the trace as Mooncake JSONL: the whole may be written piece by piece."""
    encoder = msgspec.json.Encoder()
    out = bytearray()
    rows = slice(first, end)
    columns = {
        name: None if getattr(trace, name) is None else getattr(trace, name)[rows].tolist()
        for name in ("session_id", "priority", "delay_ms")
    }
    lengths = zip(trace.input_tokens[rows].tolist(), trace.output_tokens[rows].tolist(), strict=True)
    for row, (at, (inputs, outputs)) in enumerate(zip(trace.arrival_ms[rows].tolist(), lengths, strict=True)):
        item: dict[str, Any] = {
            "timestamp": int(at) if at.is_integer() else at,
            "input_length": inputs,
            "output_length": outputs,
            "hash_ids": trace.blocks(first + row).tolist(),
        }
        item |= _optional_items(columns, row)
        if first + row == 0:
            item |= _empty_columns(trace)
        if trace.request_id is not None:
            item["request_id"] = trace.request_id[first + row]
        out += encoder.encode(item) + b"\n"
    return bytes(out)


def _optional_items(columns: dict[str, Any], row: int) -> dict[str, Any]:
    sessions, priorities, delays = columns["session_id"], columns["priority"], columns["delay_ms"]
    item: dict[str, Any] = {}
    if sessions is not None and sessions[row] != NO_SESSION:
        item["session_id"] = sessions[row]
    if priorities is not None:
        item["priority"] = priorities[row]
    if delays is not None and delays[row] == delays[row]:
        item["delay"] = int(delays[row]) if delays[row].is_integer() else delays[row]
    return item


def _empty_columns(trace: Trace) -> dict[str, Any]:
    """A null for a column that holds nothing, so that it is there again when the file is read."""
    empty: dict[str, Any] = {}
    if trace.session_id is not None and (trace.session_id == NO_SESSION).all():
        empty["session_id"] = None
    if trace.delay_ms is not None and np.isnan(trace.delay_ms).all():
        empty["delay"] = None
    return empty
