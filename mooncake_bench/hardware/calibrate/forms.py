"""E1 and E2 fitted to measured times: robust, never negative, the same numbers each time.

All that is not linear in a form is one or two scales (where the floor turns into the slope, where the late term sets
in). For given scales the rest is linear, so a fit looks at a grid of scales spanned by the rows themselves, solves each
exactly under the condition that no coefficient is negative, and polishes the best of them. Residuals are relative to
the measured time; their loss is soft_l1, so that few bad rows weigh little.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mooncake_bench.errors import SetupError
from mooncake_bench.hardware.analytic import Coefficients
from mooncake_bench.hardware.calibrate.projection import Shape, Solution, best_on_grid, losses, polished
from mooncake_bench.hardware.calibrate.rows import firsts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mooncake_bench.hardware.calibrate.rows import DecodeRows, PrefillRows

Floats: TypeAlias = "NDArray[np.float64]"

LEAST_ROWS = 6
LEAST_TOKEN_MS = 1e-9
"""Of a context token (E2) and of a computed one (E1): the replay's clock knows nothing smaller."""
FOLDS = 5
SEED = 20_25
GAIN = 0.05
"""A term that may be left out is kept where it saves this share of the loss on rows that were not seen (five folds of
the rows, drawn with a fixed seed)."""


@dataclass(frozen=True)
class Prefill:
    """E1: sqrt(floor^2 + (token n)^2) + constant + token2 S + late n^2 / (n^2 + late_tokens^2). Times in ms."""

    floor_ms: float
    token_ms: float
    constant_ms: float
    token2_ms: float
    late_ms: float = 0.0
    late_tokens: float = 1.0

    def predict(self, rows: PrefillRows) -> Floats:
        """(N,) times [ms]."""
        n2 = rows.n * rows.n
        late = self.late_ms * n2 / (n2 + self.late_tokens**2)
        body: Floats = np.sqrt(self.floor_ms**2 + self.token_ms**2 * n2)
        return body + self.constant_ms + self.token2_ms * rows.s + late


@dataclass(frozen=True)
class Decode:
    """E2: (floor^4 + (roof B)^4)^(1/4) + sequence B + root sqrt(B) + token T. Times in ms."""

    floor_ms: float
    roof_ms: float
    sequence_ms: float
    token_ms: float
    root_ms: float = 0.0

    def predict(self, rows: DecodeRows) -> Floats:
        """(N,) times [ms]."""
        roof: Floats = (self.floor_ms**4 + (self.roof_ms * rows.batch) ** 4) ** 0.25
        return roof + self.sequence_ms * rows.batch + self.root_ms * np.sqrt(rows.batch) + self.token_ms * rows.tokens


def fit_prefill(
    rows: PrefillRows, *, late: bool = True, token2_ms: float | None = None, late_tokens: float | None = None
) -> Prefill:
    """E1 of the rows; ``token2_ms`` holds attention's coefficient fixed (rows of short prompts cannot tell it).

    With ``late`` the late term is kept where it earns its place, as :data:`GAIN` says; ``late_tokens`` says where it
    sets in, known from elsewhere, and keeps it. Raises SetupError for fewer than six rows.
    """
    _check(rows.ms, "prefill")
    if late and late_tokens is not None:
        known = _Prefill(late=True, token2_ms=token2_ms, late_tokens=late_tokens)
        return _prefill(known, polished(known, rows))
    plain = _Prefill(late=False, token2_ms=token2_ms)
    if late and len(np.unique(rows.n)) >= LEAST_ROWS:
        full = _Prefill(late=True, token2_ms=token2_ms)
        if _earns(full, plain, rows):
            return _prefill(full, polished(full, rows))
    return _prefill(plain, polished(plain, rows))


def fit_decode(rows: DecodeRows, *, root: bool = False) -> Decode:
    """E2 of the rows. With ``root`` the term of experts woken by a batch is kept where it earns its place.

    Raises SetupError for fewer than six rows.
    """
    _check(rows.ms, "decode")
    plain = _Decode(root=False)
    if root and len(np.unique(rows.batch)) >= LEAST_ROWS:
        full = _Decode(root=True)
        if _earns(full, plain, rows):
            return _decode(polished(full, rows))
    return _decode(polished(plain, rows))


