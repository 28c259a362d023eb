"""The progress bar of a replay: on stderr, only where a person watches."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mooncake_bench.cli.interrupt import requested

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Progress = Callable[[int, int, float], None]  # requests done, of, simulated ms

LABEL_LETTERS = 30  # of a policy's SPEC, which may be a long path


@contextmanager
def progress_bar(label: str, quiet: bool, unit: str = "requests") -> Iterator[Progress]:
    """A bar with rate and time left, called with (requests done, of, simulated ms); nothing without a terminal.

    Each call also acts on a Ctrl-C that got lost before.
    """
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield _heed_interrupt
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
        task = bar.add_task(label[:LABEL_LETTERS], total=None, rate="")

        def advance(done: int, total: int, simulated_ms: float) -> None:
            _heed_interrupt(done, total, simulated_ms)
            speed = bar.tasks[task].speed
            rate = f"{speed:,.0f} {unit}/s" if speed else ""
            bar.update(task, completed=done, total=total, rate=rate)

        yield advance


def _heed_interrupt(done: int, total: int, simulated_ms: float) -> None:
    if requested():
        raise KeyboardInterrupt
