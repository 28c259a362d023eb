"""aiconfigurator's serving points of dense models, predicted from dimensions and data sheets, not fitted to them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from mooncake_bench.hardware.presets import load_engine, load_model
from mooncake_bench.studies.validate.fig14 import KERNELS
from mooncake_bench.studies.validate.outcome import IN_SAMPLE, INDEPENDENT, Limits, Outcome, Point, Row
from mooncake_bench.studies.validate.physics import Steps, steps
from mooncake_bench.studies.validate.silicon import ENGINES, FILE, MOST_TTFT_MS, SYSTEMS, grouped, names, servings
from mooncake_bench.studies.validate.silicon import SOURCE as SILICON_SOURCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.studies.validate.files import Measurements
    from mooncake_bench.studies.validate.silicon import Serving

ID = "SILICON-DENSE"
TITLE = "TPOT of dense models, predicted from dimensions and data sheets"
SOURCE = SILICON_SOURCE
FILES = (FILE,)

SHAPES = {  # model of the table -> model whose dimensions it has
    "Llama-3.1-70B": "llama-3-70b", "Llama-3.1-8B-Instruct": "llama-3-8b", "Llama-3.1-8B-Instruct-FP8": "llama-3-8b",
    "Qwen3-32B": "qwen3-32b", "Qwen3-32B-FP8": "qwen3-32b",
}  # fmt: skip
WIDTHS = {"": 2.0, "fp8": 1.0, "fp8_block": 1.0}  # bytes of a weight; a blank cell is taken for bf16
NARROW_KV = "trtllm"  # engine that is taken to keep the KVCache of an FP8 model in one byte a value
PRESETS = {
    ("vllm", "h100_sxm", 8): "vllm-h100",
    ("vllm", "h200_sxm", 8): "vllm-h200",
    ("trtllm", "h200_sxm", 8): "trtllm-h200",
}
# The cost model's notes, section 3: medians of Llama-3.1-70B FP8 by engine, GPU and parallelism
NOTES = "the cost model's notes, section 3"
MEDIANS = {
    ("vllm", "h100_sxm"): {2: 3.7, 4: 9.7, 8: 19.0},
    ("vllm", "h200_sxm"): {1: 2.2, 2: 2.4, 4: 7.0, 8: 16.3},
    ("trtllm", "h200_sxm"): {1: 5.9, 2: 10.3, 4: 9.3, 8: 7.4},
}
NOTED = "Llama-3.1-70B"


def run(measurements: Measurements) -> Outcome:
    """Every group of one model, node, engine and parallelism: kernels alone, and with the engine's preset if any."""
    found, excluded = servings(measurements.lines(FILE), list(SHAPES))
    usable = [one for one in found if one.precision in WIDTHS]
    groups = grouped(usable)
    rows = []
    for name, group in sorted(zip(names(groups), groups, strict=True)):
        rows.append(_row(name, group, KERNELS))
        preset = PRESETS.get((group[0].backend, group[0].system, group[0].tp))
        if preset is not None and group[0].model == NOTED:
            rows.append(_row(f"{name}, engine {preset}", group, preset))
    odd = len(found) - len(usable)
    return Outcome(tuple(rows), tuple(_facts(found)), (*excluded, *([f"{odd} rows of other precisions"] * bool(odd))))


def _facts(found: Sequence[Serving]) -> list[str]:
    there = {SHAPES[one.model] for one in found}
    absent = [shape for shape in dict.fromkeys(SHAPES.values()) if shape not in there]
    facts = [
        "assumed: FP8 holds every matrix and multiplies at its data sheet's rate with the same efficiency, a blank "
        f"precision is bf16, the KVCache takes one byte a value in {ENGINES[NARROW_KV]} FP8 and two elsewhere",
        "TPOT = decode step at batch x (prompt + answer / 2) tokens + batch x prefill / answer (prefills between "
        f"steps); rows with a TTFT of {MOST_TTFT_MS / 1000:g} s or more take no part",
        "no engine time unless a preset is named; in-sample: its o_dec was fitted to these points",
    ]
    if absent:
        facts.append(f"no serving point of {' or '.join(absent)} is in this file")
    return facts


def _row(name: str, group: Sequence[Serving], engine: str) -> Row:
    first = group[0]
    model = steps_of(first)
    overhead = load_engine(engine).overhead
    points = tuple(
        Point(one.label, one.tpot_ms, tpot_ms(model, one, overhead.prefill_ms, overhead.decode_ms)) for one in group
    )
    median = MEDIANS.get((first.backend, first.system), {}).get(first.tp)
    claimed = median is not None and first.model == NOTED and engine == KERNELS
    return Row(
        name, INDEPENDENT if engine == KERNELS else IN_SAMPLE, points, node=SYSTEMS[first.system], model=first.model,
        tp=first.tp, engine=engine, limits=Limits(NOTES, median=median, decimals=1) if claimed else None,
    )  # fmt: skip


def tpot_ms(model: Steps, one: Serving, prefill_ms: float = 0.0, decode_ms: float = 0.0) -> float:
    """A decode step and the share of the others' prefills that falls between two of a request's tokens [ms]."""
    step = model.decode_ms(one.batch, one.tokens) + decode_ms
    prefill = model.prefill_ms(one.prompt, one.prompt * one.prompt / 2) + prefill_ms
    return step + one.batch * prefill / one.answer


def steps_of(one: Serving) -> Steps:
    """Predicted step times of the model of a serving point, as its engine is taken to run it."""
    return _steps(SYSTEMS[one.system], one.model, one.tp, one.precision, one.backend)


@cache
def _steps(node: str, model: str, tp: int, precision: str, backend: str) -> Steps:
    shape = load_model(SHAPES[model]).shape
    assert shape is not None
    width = WIDTHS[precision]
    kv_bytes = 1.0 if backend == NARROW_KV and width == 1 else 2.0
    return steps(node, replace(shape, weight_bytes=width, kv_value_bytes=kv_bytes), tp)
