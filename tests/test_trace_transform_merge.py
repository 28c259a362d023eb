"""Several traces as one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_making import assert_unchanged, frozen_copy, shared_blocks, trace_of, traces

from mooncake_bench.errors import TraceError
from mooncake_bench.trace import Trace, load
from mooncake_bench.trace.merging import merge


def test_two_traces_interleaved_by_hand() -> None:
    one = trace_of([[1, 2, 3], [1, 2, 4]], [0, 10])  # ids 0 1 | 0 2
    other = trace_of([[1, 2], [1, 2, 3]], [0, 2])  # ids 0 | 0 1
    both = merge([one, other], [0, 8])
    # arrivals: one at 0 and 10, the other at 8 and 10; of equal times the first trace's request comes first
    assert both.arrival_ms.tolist() == [0, 8, 10, 10]
    assert both.input_tokens.tolist() == [3, 2, 3, 3]
    # the first trace has blocks 0 1 2, so the other's begin at 3
    assert [both.blocks(row).tolist() for row in range(4)] == [[0, 1], [3], [0, 2], [3, 4]]
    assert both.metadata["transform"] == "merged from t at 0 ms, t at 8 ms; block and session ids kept apart"


def test_shared_blocks_keep_their_ids() -> None:
    one, other = trace_of([[1, 2, 3]], [0]), trace_of([[1, 2]], [0])
    both = merge([one, other], share_blocks=True)
    assert [both.blocks(row).tolist() for row in range(2)] == [[0, 1], [0]]
    assert both.metadata["transform"].endswith("block ids kept, taken to mean the same blocks in all, as told")


def test_columns_that_only_some_have_are_filled_and_said_to_be() -> None:
    full = trace_of(
        [[1], [2]], [0, 2],
        session_id=np.array([9, -1]), priority=np.array([3, 4]), delay_ms=np.array([np.nan, 5.0]),
        request_id=("a", "b"),
    )  # fmt: skip
    bare = trace_of([[1]], [0])
    both = merge([full, bare, full], [0, 1, 0])
    assert both.session_id is not None
    assert both.session_id.tolist() == [0, 1, -1, -1, -1]  # the third trace's session 9 is another one
    assert both.priority is not None
    assert both.priority.tolist() == [3, 3, 0, 4, 4]
    np.testing.assert_array_equal(both.delay_ms, [np.nan, np.nan, np.nan, 5, 5])
    assert both.request_ids() == ("0:a", "2:a", "1:0", "0:b", "2:b")
    assert set(both.notices) == {
        "t has no session_id: its 1 request gets no session",
        "t has no priority: its 1 request gets priority 0",
        "t has no delay_ms: its 1 request gets no known delay",
        "request ids begin with the number of their trace (from 0): some were used twice, or missing",
    }


def test_request_ids_that_are_all_different_stay() -> None:
    both = merge([trace_of([[1]], [0], request_id=("a",)), trace_of([[1]], [0], request_id=("b",))])
    assert both.request_ids() == ("a", "b")


def test_a_trace_without_prefix_ids_stays_one_only_when_all_are() -> None:
    without = trace_of([[1]], [0], metadata={"prefix_ids": "none", "source": "x"})
    assert not merge([without, without]).has_prefix_ids
    mixed = merge([without, trace_of([[1]], [0], metadata={"source": "y"})])
    assert mixed.has_prefix_ids
    assert mixed.notices == ("t: the source has no prefix ids, so 1 of 2 requests share nothing",)
    assert mixed.metadata["source"] == "t: x; t: y"


@given(st.lists(traces(), min_size=2, max_size=4), st.booleans())
def test_a_merged_trace_has_all_requests_and_their_sharing(some: list[Trace], share: bool) -> None:
    before = [frozen_copy(trace) for trace in some]
    starts = [float(3 * number) for number in range(len(some))]
    both = merge(some, starts, share)
    for trace, old in zip(some, before, strict=True):
        assert_unchanged(trace, old)
    assert len(both) == sum(map(len, some))
    assert both.input_tokens.sum() == sum(trace.input_tokens.sum() for trace in some)
    assert both.output_tokens.sum() == sum(trace.output_tokens.sum() for trace in some)
    # where each request went: by arrival, then trace, then row
    places = sorted(
        (start + float(trace.arrival_ms[row]), number, row)
        for number, (trace, start) in enumerate(zip(some, starts, strict=True))
        for row in range(len(trace))
    )
    np.testing.assert_array_equal(both.arrival_ms, np.array([at for at, _, _ in places]) - places[0][0])
    for place, (_, number, row) in enumerate(places):
        for place2, (_, number2, row2) in enumerate(places):
            alike = shared_blocks(both, place, place2)
            if number == number2:
                assert alike == shared_blocks(some[number], row, row2)
            elif not share:
                assert alike == 0
    assert len(set(both.request_ids())) == len(both)


@given(st.lists(traces(), min_size=2, max_size=3))
def test_sessions_of_different_traces_stay_apart_and_in_order(some: list[Trace]) -> None:
    both = merge(some)
    if both.session_id is None:
        assert all(trace.session_id is None for trace in some)
        return
    counts = sorted(np.unique(both.session_id[both.session_id >= 0], return_counts=True)[1].tolist())
    expected = [
        np.unique(trace.session_id[trace.session_id >= 0], return_counts=True)[1].tolist()
        for trace in some
        if trace.session_id is not None
    ]
    assert counts == sorted(count for trace in expected for count in trace)


def test_what_cannot_be_merged_is_refused() -> None:
    one = trace_of([[1, 2, 3]], [0])
    with pytest.raises(TraceError, match="merge: found 1 trace; expected at least two"):
        merge([one])
    with pytest.raises(TraceError, match="found 1 offset for 2 traces; expected one for each"):
        merge([one, one], [1.0])
    with pytest.raises(TraceError, match="an offset is -1 ms; expected times from 0 to 1e"):
        merge([one, one], [0, -1])
    coarse = trace_of([[1, 2, 3]], [0], size=4)
    with pytest.raises(TraceError, match=r"2 tokens in 't', 4 in 't'; expected one block size: .* --reblock 4"):
        merge([one, coarse])


def test_the_bundled_traces_merged_have_both_counts_and_no_common_block() -> None:
    one, other = load("conversation-like"), load("toolagent-like")
    both = merge([one, other])
    assert len(both) == 12_031 + 23_608
    assert len(np.unique(both.block_ids)) == len(np.unique(one.block_ids)) + len(np.unique(other.block_ids))
    common = merge([one, one], [0, 600_000], share_blocks=True)
    assert len(np.unique(common.block_ids)) == len(np.unique(one.block_ids))
