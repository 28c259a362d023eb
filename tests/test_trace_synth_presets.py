"""The paper's own datasets as presets: published lengths, cache ratios and arrivals are reached."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

from mooncake_bench.errors import SetupError
from mooncake_bench.trace import Trace, info, load
from mooncake_bench.trace.synthetic import presets
from mooncake_bench.trace.synthetic.recipe import make
from mooncake_bench.trace.synthetic.wording import recipe


def of(name: str, seed: int = 0) -> Trace:
    return make(recipe({}, name), seed)


def ratio(trace: Trace) -> float:
    return float(info(trace)["infinite_cache"]["hit_ratio_tokens"])


def test_arxiv_summarization_like_has_the_published_lengths_and_no_reuse() -> None:
    trace = of("arxiv-summarization-like")
    # lognormal of cv 0.5, 1,000 requests: the mean's error is 0.5 / sqrt(1000) = 1.6 %
    assert trace.input_tokens.mean() == pytest.approx(8_088, rel=5 * 0.016)
    assert trace.output_tokens.mean() == pytest.approx(229, rel=5 * 0.016)
    assert ratio(trace) == 0.0


def test_l_eval_like_has_the_published_lengths_and_over_80_percent_reuse() -> None:
    trace = of("l-eval-like")
    # 4,000 requests over 500 documents of cv 0.3: error 0.3 / sqrt(500) = 1.3 %; answers 0.8 / sqrt(4000) = 1.3 %
    assert len(trace) == 4_000
    assert trace.input_tokens.mean() == pytest.approx(18_900 + 119, rel=5 * 0.013)
    assert trace.output_tokens.mean() == pytest.approx(72, rel=5 * 0.013)
    # 7 of 8 questions find the document's whole blocks, on average 18,900 - 256 tokens: 7/8 * 18,644 / 19,019
    assert ratio(trace) == pytest.approx(7 / 8 * 18_644 / 19_019, abs=0.005)
    assert ratio(trace) > 0.80


@pytest.mark.parametrize("thousands", [16, 32, 64, 128])
def test_simulated_prompts_have_their_length_and_half_of_it_cached(thousands: int) -> None:
    trace = of(f"simulated-{thousands}k")
    assert set(trace.input_tokens.tolist()) == {thousands * 1024}
    assert set(trace.output_tokens.tolist()) == {512}
    # the shared half is whole blocks; of 1,000 requests, 8 see their system prompt first
    assert ratio(trace) == pytest.approx(0.5 * (1 - 8 / 1000))


@pytest.mark.parametrize("preset", presets.PRESETS, ids=lambda preset: preset.name)
def test_every_preset_reaches_the_published_facts_at_several_seeds_with_poisson_arrivals(
    preset: presets.Preset,
) -> None:
    for seed in (1, 2, 3):
        trace = of(preset.name, seed)
        assert trace.input_tokens.mean() == pytest.approx(preset.input_tokens, rel=0.08)
        assert trace.output_tokens.mean() == pytest.approx(preset.output_tokens, rel=0.08)
        low, high = preset.hit_ratio_tokens
        assert low <= ratio(trace) <= high
        gaps = np.diff(trace.arrival_ms)
        assert gaps.std() / gaps.mean() == pytest.approx(1, abs=5 / sqrt(len(gaps)))  # exponential


def test_an_option_replaces_a_presets_own() -> None:
    trace = make(recipe({"requests": "50", "output": "7", "rate": "3"}, "simulated-16k"))
    assert len(trace) == 50
    assert set(trace.output_tokens.tolist()) == {7}
    assert set(trace.input_tokens.tolist()) == {16_384}


def test_a_duration_replaces_a_presets_number_of_requests() -> None:
    trace = make(recipe({"duration": "100s", "rate": "2"}, "l-eval-like"))
    assert trace.arrival_ms[-1] < 100_000
    assert len(trace) == pytest.approx(200, abs=5 * sqrt(200))


def test_the_bundled_traces_are_presets_too() -> None:
    assert presets.find("conversation-like") is None
    assert presets.bundled("conversation-like", 0) == load("conversation-like")
    assert presets.bundled("real-like", 0) == load("toolagent-like")


def test_the_list_names_every_preset_with_options_that_the_parser_takes() -> None:
    listed = {item["name"]: item["options"] for item in presets.listed()}
    assert list(listed) == presets.names()
    for preset in presets.PRESETS:
        words: dict[str, object] = {}
        for key, value in zip(*[iter(listed[preset.name].split())] * 2, strict=True):
            name = key.removeprefix("--")
            words[name] = (value,) if name == "share" else value
        assert make(recipe(words), 1) == of(preset.name, 1)


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(SetupError, match="no preset 'leval-like'; did you mean 'l-eval-like'"):
        recipe({}, "leval-like")
