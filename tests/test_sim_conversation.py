"""The engine on the real conversation trace: published numbers, the reference, and what must hold on every run."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from design_costs import DESIGN
from reference import Req, simulate
from reference.admissions import Baseline, Early, Predictive
from reference.cost import AnalyticCost
from reference.fast import as_result
from reference.policies import LRU, AcceptAll, CacheAware, KVCacheCentric
from thorough import many

from mooncake_bench import plugins
from mooncake_bench.sim.replay import Replay, run
from mooncake_bench.sim.setup import Setup
from mooncake_bench.trace import Trace, load
from mooncake_bench.trace.stats import ceiling_tokens

REPO = Path(__file__).resolve().parents[1]
TRACE = REPO.parent / "shared" / "traces" / "mooncake-fast25" / "conversation_trace.jsonl"

pytestmark = pytest.mark.skipif(not TRACE.is_file(), reason=f"{TRACE.name} is not in ../shared")


@cache
def conversation() -> Trace:
    return load(TRACE)


@cache
def replayed(policy: str, **setup: Any) -> Replay:
    return run(conversation(), Setup(policy=policy, **DESIGN, **setup))


def overloaded(policy: str) -> Replay:
    """Rule 9's corner: first 6,000 requests, [6P+4D], 3x, TTFT 30 s, TBT 35 ms."""
    return replayed(policy, cluster="6P+4D", speedup=3.0, slo_tbt_ms=35.0, max_requests=6000)


def same(one: Replay, other: Replay) -> bool:
    return all(np.array_equal(one.columns[name], other.columns[name], equal_nan=True) for name in one.columns)


# published numbers


@pytest.mark.parametrize(("policy", "mean_ms"), [("kvcache-centric", 1403.53), ("cache-aware", 1568.14)])
def test_mean_ttft_at_the_defaults_is_that_of_other_programs_of_the_same_rules(policy: str, mean_ms: float) -> None:
    columns = replayed(policy).columns
    ttft_ms = (columns["first_token_ps"] - columns["arrival_ps"]) / 1e9
    assert ttft_ms.mean() == pytest.approx(mean_ms, abs=0.01)


@pytest.mark.parametrize(
    ("policy", "rejected"),
    [
        ("baseline", 963),
        ("early", 784),
        ("predictive:td=5s", 758),
        ("predictive:td=10s", 758),
        ("predictive:td=15s", 1201),
    ],
)
def test_rejections_in_the_corner_of_rule_9(policy: str, rejected: int) -> None:
    status = overloaded(policy).columns["status"]
    assert np.bincount(status, minlength=4).tolist() == [0, 6000 - rejected, rejected, 0]


# against the reference, which has its own costs, policies and admissions

FULL_HOUSE = many(500, 1000)


@pytest.mark.parametrize(
    ("policy", "router", "admission", "count"),
    [
        ("kvcache-centric", KVCacheCentric(), AcceptAll(), FULL_HOUSE),
        ("cache-aware", CacheAware(), AcceptAll(), FULL_HOUSE),
        ("baseline", KVCacheCentric(), Baseline(), 600),
        ("early:recheck=true", KVCacheCentric(), Early(recheck=True), 600),
        ("predictive:td=10s", KVCacheCentric(), Predictive(td_ms=10_000.0), 600),
    ],
)
def test_every_request_fares_as_in_the_reference(policy: str, router: Any, admission: Any, count: int) -> None:
    # The full house at 1x; under an admission a small one at 4x, where it turns requests away.
    prefill, decode, speedup = (8, 8, 1.0) if count == FULL_HOUSE else (3, 1, 4.0)
    setup = Setup(
        cluster=f"{prefill}P+{decode}D", policy=policy, speedup=speedup, slo_tbt_ms=35.0, max_requests=count, **DESIGN
    )
    quick = as_result(run(conversation(), setup))
    trace = conversation()
    rows = [
        Req(i, round(at * 1e9 / speedup), n, out, tuple(trace.blocks(i).tolist()))
        for i, (at, n, out) in enumerate(
            zip(
                *(column[:count].tolist() for column in (trace.arrival_ms, trace.input_tokens, trace.output_tokens)),
                strict=True,
            )
        )
    ]
    slow = simulate(
        rows, prefill, decode, AnalyticCost(prefill + decode), router, admission, LRU,
        pool_blocks=5859, block_tokens=512, ttft_slo_ms=30_000, tbt_slo_ms=35,
    )  # fmt: skip
    for one, other in zip(slow.requests, quick.requests, strict=True):
        one, other = dict(one), dict(other)
        assert one.pop("predicted_ttft_ms") == pytest.approx(other.pop("predicted_ttft_ms"), rel=1e-12)
        if one["reject_reason"] != "ttft":  # the reference has one word for both kinds of decode load
            assert (one.pop("reject_reason") == "decode") == (other.pop("reject_reason") in ("tbt", "vram"))
        assert one == other
    assert slow.token_times_ps == quick.token_times_ps
    assert any(row["status"] == "rejected" for row in slow.requests) == (count == 600)


# what must hold on every run


@pytest.mark.parametrize("policy", ["kvcache-centric", "cache-aware", "load-balancing", "random"])
def test_no_request_hits_more_than_an_infinite_cache_would_have_had_for_it(policy: str) -> None:
    replay = replayed(policy)
    order = np.arange(len(replay.trace))  # nothing is rejected or reordered: processed as they came
    ceiling = ceiling_tokens(replay.trace, order)
    assert (replay.columns["hit_tokens"] <= ceiling).all()
    assert ceiling.sum() / replay.trace.input_tokens.sum() == pytest.approx(0.3736, abs=0.00005)  # the oracle's ratio


