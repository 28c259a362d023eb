"""A lock on an open file that the system gives back when its process ends, however it ends."""

from __future__ import annotations

import os


def take(handle: int) -> bool:
    """Take the lock of an open file if it is free; closing the file gives it back."""
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True
