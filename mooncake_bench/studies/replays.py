"""Replays behind a study: many setups of one trace, on every core, each reduced to what the study needs."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import cache
from multiprocessing import active_children, get_context
from typing import TYPE_CHECKING, Any, TypeVar

from mooncake_bench.cache.study import deaf_children
from mooncake_bench.results import Run
from mooncake_bench.sim.replay import Replay
from mooncake_bench.sim.replay import run as simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.process import BaseProcess

    from mooncake_bench.hardware.cost import CostModel
    from mooncake_bench.sim.setup import Setup
    from mooncake_bench.trace import Trace

T = TypeVar("T")
WORKERS = "MOONCAKE_BENCH_WORKERS"  # processes; 1: none but this one
_started: set[BaseProcess] = set()  # by the pool


def each(
    trace: Trace,
    setups: Sequence[Setup],
    extract: Callable[[Replay], T],
    cost: Callable[[Setup], CostModel] | None = None,
) -> list[T]:
    """``extract(replay)`` of every setup, in order: a function of a module, whose answer can be pickled.

    ``cost``, another such function, replaces the setups' own cost models. Setups are replayed in as many processes as
    there are cores; what comes out does not depend on their number. Raises what a replay raises.
    """
    return spread(_one, [(trace, setup, extract, cost) for setup in setups])


def spread(
    work: Callable[..., T], arguments: Sequence[tuple[Any, ...]], watch: Callable[[int, int], None] | None = None
) -> list[T]:
    """``work(*each)`` of all arguments, in order, on every core; what goes in and out can be pickled.

    ``watch(done, of)`` is told of each that is done. A fault, or Ctrl-C, ends the processes at once.
    """
    told = watch or (lambda _done, _of: None)
    if workers() == 1 or len(arguments) == 1:
        found = []
        for each in arguments:
            found.append(work(*each))
            told(len(found), len(arguments))
        return found
    pool, others = _pool(), set(active_children()) - _started
    try:
        with deaf_children():
            futures = [pool.submit(work, *each) for each in arguments]
            _started.update(set(active_children()) - others)
        for done, future in enumerate(as_completed(futures), start=1):
            future.result()  # a fault ends the study now
            told(done, len(futures))
        return [future.result() for future in futures]
    except BaseException:
        with deaf_children():  # an impatient second Ctrl-C waits until they have ended
            _end(pool)
        raise


def whole(trace: Trace, setup: Setup, **given: Any) -> Replay:
    """A replay, which Ctrl-C ends with KeyboardInterrupt: part of one says nothing."""
    replay = simulate(trace, setup, **given)
    if replay.interrupted:
        raise KeyboardInterrupt
    return replay


def metrics(replay: Replay) -> dict[str, float | int | None]:
    """Every metric of a replay by name, None where it is undefined."""
    return {name: value.value for name, value in Run.from_replay(replay).metrics().items()}


def judged(replay: Replay, **changes: Any) -> dict[str, float | int | None]:
    """Metrics of a replay under another ``slo_*``, ``tbt_metric``, ``first_gap`` or ``warmup_ms``.

    These judge a run and steer nothing, unless an admission looks at them.
    """
    return metrics(replace(replay, setup=replace(replay.setup, **changes)))


def workers() -> int:
    """Processes that replay at the same time."""
    return int(os.environ.get(WORKERS, 0)) or os.cpu_count() or 1


def _one(
    trace: Trace, setup: Setup, extract: Callable[[Replay], T], cost: Callable[[Setup], CostModel] | None = None
) -> T:
    return extract(whole(trace, setup, cost=None if cost is None else cost(setup)))


@cache
def _pool() -> ProcessPoolExecutor:
    """Started when first needed, ended with the process. A Ctrl-C is the parent's business."""
    return ProcessPoolExecutor(workers(), mp_context=get_context("spawn"), initializer=_ignore_interrupts)


def _end(pool: ProcessPoolExecutor) -> None:
    """Nothing that still runs is wanted; whoever spreads work again gets a new pool."""
    _pool.cache_clear()
    for process in _started:
        process.terminate()
    _started.clear()
    pool.shutdown(cancel_futures=True)


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
