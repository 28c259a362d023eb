"""How fast and how small: DESIGN.md's bars. ``pytest -m benchmark tests/benchmarks``.

Times are of the process, not of the wall, and each comparison runs its two sides in turn, so that a busy machine
disturbs both alike. ``-s`` shows what was found; it is in the extra info too.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mooncake_bench.sim.replay import run
from mooncake_bench.sim.setup import Setup
from mooncake_bench.trace import Trace, load

if TYPE_CHECKING:
    from collections.abc import Callable

REPO = Path(__file__).resolve().parents[2]
SHARED = REPO.parent / "shared"
TRACE = SHARED / "traces" / "mooncake-fast25" / "conversation_trace.jsonl"
YARDSTICK = SHARED / "yardstick" / "bare_replay.py"

pytestmark = pytest.mark.benchmark
needs_trace = pytest.mark.skipif(not TRACE.is_file(), reason=f"{TRACE.name} is not in ../shared")
needs_yardstick = pytest.mark.skipif(not YARDSTICK.is_file(), reason="the yardstick is not in ../shared")


def seconds(work: Callable[[], Any]) -> float:
    """Process time of one call; garbage of the calls before is collected outside it."""
    gc.collect()
    began = time.process_time()
    work()
    return time.process_time() - began


def in_turn(rounds: int, *sides: Callable[[], Any]) -> list[float]:
    """The median process time of each side, all of them run in turn."""
    times = [[seconds(side) for side in sides] for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*times, strict=True)]


def report(benchmark: Any, **facts: float) -> None:
    """Keep what was found beside the timing, and show it with ``-s``."""
    benchmark.extra_info |= facts
    print("\n" + ", ".join(f"{name} {value:,.3f}" for name, value in facts.items()))


# requests a second


EVERYTHING = Setup(  # that can be on at once and needs nothing of the trace
    policy="hot-replicas", prefill_group=2, prefill_chunk=4096, pool_blocks=3000, ssd_blocks=20_000,
    nic_core_gbytes_per_s=600.0, decode_load_gbytes_per_s=100.0, decode_preemption="recompute", client_retries=2,
    client_patience_ms=60_000.0, events="600s:fail:prefill:1,900s:recover:prefill:1,1200s:fail:decode:2",
)  # fmt: skip


@needs_trace
@needs_yardstick
@pytest.mark.parametrize(("setup", "share"), [(Setup(), 0.5), (EVERYTHING, 0.2)], ids=["defaults", "every mechanism"])
def test_the_conversation_trace_at_a_share_of_the_yardsticks_speed(benchmark: Any, setup: Setup, share: float) -> None:
    spec = importlib.util.spec_from_file_location("bare_replay", YARDSTICK)
    assert spec is not None
    assert spec.loader is not None
    bare = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bare)
    rows, trace = bare.load(str(TRACE)), load(TRACE)
    ours, theirs = [], []

    def yardstick() -> None:
        theirs.append(seconds(lambda: bare.run(rows, policy="kv", cost=bare.A800())))

    benchmark.pedantic(lambda: ours.append(seconds(lambda: run(trace, setup))), setup=yardstick, rounds=7)
    our_rate, their_rate = (len(trace) / statistics.median(times) for times in (ours, theirs))
    report(benchmark, requests_per_s=our_rate, yardstick_requests_per_s=their_rate, ratio=our_rate / their_rate)
    assert our_rate >= share * their_rate


# growth


def copies(trace: Trace, times: int, apart_ms: float) -> Trace:
    """``times`` copies with blocks of their own, each ``apart_ms`` after the one before; block 0 is everybody's."""
    ids = trace.block_ids
    own = int(ids.max())
    arrival = np.concatenate([trace.arrival_ms + k * apart_ms for k in range(times)])
    blocks = np.concatenate([np.where(ids == 0, 0, ids + k * own) for k in range(times)])
    counts = np.tile(np.diff(trace.block_offsets), times)
    order = np.argsort(arrival, kind="stable")
    starts = np.cumsum(counts) - counts
    take = np.concatenate([np.arange(starts[row], starts[row] + counts[row]) for row in order])
    return Trace(
        name=f"{times} x {trace.name}",
        arrival_ms=arrival[order],
        input_tokens=np.tile(trace.input_tokens, times)[order],
        output_tokens=np.tile(trace.output_tokens, times)[order],
        block_offsets=np.concatenate(([0], np.cumsum(counts[order]))),
        block_ids=blocks[take],
        block_tokens=trace.block_tokens,
    )


