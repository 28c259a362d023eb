"""What generated prompts share: hit ratios by arithmetic, Zipf's law, sessions turn by turn."""

from __future__ import annotations

from itertools import pairwise
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_bench.errors import SetupError
from mooncake_bench.trace import Trace, info, save
from mooncake_bench.trace.synthetic import arrivals, lengths, structure
from mooncake_bench.trace.synthetic.recipe import make
from mooncake_bench.trace.synthetic.wording import recipe

BLOCK = 512


def made(seed: int = 1, **words: Any) -> Trace:
    return make(recipe(words), seed)


def hits(trace: Trace) -> dict[str, Any]:
    return info(trace)["infinite_cache"]


def common(trace: Trace, one: int, other: int) -> int:
    """Blocks that two prompts have in common from the head, counted one by one."""
    count = 0
    for a, b in zip(trace.blocks(one).tolist(), trace.blocks(other).tolist(), strict=False):
        if a != b:
            break
        count += 1
    return count


SHARES = [
    ("none",),
    ("system:count=5,tokens=1000,zipf=1",),
    ("documents:tokens=5k,cv=1,questions=4",),
    ("documents:tokens=5k,count=9,zipf=1", "system:count=3,tokens=700"),
    ("sessions:turns=4,think=10s",),
    ("sessions:turns=3,think=10s", "system:tokens=2048/700/100"),
    ("sessions:turns=3,think=10s", "documents:tokens=4k,questions=3,spread=20", "system:count=2,tokens=1500"),
]


@pytest.mark.parametrize("share", SHARES, ids=lambda share: "+".join(part.split(":")[0] for part in share))
def test_blocks_are_chained_and_numbered_by_first_appearance(share: tuple[str, ...]) -> None:
    trace = made(requests="600", share=share, input="lognormal:mean=2k,cv=1")
    values, first = np.unique(trace.block_ids, return_index=True)
    assert np.array_equal(values, np.arange(len(values)))
    assert np.array_equal(np.sort(first), first)
    assert info(trace)["sharing"]["blocks_with_two_parents"] == 0
    place = np.arange(len(trace.block_ids)) - np.repeat(trace.block_offsets[:-1], np.diff(trace.block_offsets))
    depth = dict(zip(trace.block_ids.tolist(), place.tolist(), strict=True))
    assert all(depth[block] == at for block, at in zip(trace.block_ids.tolist(), place.tolist(), strict=True))


@pytest.mark.parametrize("share", SHARES, ids=lambda share: "+".join(part.split(":")[0] for part in share))
def test_a_partial_last_block_is_nobody_elses(share: tuple[str, ...]) -> None:
    trace = made(requests="600", share=share, input="lognormal:mean=2k,cv=1")
    uses = np.bincount(trace.block_ids)
    partial = np.flatnonzero(trace.input_tokens % BLOCK)
    assert len(partial) > 500
    assert set(uses[trace.block_ids[trace.block_offsets[partial + 1] - 1]].tolist()) == {1}


def test_without_sharing_no_cache_gets_anything() -> None:
    trace = made(requests="500")
    assert hits(trace)["hit_blocks"] == 0
    assert trace.has_prefix_ids  # it says that nothing is shared, which is not the same as saying nothing
    assert len(trace) == 500


def test_system_prompts_give_their_whole_blocks_to_all_but_their_first_users() -> None:
    trace = made(requests="1000", share=("system:count=8,tokens=2100",), input="fixed:1000")
    # 2100 tokens hold 4 whole blocks of 512; all 8 prompts are used (each missed with a chance of (7/8)^1000)
    assert hits(trace)["hit_blocks"] == (1000 - 8) * 4
    assert set(trace.input_tokens.tolist()) == {3100}


def test_system_prompts_of_listed_lengths_are_chosen_by_zipfs_law() -> None:
    trace = made(requests="20000", share=("system:tokens=1024/2048/4096,zipf=1",), input="fixed:10", rate="100")
    # weights 1, 1/2, 1/3: shares 6/11, 3/11, 2/11 of 20,000; error sqrt(n p (1 - p)) <= 71
    counts = [int((trace.input_tokens == tokens + 10).sum()) for tokens in (1024, 2048, 4096)]
    assert counts == pytest.approx([20_000 * share / 11 for share in (6, 3, 2)], abs=5 * 71)


