"""The sampled run: by hand, and against a loop over every sample."""

from __future__ import annotations

import numpy as np
import pytest
from test_results_tiny import MS, all_rejected, interrupted, tiny_replay, tiny_run

from mooncake_bench.results.content import content_sha256
from mooncake_bench.results.records import Records
from mooncake_bench.results.store import read_manifest, read_table, write_run
from mooncake_bench.results.timeline import TIMELINE, interval_ms, timeline
from mooncake_bench.sim.replay import Replay, run
from mooncake_bench.sim.setup import Setup
from mooncake_bench.trace import Trace


def sampled(replay: Replay, interval: float) -> dict[str, list[float]]:
    found: dict[str, list[float]] = timeline(Records.of(replay), interval).to_pydict()
    return found


def test_the_hand_counted_loads() -> None:
    found = sampled(tiny_replay(), 5.0)
    assert found["time_ms"] == [0, 5, 10, 15, 20, 25, 30, 35, 40]
    # prefill work left, ms: at 0 a's 8; at 5 a's last 3, b's 2, c's 4 = 9; at 10 c's 4; then none. TTFT SLO 8.5 ms
    assert found["prefill_load_ratio"][:4] == [8 / 8.5, 9 / 8.5, 4 / 8.5, 0]
    # at 10 and 15 a alone: a step of 11.009 against 20 ms; at 20 still (until 20.009); at 25 the step of 12.021,
    # at 35 (from 32.030) that of 12.023; VRAM 1000 never counts
    assert found["decode_load_ratio"] == [0, 0] + [11.009 / 20] * 3 + [12.021 / 20] * 2 + [12.023 / 20] * 2
    assert found["decoding_requests"] == [0, 0, 1, 1, 1, 2, 2, 2, 2]
    assert found["decoding_tokens"] == [0, 0, 9, 9, 9, 21, 21, 23, 23]


def test_the_hand_counted_states_and_counts() -> None:
    found = sampled(tiny_replay(), 5.0)
    assert found["queued_requests"][:3] == [0, 2, 0]  # b and c wait while a runs
    assert found["prefilling_requests"][:3] == [1, 1, 1]
    assert found["transferring_requests"] == [0, 0, 1, 0, 0, 0, 0, 0, 0]  # b from 10 to 12
    assert found["waiting_requests"] == [0, 0, 0, 1, 1, 0, 0, 0, 0]  # b from 12 to 20.009
    assert found["arrived_requests"] == [2, 2, 0, 0, 0, 0, 0, 0, 0]
    assert found["completed_requests"] == [0, 0, 1, 0, 0, 0, 0, 0, 2]  # c at 14, a and b at 44.053
    assert found["rejected_arrival_requests"] == [0, 1, 0, 0, 0, 0, 0, 0, 0]
    # busy until 14 without a pause; decode from 9 to 44.053
    assert found["prefill_utilisation_ratio"][:4] == [1, 1, 0.8, 0]
    assert found["decode_utilisation_ratio"][:3] == [0, 0.2, 1]
    assert found["decode_utilisation_ratio"][-1] == pytest.approx(4.053 / 5)


def test_a_full_vram_is_a_load_too() -> None:
    found = sampled(tiny_replay(vram_tokens=np.array([0, 25])), 5.0)
    assert found["decode_load_ratio"][5] == 21 / 25
    assert found["decode_load_ratio"][7] == 23 / 25


def test_an_idle_fetch_counts_as_outstanding_work() -> None:
    replay = tiny_replay()
    columns = dict(replay.columns)
    # b's prefix is fetched until 9: it is at the head from 8, starts at 9, and c after it at 11
    columns["start_ps"] = np.array([0, 9 * MS, 11 * MS, -1])
    columns["head_ps"] = np.array([0, 8 * MS, 11 * MS, -1])
    columns["first_token_ps"] = np.array([8 * MS, 11 * MS, 15 * MS, -1])
    found = sampled(tiny_replay(columns=columns), 8.5)
    # at 8.5: half a ms of fetch, then 2 and 4 ms of prefill
    assert found["prefill_load_ratio"][1] == pytest.approx(6.5 / 8.5)