def test_ten_times_the_requests_take_eleven_times_the_time_or_less(benchmark: Any) -> None:
    few = load("conversation-like").select(max_requests=3000)
    many = copies(few, 10, few.span_ms + 1000)
    setup = Setup()
    benchmark.pedantic(run, args=(few, setup), rounds=1)
    short, long = in_turn(3, lambda: run(few, setup), lambda: run(many, setup))
    report(benchmark, seconds_3000=short, seconds_30000=long, growth=long / short)
    assert long <= 11 * short


def test_a_request_on_1024_instances_takes_four_times_the_time_of_one_on_16_or_less(benchmark: Any) -> None:
    # The same requests a second for each instance: 64 copies of a window at once, against 64 times that window.
    whole = load("conversation-like")
    window = whole.select(max_requests=len(whole) // 64)
    crowd = copies(window, 64, 0.0)
    few, many = Setup(cluster="8P+8D"), Setup(cluster="512P+512D")
    benchmark.pedantic(run, args=(whole, few), rounds=1)
    small, large = in_turn(3, lambda: run(whole, few), lambda: run(crowd, many))
    small_us, large_us = 1e6 * small / len(whole), 1e6 * large / len(crowd)
    report(benchmark, us_a_request_16=small_us, us_a_request_1024=large_us, growth=large_us / small_us)
    assert large_us <= 4 * small_us


# the whole command


# Run by a small process of its own: a child's peak memory counts what its parent had when it was forked.
LAUNCHER = """
import resource, subprocess, sys, time
began = time.perf_counter()
subprocess.run([sys.executable, "-m", "mooncake_bench", *sys.argv[1:]], check=True, stdout=subprocess.DEVNULL)
wall = time.perf_counter() - began
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print(usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss / 1024)
"""


def command(*arguments: str, folder: Path) -> list[float]:
    """Process seconds, wall seconds and peak MiB of a ``mooncake-bench`` command, from the interpreter's start."""
    launched = subprocess.run(
        [sys.executable, "-c", LAUNCHER, *arguments],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(REPO)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert launched.returncode == 0, launched.stderr
    return [float(number) for number in launched.stdout.split()]


def typical(benchmark: Any, rounds: int, *arguments: str, folder: Path) -> tuple[float, float]:
    """Median process seconds and greatest peak MiB over some rounds."""
    found: list[list[float]] = []
    benchmark.pedantic(lambda: found.append(command(*arguments, folder=folder)), rounds=rounds)
    cpu, wall, peak = zip(*found, strict=True)
    report(benchmark, cpu_s=statistics.median(cpu), wall_s=statistics.median(wall), peak_mib=max(peak))
    return statistics.median(cpu), max(peak)


@needs_trace
def test_the_whole_command_takes_two_and_a_half_seconds_and_350_mib_or_less(benchmark: Any, tmp_path: Path) -> None:
    arguments = ("replay", str(TRACE), "--cluster", "8P+8D", "-p", "kvcache-centric")
    cpu_s, peak_mib = typical(benchmark, 5, *arguments, folder=tmp_path)
    assert cpu_s <= 2.5
    assert peak_mib <= 350


def test_help_takes_four_tenths_of_a_second_or_less(benchmark: Any, tmp_path: Path) -> None:
    cpu_s, _ = typical(benchmark, 7, "--help", folder=tmp_path)
    assert cpu_s <= 0.4
