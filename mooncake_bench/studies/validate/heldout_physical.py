"""The physical form's errors on models and parallelisms that its fit did not see, as its file records them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_bench.hardware.datasheets import gpu_names, load_fitted, load_gpu
from mooncake_bench.studies.validate.fig14 import KERNELS
from mooncake_bench.studies.validate.outcome import LEFT_OUT, Errors, Limits, Outcome, Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mooncake_bench.hardware.datasheets import Fitted
    from mooncake_bench.studies.validate.files import Measurements

ID = "HELDOUT-PHYSICAL"
TITLE = "the physical form on models and parallelisms held out of its fit"
SOURCE = "the form's own file, written with its parameters from kernel tables (aiconfigurator, vidur)"
FILES = ()

NOTES = "the cost model's notes, section 3 (of a range, its upper end)"
PUBLISHED = {  # GPU: left out a model, and tensor parallelism 8; of each prefill then decode, median and p90
    "a100": (((5.9, 15.0), (4.5, 11.0)), ((3.3, 12.5), (4.3, 9.9))),
    "h100": (((7.0, 13.0), (3.8, 10.0)), ((10.9, 14.6), (4.7, 10.5))),
    "h200": (((6.6, 14.0), (4.3, 10.0)), ((12.3, 17.5), (4.2, 12.4))),
}


def run(measurements: Measurements) -> Outcome:
    """Every kind of GPU with fitted parameters."""
    names = dict.fromkeys(load_gpu(name).efficiencies for name in gpu_names())
    fits = [load_fitted(name) for name in names]
    rows = [row for fitted in fits for row in _rows(fitted)]
    facts = dict.fromkeys(f"models with experts: {fitted.expert_error}" for fitted in fits)
    return Outcome(tuple(rows), ("recorded with the fit, not computed here: the worst model left out", *facts))


def _rows(fitted: Fitted) -> Iterator[Row]:
    published = PUBLISHED.get(fitted.name)
    for i, (what, errors) in enumerate((("a model", fitted.left_out_model), ("TP8", fitted.left_out_tp8))):
        for j, phase in enumerate(("prefill", "decode")):
            median, p90 = (getattr(errors, f"{phase}_{name}") for name in ("median", "p90"))
            limits = Limits(NOTES, *published[i][j], decimals=1) if published else None
            yield Row(
                f"{fitted.name}: {phase} without {what}", LEFT_OUT, node=fitted.name, engine=KERNELS, limits=limits,
                recorded=Errors(fitted.rows, median, p90, None),
            )  # fmt: skip
