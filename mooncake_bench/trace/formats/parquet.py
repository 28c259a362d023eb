"""Parquet with a trace's own names ``arrival_ms, input_tokens, output_tokens``, or others with ``--column``.

Any integer type will do for tokens; arrivals are integers, floats (``--timestamp-unit``, ms unless told) or timestamps
of any resolution, which are read exactly. Block ids are lists of integers or of texts (numbered by first appearance),
or texts with ids separated by spaces or semicolons. Only a session or a delay may be null. Without a block column each
block gets an id of its own. Other columns are ignored, with a notice. A file that this tool wrote also has the trace's
name, notices and metadata. The licence is that of whoever made the file.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench.errors import TraceError
from mooncake_bench.trace.formats._jsonl import shown
from mooncake_bench.trace.formats._mapping import EXPECTED, lacking, names_in, unread_blocks
from mooncake_bench.trace.formats._plain import Plain, request_ids
from mooncake_bench.trace.model import DEFAULT_BLOCK_TOKENS, NO_SESSION
from mooncake_bench.trace.units import DATES

if TYPE_CHECKING:
    import pyarrow as pa

    from mooncake_bench.trace.formats import Source
    from mooncake_bench.trace.model import Trace
    from mooncake_bench.trace.schema import RawColumns

NAME = "parquet"
DESCRIPTION = "parquet: columns arrival_ms, input_tokens, output_tokens, or those --column names"
OPTIONS = frozenset({"columns"})
MAGIC = b"PAR1"
BATCH_ROWS = 2**16


def recognises(head: bytes) -> bool:
    """Parquet's own first bytes."""
    return head.startswith(MAGIC)


def read(source: Source) -> RawColumns:
    """All rows of the file. Raises TraceError for the first row, or type of a column, that is not what it should be."""
    import pyarrow as pa
    from pyarrow import parquet

    if source.path is None:
        raise TraceError(f"{source.label}: a parquet file inside another, or in a pipe; expand it to a file of its own")
    try:
        with parquet.ParquetFile(source.path, memory_map=True, page_checksum_verification=True) as file:
            return _read(source, file)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise TraceError(f"{source.label}: the parquet file is damaged ({reason}); fetch or write it again") from None


def _read(source: Source, file: Any) -> RawColumns:
    schema = file.schema_arrow
    names = names_in(schema.names, source.reading.columns)
    for key, name in names.items():
        if name not in schema.names:
            raise lacking(source.label, key, name, schema.names)
        if schema.names.count(name) > 1:
            raise TraceError(f"{source.label}, field {name!r}: found the name twice; expected each column's once")
        _check_type(source.label, key, name, schema.field(name).type)
    own = _own_facts(source, schema)
    plain = Plain(
        source,
        NAME,
        names,
        DATES if _is_date(schema.field(names["arrival"]).type) else "ms",
        DEFAULT_BLOCK_TOKENS if own is None else own.block_tokens,
        has_lines=False,
    )
    plain.gathered.notices += _ignored(source.label, schema.names, names)
    reader = _Reader(source.label, names, plain, own, not source.reading.columns)
    for batch in file.iter_batches(BATCH_ROWS, columns=list(names.values())):
        if batch.num_rows:
            reader.add(batch)
    return reader.columns()


def _ignored(label: str, present: list[str], names: dict[str, str]) -> list[str]:
    """The notices on columns that are not read."""
    others = [name for name in present if name not in names.values()]
    if not others:
        return []
    more = f" and {len(others) - 8} more" if len(others) > 8 else ""
    listed = ", ".join(map(shown, others[:8]))
    notice = f"{label}: ignored columns that mean nothing here: {listed}{more}"
    return [notice, *unread_blocks(label, others, names)]


def _own_facts(source: Source, schema: pa.Schema) -> Any:
    """What this tool wrote beside the columns; None in a file of another's."""
    from mooncake_bench.trace.store import VERSION_KEY, _facts

    if VERSION_KEY not in (schema.metadata or {}):
        return None
    return _facts(schema, source.label)


def _is_date(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_timestamp(kind))


def _check_type(label: str, key: str, name: str, kind: pa.DataType) -> None:
    import pyarrow as pa

    types = pa.types
    integer = types.is_integer(kind)
    text = types.is_string(kind) or types.is_large_string(kind) or types.is_dictionary(kind)
    lists = types.is_list(kind) or types.is_large_list(kind)
    fits = {
        "arrival": integer or types.is_floating(kind) or types.is_timestamp(kind),
        "blocks": text or (lists and (types.is_integer(kind.value_type) or types.is_string(kind.value_type))),
        "session": integer or text,
        "id": integer or text,
        "delay": integer or types.is_floating(kind),
    }
    if not fits.get(key, integer):
        raise TraceError(f"{label}, field {name!r}: found type {kind}; expected {EXPECTED[key]}")


