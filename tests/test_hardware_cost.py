"""The cost formulas: by hand, against exact arithmetic, and scalar against array."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal, localcontext

import numpy as np
import pytest
from design_costs import ENGINE, NODE
from hypothesis import given
from hypothesis import strategies as st

from mooncake_bench.hardware.analytic import AnalyticCost, Coefficients, EngineOverhead
from mooncake_bench.hardware.build import build_cost
from mooncake_bench.hardware.cost import CostModel, to_ps
from mooncake_bench.hardware.fake import FakeCost

EASY = Coefficients(
    prefill_floor_ms=3.0,
    prefill_token_ms=0.04,
    prefill_constant_ms=1.0,
    prefill_token2_ms=1e-4,
    decode_floor_ms=2.0,
    decode_roof_ms=0.5,
    decode_sequence_ms=0.5,
    decode_token_ms=0.001,
)
NODES = ["a800", "h100", "a100", "h200", "h800"]
MIXED = build_cost(NODES, "llama-3-70b", "mooncake-a800")
FAKE = FakeCost(
    5,
    prefill_constant_ms=[0, 1, 2, 3, 4],
    computed_token_ms=[1, 2, 0.5, 3, 0.25],
    prefix_token_ms=0.125,
    step_token_ms=[0.001, 0.002, 0.003, 0.0, 1e-9],
)

tokens = st.integers(min_value=1, max_value=2_000_000)
prefixes = st.integers(min_value=0, max_value=2_000_000)
batches = st.integers(min_value=1, max_value=4096)
contexts = st.integers(min_value=1, max_value=10_000_000)
instances = st.integers(min_value=0, max_value=4)


def easy(*coefficients: Coefficients, prefill_ms: float = 2.0, decode_ms: float = 1.0) -> AnalyticCost:
    return AnalyticCost(
        coefficients or (EASY,),
        EngineOverhead(prefill_ms, decode_ms),
        name="easy",
        version="1",
        error="none",
        layers=2,
        kv_bytes_per_token=10,
        nic_bytes_per_s=5.0,
        vram_tokens=7,
    )


def column(cost: CostModel, value: float) -> np.ndarray:
    return np.full(len(cost), float(value))


def test_prefill_is_floor_roof_constant_attention_and_engine() -> None:
    # n = 100, p = 50: sqrt(3^2 + (0.04*100)^2) = 5; o = 1; S = 100*50 + 100^2/2 = 10,000, c S = 1; o_pre = 2: 9 ms.
    assert easy().prefill_ps(0, 100, 50) == 9_000_000_000


def test_decode_is_floor_roof_slope_and_engine() -> None:
    # B = 4: k B = 2 = m, (2^4 + 2^4)^(1/4) = 32^(1/4) = 2.378414230005442; e B = 2; o_dec = 1: 5.378414230005442 ms.
    assert easy().decode_ps(0, 4) == 5_378_414_230


def test_each_context_token_adds_its_read_time_to_a_step() -> None:
    # c_d = 0.001 ms = 1,000,000 ps; 5.378414230005442 + 3000 * 0.001 = 8.378414230005442
    cost = easy()
    assert cost.token_ps(0) == 1_000_000
    assert cost.step_ms(column(cost, 4), column(cost, 3000))[0] == pytest.approx(8.378414230005442, rel=1e-12)


def test_times_round_half_to_even() -> None:
    # 0.5, 1.5 and 2.5 ps, each exact in binary before the rounding
    assert [to_ps(half / 1e9) for half in (0.5, 1.5, 2.5)] == [0, 2, 2]


def test_a800_prefill_of_8192_tokens_takes_1047_ms() -> None:
    # b n = 0.1089*8192 = 892.1088; sqrt(5.5^2 + 892.1088^2) = 892.12575; o = 13.05; o_pre = 80;
    # c S = 1.849e-6 * 8192^2/2 = 62.04214. In all 1047.21789 ms.
    cost = build_cost([NODE], "llama-3-70b", ENGINE)
    assert cost.prefill_ps(0, 8192, 0) / 1e9 == pytest.approx(1047.21789, abs=1e-4)


def test_a800_step_of_64_sequences_takes_37_6_ms_with_300000_tokens() -> None:
    # k B = 7.168; (18.82^4 + 7.168^4)^(1/4) = (125,451.2 + 2,639.9)^(1/4) = 18.91824; e B = 2.8736; o_dec = 7.8;
    # c_d T = 2.688e-5 * 300,000 = 8.064. In all 37.6558 ms.
    cost = build_cost([NODE], "llama-3-70b", ENGINE)
    assert cost.token_ps(0) == 26_880
    assert (cost.decode_ps(0, 64) + 300_000 * cost.token_ps(0)) / 1e9 == pytest.approx(37.6558, abs=1e-3)


def exact_ps(ms: Decimal) -> int:
    return int((ms * 10**9).to_integral_value())  # half to even is the default of decimal


@given(instances, tokens, prefixes)
def test_prefill_equals_exact_arithmetic_to_a_picosecond_in_1e15(i: int, n: int, p: int) -> None:
    c = MIXED.coefficients[i]
    with localcontext() as context:
        context.prec = 60
        m, b, o, c2, h, w = (
            Decimal(repr(x))
            for x in (
                c.prefill_floor_ms, c.prefill_token_ms, c.prefill_constant_ms, c.prefill_token2_ms,
                c.prefill_late_ms, c.prefill_late_tokens,
            )
        )  # fmt: skip
        s, n2 = Decimal(n) * p + Decimal(n) * n / 2, Decimal(n) * n
        o_pre = Decimal(repr(MIXED.overhead.prefill_ms))
        exact = exact_ps((m * m + (b * n) ** 2).sqrt() + o + c2 * s + h * n2 / (n2 + w * w) + o_pre)
    assert abs(MIXED.prefill_ps(i, n, p) - exact) <= 1 + 1e-15 * exact


@given(instances, batches)
def test_decode_equals_exact_arithmetic_to_a_picosecond(i: int, batch: int) -> None:
    c = MIXED.coefficients[i]
    with localcontext() as context:
        context.prec = 60
        m, k, e, g = (
            Decimal(repr(x)) for x in (c.decode_floor_ms, c.decode_roof_ms, c.decode_sequence_ms, c.decode_root_ms)
        )
        roof = (m**4 + (k * batch) ** 4).sqrt().sqrt()
        exact = exact_ps(roof + e * batch + g * Decimal(batch).sqrt() + Decimal("7.8"))
    assert abs(MIXED.decode_ps(i, batch) - exact) <= 1


@pytest.mark.parametrize("cost", [MIXED, FAKE], ids=["analytic", "fake"])
@given(n=st.lists(tokens, min_size=5, max_size=5), p=st.lists(prefixes, min_size=5, max_size=5))
def test_array_prefill_agrees_with_the_scalar(cost: CostModel, n: list[int], p: list[int]) -> None:
    array = cost.prefill_ms(np.array(n, dtype=float), np.array(p, dtype=float))
    scalar = [cost.prefill_ps(i, n[i], p[i]) / 1e9 for i in range(5)]
    np.testing.assert_allclose(array, scalar, rtol=1e-9)


@pytest.mark.parametrize("cost", [MIXED, FAKE, easy(replace(EASY, prefill_late_ms=3.0, prefill_late_tokens=900.0))])
@given(n=tokens, p=prefixes)
def test_one_instance_alone_is_told_what_its_column_says_to_the_last_bit(cost: CostModel, n: int, p: int) -> None:
    told = [cost.behind_ms(i, float(n), [float(p), 0.0]) for i in range(len(cost))]
    columns = [cost.prefill_ms(column(cost, n), column(cost, prefix)) for prefix in (p, 0)]
    assert told == np.array(columns).T.tolist()
    clock = [cost.behind_ps(i, n, [p, 0]) for i in range(len(cost))]
    assert clock == [[cost.prefill_ps(i, n, prefix) for prefix in (p, 0)] for i in range(len(cost))]


def test_instances_are_alike_that_have_the_same_costs_and_nic() -> None:
    cost = build_cost(["a800", "h100", "a800", "h100", "a100"], "llama-3-70b", "mooncake-a800")
    assert list(cost.alike) == [0, 1, 0, 1, 4]
    assert list(FAKE.alike) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("cost", [MIXED, FAKE], ids=["analytic", "fake"])
@given(batch=st.lists(batches, min_size=5, max_size=5), context=st.lists(contexts, min_size=5, max_size=5))
def test_array_step_agrees_with_the_scalars(cost: CostModel, batch: list[int], context: list[int]) -> None:
    array = cost.step_ms(np.array(batch, dtype=float), np.array(context, dtype=float))
    scalar = [(cost.decode_ps(i, batch[i]) + cost.token_ps(i) * context[i]) / 1e9 for i in range(5)]
    np.testing.assert_allclose(array, scalar, rtol=1e-9)


@given(instances, tokens, prefixes, tokens)
def test_more_tokens_to_compute_or_to_attend_to_never_take_less_time(i: int, n: int, p: int, more: int) -> None:
    assert MIXED.prefill_ps(i, n, p) <= MIXED.prefill_ps(i, n + more, p)
    assert MIXED.prefill_ps(i, n, p) <= MIXED.prefill_ps(i, n, p + more)


@given(instances, tokens, tokens)
def test_a_cached_prefix_is_cheaper_than_computing_it(i: int, n: int, p: int) -> None:
    assert MIXED.prefill_ps(i, n, p) < MIXED.prefill_ps(i, n + p, 0)


@given(instances, batches)
def test_a_bigger_batch_takes_longer_but_less_a_sequence(i: int, batch: int) -> None:
    one, two = MIXED.decode_ps(i, batch), MIXED.decode_ps(i, 2 * batch)
    assert one < two < 2 * one


def test_every_instance_has_its_own_column() -> None:
    # EASY costs 9 ms (above); with twice the attention, c S = 2, 10 ms.
    other = Coefficients(3.0, 0.04, 1.0, 2e-4, 2.0, 0.0, 0.5, 0.002)
    cost = easy(EASY, other)
    assert [cost.prefill_ps(i, 100, 50) for i in (0, 1)] == [9_000_000_000, 10_000_000_000]
    # the other has no roof: f(4) = 2 + 0.5*4 + 1 = 5 ms
    assert [cost.decode_ps(i, 4) for i in (0, 1)] == [5_378_414_230, 5_000_000_000]
    assert [cost.token_ps(i) for i in (0, 1)] == [1_000_000, 2_000_000]


def test_asking_a_step_twice_answers_the_same_from_memory() -> None:
    cost = easy(EASY, EASY)
    assert cost.decode_ps(0, 4) == cost.decode_ps(0, 4) == cost.decode_ps(1, 4) == 5_378_414_230


def test_array_forms_leave_their_arguments_alone_and_take_integers() -> None:
    n, p = np.full(5, 1000), np.full(5, 24)
    before = MIXED.prefill_ms(n.astype(float), p.astype(float))
    np.testing.assert_array_equal(MIXED.prefill_ms(n, p), before)
    np.testing.assert_array_equal(MIXED.step_ms(n, p), MIXED.step_ms(n.astype(float), p.astype(float)))
    assert (n == 1000).all()
    assert (p == 24).all()


@pytest.mark.parametrize("cost", [MIXED, FAKE], ids=["analytic", "fake"])
def test_columns_cannot_be_changed(cost: CostModel) -> None:
    for values in (cost.nic_bytes_per_s, cost.vram_tokens):
        assert values.shape == (len(cost),) == (5,)
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 1


def test_fake_prefill_takes_one_ms_a_computed_token_and_nothing_for_the_prefix() -> None:
    cost = FakeCost(2)
    assert cost.prefill_ps(1, 100, 900) == 100_000_000_000
    assert cost.prefill_ms(np.array([1.0, 2.0]), np.array([5.0, 5.0])).tolist() == [1.0, 2.0]


def test_fake_step_takes_10_ms_and_1_a_sequence_and_a_thousandth_a_token() -> None:
    cost = FakeCost(2)
    # 10 + 3*1 = 13 ms; + 2000 * 0.001 = 15 ms
    assert cost.decode_ps(0, 3) == 13_000_000_000
    assert cost.token_ps(0) == 1_000_000
    assert cost.step_ms(np.array([3.0, 1.0]), np.array([2000.0, 0.0])).tolist() == [15.0, 11.0]


def test_every_number_of_the_fake_is_settable_for_one_instance() -> None:
    cost = FakeCost(
        2,
        prefill_constant_ms=5,
        computed_token_ms=[1, 2],
        prefix_token_ms=[0, 0.5],
        step_constant_ms=[1, 2],
        step_sequence_ms=3,
        step_token_ms=[0, 1],
        layers=7,
        kv_bytes_per_token=11,
        nic_bytes_per_s=[1, 2],
        vram_tokens=[10, 20],
    )
    # 5 + 2*10 + 0.5*4 = 27 ms; 2 + 3*2 = 8 ms
    assert (cost.prefill_ps(1, 10, 4), cost.decode_ps(1, 2), cost.token_ps(1)) == (27 * 10**9, 8 * 10**9, 10**9)
    assert (cost.layers, cost.kv_bytes_per_token) == (7, 11)
    assert (cost.nic_bytes_per_s.tolist(), cost.vram_tokens.tolist()) == ([1.0, 2.0], [10, 20])


def test_a_column_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="shape"):
        FakeCost(2, vram_tokens=[1, 2, 3])
