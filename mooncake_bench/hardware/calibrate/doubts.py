"""What rows cannot tell: too few sizes, copies, terms that hardly show in any row, times of another unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench.errors import SetupError
from mooncake_bench.hardware.calibrate.preset import decode_of, prefill_of
from mooncake_bench.hardware.calibrate.rows import PrefillRows, distinct_shapes, firsts

if TYPE_CHECKING:
    from mooncake_bench.hardware.analytic import Coefficients
    from mooncake_bench.hardware.calibrate.fitting import PhaseFit
    from mooncake_bench.hardware.calibrate.rows import DecodeRows

PARAMETERS = 4
"""Of E1 (floor, token, constant, token2) and of E2 (floor, roof, sequence, token); other terms need more sizes to be
tried at all."""
LEAST_SIZES = 3
"""Different n or B: three of the parameters depend on nothing else."""
LEAST_SHARE = 0.05
"""Of the time of any row: a term of less is lost in the others' errors."""
FAR = 30.0
"""Times so many times as long, or as short, as another node's are rather of another unit."""


def check_variety(rows: PrefillRows | DecodeRows) -> None:
    """Raises SetupError unless the rows are of as many sizes as the form has parameters."""
    prefill = isinstance(rows, PrefillRows)
    phase, what = ("prefill", "numbers of computed tokens") if prefill else ("decode", "batch sizes")
    found, sizes = distinct_shapes(rows), len(np.unique(_sizes(rows)))
    if found >= PARAMETERS and sizes >= LEAST_SIZES and (prefill or len(np.unique(rows.tokens)) > 1):  # type: ignore[union-attr]
        return
    shape = "n and S" if prefill else "batch and tokens"
    wanted = "" if prefill else " and 2 numbers of tokens"
    raise SetupError(
        f"the {len(rows)} {phase} rows hold {found} different shape(s) ({shape}), {sizes} of the {what}: "
        f"expected at least {PARAMETERS} shapes, as many as a fit has parameters, {LEAST_SIZES} {what}{wanted}; "
        "measure more"
    )


def doubts(fit: PhaseFit) -> list[str]:
    """Notices on copies among the rows and on what they do not identify."""
    return [*_copies(fit), *_hidden(fit)]


def unit_doubts(fit: PhaseFit, base: Coefficients, whose: str) -> list[str]:
    """A notice where the times are far from what ``base``, the costs of ``whose``, predicts for the same rows."""
    form: Any = prefill_of(base) if fit.phase == "prefill" else decode_of(base)
    ratio = float(np.median(fit.rows.ms / form.predict(fit.rows)))
    if 1 / FAR <= ratio <= FAR:
        return []
    return [
        f"{fit.phase}: in the median a row's time is {_times(ratio)} what is known of {whose}: does the column ms "
        "hold milliseconds? Where it does, name the model and a node like yours (--model, --base)"
    ]


def _times(ratio: float) -> str:
    return f"{ratio:,.0f} times" if ratio >= 1 else f"1/{1 / ratio:,.0f} of"


def _sizes(rows: PrefillRows | DecodeRows) -> Any:
    return rows.n if isinstance(rows, PrefillRows) else rows.batch


def _copies(fit: PhaseFit) -> list[str]:
    copies = len(fit.rows) - len(firsts(fit.rows))
    if not copies:
        return []
    return [
        f"{fit.phase}: {copies:,} of {len(fit.rows):,} rows equal another in size and time (a file read twice?): they "
        "weigh in the fit, but held-out errors count each row once"
    ]


def _hidden(fit: PhaseFit) -> list[str]:
    """The term that matters in longer contexts than those measured."""
    form: Any = fit.form
    prefill = isinstance(fit.rows, PrefillRows)
    attention = form.token2_ms * fit.rows.s if prefill else form.token_ms * fit.rows.tokens  # type: ignore[union-attr]
    share = float((attention / form.predict(fit.rows)).max())
    longer = "longer prompts or prefixes" if prefill else "longer contexts"
    if share < LEAST_SHARE:
        name = "token2_ms" if prefill else "token_ms"
        return [
            f"{fit.phase}: attention is at most {100 * share:.1f} % of a row's time: its coefficient {name} is not "
            f"identified by these rows, and {longer} than theirs are extrapolated; measure some"
        ]
    if not prefill:
        contexts = fit.rows.tokens / fit.rows.batch  # type: ignore[union-attr]
        if np.ptp(contexts) < LEAST_SHARE * contexts.max():
            return [
                f"decode: all rows have contexts of about {np.median(contexts):,.0f} tokens: what a context token "
                "costs cannot be told from what a sequence costs, and other contexts are extrapolated; measure another"
            ]
    return []
