"""Transforms of one trace: parts, jitter, ticks, larger blocks; counted by hand, or read from the prompts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_making import assert_unchanged, blocks_of, frozen_copy, prompts, trace_of, traces

from mooncake_bench.errors import TraceError
from mooncake_bench.trace import Trace, ceiling_tokens, load
from mooncake_bench.trace.grid import coarse_grid_ms
from mooncake_bench.trace.model import NO_SESSION
from mooncake_bench.trace.transform import every, jitter, part, reblock, spread_ticks


def rows_of(trace: Trace) -> list[tuple[object, ...]]:
    """Each request without its time, as something that can be sorted."""
    ids = trace.request_ids()
    return sorted(
        (ids[row], int(trace.input_tokens[row]), int(trace.output_tokens[row]), tuple(trace.blocks(row).tolist()))
        for row in range(len(trace))
    )


def ticks(n: int, apart_ms: float = 3000.0, each: int = 4) -> Trace:
    """``each`` requests at every tick, of one block each."""
    return trace_of([[row] for row in range(n)], [row // each * apart_ms for row in range(n)])


# ---- parts


def test_every_second_request_is_rows_0_2_4_and_keeps_its_id() -> None:
    trace = trace_of([[1], [2], [3], [4], [5]], [0, 10, 20, 30, 40])
    thin = every(trace, 2)
    assert thin.arrival_ms.tolist() == [0, 20, 40]
    assert thin.request_ids() == ("0", "2", "4")
    assert [thin.blocks(row).tolist() for row in range(3)] == [[0], [2], [4]]
    assert thin.metadata["transform"] == "one request in 2 of 5"


def test_a_delay_whose_turn_before_was_left_out_becomes_unknown() -> None:
    # sessions: rows 0, 2, 4 are one; rows 1, 3 another. Taken: 0, 2, 4, each with the turn before it.
    sessions, delays = np.array([7, 8, 7, 8, 7]), np.array([np.nan, 1.0, 2.0, 3.0, 4.0])
    trace = trace_of([[1], [2], [3], [4], [5]], [0, 1, 2, 3, 4], session_id=sessions, delay_ms=delays)
    kept = every(trace, 2)
    np.testing.assert_array_equal(kept.delay_ms, [np.nan, 2.0, 4.0])
    assert kept.notices == ()
    # now all rows are one session: of row 2 and row 4 the turn before is missing
    lost = every(trace_of([[1], [2], [3], [4], [5]], [0, 1, 2, 3, 4], session_id=sessions * 0, delay_ms=delays), 2)
    np.testing.assert_array_equal(lost.delay_ms, [np.nan, np.nan, np.nan])
    assert lost.notices == ("2 turns stand without the turn before them: one request in 2 was taken",)


def test_a_part_is_a_stretch_then_every_kth_then_at_most_so_many() -> None:
    trace = trace_of([[row] for row in range(10)], [10.0 * row for row in range(10)])
    # arrivals in [20, 90) are rows 2..8; every second of them 2, 4, 6, 8; at most three 2, 4, 6
    some = part(trace, 20, 90, 2, 3)
    assert some.request_ids() == ("2", "4", "6")
    assert some.arrival_ms.tolist() == [0, 20, 40]


def test_a_part_of_nothing_and_a_step_below_one_are_refused() -> None:
    trace = trace_of([[1], [2]], [0, 10])
    with pytest.raises(TraceError, match="0 requests after selecting"):
        part(trace, 20, 30)
    with pytest.raises(TraceError, match="every is 0; expected at least 1"):
        every(trace, 0)


# ---- jitter


@given(traces(), st.floats(0.001, 100), st.integers(0, 5))
def test_jitter_moves_arrivals_only_and_leaves_its_input_alone(trace: Trace, jitter_ms: float, seed: int) -> None:
    before = frozen_copy(trace)
    moved = jitter(trace, jitter_ms, seed)
    assert_unchanged(trace, before)
    assert rows_of(moved) == rows_of(trace)
    assert moved.arrival_ms[0] == 0
    assert (np.diff(moved.arrival_ms) >= 0).all()
    # each time moved by at most j and then counted from the first, itself moved by at most j
    assert abs(moved.span_ms - trace.span_ms) <= 2 * jitter_ms + 1e-9
    assert moved == jitter(trace, jitter_ms, seed)


@given(traces(), st.floats(0.001, 100))
def test_jitter_keeps_the_turns_of_a_session_in_order(trace: Trace, jitter_ms: float) -> None:
    if trace.session_id is None:
        return
    moved = jitter(trace, jitter_ms)
    assert moved.session_id is not None
    assert moved.source_row is not None
    for session in set(moved.session_id.tolist()) - {NO_SESSION}:
        assert (np.diff(moved.source_row[moved.session_id == session]) > 0).all()


def test_jitter_is_uniform_in_its_range() -> None:
    # 4,000 requests 1 s apart, ±100 ms: order stays. The moves have mean 0 and variance 100² / 3.
    trace = ticks(4000, 1000.0, each=1)
    moved = jitter(trace, 100, seed=3)
    moves = moved.arrival_ms - trace.arrival_ms
    moves -= moves.mean()
    assert np.abs(moves).max() <= 105
    assert moves.std() == pytest.approx(100 / 3**0.5, rel=0.03)
    assert moved.metadata["transform"] == "jitter ±100 ms, seed 3"


@pytest.mark.parametrize("jitter_ms", [0, -1, float("nan"), float("inf")])
def test_a_jitter_that_is_no_time_above_0_is_refused(jitter_ms: float) -> None:
    with pytest.raises(TraceError, match="expected a finite number above 0"):
        jitter(ticks(2), jitter_ms)


# ---- ticks


@pytest.mark.parametrize("how", ["uniform", "poisson"])
def test_spread_requests_stay_in_their_tick_and_in_order(how: str) -> None:
    trace = ticks(40)
    spread = spread_ticks(trace, how, seed=1)
    # times count from the first arrival, which lies up to 3 s into its tick: so every time is within 3 s of its tick
    assert (np.abs(spread.arrival_ms - trace.arrival_ms) < 3000).all()
    assert (np.diff(spread.arrival_ms) >= 0).all()
    assert spread.request_ids() == trace.request_ids()
    assert len(np.unique(spread.arrival_ms)) == 40
    assert spread == spread_ticks(trace, how, seed=1) != spread_ticks(trace, how, seed=2)
    assert not any("coarse grid" in notice for notice in spread.notices)


def test_uniform_puts_one_request_in_each_part_of_a_tick() -> None:
    spread = spread_ticks(ticks(400), "uniform", seed=5)
    # Four requests in 3,000 ms: parts of 750 ms. The first arrival became 0, so that all are `first` parts early: one
    # number between 0 and 1 must bring request k of every tick into [k, k + 1).
    places = (spread.arrival_ms.reshape(100, 4) - 3000.0 * np.arange(100)[:, None]) / 750 - np.arange(4)
    least, most = -places.min(), 1 - places.max()
    assert 0 <= least <= most <= 1


def test_poisson_gaps_inside_a_tick_are_those_of_independent_times() -> None:
    # 2,000 ticks of 4 requests: the gap between neighbours of 4 uniform times in 1 tick is 1/5 of it on average
    spread = spread_ticks(ticks(8000), "poisson", seed=2)
    gaps = np.diff(spread.arrival_ms.reshape(2000, 4), axis=1)
    assert gaps.mean() == pytest.approx(3000 / 5, rel=0.03)


def test_a_tick_ends_where_the_next_begins() -> None:
    # 20 requests at 0, 20 at 1 s, 20 at 4 s, 20 at 7 s: the usual gap is 3 s, yet the first tick has 1 s only
    at = np.repeat([0.0, 1000.0, 4000.0, 7000.0], 20)
    spread = spread_ticks(trace_of([[row] for row in range(80)], at.tolist()), "uniform")
    assert spread.arrival_ms[19] < 1000
    assert (np.diff(spread.arrival_ms) >= 0).all()


def test_without_a_coarse_grid_there_is_nothing_to_spread() -> None:
    with pytest.raises(TraceError, match="its arrivals lie on no coarse grid; leave spread-ticks out"):
        spread_ticks(ticks(40, each=1), "uniform")
    with pytest.raises(TraceError, match="spread-ticks is 'unifrom'; expected one of uniform, poisson; did you mean"):
        spread_ticks(ticks(40), "unifrom")


def test_two_grids_at_once_are_none_and_are_not_spread() -> None:
    # three requests at 0, 3 s, 6 s, ... and three at 0.2 s, 3.2 s, ...: gaps of 0.2 and 2.8 s, multiples of no step
    at = np.sort(np.concatenate([np.repeat(3000.0 * np.arange(30), 3), np.repeat(3000.0 * np.arange(30) + 200, 3)]))
    assert coarse_grid_ms(at) is None
    said = "on no one regular grid: the 60 distinct times of 180 requests are not multiples of one step apart"
    with pytest.raises(TraceError, match=said):
        spread_ticks(trace_of([[row] for row in range(180)], at.tolist()), "uniform")


@pytest.mark.parametrize(
    ("times", "each", "grid_ms"),
    [
        ([0, 3000, 6000, 12000, 15000], 5, 3000),  # a tick without requests
        ([0, 2999, 6001, 9000, 12002, 14999], 4, 3000),  # a clock that is up to 2 ms off: gaps 2999 to 3002, median
        ([500, 3500, 6500, 9500, 12500], 5, 3000),  # the grid need not begin at 0
        ([0, 1000, 4000, 7000], 20, 3000),  # one odd gap
        ([0, 1000, 3000, 5000, 6000, 8000, 10000], 4, 1000),  # the usual gap, 2 s, is two steps
        ([0, 700, 3000, 3700, 6000, 6700], 4, None),  # two grids
        ([0, 1, 3000, 3001, 6000, 6001], 4, None),
        ([0, 13, 200, 1050, 1800, 4000], 4, None),  # none at all
        ([0, 3000], 9, None),  # 18 requests: too few
        ([0, 3000], 10, 3000),
        ([7], 20, None),
    ],
)
def test_a_grid_is_one_step_that_gaps_are_multiples_of(times: list[float], each: int, grid_ms: float | None) -> None:
    found = coarse_grid_ms(np.repeat(np.array(times, np.float64), each))
    assert found == (None if grid_ms is None else pytest.approx(grid_ms, abs=2))


# ---- larger blocks


def test_three_prompts_in_blocks_of_four_counted_by_hand() -> None:
    # blocks of 2:  [1 2][3 4][5 6][7]   ids 0 1 2 3      blocks of 4: [1 2 3 4][5 6 7]  ids 1 3
    #               [1 2][3 4][5 6]      ids 0 1 2                     [1 2 3 4][5 6]    ids 1 2
    #               [1 2][9]             ids 0 4                       [1 2 9]           id  4
    trace = trace_of([[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6], [1, 2, 9]], [0, 1, 2])
    coarse = reblock(trace, 4)
    assert [coarse.blocks(row).tolist() for row in range(3)] == [[1, 3], [1, 2], [4]]
    assert coarse.block_tokens == 4
    assert coarse.metadata["block_tokens"] == "4"
    assert coarse.metadata["transform"] == "blocks of 2 tokens joined to 4"
    # infinite cache: fine 0, 6, 2 tokens; coarse 0, 4 (the 5 6 end a block of the first that goes on), 0
    assert ceiling_tokens(trace, np.arange(3)).tolist() == [0, 6, 2]
    assert ceiling_tokens(coarse, np.arange(3)).tolist() == [0, 4, 0]


@given(st.lists(prompts, min_size=1, max_size=8), st.sampled_from([4, 6, 8]))
def test_coarse_blocks_mean_what_blocks_cut_from_the_prompts_mean(some: list[list[int]], size: int) -> None:
    trace = trace_of(some, list(range(len(some))))
    coarse = reblock(trace, size)
    straight = trace_of(some, list(range(len(some))), size)
    np.testing.assert_array_equal(coarse.block_offsets, straight.block_offsets)
    # the same ids stand in the same places, whatever they are called
    pairs = set(zip(coarse.block_ids.tolist(), straight.block_ids.tolist(), strict=True))
    assert len(pairs) == len({one for one, _ in pairs}) == len({other for _, other in pairs})


@given(st.lists(prompts, min_size=1, max_size=8), st.sampled_from([4, 6, 8]))
def test_hits_in_full_coarse_blocks_are_the_floor_of_the_fine_ones_and_none_is_gained(
    some: list[list[int]], size: int
) -> None:
    trace = trace_of(some, list(range(len(some))))
    rows = np.arange(len(some))
    fine, coarse = ceiling_tokens(trace, rows), ceiling_tokens(reblock(trace, size), rows)
    assert (coarse <= fine).all()
    full = trace.input_tokens // size * size
    np.testing.assert_array_equal(np.minimum(coarse, full), np.minimum(fine // size * size, full))


@given(traces(), st.integers(1, 4))
def test_reblock_keeps_requests_and_tokens_and_leaves_its_input_alone(trace: Trace, times: int) -> None:
    before = frozen_copy(trace)
    coarse = reblock(trace, 2 * times)
    assert_unchanged(trace, before)
    np.testing.assert_array_equal(coarse.input_tokens, trace.input_tokens)
    np.testing.assert_array_equal(coarse.arrival_ms, trace.arrival_ms)
    np.testing.assert_array_equal(np.diff(coarse.block_offsets), -(-trace.input_tokens // (2 * times)))
    assert all(len(set(coarse.blocks(row).tolist())) == len(coarse.blocks(row)) for row in range(len(coarse)))


@pytest.mark.parametrize("size", [1, 3, 0, -2, 10**12])
def test_only_multiples_of_the_block_size_are_possible(size: int) -> None:
    with pytest.raises(TraceError, match=r"expected a multiple of its block size, 2"):
        reblock(trace_of([[1, 2, 3]], [0]), size)


def test_ids_that_are_not_prefix_chained_are_refused() -> None:
    # block 9 follows block 1 in one row and block 2 in the other: it stands for its own tokens only
    for big in (0, 2**60):
        trace = Trace.of([(0, 4, 1, [1, big + 9]), (1, 4, 1, [2, big + 9])], block_tokens=2)
        with pytest.raises(TraceError, match=rf"row . .*block {big + 9} follows another block here than elsewhere"):
            reblock(trace, 4)
    with pytest.raises(TraceError, match="expected prefix-chained ids"):
        reblock(Trace.of([(0, 2, 1, [5]), (1, 4, 1, [2, 5])], block_tokens=2), 4)


def test_the_conversation_trace_in_blocks_of_1024_hits_the_floor_of_its_fine_hits(shared: object) -> None:
    trace = load(f"{shared}/traces/mooncake-fast25/conversation_trace.jsonl")
    coarse = reblock(trace, 1024)
    rows = np.arange(len(trace))
    fine, joined = ceiling_tokens(trace, rows), ceiling_tokens(coarse, rows)
    full = trace.input_tokens // 1024 * 1024
    np.testing.assert_array_equal(np.minimum(joined, full), np.minimum(fine // 1024 * 1024, full))
    assert len(blocks_of(range(int(trace.input_tokens[0])), 1024)) == len(coarse.blocks(0))
