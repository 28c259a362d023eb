"""Measured times, as the forms are fitted to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Floats: TypeAlias = "NDArray[np.float64]"


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