def coefficients(prefill: Prefill, decode: Decode) -> Coefficients:
    """Both phases as the analytic model takes them."""
    return Coefficients(
        prefill_floor_ms=prefill.floor_ms,
        prefill_token_ms=prefill.token_ms,
        prefill_constant_ms=prefill.constant_ms,
        prefill_token2_ms=prefill.token2_ms,
        decode_floor_ms=decode.floor_ms,
        decode_roof_ms=decode.roof_ms,
        decode_sequence_ms=decode.sequence_ms,
        decode_token_ms=decode.token_ms,
        prefill_late_ms=prefill.late_ms,
        prefill_late_tokens=prefill.late_tokens,
        decode_root_ms=decode.root_ms,
    )


def _check(ms: Floats, phase: str) -> None:
    if len(ms) < LEAST_ROWS:
        raise SetupError(f"{len(ms)} {phase} rows: a fit needs at least {LEAST_ROWS}; measure more sizes")


def _prefill(shape: _Prefill, solution: Solution) -> Prefill:
    scales, linear = solution
    token, constant, *rest = linear
    token2 = rest.pop(0) if shape.token2_ms is None else shape.token2_ms
    floor = token * scales[0]
    if not shape.late or not rest[0]:
        return Prefill(floor, token, constant, token2)
    return Prefill(floor, token, constant, token2, rest[0], shape.late_tokens or scales[1])


def _decode(solution: Solution) -> Decode:
    (turn,), (floor, sequence, token, *root) = solution
    return Decode(floor, floor / turn, sequence, token, *root)


def _earns(full: Shape, plain: Shape, rows: Any) -> bool:
    """Whether the longer form predicts rows that it did not see so much better than the shorter one."""
    rows = rows.select(firsts(rows))  # a copy would be seen
    folds = np.random.default_rng(SEED).permutation(len(rows)) % FOLDS
    return _unseen_loss(full, rows, folds) < (1 - GAIN) * _unseen_loss(plain, rows, folds)


def _unseen_loss(shape: Shape, rows: Any, folds: Any) -> float:
    """The summed loss of all rows, each predicted by a fit to the other folds."""
    total = 0.0
    for fold in range(FOLDS):
        scales, linear = best_on_grid(shape, rows.select(folds != fold))
        unseen = rows.select(folds == fold)
        predicted = shape.columns(unseen, np.array([scales]))[0] @ np.array(linear) + shape.fixed(unseen)
        total += float(losses(predicted / unseen.ms - 1).sum())
    return total


class _Prefill(Shape):
    """E1: scales (floor / token, late_tokens); linear in (token, constant, token2, late)."""

    def __init__(self, *, late: bool, token2_ms: float | None, late_tokens: float | None = None) -> None:
        self.late = late
        self.late_tokens = late_tokens
        self.token2_ms = token2_ms
        self.least = (LEAST_TOKEN_MS,) + (0.0,) * (1 + (token2_ms is None) + late)

    def spans(self, rows: Any) -> list[tuple[float, float]]:
        low, high = float(rows.n.min()), float(rows.n.max())
        return [(low / 4, high)] + [(low, high)] * (self.late and self.late_tokens is None)

    def columns(self, rows: Any, scales: Floats) -> Floats:
        n2 = rows.n * rows.n
        parts = [np.sqrt(scales[:, :1] ** 2 + n2), np.broadcast_to(1.0, (len(scales), len(n2)))]
        if self.token2_ms is None:
            parts.append(np.broadcast_to(rows.s, parts[0].shape))
        if self.late:
            late_tokens = scales[:, 1:] if self.late_tokens is None else np.full_like(scales, self.late_tokens)
            parts.append(n2 / (n2 + late_tokens**2))
        return np.stack(parts, axis=-1)

    def fixed(self, rows: Any) -> Floats:
        return np.asarray(rows.s * (self.token2_ms or 0.0))


class _Decode(Shape):
    """E2: scale floor / roof; linear in (floor, sequence, token, root)."""

    def __init__(self, *, root: bool) -> None:
        self.root = root
        self.least = (LEAST_TOKEN_MS, 0.0, LEAST_TOKEN_MS) + (0.0,) * root

    def spans(self, rows: Any) -> list[tuple[float, float]]:
        low, high = float(rows.batch.min()), float(rows.batch.max())
        return [(low, 8 * high)]

    def columns(self, rows: Any, scales: Floats) -> Floats:
        roof = (1 + (rows.batch / scales[:, :1]) ** 4) ** 0.25
        parts = [roof, np.broadcast_to(rows.batch, roof.shape), np.broadcast_to(rows.tokens, roof.shape)]
        if self.root:
            parts.append(np.broadcast_to(np.sqrt(rows.batch), roof.shape))
        return np.stack(parts, axis=-1)
