"""Least squares of a form that is linear once a few scales are known: every scale of a grid solved exactly, the best
ones polished by scipy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import combinations, product
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Floats: TypeAlias = "NDArray[np.float64]"
Solution: TypeAlias = "tuple[tuple[float, ...], tuple[float, ...]]"
"""Scales and linear coefficients."""

BAD = 0.1
"""The relative residual from which soft_l1 grows linearly instead of squared."""
GRID = {1: 30, 2: 12}  # scales looked at along each axis, from which the best are moved to the minimum
REWEIGHTED = 3  # times
STARTS = 2
RIDGE = 1e-12  # of the largest diagonal element: columns may be proportional where rows are few


class Shape(ABC):
    """A form: which scales it has, and what it is linear in once they are known."""

    least: tuple[float, ...]
    """The least value of each linear coefficient, 0 or a little more."""

    @abstractmethod
    def spans(self, rows: Any) -> list[tuple[float, float]]:
        """Smallest and largest sensible value of each scale."""

    @abstractmethod
    def columns(self, rows: Any, scales: Floats) -> Floats:
        """(G, N, K) columns at each of (G, scales) scales."""

    def fixed(self, rows: Any) -> Floats:
        """(N,) ms that no coefficient changes."""
        return np.zeros(len(rows.ms))


def losses(residuals: Floats) -> Floats:
    """soft_l1 of relative residuals, as scipy has it with ``f_scale=BAD``, halved."""
    return np.asarray(BAD * BAD * (np.sqrt(1 + (residuals / BAD) ** 2) - 1))


def best_on_grid(shape: Shape, rows: Any) -> Solution:
    """The best of a grid of scales."""
    return _ranked(shape, rows)[0]


def polished(shape: Shape, rows: Any) -> Solution:
    """The best of the grid, moved to the minimum."""
    from scipy.optimize import least_squares

    best: tuple[float, Solution] | None = None
    for scales, linear in _ranked(shape, rows)[:STARTS]:
        found = _moved(shape, rows, scales, linear, least_squares)
        if best is None or found[0] < best[0]:
            best = found
    assert best is not None
    return best[1]


def _moved(shape: Shape, rows: Any, scales: Any, linear: Any, least_squares: Any) -> tuple[float, Solution]:
    """Cost and solution of a local search in log scales and in units of each column's typical share."""
    count = len(scales)
    fixed, ms = shape.fixed(rows), rows.ms
    at = shape.columns(rows, np.array([scales]))[0]
    unit = np.median(ms) / np.maximum(np.abs(at).max(axis=0), 1e-300)

    def residuals(x: Floats) -> Floats:
        columns = shape.columns(rows, np.exp(x[None, :count]))[0]
        return np.asarray((columns @ (x[count:] * unit) + fixed) / ms - 1)

    spans = np.log(np.array(shape.spans(rows)))
    low = np.concatenate([spans[:, 0] - 1e-9, np.array(shape.least) / unit])
    high = np.concatenate([spans[:, 1] + 1e-9, np.full(len(linear), np.inf)])
    start = np.concatenate([np.log(scales), np.array(linear) / unit])
    done = least_squares(
        residuals, np.clip(start, low, high), bounds=(low, high), loss="soft_l1", f_scale=BAD, x_scale="jac",
        max_nfev=60,
    )  # fmt: skip
    x = done.x
    x[count:][x[count:] < 1e-9 * np.abs(x[count:]).max()] = 0.0
    found = tuple(np.exp(x[:count]).tolist()), tuple(np.maximum(x[count:] * unit, shape.least).tolist())
    return float(done.cost), found


def _ranked(shape: Shape, rows: Any) -> list[Solution]:
    """Solutions of the grid, best first, robust by reweighting."""
    spans = shape.spans(rows)
    size = GRID[len(spans)]
    axes = [np.geomspace(low, max(high, low * 1.001), size) for low, high in spans]
    scales = np.array(list(product(*axes)))
    columns = shape.columns(rows, scales) / rows.ms[None, :, None]
    target = 1 - shape.fixed(rows) / rows.ms
    weights = np.ones((len(scales), len(target)))
    for _ in range(REWEIGHTED):
        linear = _non_negative(columns, target, weights)
        residuals = (columns @ linear[:, :, None])[:, :, 0] - target
        weights = 1 / np.sqrt(1 + (residuals / BAD) ** 2)
    order = np.argsort(losses(residuals).sum(axis=1), kind="stable")
    raised = np.maximum(linear, shape.least)
    return [(tuple(scales[at].tolist()), tuple(raised[at].tolist())) for at in order[: 4 * STARTS : 4]]


def _non_negative(columns: Floats, target: Floats, weights: Floats) -> Floats:
    """(G, K) weighted least squares with no coefficient below 0: the best of all sets of coefficients that are not."""
    weighted = columns * weights[:, :, None]
    gram = weighted.transpose(0, 2, 1) @ columns
    right = target @ weighted
    norm = np.sqrt(np.einsum("gkk->gk", gram))
    norm[norm == 0] = 1.0
    gram = gram / (norm[:, :, None] * norm[:, None, :])
    right = right / norm
    count = columns.shape[2]
    best, cost = np.zeros(right.shape), np.zeros(len(right))
    for used in (list(each) for size in range(1, count + 1) for each in combinations(range(count), size)):
        inner = gram[:, used][:, :, used] + RIDGE * np.eye(len(used))
        found = np.linalg.solve(inner, right[:, used, None])[:, :, 0]
        saved = -np.einsum("gk,gk->g", found, right[:, used])  # of the squares, relative to all coefficients 0
        better = (found >= 0).all(axis=1) & (saved < cost)
        cost = np.where(better, saved, cost)
        best[better] = 0.0
        best[np.ix_(better, used)] = found[better]
    return np.asarray(best / norm)