class _Reader:
    """Batches of a parquet file to rows of a trace."""

    def __init__(self, label: str, names: dict[str, str], plain: Plain, own: Any, whole: bool) -> None:
        """``own``: what this tool wrote beside the columns; ``whole``: each column is read as what it is."""
        self.label, self.names, self.plain, self.own = label, names, plain, own
        self.whole = whole
        self.row = 0

    def columns(self) -> RawColumns:
        raw = self.plain.columns()
        if self.own is not None:
            raw.notices, raw.restore = [], self._restored
        return raw

    def _restored(self, trace: Trace) -> Trace:
        restored: Trace = replace(self.own.onto(trace), name=self.own.name)
        if self.whole and trace.metadata["timestamp_unit"] == "ms" and trace.block_tokens == self.own.block_tokens:
            self.own.check_content(restored, self.label)
        return restored

    def error(self, row: int, key: str, found: object) -> TraceError:
        where = f"{self.label}, row {self.row + row} (the first is 0), field {self.names[key]!r}"
        return TraceError(f"{where}: found {found}; expected {EXPECTED[key]}")

    def add(self, batch: pa.RecordBatch) -> None:
        columns = {key: batch.column(name) for key, name in self.names.items()}
        self.plain.add(
            self.row,
            self._times(columns["arrival"]),
            self._integers("input", columns["input"]),
            self._integers("output", columns["output"]),
            blocks=self._blocks(columns["blocks"]) if "blocks" in columns else None,
            session=self._sessions(columns["session"]) if "session" in columns else None,
            priority=self._integers("priority", columns["priority"]) if "priority" in columns else None,
            ids=self._ids(columns["id"]) if "id" in columns else None,
            delay=self._delays(columns["delay"]) if "delay" in columns else None,
        )
        self.row += batch.num_rows

    def _full(self, key: str, column: Any) -> Any:
        if column.null_count:
            raise self.error(column.is_null().to_numpy(zero_copy_only=False).argmax(), key, "null")
        return column

    def _integers(self, key: str, column: Any) -> Any:
        import pyarrow as pa

        column = self._full(key, column)
        try:
            return column.cast(pa.int64()).to_numpy()
        except pa.ArrowInvalid:
            row, value = next((at, item) for at, item in enumerate(column.to_pylist()) if item >= 2**63)
            raise self.error(row, key, value) from None

    def _times(self, column: Any) -> Any:
        import pyarrow as pa

        if _is_date(column.type):
            kind = pa.timestamp("ns", column.type.tz)
            return self._full("arrival", column).cast(kind).cast(pa.int64()).to_numpy()
        if pa.types.is_integer(column.type):
            return self._integers("arrival", column)
        return self._full("arrival", column).cast(pa.float64()).to_numpy()

    def _ids(self, column: Any) -> list[str]:
        if self.own is not None and not column.null_count:  # as they were, blanks and all
            return [str(value) for value in column.to_pylist()]
        return request_ids(column.to_pylist(), lambda row, text: self.error(row, "id", "nothing"))

    def _delays(self, column: Any) -> Any:
        import pyarrow as pa

        return column.cast(pa.float64()).to_numpy(zero_copy_only=False)

    def _sessions(self, column: Any) -> Any:
        values = [None if value == NO_SESSION and self.own is not None else value for value in column.to_pylist()]
        for row, value in enumerate(values):
            if isinstance(value, int) and not 0 <= value < 2**63:
                raise self.error(row, "session", value)
        return [None if value == "" else value for value in values]

    def _blocks(self, column: Any) -> Any:
        import pyarrow as pa

        column = self._full("blocks", column)

        def error(row: int, text: str) -> TraceError:
            return self.error(row, "blocks", shown(text))

        if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
            return self.plain.blocks.split(column.cast(pa.string()), error)
        counts = np.diff(column.offsets.to_numpy()).astype(np.int64)
        flat = column.flatten()
        if flat.null_count:
            at = int(flat.is_null().to_numpy(zero_copy_only=False).argmax())
            raise self.error(int(np.searchsorted(np.cumsum(counts), at, side="right")), "blocks", "null in the list")
        if pa.types.is_integer(flat.type):
            try:
                return counts, flat.cast(pa.int64()).to_numpy()
            except pa.ArrowInvalid:
                at, value = next((at, item) for at, item in enumerate(flat.to_pylist()) if item >= 2**63)
                row = int(np.searchsorted(np.cumsum(counts), at, side="right"))
                raise self.error(row, "blocks", f"{value}, beyond 2**63 - 1") from None
        return counts, self.plain.blocks.numbers(flat, counts, error)
