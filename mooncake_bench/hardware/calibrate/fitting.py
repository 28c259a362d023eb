"""One phase fitted to its rows, with what it is worth."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mooncake_bench.hardware.calibrate.forms import Decode, Prefill, fit_decode, fit_prefill
from mooncake_bench.hardware.calibrate.heldout import LEAST_ROWS, heldout

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from mooncake_bench.hardware.calibrate.rows import DecodeRows, PrefillRows
    from mooncake_bench.hardware.presets import HeldOut

Floats: TypeAlias = "NDArray[np.float64]"


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


def prefill_fitted(rows: PrefillRows, *, late: bool = True, seed: int = 0) -> PhaseFit:
    """E1 of the rows, with a late term where ``late`` and where it helps; a configuration is a number of tokens."""
    return _fitted("prefill", rows, partial(fit_prefill, late=late), rows.n, seed)


def decode_fitted(rows: DecodeRows, *, root: bool = False, seed: int = 0) -> PhaseFit:
    """E2 of the rows, with a root term where ``root`` and where it helps; a configuration is a batch size."""
    return _fitted("decode", rows, partial(fit_decode, root=root), rows.batch, seed)


def _fitted(phase: str, rows: Any, fit: Callable[[Any], Any], groups: Floats, seed: int) -> PhaseFit:
    form = fit(rows)
    unseen = None
    if len(rows) >= LEAST_ROWS and len(np.unique(groups)) > 1:
        unseen = heldout(rows, fit, groups, seed=seed)
    return PhaseFit(phase, form, rows, unseen, 100 * (form.predict(rows) / rows.ms - 1))
