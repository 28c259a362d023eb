"""Fetch a public trace: resume, verify, then move into place; nothing unverified is ever left under the trace's name.

A download grows in ``FILE.partial`` beside its place. Ctrl-C, a lost connection or a full disk leave that file, and the
next try asks the server for the rest (HTTP Range); a server that cannot do that sends all of it again. Once complete
it is hashed, and moved or removed. A lock keeps two processes from writing one partial file. Only the standard library
is used, proxies from the environment are honoured.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import dataclass
from http.client import HTTPException
from typing import IO, TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from mooncake_bench import filelock
from mooncake_bench.errors import SetupError, TraceError
from mooncake_bench.trace.public import CHUNK_BYTES, PublicTrace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Progress = Callable[[int, int | None], None]  # bytes there, of

LIMIT_BYTES = 2**30  # of a trace whose size is not known
TIMEOUT_S = 30.0
TRIES = 4  # connections that may break off after something has arrived
PAUSE_S = 0.5  # before asking again
WAIT_S = 0.1  # between looks at a lock that another process holds
NOT_SATISFIABLE = 416


@dataclass(frozen=True)
class Fetched:
    """A public trace that is there and right."""

    trace: PublicTrace
    path: Path
    downloaded: bool  # False: it was there already, nothing was asked of any server


def fetch(trace: PublicTrace, folder: Path, url_base: str | None = None, progress: Progress | None = None) -> Fetched:
    """The trace's file in ``folder``, downloaded unless it is there.

    ``url_base`` is the address of a mirror, a folder that holds the same file names. Raises SetupError for a trace
    that has no known hash, or a folder or address that cannot be used; TraceError, with how to place the file by
    hand, when the file cannot be had or is not the one expected.
    """
    target = folder / trace.file
    if not trace.pinned:
        raise SetupError(
            f"public trace {trace.name!r}: no hash of it is known, so a download could not be verified; get it from "
            f"{trace.url} yourself ({trace.licence}; {trace.format}) and give its path wherever a TRACE is asked for"
        )
    url = _address(trace, url_base)
    if _there(trace, target):
        return Fetched(trace, target, downloaded=False)
    with _folder(folder), _locked(target):
        if _there(trace, target):  # another process was quicker
            return Fetched(trace, target, downloaded=False)
        _Download(trace, url, target, progress).run()
    return Fetched(trace, target, downloaded=True)


def partial_path(target: Path) -> Path:
    """Where a download grows until it is complete."""
    return target.with_name(f"{target.name}.partial")


def _address(trace: PublicTrace, url_base: str | None) -> str:
    url = trace.url if url_base is None else f"{url_base.rstrip('/')}/{quote(trace.file)}"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not url.isascii() or re.search(r"[\s\x00-\x1f\x7f]", url):
        raise SetupError(f"--url-base {url_base!r}: expected an address that begins with http:// or https://")
    return url


def _there(trace: PublicTrace, target: Path) -> bool:
    """Whether the right file is in its place. Raises TraceError where another one is."""
    try:
        if not os.path.lexists(target):
            return False
        fault = "it is not a file" if not target.is_file() else trace.fault(target)
    except OSError as error:
        raise TraceError(f"{str(target)!r} cannot be read: {error.strerror}") from None
    if fault is not None:
        raise TraceError(
            f"{str(target)!r} is not the public trace {trace.name!r}: {fault}; move it away and fetch again"
        )
    return True


@contextlib.contextmanager
def _folder(folder: Path) -> Iterator[None]:
    """The folder, made if need be; what the system refuses there becomes one line."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        where = error.filename or str(folder)
        raise SetupError(
            f"{str(where)!r} cannot be written: {error.strerror or error}; choose another folder with --cache-dir"
        ) from None


# ---- one process at a time


@contextlib.contextmanager
def _locked(target: Path) -> Iterator[None]:
    """Wait for, and hold, the lock of a file; it is an empty file beside it, removed in the end."""
    path = target.with_name(f".{target.name}.lock")
    while True:
        handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
        try:
            if filelock.take(handle) and _same_file(handle, path):
                break
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
        time.sleep(WAIT_S)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # some systems keep open files
            path.unlink()
        os.close(handle)


