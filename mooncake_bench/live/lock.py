"""One process at a time: a lock that ends with its holder wherever the system has such locks."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STALE_S = 20.0
"""A lock file this old is left over: its holder only reads and writes one small file."""
PAUSE_S = 0.02


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Inside, no other process is inside for a ``path`` in the same folder, which exists. Raises OSError.

    The folder itself is locked, so that no file is left behind; where that cannot be (Windows, some network file
    systems), a file beside ``path`` stands for the lock.
    """
    handle = _locked_folder(path.parent)
    if handle is None:
        with _lock_file(path.with_name(f"{path.name}.lock")):
            yield
        return
    try:
        yield
    finally:
        os.close(handle)


def _locked_folder(folder: Path) -> int | None:
    """An open folder that this process has locked until it is closed; None where that cannot be."""
    try:
        import fcntl
    except ImportError:
        return None
    locks: Any = fcntl  # its functions are not there on every system that types are checked for
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        locks.flock(handle, locks.LOCK_EX)
    except BaseException as error:  # Ctrl-C while waiting among them
        os.close(handle)
        if isinstance(error, OSError):
            return None
        raise
    return handle


@contextlib.contextmanager
def _lock_file(path: Path) -> Iterator[None]:
    """Make ``path``, waiting while another has it."""
    while True:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            break
        except FileExistsError:
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > STALE_S:
                    path.unlink()
            time.sleep(PAUSE_S)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
