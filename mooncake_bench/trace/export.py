"""Writing a trace to a file in any format of which there is a writer, a stretch of rows at a time.

==========  =========================  ==========================================================================
kind        endings                    what the file cannot hold
==========  =========================  ==========================================================================
arrow       .arrow                     nothing is lost
parquet     .parquet                   nothing is lost
csv         .csv, .csv.gz              name, metadata, notices (not said each time); a block size other than 512
mooncake    .jsonl, .jsonl.gz          as csv; that block ids are made up; that a column is there but empty
==========  =========================  ==========================================================================

CSV and parquet have the columns of a :class:`~mooncake_bench.trace.model.Trace`: ``arrival_ms``, ``input_tokens``,
``output_tokens``, ``block_ids`` and those present of ``request_id``, ``session_id``, ``priority`` and ``delay_ms``.
In CSV the block ids of a row are separated by spaces, no session and an unknown delay are empty, and a trace without
prefix ids has no column ``block_ids``. Reading a file back gives the same columns, and writing that again the same
bytes. A file appears under its name only when it is complete.
"""

from __future__ import annotations

import contextlib
import gzip
from itertools import pairwise, repeat
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import msgspec
import numpy as np

from mooncake_bench import outfile
from mooncake_bench.errors import TraceError, nearest
from mooncake_bench.trace.model import DEFAULT_BLOCK_TOKENS, NO_SESSION
from mooncake_bench.trace.rows import row_chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mooncake_bench.trace.model import Trace

ENDINGS = {".arrow": "arrow", ".parquet": "parquet", ".csv": "csv", ".jsonl": "mooncake"}
KINDS = tuple(ENDINGS.values())
TEXT_KINDS = ("csv", "mooncake")
CHUNK_ENTRIES = 400_000  # block ids turned into text together
CHUNK_ROWS = 100_000
OPTIONAL = ("request_id", "session_id", "priority", "delay_ms")
_ROW_COLUMNS = (
    "arrival_ms", "input_tokens", "output_tokens", "block_ids", "session_id", "priority", "request_id", "delay_ms"
)  # fmt: skip
GZIP_LEVEL = 6
QUOTE = '"'


def kind_of(path: str | Path, kind: str | None = None) -> str:
    """The kind of file that ``path`` is to be: ``kind``, or what its ending says.

    Raises TraceError for an unknown one.
    """
    if kind is not None:
        if kind not in KINDS:
            raise TraceError(f"no writer for {kind!r}{nearest(kind, KINDS)}; there are {', '.join(KINDS)}")
        return kind
    name = Path(path).name.removesuffix(".gz")
    ending = Path(name).suffix
    if ending not in ENDINGS:
        found = f"its ending is {ending!r}" if ending else "it has no ending"
        raise TraceError(f"{str(path)!r}: {found}; expected {', '.join(ENDINGS)} or .gz after the last two, or --to")
    return ENDINGS[ending]


def write(trace: Trace, path: str | Path, kind: str | None = None, force: bool = False) -> list[str]:
    """Write ``trace`` to ``path``; returns a line for each thing that such a file cannot hold.

    ``kind`` None goes by the ending. Raises TraceError for a file that exists (unless ``force``) or cannot be written;
    nothing half-written is left.
    """
    chosen = check_target(path, kind, force)
    with outfile.writing(path, force=force, label=_label(path), error=TraceError) as partial:
        _WRITERS[chosen](trace, partial, Path(path))
    return left_out(trace, chosen)


def check_target(path: str | Path, kind: str | None = None, force: bool = False) -> str:
    """The kind of file that ``path`` will be. Raises TraceError where :func:`write` would refuse it for certain."""
    chosen = kind_of(path, kind)
    if Path(path).name.endswith(".gz") and chosen not in TEXT_KINDS:
        raise TraceError(f"{str(path)!r}: {chosen} is compressed by itself; leave .gz out")
    outfile.check_target(path, force=force, label=_label(path), error=TraceError, hint=" (- is stdout)")
    return chosen


def _label(path: str | Path) -> str:
    return f"trace {str(path)!r}"


