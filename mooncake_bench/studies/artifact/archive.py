"""Archives: written so that the same content is the same bytes, and read so that nothing gets out of its folder.

An archive comes from somebody else. Before a byte of it is stored, each name must be a plain relative path below one
folder; links, devices and a second file of a name are refused, and so is more than so many files or bytes, whether a
header says so or the data do.
"""

from __future__ import annotations

import gzip
import shutil
import stat
import tarfile
import zipfile
import zlib
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any

from mooncake_bench.errors import ResultError
from mooncake_bench.outfile import writing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = "mooncake-bench-artifact"
ENDINGS = (".tar.gz", ".tgz", ".zip")
MOST_FILES = 10_000
LONGEST_NAME = 240
PIECE = 1 << 20
OVERHEAD = 64 << 20  # of headers, in a tar file
GZIP, ZIP = b"\x1f\x8b", b"PK\x03\x04"
DAMAGED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    zlib.error,
    EOFError,
    RuntimeError,
    NotImplementedError,
)


# ---- writing


def write(path: Path, files: Mapping[str, bytes | Path], *, force: bool) -> None:
    """All files, by name, sorted, with no times or owners. Raises ResultError where the archive cannot be written."""
    with writing(path, force=force, label=f"-o {path}", error=ResultError) as unnamed:
        (_write_zip if path.name.endswith(".zip") else _write_tar)(unnamed, files)


