"""Held-out errors: halves that were not seen, and configurations left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from mooncake_bench.errors import SetupError
from mooncake_bench.hardware.calibrate.heldout import heldout, left_out_errors, relative_errors
from mooncake_bench.hardware.calibrate.rows import DecodeRows


@dataclass
class Mean:
    """Predicts the mean time that it saw."""

    ms: float

    def predict(self, rows: DecodeRows) -> Any:
        return np.full(len(rows), self.ms)


def mean(rows: DecodeRows) -> Mean:
    return Mean(float(rows.ms.mean()))


def rows_of(ms: list[float]) -> DecodeRows:
    return DecodeRows(np.arange(1.0, len(ms) + 1), np.ones(len(ms)), np.array(ms, float))


def test_a_relative_error_is_over_the_measured_time() -> None:
    # 15 / 10 - 1 = +50 %, 15 / 20 - 1 = -25 %
    assert relative_errors(rows_of([10, 20]), Mean(15)).tolist() == pytest.approx([50, 25])


def test_a_configuration_left_out_is_predicted_by_the_others_alone() -> None:
    # without the 10s the mean is 20 (+100 %), without the 20s it is 10 (-50 %)
    rows = rows_of([10, 10, 20, 20])
    assert left_out_errors(rows, mean, ["a", "a", "b", "b"]).tolist() == pytest.approx([100, 100, 50, 50])


def test_halves_are_as_many_as_asked_disjoint_and_drawn_with_the_seed() -> None:
    seen: list[frozenset[float]] = []

    def fit(rows: DecodeRows) -> Mean:
        seen.append(frozenset(rows.batch.tolist()))
        return mean(rows)

    rows = rows_of([float(i) for i in range(10, 23)])
    first = heldout(rows, fit, np.arange(13), halves=7)
    assert [len(half) for half in seen[:7]] == [7] * 7  # the larger half of 13 is fitted
    assert len(set(seen[:7])) > 1
    assert [len(rest) for rest in seen[7:]] == [12] * 13
    assert heldout(rows, fit, np.arange(13), halves=7) == first
    assert heldout(rows, fit, np.arange(13), halves=7, seed=1).median != first.median


def test_errors_of_halves_are_means_over_the_draws() -> None:
    # Eleven rows of 10 and one of 20: the half that holds the 20 off is wrong by -50 % once; the other by
    # (5 * 10 + 20) / 6 / 10 - 1 = +16.7 % everywhere. The worst error's mean lies between, as often as it is held out.
    rows = rows_of([10] * 11 + [20])
    found = heldout(rows, mean, np.arange(12), halves=40)
    held = (found.worst - 100 / 6) / (50 - 100 / 6)
    assert 0.2 < held < 0.8
    assert found.median == pytest.approx((1 - held) * 100 / 6)
    assert found.rows == 12


def test_copies_of_rows_make_no_error_smaller() -> None:
    # Whatever half a row is in, its copy must not be in the other: thirteen rows read twice are thirteen rows.
    rows = rows_of([float(i) for i in range(10, 23)])
    once = heldout(rows, mean, np.arange(13), halves=7)
    twice = rows.select(np.concatenate([np.arange(13), np.arange(13)]))
    assert heldout(twice, mean, np.concatenate([np.arange(13), np.arange(13)]), halves=7) == once
    with pytest.raises(SetupError, match="11 rows: errors on held-out halves need at least 12"):
        heldout(rows_of([10.0] * 11).select(np.arange(22) % 11), mean, np.arange(22) % 2)


def test_rows_that_cannot_be_held_out_are_refused() -> None:
    with pytest.raises(SetupError, match="11 rows: errors on held-out halves need at least 12"):
        heldout(rows_of([1.0] * 11), mean, np.arange(11))
    with pytest.raises(SetupError, match="one configuration"):
        heldout(rows_of([1.0] * 12), mean, np.zeros(12))
