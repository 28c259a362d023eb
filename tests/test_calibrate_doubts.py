"""What rows cannot tell is said: too few sizes, copies, a unit, a term that hardly shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mooncake_bench.errors import SetupError
from mooncake_bench.hardware.analytic import Coefficients
from mooncake_bench.hardware.calibrate import doubts
from mooncake_bench.hardware.calibrate.fitting import PhaseFit, decode_fitted, prefill_fitted
from mooncake_bench.hardware.calibrate.forms import Decode, Prefill
from mooncake_bench.hardware.calibrate.rows import DecodeRows, PrefillRows

BASE = Coefficients(10.0, 0.1, 0.0, 1e-6, 20.0, 0.0, 0.5, 1e-4)
"""Prefill hypot(10, 0.1 n) + 1e-6 S, decode 20 + 0.5 B + 1e-4 T [ms]."""


def prefills(sizes: Any, ms: Any = 1.0) -> PrefillRows:
    n, s = np.array(sizes, float).T
    return PrefillRows(n, s, np.broadcast_to(np.asarray(ms, float), n.shape))


def steps(sizes: Any, ms: Any = 1.0) -> DecodeRows:
    batch, tokens = np.array(sizes, float).T
    return DecodeRows(batch, tokens, np.broadcast_to(np.asarray(ms, float), batch.shape))


def of(rows: Any) -> PhaseFit:
    """A fit whose form is that of BASE."""
    if isinstance(rows, PrefillRows):
        return PhaseFit("prefill", Prefill(10.0, 0.1, 0.0, 1e-6), rows, None, np.zeros(len(rows)))
    return PhaseFit("decode", Decode(20.0, 0.0, 0.5, 1e-4), rows, None, np.zeros(len(rows)))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([(512, 131072)] * 40, r"the 40 prefill rows hold 1 different shape\(s\) \(n and S\), 1 of the numbers of"),
        ([(1, 1), (2, 2), (3, 3)] * 4, r"12 prefill rows hold 3 different shape\(s\)"),
        (
            [(1, 1), (2, 2), (1, 5), (2, 7), (1, 9), (2, 9)],
            r"hold 6 different .*, 2 of .*: expected at least 4 shapes, .*, 3 ",
        ),
    ],
)
def test_fewer_prefill_shapes_than_parameters_are_refused(sizes: Any, message: str) -> None:
    with pytest.raises(SetupError, match=message):
        prefill_fitted(prefills(sizes))


@pytest.mark.parametrize(
    "sizes",
    [
        [(8, 800)] * 40,
        [(b, t) for b in (1, 2) for t in (100, 200, 300)],
        [(b, 600) for b in (1, 2, 3, 4, 5, 6)],
    ],
    ids=["one shape", "two batches", "one number of tokens"],
)
def test_decode_steps_of_too_few_batches_or_tokens_are_refused(sizes: Any) -> None:
    with pytest.raises(SetupError, match=r"expected at least 4 shapes, .*, 3 batch sizes and 2 numbers of tokens"):
        decode_fitted(steps(sizes))


def test_as_many_shapes_as_parameters_are_enough() -> None:
    # hypot(20, 0.1 n) + 5, seen in six rows of four shapes
    n = np.array([100.0, 200, 400, 800, 100, 200])
    found = prefill_fitted(PrefillRows(n, n * n / 2, np.hypot(20, 0.1 * n) + 5))
    assert found.in_sample[2] < 0.1
    assert found.heldout is None


@pytest.mark.parametrize(("unit", "ratio"), [(1e-3, "1/1,000 of"), (1e3, "1,000 times")])
def test_times_in_seconds_or_microseconds_are_doubted(unit: float, ratio: str) -> None:
    # n = 0: 10 ms, and 30 ms of attention at S = 3e7; decode 20 + 0.5 * 20 + 1e-4 * 1e5 = 40 ms
    fits = [of(prefills([(1e-9, 3e7)], 40 * unit)), of(steps([(20, 1e5)], 40 * unit))]
    for fit in fits:
        (line,) = doubts.unit_doubts(fit, BASE, "mine on a box")
        assert line.startswith(f"{fit.phase}: in the median a row's time is {ratio} what is known of mine on a box")
        assert "does the column ms hold milliseconds?" in line


@pytest.mark.parametrize("factor", [1 / 29, 1.0, 29.0])
def test_times_within_a_factor_of_thirty_are_not(factor: float) -> None:
    assert doubts.unit_doubts(of(steps([(20, 1e5)], 40 * factor)), BASE, "") == []


def test_attention_that_hardly_shows_in_any_row_is_said() -> None:
    # n = 1e-9: 10 ms, and 1e-6 S: 0.5 ms of 10.5 is 4.8 %, 0.6 of 10.6 is 5.7 %
    (line,) = doubts.doubts(of(prefills([(1e-9, 1e5), (1e-9, 5e5)])))
    assert line.startswith(
        "prefill: attention is at most 4.8 % of a row's time: its coefficient token2_ms is not ident"
    )
    assert doubts.doubts(of(prefills([(1e-9, 1e5), (1e-9, 6e5)]))) == []
    # 20 + 0.5 + 1 ms: 4.7 %; 20 + 0.5 + 1.2: 5.5 %
    (line,) = doubts.doubts(of(steps([(1, 100), (1, 10_000)])))
    assert line.startswith("decode: attention is at most 4.7 % of a row's time: its coefficient token_ms is not ident")
    assert doubts.doubts(of(steps([(1, 100), (1, 12_000)]))) == []


def test_a_context_that_never_changes_is_said() -> None:
    # 64 x 4,000 tokens: 25.6 ms of 77.6
    (line,) = doubts.doubts(of(steps([(1, 4000), (8, 32_000), (64, 256_000)])))
    assert line.startswith("decode: all rows have contexts of about 4,000 tokens: what a context token costs cannot be")


def test_copies_are_counted() -> None:
    rows = prefills([(1e-9, 6e5), (2, 6e5), (1e-9, 6e5), (1e-9, 6e5)], [1, 1, 1, 2])
    (line,) = doubts.doubts(of(rows))  # the third equals the first; the fourth took another time
    assert line.startswith("prefill: 1 of 4 rows equal another in size and time (a file read twice?)")
