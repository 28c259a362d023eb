"""Fits of E1 and E2: known coefficients are found again, bad rows and sparse ones do not mislead, no term is free."""

from __future__ import annotations

from math import exp, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mooncake_bench.errors import SetupError
from mooncake_bench.hardware.calibrate.forms import Decode, Prefill, coefficients, fit_decode, fit_prefill
from mooncake_bench.hardware.calibrate.heldout import heldout, relative_errors
from mooncake_bench.hardware.calibrate.rows import DecodeRows, PrefillRows

if TYPE_CHECKING:
    from pathlib import Path

LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
PREFIXES = (0, 1024, 16384)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
CONTEXTS = (128, 1024, 8192)
HALVES_ONLY = np.arange(10_000) % 2  # two groups, where what is left out is not looked at


def e1(n: float, s: float, m: float, b: float, o: float, c: float, h: float = 0.0, w: float = 1.0) -> float:
    """E1 as COST_MODEL writes it, one row at a time."""
    return sqrt(m**2 + (b * n) ** 2) + o + c * s + h * n**2 / (n**2 + w**2)


def e2(batch: float, tokens: float, m: float, k: float, e: float, c_d: float, g: float = 0.0) -> float:
    """E2 as COST_MODEL writes it, one row at a time."""
    return (m**4 + (k * batch) ** 4) ** 0.25 + e * batch + g * sqrt(batch) + c_d * tokens


def prefills(*numbers: float) -> PrefillRows:
    sizes = [(n, n * p + n * n / 2) for n in LENGTHS for p in PREFIXES]
    n, s = np.array(sizes, float).T
    return PrefillRows(n, s, np.array([e1(*size, *numbers) for size in sizes]))


def steps(*numbers: float) -> DecodeRows:
    sizes = [(batch, batch * context) for batch in BATCHES for context in CONTEXTS]
    batch, tokens = np.array(sizes, float).T
    return DecodeRows(batch, tokens, np.array([e2(*size, *numbers) for size in sizes]))


