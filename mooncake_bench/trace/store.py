"""The store: a trace as an Arrow IPC file in record batches, zstd, schema and metadata explicit.

Columns: ``arrival_ms`` float64, ``input_tokens`` and ``output_tokens`` int64, ``block_ids`` list<int64>, and when
present ``request_id`` string, ``session_id`` and ``priority`` int64, ``delay_ms`` float64. None is nullable. The
schema's metadata holds ``mooncake_bench.trace`` (the format's version), ``name``, ``block_tokens``, ``notices`` (JSON),
``metadata`` (JSON) and ``sha256``, the content's hash, which is compared on reading; the files that ship lack the last,
for their own bytes are pinned.
The bytes depend on the content and the Arrow library's version only. Reading and writing hold one batch at a time in
memory: the long columns of a large trace are mapped files (:mod:`mooncake_bench.spool`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from mooncake_bench import outfile, spool
from mooncake_bench.errors import TraceError
from mooncake_bench.trace.schema import RawColumns, finish

if TYPE_CHECKING:
    from mooncake_bench.trace.model import Trace

VERSION = "1"
VERSION_KEY = b"mooncake_bench.trace"
HASH_KEY = b"sha256"
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
BATCH_ROWS = 65_536
COMPRESSION_LEVEL = 9  # a sixth larger than SMALLEST_LEVEL, and thirty times as fast; reading is as fast at any level
SMALLEST_LEVEL = 19
LARGE_BYTES, LARGE_LEVEL = 2**23, 3  # from so many bytes of columns on


def save(trace: Trace, path: str | Path, *, smallest: bool = False) -> None:
    """Write the trace to ``path``; an existing file is replaced only once the new one is complete.

    ``smallest``: takes seconds where it would take tenths, for files that are shipped.
    """
    with outfile.writing(path, force=True, label=f"trace {str(path)!r}", error=TraceError) as partial:
        write_arrow(trace, partial, smallest=smallest)


def write_arrow(trace: Trace, path: Path, *, smallest: bool = False) -> None:
    """Write the trace to ``path`` as it goes. Raises OSError where that fails."""
    level = COMPRESSION_LEVEL if 8 * len(trace.block_ids) + 40 * len(trace) < LARGE_BYTES else LARGE_LEVEL
    level = SMALLEST_LEVEL if smallest else level
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=level))
    schema = _schema(trace) if smallest else hashed_schema(trace)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema, options=options) as writer:
        for first in range(0, len(trace), BATCH_ROWS):
            writer.write_batch(to_batch(trace, first, min(first + BATCH_ROWS, len(trace))))
            spool.trim()


def to_batch(trace: Trace, first: int = 0, end: int | None = None) -> pa.RecordBatch:
    """The trace, or its rows ``[first, end)``, as one Arrow record batch, metadata included."""
    schema, rows = _schema(trace), slice(first, len(trace) if end is None else end)
    offsets = trace.block_offsets[rows.start : rows.stop + 1]
    ids = pa.array(trace.block_ids[offsets[0] : offsets[-1]])
    ends = pa.array((offsets - offsets[0]).astype(np.int32))
    columns = [
        pa.ListArray.from_arrays(ends, ids, type=field.type)
        if field.name == "block_ids"
        else pa.array(getattr(trace, field.name)[rows], field.type)
        for field in schema
    ]
    return pa.record_batch(columns, schema=schema)


def hashed_schema(trace: Trace) -> pa.Schema:
    """The schema of a file of this trace, its content's hash among the metadata."""
    schema = _schema(trace)
    return schema.with_metadata(schema.metadata | {HASH_KEY: trace.sha256.encode()})


def _schema(trace: Trace) -> pa.Schema:
    present = [name for name in FIELDS if getattr(trace, name) is not None]
    return pa.schema([pa.field(name, FIELDS[name], nullable=False) for name in present], _metadata(trace))


def _metadata(trace: Trace) -> dict[bytes, bytes]:
    return {
        VERSION_KEY: VERSION.encode(),
        b"name": trace.name.encode(),
        b"block_tokens": str(trace.block_tokens).encode(),
        b"notices": json.dumps(trace.notices).encode(),
        b"metadata": json.dumps(dict(trace.metadata), sort_keys=True).encode(),
    }


