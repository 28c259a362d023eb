"""The progress bar of a replay: on stderr, only where a person watches."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mooncake_bench.cli.interrupt import requested

if TYPE_CHECKING:
    from collections.abc import Iterator

LABEL_LETTERS = 30  # of a policy's SPEC, which may be a long path


class Silent:
    """No bar: each call only acts on a Ctrl-C that got lost before."""

    def __call__(self, done: int, total: int, simulated_ms: float) -> None:
        """So much is done, of so much."""
        if requested():
            raise KeyboardInterrupt

    def say(self, text: str | None) -> None:
        """What is being done that takes long, until None ends it."""
        if requested():
            raise KeyboardInterrupt


class Bar(Silent):
    """A bar of ``rich``; what is said stands in place of its label."""

    def __init__(self, bar: Any, label: str, unit: str) -> None:
        self._bar, self._label, self._unit = bar, label[:LABEL_LETTERS], unit
        self._task = bar.add_task(self._label, total=None, rate="")

    def __call__(self, done: int, total: int, simulated_ms: float) -> None:
        super().__call__(done, total, simulated_ms)
        speed = self._bar.tasks[self._task].speed
        rate = f"{speed:,.0f} {self._unit}/s" if speed else ""
        self._bar.update(self._task, completed=done, total=total, rate=rate)

    def say(self, text: str | None) -> None:
        super().say(text)
        self._bar.update(self._task, description=text or self._label)


@contextmanager
def progress_bar(label: str, quiet: bool, unit: str = "requests") -> Iterator[Silent]:
    """A bar with rate and time left, called with (requests done, of, simulated ms); nothing without a terminal."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield Silent()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True) as bar:
        yield Bar(bar, label, unit)
