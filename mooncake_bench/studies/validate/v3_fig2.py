"""arXiv v3 figure 2: how prefill grows with the prompt and a decode step with its batch, normalised."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mooncake_bench.hardware.presets import load_model
from mooncake_bench.studies.validate.fig14 import ENGINE, KERNELS, NODE, TP, cost, k
from mooncake_bench.studies.validate.files import FIGURES
from mooncake_bench.studies.validate.outcome import INDEPENDENT, Limits, Outcome, Point, Row
from mooncake_bench.studies.validate.physics import Steps, steps

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mooncake_bench.studies.validate.files import Measurements

ID = "V3-FIG2"
TITLE = "prefill against prompt length, decode step against batch, normalised"
SOURCE = "arXiv 2407.00079 v3, figure 2, digitised"
FILES = (FIGURES,)

MODEL = "llama2-70b"
BATCH = "batch {:g}".format
CONTEXT_TOKENS = 8192  # of each sequence in the right panel
LIMITS = Limits("this tool's own aim: within .03 of the axis", worst=0.03)
PHYSICAL = "E5, none"
UNCLAIMED = ("right", ENGINE)  # another figure's overhead


def run(measurements: Measurements) -> Outcome:
    """Both panels by the preset under the paper's engine and none, and by the physical form; each over its largest."""
    left = measurements.curve("arXivv3_fig2_left", "", "prefill_norm")
    right = measurements.curve("arXivv3_fig2_right", "", "decode_norm_vs_batch_seq8k")
    rows = []
    for engine in (KERNELS, ENGINE):
        rows.append(_row("left", "prefill", engine, _points(left, partial(_prefill, engine), k)))
        rows.append(_row("right", "decode", engine, _points(right, partial(_step, engine), BATCH)))
    rows.append(_row("left", "prefill", PHYSICAL, _points(left, _physical_prefill, k)))
    rows.append(_row("right", "decode", PHYSICAL, _points(right, _physical_step, BATCH)))
    facts = (
        "every curve, theirs and ours, is divided by its own largest value",
        "physical form (E5): predicted from the model's dimensions and the GPU's data sheet, without the preset",
        f"right: the figure is nearer to engine {KERNELS} than to the {cost(ENGINE).overhead.decode_ms:g} ms a step of "
        f"{ENGINE} that F25-FIG14-DECODE needs: the papers' two figures disagree on the overhead, so nothing is "
        f"claimed of {ENGINE} there",
    )
    return Outcome(tuple(rows), facts)


def _row(panel: str, what: str, engine: str, points: tuple[Point, ...]) -> Row:
    limits = None if (panel, engine) == UNCLAIMED else LIMITS
    name = f"{panel}: {what}, {'physical form, ' * (engine == PHYSICAL)}engine {engine.split()[-1]}"
    return Row(
        name, INDEPENDENT, points, unit="of largest", error_unit="of axis", node=NODE, model=MODEL, tp=TP,
        engine=engine.split()[-1], limits=limits,
    )  # fmt: skip


def _prefill(engine: str, tokens: float) -> float:
    return float(cost(engine, NODE, MODEL).prefill_ps(0, int(tokens), 0))


def _step(engine: str, batch: float) -> float:
    the_cost = cost(engine, NODE, MODEL)
    return float(the_cost.decode_ps(0, int(batch)) + the_cost.token_ps(0) * int(batch) * CONTEXT_TOKENS)


def _physical_prefill(tokens: float) -> float:
    return _physical().prefill_ms(tokens, tokens * tokens / 2)


def _physical_step(batch: float) -> float:
    return _physical().decode_ms(batch, batch * CONTEXT_TOKENS)


def _physical() -> Steps:
    shape = load_model(MODEL).shape
    assert shape is not None
    return steps(NODE, shape, TP)


def _points(
    curve: Sequence[tuple[float, float]], predict: Callable[[float], float], label: Callable[[float], str]
) -> tuple[Point, ...]:
    ours = [predict(x) for x, _ in curve]
    top, their_top = max(ours), max(value for _, value in curve)
    return tuple(Point(label(x), value / their_top, own / top) for (x, value), own in zip(curve, ours, strict=True))
