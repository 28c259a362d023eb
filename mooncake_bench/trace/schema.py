"""From raw columns to a checked :class:`Trace`: the one place where a trace's rules are enforced.

Every reader hands over :class:`RawColumns`; :func:`finish` checks them, converts the times, sorts, and writes the
notices. An error names the file, the line, the field, what was found and what was expected.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench import spool
from mooncake_bench.errors import TraceError
from mooncake_bench.trace.grid import describe_arrivals, suspect_seconds
from mooncake_bench.trace.model import DEFAULT_BLOCK_TOKENS, Floats, Ints, Trace
from mooncake_bench.trace.units import DATES, Timestamps, to_arrival_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

MAX_TOKENS = 1_000_000_000  # of one prompt or answer: beyond any model, and safe in picosecond arithmetic
MAX_SPAN_MS = 1e14  # over 3,000 years: numbers of another unit, or of two units in one file
MANY_REQUESTS = 100  # of which ids may repeat before all rows are sorted
LIKELY_BLOCK_TOKENS = (512, 256, 16, 128, 64, 32, 1024, 2048, 8, 1)


def _row_place(row: int) -> str:
    return f"row {row} (the first is 0)"


@dataclass
class RawColumns:
    """What a reader found, in file order, not yet checked."""

    label: str  # how error lines name the file
    timestamp: Timestamps  # (n,) int64 or float64, in the file's own unit
    input_tokens: Ints
    output_tokens: Ints
    block_offsets: Ints
    block_ids: Ints
    place: Callable[[int], str] = _row_place  # where a row stands: "line 7"
    fields: dict[str, str] = field(default_factory=dict)  # column -> its name in the file
    default_unit: str = "ms"  # or units.DATES: whole ns since 1970, read from dates
    block_tokens: int = DEFAULT_BLOCK_TOKENS  # the format's own
    request_id: tuple[str, ...] | None = None
    session_id: Ints | None = None
    priority: Ints | None = None
    delay_ms: Floats | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    source_row: Ints | None = None  # where each row stood in the source, when some were left out
    follows: Ints | None = None  # the row whose arrival and this row's delay give its arrival; -1: it has its own
    restore: Callable[[Trace], Trace] | None = None  # what a file of ours says of its trace, laid over it at the end
    checked: bool = False  # each row on its own is, as :func:`check_rows` does

    def error(self, row: int, column: str, found: object, expected: str) -> TraceError:
        """The error line for one bad row."""
        name = self.fields.get(column, column)
        return TraceError(f"{self.label}, {self.place(row)}, field {name!r}: found {found}; expected {expected}")


def finish(raw: RawColumns, name: str, block_tokens: int | None = None, timestamp_unit: str = "auto") -> Trace:
    """The checked trace: rows sorted by arrival, times in ms from the first one.

    Raises TraceError for the first bad row.
    """
    if len(raw.timestamp) == 0:
        raise TraceError(f"{raw.label}: found 0 requests; expected at least one")
    size = checked_block_tokens(raw.block_tokens if block_tokens is None else block_tokens)
    notices = list(raw.notices)
    if not raw.checked:
        check_all(raw, size)
    _check_request_ids(raw)
    arrival_ms, facts = to_arrival_ms(raw.timestamp, timestamp_unit, raw.default_unit, raw.label, notices)
    order = _order(raw.timestamp, notices) if raw.follows is None else _place_turns(raw, arrival_ms)
    _check_span(raw, arrival_ms)
    columns = _columns(raw, arrival_ms) if order is None else _reordered(raw, arrival_ms, order)
    if timestamp_unit == "auto" and facts["timestamp_unit"] == "ms":
        suspect_seconds(raw.timestamp, raw.fields.get("timestamp", ""), columns["arrival_ms"], notices)
    describe_arrivals(columns["arrival_ms"], notices)
    metadata = raw.metadata | facts | {"block_tokens": str(size)}
    for column in columns.values():
        if isinstance(column, np.ndarray):
            column.flags.writeable = False  # what nobody else can write need not be copied
    trace = Trace(name=name, block_tokens=size, metadata=metadata, notices=tuple(notices), **columns)
    return trace if raw.restore is None else raw.restore(trace)


def checked_block_tokens(size: int) -> int:
    """A block size that is possible. Raises TraceError for another."""
    if not 1 <= size <= MAX_TOKENS:
        found = size if abs(size) < 10**20 else "a number of more than 20 digits"
        raise TraceError(f"block size is {found} tokens; expected from 1 to {MAX_TOKENS}")
    return size


def check_all(raw: RawColumns, size: int) -> None:
    """Check every row on its own, part by part. Raises TraceError for the first bad row of a part."""
    if len(raw.timestamp) <= spool.PART_ROWS:
        check_rows(raw, size)
        return
    try:
        for part in _row_parts(raw):
            check_rows(part, size)
    except TraceError:
        counts = np.diff(raw.block_offsets)
        if not np.array_equal(counts, -(-raw.input_tokens // size)):
            _check_counts(raw, size)  # its hint looks at every row
        raise


def _row_parts(raw: RawColumns) -> Iterator[RawColumns]:
    """Views of consecutive rows that hold about PART_ROWS block ids; mapped pages are given back after each."""
    first, rows = 0, len(raw.timestamp)
    while first < rows:
        limit = raw.block_offsets[first] + spool.PART_ROWS
        end = max(first + 1, int(np.searchsorted(raw.block_offsets, limit, side="right")) - 1)
        yield _rows_of(raw, first, min(end, rows))
        spool.trim()
        first = end


def _rows_of(raw: RawColumns, first: int, end: int) -> RawColumns:
    offsets = raw.block_offsets[first : end + 1]
    return replace(
        raw,
        timestamp=raw.timestamp[first:end],
        input_tokens=raw.input_tokens[first:end],
        output_tokens=raw.output_tokens[first:end],
        block_offsets=offsets - offsets[0],
        block_ids=raw.block_ids[offsets[0] : offsets[-1]],
        place=lambda row: raw.place(first + row),
    )


def check_rows(raw: RawColumns, size: int, *, blocks: bool = True) -> None:
    """Check each row on its own: its times, lengths and, unless ``blocks`` is False, its block ids.

    Raises TraceError for the first bad row.
    """
    _check_times(raw)
    _check_lengths(raw, "input_tokens", raw.input_tokens)
    _check_lengths(raw, "output_tokens", raw.output_tokens)
    if blocks:
        _check_blocks(raw, size)


def from_rows(rows: list[tuple[float, int, int, Sequence[int]]], block_tokens: int, name: str) -> Trace:
    """A checked trace of plain rows, times in ms; see :meth:`Trace.of`."""
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row[3]) for row in rows], out=offsets[1:])
    raw = RawColumns(
        label=f"trace {name!r}",
        timestamp=np.array([row[0] for row in rows], np.float64),
        input_tokens=_integers([row[1] for row in rows], name, "input_tokens"),
        output_tokens=_integers([row[2] for row in rows], name, "output_tokens"),
        block_offsets=offsets,
        block_ids=_integers([block for row in rows for block in row[3]], name, "block_ids"),
    )
    return finish(raw, name, block_tokens, "ms")


def _integers(values: list[int], name: str, column: str) -> Ints:
    odd = next((value for value in values if not isinstance(value, int | np.integer) or abs(int(value)) >= 2**63), None)
    if odd is not None:
        raise TraceError(f"trace {name!r}, field {column!r}: found {odd!r}; expected 64-bit integers")
    return np.array(values, np.int64)


def _first(bad: NDArray[np.bool_]) -> int | None:
    return int(bad.argmax()) if bad.any() else None


def _check_times(raw: RawColumns) -> None:
    if raw.default_unit == DATES:
        return
    row = _first(~(np.isfinite(raw.timestamp) & (raw.timestamp >= 0)))
    if row is not None:
        raise raw.error(row, "timestamp", raw.timestamp[row], "a finite number >= 0")


def _check_span(raw: RawColumns, arrival_ms: Floats) -> None:
    row = _first(arrival_ms > MAX_SPAN_MS)
    if row is not None and raw.follows is not None and raw.follows[row] >= 0:
        assert raw.delay_ms is not None
        raise raw.error(row, "delay_ms", raw.delay_ms[row], f"one that leaves a span of at most {MAX_SPAN_MS:g} ms")
    if row is not None:
        expected = f"a time at most {MAX_SPAN_MS:g} ms after the first, {raw.timestamp.min()}"
        hint = "; do all rows share a unit? (--timestamp-unit s|ms|us|ns)"
        raise raw.error(row, "timestamp", raw.timestamp[row], expected + hint)


def _check_lengths(raw: RawColumns, column: str, values: Ints) -> None:
    row = _first((values < 1) | (values > MAX_TOKENS))
    if row is not None:
        raise raw.error(row, column, values[row], f"a number of tokens from 1 to {MAX_TOKENS}")


def _check_blocks(raw: RawColumns, size: int) -> None:
    _check_counts(raw, size)
    entry = _first(raw.block_ids < 0)
    if entry is not None:
        raise raw.error(_row_of(raw, entry), "block_ids", raw.block_ids[entry], "ids from 0 to 2**63 - 1")
    _check_no_repeats(raw)


def _check_counts(raw: RawColumns, size: int) -> None:
    counts = np.diff(raw.block_offsets)
    expected = -(-raw.input_tokens // size)
    row = _first(counts != expected)
    if row is not None:
        found = f"{counts[row]} id{'s' * int(counts[row] != 1)} for {raw.input_tokens[row]} input tokens"
        wanted = f"ceil({raw.input_tokens[row]} / {size}) = {expected[row]} ids at block size {size}"
        raise raw.error(row, "block_ids", found, wanted + _other_block_size(raw, counts))


def _other_block_size(raw: RawColumns, counts: Ints) -> str:
    """A hint naming the usual block size that fits every row, if there is one."""
    for size in LIKELY_BLOCK_TOKENS:
        if np.array_equal(counts, -(-raw.input_tokens // size)):
            return f"; every row fits block size {size}: use --block-size {size}"
    return ""


def _row_of(raw: RawColumns, entry: int) -> int:
    return int(np.searchsorted(raw.block_offsets, entry, side="right")) - 1


def _check_no_repeats(raw: RawColumns) -> None:
    """No id twice in a row. Ids that rise along the prompt, the usual case, are settled by one comparison."""
    falls = np.flatnonzero(np.diff(raw.block_ids) <= 0)
    owners = np.searchsorted(raw.block_offsets, falls, side="right") - 1
    rows = np.unique(owners[falls + 1 < raw.block_offsets[owners + 1]])
    if len(rows) > MANY_REQUESTS:
        rows = _rows_with_repeats(raw)
    for row in rows.tolist():
        ids = raw.block_ids[raw.block_offsets[row] : raw.block_offsets[row + 1]].tolist()
        if len(set(ids)) < len(ids):
            seen: set[int] = set()
            again = next(block for block in ids if block in seen or seen.add(block))  # type: ignore[func-returns-value]
            raise raw.error(row, "block_ids", f"id {again} twice", "each id at most once in a row")


def _rows_with_repeats(raw: RawColumns) -> Ints:
    """Rows that hold an id twice, found by sorting the ids of every row."""
    owners = np.repeat(np.arange(len(raw.block_offsets) - 1), np.diff(raw.block_offsets))
    order = np.lexsort((raw.block_ids, owners))
    ids, owners = raw.block_ids[order], owners[order]
    again = (ids[1:] == ids[:-1]) & (owners[1:] == owners[:-1])
    return np.unique(owners[1:][again])


def _check_request_ids(raw: RawColumns) -> None:
    if raw.request_id is None or _all_distinct(raw.request_id):
        return
    seen: dict[str, int] = {}
    for row, name in enumerate(raw.request_id):
        if name in seen:
            found = f"{name!r}, already used in {raw.place(seen[name])}"
            raise raw.error(row, "request_id", found, "an id of its own for each request")
        seen[name] = row


def _all_distinct(texts: tuple[str, ...]) -> bool:
    """Whether no text occurs twice; sorted hashes need less memory than a set of millions."""
    hashes = np.fromiter(map(hash, texts), np.int64, len(texts))
    hashes.sort()
    return not bool((hashes[1:] == hashes[:-1]).any()) or len(set(texts)) == len(texts)


def _order(timestamp: Timestamps, notices: list[str]) -> NDArray[np.intp] | None:
    """The stable order by time, or None when the file has it already."""
    behind = int((timestamp[1:] < timestamp[:-1]).sum())
    if not behind:
        return None
    notices.append(
        f"rows were not in order of arrival ({behind:,} arrive before their predecessor): "
        "sorted by timestamp, equal times in file order"
    )
    return np.argsort(timestamp, kind="stable")


def _columns(raw: RawColumns, arrival_ms: Floats) -> dict[str, Any]:
    names = (
        "input_tokens",
        "output_tokens",
        "block_offsets",
        "block_ids",
        "request_id",
        "session_id",
        "priority",
        "delay_ms",
        "source_row",
    )
    return {"arrival_ms": arrival_ms} | {name: getattr(raw, name) for name in names}


def _reordered(raw: RawColumns, arrival_ms: Floats, order: NDArray[np.intp]) -> dict[str, Any]:
    counts = np.diff(raw.block_offsets)[order]
    offsets = np.zeros(len(order) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    names = raw.request_id
    return {
        "arrival_ms": arrival_ms[order],
        "input_tokens": raw.input_tokens[order],
        "output_tokens": raw.output_tokens[order],
        "block_offsets": offsets,
        "block_ids": _reordered_ids(raw, order, offsets),
        "request_id": None if names is None else tuple(names[row] for row in order),
        "session_id": None if raw.session_id is None else raw.session_id[order],
        "priority": None if raw.priority is None else raw.priority[order],
        "delay_ms": None if raw.delay_ms is None else raw.delay_ms[order],
        "source_row": order.astype(np.int64) if raw.source_row is None else raw.source_row[order],
    }


def _reordered_ids(raw: RawColumns, order: NDArray[np.intp], offsets: Ints) -> Ints:
    """The block ids of rows in another order, gathered some rows at a time."""
    ids, first = spool.Growing(np.int64), 0
    while first < len(order):
        limit = offsets[first] + spool.PART_ROWS
        end = max(first + 1, int(np.searchsorted(offsets, limit, side="right")) - 1)
        counts = np.diff(offsets[first : end + 1])
        shift = np.repeat(raw.block_offsets[:-1][order[first:end]] - offsets[first:end], counts)
        ids.append(raw.block_ids[np.arange(offsets[first], offsets[min(end, len(order))]) + shift])
        first = end
    return ids.column()


def _place_turns(raw: RawColumns, arrival_ms: Floats) -> NDArray[np.intp]:
    """Writes the arrivals of turns that have a delay only; the stable order by arrival of all rows."""
    assert raw.follows is not None
    assert raw.delay_ms is not None
    for row in np.flatnonzero(raw.follows >= 0).tolist():  # the row that is followed comes first
        arrival_ms[row] = arrival_ms[raw.follows[row]] + raw.delay_ms[row]
    return np.argsort(arrival_ms, kind="stable")
