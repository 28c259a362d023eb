"""Fits of the cost model as tables: coefficients with units, errors, and the rows that are worst off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench.hardware.calibrate.preset import numbers_of
from mooncake_bench.report.sheets import Report, Sheet
from mooncake_bench.results.words import DASH, decimal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.hardware.calibrate.fitting import PhaseFit

FAR_PERCENT = 20.0
SHOWN_ROWS = 5
HALVES = "held out: mean over 20 random halves, each predicted by a fit to the other; left out: each prompt length, or "
NOTE = f"{HALVES}batch size, predicted by a fit to all others; in-sample: the rows that were fitted"
HEADERS = ("phase", "rows", "median", "p90", "worst", "left out: median", "p90", "in-sample: median", "p90", "worst")


def report(fits: Sequence[PhaseFit], head: Sequence[str], notices: Sequence[str] = ()) -> Report:
    """Everything that is to be said about fits."""
    numbers = tuple(
        (fit.phase, key, f"{value:.6g}", unit) for fit in fits for key, (value, unit) in numbers_of(fit.form).items()
    )
    sheets = (
        Sheet("Coefficients", ("phase", "coefficient", "value", "unit"), numbers),
        Sheet("Relative errors, %", HEADERS, tuple(map(_errors, fits)), (NOTE,)),
    )
    return Report(tuple(head), sheets, (*notices, *(line for fit in fits for line in far_rows(fit))))


def far_rows(fit: PhaseFit) -> list[str]:
    """A notice on rows that the fit misses by more than 20 %, the worst of them named."""
    size = np.abs(fit.errors)
    far = int((size > FAR_PERCENT).sum())
    if not far:
        return []
    worst = np.argsort(-size, kind="stable")[: min(far, SHOWN_ROWS)]
    named = ", ".join(f"{_named(fit, int(at))} {fit.errors[at]:+.0f} %" for at in worst)
    more = ", …" if far > SHOWN_ROWS else ""
    return [f"{fit.phase}: {far} of {len(fit.rows)} rows are missed by more than {FAR_PERCENT:g} %: {named}{more}"]


def as_json(fit: PhaseFit) -> dict[str, Any]:
    """A fit for a program."""
    median, p90, worst = fit.in_sample
    unseen = fit.heldout
    names = ("median", "p90", "worst", "left_out_median", "left_out_p90")
    return {
        "phase": fit.phase,
        "rows": len(fit.rows),
        "coefficients": {key: {"value": value, "unit": unit} for key, (value, unit) in numbers_of(fit.form).items()},
        "heldout_percent": None if unseen is None else {name: getattr(unseen, name) for name in names},
        "in_sample_percent": {"median": median, "p90": p90, "worst": worst},
        "notices": far_rows(fit),
    }


def _named(fit: PhaseFit, row: int) -> str:
    rows: Any = fit.rows
    if fit.phase == "prefill":
        return f"n={rows.n[row]:g}, S={rows.s[row]:g}"
    return f"batch={rows.batch[row]:g}, tokens={rows.tokens[row]:g}"


def _errors(fit: PhaseFit) -> tuple[str, ...]:
    unseen = fit.heldout
    names = ("median", "p90", "worst", "left_out_median", "left_out_p90")
    held = [DASH if unseen is None else decimal(getattr(unseen, name)) for name in names]
    return (fit.phase, f"{len(fit.rows):,}", *held, *map(decimal, fit.in_sample))


def flat(fit: PhaseFit) -> list[dict[str, Any]]:
    """A fit as lines of phase, name, value and unit."""
    content = as_json(fit)
    numbers = [(key, one["value"], one["unit"]) for key, one in content["coefficients"].items()]
    numbers.append(("rows", content["rows"], "rows"))
    for group in ("heldout_percent", "in_sample_percent"):
        prefix = group.removesuffix("_percent")
        numbers += [(f"{prefix}_{key}", value, "%") for key, value in (content[group] or {}).items()]
    return [{"phase": fit.phase, "name": name, "value": value, "unit": unit} for name, value, unit in numbers]
