"""Many policies at many capacities, over processes."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache, partial
from multiprocessing import active_children, get_context, resource_tracker
from typing import TYPE_CHECKING, Any

from mooncake_bench.cache.bounds import BOUNDS, belady, optimum
from mooncake_bench.cache.columns import check_numbers
from mooncake_bench.cache.simulate import check_choices, serve
from mooncake_bench.cache.spec import choose
from mooncake_bench.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from mooncake_bench.cache.point import Assignment, Point, TouchOrder
    from mooncake_bench.trace import Trace

    Job = tuple[str, int | None]
    Options = dict[str, Any]
    Report = Callable[[int, int], None]

_WORTH_A_PROCESS = 200_000  # block references: below this many in all, starting processes takes longer than the work


def study(
    trace: Trace,
    specs: Sequence[str],
    capacities: Sequence[int | None],
    *,
    touch_order: TouchOrder = "forward",
    pools: int = 1,
    assignment: Assignment = "round-robin",
    ready_after_ms: float = 0.0,
    warm_requests: int = 0,
    policy_dirs: Sequence[Path] = (),
    processes: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Point]:
    """Every one of ``specs`` at every one of ``capacities``, spec by spec, in the order given.

    A spec may be a SPEC of an eviction policy or a name of ``BOUNDS`` (one pool and ready_after_ms 0 only, else
    SetupError). ``processes``: None takes what the machine has, 1 stays in this one. ``progress(done, total)`` is
    called after each point. Raises what :func:`simulate` raises.
    """
    check_choices(touch_order, pools, assignment, ready_after_ms)
    for capacity in capacities:
        check_numbers(trace, capacity, warm_requests)
    for spec in specs:  # whatever is wrong shows before the first run
        if spec not in BOUNDS:
            choose(spec, policy_dirs).make()
        elif pools > 1 or ready_after_ms:
            what = f"{pools} pools" if pools > 1 else f"ready_after_ms {ready_after_ms:g}"
            raise SetupError(f"{spec} is a bound for one pool with instant service; leave it out with {what}")
    options: Options = {
        "touch_order": touch_order,
        "pools": pools,
        "assignment": assignment,
        "ready_after_ms": ready_after_ms,
        "warm_requests": warm_requests,
    }
    jobs = [(spec, capacity) for spec in specs for capacity in capacities]
    workers = min(_processes(processes, len(jobs) * len(trace.block_ids)), max(len(jobs), 1))
    shared, report = (trace, options, tuple(policy_dirs)), progress or (lambda done, total: None)
    return _here(_Bench(*shared), jobs, report) if workers == 1 else _apart(shared, jobs, workers, report)


def _processes(wanted: int | None, references: int) -> int:
    if wanted is not None:
        if wanted < 1:
            raise SetupError(f"processes is {wanted}; expected at least 1")
        return wanted
    if references < _WORTH_A_PROCESS:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _here(bench: _Bench, jobs: list[Job], report: Report) -> list[Point]:
    points = []
    for job in jobs:
        points.append(bench.point(job))
        report(len(points), len(jobs))
    return points


def _apart(shared: tuple[Any, ...], jobs: list[Job], workers: int, report: Report) -> list[Point]:
    """Fresh processes, each given the trace once; they end at once when this one is interrupted."""
    others = set(active_children())
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _receive, shared)
    try:
        with deaf_children():
            futures = [pool.submit(_work, job) for job in jobs]
        for done, future in enumerate(as_completed(futures), 1):
            future.result()  # a fault ends the study now
            report(done, len(jobs))
        return [future.result() for future in futures]
    except BrokenProcessPool:
        raise SetupError(
            "a process of the cache study ended by itself: too little memory, or a script that calls it outside "
            "`if __name__ == '__main__':`; give processes=1 to stay in one process"
        ) from None
    except BaseException:  # a fault, or Ctrl-C: nothing that still runs is wanted
        for child in set(active_children()) - others:
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def deaf_children() -> Iterator[None]:
    """Processes started inside do not hear Ctrl-C, which a terminal sends to all: their parent does, and ends them.

    Here it is heard once all have started, so that none is forgotten.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # which would let signals through again, did it start later
    heard: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which the new processes inherit
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, signal.SIG_DFL if handler is None else handler)
        if heard:
            signal.raise_signal(signal.SIGINT)


class _Bench:
    """The trace and what all jobs share; each SPEC is read once."""

    def __init__(self, trace: Trace, options: Options, policy_dirs: Sequence[Path]) -> None:
        self.trace, self.options = trace, options
        self.choose = cache(partial(choose, policy_dirs=policy_dirs))

    def point(self, job: Job) -> Point:
        spec, capacity = job
        warm, order = self.options["warm_requests"], self.options["touch_order"]
        if spec == "optimum":
            return optimum(self.trace, capacity, warm_requests=warm)
        if spec in BOUNDS:
            bypass = spec == "belady-bypass"
            return belady(self.trace, capacity, bypass=bypass, touch_order=order, warm_requests=warm)
        return serve(self.trace, self.choose(spec), capacity, **self.options)


_bench: _Bench  # in a worker: what it was given


def _receive(trace: Trace, options: Options, policy_dirs: Sequence[Path]) -> None:
    global _bench
    _bench = _Bench(trace, options, policy_dirs)


def _work(job: Job) -> Point:
    return _bench.point(job)
