"""KVCache that takes its time into a decode node's VRAM, and preemption by recomputation: hand-counted.

A computed token takes 1 ms; a step takes 10 ms + 1 ms a request + 1 us a context token; a token's KVCache is 1000
bytes: 1 us on the network, and 1 ms from DRAM to VRAM where loading is on.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference.fast import replay_with, token_times_ps
from reference.workloads import bundled

from mooncake_bench.errors import SetupError
from mooncake_bench.hardware.fake import FakeCost
from mooncake_bench.results.headline import headline
from mooncake_bench.results.invariants import check
from mooncake_bench.results.records import Records
from mooncake_bench.results.run import Run
from mooncake_bench.sim.replay import Replay
from mooncake_bench.sim.setup import Setup
from mooncake_bench.trace import Trace

US, MS = 10**6, 10**9  # ps
SLOW = {"decode_load_gbytes_per_s": 1e-3}  # 1e6 bytes/s


def replayed(rows: list[tuple[float, int, int, list[int]]], vram: int = 10**6, **setup: Any) -> Replay:
    """Each row on a prefill instance of its own, one decode instance; invariants are checked."""
    cluster = setup.pop("cluster", f"{len(rows)}P+1D")
    instances = len(Setup(cluster=cluster).instances)
    chosen = Setup(cluster=cluster, **setup)
    trace = Trace.of(rows, block_tokens=4)
    policies = bundled("round-robin"), bundled("accept-all"), lambda: bundled("lru")
    done = replay_with(trace, chosen, *policies, FakeCost(instances, vram_tokens=vram))
    check(Records.of(done))
    return done


def stays_of(replay: Replay, row: int) -> list[tuple[int, int]]:
    """Join (ps) and steps of each stay of a request."""
    stays = replay.stays
    mine = stays["request"] == row
    return list(zip(stays["join_ps"][mine].tolist(), stays["steps"][mine].tolist(), strict=True))


def test_a_request_joins_when_its_kvcache_is_loaded() -> None:
    # Prefill 0-8; its last of 4 layers arrives 2 us later; 8 tokens load in 8 ms; a step of 10 + 1 + .009.
    replay = replayed([(0.0, 8, 2, [1, 2])], **SLOW)
    assert replay.columns["kv_arrival_ps"][0] == 8_002 * US
    assert replay.columns["join_ps"][0] == 16_002 * US
    assert replay.columns["end_ps"][0] == 27_011 * US
    requests = Run.from_replay(replay).requests
    assert requests.column("kv_load_ms").to_pylist() == [8.0]
    assert requests.column("decode_wait_ms").to_pylist() == [8.0]


def test_the_head_of_a_report_says_so() -> None:
    run = Run.from_replay(replayed([(0.0, 8, 2, [1, 2])], decode_preemption="recompute", **SLOW))
    (line,) = [line for line in headline(run) if line.startswith("cluster")]
    assert line.endswith(", KVCache loaded to decode at 0.001 GB/s, preemption by recompute")


def test_without_the_setting_it_joins_when_its_kvcache_arrives() -> None:
    replay = replayed([(0.0, 8, 2, [1, 2])])
    assert replay.columns["join_ps"][0] == replay.columns["kv_arrival_ps"][0]
    assert Run.from_replay(replay).requests.column("kv_load_ms").null_count == 1


def test_loads_share_the_host_link_in_order_while_the_batch_goes_on() -> None:
    # 6 tokens arrive just after 6 ms, load for 6 and join: a step of 10 + 1 + .007. 8 tokens arrive just after 8 ms,
    # wait for the link, load for 8 beside that step, and join after it.
    replay = replayed([(0.0, 8, 2, [1, 2]), (0.0, 6, 3, [3, 4])], **SLOW)
    late, early = replay.columns["kv_arrival_ps"].tolist()
    assert replay.columns["join_ps"].tolist() == [early + 17_007 * US, early + 6 * MS]
    run = Run.from_replay(replay)
    loads = [(early + 14 * MS - late) / MS, 6.0]
    assert run.requests.column("kv_load_ms").to_pylist() == loads
    assert run.metrics()["mean_kv_load_ms"].value == pytest.approx(sum(loads) / 2)


def test_what_does_not_fit_waits_in_dram_and_is_loaded_when_there_is_room() -> None:
    # VRAM 14. Row 0 (context 5, 3 tokens: 2 steps) arrives at 4.001, loads for 4 ms and joins. Row 1 (context 9)
    # arrives at 8.002: 5 + 1 + 9 + 1 = 16 > 14. Row 0 leaves after steps of 11.005 and 11.006; row 1 loads for 8 ms.
    replay = replayed([(0.0, 4, 3, [1]), (0.0, 8, 2, [2, 3])], vram=14, **SLOW)
    arrived = int(replay.columns["kv_arrival_ps"][0])
    assert replay.columns["join_ps"].tolist() == [arrived + 4 * MS, arrived + 34_011 * US]  # 4 + 11.005 + 11.006 + 8
    assert Run.from_replay(replay).requests.column("kv_load_ms").to_pylist() == [4.0, 8.0]  # not the wait for room


def test_what_never_fits_fails() -> None:
    replay = replayed([(0.0, 20, 3, [1, 2, 3, 4, 5])], vram=20, **SLOW)
    assert replay.columns["status"].tolist() == [3]  # failed: 21 + 1 > 20


# Two requests of 4 tokens, 10 to make, VRAM 14: contexts 5 + 5, after 2 steps together 7 + 7, and 14 + 2 > 14: the last
# joined gives way, and does not fit (7 + 7 + 2) before the other has left.
PAIR = [(0.0, 4, 10, [1]), (0.0, 4, 10, [2])]


def test_swapping_in_costs_a_load_where_loading_does() -> None:
    replay = replayed(PAIR, vram=14, **SLOW)
    first_end = int(replay.columns["end_ps"][0])
    *_, (rejoin, _) = stays_of(replay, 1)
    # Loads of 4 ms follow one another, 4.001-8.001-12.001: row 0 has done a step when row 1 joins, 6 + 5 + 2 <= 14.
    # After one together, 7 + 6 + 2 > 14: row 1 gives way with context 6, 5 of which have KVCache.
    assert stays_of(replay, 1)[0][1] == 1
    assert rejoin == first_end + 5 * MS


def test_swapping_in_is_free_where_loading_is() -> None:
    replay = replayed(PAIR, vram=14)
    *_, (rejoin, _) = stays_of(replay, 1)
    assert stays_of(replay, 1)[0][1] == 2
    assert rejoin == replay.columns["end_ps"][0]


def test_a_dropped_context_is_prefilled_again_before_it_rejoins() -> None:
    # It gave way with context 7, of which 6 tokens had KVCache: 6 ms. All its tokens come, none twice.
    replay = replayed(PAIR, vram=14, decode_preemption="recompute")
    *_, (rejoin, steps) = stays_of(replay, 1)
    assert rejoin == replay.columns["end_ps"][0] + 6 * MS
    assert steps == 7
    assert replay.counters["recomputed_tokens"] == 6


def test_the_batch_pauses_while_a_context_is_computed_again() -> None:
    # VRAM 30, three of context 5: 5 steps, 10 + 10 + 10 + 3 > 30: the last gives way. 2 steps later row 1 has its 8
    # tokens and leaves: 12 are left. 12 + 10 + 2 fit, so 9 tokens are computed again, 9 ms; the next step takes
    # 10 + 2 + .022: row 0 waits 21.022 ms for that token.
    rows = [(0.0, 4, 20, [1]), (0.0, 4, 8, [2]), (0.0, 4, 10, [3])]
    replay = replayed(rows, vram=30, decode_preemption="recompute")
    times = token_times_ps(replay)[0]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps[7] == 21_022 * US
    assert max(gaps) == gaps[7]
    assert Run.from_replay(replay).requests.column("tbt_max_ms").to_pylist()[0] == pytest.approx(21.022)
    assert [steps for _, steps in stays_of(replay, 2)] == [5, 4]


def test_both_together_load_what_arrives_and_compute_what_was_dropped() -> None:
    replay = replayed(PAIR, vram=14, decode_preemption="recompute", **SLOW)
    *_, (rejoin, _) = stays_of(replay, 1)
    # As with swapping, it gives way after one step with context 6; 5 tokens take 5 ms to compute.
    assert rejoin == replay.columns["end_ps"][0] + 5 * MS


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 14), st.integers(1, 14)), min_size=1, max_size=12),
    st.integers(15, 60),
    st.sampled_from([None, 1e-3, 4e-3]),
    st.sampled_from(["swap", "recompute"]),
    st.booleans(),
)
def test_accounts_balance_whatever_the_memory(
    work: list[tuple[int, int, int]], vram: int, rate: float | None, preemption: str, fails: bool
) -> None:
    work = sorted((at - min(work)[0], n, out) for at, n, out in work)
    rows = [(float(at), n, out, [9 * row + i for i in range(-(-n // 4))]) for row, (at, n, out) in enumerate(work)]
    events = "20ms:fail:decode:0,90ms:recover:decode:0" if fails else None
    setup = {"decode_load_gbytes_per_s": rate, "decode_preemption": preemption, "events": events}
    replay = replayed(rows, vram=vram, cluster="2P+2D", **setup)
    too_large = [out > 1 and n + out > vram for _, n, out in work]  # its last step holds n + out tokens
    assert replay.columns["status"].tolist() == [3 if large else 1 for large in too_large]


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(1, 50), st.integers(2, 30), st.floats(1e-4, 1), st.floats(1.01, 10))
def test_a_faster_link_never_lengthens_a_request(tokens: int, output: int, rate: float, more: float) -> None:
    rows = [(0.0, tokens, output, list(range(-(-tokens // 4))))]
    slow, fast = (
        replayed(rows, decode_load_gbytes_per_s=gbytes).columns["end_ps"][0] for gbytes in (rate, rate * more)
    )
    assert fast <= slow


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"cluster": "2P+0D", "decode_load_gbytes_per_s": 50}, "decode.load_gbytes_per_s: .* nothing decodes"),
        ({"cluster": "2P+0D", "decode_preemption": "recompute"}, "decode.preemption: .* nothing decodes"),
        ({"cluster": "2M", "decode_preemption": "recompute"}, "decode.preemption: no effect on cluster 2M"),
        ({"decode_preemption": "drop"}, "expected one of swap, recompute"),
        ({"decode_load_gbytes_per_s": 0}, "must be above 0"),
    ],
)
def test_settings_without_effect_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(SetupError, match=reason):
        Setup(**settings)
