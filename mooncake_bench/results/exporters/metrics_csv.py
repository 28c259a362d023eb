"""Every metric of every run as a line of CSV. Undefined is an empty field."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from mooncake_bench.results.compare import distinct_labels
from mooncake_bench.results.words import csv_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.results.run import Run

NAME = "metrics-csv"
DESCRIPTION = "one line a metric and run: label, trace, metric, value, unit, better, n"
EXTENSION = ".csv"
COLUMNS = ("label", "trace", "metric", "value", "unit", "better", "n")


def export(runs: Sequence[Run]) -> str:
    """The file's content."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for label, run in zip(distinct_labels(runs), runs, strict=True):
        names = csv_text(label), csv_text(run.manifest["trace"]["name"])
        for metric, value in run.metrics().items():
            cells = (value.value, value.unit, value.better, value.n)
            writer.writerow((*names, metric, *("" if cell is None else cell for cell in cells)))
    return out.getvalue()
