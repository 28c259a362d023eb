"""From numbers to places on a picture: scales, round ticks, and how a tick reads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mooncake_bench.report.figure import Axis, Number

LETTERS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k"))
FEW_DECADES = 2.5  # up to which a log axis has ticks at 2 and 5 too


@dataclass(frozen=True)
class Scale:
    """Values from ``low`` to ``high`` lie at pixels from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: Number) -> float | None:
        """The pixel of a value; None for a gap, and for what a log axis cannot show."""
        if value is None or (self.log and value <= 0):
            return None
        low, high, value = (math.log10(each) if self.log else each for each in (self.low, self.high, value))
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self, most: int) -> list[float]:
        """Round values inside the scale, at most about ``most``."""
        return (_decades if self.log else _steps)(self.low, self.high, most)


def bounds(axis: Axis, values: Iterable[Number], *, zero: bool = False) -> tuple[float, float]:
    """Lowest and highest value that an axis shows: what it asks for, else what the numbers need.

    ``zero``: bars stand on 0, and so does an axis whose numbers lie nearer to 0 than to each other.
    """
    known = [each for each in values if each is not None and math.isfinite(each) and not (axis.log and each <= 0)]
    low, high = (min(known), max(known)) if known else (1.0, 10.0) if axis.log else (0.0, 1.0)
    if zero and not axis.log:
        low, high = min(low, 0), max(high, 0)
    low, high = low if axis.low is None else axis.low, high if axis.high is None else axis.high
    if axis.log:
        low = low if low > 0 else high / 1000 if high > 0 else 1.0
        return (low, high) if high > low else (low / 2, low * 2)
    if high > low:
        return low, high
    return (low, low + (abs(low) or 1.0)) if axis.high is None or axis.low is not None else (high - 1, high)


def near_zero(values: Sequence[Number]) -> bool:
    """Whether an axis of these values should begin at 0."""
    known = [each for each in values if each is not None]
    return bool(known) and min(known) >= 0 and max(known) - min(known) > 0.25 * max(known)


def rounded_up(low: float, high: float, most: int) -> float:
    """``high``, or the next tick above it."""
    step = _step(low, high, most)
    return math.ceil(round(high / step, 9)) * step


def _step(low: float, high: float, most: int) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that needs at most ``most`` steps."""
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    return next(power * times for times in (1, 2, 5, 10) if power * times >= raw * (1 - 1e-9))


def _steps(low: float, high: float, most: int) -> list[float]:
    step = _step(low, high, most)
    first, last = math.ceil(round(low / step, 9)), math.floor(round(high / step, 9))
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def _decades(low: float, high: float, most: int) -> list[float]:
    """Powers of ten; 2 and 5 times each where there are few, and every so many where there are too many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    times = (1, 2, 5) if math.log10(high / low) < FEW_DECADES else (1,)
    ticks = [float(f"{factor * 10.0**power:.12g}") for power in range(first, last + 1) for factor in times]
    shown = [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
    return shown[:: max(1, math.ceil(len(shown) / most))]


def tick_text(value: float) -> str:
    """A number as a tick shows it: 0, 0.5, 1,500, 20k, 1.5M."""
    for unit, letter in LETTERS:
        if abs(value) >= unit:
            return f"{value / (1e3 if letter == 'k' else unit):.4g}{letter}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
