"""The store: a trace as an Arrow IPC file, zstd, schema and metadata explicit.

Columns: ``arrival_ms`` float64, ``input_tokens`` and ``output_tokens`` int64, ``block_ids`` list<int64>, and when
present ``request_id`` string, ``session_id`` and ``priority`` int64, ``delay_ms`` float64. None is nullable. The
schema's metadata holds ``mooncake_bench.trace`` (the format's version), ``name``, ``block_tokens``, ``notices`` (JSON)
and ``metadata`` (JSON).
The bytes depend on the content and the Arrow library's version only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from mooncake_bench.errors import TraceError
from mooncake_bench.trace.schema import RawColumns, finish

if TYPE_CHECKING:
    from mooncake_bench.trace.model import Trace

VERSION = "1"
VERSION_KEY = b"mooncake_bench.trace"
FIELDS = {
    "arrival_ms": pa.float64(),
    "input_tokens": pa.int64(),
    "output_tokens": pa.int64(),
    "block_ids": pa.list_(pa.field("item", pa.int64(), nullable=False)),
    "request_id": pa.string(),
    "session_id": pa.int64(),
    "priority": pa.int64(),
    "delay_ms": pa.float64(),
}
REQUIRED = ("arrival_ms", "input_tokens", "output_tokens", "block_ids")
COMPRESSION_LEVEL = 19  # traces are written once and read often; reading is as fast at any level


def save(trace: Trace, path: str | Path) -> None:
    """Write the trace to ``path``; an existing file is replaced only once the new one is complete."""
    target = Path(path)
    partial = target.with_name(target.name + ".partial")
    batch = to_batch(trace)
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=COMPRESSION_LEVEL))
    try:
        with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, batch.schema, options=options) as writer:
            writer.write_batch(batch)
        partial.replace(target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise TraceError(f"trace {str(target)!r} cannot be written: {error}") from None


def to_batch(trace: Trace) -> pa.RecordBatch:
    """The trace as one Arrow record batch, metadata included."""
    columns: dict[str, Any] = {
        "arrival_ms": pa.array(trace.arrival_ms),
        "input_tokens": pa.array(trace.input_tokens),
        "output_tokens": pa.array(trace.output_tokens),
        "block_ids": pa.ListArray.from_arrays(
            pa.array(trace.block_offsets.astype(np.int32)), pa.array(trace.block_ids), type=FIELDS["block_ids"]
        ),
    }
    for name in ("request_id", "session_id", "priority", "delay_ms"):
        if getattr(trace, name) is not None:
            columns[name] = pa.array(getattr(trace, name), FIELDS[name])
    schema = pa.schema([pa.field(name, FIELDS[name], nullable=False) for name in columns], _metadata(trace))
    return pa.record_batch(list(columns.values()), schema=schema)


def _metadata(trace: Trace) -> dict[bytes, bytes]:
    return {
        VERSION_KEY: VERSION.encode(),
        b"name": trace.name.encode(),
        b"block_tokens": str(trace.block_tokens).encode(),
        b"notices": json.dumps(trace.notices).encode(),
        b"metadata": json.dumps(dict(trace.metadata), sort_keys=True).encode(),
    }


def read_arrow(data: bytes, label: str, block_tokens: int | None, timestamp_unit: str) -> Trace:
    """The trace in the bytes of an Arrow IPC file, checked like any other.

    Raises TraceError for a file that is damaged, of another schema or version, or has another block size.
    """
    try:
        table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise TraceError(f"{label}: the Arrow file is damaged ({_one_line(error)}); write or fetch it again") from None
    facts = _facts(table.schema, label)
    _check_schema(table.schema, label)
    if block_tokens is not None and block_tokens != facts.block_tokens:
        found = f"its blocks have {facts.block_tokens} tokens; found block size {block_tokens}"
        raise TraceError(f"{label}: {found}; leave the option out")
    if timestamp_unit not in ("auto", "ms"):
        raise TraceError(f"{label}: its times are in ms; found timestamp unit {timestamp_unit!r}; leave the option out")
    return facts.onto(finish(_raw(table.combine_chunks(), label, facts.block_tokens), facts.name, None, "ms"))


@dataclass(frozen=True)
class _Facts:
    """What the schema's metadata says."""

    name: str
    block_tokens: int
    notices: tuple[str, ...]
    metadata: dict[str, str]

    def onto(self, trace: Trace) -> Trace:
        """The trace as it was saved: its own metadata and notices, and any new notice."""
        new = tuple(notice for notice in trace.notices if notice not in self.notices)
        return replace(trace, metadata=self.metadata, notices=self.notices + new)


