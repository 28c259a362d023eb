"""Sums of given terms with coefficients not below 0, fitted to relative errors; each point left out in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Column = NDArray[np.float64]


def fit(terms: Column, measured: Column) -> Column:
    """(K,) coefficients of (N, K) ``terms`` that make up (N,) ``measured``, least squares of relative residuals."""
    from scipy.optimize import nnls

    weighted = terms / measured[:, None]
    scale = np.linalg.norm(weighted, axis=0)
    scale[scale == 0] = 1.0
    found, _ = nnls(weighted / scale, np.ones(len(measured)))
    coefficients: Column = found / scale
    return coefficients


def left_out(terms: Column, measured: Column, groups: Sequence[Any] | None = None) -> Column:
    """(N,) each point as the fit to the others predicts it; points of the same of (N,) ``groups`` go together."""
    labels = list(range(len(measured))) if groups is None else list(groups)
    ours = np.empty(len(measured))
    for label in dict.fromkeys(labels):
        out = np.array([each == label for each in labels])
        ours[out] = terms[out] @ fit(terms[~out], measured[~out])
    return ours
