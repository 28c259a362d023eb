"""From a real replay to a run: pressure, faults and both pools, checked by listing every token."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from design_costs import DESIGN
from test_results_tiny import MS, tiny_run

from mooncake_bench.hardware.fake import FakeCost
from mooncake_bench.results.run import Run, open_run
from mooncake_bench.sim.replay import Replay, run
from mooncake_bench.sim.setup import Setup
from mooncake_bench.trace import Trace


def crowd(requests: int = 120) -> Trace:
    """Requests that share prefixes and arrive faster than they can be served."""
    rng = np.random.default_rng(3)
    rows = []
    for i in range(requests):
        tokens = int(rng.integers(1, 400))
        blocks = -(-tokens // 16)
        shared = min(blocks, int(rng.integers(0, 12)))
        ids = [*range(shared), *range(10_000 * (i + 1), 10_000 * (i + 1) + blocks - shared)]
        rows.append((float(i * 25), tokens, int(rng.integers(1, 60)), ids))
    return Trace.of(rows, block_tokens=16, name="crowd")


def pressed(policy: str = "kvcache-centric", **setup: object) -> Replay:
    """The crowd on two prefill and two decode instances whose VRAM holds so few requests that some are preempted."""
    cost = FakeCost(4, computed_token_ms=0.3, vram_tokens=600)
    chosen = Setup(cluster="2P+2D", policy=policy, pool_blocks=40, **setup)  # type: ignore[arg-type]
    return run(crowd(), chosen, cost=cost)


def listed_gaps(replay: Replay) -> dict[int, list[int]]:
    """Every token gap of every completed request, step by step from the raw segments and stays."""
    ends: dict[tuple[int, int], int] = {}
    for row in zip(*replay.segments.values(), strict=True):
        instance, clock, first, steps, step, growth = (int(value) for value in row[:6])
        for j in range(steps):
            clock += step + j * growth
            ends[instance, first + j] = clock
    times = {row: [int(t)] for row, t in enumerate(replay.columns["first_token_ps"])}
    for request, instance, _, first, steps in sorted(
        zip(*(column.tolist() for column in replay.stays.values()), strict=True), key=lambda stay: (stay[0], stay[2])
    ):
        times[request] += [ends[instance, first + j] for j in range(steps)]
    done = np.flatnonzero(replay.columns["status"] == 1)
    return {int(row): [b - a for a, b in pairwise(times[int(row)])] for row in done}


def test_a_replay_under_pressure_gives_the_statistics_of_its_listed_tokens() -> None:
    replay = pressed()
    assert replay.columns["preemptions"].sum() > 0
    made, gaps = Run.from_replay(replay), listed_gaps(replay)
    table = made.requests.to_pydict()
    for row, mine in gaps.items():
        assert len(mine) == table["output_tokens"][row] - 1
        if mine:
            k = max(1, -(-len(mine) // 10))
            assert table["tbt_ms"][row] == pytest.approx(sum(sorted(mine)[-k:]) / k / MS, rel=1e-12)
            assert table["tbt_max_ms"][row] == max(mine) / MS
            assert table["tpot_ms"][row] == pytest.approx(sum(mine) / len(mine) / MS, rel=1e-12)
            assert table["first_gap_ms"][row] == mine[0] / MS
    pooled = np.array([gap for mine in gaps.values() for gap in mine]) / MS
    values = made.metrics()
    assert values["mean_itl_ms"].n == len(pooled)
    for percent in (50, 90, 95, 99):
        assert values[f"p{percent}_itl_ms"].value == np.percentile(pooled, percent)


@pytest.mark.parametrize(
    ("policy", "setup"),
    [
        ("random", {}),
        ("cache-aware+queue-cap:limit=2", {}),
        ("kvcache-centric+baseline", {"slo_ttft_ms": 400.0, "slo_tbt_ms": 12.5}),
        ("kvcache-centric+early", {"slo_ttft_ms": 400.0, "slo_tbt_ms": 12.5}),
        ("kvcache-centric+deadline", {"slo_ttft_ms": 300.0, "first_gap": "exclude", "tbt_metric": "p99"}),
    ],
)
def test_every_row_of_every_run_adds_up(policy: str, setup: dict[str, object]) -> None:
    made = Run.from_replay(pressed(policy, **setup))  # checks the invariants
    table, values = made.requests.to_pydict(), made.metrics()
    parts = [values[f"{word}_requests"].value for word in ("completed", "rejected", "failed", "unfinished")]
    assert sum(part or 0 for part in parts) == values["offered_requests"].value == 120
    for row, ttft in enumerate(table["ttft_ms"]):
        if ttft is not None:
            spent = sum(table[f"{part}_ms"][row] for part in ("queue", "fetch", "prefill"))
            assert ttft == pytest.approx(spent, abs=1e-6)
    assert all(ok is False for ok, word in zip(table["slo_ok"], table["status"], strict=True) if word == "rejected")


@pytest.mark.parametrize("after", [1, 60, 110])
def test_an_interrupted_replay_is_a_run_with_partial_numbers(tmp_path: Path, after: int) -> None:
    big = crowd(1200)

    def stop(done: int, total: int, simulated_ms: float) -> None:
        raise KeyboardInterrupt

    trace = big.select(start_ms=after)
    stopped = run(trace, Setup(cluster="2P+2D"), progress=stop, cost=FakeCost(4, computed_token_ms=0.3))
    made = Run.from_replay(stopped)  # checks the invariants
    values = open_run(made.save(tmp_path)).metrics()
    assert made.interrupted
    assert 0 < (values["completed_requests"].value or 0) < len(trace)
    parts = [values[f"{word}_requests"].value for word in ("completed", "rejected", "failed", "unfinished")]
    assert sum(part or 0 for part in parts) == 256  # progress is told, and stops it, after so many arrivals
    assert made.manifest["counts"]["not_arrived"] == len(trace) - 256
    assert values["mean_ttft_ms"].n == values["completed_requests"].value
    assert made.timeline.column("arrived_requests").to_numpy().sum() < len(trace)


def test_a_request_too_large_for_the_vram_is_failed_and_said_so() -> None:
    trace = Trace.of([(0, 50, 3, [1, 2, 3, 4]), (1, 700, 3, list(range(10, 54)))], block_tokens=16)
    cost = FakeCost(2, vram_tokens=600)
    made = Run.from_replay(run(trace, Setup(cluster="1P+1D"), cost=cost))
    assert made.requests.column("status").to_pylist() == ["completed", "failed"]
    assert made.metrics()["wasted_prefill_tokens"].value == 700
    assert any("1 request failed" in notice for notice in made.notices)


def test_two_processes_write_the_same_bytes(tmp_path: Path) -> None:
    script = (
        "import sys; from test_results_run import pressed; from mooncake_bench.results.run import Run; "
        "print(Run.from_replay(pressed('random+queue-cap')).save(sys.argv[1]))"
    )
    here = Path(__file__).parent
    folders = []
    for seed in ("1", "2"):
        environment = os.environ | {
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join([str(here.parent), str(here)]),
        }
        command = [sys.executable, "-c", script, str(tmp_path)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        folders.append(Path(done.stdout.strip()))
    for name in ("requests", "timeline", "segments", "stays"):
        first, second = (folder / f"{name}.parquet" for folder in folders)
        assert first.read_bytes() == second.read_bytes(), name


def test_the_summary_tells_accounts_before_latencies() -> None:
    text = tiny_run().summary()
    lines = text.splitlines()
    assert lines[0] == "policy tiny (tiny=cache-aware+queue-cap)"
    accounts = next(i for i, line in enumerate(lines) if line.startswith("offered 4   completed 3   rejected 1"))
    latency = next(i for i, line in enumerate(lines) if line.startswith("TTFT"))
    assert accounts < latency
    assert lines[latency].split() == ["TTFT", "7.67", "8.00", "8.80", "8.98", "9.00", "3"]
    assert all(len(line) <= 100 for line in lines)


def test_a_run_says_what_it_is(tmp_path: Path) -> None:
    made = tiny_run()
    assert repr(made) == "Run('tiny' on 'tiny', complete, not stored)"
    folder = made.save(tmp_path)
    assert repr(open_run(folder)) == f"Run('tiny' on 'tiny', complete, {folder})"
    assert (made.completed_requests, made.interrupted) == (3, False)


def test_the_conversation_trace_gives_the_known_mean_ttft(shared: Path) -> None:
    from mooncake_bench.trace import load

    trace = load(shared / "traces" / "mooncake-fast25" / "conversation_trace.jsonl")
    values = Run.from_replay(run(trace, Setup(**DESIGN))).metrics()
    # the task's reference: an independent program gets 1,403.53 ms; .3736 is the infinite cache's share of tokens
    assert values["mean_ttft_ms"].value == pytest.approx(1403.53, abs=0.005)
    assert values["ceiling_ratio_tokens"].value == pytest.approx(0.3736, abs=5e-5)
    assert values["hit_ratio_tokens"].value < values["ceiling_ratio_tokens"].value  # type: ignore[operator]
