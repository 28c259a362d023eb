"""The trace itself: immutable, equal by content, selectable."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from mooncake_bench.errors import TraceError
from mooncake_bench.trace import Trace

ROWS = [(0.0, 600, 5, [1, 2]), (10.0, 512, 1, [1]), (10.0, 1025, 7, [1, 2, 3]), (25.5, 1, 2, [9])]


def test_a_trace_of_rows_has_one_column_entry_a_request_and_its_blocks_head_first() -> None:
    trace = Trace.of(ROWS)
    assert len(trace) == 4
    assert trace.block_offsets.tolist() == [0, 2, 3, 6, 7]
    assert [trace.blocks(row).tolist() for row in range(4)] == [[1, 2], [1], [1, 2, 3], [9]]
    assert trace.span_ms == 25.5


@pytest.mark.parametrize("column", ["arrival_ms", "input_tokens", "output_tokens", "block_offsets", "block_ids"])
def test_no_column_can_be_written_to(column: str) -> None:
    with pytest.raises(ValueError, match="read-only"):
        getattr(Trace.of(ROWS), column)[0] = 1


def test_attributes_and_metadata_cannot_be_replaced() -> None:
    trace = Trace.of(ROWS)
    with pytest.raises(AttributeError):
        trace.name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        trace.metadata["source"] = "other"  # type: ignore[index]


def test_writing_to_the_arrays_a_trace_was_built_from_changes_nothing() -> None:
    arrivals = np.array([0.0, 1.0])
    ones, offsets = np.array([1, 1]), np.array([0, 1, 2])
    trace = Trace("t", arrivals, ones, ones, offsets, np.array([4, 5]))
    arrivals[0], offsets[1] = 7.0, 2
    assert trace.arrival_ms.tolist() == [0.0, 1.0]
    assert trace.block_offsets.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((0.0, 1.5, 1, [1]), "field 'input_tokens': found 1.5; expected 64-bit integers"),
        ((0.0, 1, 1, [2**63]), "field 'block_ids': found 9223372036854775808; expected 64-bit integers"),
        ((0.0, 1, 0, [1]), r"row 1 \(the first is 0\), field 'output_tokens': found 0; expected a number of tokens"),
        ((float("nan"), 1, 1, [1]), r"row 1 \(the first is 0\), field 'timestamp': found nan"),
        ((0.0, 600, 1, [1]), "found 1 id for 600 input tokens"),
    ],
)
def test_rows_are_checked_like_a_file(row: tuple[float, int, int, list[int]], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        Trace.of([ROWS[0], row])


def test_equality_and_hash_follow_the_columns_not_the_name() -> None:
    trace = Trace.of(ROWS, name="a")
    assert trace == Trace.of(ROWS, name="b")
    assert hash(trace) == hash(Trace.of(ROWS, name="b"))
    assert trace != "a"


@pytest.mark.parametrize(
    "other",
    [
        [(0.0, 600, 5, [1, 2]), *ROWS[1:3], (25.75, 1, 2, [9])],  # an arrival
        [(0.0, 601, 5, [1, 2]), *ROWS[1:]],  # a prompt
        [(0.0, 600, 6, [1, 2]), *ROWS[1:]],  # an answer
        [(0.0, 600, 5, [1, 3]), *ROWS[1:]],  # a block
        ROWS[:3],
    ],
)
def test_any_change_of_a_column_changes_the_content_hash(other: list[tuple[float, int, int, list[int]]]) -> None:
    assert Trace.of(other).sha256 != Trace.of(ROWS).sha256


def test_optional_columns_are_part_of_the_content_hash() -> None:
    plain = Trace.of(ROWS)
    columns = {name: getattr(plain, name) for name in ("arrival_ms", "input_tokens", "output_tokens")}
    columns |= {"block_offsets": plain.block_offsets, "block_ids": plain.block_ids}
    variants = [
        plain,
        Trace("t", **columns, session_id=np.array([1, 1, 2, 2])),
        Trace("t", **columns, priority=np.array([1, 1, 2, 2])),
        Trace("t", **columns, request_id=("1", "23", "4", "5")),
        Trace("t", **columns, request_id=("12", "3", "4", "5")),
        Trace("t", **columns, block_tokens=600),
    ]
    assert len({trace.sha256 for trace in variants}) == len(variants)


def test_a_pickled_trace_comes_back_equal_and_still_read_only() -> None:
    trace = pickle.loads(pickle.dumps(Trace.of(ROWS)))
    assert trace == Trace.of(ROWS)
    assert not trace.block_ids.flags.writeable


def test_select_takes_a_half_open_window_and_starts_at_zero_again() -> None:
    part = Trace.of(ROWS).select(start_ms=10, end_ms=25.5)
    assert part.arrival_ms.tolist() == [0.0, 0.0]
    assert part.input_tokens.tolist() == [512, 1025]
    assert [part.blocks(row).tolist() for row in range(2)] == [[1], [1, 2, 3]]
    assert part.metadata["selected_rows"] == "1..2 of 4"


def test_select_takes_the_first_requests_of_the_window() -> None:
    part = Trace.of(ROWS).select(max_requests=1, start_ms=5)
    assert part.input_tokens.tolist() == [512]


def test_selecting_everything_gives_the_same_trace() -> None:
    trace = Trace.of(ROWS)
    assert trace.select(max_requests=100, start_ms=0, end_ms=1e9) is trace


def test_select_leaves_the_trace_it_came_from_alone() -> None:
    trace = Trace.of(ROWS)
    before = trace.sha256
    trace.select(max_requests=2)
    assert Trace.of(ROWS).sha256 == before == trace.sha256
    assert len(trace) == 4


def test_select_keeps_request_ids_sessions_and_priorities_of_the_chosen_rows() -> None:
    plain = Trace.of(ROWS)
    trace = Trace(
        "t", plain.arrival_ms, plain.input_tokens, plain.output_tokens, plain.block_offsets, plain.block_ids,
        request_id=("a", "b", "c", "d"), session_id=np.array([0, 1, 2, 3]), priority=np.array([9, 8, 7, 6]),
    )  # fmt: skip
    part = trace.select(start_ms=10)
    assert part.request_id == ("b", "c", "d")
    assert part.session_id is not None
    assert part.session_id.tolist() == [1, 2, 3]
    assert part.priority is not None
    assert part.priority.tolist() == [8, 7, 6]


def test_selecting_nothing_is_an_error_that_says_where_the_requests_are() -> None:
    with pytest.raises(TraceError, match=r"0 requests after .*\[100 ms, end\).*4 requests arrive from 0 to 25.5 ms"):
        Trace.of(ROWS).select(start_ms=100)
    with pytest.raises(TraceError, match=r"0 requests after .*\[start, 0 ms\)"):
        Trace.of(ROWS).select(end_ms=0)


def test_max_requests_below_one_is_an_error() -> None:
    with pytest.raises(TraceError, match="max_requests is 0; expected at least 1"):
        Trace.of(ROWS).select(max_requests=0)


def test_a_request_without_an_id_is_named_by_its_row_in_the_source_however_sorted_and_selected() -> None:
    trace = Trace.of([(30.0, 1, 1, [1]), (10.0, 1, 1, [2]), (20.0, 1, 1, [3]), (10.0, 1, 1, [4])])
    assert trace.request_ids() == ("1", "3", "2", "0")  # by time, equal times in the order given
    later = trace.select(start_ms=5.0)  # 10 ms after the first and later
    assert later.request_ids() == ("2", "0")
    assert later.select(max_requests=1).request_ids() == ("2",)
    assert pickle.loads(pickle.dumps(later)).request_ids() == ("2", "0")
    assert Trace.of(ROWS).select(start_ms=10.0).request_ids() == ("1", "2", "3")


def test_where_rows_stood_in_a_file_is_no_part_of_the_content() -> None:
    shuffled = Trace.of([ROWS[3], *ROWS[:3]])
    assert shuffled.request_ids() == ("1", "2", "3", "0")
    assert shuffled == Trace.of(ROWS)