def read_arrow(source: bytes | Path, label: str, block_tokens: int | None, timestamp_unit: str) -> Trace:
    """The trace in an Arrow IPC file, or in the bytes of one, checked like any other.

    Raises TraceError for a file that is damaged, of another schema or version, or has another block size.
    """
    try:
        stream = pa.OSFile(str(source)) if isinstance(source, Path) else pa.BufferReader(source)
        with stream, pa.ipc.open_file(stream) as reader:
            facts = _facts(reader.schema, label)
            _check_schema(reader.schema, label)
            _check_options(facts, label, block_tokens, timestamp_unit)
            raw = _raw(reader, label, facts.block_tokens)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise TraceError(f"{label}: the Arrow file is damaged ({_one_line(error)}); write or fetch it again") from None
    trace = facts.onto(finish(raw, facts.name, None, "ms"))
    facts.check_content(trace, label)
    return trace


def _check_options(facts: _Facts, label: str, block_tokens: int | None, timestamp_unit: str) -> None:
    if block_tokens is not None and block_tokens != facts.block_tokens:
        found = f"its blocks have {facts.block_tokens} tokens; found block size {block_tokens}"
        raise TraceError(f"{label}: {found}; leave the option out")
    if timestamp_unit not in ("auto", "ms"):
        raise TraceError(f"{label}: its times are in ms; found timestamp unit {timestamp_unit!r}; leave the option out")


@dataclass(frozen=True)
class _Facts:
    """What the schema's metadata says."""

    name: str
    block_tokens: int
    notices: tuple[str, ...]
    metadata: dict[str, str]
    sha256: str | None = None

    def check_content(self, trace: Trace, label: str) -> None:
        """Raises TraceError when the trace is not the one that was written."""
        if self.sha256 not in (None, trace.sha256):
            found = "the content differs from its own hash: damaged or edited"
            raise TraceError(f"{label}: {found}; write or fetch it again")

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
            sha256=raw[HASH_KEY].decode() if HASH_KEY in raw else None,
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


def _raw(reader: pa.RecordBatchFileReader, label: str, block_tokens: int) -> RawColumns:
    """The columns of all batches, one after the other."""
    numbers = [name for name in FIELDS if name in reader.schema.names and name not in ("block_ids", "request_id")]
    grown = {name: spool.Growing(FIELDS[name].to_pandas_dtype()) for name in numbers}
    offsets, ids = spool.Growing(np.int64), spool.Growing(np.int64)
    offsets.append(np.zeros(1, np.int64))
    names: list[str] = []
    for number in range(reader.num_record_batches):
        batch = reader.get_batch(number)
        batch.validate(full=True)
        first = offsets.rows - 1
        for name, column in grown.items():
            column.append(_column(batch, name, label, first).to_numpy())
        if "request_id" in reader.schema.names:
            names += _column(batch, "request_id", label, first).to_pylist()
        _append_blocks(_column(batch, "block_ids", label, first), label, offsets, ids)
    columns = {name: column.column() for name, column in grown.items()}
    unknown = [name for name in reader.schema.names if name not in FIELDS]
    return RawColumns(
        label=label,
        timestamp=columns["arrival_ms"],
        input_tokens=columns["input_tokens"],
        output_tokens=columns["output_tokens"],
        block_offsets=offsets.column(),
        block_ids=ids.column(),
        block_tokens=block_tokens,
        fields={"timestamp": "arrival_ms"},
        request_id=tuple(names) if "request_id" in reader.schema.names else None,
        session_id=columns.get("session_id"),
        priority=columns.get("priority"),
        delay_ms=columns.get("delay_ms"),
        notices=[f"{label}: ignored fields that mean nothing here: {', '.join(map(repr, unknown))}"] if unknown else [],
    )


def _append_blocks(blocks: pa.ListArray, label: str, offsets: spool.Growing, ids: spool.Growing) -> None:
    values = blocks.flatten()
    if values.null_count:
        raise TraceError(f"{label}, field 'block_ids': found a null id; expected ids from 0 to 2**63 - 1")
    ends = blocks.offsets.to_numpy().astype(np.int64)
    offsets.append(ends[1:] - ends[0] + ids.rows)
    ids.append(values.to_numpy())


def _column(batch: pa.RecordBatch, name: str, label: str, first: int) -> Any:
    values = batch.column(name)
    if values.null_count:
        row = first + values.is_null().index(True).as_py()
        raise TraceError(f"{label}, row {row} (the first is 0), field {name!r}: found null; expected a value")
    return values