def spoilt(rows: Any, seed: int) -> Any:
    """One row in twenty takes three times as long."""
    ms = rows.ms.copy()
    ms[np.random.default_rng(seed).choice(len(ms), max(1, len(ms) // 20), replace=False)] *= 3
    return type(rows)(*(getattr(rows, name) for name in list(rows.__dataclass_fields__)[:2]), ms)


def logs(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(np.log(low), np.log(high)).map(lambda x: float(np.exp(x)))


@settings(max_examples=6)
@given(token=logs(1e-4, 10), turn=logs(20, 2000), constant=logs(0.01, 10), attention=logs(1e-6, 1e-3))
def test_a_prefill_of_known_coefficients_is_found_again_at_any_speed(
    token: float, turn: float, constant: float, attention: float
) -> None:
    # constant: in floors of a short prefill; attention: in token times a token of context
    rows = prefills(token * turn, token, constant * token * turn, attention * token)
    assert relative_errors(rows, fit_prefill(rows)).max() < 1


@settings(max_examples=6)
@given(token=logs(1e-4, 10), turn=logs(30, 300), share=logs(0.5, 3), sets_in=logs(300, 3000))
def test_a_prefill_with_a_late_term_is_found_again(token: float, turn: float, share: float, sets_in: float) -> None:
    rows = prefills(token * turn, token, 0.0, token * 1e-5, share * token * sets_in, sets_in)
    assert relative_errors(rows, fit_prefill(rows)).max() < 1


@settings(max_examples=6)
@given(floor=logs(0.01, 1000), turn=logs(10, 400), slope=logs(0.05, 1), tokens=logs(1e-7, 1e-4), root=logs(0.1, 0.5))
def test_a_decode_step_of_known_coefficients_is_found_again(
    floor: float, turn: float, slope: float, tokens: float, root: float
) -> None:
    # the slope under the roof: in roof times; tokens and root: in floors
    plain = steps(floor, floor / turn, slope * floor / turn, tokens * floor)
    assert relative_errors(plain, fit_decode(plain)).max() < 1
    rooted = steps(floor, floor / turn, slope * floor / turn, tokens * floor, root * floor)
    assert relative_errors(rooted, fit_decode(rooted, root=True)).max() < 1


@settings(max_examples=4)
@given(turn=logs(10, 400), slope=logs(0.05, 1), tokens=logs(1e-7, 1e-4), root=logs(0.005, 0.1))
@example(turn=22.76, slope=1.0, tokens=exp(-10), root=0.0302)
@example(turn=26.09, slope=0.07882, tokens=6.609e-5, root=0.02514)
def test_a_small_root_is_found_again_or_costs_no_more_than_its_own_share_where_the_other_terms_make_up_for_it(
    turn: float, slope: float, tokens: float, root: float
) -> None:
    # A root of less than a tenth of the floor may not earn its place. Without it all else as it was is a fit that is
    # off by the root's own share of a row's time; the best fit is not worse.
    rows = steps(1.0, 1 / turn, slope / turn, tokens, root)
    found = fit_decode(rows, root=True)
    share = 100 * root * np.sqrt(rows.batch) / rows.ms
    assert relative_errors(rows, found).max() < (1 if found.root_ms else share.max())


@pytest.mark.parametrize("seed", range(2))
def test_few_rows_that_took_three_times_as_long_hardly_move_a_fit(seed: int) -> None:
    rows = prefills(19.5, 0.095, 0.5, 1.8e-6, 40.0, 512.0)
    assert np.median(relative_errors(rows, fit_prefill(spoilt(rows, seed)))) < 1
    decode = steps(18.8, 0.101, 0.045, 2.7e-5)
    assert np.median(relative_errors(decode, fit_decode(spoilt(decode, seed)))) < 1


def test_a_term_that_the_rows_do_not_have_is_left_out() -> None:
    noise = np.random.default_rng(1).normal(1, 0.01, 33)
    rows = prefills(9.0, 0.04, 2.0, 4.7e-7)
    found = fit_prefill(PrefillRows(rows.n, rows.s, rows.ms * noise))
    assert (found.late_ms, found.late_tokens) == (0.0, 1.0)
    decode = steps(9.0, 0.03, 0.02, 1e-5)
    noisy = DecodeRows(decode.batch, decode.tokens, decode.ms * noise[:30])
    assert fit_decode(noisy, root=True).root_ms == 0


def test_what_is_held_fixed_stays() -> None:
    rows = prefills(19.5, 0.095, 0.5, 1.8e-6, 40.0, 512.0)
    assert fit_prefill(rows, token2_ms=2e-6).token2_ms == 2e-6
    assert fit_prefill(rows, late_tokens=512.0).late_tokens == 512.0
    assert fit_prefill(rows, late=False).late_ms == 0


def test_the_same_rows_give_the_same_fit_in_any_unit() -> None:
    rows = prefills(19.5, 0.095, 0.5, 1.8e-6)
    found = fit_prefill(rows)
    assert found == fit_prefill(rows)
    slower = fit_prefill(PrefillRows(rows.n, rows.s, 1000 * rows.ms))
    assert slower.token_ms == pytest.approx(1000 * found.token_ms, rel=1e-4)


def test_no_coefficient_is_negative_even_where_times_fall() -> None:
    rows = prefills(10.0, 0.0, 0.0, 0.0)
    falling = fit_prefill(PrefillRows(rows.n, rows.s, rows.ms - 1e-4 * rows.n))
    assert min(falling.floor_ms, falling.constant_ms, falling.token2_ms, falling.late_ms) >= 0
    assert falling.token_ms > 0  # a preset's least


def test_too_few_rows_are_refused() -> None:
    rows = prefills(9.0, 0.04, 2.0, 4.7e-7)
    with pytest.raises(SetupError, match="5 prefill rows: a fit needs at least 6"):
        fit_prefill(rows.select(np.arange(5)))


def test_the_analytic_model_gets_each_coefficient_in_its_place() -> None:
    made = coefficients(Prefill(1, 2, 3, 4, 5, 6), Decode(7, 8, 9, 10, 11))
    names = ["floor", "token", "constant", "token2", "late"]
    assert [getattr(made, f"prefill_{name}_ms") for name in names] == [1, 2, 3, 4, 5]
    assert made.prefill_late_tokens == 6
    names = ["floor", "roof", "sequence", "token", "root"]
    assert [getattr(made, f"decode_{name}_ms") for name in names] == [7, 8, 9, 10, 11]


# ---- the public measurements: kernel sums of 70B at tensor parallelism 8


def measured(shared: Path, phase: str, hw: str, names: tuple[str, str, str], model: str, tp: int) -> Any:
    table = pq.read_table(shared / "measurements" / "derived" / f"composed_{phase}_ms.parquet").to_pydict()
    rows = zip(*(table[name] for name in ("hw", "model", "tp", *names)), strict=True)
    wanted = [row[3:] for row in rows if row[:3] == (hw, model, tp)]
    return (PrefillRows if phase == "prefill" else DecodeRows)(*np.array(wanted, float).T)


@pytest.mark.parametrize(
    ("hw", "model", "median", "p90"),
    # The worst preset of each node in COST_MODEL.md section 3, row "worst preset", and its errors
    [("a100_sxm", "llama-70b", 4.7, 13.5), ("h100_sxm", "llama-70b", 3.4, 9.6), ("h200_sxm", "llama-70b", 3.8, 9.6)],
)
def test_measured_prefills_are_met_within_the_published_errors(
    hw: str, model: str, median: float, p90: float, shared: Path
) -> None:
    rows = measured(shared, "prefill", hw, ("n", "S2", "t"), model, 8)
    found = heldout(rows, fit_prefill, HALVES_ONLY[: len(rows)], halves=2)
    assert found.median < min(median, 5)
    assert found.p90 < min(p90, 10)


def test_the_all_reduce_that_changes_kernels_at_512_tokens_explains_70b_prefill_on_a100(shared: Path) -> None:
    # 8 MiB of 8192 two-byte values a token: from 512 tokens NCCL serves the all-reduce. Issue 4 wants 5 / 10 % on
    # halves and with each prompt length left out.
    rows = measured(shared, "prefill", "a100_sxm", ("n", "S2", "t"), "llama-70b", 8)
    found = heldout(rows, lambda some: fit_prefill(some, late_tokens=512.0), rows.n, halves=2)
    assert (found.median < 5, found.left_out_median < 5) == (True, True)
    assert (found.p90 < 10, found.left_out_p90 < 10) == (True, True)


@pytest.mark.parametrize("hw", ["a100_sxm", "h100_sxm", "h200_sxm"])
def test_measured_decode_steps_are_met_within_five_and_ten_percent(hw: str, shared: Path) -> None:
    rows = measured(shared, "decode", hw, ("B", "T", "t"), "llama-70b", 8)
    found = heldout(rows, fit_decode, HALVES_ONLY[: len(rows)], halves=2)
    assert found.median < 5
    assert found.p90 < 10
