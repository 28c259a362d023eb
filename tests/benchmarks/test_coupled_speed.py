"""Coupled clusters replay about as fast as others. ``pytest -m benchmark tests/benchmarks``."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.test_speed import TRACE, in_turn, needs_trace, report
from mooncake_bench.sim.replay import run
from mooncake_bench.sim.setup import Setup
from mooncake_bench.trace import load

pytestmark = pytest.mark.benchmark


@needs_trace
@pytest.mark.parametrize(("schedule", "least"), [("prefill-first", 0.8), ("chunked", 0.6)])
def test_coupled_instances_replay_about_as_fast_as_others(benchmark: Any, schedule: str, least: float) -> None:
    trace = load(TRACE)
    setups = Setup(), Setup(cluster="16M", schedule=schedule)
    split, coupled = benchmark.pedantic(lambda: in_turn(5, *(lambda s=s: run(trace, s) for s in setups)), rounds=1)
    report(benchmark, split_requests_per_s=len(trace) / split, coupled_requests_per_s=len(trace) / coupled)
    assert coupled <= split / least
