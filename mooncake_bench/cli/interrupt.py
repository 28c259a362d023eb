"""Ctrl-C that cannot get lost: a library that is being imported may swallow the exception, the note stays."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

_requested = False


def install() -> None:
    """Note every SIGINT besides raising KeyboardInterrupt; does nothing where the signal is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _on_signal)


def requested() -> bool:
    """Whether somebody has pressed Ctrl-C."""
    return _requested


def _on_signal(number: int, frame: FrameType | None) -> None:
    global _requested
    _requested = True
    raise KeyboardInterrupt
