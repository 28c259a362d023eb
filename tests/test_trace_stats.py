"""What is in a trace: counted by hand, by brute force, and against the oracle of the published trace."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_bench.trace import Trace, ceiling_tokens, info, load
from mooncake_bench.trace.likeness import lru_hit_blocks
from mooncake_bench.trace.published import KNOWN, Known
from mooncake_bench.trace.published import published as published_facts
from mooncake_bench.trace.sharing import Labels, Walk
from mooncake_bench.trace.stats import NO_PREFIX_IDS, arrivals, ceiling_blocks
from mooncake_bench.trace.summary import summary, summary_of_counts

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
    assert seen["dispersion"][0] == {"window_ms": 1000, "windows": 4, "max_requests": 3, "index": 2.0}
    assert seen["request_rate_rps"] == pytest.approx(7 / 4)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40))
def test_a_summary_of_counts_is_the_summary_of_the_numbers_written_out(values: list[int]) -> None:
    assert summary_of_counts(np.bincount(values)) == pytest.approx(summary(np.array(values)))
    assert summary_of_counts(np.zeros(3, np.int64)) == {"count": 0}


# ---- who shares what, how soon, and how much is in use at once


def test_sharing_counts_depth_fan_out_popularity_and_reuse(trace: Trace) -> None:
    shared = info(trace)["sharing"]
    # first appearances: 1 2 3 at depths 1 2 3, 4 at 3, 9 at 1, 8 at 1
    depth = shared["block_depth"]
    assert (depth["count"], depth["sum"], depth["max"]) == (6, 1 + 2 + 3 + 3 + 1 + 1, 3)
    assert shared["seen_once_ratio"] == pytest.approx(3 / 6)
    # 12 references: block 2 has 4 of them, all six blocks have all
    assert shared["top_shares"] == [{"blocks": 1, "reference_ratio": pytest.approx(4 / 12)}]
    # children: 1 has {2}, 2 has {3, 4}, 8 has {2}; 3, 4, 9 have none
    fan_out = {line["children"]: line["blocks"] for line in shared["fan_out"]}
    assert (fan_out["1"], fan_out["2"], sum(fan_out.values())) == (2, 1, 3)
    # block 1: 10, 10 ms; block 2: 10, 10, 20; block 3: 20
    gaps = shared["reuse_gap_ms"]
    assert (gaps["count"], gaps["sum"], gaps["min"], gaps["max"]) == (6, 80, 10, 20)


def test_the_working_set_counts_what_was_used_within_the_window(trace: Trace) -> None:
    walk = Walk(trace, windows_ms=(5, 10, 1000))
    five, ten, long, whole = walk.working_set()
    # 5 ms: each request alone: 3, 3, 3, 1, 2 blocks. 10 ms, both ends counted: {123}, {1234}, {1234}, {1239}, {982}
    assert [line["max_blocks"] for line in (five, ten, long, whole)] == [3, 4, 6, 6]
    # 5 ms: 10 references at 0 .. 30 ms are kept for 5 ms each, those of 40 ms for none; over 40 ms
    assert five["mean_blocks"] == pytest.approx(10 * 5 / 40)
    # 10 ms: the same references for 10 ms each
    assert ten["mean_blocks"] == pytest.approx(10 * 10 / 40)
    # for ever: block 1 and 2 and 3 from 0, 4 from 10, 9 from 30 to 40 ms
    assert long["mean_blocks"] == pytest.approx((3 * 40 + 30 + 10) / 40)
    assert [line["reused_blocks"] for line in (five, ten, long, whole)] == [0, 4, 6, 6]
    assert [line["reused_ratio"] for line in (ten, whole)] == pytest.approx([4 / 12, 6 / 12])
    assert (whole["window_ms"], whole["mean_blocks"], whole["max_tokens"]) == (None, None, 60)


def slow_working_set(trace: Trace, window_ms: float) -> int:
    """The most distinct blocks that requests of any window use, one request at a time."""
    most = 0
    for end in range(len(trace)):
        rows = [row for row in range(end + 1) if trace.arrival_ms[row] >= trace.arrival_ms[end] - window_ms]
        most = max(most, len({block for row in rows for block in trace.blocks(row).tolist()}))
    return most


@given(st.data(), st.sampled_from([1, 2**40]), st.sampled_from([1, 7, 10**6]))
def test_a_walk_in_small_pieces_equals_a_slow_count(data: st.DataObject, scale: int, piece: int) -> None:
    """Pieces of 1 or 7 references cross every boundary; ids far apart are numbered first."""
    ids = st.lists(st.integers(0, 6), min_size=1, max_size=4, unique=True)
    rows = data.draw(st.lists(st.tuples(st.integers(0, 30), ids), min_size=1, max_size=10))
    rows.sort(key=lambda row: row[0])
    made = Trace.of(
        [(float(at), 4 * len(row), 1, [scale * block for block in row]) for at, row in rows], block_tokens=4
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mooncake_bench.trace.sharing.PIECE_ENTRIES", piece)
        patch.setattr("mooncake_bench.trace.stats.CHUNK_ENTRIES", piece)
        walk = Walk(made, windows_ms=(0, 3, 11))
        ceilings = ceiling_blocks(made, np.arange(len(made)))
    assert [line["max_blocks"] for line in walk.working_set()[:-1]] == [slow_working_set(made, w) for w in (0, 3, 11)]
    assert walk.ceiling_blocks.tolist() == ceilings.tolist()
    assert (walk.ceiling_blocks * 4).tolist() == brute_force(made, list(range(len(made))))
    last: dict[int, float] = {}
    gaps, uses, edges = [], {}, set()
    for (at, _), row in zip(rows, range(len(made)), strict=True):
        blocks = made.blocks(row).tolist()
        edges |= set(pairwise(blocks))
        for block in blocks:
            gaps += [at - rows[0][0] - last[block]] if block in last else []
            last[block] = at - rows[0][0]
            uses[block] = uses.get(block, 0) + 1
    facts = walk.facts()
    assert sorted(walk.gaps_ms.tolist()) == sorted(gaps)
    assert facts["top_blocks"] == [[b, n] for b, n in sorted(uses.items(), key=lambda use: (-use[1], use[0]))]
    parents = [sum(child == block for _, child in edges) for block in uses]
    children = [sum(parent == block for parent, _ in edges) for block in uses]
    assert facts["blocks_with_two_parents"] == sum(count > 1 for count in parents)
    assert (facts["branching_blocks"], facts["max_children"]) == (sum(c > 1 for c in children), max(children))


def test_an_lru_pool_of_the_working_set_never_misses_what_was_used_within_the_window() -> None:
    trace = load("conversation-like").select(max_requests=1500)
    walk = Walk(trace, windows_ms=(30_000,))
    line = walk.working_set()[0]
    # hits of leading blocks, and ids are prefix-chained, so each reused block within the window is a hit of that pool
    assert lru_hit_blocks(trace, line["max_blocks"]) >= line["reused_blocks"]


def test_ids_nearly_dense_are_their_own_labels_and_others_are_numbered() -> None:
    dense, sparse = np.array([3, 0, 5, 3]), np.array([2**62, 7, 2**62, 2**40])
    assert Labels(dense).of(dense).tolist() == [3, 0, 5, 3]
    assert Labels(sparse).of(sparse).tolist() == [2, 0, 2, 1]
    assert Labels(sparse).ids(np.array([0, 1, 2])).tolist() == [7, 2**40, 2**62]


def test_ids_of_a_file_on_disk_are_counted_as_those_in_memory(trace: Trace, tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", trace.block_ids)
    mapped = np.load(tmp_path / "ids.npy", mmap_mode="r")
    columns = (trace.arrival_ms, trace.input_tokens, trace.output_tokens, trace.block_offsets, mapped)
    assert Walk(Trace("t", *columns, block_tokens=10)).facts() == Walk(trace).facts()


def test_a_trace_without_prefix_ids_says_so_instead_of_0_percent(trace: Trace) -> None:
    columns = (trace.arrival_ms, trace.input_tokens, trace.output_tokens, trace.block_offsets, np.arange(12))
    facts = info(Trace("t", *columns, block_tokens=10, metadata={"prefix_ids": "none"}))
    assert facts["no_prefix_ids"] == NO_PREFIX_IDS
    assert [facts[key] for key in ("sharing", "infinite_cache", "working_set", "published")] == [None] * 4
    assert facts["early_turns"]["parents"] is None
    assert info(trace)["no_prefix_ids"] is None


# ---- what is published of a trace


def test_a_known_trace_is_known_by_its_counts_and_sums_not_its_name(trace: Trace) -> None:
    facts = info(trace)
    assert facts["published"] is None
    known = Known("ours", "a test", 5, 22, 3, 0.41, sums=(110, 15, 12))
    facts["block_tokens"] = 512
    assert known.is_it(facts)
    assert not known.is_it(facts | {"requests": 6})
    assert not known.is_it(facts | {"block_tokens": 16})
    assert not known.is_it(facts | {"sharing": facts["sharing"] | {"blocks": 13}})
    by_means = Known("ours", "a test", 5, 22, 3, 0.41)  # means 110 / 5 = 22 and 15 / 5 = 3
    assert by_means.is_it(facts)
    assert not Known("ours", "a test", 5, 23, 3, 0.41).is_it(facts)


def test_the_bundled_likenesses_are_not_taken_for_the_published_traces() -> None:
    assert [info(load(name))["published"] for name in ("conversation-like", "toolagent-like")] == [None, None]


@pytest.mark.parametrize("name", ["conversation", "synthetic"])
def test_published_traces_are_recognised_and_compared_as_the_oracle_does(name: str, shared: Path) -> None:
    facts = info(load(shared / "traces" / "mooncake-fast25" / f"{name}_trace.jsonl"))
    oracle = json.loads((shared / "oracles" / "published-comparison.json").read_text("utf-8"))["fast25_table2"][name]
    found = facts["published"]
    paper, ours = oracle["paper"], oracle["ours"]
    assert found["requests"] == paper["n"] == facts["requests"]
    assert (found["input_tokens_mean"], found["output_tokens_mean"]) == (paper["avg_in"], paper["avg_out"])
    assert found["hit_ratio"] == paper["ratio"]
    by_name = {line["definition"]: line["hit_ratio"] for line in found["definitions"]}
    assert by_name["hit blocks of all blocks"] == pytest.approx(ours["block_ratio"], rel=1e-12)
    assert by_name["hit tokens of all prompt tokens"] == pytest.approx(ours["prefix_token_ratio"], rel=1e-12)
    assert by_name["hit blocks over full blocks"] == pytest.approx(ours["prefix_hits_over_floor_L_512"], rel=1e-12)
    assert by_name["mean over requests of hit tokens"] == pytest.approx(ours["mean_per_request_token_ratio"], rel=1e-12)
    assert by_name["tokens, second half of requests"] == pytest.approx(ours["second_half_token_ratio"], rel=1e-12)
    # the oracle's own nearest: .398 of .40 (second half), .6612 of .66 (over full blocks)
    # in the first, and hits of full blocks only, which the oracle has not, are .1 point below .66 in the second
    if name == "conversation":
        assert found["definitions"][0]["definition"] == "tokens, second half of requests"
    else:
        assert {line["definition"] for line in found["definitions"] if round(line["hit_ratio"], 2) == 0.66} == {
            "hit full blocks of all full blocks",
            "hit blocks over full blocks",
        }
        assert "hit blocks over full blocks" in found["nearest"]


def test_a_copy_saved_and_reordered_ids_are_still_recognised(shared: Path) -> None:
    trace = load(shared / "traces" / "mooncake-fast25" / "synthetic_trace.jsonl")
    columns = (trace.arrival_ms * 2, trace.input_tokens, trace.output_tokens, trace.block_offsets, trace.block_ids + 5)
    assert info(Trace("copy", *columns))["published"]["name"] == "Mooncake's synthetic trace"
    assert info(trace.select(max_requests=3992))["published"] is None


def test_every_known_trace_of_table_2_carries_its_published_numbers() -> None:
    table = {known.name: (known.requests, known.input_mean, known.output_mean, known.hit_ratio) for known in KNOWN}
    assert table["Mooncake's conversation trace"] == (12_031, 12_035, 343, 0.40)
    assert table["Mooncake's synthetic trace"] == (3_993, 15_325, 149, 0.66)
    assert table["Mooncake's tool & agent trace"] == (23_608, 8_596, 182, 0.59)


def test_when_no_definition_rounds_to_the_published_value_that_is_said(trace: Trace) -> None:
    facts = info(trace) | {"block_tokens": 512}
    with pytest.MonkeyPatch.context() as patch:
        known = Known("ours", "a test", 5, 22, 3, 0.99, sums=(110, 15, 12))
        patch.setattr("mooncake_bench.trace.published.KNOWN", (known,))
        found = published_facts(facts)
    assert found is not None
    assert "yet none rounds to it" in found["nearest"]


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