def write_text(trace: Trace, sink: IO[bytes], kind: str) -> list[str]:
    """Write ``trace`` as ``csv`` or ``mooncake`` to an open stream, as :func:`write` does."""
    if kind not in TEXT_KINDS:
        raise TraceError(f"{kind} cannot be written to a stream; expected {' or '.join(TEXT_KINDS)}, or a file's name")
    for part in _TEXTS[kind](trace):
        sink.write(part)
    return left_out(trace, kind)


def facts(trace: Trace) -> dict[str, Any]:
    """What a trace is, in a few plain values."""
    return {
        "format": trace.metadata.get("format"),
        "requests": len(trace),
        "span_ms": trace.span_ms,
        "input_tokens": int(trace.input_tokens.sum()),
        "output_tokens": int(trace.output_tokens.sum()),
        "blocks": len(trace.block_ids),
        "block_tokens": trace.block_tokens,
        "prefix_ids": trace.has_prefix_ids,
        "optional_columns": [name for name in OPTIONAL if getattr(trace, name) is not None],
        "transform": trace.metadata.get("transform"),
    }


def first_rows(trace: Trace, count: int) -> list[dict[str, Any]]:
    """The first requests as plain values; None where a request has no session or its delay is not known."""
    rows: list[dict[str, Any]] = []
    for row, name in enumerate(trace.select(count).request_ids()):
        item = {
            "request_id": name,
            "arrival_ms": _number(float(trace.arrival_ms[row])),
            "input_tokens": int(trace.input_tokens[row]),
            "output_tokens": int(trace.output_tokens[row]),
        }
        for column in OPTIONAL[1:]:
            if getattr(trace, column) is not None:
                item[column] = next(iter(_cells(trace, column, row, row + 1)))
        rows.append(item | {"block_ids": trace.blocks(row).tolist()})
    return rows


def left_out(trace: Trace, kind: str) -> list[str]:
    """What a file of ``kind`` does not say of this trace and its meaning depends on, one line each."""
    lines = []
    if trace.source_row is not None and trace.request_id is None:
        lines.append("requests had the row numbers of their source as ids: in the new file they are numbered anew")
    if kind not in TEXT_KINDS:
        return lines
    if trace.block_tokens != DEFAULT_BLOCK_TOKENS and (kind == "mooncake" or trace.has_prefix_ids):
        lines.append(f"the file does not say its block size: read it with --block-size {trace.block_tokens}")
    if kind == "mooncake" and not trace.has_prefix_ids:
        lines.append("the source has no prefix ids: the file's hash_ids are made up, and it does not say so")
    if kind == "mooncake" and trace.session_id is not None and (trace.session_id == NO_SESSION).all():
        lines.append("left out: session_id, for no request has one")
    if kind == "mooncake" and trace.delay_ms is not None and np.isnan(trace.delay_ms).all():
        lines.append("left out: delay_ms, for none is known")
    return lines


def _write_arrow(trace: Trace, partial: Path, target: Path) -> None:
    from mooncake_bench.trace.store import write_arrow

    write_arrow(trace, partial)


def _write_parquet(trace: Trace, partial: Path, target: Path) -> None:
    import pyarrow.parquet as pq

    from mooncake_bench.trace.store import hashed_schema, to_batch

    schema = hashed_schema(trace)
    with pq.ParquetWriter(partial, schema, compression="zstd", write_page_checksum=True) as writer:
        for first, end in _stretches(trace):
            writer.write_batch(to_batch(trace, first, end))


def _stretches(trace: Trace) -> Iterator[tuple[int, int]]:
    """Ranges of rows, none with many block ids or many rows."""
    for first, end in row_chunks(trace, CHUNK_ENTRIES):
        for start in range(first, end, CHUNK_ROWS):
            yield start, min(start + CHUNK_ROWS, end)


def _write_as_text(kind: str) -> Callable[[Trace, Path, Path], None]:
    def write_file(trace: Trace, partial: Path, target: Path) -> None:
        with partial.open("wb") as raw, contextlib.ExitStack() as stack:
            sink: Any = raw
            if target.name.endswith(".gz"):  # no name and no time inside: the same bytes each time
                sink = stack.enter_context(gzip.GzipFile("", "wb", GZIP_LEVEL, raw, mtime=0))
            for part in _TEXTS[kind](trace):
                sink.write(part)

    return write_file


