"""What a metric is: a declaration, and the value it has for some requests."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_bench.results.facts import Facts

Number = int | float | None
Computed = tuple[Number, int | None]


class Value(NamedTuple):
    """A metric of one run: the number (None: undefined) and how many samples it rests on (None: not a statistic)."""

    value: Number
    n: int | None
    unit: str
    better: str


@dataclass(frozen=True)
class Metric:
    """One metric's declaration."""

    name: str
    unit: str
    better: str  # "higher", "lower" or "none"
    population: str
    definition: str
    function: Callable[[Facts], Computed]
    whole_run: bool = False  # not defined for a part of the requests

    def of(self, facts: Facts) -> Value:
        """This metric over some requests."""
        value, count = (None, None) if self.whole_run and not facts.whole else self.function(facts)
        if value is not None and not math.isfinite(value):  # beyond float's range: as undefined as a division by 0
            value = None
        return Value(value, count, self.unit, self.better)


OFFERED = "requests that arrived after the warm-up"
COMPLETED = "completed requests"
PREFILLED = "requests whose prefill began"
POOL = "instances of the pool, over the arrival span"
RUN = "the whole run, warm-up included"


def ratio(part: float | None, whole: float | None) -> float | None:
    """A part over a whole; None where there is no whole."""
    return None if part is None or not whole else part / whole
