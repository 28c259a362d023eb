"""From a path or a bundled name to a trace."""

from __future__ import annotations

from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from mooncake_bench.errors import TraceError, nearest
from mooncake_bench.paths import bundled
from mooncake_bench.trace.formats import Reading, Source, all_formats
from mooncake_bench.trace.formats._mapping import parse_columns
from mooncake_bench.trace.pieces import GZIP_MAGIC, ZSTD_MAGIC, HashedFile

if TYPE_CHECKING:
    from mooncake_bench.trace.formats import Format
    from mooncake_bench.trace.model import Trace

MAX_NEIGHBOURS = 1_000  # files of a folder looked at for a name that was meant
ARROW_MAGIC = b"ARROW1"
PARQUET_MAGIC = b"PAR1"
FAILURES = ("exclude", "error")
LIST_HINT = "list the bundled traces with: mooncake-bench traces list"
FOREIGN = {  # first bytes of what is no trace -> what it is, and what to do
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"\xfd7zXZ\x00": "an xz file; unpack it first (gzip and zstd are read as they are)",
    b"BZh": "a bzip2 file; unpack it first (gzip and zstd are read as they are)",
    b"version https://git-lfs": "a pointer of git LFS instead of the file; fetch the file itself (git lfs pull)",
    b"<!DOCTYPE": "a web page; download the file itself",
    b"<html": "a web page; download the file itself",
    GZIP_MAGIC: "a gzip file inside another; expand it once",
    ZSTD_MAGIC: "a zstd file inside another; expand it once",
}
TAR_MARK = slice(257, 262), b"ustar"


def load(
    path_or_name: str | Path,
    block_tokens: int | None = None,
    timestamp_unit: str = "auto",
    columns: str | None = None,
    failures: str = "exclude",
) -> Trace:
    """The trace in a file (any known format, recognised by content) or of a bundled name.

    ``block_tokens`` None takes the format's own block size; ``timestamp_unit`` is ``auto``, ``s``, ``ms``, ``us`` or
    ``ns``. ``columns`` names those of a plain CSV, JSONL or parquet file, such as
    ``arrival=ts,input=prompt_len,output=gen_len``; ``failures`` says what becomes of requests that failed where the
    trace was taken: ``exclude`` or ``error``. Raises TraceError, one line, for anything that cannot be read as it
    stands, and for an option without effect.
    """
    if failures not in FAILURES:
        raise TraceError(f"failures {failures!r} is not one of {', '.join(FAILURES)}{nearest(failures, FAILURES)}")
    reading = Reading(block_tokens, parse_columns(columns or ""), failures)
    path = find(path_or_name)
    file = HashedFile(path, str(path))
    try:
        if file.start.startswith(ARROW_MAGIC):
            return _load_arrow(path_or_name, path, file, reading, timestamp_unit)
        return _load_foreign(path, file, reading, timestamp_unit)
    finally:
        file.close()


def _load_arrow(
    path_or_name: str | Path, path: Path, file: HashedFile, reading: Reading, timestamp_unit: str
) -> Trace:  # fmt: skip
    from mooncake_bench.trace.store import read_arrow

    label = f"bundled trace {str(path_or_name)!r}" if str(path_or_name) in bundled_names() else str(path)
    _refuse_idle(label, "an Arrow trace of this tool", frozenset(), reading)
    source = path if path.is_file() else file.read()
    return read_arrow(source, label, reading.block_tokens, timestamp_unit)


def _load_foreign(path: Path, file: HashedFile, reading: Reading, timestamp_unit: str) -> Trace:
    from mooncake_bench.trace.schema import finish

    source = _source(path, file, reading)
    if source.empty:
        raise TraceError(f"{source.label}: found an empty file; expected at least one request")
    kind = _recognised(source)
    _refuse_idle(source.label, kind.DESCRIPTION, getattr(kind, "OPTIONS", frozenset()), reading)
    return finish(kind.read(source), _name(path), reading.block_tokens, timestamp_unit)


def _source(path: Path, file: HashedFile, reading: Reading) -> Source:
    """The file as a format reads it: a text piece by piece, a parquet file by its path."""
    if file.start.startswith(PARQUET_MAGIC) and path.is_file():
        facts = {"source": path.name, "source_sha256": file.sha256()}
        return Source(str(path), PARQUET_MAGIC, facts, reading, path)
    return Source(str(path), file, {"source": path.name}, reading)


def _recognised(source: Source) -> Format:
    """The format of a text; with ``--column`` one of the plain formats. Raises TraceError when there is none."""
    head, formats = source.head, list(all_formats())
    if source.reading.columns:
        text = "plain-jsonl" if head.lstrip()[:1] == b"{" else "plain-csv"
        name = "parquet" if head.startswith(PARQUET_MAGIC) else text
        return next(kind for kind in formats if name == kind.NAME)
    for kind in formats:
        if kind.recognises(head):
            return kind
    raise _unknown(source, formats)


