"""What every transform is made of: rows taken in another order, ids numbered anew, and the trace that results."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench import spool
from mooncake_bench.trace.grid import describe_arrivals
from mooncake_bench.trace.model import Trace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from mooncake_bench.trace.model import Floats, Ints

CHUNK_ENTRIES = 1_000_000  # block ids looked at together: bounds the memory of a pass


def row_chunks(trace: Trace, entries: int = CHUNK_ENTRIES) -> Iterator[tuple[int, int]]:
    """Ranges of rows ``[first, end)`` that hold about ``entries`` block ids each, at least one row."""
    first = 0
    while first < len(trace):
        limit = trace.block_offsets[first] + entries
        end = max(first + 1, int(np.searchsorted(trace.block_offsets, limit, side="right")) - 1)
        yield first, end
        spool.trim()
        first = end


def numbered(labels: Ints) -> Ints:
    """Labels renumbered 0, 1, … in order of first appearance."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


def entries_of(trace: Trace, rows: Ints) -> tuple[Ints, Ints]:
    """Where the block ids of ``rows`` stand in ``trace.block_ids``, row after row, and the offsets of the rows."""
    begin = trace.block_offsets[rows]
    counts = trace.block_offsets[rows + 1] - begin
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return np.arange(offsets[-1]) + np.repeat(begin - offsets[:-1], counts), offsets


def gathered(trace: Trace, rows: Ints) -> tuple[Ints, Ints]:
    """The offsets and block ids of ``rows``, in that order, gathered a stretch at a time."""
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(trace.block_offsets[rows + 1] - trace.block_offsets[rows], out=offsets[1:])
    ids = spool.empty(int(offsets[-1]), np.int64)
    for part in spool.parts(len(rows)):
        entries, _ = entries_of(trace, rows[part])
        ids[offsets[part.start] : offsets[part.start] + len(entries)] = trace.block_ids[entries]
    ids.flags.writeable = False
    return offsets, ids


def taken(trace: Trace, rows: Ints) -> dict[str, Any]:
    """The columns of distinct ``rows``, in that order; arrival times as they are."""
    offsets, ids = gathered(trace, rows)
    columns: dict[str, Any] = {"block_offsets": offsets, "block_ids": ids}
    for name in ("arrival_ms", "input_tokens", "output_tokens", "session_id", "priority", "delay_ms", "source_row"):
        column = getattr(trace, name)
        columns[name] = None if column is None else column[rows]
    columns["request_id"] = picked(trace.request_id, rows)
    if trace.source_row is None:
        columns["source_row"] = rows
    return columns


def picked(names: Sequence[str] | None, rows: Ints) -> tuple[str, ...] | None:
    """The texts at ``rows``."""
    return None if names is None else tuple(names[row] for row in rows.tolist())


def by_time(arrival_ms: Floats) -> NDArray[np.intp]:
    """The stable order by arrival."""
    return np.argsort(arrival_ms, kind="stable")


def about_arrivals(arrival_ms: Floats) -> list[str]:
    """The notices that a reader writes on arrivals."""
    notices: list[str] = []
    describe_arrivals(arrival_ms, notices)
    return notices


def remade(trace: Trace, done: str, notices: Sequence[str] = (), **columns: Any) -> Trace:
    """``trace`` with other columns (or ``name``, ``block_tokens``, ``metadata``), arrivals counted from the first.

    ``done`` says what was done and is added to ``metadata["transform"]``. Notices on the arrivals are written anew.
    """
    values = {item.name: getattr(trace, item.name) for item in fields(trace)} | columns
    values["arrival_ms"] = values["arrival_ms"] - values["arrival_ms"][0]
    earlier = values["metadata"].get("transform")
    values["metadata"] = dict(values["metadata"]) | {"transform": f"{earlier}; {done}" if earlier else done}
    about = about_arrivals(trace.arrival_ms)
    new = [notice for notice in values["notices"] if notice not in about] + list(notices)
    new += about_arrivals(values["arrival_ms"])
    for value in values.values():  # a fresh array is handed over, not copied once more
        if isinstance(value, np.ndarray) and value.base is None:
            value.flags.writeable = False
    return Trace(**(values | {"notices": tuple(dict.fromkeys(new))}))
