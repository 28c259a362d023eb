"""Ctrl-C that cannot get lost: a library that is being imported may swallow the exception, the note stays."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_requested = False


def install() -> None:
    """Note every SIGINT besides raising KeyboardInterrupt; does nothing where the signal is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _on_signal)


def requested() -> bool:
    """Whether somebody has pressed Ctrl-C."""
    return _requested


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM inside is met as Ctrl-C is, so that processes end with what they share; the exit code is 143 then.

    It stays as it is where Ctrl-C does not interrupt, or where somebody else handles it.
    """
    if signal.getsignal(signal.SIGINT) is not _on_signal or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    heard: list[int] = []

    def on_term(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        signal.raise_signal(signal.SIGINT)  # which waits while processes are started

    signal.signal(signal.SIGTERM, on_term)
    try:
        yield
    except KeyboardInterrupt:
        if not heard:
            raise
        raise SystemExit(128 + signal.SIGTERM) from None
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _on_signal(number: int, frame: FrameType | None) -> None:
    global _requested
    _requested = True
    raise KeyboardInterrupt
