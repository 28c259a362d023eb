"""Intervals of differences between runs: an independent bootstrap, cases that are certain, and what a table says."""

from __future__ import annotations

from random import Random
from statistics import mean, quantiles
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mooncake_bench.report.sheets import _goodput_cells
from mooncake_bench.results.uncertainty import STRETCHES, Interval, interval, kept


def test_an_interval_agrees_with_a_bootstrap_written_apart() -> None:
    rng = Random(7)
    change = [rng.gauss(0.3, 2.0) + (k % 200 > 150) for k in range(4000)]  # stretches that differ
    size = len(change) // STRETCHES
    stretches = [change[k * size : (k + 1) * size] for k in range(STRETCHES)]
    means = [mean(mean(rng.choice(stretches)) for _ in range(STRETCHES)) for _ in range(3000)]
    cuts = quantiles(means, n=40)  # 2.5 % and 97.5 % are the first and the last of 39 cuts
    found = interval(np.array(change))
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    width = cuts[-1] - cuts[0]
    assert found.mean == pytest.approx(mean(change))
    assert found.low == pytest.approx(cuts[0], abs=0.1 * width)
    assert found.high == pytest.approx(cuts[-1], abs=0.1 * width)


def test_a_difference_that_is_the_same_everywhere_is_certain() -> None:
    assert interval(np.full(400, 2.0)) == Interval(2.0, 2.0, 2.0)
    assert interval(np.zeros(400)) == Interval(0.0, 0.0, 0.0)


def test_few_requests_have_a_mean_and_no_interval_and_none_have_nothing() -> None:
    assert interval(np.arange(2.0 * STRETCHES - 1)) == Interval(STRETCHES - 1.0, None, None)
    assert interval(np.array([])) is None


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Interval(0.04, 0.01, 0.07), ("+4.00", "+1.00 to +7.00", "more")),
        (Interval(-0.04, -0.07, -0.01), ("-4.00", "-7.00 to -1.00", "fewer")),
        (Interval(0.01, -0.02, 0.03), ("+1.00", "-2.00 to +3.00", "cannot tell apart")),
        (Interval(0.5, None, None), ("+50.00", "–", "cannot tell apart")),
        (Interval(0.0, 0.0, 0.0), ("+0.00", "–", "the same")),
    ],
)
def test_a_table_names_a_side_only_where_the_interval_does(found: Interval, said: tuple[str, ...]) -> None:
    assert _goodput_cells(found) == said


def test_only_completed_requests_that_kept_their_slos_count() -> None:
    table = pa.table(
        {"status": ["completed", "completed", "rejected", "completed"], "slo_ok": [True, False, True, None]}
    )
    run: Any = SimpleNamespace(requests=table)
    assert kept(run).tolist() == [True, False, False, False]
