"""The generator, and the bundled traces it made."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest

from mooncake_bench.errors import TraceError
from mooncake_bench.paths import bundled
from mooncake_bench.trace import Trace, bundled_names, info, load
from mooncake_bench.trace.likeness import rows, table
from mooncake_bench.trace.presets import CONVERSATION_LIKE, TOOLAGENT_LIKE
from mooncake_bench.trace.synth import Quantiles, SystemPrompts, generate, presets, stream, synthesize

if TYPE_CHECKING:
    from mooncake_bench.trace.synth import Spec

NAMES = ("conversation-like", "toolagent-like")


def small(spec: Spec, requests: int = 400) -> Spec:
    """The same workload with fewer requests."""
    return replace(spec, workloads=tuple(replace(work, requests=requests) for work in spec.workloads))


@pytest.fixture(scope="module", params=NAMES)
def ours(request: pytest.FixtureRequest) -> Trace:
    return load(str(request.param))


def test_the_bundled_traces_are_those_of_the_generator() -> None:
    assert tuple(bundled_names()) == NAMES == tuple(presets())


@pytest.mark.parametrize("name", NAMES)
def test_a_bundled_file_holds_what_the_generator_makes_today(name: str) -> None:
    assert load(name).sha256 == synthesize(name).sha256


def test_another_process_with_another_hash_seed_makes_the_same_trace() -> None:
    code = "from mooncake_bench.trace.synth import synthesize; print(synthesize('conversation-like', 3).sha256)"
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert hashes == {synthesize("conversation-like", 3).sha256}


def test_another_seed_makes_another_trace() -> None:
    assert generate(small(CONVERSATION_LIKE), 1) != generate(small(CONVERSATION_LIKE), 2)


def test_streams_of_different_names_or_seeds_are_different_and_each_is_repeatable() -> None:
    draws = {(seed, name): tuple(stream(seed, name).random(3)) for seed in (0, 1) for name in ("a", "b")}
    assert len(set(draws.values())) == 4
    assert draws[0, "a"] == tuple(stream(0, "a").random(3))


@pytest.mark.parametrize(
    ("name", "ratio"),
    [("conversation-like", 0.37), ("toolagent-like", 0.59)],
)
def test_the_infinite_cache_token_ratio_is_within_a_point_of_the_published_one(name: str, ratio: float) -> None:
    assert info(load(name))["infinite_cache"]["hit_ratio_tokens"] == pytest.approx(ratio, abs=0.01)


@pytest.mark.parametrize("name", NAMES)
def test_every_published_statistic_is_met_within_its_tolerance(name: str) -> None:
    for statistic, published, found, _ in rows(name, load(name)):
        if statistic.startswith(("index of dispersion", "most arrivals")):
            assert found == pytest.approx(published, rel=0.35), statistic
        elif published <= 1:
            assert found == pytest.approx(published, abs=0.021), statistic
        else:
            assert found == pytest.approx(published, rel=0.03), statistic


def test_one_root_block_opens_every_request(ours: Trace) -> None:
    assert set(ours.block_ids[ours.block_offsets[:-1]].tolist()) == {0}


def test_ids_are_dense_numbered_by_first_appearance_and_truly_chained(ours: Trace) -> None:
    values, first = np.unique(ours.block_ids, return_index=True)
    assert np.array_equal(values, np.arange(len(values)))
    assert np.array_equal(np.sort(first), first)
    assert info(ours)["sharing"]["blocks_with_two_parents"] == 0


def test_turns_of_a_session_grow_by_at_least_the_previous_answer_unless_edited_or_sent_again() -> None:
    plain = replace(CONVERSATION_LIKE.workloads[0], requests=400, edits=0.0, resends=0.0)
    trace = generate(replace(CONVERSATION_LIKE, workloads=(plain,), grid_ms=1))
    assert trace.session_id is not None
    pairs = 0
    for session in np.unique(trace.session_id):
        turns = np.flatnonzero(trace.session_id == session).tolist()
        for before, after in pairwise(turns):
            grown = trace.input_tokens[after] - trace.input_tokens[before]
            assert grown > trace.output_tokens[before]
            whole = int(trace.input_tokens[before]) // trace.block_tokens
            assert np.array_equal(trace.blocks(after)[:whole], trace.blocks(before)[:whole])
            assert trace.blocks(after)[whole] != trace.blocks(before)[-1]  # the partial block became another
            pairs += 1
    assert pairs > 50


def test_a_prompt_sent_again_has_the_same_blocks() -> None:
    again = replace(CONVERSATION_LIKE.workloads[0], requests=300, resends=1.0, edits=0.0)
    trace = generate(replace(CONVERSATION_LIKE, workloads=(again,), grid_ms=1))
    assert trace.session_id is not None
    for session in np.unique(trace.session_id):
        turns = np.flatnonzero(trace.session_id == session).tolist()
        for before, after in pairwise(turns):
            assert np.array_equal(trace.blocks(before), trace.blocks(after))


def test_no_prompt_is_longer_than_the_context_window(ours: Trace) -> None:
    assert ours.input_tokens.max() <= CONVERSATION_LIKE.max_input_tokens == TOOLAGENT_LIKE.max_input_tokens


def test_system_prompts_are_chosen_by_zipfs_law() -> None:
    # weights 1, 1/2, 1/3, 1/6 would sum to 2; with three prompts: 6/11, 3/11, 2/11
    chosen = SystemPrompts(tokens=(1, 1, 1), zipf=1.0).choose(np.arange(11_000) / 11_000)
    assert np.bincount(chosen).tolist() == pytest.approx([6000, 3000, 2000], abs=1)


def test_quantiles_are_interpolated_in_the_logarithm_or_linearly() -> None:
    points = ((0.0, 1.0), (0.5, 100.0), (1.0, 200.0))
    assert Quantiles(points)(np.array([0.0, 0.25, 0.5])).tolist() == pytest.approx([1, 10, 100])  # sqrt(1 * 100)
    assert Quantiles(points, linear=True)(np.array([0.25, 0.75])).tolist() == [50.5, 150.0]


def test_an_unknown_generator_names_the_nearest() -> None:
    with pytest.raises(TraceError, match="no generator named 'toolagent'; did you mean 'toolagent-like'"):
        synthesize("toolagent")


def test_a_trace_with_nothing_published_about_it_has_no_table() -> None:
    with pytest.raises(TraceError, match="nothing published about 'mine'; known: conversation-like, toolagent-like"):
        table("mine", load("conversation-like"))


@pytest.mark.parametrize("name", NAMES)
def test_the_readme_prints_the_table_and_the_hash_that_the_commands_print(name: str) -> None:
    readme = (bundled("traces") / "README.md").read_text("utf-8")
    assert table(name, load(name)) in readme
    assert load(name).sha256 in readme


def test_bundled_files_are_small() -> None:
    for name in NAMES:
        assert (bundled("traces") / f"{name}.arrow").stat().st_size < 1_500_000
