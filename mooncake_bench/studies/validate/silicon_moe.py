"""aiconfigurator's serving points of mixtures of experts: does the decode form with a root term follow them?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.hardware.presets import load_model
from mooncake_bench.studies.validate.fig14 import KERNELS
from mooncake_bench.studies.validate.linear import left_out
from mooncake_bench.studies.validate.outcome import IN_SAMPLE, LEFT_OUT, Limits, Outcome, Point, Row
from mooncake_bench.studies.validate.physics import steps
from mooncake_bench.studies.validate.silicon import FILE, MOST_TTFT_MS, SYSTEMS, grouped, names, servings
from mooncake_bench.studies.validate.silicon import SOURCE as SILICON_SOURCE
from mooncake_bench.studies.validate.silicon_dense import tpot_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from mooncake_bench.studies.validate.files import Measurements
    from mooncake_bench.studies.validate.silicon import Serving

ID = "SILICON-MOE"
TITLE = "TPOT of mixtures of experts, by a form with sqrt(batch)"
SOURCE = SILICON_SOURCE
FILES = (FILE,)

MODELS = (
    "DeepSeek-R1", "DeepSeek-V3", "Kimi-K2.5", "Qwen3-235B-A22B-FP8", "Qwen3.5-397B-A17B", "MiniMax-M2.5",
    "gpt-oss-120b", "GLM-5",
)  # fmt: skip
SHAPES = {"DeepSeek-R1": "deepseek-v3", "DeepSeek-V3": "deepseek-v3"}  # whose dimensions are bundled
PLAIN_TP = 8  # tensors alone are split over a node
LEAST_CONFIGURATIONS = 10  # for five coefficients
LIMITS = Limits("the cost model's notes, section 3: mostly 1 to 5 % in the median", median=5.0, decimals=1)


def run(measurements: Measurements) -> Outcome:
    """Each configuration from the group's others: constant, batch, context, prefills between steps, sqrt(batch)."""
    found, excluded = servings(measurements.lines(FILE), MODELS)
    large = [group for group in grouped(found) if len({one.key for one in group}) >= LEAST_CONFIGURATIONS]
    rows = [_row(name, group, root=True) for name, group in zip(names(large), large, strict=True)]
    plain = [_row("", group, root=False) for group in large]
    small = len(found) - sum(map(len, large))
    rows += [_predicted(name, group) for name, group in zip(names(large), large, strict=True) if _plain(group[0])]
    rows.sort(key=lambda row: row.name)
    facts = (
        "a group is one model, node, engine and parallelism; repetitions of a configuration are left out together",
        f"TPOT = constant + batch + context + sqrt(batch) + batch x prompt / answer (prefills between steps); rows "
        f"with a TTFT of {MOST_TTFT_MS / 1000:g} s or more take no part",
        *_without_root(plain, [row for row in rows if row.basis == LEFT_OUT]),
        *_twice(found),
        "physical form: from dimensions and data sheet, no engine time but what its term of experts has: that one term "
        "was fitted to serving points of H200, these among them, so in-sample",
    )
    few = f"{small} rows in groups of fewer than {LEAST_CONFIGURATIONS} configurations"
    return Outcome(tuple(rows), facts, (*excluded, *([few] if small else [])))


def _row(name: str, group: Sequence[Serving], *, root: bool) -> Row:
    measured = np.array([one.tpot_ms for one in group])
    ours = left_out(_terms(group, root=root), measured, [one.key for one in group])
    first = group[0]
    points = tuple(Point(one.label, one.tpot_ms, float(own)) for one, own in zip(group, ours, strict=True))
    return Row(name, LEFT_OUT, points, node=SYSTEMS[first.system], model=first.model, tp=first.tp, limits=LIMITS)


def _twice(found: Sequence[Serving]) -> tuple[str, ...]:
    """DeepSeek-V3 and R1 have the same dimensions, and the table has measurements under both names."""
    known = {(*one.group[1:], *one.key, one.tpot_ms) for one in found if one.model == "DeepSeek-R1"}
    both = [one for one in found if one.model == "DeepSeek-V3"]
    same = sum((*one.group[1:], *one.key, one.tpot_ms) in known for one in both)
    return (f"{same} of {len(both)} points of DeepSeek-V3 are listed as DeepSeek-R1 too",) if same else ()


def _plain(one: Serving) -> bool:
    return one.model in SHAPES and one.tp == PLAIN_TP and not one.layout


def _predicted(name: str, group: Sequence[Serving]) -> Row:
    first = group[0]
    shape = load_model(SHAPES[first.model]).shape
    assert shape is not None
    model = steps(SYSTEMS[first.system], shape, first.tp)
    points = tuple(Point(one.label, one.tpot_ms, tpot_ms(model, one)) for one in group)
    return Row(f"{name}, physical form", IN_SAMPLE, points, node=SYSTEMS[first.system], model=first.model, tp=first.tp,
               engine=KERNELS)  # fmt: skip


def _terms(group: Sequence[Serving], *, root: bool) -> NDArray[np.float64]:
    batch = np.array([one.batch for one in group])
    tokens = np.array([one.tokens for one in group])
    prefills = np.array([one.batch * one.prompt / one.answer for one in group])
    columns = [np.ones_like(batch), batch, tokens, prefills]
    return np.stack([*columns, np.sqrt(batch)] if root else columns, axis=1)


def _without_root(plain: Sequence[Row], rooted: Sequence[Row]) -> tuple[str, ...]:
    if not plain:
        return ()
    without, with_root = ([row.errors.median for row in rows] for rows in (plain, rooted))
    return (
        f"medians over {len(plain)} groups: {min(without):.1f} to {max(without):.1f} % without sqrt(batch), half of "
        f"them above {np.median(without):.1f} %; {min(with_root):.1f} to {max(with_root):.1f} % with it, half above "
        f"{np.median(with_root):.1f} %",
    )