def _same_file(handle: int, path: Path) -> bool:
    """Whether the locked file still has its name: its last holder has removed it otherwise."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


# ---- the download


class _SafeRedirects(HTTPRedirectHandler):
    """Follows redirects to http and https only, and never from https to http."""

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request | None:
        new = urlsplit(newurl).scheme
        if new != "https" and new != urlsplit(req.full_url).scheme:
            raise URLError(f"it redirects to a {new or 'nameless'} address")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Download:
    """One trace on its way."""

    def __init__(self, trace: PublicTrace, url: str, target: Path, progress: Progress | None) -> None:
        self.trace, self.url, self.target = trace, url, target
        self.partial = partial_path(target)
        self.progress = progress or (lambda done, total: None)
        self.limit = trace.bytes if trace.bytes is not None else LIMIT_BYTES

    def run(self) -> None:
        """Get what is missing, verify, move into place; start anew once if a resumed file is not the right one."""
        resumed = self._size() > 0
        if not (resumed and self._size() == self.trace.bytes):
            self._receive()
        fault = self.trace.fault(self.partial)
        if fault is not None and resumed:
            self.partial.unlink()
            self._receive()
            fault = self.trace.fault(self.partial)
        if fault is not None:
            self.partial.unlink()
            raise self._error(f"the file from {self.url} is not the right one ({fault}); it was removed")
        self.partial.replace(self.target)

    def _size(self) -> int:
        return self.partial.stat().st_size if self.partial.is_file() else 0

    def _receive(self) -> None:
        """Connect until everything has arrived, as long as each connection brings something."""
        for left in reversed(range(TRIES)):
            before = self._size()
            total = self._connect(before)
            have = self._size()
            if total is not None and have >= total:
                return
            if total is None and have > before:  # the server did not say how much there is; the hash decides
                return
            if not left or have <= before:
                break
            time.sleep(PAUSE_S)
        there = f"{have:,} of {total:,} bytes" if total else f"{have:,} bytes"
        raise self._error(f"{self.url} broke off after {there}; run the same again to continue from there")

    def _connect(self, start: int) -> int | None:
        """One connection, from byte ``start`` on; returns how many bytes the whole file has, if that is known."""
        if start > self.limit:
            start = 0
        headers = {"User-Agent": "mooncake-bench", "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        try:
            response = build_opener(_SafeRedirects).open(Request(self.url, headers=headers), timeout=TIMEOUT_S)
        except HTTPError as error:
            error.close()
            if error.code == NOT_SATISFIABLE and start:
                return self._from_scratch()
            raise self._error(f"{self.url} answers {error.code} {error.reason}") from None
        except (URLError, OSError, HTTPException) as error:
            raise self._error(f"{self.url} cannot be reached ({_reason(error)})") from None
        with response:
            return self._store(response, start)

    def _from_scratch(self) -> int | None:
        """The server knows no byte after the partial file's last: it is complete, or not the same file."""
        if self.trace.fault(self.partial) is None:
            return self._size()
        self.partial.unlink()
        return self._connect(0)

    def _store(self, response: Any, start: int) -> int | None:
        """Write the answer's body to the partial file, after the ``start`` bytes there if the server resumes."""
        if start and _resumes_at(response) != start:
            start = 0
        length = response.headers.get("Content-Length", "")
        total = start + int(length) if length.isdecimal() else None
        if total is not None and total > self.limit:
            raise self._error(f"{self.url} has {total:,} bytes; expected {self._most()}")
        with self.partial.open("r+b" if start else "wb") as stream:
            stream.seek(start)
            stream.truncate()
            self._copy(response, stream, total if total is not None else self.trace.bytes)
        return total if total is not None else self.trace.bytes

    def _copy(self, response: Any, stream: IO[bytes], total: int | None) -> None:
        done = stream.tell()
        self.progress(done, total)
        while part := _read(response):
            done += len(part)
            if done > self.limit:
                stream.close()
                self.partial.unlink()
                raise self._error(f"{self.url} sends more than {self._most()}; what had come was removed")
            stream.write(part)
            self.progress(done, total)

    def _most(self) -> str:
        at_most = "" if self.trace.bytes is not None else "at most "
        return f"{at_most}{self.limit:,} bytes"

    def _error(self, what: str) -> TraceError:
        """One line: what happened, and how to do without the network."""
        return TraceError(
            f"public trace {self.trace.name!r}: {what}; or put the file at {self.target} by hand "
            f"({self.trace.expected}) and fetch again"
        )


def _resumes_at(response: Any) -> int | None:
    """The first byte of a partial answer, or None where the server sends the whole file."""
    found = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", "")) if response.status == 206 else None
    return int(found[1]) if found else None


def _read(response: Any) -> bytes:
    """The next piece of a body; a connection that breaks ends it."""
    try:
        part: bytes = response.read1(CHUNK_BYTES)
    except (OSError, HTTPException):
        return b""
    return part


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    return str(getattr(reason, "strerror", None) or reason or type(error).__name__)
