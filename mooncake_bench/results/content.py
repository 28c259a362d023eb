"""The hash of a table's content: names, types and values, whatever the layout or version of its file."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from mooncake_bench.results.steps import Bools


def content_sha256(table: pa.Table) -> str:
    """SHA-256 over the columns in order; what stands under a null does not count."""
    digest = hashlib.sha256()
    for field in table.schema:
        column = table.column(field.name).combine_chunks()
        column = column if isinstance(column, pa.Array) else pa.concat_arrays(column.chunks)
        digest.update(f"{field.name} {field.type} {len(column)}\n".encode())
        present = _present(column)
        digest.update(present.tobytes())
        digest.update(_strings(column, present) if pa.types.is_string(field.type) else _values(column, present))
    return digest.hexdigest()


def _present(column: pa.Array) -> Bools:
    bitmap = column.buffers()[0]
    if bitmap is None:
        return np.ones(len(column), np.bool_)
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")
    return bits[column.offset : column.offset + len(column)].astype(np.bool_)


def _values(column: pa.Array, present: Bools) -> bytes:
    data, rows = column.buffers()[1], slice(column.offset, column.offset + len(column))
    if pa.types.is_boolean(column.type):
        values = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")[rows]
    else:
        values = np.frombuffer(data, column.type.to_pandas_dtype())[rows]
    filled = np.where(present, values, np.zeros(1, values.dtype))
    return filled.astype(filled.dtype.newbyteorder("<"), copy=False).tobytes()


def _strings(column: pa.Array, present: Bools) -> bytes:
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    lengths = np.diff(ends)
    if lengths[~present].any():  # bytes under a null: rare, so slowly
        return _strings(pa.array(column.to_pylist(), pa.string()), present)
    text = b"" if data is None or not len(ends) else data.to_pybytes()[ends[0] : ends[-1]]
    return lengths.astype("<i4").tobytes() + text
