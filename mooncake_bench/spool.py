"""Columns too large for memory: they lie in temporary files, mapped, and a part of them is in memory at a time.

A small column is an ordinary array. The file of a large one has no name, so that it goes with the last array over it,
or with the process, however that ends. Work on long columns goes in :func:`parts`.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import IO, TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np

from mooncake_bench.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import DTypeLike, NDArray

LARGE_BYTES = 2**22  # of one column, from which it lies in a file
PART_ROWS = 2**18  # worked on at once

_maps: WeakSet[mmap.mmap] = WeakSet()


def parts(rows: int) -> Iterator[slice]:
    """Slices that cover so many rows; after each, mapped columns leave the memory again. One slice when it is short."""
    if rows <= PART_ROWS:
        yield slice(0, rows)
        return
    for start in range(0, rows, PART_ROWS):
        yield slice(start, min(start + PART_ROWS, rows))
        trim()


def trim() -> None:
    """Take mapped columns out of this process's memory; what is read again comes from the file (or its cache)."""
    if hasattr(mmap, "MADV_DONTNEED"):
        for mapped in list(_maps):
            mapped.madvise(mmap.MADV_DONTNEED)


def empty(rows: int, dtype: DTypeLike) -> NDArray[Any]:
    """A column to fill. Raises SetupError when there is no room for its file."""
    kind = np.dtype(dtype)
    if rows * kind.itemsize < LARGE_BYTES:
        return np.empty(rows, kind)
    with temporary_file() as stream:
        _reserve(stream, rows * kind.itemsize)
        return np.frombuffer(mapping(stream, writable=True), kind, rows)


def full(rows: int, value: float, dtype: DTypeLike) -> NDArray[Any]:
    """A column of one value."""
    column = empty(rows, dtype)
    for part in parts(rows):
        column[part] = value
    return column


class Growing:
    """A column whose length is not known beforehand."""

    def __init__(self, dtype: DTypeLike) -> None:
        self._kind = np.dtype(dtype)
        self._stream: IO[bytes] | None = None  # once it is large
        self._held: list[NDArray[Any]] = []
        self._held_rows = 0
        self.rows = 0

    def append(self, values: NDArray[Any]) -> None:
        """Values at its end; the array is not to change afterwards. Raises SetupError when there is no room."""
        self._held.append(values)
        self._held_rows += len(values)
        self.rows += len(values)
        if self._held_rows * self._kind.itemsize >= LARGE_BYTES:
            self._spill()

    def _spill(self) -> None:
        if self._stream is None:
            self._stream = temporary_file()
        try:
            for values in self._held:
                self._stream.write(np.ascontiguousarray(values, self._kind).data)
            self._stream.flush()
        except OSError as error:
            raise no_room(error) from None
        self._held.clear()
        self._held_rows = 0

    def column(self) -> NDArray[Any]:
        """All of it, read-only; nothing more can be appended."""
        if self._stream is None:
            whole = np.concatenate(self._held, dtype=self._kind) if self._held else np.empty(0, self._kind)
        else:
            self._spill()
            with self._stream as stream:
                whole = np.frombuffer(mapping(stream), self._kind)
        whole.flags.writeable = False
        return whole


def temporary_file() -> IO[bytes]:
    """A file without a name. Raises SetupError when none can be made."""
    try:
        return tempfile.TemporaryFile()
    except OSError as error:
        raise no_room(error) from None


def mapping(stream: IO[bytes], *, writable: bool = False) -> mmap.mmap:
    """A whole file in memory, known to :func:`trim`; it stays readable after the file is closed."""
    access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
    mapped = mmap.mmap(stream.fileno(), 0, access=access)
    _maps.add(mapped)
    return mapped


def _reserve(stream: IO[bytes], size: int) -> None:
    """Room on the disk, found out now: a mapped page without it would kill the process."""
    try:
        stream.truncate(size)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(stream.fileno(), 0, size)
    except OSError as error:
        raise no_room(error) from None


def no_room(error: OSError) -> SetupError:
    """What to tell when temporary data cannot be written."""
    folder = tempfile.gettempdir()
    return SetupError(
        f"temporary data cannot be kept in {folder!r}: {error.strerror or error}; name a folder with room in the "
        "environment variable TMPDIR"
    )
