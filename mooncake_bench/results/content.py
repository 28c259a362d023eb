"""The hash of a table's content: names, types and values, whatever the layout or version of its file."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from mooncake_bench import spool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from mooncake_bench.results.steps import Bools


def content_sha256(table: pa.Table) -> str:
    """SHA-256 over the columns in order; what stands under a null does not count."""
    digest = hashlib.sha256()
    for field in table.schema:
        column = table.column(field.name)
        digest.update(f"{field.name} {field.type} {len(column)}\n".encode())
        for piece in _pieces(column):
            digest.update(_present(piece).tobytes())
        if pa.types.is_string(field.type):
            for piece in _pieces(column):
                digest.update(_lengths(piece))
            for piece in _pieces(column):
                digest.update(_text(piece))
        else:
            for piece in _pieces(column):
                digest.update(_values(piece))
    return digest.hexdigest()


def _pieces(column: pa.ChunkedArray) -> Iterator[pa.Array]:
    for chunk in column.chunks:
        for part in spool.parts(len(chunk)):
            yield chunk.slice(part.start, part.stop - part.start)
        spool.trim()


def _present(column: pa.Array) -> Bools:
    bitmap = column.buffers()[0]
    if bitmap is None:
        return np.ones(len(column), np.bool_)
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")
    return bits[column.offset : column.offset + len(column)].astype(np.bool_)


def _values(column: pa.Array) -> bytes:
    present = _present(column)
    data, rows = column.buffers()[1], slice(column.offset, column.offset + len(column))
    if pa.types.is_boolean(column.type):
        values = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")[rows]
    else:
        values = np.frombuffer(data, column.type.to_pandas_dtype())[rows]
    filled = np.where(present, values, np.zeros(1, values.dtype))
    return filled.astype(filled.dtype.newbyteorder("<"), copy=False).tobytes()


def _lengths(column: pa.Array) -> bytes:
    return np.diff(_ends(_plain(column))).astype("<i4").tobytes()


def _text(column: pa.Array) -> bytes:
    column = _plain(column)
    ends, data = _ends(column), column.buffers()[2]
    return b"" if data is None or not len(ends) else memoryview(data)[ends[0] : ends[-1]].tobytes()


def _ends(column: pa.Array) -> NDArray[np.int32]:
    return np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]


def _plain(column: pa.Array) -> pa.Array:
    """Strings without bytes under a null: those are rare, so slowly."""
    hidden = np.diff(_ends(column))[~_present(column)].any()
    return pa.array(column.to_pylist(), pa.string()) if hidden else column
