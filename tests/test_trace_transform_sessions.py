"""Sessions, given or inferred, and turns that come before their parent's answer; counted by hand."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_making import blocks_of, prompts, trace_of, traces

from mooncake_bench.errors import TraceError
from mooncake_bench.trace import Trace, load
from mooncake_bench.trace.sessions import MAX_FOLLOWERS, NO_PARENT, early_turns, infer, inferred_parents, parents

LOW, HIGH = [1, 2, 3, 4], [1, 2, 5, 6]  # two prompts that begin alike


def by_the_rule(some: list[list[int]], size: int) -> list[int]:
    """Parents as the module's docstring says, one comparison at a time."""
    after: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for prompt in some:
        chain = blocks_of(prompt, size)
        for block, following in pairwise(chain):
            after.setdefault(block, set()).add(following)
    found = []
    for row, prompt in enumerate(some):
        best = (0, NO_PARENT)
        for earlier in range(row):
            full = len(some[earlier]) // size * size
            opening = tuple(some[earlier][:full])
            if full and tuple(prompt[:full]) == opening and len(after.get(opening, ())) <= MAX_FOLLOWERS:
                best = max(best, (full, earlier))
        found.append(best[1])
    return found


def test_a_prompt_that_grows_is_a_session_and_one_that_parts_is_not() -> None:
    trace = trace_of([LOW, HIGH, [*LOW, 7, 8, 9], [*HIGH, 1], [*LOW, 7, 8, 9, 9]], [0, 1, 2, 3, 4])
    assert inferred_parents(trace).tolist() == [NO_PARENT, NO_PARENT, 0, 1, 2]
    assert infer(trace).tolist() == [0, 1, 0, 1, 0]
    assert parents(trace)[1] == "inferred"


def test_a_partial_last_block_does_not_count_but_the_full_ones_before_it_do() -> None:
    # [1 2][3] -> [1 2][3 4]: the third token stands in a partial block first; [1] alone has no full block at all
    trace = trace_of([[1], [1, 2, 3], [1, 2, 3, 4]], [0, 1, 2])
    assert inferred_parents(trace).tolist() == [NO_PARENT, NO_PARENT, 1]


def test_the_longest_chain_counts_then_the_latest_request() -> None:
    # rows 0 and 1 are the same prompt sent twice, row 2 is longer; row 3 extends row 2, row 4 only rows 0 and 1
    trace = trace_of([[1, 2], [1, 2], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6], [1, 2, 9]], [0, 1, 2, 3, 4])
    assert inferred_parents(trace).tolist() == [NO_PARENT, 0, 1, 2, 1]
    assert infer(trace).tolist() == [0, 0, 0, 0, 0]


def test_nothing_continues_an_opening_that_more_than_four_different_blocks_follow() -> None:
    opening = [1, 2]
    few = [opening, *([*opening, 10 + n, 10 + n] for n in range(MAX_FOLLOWERS))]
    assert inferred_parents(trace_of(few, range(len(few)))).tolist() == [NO_PARENT, 0, 0, 0, 0]
    many = [*few, [*opening, 99, 99]]
    assert inferred_parents(trace_of(many, range(len(many)))).tolist() == [NO_PARENT] * 6


@given(st.lists(prompts, min_size=1, max_size=12), st.sampled_from([1, 2, 3]))
def test_parents_are_those_of_a_slow_reading_of_the_rule(some: list[list[int]], size: int) -> None:
    trace = trace_of(some, range(len(some)), size)
    found = inferred_parents(trace)
    assert found.tolist() == by_the_rule(some, size)
    sessions = infer(trace)
    for row, parent in enumerate(found.tolist()):
        assert (sessions[row] == sessions[parent]) if parent != NO_PARENT else (sessions[row] not in sessions[:row])


def test_large_ids_make_no_difference() -> None:
    trace = trace_of([LOW, [*LOW, 7]], [0, 1])
    big = Trace("t", trace.arrival_ms, trace.input_tokens, trace.output_tokens, trace.block_offsets,
                trace.block_ids + (2**63 - 100), block_tokens=2)  # fmt: skip
    assert inferred_parents(big).tolist() == [NO_PARENT, 0]