def test_documents_with_5_questions_give_four_fifths_of_their_blocks() -> None:
    trace = made(requests="1000", share=("documents:tokens=16384,questions=5",), input="fixed:100")
    # 200 documents of 32 blocks, each asked 5 times: 4 of 5 find all 32; the question's own block never hits
    assert hits(trace)["hit_blocks"] == 800 * 32
    assert hits(trace)["hit_tokens"] == 800 * 16384
    assert hits(trace)["hit_ratio_blocks"] == pytest.approx(0.8 * 32 / 33)
    roots, uses = np.unique(trace.block_ids[trace.block_offsets[:-1]], return_counts=True)
    assert len(roots) == 200
    assert set(uses.tolist()) == {5}


def test_documents_asked_for_a_duration_are_asked_equally_often_too() -> None:
    trace = made(duration="1000s", rate="1", share=("documents:tokens=1k,questions=3",), input="fixed:100")
    _, uses = np.unique(trace.block_ids[trace.block_offsets[:-1]], return_counts=True)
    # only the last document may have fewer questions than 3
    assert sorted(uses.tolist())[1:] == [3] * (len(uses) - 1)


def test_spread_keeps_the_questions_of_a_document_together() -> None:
    def widest(*more: str) -> int:
        share = (",".join(("documents:tokens=1k,questions=4", *more)),)
        trace = made(requests="2000", share=share, input="fixed:100")
        roots = trace.block_ids[trace.block_offsets[:-1]]
        order = np.argsort(roots, kind="stable").reshape(-1, 4)
        return int((order.max(axis=1) - order.min(axis=1)).max())

    # keys are place + 50 * uniform: a conversation moves by at most 50 places, four of them by at most 100 and a few
    assert widest("spread=50") <= 110
    assert widest() > 1000


def test_a_shelf_of_documents_is_chosen_by_zipfs_law() -> None:
    trace = made(
        requests="11000", rate="50", share=("documents:tokens=1k,count=3,zipf=1",), input="fixed:10", output="fixed:1"
    )
    _, uses = np.unique(trace.block_ids[trace.block_offsets[:-1]], return_counts=True)
    assert sorted(uses.tolist(), reverse=True) == pytest.approx([6000, 3000, 2000], abs=5 * sqrt(11_000 / 4))


def sessions_of(trace: Trace) -> list[list[int]]:
    assert trace.session_id is not None
    return [np.flatnonzero(trace.session_id == one).tolist() for one in np.unique(trace.session_id)]


def test_a_turn_is_the_prompt_before_its_answer_and_new_text() -> None:
    trace = made(
        requests="2000", rate="2", share=("sessions:turns=4,think=30s",), input="fixed:900", output="uniform:50,900"
    )
    pairs = 0
    for rows in sessions_of(trace):
        for before, after in pairwise(rows):
            assert trace.input_tokens[after] == trace.input_tokens[before] + trace.output_tokens[before] + 900
            assert common(trace, before, after) == trace.input_tokens[before] // BLOCK
            pairs += 1
    assert pairs > 1000
    first = {rows[0] for rows in sessions_of(trace)}
    opened = [row for row in first if trace.input_tokens[row] == 900]  # the others began before the trace
    assert len(opened) > 300


def test_later_turns_may_have_text_of_another_length() -> None:
    trace = made(
        requests="1000",
        share=("sessions:turns=3,think=10s",),
        input="fixed:5000",
        turn_input="fixed:20",
        output="fixed:100",
    )
    # prompts of 5000, 5120, 5240, ...
    assert set(((trace.input_tokens - 5000) % 120).tolist()) == {0}
    assert (trace.input_tokens == 5000).sum() > 200


def test_sessions_have_the_mean_number_of_turns_and_the_think_time() -> None:
    trace = made(requests="20000", rate="5", share=("sessions:turns=4,think=60s",), input="fixed:100")
    gaps = [trace.arrival_ms[b] - trace.arrival_ms[a] for rows in sessions_of(trace) for a, b in pairwise(rows)]
    # exponential of mean 60 s; gaps cut off at the trace's end (4,000 s) are a few of 15,000
    assert np.mean(gaps) == pytest.approx(60_000, rel=5 / sqrt(len(gaps)) + 60 / 4_000)
    assert np.std(gaps) == pytest.approx(60_000, rel=0.1)
    # geometric turns: a request is a session's first with the chance 1/4
    first = (trace.input_tokens == 100).mean()
    assert first == pytest.approx(0.25, abs=5 * sqrt(0.25 * 0.75 / 20_000) * 2)  # turns cluster: error at most doubled


