"""How far a fit is off on rows that it did not see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from mooncake_bench.errors import SetupError
from mooncake_bench.hardware.calibrate.rows import firsts
from mooncake_bench.hardware.presets import HeldOut

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from mooncake_bench.hardware.calibrate.rows import DecodeRows, PrefillRows

Rows = TypeVar("Rows", "PrefillRows", "DecodeRows")
Floats: TypeAlias = "NDArray[np.float64]"

LEAST_ROWS = 12
"""Half of them must be enough for a fit."""


def relative_errors(rows: Any, model: Any) -> Floats:
    """(N,) |predicted / measured - 1| in %."""
    return np.asarray(100 * np.abs(model.predict(rows) / rows.ms - 1))


def heldout(rows: Rows, fit: Callable[[Rows], Any], groups: Any, halves: int = 20, seed: int = 0) -> HeldOut:
    """Errors of ``fit`` (what it returns has ``predict(rows)``) on rows that it did not see.

    ``halves`` times a half of the rows, drawn with ``seed``, is fitted and the other predicted; median, p90 and worst
    relative error [%] are means over the draws. Then every group of rows (``groups``: (N,) labels, such as the prompt
    length) is predicted by a fit to all others; median and p90 are over all rows. Of rows that are equal in shape and
    time one counts: a copy of a row that was fitted is not unseen. Raises SetupError for fewer than twelve different
    rows or a single group.
    """
    labels = np.asarray(groups)
    if len(labels) != len(rows):
        raise ValueError(f"{len(labels)} group labels for {len(rows)} rows")
    once = firsts(rows)
    rows, labels = rows.select(once), labels[once]
    if len(rows) < LEAST_ROWS:
        raise SetupError(f"{len(rows)} rows: errors on held-out halves need at least {LEAST_ROWS}; measure more sizes")
    drawn = np.random.default_rng(seed)
    each = np.array([_half(rows, fit, drawn.permutation(len(rows))) for _ in range(halves)])
    median, p90, worst = each.mean(axis=0).tolist()
    left_out = left_out_errors(rows, fit, labels)
    return HeldOut(len(rows), median, p90, worst, float(np.median(left_out)), float(np.percentile(left_out, 90)))


def left_out_errors(rows: Rows, fit: Callable[[Rows], Any], groups: Any) -> Floats:
    """(N,) relative error [%] of each row, predicted without the rows of its group."""
    labels = np.asarray(groups)
    distinct = np.unique(labels)
    if len(distinct) < 2:
        raise SetupError(f"all {len(rows)} rows are of one configuration ({distinct[0]}); measure more than one")
    errors = np.empty(len(rows))
    for label in distinct:
        out = labels == label
        errors[out] = relative_errors(rows.select(out), fit(rows.select(~out)))
    return errors


def _half(rows: Rows, fit: Callable[[Rows], Any], order: Any) -> tuple[float, float, float]:
    """Median, p90 and worst error on the second half of a random order, fitted on the first."""
    seen = np.zeros(len(rows), bool)
    seen[order[: (len(rows) + 1) // 2]] = True
    errors = relative_errors(rows.select(~seen), fit(rows.select(seen)))
    return float(np.median(errors)), float(np.percentile(errors, 90)), float(errors.max())