def test_without_prefix_ids_there_is_nothing_to_infer() -> None:
    trace = trace_of([LOW, HIGH], [0, 1], metadata={"prefix_ids": "none"})
    with pytest.raises(TraceError, match="sessions cannot be inferred, for the source has no prefix ids"):
        infer(trace)
    facts = early_turns(trace)
    assert facts["parents"] is None
    assert facts["rows"][0] == {"speedup": 1, "turns": 0, "early": 0, "early_ratio": None}


def test_given_sessions_come_before_inferred_ones() -> None:
    # row 2 extends row 0 but says it is of row 1's session; row 3 is of none
    trace = trace_of([LOW, HIGH, [*LOW, 7], [*LOW, 8]], [0, 1, 2, 3], session_id=np.array([5, 6, 6, -1]))
    parent, known = parents(trace)
    assert known == "given"
    assert parent.tolist() == [NO_PARENT, NO_PARENT, 1, NO_PARENT]


def test_early_turns_counted_by_hand() -> None:
    # Session 0: arrivals 0, 5,000 and 9,000 ms, outputs 100 and 20 tokens. Answers need 1,000 + 100 * 30 = 4,000 ms and
    # 1,000 + 20 * 30 = 1,600 ms; gaps are 5,000 and 4,000 ms. Session 1: one request, no parent.
    # at 1: 5,000 and 4,000 ms are enough; at 1.25: 4,000 is not less than 4,000, so not early;
    # at 2: 2,500 < 4,000 is early; at 4: 1,250 and 1,000 are both early
    trace = trace_of(
        [[1], [2], [3], [4]], [0, 0, 5000, 9000],
        session_id=np.array([0, 1, 0, 0]), output_tokens=np.array([100, 9, 20, 7]),
    )  # fmt: skip
    facts = early_turns(trace, (1, 1.25, 2, 4))
    assert facts == {
        "parents": "given",
        "turns": 2,
        "assumed_ttft_ms": 1000.0,
        "assumed_tbt_ms": 30.0,
        "rows": [
            {"speedup": 1, "turns": 2, "early": 0, "early_ratio": 0.0},
            {"speedup": 1.25, "turns": 2, "early": 0, "early_ratio": 0.0},
            {"speedup": 2, "turns": 2, "early": 1, "early_ratio": 0.5},
            {"speedup": 4, "turns": 2, "early": 2, "early_ratio": 1.0},
        ],
    }
    # a faster machine: 100 ms + 10 ms a token: 1,100 and 300 ms; at 4 the gap of 1,250 ms is enough again
    assert early_turns(trace, (4,), ttft_ms=100, tbt_ms=10)["rows"][0]["early"] == 0


@given(traces())
def test_more_speed_never_makes_fewer_turns_early(trace: Trace) -> None:
    early = [row["early"] for row in early_turns(trace, (0.5, 1, 2, 5, 10, 1000), 5, 1)["rows"]]
    assert early == sorted(early)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"speedups": (1, 0)}, "a speedup is 0; expected finite numbers above 0"),
        ({"ttft_ms": -1}, "ttft_ms is -1; expected a finite number >= 0"),
        ({"tbt_ms": float("nan")}, "tbt_ms is nan; expected a finite number >= 0"),
    ],
)
def test_times_that_cannot_be_are_refused(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(TraceError, match=said):
        early_turns(trace_of([LOW], [0]), **wrong)  # type: ignore[arg-type]


def test_inferred_sessions_of_the_synthetic_conversations_are_parts_of_the_real_ones() -> None:
    """The generator knows its sessions: what is inferred without them must not join two of them."""
    known = load("conversation-like")
    assert known.session_id is not None
    inferred = infer(known)
    owner: dict[int, int] = {}
    for guess, truth in zip(inferred.tolist(), known.session_id.tolist(), strict=True):
        assert owner.setdefault(guess, truth) == truth
    given_turns = int((parents(known)[0] != NO_PARENT).sum())
    assert int((inferred_parents(known) != NO_PARENT).sum()) > 0.6 * given_turns
