"""The step simulator of a served log: by hand, against a slow reference, and against what a replay takes."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from served_logs import Request, naive, requests, step_ms

from mooncake_bench.errors import SetupError
from mooncake_bench.hardware.analytic import AnalyticCost, Coefficients, EngineOverhead
from mooncake_bench.hardware.presets import load_node
from mooncake_bench.studies.served.engine import Answers, Limits, StepCost, Work, serve

# E = n ms and f(B) = 2 + B ms, a context token 0.1 ms
PLAIN = Coefficients(0.0, 1.0, 0.0, 0.0, 2.0, 0.0, 1.0, 0.1)
RICH = Coefficients(8.0, 0.04, 3.0, 2e-5, 9.0, 0.2, 0.02, 1e-4, 2.0, 700.0, 0.3)


def served(work: list[Request], coefficients: Coefficients, overhead: EngineOverhead, limits: Limits) -> Answers:
    columns = ([r.arrival_ms for r in work], [r.prompt for r in work], [r.answer for r in work], [0] * len(work))
    return serve(Work(*columns), StepCost(coefficients, overhead, limits.sequences), limits)


def three() -> list[Request]:
    return [Request(0.0, 3, 3), Request(1.0, 5, 2), Request(1.0, 1, 1)]


def test_three_requests_by_hand_when_steps_are_made_up_between_steps() -> None:
    answers = served(three(), PLAIN, EngineOverhead(10.0, 0.5), Limits(4, 2, ahead=False))
    # 1: A's 3 tokens alone: E(3) + o_pre = 13
    # 2: A decodes (context 4), 3 of B's 5 beside it: max(E(4) = 4, f(1) = 3) + 0.4 + 0.5 + 10 = 14.9   -> 27.9
    # 3: A decodes (5), B's last 2; C must wait, two run: max(E(3) = 3, 3) + 0.5 + 0.5 = 4               -> 31.9
    # 4: B decodes (6), C's one token: max(E(2) = 2, f(1) = 3) + 0.6 + 0.5 + 10 = 14.1                   -> 46.0
    assert answers.step_ends_ms == pytest.approx([13, 27.9, 31.9, 46])
    assert answers.first_ms() == pytest.approx([13, 31.9, 46])
    assert answers.last_ms() == pytest.approx([31.9, 46, 46])
    assert answers.gaps_ms(0) == pytest.approx([14.9, 4])
    assert answers.most_sequences == 2
    # KV after step 3's prefill: A 3 + 1 decoded, B 5 = 9; in step 4: B 5 and C 1, A is gone
    assert answers.peak_kv_tokens == 9


def test_who_comes_during_a_step_waits_for_the_one_after_the_next_when_steps_are_made_up_ahead() -> None:
    answers = served(three(), PLAIN, EngineOverhead(10.0, 0.5), Limits(4, 2, ahead=True))
    # 1: A: 13. B and C came at 1, after step 2 was made up (at 0): A decodes alone: 3 + 0.4 + 0.5 = 3.9 -> 16.9
    # 3: A decodes (5), 3 of B: 4 + 0.5 + 0.5 + 10 = 15 -> 31.9; 4: B's last 2 and C, A gone: E(3) + 10 -> 44.9
    # 5: B decodes (6): 3 + 0.6 + 0.5 = 4.1 -> 49
    assert answers.step_ends_ms == pytest.approx([13, 16.9, 31.9, 44.9, 49])
    assert answers.first_ms() == pytest.approx([13, 44.9, 44.9])


def test_an_idle_instance_starts_at_the_next_arrival() -> None:
    work = [Request(0.0, 2, 1), Request(100.0, 3, 1)]
    assert served(work, PLAIN, EngineOverhead(), Limits(8, 8)).first_ms() == pytest.approx([2, 103])


def test_the_chunks_of_a_prompt_attend_as_much_as_the_whole() -> None:
    only_attention = Coefficients(0.0, 1e-9, 0.0, 1.0, 1.0, 0.0, 0.0, 1e-9)
    whole, cut = (
        served([Request(0.0, 10, 1)], only_attention, EngineOverhead(), Limits(n, 1)).last_ms()[0] for n in (10, 3)
    )
    assert whole == pytest.approx(50)  # 10^2 / 2
    assert cut == pytest.approx(50)


def test_what_a_prefix_cache_holds_is_attended_to_but_not_computed() -> None:
    cost = StepCost(Coefficients(0.0, 1.0, 0.0, 0.01, 1.0, 0.0, 0.0, 1e-9), EngineOverhead(), 4)
    answers = serve(Work([0.0], [100], [1], [80]), cost, Limits(8, 4, ahead=False))
    # 20 tokens in chunks of 8, 8, 4: 20 ms, and S = 20 x 80 + 20^2 / 2 = 1800
    assert len(answers.step_ends_ms) == 3
    assert answers.first_ms()[0] == pytest.approx(20 + 18)


@pytest.mark.parametrize("node", ["h100", "rtxpro6000"])
def test_a_lone_request_takes_what_a_replay_takes(node: str) -> None:
    coefficients, overhead = next(iter(load_node(node).costs.values())).coefficients, EngineOverhead(5.0, 2.0)
    cost = AnalyticCost([coefficients], overhead, name="", version="", error="", layers=1, kv_bytes_per_token=1,
                        nic_bytes_per_s=1.0, vram_tokens=1)  # fmt: skip
    answers = served([Request(0.0, 900, 4)], coefficients, overhead, Limits(8192, 256))
    assert answers.first_ms()[0] == pytest.approx(cost.prefill_ps(0, 900, 0) / 1e9)
    steps = [(cost.decode_ps(0, 1) + cost.token_ps(0) * tokens) / 1e9 for tokens in (901, 902, 903)]
    assert answers.gaps_ms(0) == pytest.approx(steps)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(("tokens", "most", "gap_ms", "seed"), [(64, 8, 5.0, 1), (512, 16, 30.0, 2), (128, 3, 2.0, 3)])
def test_every_token_comes_when_the_slow_reference_says(
    tokens: int, most: int, gap_ms: float, seed: int, ahead: bool
) -> None:
    work = requests(60, gap_ms, seed)
    answers = served(work, RICH, EngineOverhead(6.0, 1.5), Limits(tokens, most, ahead))
    ends = naive(work, partial(step_ms, RICH, 6.0, 1.5), tokens, most, ahead=ahead)
    assert answers.step_ends_ms == pytest.approx(ends)
    for i, request in enumerate(work):
        assert answers.first_ms()[i] == pytest.approx(request.token_ms[0])
        assert answers.gaps_ms(i) == pytest.approx(np.diff(request.token_ms))


def test_more_sequences_than_tokens_a_step_are_refused() -> None:
    with pytest.raises(SetupError, match="--max-seqs 256 with --max-batched-tokens 128: expected"):
        Limits(128, 256)


def test_an_overhead_that_leaves_a_step_no_time_is_refused() -> None:
    with pytest.raises(SetupError, match=r"1 decoding sequences would take -0\.6 ms: expected more than 0"):
        served([Request(0.0, 3, 2)], PLAIN, EngineOverhead(0.0, -4.0), Limits(4, 2))
