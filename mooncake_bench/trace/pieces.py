"""A text file as pieces of whole lines: opened, decompressed, hashed and checked for UTF-8 as it is read.

Plain files may have any size. A compressed one is refused when it expands to more than MAX_EXPANDED_BYTES, or to more
than MAX_RATIO times its own size once RATIO_FROM_BYTES are out: a few bytes must not fill a disk.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import zlib
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np

from mooncake_bench.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mooncake_bench.trace.model import Ints

PIECE_BYTES = 2**24
MAX_LINE_BYTES = 2**26
MAX_EXPANDED_BYTES = 2**36
MAX_RATIO = 200
RATIO_FROM_BYTES = 2**28
FIRST_READ_BYTES = 2**16
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_BLANK_LINE = re.compile(rb"\n[ \t\r\v\f]*\n")


@dataclass(frozen=True)
class Piece:
    """Whole lines of a text."""

    text: bytes
    first_line: int  # the number of its first line, from 1


class HashedFile:
    """A file that is read once, from its beginning to its end, and hashed on the way."""

    def __init__(self, path: Path, label: str) -> None:
        self.label = label
        self.count = 0  # bytes read
        self._digest = hashlib.sha256()
        self._stream: Any
        try:
            self._stream = path.open("rb")
            self.start = bytes(self._stream.peek(FIRST_READ_BYTES)[:FIRST_READ_BYTES])
        except OSError as error:
            raise TraceError(f"trace {label!r} cannot be read: {error.strerror}") from None

    def read(self, size: int = -1) -> bytes:
        """The next bytes. Raises TraceError where the file cannot be read."""
        try:
            data = bytes(self._stream.read(size))
        except OSError as error:
            raise TraceError(f"trace {self.label!r} cannot be read: {error.strerror}") from None
        self.count += len(data)
        self._digest.update(data)
        return data

    def sha256(self) -> str:
        """The hash of the whole file; what was not read yet is read."""
        while self.read(PIECE_BYTES):
            pass
        return self._digest.hexdigest()

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


class _Lent:
    """A file that whoever borrows it does not close."""

    closed = False

    def __init__(self, file: HashedFile) -> None:
        self.read = file.read

    def close(self) -> None:
        self.closed = True


def lines(text: bytes, first: int = 1) -> Iterator[tuple[int, bytes]]:
    """Line numbers and the lines that are not blank."""
    for number, line in enumerate(text.split(b"\n"), start=first):
        if line.strip():
            yield number, line


def line_numbers(piece: Piece, count: int) -> int | Ints | None:
    """Where each of ``count`` rows stands: the first one's line when they are consecutive.

    None when they do not stand on as many lines.
    """
    text = piece.text
    if not text[:1].isspace() and not _BLANK_LINE.search(text):
        return piece.first_line if count == text.count(b"\n") + (not text.endswith(b"\n")) else None
    numbers = [number for number, _ in lines(text, piece.first_line)]
    return np.array(numbers, np.int64) if len(numbers) == count else None


def pieces(file: HashedFile) -> Iterator[Piece]:
    """The text of a file in pieces of about PIECE_BYTES that hold something but blanks.

    Raises TraceError for what is damaged, no UTF-8, or beyond a limit.
    """
    line, rest = 1, b""
    for data in _expanded(file):
        cut = data.rfind(b"\n") + 1
        if not cut:
            rest += data
            _check_line(rest, line, file.label)
            continue
        text = rest + data[:cut] if rest else data[:cut] if cut < len(data) else data
        rest = data[cut:]
        yield from _piece(text, line)
        line += text.count(b"\n")
    yield from _piece(rest, line)


def of_bytes(text: bytes) -> Iterator[Piece]:
    """A text that is in memory already, as one piece."""
    return _piece(text, 1)


def _piece(text: bytes, line: int) -> Iterator[Piece]:
    if line == 1:
        text = text.removeprefix(BYTE_ORDER_MARK)
    if text and not text.isspace():
        yield Piece(text, line)


def _expanded(file: HashedFile) -> Iterator[bytes]:
    if file.start.startswith(GZIP_MAGIC):
        return _limited(file, _gunzipped(file))
    if file.start.startswith(ZSTD_MAGIC):
        return _limited(file, _unzstd(file))
    return iter(lambda: file.read(PIECE_BYTES), b"")


def _gunzipped(file: HashedFile) -> Iterator[bytes]:
    try:
        with gzip.GzipFile(fileobj=cast("IO[bytes]", file), mode="rb") as stream:
            yield from iter(lambda: stream.read(PIECE_BYTES), b"")
    except EOFError:
        raise _truncated("gzip", file) from None
    except (OSError, zlib.error) as error:
        raise _damaged("gzip", file, error) from None


def _unzstd(file: HashedFile) -> Iterator[bytes]:
    import pyarrow as pa

    try:
        with pa.CompressedInputStream(pa.PythonFile(_Lent(file), mode="r"), "zstd") as stream:
            yield from iter(lambda: bytes(stream.read(PIECE_BYTES)), b"")
    except (OSError, pa.ArrowException) as error:
        if "runcated" in str(error):
            raise _truncated("zstd", file) from None
        raise _damaged("zstd", file, error) from None


def _truncated(kind: str, file: HashedFile) -> TraceError:
    return TraceError(f"{file.label}: the {kind} file is truncated ({file.count:,} bytes); fetch or copy it again")


def _damaged(kind: str, file: HashedFile, error: Exception) -> TraceError:
    reason = " ".join(str(error).split())[:200]
    return TraceError(f"{file.label}: the {kind} file is damaged ({reason}); fetch or copy it again")


def _limited(file: HashedFile, parts: Iterator[bytes]) -> Iterator[bytes]:
    """The parts of an expanded file, until they are beyond a limit."""
    size = 0
    for data in parts:
        size += len(data)
        if size > MAX_EXPANDED_BYTES:
            limit = f"{MAX_EXPANDED_BYTES:,} bytes, the limit for a compressed trace file"
            raise TraceError(f"{file.label}: expands to more than {limit}; expand it yourself to read it")
        if size > RATIO_FROM_BYTES and size > MAX_RATIO * file.count:
            raise TraceError(
                f"{file.label}: expands to more than {MAX_RATIO} times its size ({file.count:,} bytes gave {size:,}), "
                "the limit for a compressed trace file; expand it yourself if it is what you want to read"
            )
        yield data


def _check_line(text: bytes, line: int, label: str) -> None:
    if len(text) > MAX_LINE_BYTES:
        raise TraceError(
            f"{label}, line {line}: found a line of more than {MAX_LINE_BYTES:,} bytes, the limit for one request"
        )


def check_utf8(piece: Piece, label: str) -> Piece:
    """The piece, which is valid UTF-8. Raises TraceError for the first byte that is not."""
    text = piece.text
    if text.isascii():
        return piece
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        line = piece.first_line + text.count(b"\n", 0, error.start)
        found = f"byte 0x{text[error.start]:02x}, which is not UTF-8"
        raise TraceError(f"{label}, line {line}: found {found}; expected UTF-8 text") from None
    return piece