def _write_tar(path: Path, files: Mapping[str, bytes | Path]) -> None:
    with (
        path.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name in sorted(files):
            info = tarfile.TarInfo(f"{ROOT}/{name}")
            info.size, info.mode = _size(files[name]), 0o644  # time, owner and group are 0
            with _opened(files[name]) as content:
                tar.addfile(info, content)


def _write_zip(path: Path, files: Mapping[str, bytes | Path]) -> None:
    with zipfile.ZipFile(path, "w") as packed:
        for name in sorted(files):
            info = zipfile.ZipInfo(f"{ROOT}/{name}", (1980, 1, 1, 0, 0, 0))
            info.compress_type, info.create_system = zipfile.ZIP_DEFLATED, 3
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            info.file_size = _size(files[name])
            with _opened(files[name]) as content, packed.open(info, "w") as target:
                shutil.copyfileobj(content, target, PIECE)


def _size(content: bytes | Path) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size


@contextmanager
def _opened(content: bytes | Path) -> Iterator[IO[bytes]]:
    import io

    with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as stream:
        yield stream


# ---- reading


def unpack(path: Path, folder: Path, most_bytes: int) -> None:
    """Store an archive's files in ``folder``, without the folder that they lie in there.

    Raises ResultError for what is no archive, is damaged, or holds what it must not.
    """
    try:
        with path.open("rb") as file:
            start = file.read(4)
        if not start.startswith((GZIP, ZIP)):
            raise ResultError(f"{str(path)!r} is no artifact: expected a .tar.gz or .zip that `artifact pack` wrote")
        with _members(path, most_bytes, zipped=start.startswith(ZIP)) as members:
            _store_all(str(path), members, folder, most_bytes)
    except DAMAGED as error:
        raise ResultError(f"{str(path)!r} is damaged: {error or type(error).__name__}; fetch it again") from None
    except OSError as error:
        raise ResultError(f"{str(path)!r} cannot be unpacked: {error.strerror or error}") from None


class _Member:
    """One entry of either kind of archive."""

    def __init__(self, name: str, size: int, what: str, open_it: Any) -> None:
        self.name, self.size, self.what = name, size, what  # what: file, folder, or what it must not be
        self.open = open_it


class _Limited:
    """A stream that gives no more than so many bytes, whatever they are for."""

    def __init__(self, stream: gzip.GzipFile, where: str, most_bytes: int) -> None:
        self._stream, self._where, self._most = stream, where, most_bytes
        self._left = most_bytes + OVERHEAD

    def read(self, size: int = -1) -> bytes:
        piece = self._stream.read(size)
        self._left -= len(piece)
        if self._left < 0:
            raise _too_large(self._where, self._most)
        return piece


@contextmanager
def _members(path: Path, most_bytes: int, *, zipped: bool) -> Iterator[Iterator[_Member]]:
    if zipped:
        with zipfile.ZipFile(path) as packed:
            yield (_zip_member(packed, info) for info in packed.infolist())
        return
    with gzip.open(path) as unpacked:
        stream: Any = _Limited(unpacked, str(path), most_bytes)
        with tarfile.open(fileobj=stream, mode="r|") as tar:
            yield (_Member(info.name, info.size, _tar_kind(info), partial(tar.extractfile, info)) for info in tar)


def _tar_kind(info: tarfile.TarInfo) -> str:
    if info.issym() or info.islnk():
        return "link"
    return "file" if info.isreg() else "folder" if info.isdir() else "device"


def _zip_member(packed: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Member:
    kind = stat.S_IFMT(info.external_attr >> 16)
    what = "folder" if info.is_dir() else "file" if kind in (0, stat.S_IFREG) else "link"
    return _Member(info.orig_filename, info.file_size, what, lambda: packed.open(info))


def _store_all(where: str, members: Iterator[_Member], folder: Path, most_bytes: int) -> None:
    seen: set[str] = set()
    left = most_bytes
    for member in members:
        name = _checked(where, member)
        if member.what == "folder":
            continue
        if name in seen:
            raise ResultError(f"{where} holds {member.name!r} twice; it is not to be trusted")
        seen.add(name)
        if len(seen) > MOST_FILES:
            raise ResultError(f"{where} holds more than {MOST_FILES:,} files; it is not to be trusted")
        left -= _store(where, member, folder / name, left, most_bytes)
    if not seen:
        raise ResultError(f"{where} is no artifact: it holds no files")


def _checked(where: str, member: _Member) -> str:
    """The path of a member below the one folder that all lie in. Raises ResultError for any other."""
    name, shown = member.name, f"{where} holds {member.name[:LONGEST_NAME]!r}"
    if member.what not in ("file", "folder"):
        raise ResultError(f"{shown}, which is a {member.what}; an artifact holds files only: it is not to be trusted")
    parts = PurePosixPath(name).parts
    if not is_plain(name):
        raise ResultError(f"{shown}, a name that could lead out of its folder: it is not to be trusted")
    if parts[0] != ROOT or (len(parts) == 1 and member.what == "file"):
        raise ResultError(f"{shown}: expected everything below {ROOT}/; it is no artifact")
    return "/".join(parts[1:])


def is_plain(name: str) -> bool:
    """Whether a name is a relative path that stays below where it starts, on any system."""
    parts = PurePosixPath(name).parts
    spelled = name.isprintable() and not any(letter in name for letter in "\\:") and len(name) <= LONGEST_NAME
    return spelled and bool(parts) and not name.startswith("/") and ".." not in parts


def _too_large(where: str, most_bytes: int) -> ResultError:
    return ResultError(
        f"{where} unpacks to more than {most_bytes / 1e9:g} GB, the most that is read; if you trust it, use --max-size"
    )


def _store(where: str, member: _Member, target: Path, left: int, most_bytes: int) -> int:
    """Copy one file, as long as there is room; returns its size."""
    too_large = ResultError(
        f"{where} unpacks to more than {most_bytes / 1e9:g} GB, the most that is read; "
        "if you trust it, raise --max-size"
    )
    if member.size > left:
        raise too_large
    target.parent.mkdir(parents=True, exist_ok=True)
    size = 0
    with member.open() as content, target.open("xb") as out:
        while piece := content.read(PIECE):
            size += len(piece)
            if size > left:  # more than its header says
                raise _too_large(where, most_bytes)
            out.write(piece)
    return size
