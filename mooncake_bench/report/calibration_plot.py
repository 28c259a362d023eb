"""Fits of the cost model as a picture: predicted against measured, and how far off each row is."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench.report import plots

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.hardware.calibrate.fitting import PhaseFit

SIZES = {"prefill": "computed tokens", "decode": "sequences in the batch"}
NARROW_IN, WIDE_IN, HEIGHT_IN = 3.8, 7.0, 5.0
LEAST_SPAN = 12.0  # %: the band is seen whole, and fits off by little look like it
BAND = 10.0  # %
LETTERS_PER_IN = 14


def draw(fits: Sequence[PhaseFit], title: str) -> Any:
    """The figure, to be drawn inside :func:`mooncake_bench.report.plots.style`: a column a phase."""
    width = WIDE_IN if len(fits) > 1 else NARROW_IN
    figure, axes = plots.figure(rows=2, columns=len(fits), width_in=width, height_in=HEIGHT_IN)
    for at, fit in enumerate(fits):
        _times(axes[at], fit, plots.PALETTE[at], plots.marker(at))
        _errors(axes[len(fits) + at], fit, plots.PALETTE[at], plots.marker(at))
    wrapped = textwrap.fill(title, int(LETTERS_PER_IN * width), break_long_words=True)
    figure.suptitle(wrapped, x=0.01, ha="left", fontsize=8, color=plots.FAINT)
    return figure


def _times(axes: Any, fit: PhaseFit, color: str, marker: str) -> None:
    """Predicted over measured, on two log axes of one scale."""
    measured, predicted = fit.rows.ms, fit.form.predict(fit.rows)  # type: ignore[arg-type]
    low = min(measured.min(), predicted.min()) / 1.3
    high = max(measured.max(), predicted.max()) * 1.3
    axes.plot([low, high], [low, high], color=plots.BOUND, linewidth=0.8, label="equal")
    axes.plot(
        measured, predicted, color=color, marker=marker, linestyle="", fillstyle="none", alpha=0.8, label=_rows(fit)
    )
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    for axis in (axes.xaxis, axes.yaxis):
        _ticks(axis, low, high)
    axes.set_xlabel("measured, ms")
    axes.set_ylabel("predicted, ms")
    axes.set_title(fit.phase)
    axes.legend(loc="best")  # where the rows leave room


def _errors(axes: Any, fit: PhaseFit, color: str, marker: str) -> None:
    """Relative error over the size of a row."""
    size = fit.rows.n if fit.phase == "prefill" else fit.rows.batch  # type: ignore[union-attr]
    span = max(LEAST_SPAN, 1.3 * float(np.abs(fit.errors).max()))
    axes.axhspan(-min(BAND, span), min(BAND, span), color="#F0F0F0", zorder=0, linewidth=0, label=f"within {BAND:g} %")
    axes.axhline(0, color=plots.BOUND, linewidth=0.8)
    axes.plot(size, fit.errors, color=color, marker=marker, linestyle="", fillstyle="none", alpha=0.8)
    axes.set(xscale="log", ylim=(-span, span))
    axes.set_xlim(size.min() / 1.3, size.max() * 1.3)
    _ticks(axes.xaxis, size.min() / 1.3, size.max() * 1.3)
    axes.set_xlabel(SIZES[fit.phase])
    axes.set_ylabel("predicted / measured - 1, %")
    axes.set_title(_about(fit), fontweight="normal")
    axes.legend(loc="best")


def _ticks(axis: Any, low: float, high: float) -> None:
    """Powers of ten, and between them where there are few."""
    from matplotlib.ticker import LogLocator, NullLocator

    few = high / low < 100
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,), numticks=20))
    plots.compact(axis)
    if few:
        axis.set_minor_locator(NullLocator())


def _rows(fit: PhaseFit) -> str:
    return f"{len(fit.rows)} rows"


def _about(fit: PhaseFit) -> str:
    median, p90, _ = fit.in_sample
    if fit.heldout is None:
        return f"in-sample {median:.1f} % median, {p90:.1f} % p90"
    return f"held-out {fit.heldout.median:.1f} % median, {fit.heldout.p90:.1f} % p90"
