"""Inputs that broke other tools: each ends in a status, and none of them in silence."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from reference.fast import replay_with
from reference.workloads import bundled

from mooncake_bench.api import Admission, Route, Router
from mooncake_bench.errors import PolicyError
from mooncake_bench.hardware.fake import FakeCost
from mooncake_bench.results import Run
from mooncake_bench.sim.replay import Replay, run
from mooncake_bench.sim.setup import Setup
from mooncake_bench.trace import Trace

UNFINISHED, COMPLETED, REJECTED, FAILED = range(4)


def replayed(rows: list[tuple[float, int, int, list[int]]], block_tokens: int = 512, **setup: Any) -> Replay:
    return run(Trace.of(rows, block_tokens=block_tokens), Setup(**{"cluster": "2P+1D", **setup}))


def row(at_ms: float, tokens: int, output: int, first: int = 0) -> tuple[float, int, int, list[int]]:
    """A request whose blocks are numbered from ``first``."""
    return at_ms, tokens, output, list(range(first, first + -(-tokens // 512)))


def test_an_identical_request_on_another_node_cannot_fetch_before_the_first_ones_prefill_has_ended() -> None:
    class Fetcher(Router):
        name = "fetcher"

        def route(self, request, cluster):
            seen.append(cluster.fetchable_tokens(request).tolist())
            return Route(request.row, fetch_from=0 if request.row else None)

    seen: list[list[int]] = []
    trace = Trace.of([(0.0, 8, 1, [1, 2]), (7.0, 8, 1, [1, 2])], block_tokens=4)
    policies = Fetcher(), bundled("accept-all"), lambda: bundled("lru")
    with pytest.raises(PolicyError, match=r"policy 'fetcher', request 1: it fetches from instance 0, which has 0"):
        replay_with(trace, Setup(cluster="2P+1D"), *policies, FakeCost(3))
    assert seen == [[0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("policy", ["kvcache-centric:threshold=1", "cache-aware", "load-balancing"])
def test_bundled_routers_do_not_fetch_what_is_only_promised(policy: str) -> None:
    replay = replayed([row(0.0, 20_000, 2), row(1.0, 20_000, 2)], policy=policy)  # seconds of prefill
    assert replay.counters["fetches"] == 0


def test_ids_that_differ_above_bit_31_are_distinct_blocks() -> None:
    rows = [(1000.0 * i, 4, 1, [5 + high]) for i, high in enumerate((0, 2**32, 2**40, 2**62, 2**32))]
    replay = replayed(rows, block_tokens=4, cluster="1P+1D")
    assert replay.columns["hit_blocks"].tolist() == [0, 0, 0, 0, 1]


def test_a_prompt_larger_than_vram_fails_with_a_reason_and_holds_up_nobody() -> None:
    rows = [row(0.0, 3000, 5), row(1.0, 40_000, 5, 100), row(2.0, 3000, 5, 500)]
    replay = replayed(rows, vram_tokens=30_000)
    assert replay.columns["status"].tolist() == [COMPLETED, FAILED, COMPLETED]
    table = Run.from_replay(replay).requests.to_pylist()
    assert table[1]["status"] == "failed"
    assert table[1]["reject_reason"]


def test_a_request_at_time_zero_and_one_of_a_single_output_token_are_ordinary() -> None:
    replay = replayed([row(0.0, 700, 1), row(0.0, 700, 1, 10), row(500.0, 700, 2, 20)])
    columns = replay.columns
    assert columns["status"].tolist() == [COMPLETED] * 3
    assert columns["arrival_ps"].tolist() == [0, 0, 500 * 10**9]
    single = columns["end_ps"][:2]
    assert (single == columns["first_token_ps"][:2]).all()  # it ends at its first token
    assert (columns["kv_arrival_ps"][:2] == -1).all()
    assert (columns["second_token_ps"] >= 0).tolist() == [False, False, True]


@pytest.mark.parametrize("tokens", [1_000_000, 3_000_000])
def test_a_prompt_of_a_million_tokens_and_more_ends_in_a_status(tokens: int) -> None:
    # the default VRAM holds 1,457,000 tokens, the pool of an a800 5,859 blocks: 3 M tokens are 5,860
    replay = replayed([row(0.0, tokens, 3), row(10.0, 1000, 3, 10_000)], policy="round-robin")
    assert replay.columns["status"].tolist() == [COMPLETED if tokens < 1_457_000 else FAILED, COMPLETED]


def test_a_pool_of_one_block_and_a_flood_of_requests_still_end_in_statuses() -> None:
    rows = [row(0.0, 600 + i, 1 + i % 5, 3 * i) for i in range(300)]
    replay = replayed(rows, pool_blocks=1, vram_tokens=2000)
    assert np.isin(replay.columns["status"], (COMPLETED, FAILED)).all()
    assert (replay.columns["end_ps"] >= 0).all()


def test_a_trace_without_reuse_hits_nothing() -> None:
    replay = replayed([row(10.0 * i, 2000, 5, 10 * i) for i in range(50)])
    assert replay.columns["hit_tokens"].sum() == 0
    assert replay.counters["fetches"] == 0


def test_the_prefill_time_does_not_depend_on_the_output_length() -> None:
    short, long = (replayed([row(0.0, 5000, output)]).columns["prefill_ps"][0] for output in (1, 900))
    assert short == long


@pytest.mark.parametrize("where", ["first", "later"])
def test_ctrl_c_keeps_what_was_done_and_the_accounts_add_up(where: str) -> None:
    def stop(done: int, total: int, simulated_ms: float) -> None:
        calls.append((done, total))
        if where == "first" or len(calls) == 3:
            raise KeyboardInterrupt

    calls: list[tuple[int, int]] = []
    trace = Trace.of([row(100.0 * i, 600, 3, 2 * i) for i in range(2000)])
    replay = run(trace, Setup(cluster="2P+1D"), progress=stop)
    assert replay.interrupted
    done = calls[-1][0]
    counts = np.bincount(replay.columns["status"], minlength=4)
    assert counts.sum() == len(trace)
    assert 0 < counts[COMPLETED] <= done
    assert (replay.columns["status"][done:] == UNFINISHED).all()
    assert (replay.columns["prefill_instance"][done:] == -1).all()
    assert all(len(column) == len(trace) for column in replay.columns.values())


@pytest.mark.parametrize("where", ["route", "reject_decode", "on_event joined", "on_event finished", "evict"])
def test_ctrl_c_at_any_moment_leaves_records_that_can_be_read(where: str) -> None:
    def strike(now: str) -> None:
        strikes[now] += 1
        if now == where and strikes[now] == 40:
            raise KeyboardInterrupt

    class Policy(Router, Admission):
        name = "struck"

        def route(self, request, cluster):
            strike("route")
            return Route(request.row % 2)

        def reject(self, request, route, cluster):
            return None

        def reject_decode(self, request, route, cluster):
            strike("reject_decode")

        def on_event(self, kind, row, cluster):
            strike(f"on_event {kind}")

    class Struck(type(bundled("lru"))):
        def evict_many(self, count, pinned):
            strike("evict")
            return super().evict_many(count, pinned)

    strikes: Counter[str] = Counter()
    policy = Policy()
    trace = Trace.of([row(80.0 * i, 600 + i, 1 + i % 7, 4 * i) for i in range(200)])
    replay = replay_with(trace, Setup(cluster="2P+1D", pool_blocks=10, vram_tokens=9000), policy, policy, Struck)
    assert replay.interrupted
    assert strikes[where] == 40
    run_of_it = Run.from_replay(replay)
    counts = run_of_it.requests.column("status").value_counts().to_pylist()
    assert sum(count["counts"] for count in counts) == len(trace)
    assert "unfinished" in run_of_it.summary()


def test_progress_counts_to_the_total_it_names() -> None:
    calls: list[tuple[int, int, float]] = []
    trace = Trace.of([row(float(i), 600, 1, 2 * i) for i in range(1000)])
    run(trace, Setup(cluster="2P+1D"), progress=lambda *args: calls.append(args))
    assert [total for _, total, _ in calls] == [1000] * len(calls)
    assert [done for done, _, _ in calls] == sorted(done for done, _, _ in calls)
    assert calls[-1][0] <= 1000
