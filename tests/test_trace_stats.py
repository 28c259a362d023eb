"""What is in a trace: counted by hand, by brute force, and against the oracle of the published trace."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_bench.trace import Trace, ceiling_tokens, info, load
from mooncake_bench.trace.likeness import lru_hit_blocks
from mooncake_bench.trace.stats import arrivals, ceiling_blocks, summary

if TYPE_CHECKING:
    from pathlib import Path

# Blocks of 10 tokens. Row 0: 25 tokens, blocks 1 2 3. Row 1 shares 1 2. Row 2 is row 0 again. Row 3 shares nothing;
# row 4 has block 2 behind an unknown head: a hole, no hit.
ROWS = [
    (0.0, 25, 1, [1, 2, 3]),
    (10.0, 30, 2, [1, 2, 4]),
    (20.0, 25, 3, [1, 2, 3]),
    (30.0, 10, 4, [9]),
    (40.0, 20, 5, [8, 2]),
]


@pytest.fixture
def trace() -> Trace:
    return Trace.of(ROWS, block_tokens=10)


def test_the_ceiling_is_the_longest_prefix_seen_before_and_never_beyond_the_prompt(trace: Trace) -> None:
    # row 2: all three blocks hit, 30 tokens of slots, but the prompt has 25
    assert ceiling_tokens(trace, np.arange(5)).tolist() == [0, 20, 25, 0, 0]
    assert ceiling_blocks(trace, np.arange(5)).tolist() == [0, 2, 3, 0, 0]


def test_the_ceiling_follows_the_processed_order_and_marks_rows_that_were_not(trace: Trace) -> None:
    # processed 2, 0, 1: row 2 is first and misses, row 0 hits all its 25 tokens, row 1 two blocks
    assert ceiling_tokens(trace, np.array([2, 0, 1])).tolist() == [25, 20, 0, -1, -1]


def test_no_processed_row_gives_no_ceiling(trace: Trace) -> None:
    assert ceiling_tokens(trace, np.array([], np.int64)).tolist() == [-1] * 5


def brute_force(trace: Trace, rows: list[int]) -> list[int]:
    """Infinite-cache prefixes by a set of seen blocks, one request at a time."""
    hits, seen = [-1] * len(trace), set()
    for row in rows:
        blocks = trace.blocks(row).tolist()
        run = 0
        while run < len(blocks) and blocks[run] in seen:
            run += 1
        hits[row] = min(run * trace.block_tokens, int(trace.input_tokens[row]))
        seen.update(blocks)
    return hits


@given(st.data(), st.sampled_from([5, 2**40, 2**63 - 1]))
def test_ceilings_equal_a_set_of_seen_blocks_whatever_the_ids_and_the_order(data: st.DataObject, top: int) -> None:
    ids = st.lists(st.integers(max(0, top - 6), top), min_size=1, max_size=5, unique=True)
    blocks = data.draw(st.lists(ids, min_size=1, max_size=8))
    trace = Trace.of([(0.0, 4 * len(row) - 1, 1, row) for row in blocks], block_tokens=4)
    rows = data.draw(st.permutations(range(len(blocks))))[: data.draw(st.integers(0, len(blocks)))]
    assert ceiling_tokens(trace, np.array(rows, np.int64)).tolist() == brute_force(trace, rows)


def test_a_trace_without_reuse_has_a_ceiling_of_zero() -> None:
    trace = Trace.of([(0.0, 20, 1, [2 * row, 2 * row + 1]) for row in range(50)], block_tokens=10)
    ideal = info(trace)["infinite_cache"]
    assert (ideal["hit_blocks"], ideal["hit_tokens"], ideal["requests_with_hit"]) == (0, 0, 0)
    assert ideal["hit_ratio_tokens"] == 0


def test_each_hit_ratio_has_its_own_denominator(trace: Trace) -> None:
    ideal = info(trace)["infinite_cache"]
    # hits: 2 blocks (20 tokens) and 3 blocks (25 tokens, 2 of them full) of 12 blocks, 110 tokens, 10 full blocks
    assert (ideal["hit_blocks"], ideal["hit_tokens"], ideal["hit_full_blocks"]) == (5, 45, 4)
    assert ideal["full_blocks"] == 2 + 3 + 2 + 1 + 2
    assert ideal["hit_ratio_blocks"] == pytest.approx(5 / 12)
    assert ideal["hit_ratio_tokens"] == pytest.approx(45 / 110)
    assert ideal["hit_ratio_full_blocks"] == pytest.approx(4 / 10)
    assert ideal["hit_blocks_over_full_blocks"] == pytest.approx(5 / 10)
    assert ideal["mean_request_hit_ratio_tokens"] == pytest.approx((20 / 30 + 1) / 5)
    # the first 5 // 2 = 2 rows only warm: 3 hit blocks of the 6 that are left
    assert ideal["second_half"]["hit_ratio_blocks"] == pytest.approx(3 / 6)


def test_sharing_counts_blocks_roots_and_branches(trace: Trace) -> None:
    shared = info(trace)["sharing"]
    assert (shared["blocks"], shared["unique_blocks"], shared["blocks_seen_once"]) == (12, 6, 3)  # once: 4, 9, 8
    assert shared["top_blocks"][:3] == [[2, 4], [1, 3], [3, 2]]
    assert (shared["root_blocks"], shared["top_root_share"]) == (3, pytest.approx(3 / 5))
    assert (shared["branching_blocks"], shared["max_children"]) == (1, 2)  # block 2 leads to 3 and to 4
    assert shared["blocks_with_two_parents"] == 1  # block 2 follows 1 and 8


def test_sessions_are_counted_and_requests_without_one_apart(trace: Trace) -> None:
    columns = (trace.arrival_ms, trace.input_tokens, trace.output_tokens, trace.block_offsets, trace.block_ids)
    told = Trace("t", *columns, block_tokens=10, session_id=np.array([7, 7, 8, -1, 7]))
    counted = info(told)["sessions"]
    assert (counted["sessions"], counted["requests_without"]) == (2, 1)
    assert (counted["turns"]["max"], counted["turns"]["mean"]) == (3, 2.0)
    assert info(trace)["sessions"] is None


def test_what_is_undefined_is_none_and_everything_is_strict_json() -> None:
    single = info(Trace.of([(0.0, 5, 1, [1])]))
    assert single["arrivals"]["request_rate_rps"] is None
    assert single["arrivals"]["gap_cv"] is None
    assert all(row["index"] is None for row in single["arrivals"]["dispersion"])
    assert single["infinite_cache"]["hit_ratio_full_blocks"] is None  # 5 tokens: no full block
    json.dumps(single, allow_nan=False)


def test_percentiles_are_linear_and_carry_their_count() -> None:
    facts = summary(np.array([10, 20, 30, 40]))
    assert facts["count"] == 4
    assert facts["p50"] == 25.0  # halfway between 20 and 30
    assert facts["p25"] == 17.5  # rank .25 * 3 = .75 between 10 and 20
    assert summary(np.array([], np.int64)) == {"count": 0}


def test_dispersion_is_variance_over_mean_of_the_counts_in_whole_windows() -> None:
    # seconds with 3, 0, 3, 0 arrivals, then one at 4 s that closes the fourth window: mean 1.5, variance 9/3 = 3
    seen = arrivals(np.array([0, 100, 200, 2000, 2100, 2200, 4000], np.float64))
    assert seen["dispersion"][0] == {"window_ms": 1000, "windows": 4, "index": 2.0}
    assert seen["request_rate_rps"] == pytest.approx(7 / 4)


def test_an_lru_pool_hits_what_it_still_holds() -> None:
    # A B | C | A B with room for two: C pushes A out, then A pushes B out: no hit. Room for three: both hit.
    trace = Trace.of([(0.0, 20, 1, [1, 2]), (1.0, 10, 1, [3]), (2.0, 20, 1, [1, 2])], block_tokens=10)
    assert lru_hit_blocks(trace, 2) == 0
    assert lru_hit_blocks(trace, 3) == 2


@pytest.fixture(scope="module")
def published(request: pytest.FixtureRequest) -> tuple[Trace, dict[str, Any], dict[str, Any]]:
    shared: Path = request.getfixturevalue("shared")
    trace = load(shared / "traces" / "mooncake-fast25" / "conversation_trace.jsonl")
    return trace, info(trace), json.loads((shared / "oracles" / "mooncake-conversation.json").read_text("utf-8"))


def test_lengths_of_the_conversation_trace_equal_the_oracle(published: Any) -> None:
    _, facts, oracle = published
    for ours, theirs in (("input_tokens", "input_length"), ("output_tokens", "output_length")):
        for key in ("mean", "p50", "p90", "p99", "min", "max", "sum"):
            assert facts[ours][key] == oracle[theirs][key], (ours, key)


def test_arrivals_of_the_conversation_trace_equal_the_oracle(published: Any) -> None:
    _, facts, oracle = published
    seen, expected = facts["arrivals"], oracle["timestamp"]
    assert facts["span_ms"] == expected["duration_ms"]
    assert seen["distinct_times"] == expected["distinct"]
    assert seen["equal_to_previous"] == expected["equal_to_previous"]
    assert seen["max_at_one_time"] == expected["max_same_timestamp"]
    assert seen["request_rate_rps"] == pytest.approx(expected["mean_rate_rps"], rel=1e-12)
    assert seen["grid_ms"] == 3000


def test_sharing_in_the_conversation_trace_equals_the_oracle(published: Any) -> None:
    _, facts, oracle = published
    shared = facts["sharing"]
    assert shared["blocks"] == oracle["total_blocks"]
    assert shared["unique_blocks"] == oracle["unique_blocks"]
    assert shared["blocks_seen_once"] == oracle["blocks_seen_once"]
    assert shared["top_blocks"] == oracle["top10_block_counts"]
    assert shared["blocks_with_two_parents"] == oracle["structure"]["lookups_with_other_parent"] == 0
    assert shared["blocks_per_request"]["max"] == oracle["max_blocks_per_request"]


def test_infinite_cache_hits_of_the_conversation_trace_equal_the_oracle(published: Any) -> None:
    _, facts, oracle = published
    ideal, expected = facts["infinite_cache"], oracle["infinite_cache"]
    assert ideal["hit_tokens"] == expected["prefix_tokens"]
    assert ideal["hit_blocks"] == oracle["forward"]["lru"]["inf"]["prefix_block_hits"]
    assert ideal["full_blocks"] == oracle["full_blocks_floor"]
    assert ideal["requests_with_hit"] == expected["requests_with_any_hit"]
    assert ideal["hit_ratio_blocks"] == expected["prefix_block_ratio"]
    assert ideal["hit_ratio_tokens"] == expected["prefix_token_ratio"]
    assert ideal["hit_blocks_over_full_blocks"] == expected["prefix_hits_over_full_blocks"]
    assert ideal["mean_request_hit_ratio_tokens"] == pytest.approx(expected["mean_per_request_token_ratio"], rel=1e-12)
    half = expected["second_half_only"]
    assert ideal["second_half"]["hit_tokens"] == half["prefix_token_hits"]
    assert ideal["second_half"]["hit_blocks"] == half["prefix_block_hits"]


@pytest.mark.parametrize("capacity", [1000, 5859])
def test_lru_hits_of_the_conversation_trace_equal_the_oracle(published: Any, capacity: int) -> None:
    trace, _, oracle = published
    assert lru_hit_blocks(trace, capacity) == oracle["forward"]["lru"][str(capacity)]["prefix_block_hits"]