def _unknown(source: Source, formats: list[Format]) -> TraceError:
    head, line = source.head, source.head_line
    what = next((text for magic, text in FOREIGN.items() if head.startswith(magic)), None)
    if head[TAR_MARK[0]] == TAR_MARK[1]:
        what = "a tar archive; unpack it first"
    if what is not None:
        return TraceError(f"{source.label}: found {what}")
    next(source.pieces())  # that it is text
    known = ", ".join(kind.DESCRIPTION.partition(":")[0] for kind in formats)
    return TraceError(
        f"{source.label}, line {line}: found {_first_line(head)}; expected an Arrow trace of this tool, or {known}"
        f"{_header_hint(head)}{_renames(head)}; for other column names: --column arrival=NAME,input=NAME,output=NAME"
    )


def _refuse_idle(label: str, kind: str, effective: frozenset[str], reading: Reading) -> None:
    """Raises TraceError for an option that has no effect on files of a format."""
    if reading.columns and "columns" not in effective:
        raise TraceError(f"{label}: --column has no effect on {kind}; leave the option out")
    if reading.failures != "exclude" and "failures" not in effective:
        raise TraceError(f"{label}: --failures has no effect on {kind}: it marks none; leave the option out")


def bundled_names() -> list[str]:
    """Names of the traces that ship with the package."""
    try:
        return sorted(path.stem for path in bundled("traces").glob("*.arrow"))
    except FileNotFoundError:
        return []


def find(path_or_name: str | Path) -> Path:
    """The file meant by a path or a bundled name. Raises TraceError with the nearest name when there is none."""
    name, names = str(path_or_name), bundled_names()
    if name in names:
        return bundled("traces") / f"{name}.arrow"
    if not name:
        raise TraceError(f"the name of the trace is empty; expected a file or one of {', '.join(names)}")
    path = Path(path_or_name)
    try:
        return _existing(path, name, names)
    except (OSError, ValueError) as error:  # a name that is too long, or holds a null byte
        raise TraceError(f"trace {name[:200]!r} cannot be read: {error}") from None


def _existing(path: Path, name: str, names: list[str]) -> Path:
    if path.is_dir():
        raise TraceError(f"trace {name!r} is a directory; expected a file or one of {', '.join(names)}")
    if not path.exists():
        if path.is_symlink():
            raise TraceError(f"trace {name!r} is a symbolic link to nothing, {str(path.readlink())!r}; expected a file")
        hint = nearest(name, names) or _nearest_file(path)
        raise TraceError(f"trace {name!r}: no such file, and no bundled trace of that name{hint}; {LIST_HINT}")
    if not (path.is_file() or path.is_fifo()):
        raise TraceError(f"trace {name!r} is a device; expected a file")
    return path


def _nearest_file(path: Path) -> str:
    """A hint that names a file of the same folder, with the folder."""
    beside = [item.name for item in islice(path.parent.iterdir(), MAX_NEIGHBOURS)] if path.parent.is_dir() else []
    match = get_close_matches(path.name, beside, n=1)
    return f"; did you mean {str(path.parent / match[0])!r}?" if match else ""


def _header_hint(head: bytes) -> str:
    """What to change in a first line that is no header of a CSV file."""
    first = head.strip().split(b"\n", 1)[0].strip()
    if b"\r" in first:
        return "; its lines end in CR alone where LF or CRLF should be"
    for mark, word in ((b";", "semicolons"), (b"\t", "tabs")):
        if mark in first and b"," not in first:
            return f"; its fields are separated by {word} where commas should be"
    numbers = first.count(b",") and not first.translate(None, b'0123456789.,:+-TZ "')
    return "; its first line must name the columns" if numbers else ""


def _renames(head: bytes) -> str:
    """A hint that says which keys of a first line in JSON to rename, when none has the name it should have."""
    from mooncake_bench.trace.formats._jsonl import first_row
    from mooncake_bench.trace.formats.mooncake import FIELDS

    row = first_row(head)
    if not row:
        return ""
    renames = [
        f"{key!r} to {field!r}"
        for field in FIELDS.required
        for key in row
        if _plain(key) in map(_plain, (field, *FIELDS.other_names[field]))
    ]
    missing = ", ".join(FIELDS.required)
    return f"; rename {', '.join(renames)}" if renames else f"; its keys have other names: expected {missing}"


def _plain(key: str) -> str:
    return "".join(filter(str.isalnum, key)).lower()


def _name(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".zst").rsplit(".", 1)[0] or path.name


def _first_line(text: bytes) -> str:
    first = text.strip().split(b"\n", 1)[0].decode("utf-8", "replace").strip()
    return repr(first if len(first) <= 60 else first[:60] + "…")
