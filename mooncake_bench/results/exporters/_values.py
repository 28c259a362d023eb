"""Numbers that other tools' formats want of one run, beside the metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench.errors import ResultError
from mooncake_bench.results.facts import Facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.results.run import Run
    from mooncake_bench.results.steps import Floats


def only(runs: Sequence[Run], name: str) -> Run:
    """The one run that a file of this format holds. Raises ResultError for several, or none."""
    if len(runs) != 1:
        raise ResultError(f"{name}: a file holds one run, {len(runs)} are given; export them one by one")
    return runs[0]


class Completed:
    """Columns of a run's completed requests, warm-up left out; null is left out too."""

    def __init__(self, run: Run) -> None:
        self.facts = Facts(run.manifest, run)
        self.metrics = run.metrics()

    def column(self, name: str) -> Floats:
        """One number of every completed request that has it."""
        values = self.facts.column(name)[self.facts.completed].astype(np.float64)
        mine: Floats = values[~np.isnan(values)]
        return mine

    def value(self, name: str) -> Any:
        """A metric by name, None where it is undefined."""
        return self.metrics[name].value

    def duration_s(self) -> float | None:
        """From the first arrival to the last end; None where nothing lasts."""
        last = self.facts.duration_ms
        return None if last is None else last / 1000
