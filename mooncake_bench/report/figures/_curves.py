"""Curves that kinds share: cumulative distributions, thinned to exact points, and the SLOs beside them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.report.figure import Axis, Figure, Guide, Panel, Series
from mooncake_bench.report.strokes import REACH
from mooncake_bench.results.words import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.results import Run
    from mooncake_bench.results.steps import Floats, Ints

POINTS = 400  # of a curve; more would not be seen
TAIL = 99.5  # percentile up to which an axis shows values, where few lie far beyond
FAR = 1.5  # times the end of the axis: how far the largest has to lie for that
SHARE = Axis("share of completed", low=0, high=1)


def places(rows: int, points: int = POINTS) -> Ints:
    """So many rows of ``rows``, evenly spread, the first and the last among them; all where there are few."""
    if rows <= points:
        return np.arange(rows)
    return np.rint(np.linspace(0, rows - 1, points)).astype(np.int64)


def cumulative(values: Floats, of: int, label: str, run: int, before: int = 0) -> Series:
    """The share of ``of`` that is at most x: exact at each of its points, which are some of the values.

    ``before``: how many more are below every value.
    """
    ordered = np.sort(values)
    at = places(len(ordered))
    x, y = ordered[at].tolist(), ((at + 1 + before) / of).tolist()
    return Series(label, (x[0] if x else 0.0, *x), (before / of, *y), run, "step")


def reach(values: Sequence[Floats], guides: Sequence[Guide]) -> float:
    """Where curves of these values end: at the largest of all, or at the last SLO that is drawn to scale."""
    largest = max((float(each.max()) for each in values if len(each)), default=0.0)
    return max([largest, *(guide.at for guide in guides if guide.at <= REACH * largest)])


def until(end: float, curve: Series) -> Series:
    """A curve up to there: after its largest value it is flat."""
    return replace(curve, x=(*curve.x, end), y=(*curve.y, curve.y[-1])) if curve.x[-1] < end else curve


def thinned(sizes: Sequence[int]) -> str:
    """A sentence that says so, where a curve of so many values has fewer points."""
    words = f"A curve of more than {POINTS} requests has {POINTS} exact steps, and is flat before and after them."
    return words if max(sizes) > POINTS else ""


def axis(label: str, values: Sequence[Floats], guides: Sequence[Guide], margin: float = 1.2) -> tuple[Axis, str]:
    """An axis for these values, from 0, and what to say where few lie far beyond its end.

    It shows 99.5 % of each run's values, and so many times the largest guide, if any value lies as far.
    """
    tail = max(float(np.percentile(each, TAIL)) for each in values if len(each))
    end = max([1.05 * tail, *(margin * guide.at for guide in guides)])
    largest = max(float(each.max()) for each in values if len(each))
    if largest <= FAR * end:
        return Axis(label, low=0), ""
    beyond = sum(int((each > end).sum()) for each in values)
    what, _, unit = label.partition(", ")
    words = f"Beyond the axis: {counted(beyond, 'request')}, up to {largest:,.4g} {unit} ({what})."
    return Axis(label, low=0, high=end), words


def slo_guides(runs: Sequence[Run], name: str, unit: str, ms: float) -> tuple[Guide, ...]:
    """The runs' SLOs on TTFT or TBT (``ttft``, ``tbt``) as upright lines, each once, in units of so many ms."""
    limits = dict.fromkeys(float(run.manifest["setup"][f"slo.{name}_ms"]) / ms for run in runs)
    return tuple(Guide(f"SLO {limit:g} {unit}", limit, upright=True) for limit in limits)


def sentences(*given: str) -> str:
    """Notes in one line, empty ones left out."""
    return " ".join(each for each in given if each)


def distribution(
    kind: str, title: str, label: str, runs: Sequence[Run], labels: Sequence[str], values: Sequence[Floats],
    guides: tuple[Guide, ...], note: str = "",
) -> Figure:  # fmt: skip
    """The cumulative distribution of one number of each run's completed requests, on one panel."""
    sizes = [len(each) for each in values]
    if not any(sizes):
        return Figure(kind, title, (), tuple(labels), empty=f"no completed request has a {label.split(',')[0]}")
    end = reach(values, guides)
    series = tuple(
        until(end, cumulative(each, len(each), name, run))
        for run, (each, name) in enumerate(zip(values, labels, strict=True))
        if len(each)
    )
    across, beyond = axis(label, values, guides)
    panel = Panel("", across, SHARE, series, guides)
    known = ", ".join(f"{size:,} ({name})" for name, size in zip(labels, sizes, strict=True))
    words = sentences(f"Completed requests with a {label.split(',')[0]}: {known}.", note, beyond, thinned(sizes))
    return Figure(kind, title, (panel,), tuple(labels), words)
