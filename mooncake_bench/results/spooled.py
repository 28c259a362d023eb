"""Arrow tables too large for memory: mapped temporary files, like the columns of :mod:`mooncake_bench.spool`."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from mooncake_bench import spool

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray


def spooled(schema: pa.Schema, pieces: Iterable[pa.Table]) -> pa.Table:
    """One table of several pieces, mapped when there is more than one. Raises SetupError when there is no room."""
    coming = iter(pieces)
    first, second = next(coming, None), next(coming, None)
    if first is None or second is None:
        return schema.empty_table() if first is None else first
    with spool.temporary_file() as stream, pa.ipc.new_file(stream, schema) as writer:
        for piece in chain((first, second), coming):
            _write(writer, piece)
        try:
            writer.close()
            stream.flush()
        except OSError as error:
            raise spool.no_room(error) from None
        return pa.ipc.open_file(pa.py_buffer(spool.mapping(stream))).read_all()


def _write(writer: pa.RecordBatchFileWriter, piece: pa.Table) -> None:
    try:
        writer.write_table(piece)
    except OSError as error:
        raise spool.no_room(error) from None


def numbers(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """A column of integers without nulls as an array; mapped when it is large, the very memory when it is in one."""
    if column.num_chunks == 1:
        whole: NDArray[np.int64] = column.chunk(0).to_numpy()
        return whole
    made, at = spool.empty(len(column), column.type.to_pandas_dtype()), 0
    for chunk in column.chunks:
        made[at : at + len(chunk)] = chunk.to_numpy()
        at += len(chunk)
        spool.trim()
    return made