def test_sessions_of_a_fixed_number_of_turns_have_it() -> None:
    trace = made(requests="4000", rate="5", share=("sessions:turns=3,think=5s,vary=fixed",), input="fixed:100")
    turns = [len(rows) for rows in sessions_of(trace)]
    assert max(turns) == 3
    assert np.mean(np.array(turns) == 3) > 0.95  # but those that the trace's ends cut


def test_the_rate_of_requests_is_steady_from_the_first_second_on() -> None:
    trace = made(duration="2h", rate="2", share=("sessions:turns=5,think=2min",), input="fixed:100")
    assert trace.arrival_ms[-1] < 7_200_000
    counts = np.bincount((trace.arrival_ms // 720_000).astype(int), minlength=10)
    # 10 windows of 12 min expect 1440 requests; sessions of 5 turns make counts vary about three times as much
    assert counts.tolist() == pytest.approx([1440] * 10, abs=5 * sqrt(3 * 1440))


def test_the_delay_after_the_answer_is_told_where_the_answers_time_is_given() -> None:
    trace = made(
        requests="1000", share=("sessions:turns=3,think=10s,answer=20ms",), output="fixed:100", input="fixed:99"
    )
    assert trace.delay_ms is not None
    for rows in sessions_of(trace):
        assert np.isnan(trace.delay_ms[rows[0]])
        for before, after in pairwise(rows):
            gap = trace.arrival_ms[after] - trace.arrival_ms[before]
            assert gap == pytest.approx(trace.delay_ms[after] + 100 * 20, abs=0.01)
    assert made(requests="100", share=("sessions:turns=3,think=10s",)).delay_ms is None


def test_a_session_ends_before_it_outgrows_the_context_and_a_notice_says_so() -> None:
    trace = made(
        requests="500", share=("sessions:turns=9,think=10s,context=4k",), input="fixed:1000", output="fixed:200"
    )
    # prompts of 1000, 2200, 3400; the next would have 4600 tokens
    assert set(trace.input_tokens.tolist()) == {1000, 2200, 3400}
    assert any("more than 4,000 tokens" in notice for notice in trace.notices)


def test_sessions_over_a_document_share_it_and_its_system_prompt() -> None:
    share = ("sessions:turns=3,think=10s", "documents:tokens=4096,questions=5", "system:count=2,tokens=1024")
    trace = made(requests="400", share=share, input="fixed:600", output="fixed:50")
    firsts = [rows[0] for rows in sessions_of(trace)]
    found = {common(trace, one, other) for one, other in pairwise(firsts)}
    for one in firsts[:40]:
        found |= {common(trace, one, other) for other in firsts if other != one}
    # nothing, the system prompt (2 blocks), or the document after it (10 blocks)
    assert found == {0, 2, 10}


def test_the_same_recipe_and_seed_make_the_same_trace_and_another_seed_another() -> None:
    words: dict[str, Any] = {"requests": "300", "share": ("sessions:turns=3,think=5s",), "arrivals": "gamma:cv=2"}
    assert made(4, **words) == made(4, **words)
    assert made(4, **words) != made(5, **words)


def test_a_duration_takes_every_replayed_arrival_in_it_and_a_longer_one_is_said(tmp_path: Path) -> None:
    times = [10.0 * row for row in range(900)] + [1e6 + 1e6 * row for row in range(100)]
    save(Trace.of([(at, 10, 1, [row]) for row, at in enumerate(times)]), tmp_path / "front.arrow")
    words = {"arrivals": f"replay:{tmp_path}/front.arrow", "input": "5"}
    # 900 of 1,000 arrivals are in the first hundredth of the time; a steady rate would have put 10 there
    assert len(made(**words, duration="1000s")) == 900
    whole = made(**words, duration="100h")
    assert len(whole) == 1000
    assert any("the last replayed arrival is at 100,000.0 s" in notice for notice in whole.notices)


def test_the_block_size_changes_the_blocks_only() -> None:
    words: dict[str, Any] = {"requests": "300", "share": ("documents:tokens=4k,questions=3",)}
    small, usual = made(block_size="16", **words), made(**words)
    assert small.block_tokens == 16
    assert np.array_equal(small.input_tokens, usual.input_tokens)
    assert np.array_equal(small.arrival_ms, usual.arrival_ms)


def test_a_million_requests_share_as_a_thousand_do() -> None:
    trace = made(requests="1000000", rate="100", input="fixed:100", share=("system:count=8,tokens=1024,zipf=1.2",))
    assert len(trace) == 1_000_000
    assert hits(trace.select(1000))["hit_blocks"] == (1000 - 8) * 2


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (("nothing",), "no kind 'nothing'"),
        (("none", "system:tokens=5"), "cannot be added to 'none'"),
        (("system:tokens=5", "system:tokens=6"), "cannot be added to 'system'"),
        (("system:count=3,tokens=5/6",), "tokens= lists 2 lengths"),
        (("system:count=3",), "tokens= is missing"),
        (("documents:tokens=5",), "one of questions= .* and count= .* is needed"),
        (("documents:tokens=5,count=2,questions=3",), "is needed"),
        (("documents:tokens=5,count=2,spread=3",), "spread= goes with questions="),
        (("documents:tokens=5,questions=2,zipf=1",), "zipf= goes with count="),
        (("sessions:turns=0.5,think=1s",), "from 1 to 10000"),
        (("sessions:turns=2.5,think=1s,vary=fixed",), "for a whole number of turns, fixed"),
        (("sessions:turns=2",), "think= is missing"),
        (("sessions:turns=2,think=-1s",), "expected a duration"),
        (("sessions:turns=2,think=1s,thnk=2",), "unknown value 'thnk'; did you mean 'think'"),
    ],
)
def test_a_bad_sharing_gives_one_line(texts: tuple[str, ...], message: str) -> None:
    with pytest.raises(SetupError, match=message) as caught:
        structure.parse(texts)
    assert "\n" not in str(caught.value)


