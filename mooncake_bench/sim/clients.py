"""What clients do beyond asking once: ask again when turned away, give up, ask on when answered.

A client that is turned away waits, longer each time, and asks again: the same request arrives anew. One that has no
first token in time gives up. In a closed loop the first turn of a session arrives by its timestamp, and each further
turn so long after the answer before it has ended, whatever became of that. At equal times these arrivals come before
those of the trace, in the order in which they were decided; who gives up does so before both.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

import numpy as np

from mooncake_bench.errors import TraceError
from mooncake_bench.hardware.cost import PS_PER_MS
from mooncake_bench.sim import job as status
from mooncake_bench.sim.cancelling import place
from mooncake_bench.sim.cluster import ARRIVAL, TICK
from mooncake_bench.trace.sessions import NO_PARENT, closed_loop_gap, given_parents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from mooncake_bench.sim.cluster import Call, Cluster
    from mooncake_bench.sim.job import Job
    from mooncake_bench.sim.setup import Setup
    from mooncake_bench.trace import Trace


class Habits(NamedTuple):
    """How clients behave; times in ms."""

    retries: int
    backoff_ms: float
    factor: float
    jitter: float
    patience_ms: float | None
    closed: bool

    @classmethod
    def of(cls, setup: Setup) -> Habits | None:
        """Those of a setup; None where clients ask once and wait."""
        made = cls(
            setup.client_retries, setup.client_backoff_ms, setup.client_backoff_factor, setup.client_jitter,
            setup.client_patience_ms, setup.client_loop == "closed",
        )  # fmt: skip
        return made if made.retries or made.patience_ms is not None or made.closed else None


class Clients:
    """All clients of a replay. ``sessions``: those that go on when they are answered, in a closed loop."""

    def __init__(
        self, cluster: Cluster, habits: Habits, jitter: Callable[[int], np.random.Generator], sessions: Sessions | None
    ) -> None:
        """``jitter(row)``: the stream of one request."""
        self._cluster = cluster
        self._habits = habits
        self._jitter = jitter
        self._sessions = sessions
        self._coming: dict[Job, Call] = {}  # turned away, and going to ask again
        self._patient: deque[tuple[int, int, Job]] = deque()  # when each gives up, and its place among calls
        self._passed: list[tuple[int, int]] = []  # passed over since the last one gave up: when, and rank
        patience_ms = habits.patience_ms
        self._patience_ps = None if patience_ms is None else round(patience_ms * PS_PER_MS)
        self._gave_up = f"no first token within {_plain(patience_ms or 0)}, "
        cluster.clients = self
        cluster.routings = []

    def came(self, job: Job, now: int) -> None:
        """A request has come for the first time."""
        if self._patience_ps is not None:
            self._patient.append((now + self._patience_ps, self._cluster.take_place(), job))
            if len(self._patient) == 1:
                self._watch_first()

    def _watch_first(self) -> None:
        time, place, _ = self._patient[0]
        self._cluster.call_at(time, TICK, self._lost_patience, weak=True, place=place)

    def _lost_patience(self, now: int) -> None:
        """The first in line gives up, or has no reason to; who has ended by then is passed over.

        The last in line stays until its time, so that something is to happen as long as it would with all of them.
        """
        line = self._patient
        self._give_up(line.popleft()[2], now)
        self._cluster.events += len(self._passed)
        self._passed.clear()
        while len(line) > 1 and line[0][2].status != status.UNFINISHED:
            time, place, _ = line.popleft()
            self._passed.append((time, TICK + place))
        if line:
            self._watch_first()

    def passed_over(self) -> int:
        """Events that would have happened by now and were not looked at, for they change nothing."""
        now = self._cluster.now, self._cluster.rank
        return sum(one < now for one in self._passed)

    def _give_up(self, job: Job, now: int) -> None:
        if job.status == status.UNFINISHED and job.first_token_ps < 0:
            self._cluster.cancel(job, now, self._gave_up + place(self._cluster, job))

    def gone(self, job: Job, now: int) -> str | None:
        """Why nobody waits any more for a request whose first token came and was lost."""
        if self._patience_ps is None or now < job.arrival_ps + self._patience_ps:
            return None
        return f"{status.CANCELLED}{self._gave_up}its first was lost"

    def unprompted(self, jobs: Iterator[Job]) -> Iterator[Job]:
        """Those that come by their timestamps, whatever happens to others."""
        sessions = self._sessions
        return jobs if sessions is None else (job for job in jobs if sessions.first[job.row])

    # retries

    def come_back(self, job: Job, now: int) -> bool:
        """Whether a client that is turned away will ask again; its attempt is over then."""
        if job.rejections > self._habits.retries or self.gone(job, now):
            return False
        cluster = self._cluster
        wait_ps = round(self._wait_ms(job, now) * PS_PER_MS)
        cluster.brain.tell("rejected", job, now)
        cluster.start_over(job, now)
        self._coming[job] = cluster.call_at(now + wait_ps, ARRIVAL, partial(self._ask_again, job))
        return True

    def _wait_ms(self, job: Job, now: int) -> float:
        habits = self._habits
        wanted = self._cluster.brain.retry_after_ms(job, now)
        if wanted is not None:
            return wanted
        wait: float = habits.backoff_ms * habits.factor ** (job.rejections - 1)
        if habits.jitter:  # a request's own draws: what happens to others changes nothing
            draw = self._jitter(job.row).random(job.rejections)[-1]
            wait *= 1 + habits.jitter * (2 * float(draw) - 1)
        return wait

    def _ask_again(self, job: Job, now: int) -> None:
        del self._coming[job]
        self._cluster.try_again(job, now)

    def waits(self, job: Job) -> bool:
        """Whether it is between two attempts."""
        return job in self._coming

    def recall(self, job: Job) -> bool:
        """Let it not ask again; whether it would have."""
        call = self._coming.pop(job, None)
        if call is None:
            return False
        call.epoch += 1
        return True

    # sessions

    def ended(self, job: Job, now: int) -> None:
        """A request has its status."""
        if self._sessions is not None and (turn := self._sessions.after(job.row, now)) is not None:
            row, time = turn
            self._cluster.call_at(time, ARRIVAL, partial(self._next_turn, row))

    def _next_turn(self, row: int, now: int) -> None:
        assert self._sessions is not None
        self._cluster.arrive(self._sessions.job(row), now)


def make_clients(
    cluster: Cluster,
    setup: Setup,
    trace: Trace,
    arrivals_ps: NDArray[np.int64],
    make_job: Callable[[int], Job],
) -> Clients | None:
    """The clients of a setup; None where they ask once and wait. ``make_job(row)``: a request by its row."""
    habits = Habits.of(setup)
    if habits is None:
        return None

    def jitter(row: int) -> np.random.Generator:
        return np.random.default_rng([setup.seed, crc32(b"client"), row])

    sessions = Sessions(trace, arrivals_ps, setup.client_think_speedup, make_job) if habits.closed else None
    return Clients(cluster, habits, jitter, sessions)


class Sessions:
    """The turns of a trace's sessions, one after the other; a request without a session comes by its timestamp."""

    def __init__(
        self, trace: Trace, arrivals_ps: NDArray[np.int64], think_speedup: float, make_job: Callable[[int], Job]
    ) -> None:
        """``arrivals_ps`` is written to: when each turn really arrives. Raises TraceError where turns lack delays."""
        check_sessions(trace)
        assert trace.session_id is not None
        assert trace.delay_ms is not None
        self._arrivals = arrivals_ps
        before = given_parents(trace.session_id)
        self.first = before == NO_PARENT
        self._next = np.full(len(trace), -1, np.int64)
        self._next[before[~self.first]] = np.flatnonzero(~self.first)
        self._delay_ps = np.where(self.first, 0.0, np.rint(trace.delay_ms * PS_PER_MS / think_speedup))
        self.job = make_job

    def after(self, row: int, now: int) -> tuple[int, int] | None:
        """The turn that follows a row which has ended now, and when it arrives; None after the last one."""
        following = int(self._next[row])
        if following < 0:
            return None
        time = now + int(self._delay_ps[following])
        self._arrivals[following] = time
        return following, time


def check_sessions(trace: Trace) -> None:
    """Raises TraceError where a trace cannot be replayed in a closed loop."""
    gap = closed_loop_gap(trace)
    if gap is not None:
        raise TraceError(
            f"trace {trace.name!r}: no closed loop is possible, for {gap}; use client.loop = open, or a trace with "
            "session_id and delay (traces info tells)"
        )


def _plain(ms: float) -> str:
    """A duration in its largest fitting unit."""
    return f"{ms / 1000:g} s" if ms >= 1000 else f"{ms:g} ms"
