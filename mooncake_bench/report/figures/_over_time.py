"""Curves over time that kinds share: from a run's timeline, thinned so that no peak is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mooncake_bench.report.figure import Axis, Series

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.results import Run
    from mooncake_bench.results.steps import Floats, Ints

SAMPLES = 400  # of a curve; more would not be seen
STRETCHES = 60  # of time, over each of which a restless curve is summed up
NOISE = 12  # times its range that a restless curve goes up and down
TICKS = 200  # places along the time axis at which something can be marked
UNITS = ((120_000, 60_000, "min"), (120, 1000, "s"), (0, 1, "ms"))  # from this span on, so many ms, the unit


class Clock(NamedTuple):
    """The time axis of a picture: how long it is, ms in its unit, and its name."""

    span_ms: float
    ms: float
    unit: str

    @property
    def axis(self) -> Axis:
        """Time, from the beginning to the last thing that happens in any run."""
        return Axis(f"time, {self.unit}", low=0, high=self.span_ms / self.ms or None)


def clock(runs: Sequence[Run]) -> Clock:
    """The time axis that holds all runs."""
    span = max(float(run.manifest["horizon_ms"]) for run in runs)
    ms, unit = next((ms, unit) for least, ms, unit in UNITS if span >= least)
    return Clock(span, ms, unit)


def samples(run: Run, column: str) -> Floats:
    """A column of the timeline; null is nan."""
    values: Floats = run.timeline.column(column).to_numpy().astype(np.float64)
    return values


def line(run: Run, values: Floats, label: str, place: int | None, time: Clock) -> Series:
    """Samples of a timeline as a curve; nan is a gap."""
    at = extremes(values)
    when = run.timeline.column("time_ms").to_numpy()[at] / time.ms
    known = (None if np.isnan(value) else value for value in values[at].tolist())
    return Series(label, tuple(when.tolist()), tuple(known), place)


def extremes(values: Floats, points: int = SAMPLES) -> Ints:
    """Indices of so many values at most: the least and the greatest of each of ``points / 2`` stretches; all if few."""
    if len(values) <= points:
        return np.arange(len(values))
    edges = np.rint(np.linspace(0, len(values), points // 2 + 1)).astype(np.int64)
    low, high = np.nan_to_num(values, nan=np.inf), np.nan_to_num(values, nan=-np.inf)
    stretches = [slice(a, b) for a, b in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)]
    found = [int(where.start + np.argmin(low[where])) for where in stretches]
    found += [int(where.start + np.argmax(high[where])) for where in stretches]
    return np.unique(np.array(found, np.int64))


def restless(values: Floats) -> bool:
    """Whether a curve goes up and down so much that several of them on one panel could not be told apart."""
    known = values[~np.isnan(values)]
    return len(known) > 2 * STRETCHES and bool(np.abs(np.diff(known)).sum() > NOISE * np.ptp(known))


def band(run: Run, values: Floats, label: str, place: int | None, time: Clock) -> Series:
    """The mean of the samples of each stretch of time, at its middle, between their lowest and highest."""
    edges = columns(time.span_ms, STRETCHES)
    known = ~np.isnan(values)
    where = (run.timeline.column("time_ms").to_numpy()[known] // edges[1]).astype(np.int64)
    stretches, which, counts = np.unique(where, return_inverse=True, return_counts=True)
    mean = np.bincount(which, values[known], len(stretches)) / counts
    low, high = np.full(len(stretches), np.inf), np.full(len(stretches), -np.inf)
    np.minimum.at(low, which, values[known])
    np.maximum.at(high, which, values[known])
    x = (stretches + 0.5) * edges[1] / time.ms
    lowest, means, highest = (tuple(each.tolist()) for each in (low, mean, high))
    return Series(label, tuple(x.tolist()), means, place, low=lowest, high=highest)


def ticks(run: Run, counts: Floats, label: str, time: Clock) -> Series | None:
    """Marks where something happened, at most so many along the axis, with how often; None where nothing did."""
    when = run.timeline.column("time_ms").to_numpy()
    there = counts > 0
    if not there.any():
        return None
    width = max(time.span_ms, 1e-9) / TICKS
    places, which = np.unique(np.floor(when[there] / width), return_inverse=True)
    often = np.bincount(which, counts[there])
    first = np.full(len(places), np.inf)
    np.minimum.at(first, which, when[there])
    return Series(label, tuple((first / time.ms).tolist()), tuple(often.tolist()), None, "marks")


def thinned(runs: Sequence[Run]) -> str:
    """A sentence that says so, where a curve has fewer points than its run has samples."""
    if max(len(run.timeline) for run in runs) <= SAMPLES:
        return ""
    return f"Of more than {SAMPLES} samples, the lowest and the highest of each of {SAMPLES // 2} stretches are drawn."


def columns(span_ms: float, most: int) -> Floats:
    """Edges of at most so many equal stretches of 1, 2 or 5 times a power of ten ms that cover a span."""
    steps = (digit * 10.0**power for power in range(-6, 15) for digit in (1, 2, 5))
    step = next(step for step in steps if span_ms <= step * most)
    edges: Floats = np.round(np.arange(max(int(np.ceil(span_ms / step)), 1) + 1) * step, 9)
    return edges
