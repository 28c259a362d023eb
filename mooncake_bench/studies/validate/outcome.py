"""What a check gave: rows of points, measured and predicted, with the error of each row and what was claimed of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

IN_SAMPLE = "in-sample"
"""A coefficient of the prediction was chosen with these very points in sight."""
INDEPENDENT = "independent"
LEFT_OUT = "left out"
"""Each point is predicted by a form fitted to the others of its row."""
HELD_OUT = "held out"
"""Random halves of the rows, as a preset's file records them."""
BASES = (IN_SAMPLE, INDEPENDENT, LEFT_OUT, HELD_OUT)

PERCENT = "%"


@dataclass(frozen=True)
class Point:
    """One measurement and what is predicted of it, in the row's unit."""

    label: str
    measured: float
    predicted: float


@dataclass(frozen=True)
class Limits:
    """How far off a row is claimed to be at most, in the unit of its error; None: nothing is claimed."""

    source: str
    median: float | None = None
    p90: float | None = None
    worst: float | None = None
    decimals: int | None = None
    """Of limits that are somebody's rounded numbers: an error that rounds to one is within it. None: they are exact."""

    def allow(self, error: float, most: float) -> bool:
        """Whether an error is within the limit ``most``."""
        return (error if self.decimals is None else round(error, self.decimals)) <= most


@dataclass(frozen=True)
class Errors:
    """Absolute errors of a row's points, in percent of the measured value or in the row's unit."""

    points: int
    median: float
    p90: float
    worst: float | None
    """None where a file records only the others."""
    bias: float | None = None
    """Median of the signed errors: above 0 when the prediction is too high. None where only sizes are known."""


@dataclass(frozen=True)
class Row:
    """Points that one prediction is judged on together."""

    name: str
    """Unique within its check, and short."""
    basis: str
    """One of :data:`BASES`."""
    points: tuple[Point, ...] = ()
    unit: str = "ms"
    """Of the points' values."""
    error_unit: str = PERCENT
    """``%``: relative to the measured value; else a difference in this unit."""
    node: str = ""
    model: str = ""
    tp: int | None = None
    engine: str = ""
    """Overhead preset, ``none`` for kernels alone; empty where no engine takes part."""
    limits: Limits | None = None
    recorded: Errors | None = None
    """Where a file holds the errors, and not the points."""

    @property
    def errors(self) -> Errors:
        """Recorded, or those of the points."""
        return self.recorded or errors_of(self.points, relative=self.error_unit == PERCENT)

    @property
    def verdict(self) -> str:
        """``within`` or ``beyond`` what is claimed; ``no claim``."""
        if self.limits is None:
            return "no claim"
        errors, limits = self.errors, self.limits
        pairs = ((errors.median, limits.median), (errors.p90, limits.p90), (errors.worst, limits.worst))
        known = [(found, most) for found, most in pairs if found is not None and most is not None]
        return "within" if all(limits.allow(found, most) for found, most in known) else "beyond"


@dataclass(frozen=True)
class Outcome:
    """What one check found."""

    rows: tuple[Row, ...]
    facts: tuple[str, ...] = ()
    """Assumptions, what was computed on the way, and what does not agree."""
    excluded: tuple[str, ...] = ()
    """Measurements that are there and take no part, each kind with its count and the reason."""


@dataclass(frozen=True)
class Done:
    """A check and what came of it."""

    id: str
    title: str
    source: str
    files: tuple[str, ...]
    absent: tuple[str, ...]
    """Files that are not in the folder: the check was skipped for them."""
    outcome: Outcome | None

    @property
    def rows(self) -> tuple[Row, ...]:
        """None for a skipped check."""
        return () if self.outcome is None else self.outcome.rows

    def with_outcome(self, outcome: Outcome) -> Done:
        """The same check, run. Raises ValueError where two rows share a name: a ceiling could not tell them apart."""
        names = [row.name for row in outcome.rows]
        if len(set(names)) < len(names):
            raise ValueError(f"{self.id}: two rows of one name among {names}")
        return replace(self, outcome=outcome)


def errors_of(points: Sequence[Point], *, relative: bool) -> Errors:
    """Errors of predictions, in percent where ``relative``, else in the unit of the points."""
    measured = np.array([point.measured for point in points])
    signed = np.array([point.predicted for point in points]) - measured
    if relative:
        signed = 100 * signed / measured
    sizes = np.abs(signed)
    median, p90 = np.percentile(sizes, (50, 90))
    return Errors(len(points), float(median), float(p90), float(sizes.max()), float(np.median(signed)))