def test_preempted_requests_wait_between_their_stays() -> None:
    replay = tiny_replay()
    records = Records.of(replay)
    # a pretended second stay of a from 60 ms on: it waits from the end of its first one, 44.053
    stays = {name: np.append(column, column[0]) for name, column in replay.stays.items()}
    stays["join_ps"][-1] = 60 * MS
    paused = Records.of(tiny_replay(stays=stays, horizon_ps=70 * MS))
    found = timeline(paused, 10.0).to_pydict()["waiting_requests"]
    assert found == [0, 0, 1, 0, 0, 1, 0, 0]
    assert timeline(records, 10.0).to_pydict()["waiting_requests"] == [0, 0, 1, 0, 0]


@pytest.mark.parametrize(
    ("horizon", "step"), [(0, 1), (2_000, 1), (2_001, 2), (10_001, 10), (3_573_000, 2_000), (4e9, 2e6)]
)
def test_the_interval_is_round_and_gives_at_most_about_2000_samples(horizon: float, step: float) -> None:
    assert interval_ms(horizon) == step


def test_many_instances_are_sampled_less_often() -> None:
    assert interval_ms(4_000_000, 4_000) == 5_000  # at most 1,000 samples


@pytest.mark.parametrize("replay", [all_rejected(), interrupted()])
def test_an_odd_run_has_a_timeline_with_the_usual_types(replay: Replay) -> None:
    table = timeline(Records.of(replay))
    assert table.schema == TIMELINE
    unknown = {name for name in table.column_names if table.column(name).null_count}
    assert unknown == {"pool_blocks", "pool_distinct_blocks"}  # which nobody looked at in these


def test_every_sample_equals_what_a_loop_over_all_segments_finds() -> None:
    replay = tiny_replay()
    found = sampled(replay, 1.0)
    segments = [dict(zip(replay.segments, row, strict=True)) for row in zip(*replay.segments.values(), strict=True)]
    for time, tokens in zip(found["time_ms"], found["decoding_tokens"], strict=True):
        expected = 0
        for segment in segments:
            clock = segment["start_ps"]
            for j in range(segment["steps"]):
                step = segment["step_ps"] + j * segment["growth_ps"]
                if clock <= time * MS < clock + step:
                    expected += segment["tokens"] + j * segment["batch"]
                clock += step
        assert tokens == expected


def test_the_pool_holds_at_each_sample_what_it_held_after_the_latest_arrival() -> None:
    at_ms, blocks, distinct = np.array([3, 4, 4, 9]), np.array([2, 5, 6, 7]), np.array([2, 4, 5, 5])
    seen = {"time_ps": at_ms * MS, "blocks": blocks, "distinct_blocks": distinct}
    found = timeline(Records.of(tiny_replay(occupancy=seen)), 2.0).to_pydict()
    # samples at 0, 2, 4, 6, 8, 10, ...: nothing came before 3; at 4 the second arrival of that moment counts
    assert found["pool_blocks"][:6] == [None, None, 6, 6, 6, 7]
    assert found["pool_distinct_blocks"][:6] == [None, None, 5, 5, 5, 5]
    assert set(found["pool_blocks"][6:]) == {7}


def test_the_pool_of_a_replay_counts_each_copy_and_each_block_once() -> None:
    # two instances of 4 blocks, requests in turn: 0 gets (1, 2), 1 gets (1, 2) as well, 0 gets (1, 2, 3)
    trace = Trace.of([(0, 8, 1, [1, 2]), (1000, 8, 1, [1, 2]), (2000, 12, 1, [1, 2, 3])], block_tokens=4)
    setup = Setup(cluster="2P+1D", pool_blocks=4, policy="round-robin")
    found = timeline(Records.of(run(trace, setup)), 500.0).to_pydict()
    assert found["pool_blocks"][:5] == [2, 2, 4, 4, 5]
    assert found["pool_distinct_blocks"][:5] == [2, 2, 2, 2, 3]


def test_a_run_stored_before_pools_were_looked_at_reads_as_one_that_was_not(tmp_path) -> None:
    made = tiny_run()
    old = made.timeline.drop_columns(["pool_blocks", "pool_distinct_blocks"])
    manifest = dict(made.manifest, content_sha256={"timeline": content_sha256(old)})
    folder = write_run(manifest, {"timeline": old}, tmp_path)
    assert read_table(folder, "timeline", read_manifest(folder)).equals(made.timeline)
