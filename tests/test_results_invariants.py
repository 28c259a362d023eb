"""Each invariant is broken once, and each breach is named with its facts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_results_tiny import (
    COMPLETED,
    FAILED,
    MS,
    SEGMENT_NAMES,
    STAY_NAMES,
    UNFINISHED,
    US,
    changed,
    interrupted,
    table,
    tiny_columns,
    tiny_replay,
    tiny_trace,
)  # fmt: skip

from mooncake_bench.errors import InvariantError
from mooncake_bench.results.invariants import check
from mooncake_bench.results.records import Records
from mooncake_bench.results.run import Run

SEGMENTS = [(1, 9_000 * US, 0, 1, 11_009 * US, US, 1, 9), (1, 20_009 * US, 1, 2, 12_021 * US, 2 * US, 2, 21)]
STAYS = [(0, 1, 9_000 * US, 0, 3), (1, 1, 20_009 * US, 1, 2)]


def segments(row: int, name: str, value: int) -> dict[str, Any]:
    found = table(SEGMENT_NAMES, *SEGMENTS)
    found[name][row] = value
    return {"segments": found}


def stays(row: int, name: str, value: int) -> dict[str, Any]:
    found = table(STAY_NAMES, *STAYS)
    found[name][row] = value
    return {"stays": found}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"columns": changed("status", 3, UNFINISHED)}, "rejected exactly with a stage"),
        ({"columns": changed("status", 0, UNFINISHED)}, "an end exactly when it has ended"),
        ({"columns": changed("status", 0, 9)}, "offered 4 requests, but the accounts hold"),
        ({"columns": changed("reject_reason", 3, -1)}, "rejected exactly with a reason"),
        ({"columns": changed("end_ps", 2, -1)}, "an end exactly when it has ended"),
        ({"columns": changed("head_ps", 1, 3 * MS)}, "arrival_ps comes before head_ps.*row 1: arrival_ps 4000000000"),
        ({"columns": changed("start_ps", 1, -1)}, "start_ps comes before first_token_ps"),
        ({"columns": changed("first_token_ps", 2, 13 * MS)}, "prefill lasts as long as its cost"),
        ({"columns": changed("kv_arrival_ps", 0, 7 * MS)}, "first_token_ps comes before kv_arrival_ps"),
        ({"columns": changed("join_ps", 1, 11 * MS)}, "kv_arrival_ps comes before join_ps"),
        ({"columns": changed("end_ps", 0, 20 * MS)}, "second_token_ps is not after the end"),
        ({"columns": changed("hit_tokens", 1, 9)}, "exceeds the infinite cache's.*hit_tokens 9, ceiling_tokens 8"),
        ({"columns": changed("hit_blocks", 1, 1)}, r"hit_tokens = min\(hit_blocks \* block, input\)"),
        ({"columns": changed("computed_tokens", 1, 3)}, r"computed = max\(1, input - hit\)"),
        ({"columns": changed("fetched_tokens", 1, 9)}, "fetched tokens are hits"),
        ({"columns": changed("prefill_instance", 2, 1)}, "an instance that does not prefill"),
        ({"columns": changed("second_token_ps", 0, 20_008 * US)}, "second token ends its first step"),
        ({"columns": changed("end_ps", 1, 45 * MS)}, "its request ends with its last step"),
        (stays(1, "steps", 1), "it ends with a segment"),
        (stays(1, "first_step", 2), "its steps exist"),
        (stays(0, "first_step", 7), "its steps exist"),
        (stays(1, "join_ps", 20_008 * US), "its first step starts when it joins"),
        (segments(1, "batch", 3), "its batch counts its members"),
        (segments(1, "tokens", 22), "its tokens are its members' contexts.*tokens 22"),
        (segments(1, "start_ps", 20_008 * US), "its first step starts when it joins"),
        ({"vram_tokens": np.array([0, 24])}, "its contexts fit in VRAM"),  # 21 + 2 steps of 2 = 25
        ({"is_decode": np.array([True, False])}, "a decode instance ran it"),
        ({"stays": table(STAY_NAMES)}, "a completed request did output_tokens - 1 steps"),
    ],
)  # fmt: skip
def test_a_broken_rule_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvariantError, match=words):
        check(Records.of(tiny_replay(**changes)))


def test_two_prefills_at_once_on_one_instance_are_found() -> None:
    columns = tiny_columns()
    columns["head_ps"][1] = columns["start_ps"][1] = 7 * MS  # a runs until 8
    columns["prefill_ps"][1] = 3 * MS
    with pytest.raises(InvariantError, match=r"ran two prefills at once: rows 0 \(until 8000000000 ps\) and 1"):
        check(Records.of(tiny_replay(columns=columns)))


def test_a_segment_that_starts_before_the_last_one_ended_is_found() -> None:
    overlapping = [SEGMENTS[0], (1, 20_000 * US, 1, 2, 12_021 * US, 2 * US, 2, 21)]
    moved = [STAYS[0], (1, 1, 20_000 * US, 1, 2)]
    columns = tiny_columns()
    columns["join_ps"][1] = 20_000 * US
    columns["second_token_ps"][1] = 32_021 * US
    columns["end_ps"][:2] = 44_044 * US
    replay = tiny_replay(columns=columns, segments=table(SEGMENT_NAMES, *overlapping), stays=table(STAY_NAMES, *moved))
    with pytest.raises(InvariantError, match="the next one starts after its end"):
        check(Records.of(replay))


def test_a_failed_request_must_have_been_routed() -> None:
    columns = changed("status", 3, FAILED)
    columns["reject_stage"][3], columns["reject_reason"][3], columns["prefill_instance"][3] = 0, -1, -1
    with pytest.raises(InvariantError, match="failed only after routing"):
        check(Records.of(tiny_replay(columns=columns)))


def test_a_completed_request_must_have_its_first_token() -> None:
    columns = changed("status", 3, COMPLETED)
    columns["reject_stage"][3], columns["reject_reason"][3] = 0, -1
    with pytest.raises(InvariantError, match="completed with a first token"):
        check(Records.of(tiny_replay(columns=columns)))


def test_only_an_interrupted_replay_may_leave_requests_unfinished() -> None:
    check(Records.of(interrupted()))
    columns = tiny_columns()
    for name in ("head", "start", "first_token", "kv_arrival", "join", "second_token", "end"):
        columns[f"{name}_ps"][2] = -1
    columns["status"][2] = UNFINISHED
    columns["computed_tokens"][2] = columns["prefill_ps"][2] = 0
    with pytest.raises(InvariantError, match="a replay that ran to its end"):
        check(Records.of(tiny_replay(columns=columns)))


def test_every_run_is_checked_when_it_is_made() -> None:
    with pytest.raises(InvariantError, match="prefill lasts as long as its cost"):
        Run.from_replay(tiny_replay(columns=changed("prefill_ps", 0, 1)))


def test_the_ceiling_counts_no_request_that_was_rejected_at_arrival() -> None:
    # were a rejected, nobody would have stored blocks 1 and 2 before b
    columns = tiny_columns()
    for name in ("head", "start", "first_token", "kv_arrival", "join", "second_token"):
        columns[f"{name}_ps"][0] = -1
    columns["status"][0], columns["reject_stage"][0], columns["reject_reason"][0] = 2, 1, 0
    records = Records.of(tiny_replay(columns=columns))
    assert records.ceiling_tokens.tolist() == [-1, 0, 0, -1]
    assert len(tiny_trace()) == 4
