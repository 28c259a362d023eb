"""One phase fitted to its rows, with what it is worth."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mooncake_bench.hardware.calibrate.doubts import check_variety
from mooncake_bench.hardware.calibrate.forms import Decode, Prefill, fit_decode, fit_prefill
from mooncake_bench.hardware.calibrate.heldout import LEAST_ROWS, heldout
from mooncake_bench.hardware.calibrate.rows import PrefillRows, firsts

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from mooncake_bench.hardware.calibrate.rows import DecodeRows
    from mooncake_bench.hardware.presets import HeldOut

Floats: TypeAlias = "NDArray[np.float64]"

HALVES = 20


@dataclass(frozen=True)
class PhaseFit:
    """A fit, the rows it was fitted to, and its errors on rows that it did not see."""

    phase: str
    """``prefill`` or ``decode``."""
    form: Prefill | Decode
    rows: PrefillRows | DecodeRows
    heldout: HeldOut | None
    """None where the rows are too few, or all of one configuration."""
    errors: Floats
    """(N,) predicted / measured - 1 of all rows, in-sample [%]."""

    @property
    def in_sample(self) -> tuple[float, float, float]:
        """Median, p90 and worst relative error on the rows that were fitted [%]."""
        size = np.abs(self.errors)
        return float(np.median(size)), float(np.percentile(size, 90)), float(size.max())

    @property
    def domain(self) -> str:
        """The sizes that were fitted, in words."""
        if isinstance(self.rows, PrefillRows):
            sizes = f"prefills of {_range(self.rows.n)} computed tokens"
            return f"{sizes}, S up to {self.rows.s.max():.3g} tokens^2"
        return f"batches of {_range(self.rows.batch)}, contexts of {_range(self.rows.tokens / self.rows.batch)} tokens"


def prefill_fitted(rows: PrefillRows, *, late: bool = True, seed: int = 0) -> PhaseFit:
    """E1 of the rows, with a late term where ``late`` and where it helps; a configuration is a number of tokens.

    Raises SetupError for rows of too few sizes.
    """
    return _fitted("prefill", rows, partial(fit_prefill, late=late), rows.n, seed)


def decode_fitted(rows: DecodeRows, *, root: bool = False, seed: int = 0) -> PhaseFit:
    """E2 of the rows, with a root term where ``root`` and where it helps; a configuration is a batch size.

    Raises SetupError for rows of too few sizes.
    """
    return _fitted("decode", rows, partial(fit_decode, root=root), rows.batch, seed)


def _range(values: Floats) -> str:
    return f"{values.min():,.0f} to {values.max():,.0f}"


def _fitted(phase: str, rows: Any, fit: Callable[[Any], Any], groups: Floats, seed: int) -> PhaseFit:
    check_variety(rows)
    form = fit(rows)
    unseen = None
    if len(firsts(rows)) >= LEAST_ROWS and len(np.unique(groups)) > 1:
        unseen = heldout(rows, fit, groups, halves=HALVES, seed=seed)
    return PhaseFit(phase, form, rows, unseen, 100 * (form.predict(rows) / rows.ms - 1))