@given(
    kind=st.sampled_from(["", "none", "system", "documents", "sessions", "gamma", "mmpp", "lognormal", "uniform", "8"]),
    rest=st.text(alphabet="0123456789.,=:/-+eksmhtokncvurziplnaigqd\t ", max_size=40),
)
def test_any_text_is_understood_or_refused_in_one_line(kind: str, rest: str) -> None:
    text = f"{kind}:{rest}" if rest else kind
    refusals = []
    for parse in (arrivals.parse, lambda one: lengths.parse(one, "--input"), lambda one: structure.parse((one,))):
        try:
            parse(text)
        except SetupError as error:
            refusals.append(str(error))
    assert len(refusals) >= 2  # no text is an arrival process, a length and a sharing
    assert all("\n" not in line and line.startswith("--") for line in refusals)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"requests": "5", "duration": "1h"}, "--requests and --duration: give one"),
        ({"turn_input": "5"}, "no later turns without --share sessions"),
        ({"lengths": "conversation-like", "input": "5"}, "--lengths gives input and output together"),
        ({"rate": "0"}, "--rate: expected a number from 1e-06"),
        ({"requests": "0"}, "--requests: expected a number from 1"),
        ({"requests": "1.5"}, "--requests: expected a whole number"),
        ({"duration": "0"}, "--duration: expected a time above 0"),
        ({"block_size": "0"}, "--block-size: expected a whole number of tokens"),
        ({"duration": "300d", "rate": "100000"}, "are more than 100,000,000"),
        ({"duration": "1ms", "rate": "0.001"}, "0 requests fall into the trace"),
        ({"input": "1000000000"}, "would have 1,953,125,000 blocks"),  # 1,000 of 10^9 / 512
        ({"arrivals": "mmpp:rates=1/2,dwell=1us/1us"}, "give longer dwell="),
        ({"input": "5000", "share": ("sessions:turns=2,think=1s,context=4k",)}, "do prompts fit sessions' context"),
        ({"arrivals": "replay:conversation-like", "requests": "13000"}, "has arrivals for 12,031 requests"),
    ],
)
def test_words_that_make_no_trace_give_one_line(words: dict[str, Any], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        made(**words)


def test_sessions_that_the_window_cuts_are_counted() -> None:
    trace = made(requests="1200", rate="2", share=("sessions:turns=4,think=30s,vary=fixed",))
    assert trace.session_id is not None
    turns = np.bincount(trace.session_id)
    assert turns.max() == 4
    assert trace.metadata["sessions_cut"] == f"{int((turns < 4).sum())} of {len(turns)}"
    # A session lasts 3 pauses of 30 s on average, and the trace 600 s at 0.5 sessions/s: about 45 are cut at each end
    assert 60 < (turns < 4).sum() < 120
    assert "sessions_cut" not in made(requests="20").metadata
