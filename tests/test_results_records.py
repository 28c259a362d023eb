"""The requests table: its columns, types, nulls and numbers."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from test_results_tiny import all_rejected, interrupted, one_request, tiny_columns, tiny_replay, tiny_trace

from mooncake_bench.results.content import content_sha256
from mooncake_bench.results.records import REQUESTS, Records
from mooncake_bench.sim.setup import Setup

# The order that the conventions give, and what this tool adds.
COMMON = """request_id, arrival_ms, input_tokens, output_tokens, status, reject_stage, reject_reason, prefill_instance,
decode_instance, hit_tokens, hit_blocks, fetched_tokens, queue_ms, fetch_ms, prefill_ms, kv_transfer_ms,
decode_wait_ms, ttft_ms, first_gap_ms, tpot_ms, tbt_ms, tbt_max_ms, e2e_ms, prefill_gpu_ms, wasted_prefill_tokens,
preemptions, slo_ttft_ok, slo_tbt_ok, slo_ok, predicted_ttft_ms, predicted_tbt_ms"""


def rows(replay: object = None) -> dict[str, list[object]]:
    """The requests table of a replay (default: the tiny one) as lists."""
    table: dict[str, list[object]] = Records.of(replay or tiny_replay()).requests().to_pydict()  # type: ignore[arg-type]
    return table


def test_columns_come_in_the_agreed_order() -> None:
    assert REQUESTS.names[:31] == re.split(r",\s+", COMMON)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("request_id", ["a", "b", "c", "d"]),
        ("arrival_ms", [0, 4, 5, 6]),
        ("status", ["completed", "completed", "completed", "rejected"]),
        ("reject_stage", [None, None, None, "arrival"]),
        ("reject_reason", [None, None, None, "busy"]),
        ("prefill_instance", [0, 0, 0, None]),
        ("decode_instance", [1, 1, 1, None]),
        ("hit_tokens", [0, 8, 0, None]),
        ("hit_blocks", [0, 2, 0, None]),
        ("ceiling_tokens", [0, 8, 0, None]),  # a's blocks 1, 2 are what b could hit at most
        ("computed_tokens", [8, 2, 4, None]),
        ("queue_ms", [0, 4, 5, None]),
        ("fetch_ms", [0, 0, 0, None]),
        ("prefill_ms", [8, 2, 4, None]),
        ("kv_transfer_ms", [1, 2, None, None]),
        ("decode_wait_ms", [0, 8.009, None, None]),  # b: 12 -> 20.009
        ("ttft_ms", [8, 6, 9, None]),
        ("first_gap_ms", [12.009, 22.03, None, None]),
        ("tpot_ms", [pytest.approx(36.053 / 3), 17.0265, None, None]),  # b: (44.053 - 10) / 2
        ("tbt_ms", [12.023, 22.03, None, None]),
        ("tbt_max_ms", [12.023, 22.03, None, None]),
        ("e2e_ms", [44.053, 40.053, 9, None]),
        ("prefill_gpu_ms", [8, 2, 4, None]),
        ("wasted_prefill_tokens", [0, 0, 0, 0]),
        ("slo_ttft_ok", [True, True, False, None]),  # 8.5 ms: c waited 5 and took 4
        ("slo_tbt_ok", [True, False, None, None]),  # 20 ms; c has no gap: not judged
        ("slo_ok", [True, False, False, False]),  # a rejected request is never within its SLOs
        ("predicted_ttft_ms", [8, 5, None, 20]),
        ("predicted_tbt_ms", [None, 15, None, None]),
        ("end_ms", [44.053, 44.053, 14, 6]),
        ("session_id", [None] * 4),
        ("priority", [None] * 4),
    ],
)
def test_the_hand_counted_column(column: str, values: list[object]) -> None:
    assert rows()[column] == values


def test_a_one_token_request_within_its_ttft_is_within_its_slos() -> None:
    loose = replace(tiny_replay().setup, slo_ttft_ms=9.0)
    assert rows(tiny_replay(setup=loose))["slo_ok"] == [True, False, True, False]


@pytest.mark.parametrize(
    ("metric", "judged"),
    # a's gaps 12.009 12.021 12.023, b's 22.030 12.023: the mean of b is 17.0265, its p99 22.03 - .01 * 10.007
    [("tail10", [True, False]), ("max", [True, False]), ("mean", [True, True]), ("p99", [True, False])],
)
def test_the_chosen_tbt_is_the_one_that_is_judged(metric: str, judged: list[bool]) -> None:
    setup = Setup(cluster="1P+1D", slo_tbt_ms=20.0, tbt_metric=metric)
    found = rows(tiny_replay(setup=setup))
    assert found["slo_tbt_ok"][:2] == judged
    assert found["tbt_ms"][:2] == [12.023, 22.03]  # the column keeps its definition


def test_without_the_first_gap_every_tbt_is_of_the_others() -> None:
    found = rows(tiny_replay(setup=Setup(cluster="1P+1D", slo_tbt_ms=20.0, first_gap="exclude")))
    assert found["tbt_ms"][:2] == [12.023, 12.023]
    assert found["slo_tbt_ok"][:2] == [True, True]
    assert found["first_gap_ms"][:2] == [12.009, 22.03]  # still told


def test_a_rejection_at_decode_wastes_its_prefill_and_shows_no_latency() -> None:
    columns = tiny_columns()
    for name in ("join", "second_token"):
        columns[f"{name}_ps"][1] = -1
    columns["status"][1], columns["reject_stage"][1], columns["reject_reason"][1] = 2, 3, 1
    columns["end_ps"][1] = columns["kv_arrival_ps"][1]
    found = rows(tiny_replay(columns=columns))
    row = {name: values[1] for name, values in found.items()}
    assert (row["reject_stage"], row["reject_reason"], row["wasted_prefill_tokens"]) == ("decode", "full", 2)
    assert (row["queue_ms"], row["prefill_ms"], row["kv_transfer_ms"]) == (4, 2, 2)  # what happened is told
    assert row["ttft_ms"] is row["e2e_ms"] is row["tbt_ms"] is row["slo_ttft_ok"] is None
    assert row["slo_ok"] is False


def test_an_unfinished_request_has_the_latencies_that_came() -> None:
    found = rows(interrupted())
    assert found["ttft_ms"] == [8, 6, 9, None]
    assert found["e2e_ms"] == [None, None, 9, None]
    assert found["slo_ok"] == [None, None, False, None]
    assert found["wasted_prefill_tokens"] == [None, None, 0, None]


def test_columns_without_any_value_keep_their_types() -> None:
    table = Records.of(all_rejected()).requests()
    assert table.schema == REQUESTS
    assert table.column("ttft_ms").null_count == 4
    both = pa.concat_tables([table, Records.of(tiny_replay()).requests()])
    assert both.num_rows == 8


def test_rows_without_ids_are_numbered() -> None:
    trace = replace(tiny_trace(), request_id=None)
    assert rows(tiny_replay(trace=trace))["request_id"] == ["0", "1", "2", "3"]


def test_sessions_and_priorities_are_kept_and_a_missing_session_is_null() -> None:
    trace = replace(tiny_trace(), session_id=np.array([7, 7, -1, 8]), priority=np.array([0, 1, 0, 2]))
    found = rows(tiny_replay(trace=trace))
    assert found["session_id"] == [7, 7, None, 8]
    assert found["priority"] == [0, 1, 0, 2]


def test_times_beyond_float_precision_of_ps_are_still_exact_to_the_ns() -> None:
    replay = one_request(4)
    shift = 2**61  # 26 days in ps
    columns = {n: np.where(c >= 0, c + shift, c) if n.endswith("_ps") else c for n, c in replay.columns.items()}
    columns["prefill_ps"] = replay.columns["prefill_ps"]
    segments = replay.segments | {"start_ps": replay.segments["start_ps"] + shift}
    stays = replay.stays | {"join_ps": replay.stays["join_ps"] + shift}
    far = rows(replace(replay, columns=columns, segments=segments, stays=stays))
    near = rows(replay)
    for name in ("ttft_ms", "tbt_ms", "tpot_ms", "e2e_ms", "first_gap_ms"):
        assert far[name] == near[name]


def test_the_content_hash_ignores_layout_and_sees_every_value() -> None:
    table = Records.of(tiny_replay()).requests()
    again = pa.concat_tables([table.slice(0, 1), table.slice(1)])  # two chunks
    assert content_sha256(again) == content_sha256(table)
    words = table.set_column(4, REQUESTS.field("status"), pa.array(["completed"] * 4))
    assert content_sha256(words) != content_sha256(table)
    nulls = table.set_column(17, REQUESTS.field("ttft_ms"), pa.array([8.0, 6.0, None, None]))
    zeros = table.set_column(17, REQUESTS.field("ttft_ms"), pa.array([8.0, 6.0, 0.0, None]))
    assert content_sha256(nulls) != content_sha256(zeros)