class _Row(msgspec.Struct, omit_defaults=True, gc=False):
    """A line of Mooncake JSONL, keys in their order."""

    timestamp: int | float
    input_length: int
    output_length: int
    hash_ids: list[int]
    session_id: int | None = None
    priority: int | None = None
    request_id: str | None = None
    delay: int | float | None = None


def _mooncake(trace: Trace) -> Iterator[bytes]:
    """Mooncake JSONL, one object a line."""
    encode = msgspec.json.Encoder().encode_lines
    for first, end in _stretches(trace):
        yield encode(list(map(_Row, *(_cells(trace, name, first, end) for name in _ROW_COLUMNS))))


def _csv(trace: Trace) -> Iterator[bytes]:
    """Comma-separated values under the names of the trace's columns."""
    _check_fits_csv(trace)
    names = ["arrival_ms", "input_tokens", "output_tokens", *(["block_ids"] if trace.has_prefix_ids else [])]
    names += [name for name in OPTIONAL if getattr(trace, name) is not None]
    yield (",".join(names) + "\n").encode()
    line = ",".join(["%s"] * len(names)) + "\n"
    for first, end in _stretches(trace):
        columns = [_csv_cells(name, _cells(trace, name, first, end)) for name in names]
        yield "".join(map(line.__mod__, zip(*columns, strict=True))).encode()


def _csv_cells(name: str, values: Iterable[Any]) -> Iterable[Any]:
    """What CSV shows of a column: block ids with spaces between, nothing for None, quotes where they are needed."""
    if name == "block_ids":
        return (str(ids)[1:-1].replace(",", "") for ids in values)
    if name == "request_id":
        return (f'"{text.replace(QUOTE, 2 * QUOTE)}"' if QUOTE in text or "," in text else text for text in values)
    return ("" if value is None else value for value in values) if name in OPTIONAL else values


def _check_fits_csv(trace: Trace) -> None:
    """Raises TraceError for a request id that would come back as another one, or not at all."""
    for row, name in enumerate(trace.request_id or ()):
        if name != name.strip() or not name or len(name.splitlines()) > 1 or "\0" in name:
            raise TraceError(
                f"trace {trace.name!r}, row {row} (the first is 0), field 'request_id': found {name[:40]!r}; CSV "
                "cannot hold an empty id, one with blanks around it, or a line end: write .arrow or .jsonl"
            )


def _cells(trace: Trace, name: str, first: int, end: int) -> Iterable[Any]:
    """A column of rows ``[first, end)`` as plain values; None where there is nothing."""
    if name == "block_ids":
        return _ids(trace, first, end)
    column = getattr(trace, name)
    if column is None:
        return repeat(None)
    if name == "request_id":
        return cast("tuple[str, ...]", column[first:end])
    values = column[first:end].tolist()
    if name == "session_id":
        return [None if one == NO_SESSION else one for one in values]
    if name == "delay_ms":
        return [None if one != one else _number(one) for one in values]
    return map(_number, values) if name == "arrival_ms" else cast("list[int]", values)


def _ids(trace: Trace, first: int, end: int) -> Iterator[list[int]]:
    begin = int(trace.block_offsets[first])
    ids = trace.block_ids[begin : int(trace.block_offsets[end])].tolist()
    bounds = (trace.block_offsets[first : end + 1] - begin).tolist()
    return (ids[start:stop] for start, stop in pairwise(bounds))


def _number(value: float) -> int | float:
    """Whole numbers without a fraction, others as the shortest text that means the same number."""
    return int(value) if value.is_integer() else value


_TEXTS: dict[str, Callable[[Trace], Iterator[bytes]]] = {"csv": _csv, "mooncake": _mooncake}
_WRITERS: dict[str, Callable[[Trace, Path, Path], None]] = {
    "arrow": _write_arrow,
    "parquet": _write_parquet,
    "csv": _write_as_text("csv"),
    "mooncake": _write_as_text("mooncake"),
}
