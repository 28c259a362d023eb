"""github-action-benchmark, tool ``customBiggerIsBetter``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_bench.results.exporters._custom import entries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.results.run import Run

NAME = "github-action-benchmark-bigger"
DESCRIPTION = "github-action-benchmark, tool customBiggerIsBetter: metrics of which more is better"
EXTENSION = ".json"


def export(runs: Sequence[Run]) -> str:
    """The file that the action reads as ``output-file-path``. Raises ResultError where no metric is defined."""
    return entries(runs, "higher")
