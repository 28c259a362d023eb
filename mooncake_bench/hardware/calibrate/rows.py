"""Measured times, as the forms are fitted to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Floats: TypeAlias = "NDArray[np.float64]"
Ints: TypeAlias = "NDArray[np.int64]"


@dataclass(frozen=True)
class PrefillRows:
    """(N,) prefills: computed tokens n, S = sum over sequences of n p + n^2 / 2 [tokens^2], time [ms]."""

    n: Floats
    s: Floats
    ms: Floats

    def __len__(self) -> int:
        return len(self.ms)

    def select(self, mask: Any) -> PrefillRows:
        """The rows of a mask or of positions."""
        return PrefillRows(self.n[mask], self.s[mask], self.ms[mask])


@dataclass(frozen=True)
class DecodeRows:
    """(N,) decode steps: sequences, context tokens of all of them, time [ms]."""

    batch: Floats
    tokens: Floats
    ms: Floats

    def __len__(self) -> int:
        return len(self.ms)

    def select(self, mask: Any) -> DecodeRows:
        """The rows of a mask or of positions."""
        return DecodeRows(self.batch[mask], self.tokens[mask], self.ms[mask])


def shapes(rows: PrefillRows | DecodeRows) -> Floats:
    """(N, 2) what was timed: n and S, or sequences and tokens."""
    sizes = (rows.n, rows.s) if isinstance(rows, PrefillRows) else (rows.batch, rows.tokens)
    return np.stack(sizes, axis=1)


def distinct_shapes(rows: PrefillRows | DecodeRows) -> int:
    """How many different ones were timed."""
    return len(np.unique(shapes(rows), axis=0))


def firsts(rows: PrefillRows | DecodeRows) -> Ints:
    """(D,) positions of the rows that no earlier one equals in shape and time."""
    whole = np.column_stack([shapes(rows), rows.ms])
    return np.sort(np.unique(whole, axis=0, return_index=True)[1])