def test_no_request_hits_more_than_an_infinite_cache_of_the_admitted_ones() -> None:
    replay = overloaded("early")
    admitted = np.flatnonzero(replay.columns["reject_stage"] != 1)
    ceiling = ceiling_tokens(replay.trace, admitted)
    assert (replay.columns["hit_tokens"][admitted] <= ceiling[admitted]).all()


@pytest.mark.parametrize("policy", ["baseline", "early", "predictive:td=15s"])
def test_the_accounts_add_up_and_ttft_is_the_sum_of_its_parts(policy: str) -> None:
    replay = overloaded(policy)
    c = replay.columns
    assert np.bincount(c["status"], minlength=4).sum() == len(replay.trace)
    done = c["first_token_ps"] >= 0
    queue, fetch = (c["head_ps"] - c["arrival_ps"])[done], (c["start_ps"] - c["head_ps"])[done]
    assert (queue >= 0).all()
    assert (fetch >= 0).all()
    assert (queue + fetch + c["prefill_ps"][done] == (c["first_token_ps"] - c["arrival_ps"])[done]).all()
    assert (c["end_ps"] >= 0).all()


@pytest.mark.parametrize("policy", ["random+predictive+length-aware", "kvcache-centric:threshold=1+early"])
def test_two_processes_with_other_hash_seeds_write_the_same_bytes(policy: str, tmp_path: Path) -> None:
    program = (
        "import sys; from mooncake_bench import replay; "
        "replay(sys.argv[1], policy=sys.argv[3], cluster='4P+2D', speedup=3, slo_tbt_ms=35, pool_blocks=1000,"
        " max_requests=500).save(run_dir=sys.argv[2])"
    )

    def hashes(seed: str) -> list[str]:
        folder = tmp_path / seed
        command = [sys.executable, "-c", program, str(TRACE), str(folder), policy]
        subprocess.run(command, check=True, cwd=REPO, env=os.environ | {"PYTHONHASHSEED": seed}, timeout=120)
        tables = ("requests.parquet", "timeline.parquet")
        return [hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in tables]

    assert hashes("1") == hashes("2")


def test_the_order_of_policies_is_irrelevant_and_the_trace_stays_as_it_was() -> None:
    trace = load(TRACE)
    before = (trace.sha256, load(TRACE).sha256)
    setups = [
        Setup(policy=policy, max_requests=800) for policy in ("kvcache-centric", "random+early", "cache-aware+lfu")
    ]
    forth = [run(trace, setup) for setup in setups]
    back = [run(trace, setup) for setup in reversed(setups)][::-1]
    assert all(map(same, forth, back))
    del trace.__dict__["sha256"]  # kept since it was first asked for
    assert (trace.sha256, load(TRACE).sha256) == before


NOT_ORACLES = sorted(name for name, policy in plugins.discover().items() if policy.error is None and not policy.oracle)


@pytest.mark.parametrize("policy", NOT_ORACLES)
def test_output_lengths_in_another_order_change_no_decision_before_a_finish_reveals_one(policy: str) -> None:
    # 400 requests within 12 ms; a prefill takes 76 ms and more, so nothing has finished when the last one is decided.
    trace = conversation().select(max_requests=400)
    shuffled = Trace(
        name="shuffled",
        arrival_ms=trace.arrival_ms,
        input_tokens=trace.input_tokens,
        output_tokens=np.random.default_rng(5).permutation(trace.output_tokens),
        block_offsets=trace.block_offsets,
        block_ids=trace.block_ids,
    )
    setup = Setup(policy=policy, cluster="4P+3D", speedup=1e4, slo_ttft_ms=8000.0, slo_tbt_ms=35.0, pool_blocks=900)
    one, other = run(trace, setup), run(shuffled, setup)
    assert trace.arrival_ms[-1] / 1e4 < one.columns["first_token_ps"][one.columns["first_token_ps"] >= 0].min() / 1e9
    at_arrival = one.columns["reject_stage"] == 1
    assert np.array_equal(at_arrival, other.columns["reject_stage"] == 1)
    for name in ("prefill_instance", "decode_instance", "predicted_ttft_ms", "predicted_tbt_ms"):
        assert np.array_equal(one.columns[name], other.columns[name], equal_nan=True), name
    assert not np.array_equal(one.columns["end_ps"], other.columns["end_ps"])


def test_an_interrupted_replay_keeps_what_was_done() -> None:
    def stop(done: int, total: int, simulated_ms: float) -> None:
        if done >= 1024:
            raise KeyboardInterrupt

    replay = run(conversation(), Setup(policy="early", cluster="2P+1D", speedup=3, **DESIGN), progress=stop)
    status = np.bincount(replay.columns["status"], minlength=4)
    assert replay.interrupted
    assert status.sum() == len(conversation())
    assert status[1] > 100
    assert status[0] >= len(conversation()) - 1024  # those that never arrived, and those under way
    never = replay.columns["arrival_ps"] > replay.horizon_ps
    assert (replay.columns["status"][never] == 0).all()
    assert len(replay.policy_ns) == 1024
    whole = replayed("early", cluster="2P+1D", speedup=3)
    decided = slice(0, 1024)
    assert np.array_equal(
        replay.columns["predicted_ttft_ms"][decided], whole.columns["predicted_ttft_ms"][decided], equal_nan=True
    )
