"""A sweep costs little more than its replays: they keep all cores busy, each trace is read once a process."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from mooncake_bench.results.sweep import DONE
from mooncake_bench.sim.setup import Setup
from mooncake_bench.studies.sweep.executors import Processes
from mooncake_bench.studies.sweep.points import Point, describe
from mooncake_bench.studies.sweep.sweeping import sweep
from mooncake_bench.studies.sweep.work import Work, attempt
from mooncake_bench.trace import load

pytestmark = pytest.mark.benchmark
CORES = 2
MOST = 1.1  # times the sum of the replays' times, one after the other in one process, over the cores
TRACE = "conversation-like"
REPLAYS = int(os.environ.get("MOONCAKE_BENCH_SWEEP_REPLAYS", "200"))
TAKEN_ALONE = 10  # of the points, spread over all, whose times stand for the others


def points() -> list[Point]:
    sha256 = load(TRACE).sha256
    setups = [Setup(policy="random", seed=seed, speedup=2) for seed in range(REPLAYS)]
    return [Point(i, TRACE, sha256, setup, "random", {"seed": setup.seed}) for i, setup in enumerate(setups)]


@pytest.mark.skipif((os.cpu_count() or 1) < CORES, reason=f"needs {CORES} cores")
def test_two_hundred_replays_on_two_cores_take_a_tenth_more_than_half_of_their_sum_at_most(tmp_path: Path) -> None:
    wanted = points()
    some = wanted[:: max(1, REPLAYS // TAKEN_ALONE)]
    attempt(wanted[0], Work())  # imports, and the trace
    started = time.perf_counter()
    assert {attempt(point, Work()).status for point in some} == {DONE}
    alone_s = (time.perf_counter() - started) / len(some) * REPLAYS
    manifest = describe(wanted, ["seed"], [load(TRACE)], {}, keep_runs=False) | {"name": "speed", "shard": None}
    started = time.perf_counter()
    found = sweep(wanted, manifest, tmp_path / "sweep", Processes(Work(), CORES))
    took_s = time.perf_counter() - started
    assert len(found.done) == REPLAYS
    print(
        f"\n{REPLAYS} replays: alone {alone_s:.1f} s, swept {took_s:.1f} s = {took_s / (alone_s / CORES):.3f} of half"
    )
    assert took_s <= MOST * alone_s / CORES
