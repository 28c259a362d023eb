"""Where the points of a sweep are replayed: here, in processes of this machine, or (:mod:`.on_ray`) on a cluster.

All look alike: ``run(points)`` yields what has come of some points whenever there is something, in any order. Closing
that generator early (Ctrl-C, a full disk) ends what still runs.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter, deque
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import active_children, connection, get_context, parent_process
from typing import TYPE_CHECKING, Protocol

from mooncake_bench.cache.study import deaf_children
from mooncake_bench.studies.sweep.store import PAUSE_S
from mooncake_bench.studies.sweep.work import Outcome, Work, attempt, failed

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from multiprocessing.process import BaseProcess

    from mooncake_bench.studies.sweep.points import Point

    Outcomes = Generator[list[Outcome], None, None]

TRIES = 3  # processes that may end by themselves over one point
DIED = (
    f"the process that replayed it ended by itself, {TRIES} times, without saying why; it may have been killed (too "
    "little memory does that), crashed, or been ended by the policy's code"
)


class Executor(Protocol):
    """What replays points."""

    def run(self, points: Sequence[Point]) -> Outcomes:
        """What has come of some of the points, until all are done."""
        ...


@dataclass(frozen=True)
class Here:
    """One after the other, in this process."""

    work: Work

    def run(self, points: Sequence[Point]) -> Outcomes:
        """See :class:`Executor`."""
        for point in points:
            yield [attempt(point, self.work)]


@dataclass(frozen=True)
class Processes:
    """In several processes of this machine, each with one point at a time; one that dies takes nothing with it."""

    work: Work
    workers: int

    def run(self, points: Sequence[Point]) -> Outcomes:
        """See :class:`Executor`."""
        left, deaths = deque(points), Counter[int]()
        idle = [_Slot(self.work) for _ in range(min(self.workers, len(points)))]
        busy: dict[Future[Outcome], tuple[_Slot, Point]] = {}
        slots = tuple(idle)
        try:
            while left or busy:
                while left and idle:
                    slot, point = idle.pop(), left.popleft()
                    busy[slot.submit(point)] = (slot, point)
                outcomes = []
                for future in wait(busy, PAUSE_S, FIRST_COMPLETED).done:
                    slot, point = busy.pop(future)
                    idle.append(slot)
                    try:
                        outcomes.append(future.result())
                    except BrokenProcessPool:
                        slot.pool = None
                        deaths[point.number] += 1
                        if deaths[point.number] < TRIES:
                            left.appendleft(point)
                        else:
                            outcomes.append(failed(point, DIED))
                yield outcomes
        finally:
            with deaf_children():  # an impatient second Ctrl-C waits until they have ended
                for slot in slots:
                    slot.end()


@dataclass
class _Slot:
    """A process that replays one point at a time, started when first needed, and anew once it has died."""

    work: Work
    pool: ProcessPoolExecutor | None = None
    started: set[BaseProcess] = field(default_factory=set)

    def submit(self, point: Point) -> Future[Outcome]:
        """Begin a point."""
        others = set(active_children())
        with deaf_children():
            try:
                future = self._ready().submit(_attempt, point)
            except BrokenProcessPool:  # it died with nothing to do
                self.pool = None
                future = self._ready().submit(_attempt, point)
            self.started |= set(active_children()) - others
        return future

    def end(self) -> None:
        """End the process, whatever it does."""
        for process in self.started:
            process.terminate()
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)

    def _ready(self) -> ProcessPoolExecutor:
        if self.pool is None:
            self.pool = ProcessPoolExecutor(1, get_context("spawn"), _begin, (self.work,))
        return self.pool


_work: Work  # in a worker: what it was told


def _begin(work: Work) -> None:
    """In a new worker: Ctrl-C is the parent's business, and when the parent is gone there is nobody to work for."""
    global _work
    _work = work
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _attempt(point: Point) -> Outcome:
    return attempt(point, _work)
