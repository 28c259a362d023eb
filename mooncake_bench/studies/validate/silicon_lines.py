"""aiconfigurator's serving points of dense models, by what can be fitted to them: one overhead, or straight lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.studies.validate.linear import left_out
from mooncake_bench.studies.validate.outcome import IN_SAMPLE, LEFT_OUT, Limits, Outcome, Point, Row
from mooncake_bench.studies.validate.silicon import FILE, SYSTEMS, grouped, names, servings
from mooncake_bench.studies.validate.silicon import SOURCE as SILICON_SOURCE
from mooncake_bench.studies.validate.silicon_dense import NOTED, steps_of, tpot_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.studies.validate.files import Measurements
    from mooncake_bench.studies.validate.silicon import Serving

ID = "SILICON-LINES"
TITLE = "TPOT of Llama-3.1-70B by one fitted overhead, and by straight lines"
SOURCE = SILICON_SOURCE
FILES = (FILE,)

LEAST_CONFIGURATIONS = 6  # for four coefficients
NOTES = "the worst of the cost model's notes, section 3"
OVERHEAD_LIMITS = Limits(NOTES, median=7.4, p90=25.0, decimals=1)
LINE_LIMITS = Limits(NOTES, median=3.9, p90=15.5, decimals=1)


def run(measurements: Measurements) -> Outcome:
    """A group is one node, engine and parallelism: what o_dec would have to be, and what a linear form can do."""
    found, excluded = servings(measurements.lines(FILE), [NOTED])
    groups = [group for group in grouped(found) if len({one.key for one in group}) >= LEAST_CONFIGURATIONS]
    small = len(found) - sum(map(len, groups))
    rows, overheads = [], []
    for name, group in sorted(zip(names(groups), groups, strict=True)):
        overhead, row = _with_overhead(name, group)
        overheads.append(f"{row.name.rpartition(',')[0].removeprefix(NOTED).strip()} {overhead:+.1f}")
        rows += [row, _line(name, group)]
    facts = (
        "one overhead: the physical form's step plus the o_dec [ms] that suits the group best, the median of what is "
        f"left over: {', '.join(overheads)}; below 0: the engine's kernels beat the tables",
        "lines: constant + batch + context + batch x prompt / answer, each configuration left out",
    )
    few = f"{small} rows in groups of fewer than {LEAST_CONFIGURATIONS} configurations"
    return Outcome(tuple(rows), facts, (*excluded, *([few] if small else [])))


def _with_overhead(name: str, group: Sequence[Serving]) -> tuple[float, Row]:
    bare = [tpot_ms(steps_of(one), one) for one in group]
    overhead = float(np.median([one.tpot_ms - own for one, own in zip(group, bare, strict=True)]))
    return overhead, _row(f"{name}, one overhead", IN_SAMPLE, group, [own + overhead for own in bare], OVERHEAD_LIMITS)


def _line(name: str, group: Sequence[Serving]) -> Row:
    columns = [(1.0, one.batch, one.tokens, one.batch * one.prompt / one.answer) for one in group]
    measured = np.array([one.tpot_ms for one in group])
    ours = left_out(np.array(columns), measured, [one.key for one in group]).tolist()
    return _row(f"{name}, line", LEFT_OUT, group, ours, LINE_LIMITS)


def _row(name: str, basis: str, group: Sequence[Serving], ours: Sequence[float], limits: Limits) -> Row:
    first = group[0]
    points = tuple(Point(one.label, one.tpot_ms, own) for one, own in zip(group, ours, strict=True))
    return Row(name, basis, points, node=SYSTEMS[first.system], model=first.model, tp=first.tp, limits=limits)
