"""Time against bytes: (E4) latency + bytes / bandwidth, and how far that is off on sizes it was not fitted to.

What is fitted are the medians of the sizes: a relative residual is bounded on one side only, so that single samples
that were held up would weigh less than single lucky ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from mooncake_bench.errors import NothingToConclude, SetupError
from mooncake_bench.live.timing import NOISY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats: TypeAlias = "NDArray[np.float64]"

LEAST_SIZES = 3
"""With one left out, two are still a line."""
LEAST_SAMPLES = 3
"""Of each size: with fewer, nothing is known about their spread."""
TOLERANCE = 0.1
"""Relative residuals above this weigh less and less (soft_l1)."""
ITERATIONS = 200
LEAST_GROWTH = 0.01
"""From the smallest to the largest size, over the latency; a line as flat as that has no bandwidth."""


@dataclass(frozen=True)
class Size:
    """The samples of one size."""

    nbytes: int
    median_ms: float
    spread: float
    """Distance between the quartiles over the median."""
    samples: int


@dataclass(frozen=True)
class LinkFit:
    """A link's two numbers, and what they are worth."""

    latency_ms: float
    gbytes_per_s: float
    left_out_median: float
    """Relative error [%] of a size's median, predicted without the samples of that size; so are p90 and worst."""
    left_out_p90: float
    left_out_worst: float
    spread: float
    """The median size's."""

    @property
    def noisy(self) -> bool:
        """Whether at least half of the sizes have quartiles further apart than 10 % of their median."""
        return self.spread > NOISY

    def predict(self, nbytes: float) -> float:
        """Time of one transfer [ms]."""
        return self.latency_ms + nbytes / self.gbytes_per_s / 1e6


def by_size(nbytes: Sequence[int], ms: Sequence[float]) -> list[Size]:
    """The samples in groups of one size, the smallest first."""
    sizes, times = np.asarray(nbytes), np.asarray(ms, float)
    return [_size(int(size), times[sizes == size]) for size in np.unique(sizes)]


def fit_link(nbytes: Sequence[int], ms: Sequence[float]) -> LinkFit:
    """The two numbers from (bytes, ms) samples: robust (soft_l1 on relative residuals), neither of them negative.

    Raises SetupError for fewer than three sizes or three samples of one, NothingToConclude where the time does not grow
    with the bytes.
    """
    groups = by_size(nbytes, ms)
    if len(groups) < LEAST_SIZES or min(group.samples for group in groups) < LEAST_SAMPLES:
        raise SetupError(f"a fit needs {LEAST_SAMPLES} samples of each of {LEAST_SIZES} sizes; measure more")
    latency_ms, byte_ms = _line(groups)
    if byte_ms * (groups[-1].nbytes - groups[0].nbytes) <= LEAST_GROWTH * latency_ms:
        raise NothingToConclude(
            f"the time does not grow from {groups[0].nbytes:,} to {groups[-1].nbytes:,} bytes; give larger --sizes"
        )
    errors = np.array([_left_out(group, groups) for group in groups])
    median, p90 = np.percentile(errors, (50, 90)).tolist()
    spread = float(np.median([group.spread for group in groups]))
    return LinkFit(latency_ms, 1e-6 / byte_ms, median, p90, float(errors.max()), spread)


def _size(nbytes: int, ms: Floats) -> Size:
    low, median, high = np.percentile(ms, (25, 50, 75)).tolist()
    return Size(nbytes, median, (high - low) / median, len(ms))


def _left_out(group: Size, groups: Sequence[Size]) -> float:
    """Relative error [%] on a size's median of the line through the other sizes."""
    latency_ms, byte_ms = _line([other for other in groups if other is not group])
    return 100 * abs((latency_ms + byte_ms * group.nbytes) / group.median_ms - 1)


def _line(groups: Sequence[Size]) -> tuple[float, float]:
    """(ms, ms a byte), both at least 0, by reweighted least squares: the loss is convex, so there is one answer."""
    from scipy.optimize import nnls

    times = np.array([group.median_ms for group in groups])
    scale = float(max(group.nbytes for group in groups))
    relative = np.column_stack((1 / times, [group.nbytes / scale for group in groups] / times))
    weight, line = np.ones_like(times), np.zeros(2)
    for _ in range(ITERATIONS):
        before, line = line, nnls(relative * weight[:, None], weight)[0]
        if np.allclose(line, before, rtol=1e-12, atol=0):
            break
        weight = (1 + ((relative @ line - 1) / TOLERANCE) ** 2) ** -0.25  # the square root of soft_l1's slope
    return float(line[0]), float(line[1]) / scale
