"""Forms that are linear once a knee is known, fitted as the package fits its own: relative, robust, never negative."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

BAD = 0.03
"""The relative residual from which the loss grows linearly; that of the package's own fits."""
REWEIGHTED = 8


@dataclass(frozen=True)
class Linear:
    """A fitted form: ``columns(rows)`` times its weights [ms]."""

    columns: Callable[[Any], Floats]
    weights: Floats

    def predict(self, rows: Any) -> Floats:
        """(N,) times [ms]."""
        return np.asarray(self.columns(rows) @ self.weights)


def weights_of(columns: Floats, ms: Floats) -> Floats:
    """(K,) weights of (N, K) columns, none below 0, by least squares reweighted to soft_l1 of relative residuals."""
    from scipy.optimize import nnls

    scaled, weights = columns / ms[:, None], np.ones(len(ms))
    found = np.zeros(columns.shape[1])
    for _ in range(REWEIGHTED):
        found, _ = nnls(scaled * weights[:, None], weights)
        weights = (1 + ((scaled @ found - 1) / BAD) ** 2) ** -0.25
    return np.asarray(found)


def fit(columns: Callable[[Any], Floats]) -> Callable[[Any], Linear]:
    """A fit of the rows that it is given."""
    return lambda rows: Linear(columns, weights_of(columns(rows), rows.ms))


def best(forms: Iterable[Callable[[Any], Floats]]) -> Callable[[Any], Linear]:
    """The fit of whichever of several forms, a knee each, loses least."""
    known = list(forms)

    def fitted(rows: Any) -> Linear:
        return min((fit(columns)(rows) for columns in known), key=lambda one: _loss(one, rows))

    return fitted


def _loss(form: Linear, rows: Any) -> float:
    return float((np.sqrt(1 + ((form.predict(rows) / rows.ms - 1) / BAD) ** 2) - 1).sum())


def constant_and_slope(rows: Any) -> Floats:
    """a + b n."""
    return np.stack([np.ones_like(rows.n), rows.n], axis=1)


def with_attention(rows: Any) -> Floats:
    """a + b n + c S."""
    return np.stack([np.ones_like(rows.n), rows.n, rows.s], axis=1)


def affine(rows: Any) -> Floats:
    """a + e B + c T."""
    return np.stack([np.ones_like(rows.batch), rows.batch, rows.tokens], axis=1)


def two_slopes(knee: float) -> Callable[[Any], Floats]:
    """The larger of two straight lines that meet at ``knee`` sequences, + c T."""
    return lambda rows: np.column_stack([affine(rows), np.maximum(0, rows.batch - knee)])


def tabulated(batches: Floats, floor_tokens: float = 0.0) -> Callable[[Any], Floats]:
    """f(B) straight between ``batches``, + c T, of which at least ``floor_tokens`` are paid for."""

    def columns(rows: Any) -> Floats:
        hats = np.stack([np.interp(rows.batch, batches, one) for one in np.eye(len(batches))], axis=1)
        return np.column_stack([hats, np.maximum(rows.tokens, floor_tokens)])

    return columns


def table_of(rows: Any, floors: Iterable[float] = (0.0,)) -> Linear:
    """f(B) at the batch sizes of these very rows, and the best of some floors of c T."""
    batches = np.unique(rows.batch)
    return best([tabulated(batches, floor) for floor in floors])(rows)
