"""From a path or a bundled name to a trace."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import zlib
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING

from mooncake_bench.errors import TraceError, nearest
from mooncake_bench.paths import bundled
from mooncake_bench.trace.formats import Source, all_formats

if TYPE_CHECKING:
    from mooncake_bench.trace.model import Trace

MAX_BYTES = 2**30  # of a file, decompressed: a larger one is refused rather than filling the memory
CHUNK_BYTES = 2**22
MAX_NEIGHBOURS = 1_000  # files of a folder looked at for a name that was meant
ARROW_MAGIC = b"ARROW1"
GZIP_MAGIC = b"\x1f\x8b"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
LIST_HINT = "list the bundled traces with: mooncake-bench traces list"


def load(path_or_name: str | Path, block_tokens: int | None = None, timestamp_unit: str = "auto") -> Trace:
    """The trace in a file (any known format, recognised by content) or of a bundled name.

    ``block_tokens`` None takes the format's own block size; ``timestamp_unit`` is ``auto``, ``s``, ``ms``, ``us`` or
    ``ns``. Raises TraceError, one line, for anything that cannot be read as it stands.
    """
    path = find(path_or_name)
    data = _bytes(path)
    if data.startswith(ARROW_MAGIC):
        from mooncake_bench.trace.store import read_arrow

        label = f"bundled trace {str(path_or_name)!r}" if str(path_or_name) in bundled_names() else str(path)
        return read_arrow(data, label, block_tokens, timestamp_unit)
    return _load_text(path, data, block_tokens, timestamp_unit)


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
    path = Path(path_or_name)
    try:
        return _existing(path, name, names)
    except (OSError, ValueError) as error:  # a name that is too long, or holds a null byte
        raise TraceError(f"trace {name[:200]!r} cannot be read: {error}") from None


def _existing(path: Path, name: str, names: list[str]) -> Path:
    if path.is_dir():
        raise TraceError(f"trace {name!r} is a directory; expected a file or one of {', '.join(names)}")
    if not path.exists():
        beside = [item.name for item in islice(path.parent.iterdir(), MAX_NEIGHBOURS)] if path.parent.is_dir() else []
        hint = nearest(name, names) or nearest(path.name, beside)
        raise TraceError(f"trace {name!r}: no such file, and no bundled trace of that name{hint}; {LIST_HINT}")
    if not (path.is_file() or path.is_fifo()):
        raise TraceError(f"trace {name!r} is a device; expected a file")
    return path


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            data = _at_most(stream, MAX_BYTES + 1)
    except OSError as error:
        raise TraceError(f"trace {str(path)!r} cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise TraceError(f"trace {str(path)!r} has more than {MAX_BYTES:,} bytes, the limit for one trace file")
    return data


def _at_most(stream: IO[bytes] | gzip.GzipFile, limit: int) -> bytes:
    """All bytes of a stream, or the first ones once there are ``limit``; memory grows with what is there."""
    parts, size = [], 0
    while size < limit and (part := stream.read(CHUNK_BYTES)):
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _load_text(path: Path, data: bytes, block_tokens: int | None, timestamp_unit: str) -> Trace:
    from mooncake_bench.trace.schema import finish

    label = str(path)
    facts = {"source": path.name, "source_sha256": hashlib.sha256(data).hexdigest()}
    text = _gunzipped(data, label) if data.startswith(GZIP_MAGIC) else data
    source = Source(label, _checked_text(text.removeprefix(BYTE_ORDER_MARK), label), facts)
    for kind in all_formats():
        if kind.recognises(source.head):
            return finish(kind.read(source), _name(path), block_tokens, timestamp_unit)
    known = "; ".join(kind.DESCRIPTION for kind in all_formats())
    raise TraceError(
        f"{label}, line 1: found {_first_line(text)}; expected an Arrow trace of this tool, or {known}{_renames(text)}"
    )


def _renames(text: bytes) -> str:
    """A hint that says which keys of a first line in JSON to rename, when none has the name it should have."""
    from mooncake_bench.trace.formats.mooncake import FIELDS

    try:
        row = json.loads(text.strip().split(b"\n", 1)[0])
    except ValueError:
        return ""
    if not isinstance(row, dict):
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
    return path.name.removesuffix(".gz").rsplit(".", 1)[0] or path.name


def _gunzipped(data: bytes, label: str) -> bytes:
    """The text of a gzip file; refused when truncated, damaged, or larger than MAX_BYTES."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            text = _at_most(stream, MAX_BYTES + 1)
    except EOFError:
        raise TraceError(f"{label}: the gzip file is truncated ({len(data):,} bytes); fetch or copy it again") from None
    except (OSError, zlib.error) as error:
        raise TraceError(f"{label}: the gzip file is damaged ({error}); fetch or copy it again") from None
    if len(text) > MAX_BYTES:
        raise TraceError(f"{label}: expands to more than {MAX_BYTES:,} bytes, the limit for one trace file")
    return text


def _checked_text(text: bytes, label: str) -> bytes:
    if not text.strip():
        raise TraceError(f"{label}: found an empty file; expected at least one request")
    if not text.isascii():
        try:
            text.decode("utf-8")
        except UnicodeDecodeError as error:
            line = text.count(b"\n", 0, error.start) + 1
            found = f"byte 0x{text[error.start]:02x}, which is not UTF-8"
            raise TraceError(f"{label}, line {line}: found {found}; expected UTF-8 text") from None
    return text


def _first_line(text: bytes) -> str:
    first = text.strip().split(b"\n", 1)[0].decode("utf-8", "replace").strip()
    return repr(first if len(first) <= 60 else first[:60] + "…")
