"""The progress bar of a replay, and how its cluster is doing: on stderr, only where a person watches."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mooncake_bench.cli.interrupt import requested

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mooncake_bench.sim.pulse import Pulse

EVERY_S = 0.25  # between two looks
ROOMY = 60  # columns: a narrower bar goes without its rate
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

    @property
    def wants_pulse(self) -> bool:
        """Whether it is time to look at the cluster again."""
        return False

    def beat(self, pulse: Pulse) -> None:
        """How the cluster is doing."""


class Bar(Silent):
    """A bar of ``rich``; what is said stands in place of its label, how the cluster is doing in a line below."""

    def __init__(self, bar: Any, label: str, unit: str) -> None:
        self._bar, self._label, self._unit = bar, label[:LABEL_LETTERS], unit
        self._task = bar.add_task(self._label, total=None, rate="")
        self._looked = 0.0

    def __call__(self, done: int, total: int, simulated_ms: float) -> None:
        super().__call__(done, total, simulated_ms)
        speed = self._bar.tasks[self._task].speed
        rate = f"{speed:,.0f} {self._unit}/s" if speed else ""
        self._bar.update(self._task, completed=done, total=total, rate=rate)

    def say(self, text: str | None) -> None:
        super().say(text)
        self._bar.update(self._task, description=text or self._label)

    @property
    def wants_pulse(self) -> bool:
        return time.monotonic() >= self._looked + EVERY_S

    def beat(self, pulse: Pulse) -> None:
        self._looked = time.monotonic()
        self._bar.below = pulse_line(pulse)


def pulse_line(pulse: Pulse) -> str:
    """Simulated time, loads, queue, batch and rejections in one line."""
    at = round(pulse.simulated_ms / 1000)
    loads = (("P", pulse.prefill_load_ratio), ("D", pulse.decode_load_ratio))
    parts = [f"at {at // 3600}:{at // 60 % 60:02}:{at % 60:02}"]
    parts += [f"rejected {pulse.rejected_requests:,}"]  # what a narrow screen must not cut off comes first
    parts += ["load " + " ".join(f"{name} {load:.2f}" for name, load in loads if load is not None)]
    return ", ".join([*parts, f"queued {pulse.queued_requests:,}", f"decoding {pulse.decoding_requests:,}"])


@contextmanager
def progress_bar(label: str, quiet: bool, unit: str = "requests") -> Iterator[Silent]:
    """A bar with rate and time left, called with (requests done, of, simulated ms); nothing without a terminal."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield Silent()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.text import Text

    console = Console(stderr=True)
    rate = [TextColumn("{task.fields[rate]}", markup=False)] if console.width >= ROOMY else []
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        *rate,
        TimeRemainingColumn(),
    )

    class Below(Progress):
        """A bar with a line below, once there is one."""

        below = ""

        def get_renderables(self) -> Iterator[Any]:
            yield from super().get_renderables()
            if self.below:
                yield Text(self.below, "dim", no_wrap=True, overflow="ellipsis")

    with Below(*columns, console=console, transient=True) as bar:
        yield Bar(bar, label, unit)
