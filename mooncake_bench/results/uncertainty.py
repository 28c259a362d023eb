"""How sure a difference between two runs is: a block bootstrap over time.

Requests that queue together are not independent, so whole stretches of time are drawn, not requests. Both runs met the
same requests (common random numbers), so their difference is taken request by request before anything is drawn. The
interval is of this trace under other mixes of its own stretches; another trace, another seed, or wrong costs are not in
it (``mooncake-bench robust`` tries those).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from mooncake_bench.results.run import Run
    from mooncake_bench.results.steps import Bools, Floats

STRETCHES = 40
DRAWS = 2_000
LEVEL = (2.5, 97.5)  # percent: a 95 % interval


class Interval(NamedTuple):
    """A mean and its 95 % interval; None where there are fewer than two requests a stretch."""

    mean: float
    low: float | None
    high: float | None

    @property
    def sign(self) -> int | None:
        """1 or -1 where all of the interval is on one side of 0; None where the sides cannot be told apart."""
        if self.low is None or self.high is None:
            return None
        return 1 if self.low > 0 else -1 if self.high < 0 else None


def interval(change: Floats) -> Interval | None:
    """Of the mean of some differences in order of arrival. The draws have a fixed seed. None: there are none."""
    if not len(change):
        return None
    mean = float(change.mean())
    if len(change) < 2 * STRETCHES:
        return Interval(mean, None, None)
    parts = np.array_split(change, STRETCHES)
    sums, sizes = (np.array([measure(part) for part in parts]) for measure in (np.sum, len))
    drawn = np.random.default_rng(0).integers(0, STRETCHES, (DRAWS, STRETCHES))
    low, high = np.percentile(sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1), LEVEL).tolist()
    return Interval(mean, low, high)


def kept(run: Run) -> Bools:
    """Which requests completed within their SLOs, one truth a row."""
    found: Bools = (run.requests.column("status").to_numpy(zero_copy_only=False) == "completed") & (
        run.requests.column("slo_ok").fill_null(False).to_numpy(zero_copy_only=False)
    )
    return found
