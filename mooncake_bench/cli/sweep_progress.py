"""The progress of a sweep: on stderr, only where a person watches."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mooncake_bench.cli.interrupt import requested

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOUR_S = 3600.0  # the rate is that of the last hour at most: points take minutes, some of them


@contextmanager
def sweep_progress(quiet: bool) -> Iterator[Callable[[int, int, int], None]]:
    """A bar with points done, failed, rate and time left, called with (done, failed, total); none without terminal."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield _listen
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("points"), BarColumn(bar_width=None), MofNCompleteColumn(),
               TextColumn("{task.fields[more]}", markup=False), TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True, speed_estimate_period=HOUR_S) as bar:
        task = None

        def report(done: int, failed: int, total: int) -> None:
            nonlocal task
            _listen(done, failed, total)
            if task is None:
                task = bar.add_task("", total=total, completed=done, more="")  # what was there says nothing of the rate
            speed = bar.tasks[0].speed
            more = [f"{failed} failed"] * bool(failed) + ([_rate(speed)] if speed else [])
            bar.update(task, completed=done, more=", ".join(more))

        yield report


def _rate(per_s: float) -> str:
    return f"{per_s:.1f}/s" if per_s >= 1 else f"{per_s * 60:.1f}/min"


def _listen(done: int, failed: int, total: int) -> None:
    """Act on a Ctrl-C that got lost before."""
    if requested():
        raise KeyboardInterrupt
