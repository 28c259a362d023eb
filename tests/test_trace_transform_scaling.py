"""More load by time, copies and sessions."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from trace_making import assert_unchanged, blocks_of, frozen_copy, prompts, shared_blocks, trace_of, traces

from mooncake_bench.errors import TraceError
from mooncake_bench.trace import Trace, load
from mooncake_bench.trace.grid import coarse_grid_ms
from mooncake_bench.trace.model import NO_SESSION
from mooncake_bench.trace.scaling import openings, scale_copies, scale_sessions, scale_time
from mooncake_bench.trace.sessions import MAX_FOLLOWERS

SHARED = ("none", "roots", "openings")


def gaps(trace: Trace) -> Counter[tuple[float, ...]]:
    """The times between the turns of each session, and how many sessions have them."""
    assert trace.session_id is not None
    ids = set(trace.session_id.tolist()) - {NO_SESSION}
    return Counter(tuple(np.diff(trace.arrival_ms[trace.session_id == one]).tolist()) for one in ids)


def sharing_of(trace: Trace, rows: list[int]) -> list[list[int]]:
    """How many leading blocks each pair of rows shares."""
    return [[shared_blocks(trace, one, other) for other in rows] for one in rows]


# ---- time


@given(traces(), st.sampled_from([0.25, 0.5, 2.0, 8.0]))
def test_time_divides_arrivals_and_delays_and_nothing_else(trace: Trace, factor: float) -> None:
    before = frozen_copy(trace)
    fast = scale_time(trace, factor)
    assert_unchanged(trace, before)
    np.testing.assert_array_equal(fast.arrival_ms * factor, trace.arrival_ms)  # powers of two: exact
    if trace.delay_ms is not None:
        assert fast.delay_ms is not None
        np.testing.assert_array_equal(fast.delay_ms * factor, trace.delay_ms)
    for name in ("input_tokens", "output_tokens", "block_ids", "block_offsets", "session_id", "priority"):
        np.testing.assert_array_equal(getattr(fast, name), getattr(trace, name))
    assert fast.request_ids() == trace.request_ids()


@pytest.mark.parametrize("factor", [0, -1, float("nan"), float("inf"), 1e-300])
def test_a_factor_that_stretches_time_beyond_reason_is_refused(factor: float) -> None:
    with pytest.raises(TraceError, match="expected a number above 0 that leaves a span of at most 1e\\+14 ms"):
        scale_time(trace_of([[1], [2]], [0, 1]), factor)


# ---- copies


def test_two_copies_by_hand() -> None:
    # one root [1 2] that two prompts go on from; 5 ms apart; copies begin up to 5 ms later (the mean gap)
    trace = trace_of([[1, 2, 3, 4], [1, 2, 5]], [0, 5], session_id=np.array([4, NO_SESSION]), request_id=("a", "b"))
    twice = scale_copies(trace, 2, shared="none")
    assert len(twice) == 4
    assert sorted(twice.request_ids()) == ["a", "a+1", "b", "b+1"]
    rows = {name: row for row, name in enumerate(twice.request_ids())}
    offset = twice.arrival_ms[rows["a+1"]]
    assert 0 < offset < 5
    assert twice.arrival_ms[rows["b"]] == 5
    assert twice.arrival_ms[rows["b+1"]] == 5 + offset
    # ids 0 1 | 0 2 of the trace, of which there are 3: the copy's are 3 4 | 3 5; session 4 becomes 4 + 5
    assert [twice.blocks(rows[name]).tolist() for name in ("a", "b", "a+1", "b+1")] == [[0, 1], [0, 2], [3, 4], [3, 5]]
    assert twice.session_id is not None
    assert [int(twice.session_id[rows[name]]) for name in ("a", "b", "a+1", "b+1")] == [4, -1, 9, -1]
    assert twice.metadata["transform"] == "2 copies, offsets up to 5 ms, shared blocks: none, seed 0"


def test_a_request_id_that_looks_like_a_copy_is_not_taken_twice() -> None:
    trace = trace_of([[1], [2]], [0, 1], request_id=("a", "a+1"))
    assert sorted(scale_copies(trace, 2).request_ids()) == ["a", "a++1", "a+1", "a+1++1"]


@given(traces(), st.integers(1, 4), st.sampled_from(SHARED), st.integers(0, 3))
def test_copies_have_each_request_so_often_and_share_inside_what_it_shared(
    trace: Trace, copies: int, shared: str, seed: int
) -> None:
    before = frozen_copy(trace)
    more = scale_copies(trace, copies, seed, shared, max_offset_ms=0.5)
    assert_unchanged(trace, before)
    assert len(more) == copies * len(trace)
    assert more.input_tokens.sum() == copies * trace.input_tokens.sum()
    assert more.output_tokens.sum() == copies * trace.output_tokens.sum()
    assert len(set(more.request_ids())) == len(more)
    assert (np.diff(more.arrival_ms) >= 0).all()
    assert more == scale_copies(trace, copies, seed, shared, max_offset_ms=0.5)
    lengths = sorted(trace.input_tokens.tolist() * copies)
    assert sorted(more.input_tokens.tolist()) == lengths
    if copies == 1:
        assert more == trace


@given(st.lists(prompts, min_size=2, max_size=6), st.sampled_from(SHARED))
def test_two_copies_share_the_openings_and_nothing_else(some: list[list[int]], shared: str) -> None:
    # no offset and stable order: the copies of request i are rows 2 i and 2 i + 1 when no two arrive together
    trace = trace_of(some, [10.0 * row for row in range(len(some))])
    twice = scale_copies(trace, 2, shared=shared, max_offset_ms=0)
    first, second = list(range(0, 2 * len(some), 2)), list(range(1, 2 * len(some), 2))
    assert sharing_of(twice, first) == sharing_of(twice, second) == sharing_of(trace, list(range(len(some))))
    marked, heads = openings(trace), trace.block_offsets
    for row in range(len(some)):
        opening = int(marked[heads[row] : heads[row + 1]].sum())
        expected = {"none": 0, "roots": min(opening, 1), "openings": opening}[shared]
        assert shared_blocks(twice, 2 * row, 2 * row + 1) == expected


def test_openings_are_what_leads_to_a_block_that_more_than_four_different_ones_follow() -> None:
    # [0 0][1 1] is followed by five blocks: both are of the opening, also where a prompt ends with them or between them
    ends = [[0, 0, 1, 1, 10 + n] for n in range(MAX_FOLLOWERS + 1)]
    some = [*ends, [0, 0, 1, 1], [0, 0, 7, 7], [8, 8]]
    trace = trace_of(some, range(len(some)))
    marked = openings(trace)
    found = [marked[trace.block_offsets[row] : trace.block_offsets[row + 1]].tolist() for row in range(len(some))]
    assert found == [[True, True, False]] * 5 + [[True, True], [True, False], [False]]
    # with one less, none is
    assert not openings(trace_of(some[1:], range(len(some) - 1))).any()


@given(st.lists(prompts, min_size=1, max_size=12))
def test_openings_are_those_of_a_slow_reading_of_the_rule(some: list[list[int]]) -> None:
    after: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for prompt in some:
        chain = blocks_of(prompt, 1)
        for block, following in pairwise(chain):
            after.setdefault(block, set()).add(following)
    wide = {block for block, following in after.items() if len(following) > MAX_FOLLOWERS}
    expected = [
        any(other[: len(block)] == block for other in wide) for prompt in some for block in blocks_of(prompt, 1)
    ]
    assert openings(trace_of(some, range(len(some)), 1)).tolist() == expected


@pytest.mark.parametrize("copies", [0, 2.5, -1, float("nan"), float("inf"), 10**6])
def test_only_whole_copies(copies: float) -> None:
    with pytest.raises(TraceError, match=r"scale by copies: factor is .*; expected a whole number from 1 to 10,000"):
        scale_copies(trace_of([[1]], [0]), copies)


def test_ids_too_large_to_be_copied_are_numbered_anew() -> None:
    plain = trace_of([[1, 2, 3, 4], [1, 2, 5]], [0, 5])
    big = Trace("t", plain.arrival_ms, plain.input_tokens, plain.output_tokens, plain.block_offsets,
                plain.block_ids + (2**63 - 9), block_tokens=2, session_id=np.array([2**63 - 1, 7]))  # fmt: skip
    twice = scale_copies(big, 2, shared="none", max_offset_ms=0)
    assert [twice.blocks(row).tolist() for row in range(4)] == [[0, 1], [3, 4], [0, 2], [3, 5]]
    assert twice.session_id is not None
    assert twice.session_id.tolist() == [0, 2, 1, 3]


@pytest.mark.parametrize("copies", [2, 3])
def test_copies_stay_on_the_grid_of_the_trace_unless_told_otherwise(copies: int) -> None:
    trace = load("conversation-like")  # 12,031 requests at 1,180 times, every 3 s
    more = scale_copies(trace, copies, seed=1)
    np.testing.assert_array_equal(more.arrival_ms, np.repeat(trace.arrival_ms, copies))
    assert coarse_grid_ms(more.arrival_ms) == 3000
    assert more.metadata["transform"].startswith(f"{copies} copies, no offsets: all on the grid of 3000 ms, shared")
    apart = scale_copies(trace, copies, seed=1, max_offset_ms=500)
    assert coarse_grid_ms(apart.arrival_ms) is None
    assert not any("coarse grid" in notice for notice in apart.notices)


def test_the_published_trace_stays_on_its_grid(shared: Path) -> None:
    # its clock ticks every 2,997 to 3,003 ms: 1,180 distinct times
    trace = load(shared / "traces/mooncake-fast25/conversation_trace.jsonl")
    assert coarse_grid_ms(trace.arrival_ms) == 3000
    for more in (scale_copies(trace, 2), scale_sessions(trace, 1.5, seed=1), scale_sessions(trace, 2)):
        assert set(more.arrival_ms.tolist()) <= set(trace.arrival_ms.tolist())
        assert coarse_grid_ms(more.arrival_ms) == 3000


# ---- sessions


def test_twice_the_sessions_are_the_trace_and_as_many_more_that_fit_into_its_span() -> None:
    # session 0: arrivals 0 and 8 of 10 ms; session 1: 4; session 2: 10 (a request without a session)
    trace = trace_of(
        [[1, 2], [9, 9], [1, 2, 3], [5, 5]], [0, 4, 8, 10],
        session_id=np.array([0, 1, 0, NO_SESSION]), request_id=("a", "b", "c", "d"),
    )  # fmt: skip
    for seed in range(20):
        twice = scale_sessions(trace, 2, seed)
        rows = {name: row for row, name in enumerate(twice.request_ids())}
        assert set(rows) == {"a", "b", "c", "d", "a+1", "b+1", "c+1", "d+1"}
        at = {name: float(twice.arrival_ms[row]) for name, row in rows.items()}
        assert (at["a"], at["b"], at["c"], at["d"]) == (0, 4, 8, 10)
        assert at["c+1"] - at["a+1"] == pytest.approx(8, abs=1e-9)
        assert 0 <= at["a+1"] <= 2 + 1e-9  # 8 ms long, 10 ms of span
        assert all(0 <= at[name] <= 10 + 1e-9 for name in ("b+1", "d+1"))
        assert shared_blocks(twice, rows["a+1"], rows["c+1"]) == 1
        assert shared_blocks(twice, rows["a"], rows["a+1"]) == 0


@given(traces(), st.sampled_from([0.4, 1.0, 1.5, 2.0, 3.25]), st.integers(0, 3))
def test_think_times_stay_and_nothing_ends_later_than_the_trace(trace: Trace, factor: float, seed: int) -> None:
    assume(trace.session_id is not None)
    assert trace.session_id is not None
    before = frozen_copy(trace)
    count = len(set(trace.session_id.tolist()) - {NO_SESSION}) + int((trace.session_id == NO_SESSION).sum())
    expected = int(factor) * count + round((factor - int(factor)) * count)
    if expected == 0:
        with pytest.raises(TraceError, match=r"leaves 0 of .* sessions"):
            scale_sessions(trace, factor, seed)
        return
    more = scale_sessions(trace, factor, seed)
    assert_unchanged(trace, before)
    assert more.session_id is not None
    found = len(set(more.session_id.tolist()) - {NO_SESSION}) + int((more.session_id == NO_SESSION).sum())
    assert found == expected
    assert more.span_ms <= trace.span_ms + 1e-9
    old, new = gaps(trace), gaps(more)
    rounded = Counter({tuple(round(gap, 6) for gap in some): n for some, n in new.items()})
    assert set(rounded) <= {tuple(round(gap, 6) for gap in some) for some in old}
    if factor == int(factor):
        assert sum(new.values()) == factor * sum(old.values())
        assert more.input_tokens.sum() == factor * trace.input_tokens.sum()
    if factor == 1:
        assert more == trace
    assert more == scale_sessions(trace, factor, seed)


@pytest.mark.parametrize("factor", [0.5, 1.5, 2.0, 2.5])
@pytest.mark.parametrize("grid_ms", [0, 3000])
def test_load_rises_by_the_factor_at_every_time(factor: float, grid_ms: int) -> None:
    # 4,000 sessions of 1 to 8 turns, about 5 min apart, in an hour: many begin late, or last for most of it
    draw = np.random.default_rng(8)
    turns = draw.integers(1, 9, 4000)
    session = np.repeat(np.arange(4000), turns)
    gaps = draw.exponential(300_000, len(session))
    begin = np.cumsum(turns) - turns
    gaps[begin] = draw.random(4000) * 3_600_000
    at = np.cumsum(gaps) - np.repeat((np.cumsum(gaps) - gaps)[begin], turns)
    at = at // grid_ms * grid_ms if grid_ms else at
    rows = np.flatnonzero(at < 3_600_000)
    rows = rows[np.argsort(at[rows], kind="stable")]
    trace = trace_of([[row] for row in range(len(rows))], at[rows].tolist(), session_id=session[rows])
    more = scale_sessions(trace, factor, seed=3)
    whole, part = divmod(factor, 1)
    edges = np.linspace(0, trace.span_ms * (1 + 1e-12), 7)
    for low, high in pairwise(edges):
        had = int(((trace.arrival_ms >= low) & (trace.arrival_ms < high)).sum())
        now = int(((more.arrival_ms >= low) & (more.arrival_ms < high)).sum())
        # a session is drawn for the fraction with probability `part`: part * (1 - part) * turns² each, turns here;
        # and turns within a minute of an edge, at either side, may be moved over it: 1/4 each and generation
        inside = (trace.arrival_ms >= low) & (trace.arrival_ms < high)
        assert trace.session_id is not None
        per_session = np.bincount(trace.session_id[inside])
        near = sum(int((np.abs(trace.arrival_ms - edge) < 60_000).sum()) for edge in (low, high))
        variance = part * (1 - part) * float((per_session**2).sum()) + (max(0.0, factor - 1)) * near / 4
        assert abs(now - factor * had) < 5 * variance**0.5, (low, now / had)
    assert len(more) == pytest.approx(factor * len(trace), rel=0.03)
    if part == 0:
        assert len(more) == whole * len(trace)


def test_new_sessions_lie_within_a_sixtieth_of_the_span_of_those_they_are_drawn_from() -> None:
    # 61 requests 1 s apart, each a session of its own: a minute, so at most 1 s away
    trace = trace_of(
        [[row] for row in range(61)], [1000.0 * row for row in range(61)], request_id=tuple(map(str, range(61)))
    )
    more = scale_sessions(trace, 2, seed=4)
    moved = {name: more.arrival_ms[row] for row, name in enumerate(more.request_ids())}
    away = np.array([moved[f"{row}+1"] - 1000.0 * row for row in range(61)])
    assert (np.abs(away) <= 1000).all()
    assert np.abs(away).max() > 500
    assert away.min() < 0 < away.max()


def test_fewer_sessions_are_whole_sessions_at_their_own_times() -> None:
    trace = load("conversation-like")
    assert trace.session_id is not None
    less = scale_sessions(trace, 0.25, seed=7)
    assert less.session_id is not None
    kept = np.unique(less.session_id)
    assert len(kept) == round(0.25 * len(np.unique(trace.session_id)))
    rows = np.flatnonzero(np.isin(trace.session_id, kept))
    assert len(less) == len(rows)
    np.testing.assert_array_equal(less.arrival_ms, trace.arrival_ms[rows] - trace.arrival_ms[rows[0]])
    np.testing.assert_array_equal(less.input_tokens, trace.input_tokens[rows])


def test_more_sessions_begin_on_the_grid_when_there_is_one_and_between_arrivals_when_not() -> None:
    grid = load("conversation-like")
    assert (scale_sessions(grid, 2).arrival_ms % 1000 == 0).all()
    loose = trace_of([[row] for row in range(50)], [10.0 * row for row in range(50)], session_id=np.arange(50))
    assert (scale_sessions(loose, 2).arrival_ms % 10 != 0).sum() > 40


def test_sessions_that_are_not_given_are_inferred_and_said_to_be() -> None:
    trace = trace_of([[1, 2], [7, 7], [1, 2, 3]], [0, 1, 2])
    more = scale_sessions(trace, 2)
    assert more.session_id is not None
    assert sorted(Counter(more.session_id.tolist()).values()) == [1, 1, 2, 2]
    assert more.metadata["session_ids"] == "inferred from prefix growth"
    assert more.notices == ("sessions were inferred from prefix growth: 2 sessions for 3 requests",)
    assert more.metadata["transform"].startswith("sessions inferred from prefix growth; sessions scaled by 2: 4 of 2")


def test_without_sessions_and_prefix_ids_each_request_is_a_session() -> None:
    trace = trace_of([[1], [2], [3], [4]], [0, 1, 2, 3], metadata={"prefix_ids": "none"})
    more = scale_sessions(trace, 1.5)
    assert len(more) == 6
    assert len(set(more.block_ids.tolist())) == 6
    assert not more.has_prefix_ids
    assert "each request was taken for a session of its own" in more.notices[0]


def test_more_users_meet_the_same_cache_where_openings_are_shared() -> None:
    # twice the users of the same service: the system prompts' blocks are the same, all others are new
    trace = load("conversation-like")
    marked = openings(trace)
    unique, common = len(np.unique(trace.block_ids)), len(np.unique(trace.block_ids[marked]))
    assert common > 0
    assert len(np.unique(scale_sessions(trace, 2).block_ids)) == 2 * unique - common
    assert len(np.unique(scale_sessions(trace, 2, shared="none").block_ids)) == 2 * unique
    assert len(np.unique(scale_sessions(trace, 2, shared="roots").block_ids)) == 2 * unique - 1  # it has one root


@pytest.mark.parametrize("factor", [0, -1, float("nan"), 1e9])
def test_a_number_of_users_that_cannot_be_is_refused(factor: float) -> None:
    with pytest.raises(TraceError, match="scale by sessions: factor is"):
        scale_sessions(trace_of([[1]], [0]), factor)


def test_what_is_shared_has_a_name() -> None:
    with pytest.raises(
        TraceError, match="shared is 'root'; expected one of openings, roots, none; did you mean 'roots'"
    ):
        scale_copies(trace_of([[1]], [0]), 2, shared="root")