def _facts(schema: pa.Schema, label: str) -> _Facts:
    raw = schema.metadata or {}
    if VERSION_KEY not in raw:
        raise TraceError(f"{label}: an Arrow file without {VERSION_KEY.decode()!r} in its metadata: not a trace")
    if raw[VERSION_KEY] != VERSION.encode():
        found = repr(raw[VERSION_KEY].decode("utf-8", "replace")[:40])
        raise TraceError(f"{label}: found trace format version {found}; this version of the tool reads {VERSION}")
    try:
        return _Facts(
            name=" ".join(raw[b"name"].decode().split()),
            block_tokens=int(raw[b"block_tokens"]),
            notices=tuple(" ".join(str(notice).split()) for notice in json.loads(raw[b"notices"])),
            metadata={str(key): str(value) for key, value in json.loads(raw[b"metadata"]).items()},
        )
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise TraceError(f"{label}: the Arrow metadata is damaged ({_one_line(error)}); write the file again") from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _names(schema: pa.Schema) -> str:
    return ", ".join(map(repr, schema.names))[:200]


def _check_schema(schema: pa.Schema, label: str) -> None:
    missing = [name for name in REQUIRED if name not in schema.names]
    if missing:
        raise TraceError(f"{label}, field {missing[0]!r}: missing; found {_names(schema)}")
    if len(set(schema.names)) < len(schema.names):
        raise TraceError(f"{label}: found a field name twice; expected each once: {_names(schema)}")
    for column in schema:
        expected = FIELDS.get(column.name)
        if expected is not None and not _same(column.type, expected):
            raise TraceError(f"{label}, field {column.name!r}: found type {column.type}; expected {expected}")


def _same(found: pa.DataType, expected: pa.DataType) -> bool:
    """Equal, whether or not a list's items may be null by its type (they are checked)."""
    if pa.types.is_list(found) and pa.types.is_list(expected):
        return bool(found.value_type == expected.value_type)
    return bool(found == expected)


def _raw(table: pa.Table, label: str, block_tokens: int) -> RawColumns:
    if not table.num_rows:
        raise TraceError(f"{label}: found 0 requests; expected at least one")
    columns = {name: _column(table, name, label) for name in FIELDS if name in table.column_names}
    blocks = columns["block_ids"]
    if blocks.flatten().null_count:
        raise TraceError(f"{label}, field 'block_ids': found a null id; expected ids from 0 to 2**63 - 1")
    ends = blocks.offsets.to_numpy().astype(np.int64)
    unknown = [name for name in table.column_names if name not in FIELDS]
    return RawColumns(
        label=label,
        timestamp=columns["arrival_ms"].to_numpy(),
        input_tokens=columns["input_tokens"].to_numpy(),
        output_tokens=columns["output_tokens"].to_numpy(),
        block_offsets=ends - ends[0],
        block_ids=blocks.flatten().to_numpy(),
        block_tokens=block_tokens,
        fields={"timestamp": "arrival_ms"},
        request_id=tuple(columns["request_id"].to_pylist()) if "request_id" in columns else None,
        session_id=columns["session_id"].to_numpy() if "session_id" in columns else None,
        priority=columns["priority"].to_numpy() if "priority" in columns else None,
        delay_ms=columns["delay_ms"].to_numpy() if "delay_ms" in columns else None,
        notices=[f"{label}: ignored fields that mean nothing here: {', '.join(map(repr, unknown))}"] if unknown else [],
    )


def _column(table: pa.Table, name: str, label: str) -> Any:
    values = table.column(name).chunk(0)
    if values.null_count:
        row = values.is_null().index(True).as_py()
        raise TraceError(f"{label}, row {row} (the first is 0), field {name!r}: found null; expected a value")
    return values
