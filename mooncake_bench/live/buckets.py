"""Which shapes are run, and what a time between them is.

A replay asks for thousands of different prefills: every instance's own prefix, at every arrival. Only corners are run:
computed tokens 16, 32, 64, 128, 256, 512 and then two a doubling (768, 1024, 1536, …), prefixes 0 and 512 times powers
of 4, batches of powers of 2. Between corners time is a straight line in each direction: exact where a cost is linear
(in the prefix and the context it is, in the computed tokens nearly so), at most 4 % too long where it is a pure square
(the middle of 1024 and 1536: 1.25^2 = 1.5625 against (1 + 2.25) / 2 = 1.625). Below the first corner the first holds.

A question runs only the corners around it, at most four: every time lies between measured medians, and none depends on
which was asked first. Nothing keeps noise from making a larger shape a little faster than a smaller one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mooncake_bench.hardware.cost import Column, FloatColumn

MOST = 2**24
"""The largest corner in tokens: about 16 million."""
COMPUTED = (16, 32, 64, 128, 256, *(n for k in range(9, 24) for n in (2**k, 3 * 2 ** (k - 1))), MOST)
PREFIX = (0, *(512 * 4**k for k in range(8)))
BATCH = tuple(2**k for k in range(18))

SLOPE_BATCHES = (1, 8, 64)
SLOPE_CONTEXTS = (64, 1024, 16384)
"""Decode steps that tell what a context token costs, as far as they fit into memory."""
REFERENCE_CONTEXT = 512
"""Context of each sequence [tokens] at which a batch is run for its own cost, less where memory holds less."""
LEAST_TOKEN_MS = 1e-9
"""The clock's unit: a token that cost less would round to nothing."""


class Surface:
    """Time [ms] over two sizes, from corners that are measured when one is first needed."""

    def __init__(
        self, measure: Callable[[int, int], float], rows: Sequence[int], columns: Sequence[int], what: str
    ) -> None:
        """``measure(row, column)`` gives a corner's time [ms]; ``what`` names the two sizes in a message."""
        self._measure = measure
        self._rows, self._columns = np.array(rows, np.int64), np.array(columns, np.int64)
        self._what = what
        self._known = np.full((len(rows), len(columns)), np.nan)

    def at(self, rows: Column, columns: Column) -> FloatColumn:
        """(N,) times [ms] for (N,) sizes. Raises SetupError beyond the last corner, and what a measurement raises."""
        low, high, share = self._between(self._rows, rows)
        left, right, part = self._between(self._columns, columns)
        self._fill(low, high, left, right)
        known = self._known
        near = known[low, left] * (1 - part) + known[low, right] * part
        far = known[high, left] * (1 - part) + known[high, right] * part
        time: FloatColumn = near * (1 - share) + far * share
        return time

    def _between(self, corners: Column, sizes: Column) -> tuple[Column, Column, FloatColumn]:
        """The corners around each size, and how far it is from the first to the second: 0 at a corner itself."""
        inside = np.maximum(sizes, corners[0])
        high = np.searchsorted(corners, inside)
        if len(high) and int(high.max()) == len(corners):
            raise SetupError(f"{self._what} {float(np.max(sizes)):,.0f}: a live cost knows at most {corners[-1]:,}")
        low = np.where(corners[high] == inside, high, high - 1)
        width = np.maximum(corners[high] - corners[low], 1)
        return low, high, (inside - corners[low]) / width

    def _fill(self, low: Column, high: Column, left: Column, right: Column) -> None:
        """Measure what is not known yet of the corners around sizes, the smaller ones first."""
        rows, columns = np.concatenate((low, low, high, high)), np.concatenate((left, right, left, right))
        unknown = np.isnan(self._known[rows, columns])
        if unknown.any():
            for i, j in sorted(set(zip(rows[unknown].tolist(), columns[unknown].tolist(), strict=True))):
                self._known[i, j] = self._measure(int(self._rows[i]), int(self._columns[j]))


def slope_shapes(vram_tokens: int) -> list[tuple[int, int]]:
    """(batch, context) of the steps that give the cost of a context token, within ``vram_tokens`` of KVCache."""
    shapes = []
    for batch in SLOPE_BATCHES:
        contexts = [context for context in SLOPE_CONTEXTS if batch * context <= vram_tokens]
        longest = vram_tokens // batch
        if contexts and contexts[-1] != SLOPE_CONTEXTS[-1] and longest >= 2 * contexts[-1]:
            contexts.append(longest)  # the longer, the better a token's share stands out
        if len(contexts) > 1:
            shapes += [(batch, context) for context in contexts]
    if not shapes:
        least = 2 * SLOPE_CONTEXTS[0]
        raise SetupError(f"{vram_tokens:,} tokens of KVCache are too few to measure decode; expected at least {least}")
    return shapes


def reference_context(batch: int, vram_tokens: int) -> int:
    """Context of each sequence [tokens] at which a batch is run for its own cost."""
    return max(1, min(REFERENCE_CONTEXT, vram_tokens // batch))


def token_slope(steps: Iterable[tuple[int, int, float]]) -> tuple[float, float]:
    """From (batch, context of each sequence, ms): what a context token costs [ms], and the largest relative error
    that remains when each batch has a constant of its own and the token's cost is one for all.

    Least squares of relative residuals: with y = f_B + c T, weight 1 / y^2, each f_B drops out as a weighted mean.
    """
    table = np.array(list(steps), np.float64)
    batch, ms = table[:, 0], table[:, 2]
    tokens = batch * table[:, 1]
    weight = 1 / np.square(ms)
    means = {}
    for one in np.unique(batch):
        mine = batch == one
        means[one] = [float(np.average(column[mine], weights=weight[mine])) for column in (tokens, ms)]
    centred = tokens - np.array([means[one][0] for one in batch])
    rise = ms - np.array([means[one][1] for one in batch])
    spread = float(np.sum(weight * centred * centred))
    slope = max(float(np.sum(weight * centred * rise)) / spread, LEAST_TOKEN_MS)
    left = rise - slope * centred
    return slope, float(np.max(np.abs(left) / ms))
