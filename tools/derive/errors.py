"""Held-out errors of the forms over all models and parallelisms, beside those of the cost model's notes (section 3)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from derive import linear
from derive.fits import HAND_OVER_ELEMENTS, LATE_ON, decode_rows, prefill_rows
from derive.nodes import SHIPPED, shape
from mooncake_bench.hardware.calibrate.forms import fit_decode, fit_prefill
from mooncake_bench.hardware.calibrate.heldout import heldout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from derive.compose import Kernels

    Fit = Callable[[Any], Any]

LARGE, ALL = "llama-3-70b", "all"
PARALLEL = {"llama-3-70b": (2, 4, 8), "llama-3-8b": (1, 2, 4, 8), "qwen3-32b": (1, 2, 4, 8)}
TWICE = {LARGE: 2.0}
"""The notes count LLaMA2-70B too, a near-copy of Llama-3-70B: so it counts twice here."""
KNEES = np.geomspace(4, 256, 13)
FLOORS = (0.0, 1e3, 1e4, 1e5)  # context tokens


class Pair(NamedTuple):
    """Median and 90th percentile of the relative error [%]."""

    median: float
    p90: float


@dataclass(frozen=True)
class Row:
    """One row of the notes' table: a form, over which models, what is taken of them, and what the notes have."""

    title: str
    phase: str
    models: str
    fit: Callable[[Kernels, Any], Fit]
    notes: tuple[Pair, Pair, Pair] | None
    worst: bool = False
    """The worst preset instead of the mean of all."""


def _prefill_e1(kernels: Kernels, model: Any) -> Fit:
    """E1; the late term where it earns its place, on A100 where the hand-over of the all-reduce says."""
    late_tokens = HAND_OVER_ELEMENTS / model.hidden if kernels.gpu.name.startswith(LATE_ON) else None
    return partial(fit_prefill, late_tokens=late_tokens)


def _plain(fit: Fit) -> Callable[[Kernels, Any], Fit]:
    return lambda _, __: fit


E1_PLAIN = _plain(partial(fit_prefill, late=False))
E2_ROOF, E2_ROOT = _plain(partial(fit_decode, root=False)), _plain(partial(fit_decode, root=True))
ROWS = (
    Row("prefill E1 without the late term", "prefill", ALL, E1_PLAIN,
        (Pair(1.6, 6.6), Pair(1.9, 6.3), Pair(2.3, 6.1))),
    Row("prefill E1", "prefill", ALL, _prefill_e1, (Pair(1.6, 6.6), Pair(1.9, 6.3), Pair(2.3, 6.1))),
    Row("prefill E1, worst preset", "prefill", ALL, _prefill_e1, (Pair(4.7, 13.5), Pair(3.4, 9.6), Pair(3.8, 9.6)),
        worst=True),
    Row("prefill a + b n + c S, mean 70B", "prefill", LARGE, _plain(linear.fit(linear.with_attention)),
        (Pair(1.9, 8.6), Pair(3.9, 17.6), Pair(5.1, 13.8))),
    Row("prefill a + b n, mean 70B", "prefill", LARGE, _plain(linear.fit(linear.constant_and_slope)),
        (Pair(2.1, 9.9), Pair(5.8, 17.8), Pair(6.9, 15.0))),
    Row("decode a + e B + c T", "decode", ALL, _plain(linear.fit(linear.affine)),
        (Pair(2.3, 8.0), Pair(2.0, 5.5), Pair(2.2, 6.1))),
    Row("decode E2 (roof)", "decode", ALL, E2_ROOF, (Pair(2.0, 5.2), Pair(1.9, 4.8), Pair(1.9, 4.1))),
    Row("decode E2 with the square root", "decode", ALL, E2_ROOT, (Pair(2.0, 5.2), Pair(1.9, 4.8), Pair(1.9, 4.1))),
    Row("decode max of 2 affine + c T, 70B", "decode", LARGE,
        _plain(linear.best(map(linear.two_slopes, KNEES))), (Pair(1.8, 3.4), Pair(2.2, 4.9), Pair(1.3, 3.4))),
    Row("decode tabulated f(B) + c T, 70B", "decode", LARGE, _plain(linear.table_of),
        (Pair(0.9, 3.2), Pair(0.8, 1.9), Pair(0.8, 1.9))),
    Row("the same with a floor of c T (the notes: no gain)", "decode", LARGE,
        _plain(partial(linear.table_of, floors=FLOORS)), None),
)  # fmt: skip


def lines(kernels: Mapping[str, Kernels]) -> Iterator[str]:
    """The table as Markdown, a line as soon as it is known: ours, then the notes' in brackets."""
    yield "Relative error [%], median/p90 on held-out rows: ours, mean of 20 halves (the cost model's notes, section 3)"
    yield ""
    yield "| form | " + " | ".join(gpu.upper() for gpu in kernels) + " |"
    yield "|---" * (1 + len(kernels)) + "|"
    for row in ROWS:
        cells = (
            _cell(row, _row(row, kernels[gpu]), row.notes[place] if row.notes else None)
            for place, gpu in enumerate(kernels)
        )
        yield f"| {row.title} | " + " | ".join(cells) + " |"


def _cell(row: Row, ours: Pair, notes: Pair | None) -> str:
    return f"{ours.median:.1f}/{ours.p90:.1f}" + (f" ({notes.median:.1f}/{notes.p90:.1f})" if notes else "")


def _row(row: Row, kernels: Kernels) -> Pair:
    """Median and p90, each a weighted mean over the row's presets, or the worst of each."""
    found = np.array([
        (*_preset(row, kernels, model, tp), TWICE.get(model, 1.0))
        for model in ([LARGE] if row.models == LARGE else SHIPPED)
        for tp in PARALLEL[model]
    ])  # fmt: skip
    if row.worst:
        return Pair(*found[:, :2].max(axis=0).tolist())
    return Pair(*np.average(found[:, :2], axis=0, weights=found[:, 2]).tolist())


def _preset(row: Row, kernels: Kernels, model: str, tp: int) -> Pair:
    return _errors(row.phase, row.fit, kernels, model, tp)


@cache
def _errors(phase: str, fit: Callable[[Kernels, Any], Fit], kernels: Kernels, model: str, tp: int) -> Pair:
    rows = _rows(phase, kernels, model, tp)
    error = heldout(rows, fit(kernels, shape(model)), np.arange(len(rows)) % 2)  # of which only the halves are shown
    return Pair(error.median, error.p90)


@cache
def _rows(phase: str, kernels: Kernels, model: str, tp: int) -> Any:
    if phase == "prefill":
        return prefill_rows(kernels, shape(model), tp)
    return decode_rows(kernels, shape(model), tp, least_context=2)
