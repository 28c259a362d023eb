"""Every request as a line of CSV: ``requests.parquet`` for a spreadsheet. Null is an empty field."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv

from mooncake_bench.results.exporters._values import only
from mooncake_bench.results.words import csv_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.results.run import Run

NAME = "requests-csv"
DESCRIPTION = "one line a request, for a spreadsheet: the columns of requests.parquet"
EXTENSION = ".csv"


def export(runs: Sequence[Run]) -> str:
    """The file's content. Raises ResultError for several runs."""
    table = only(runs, NAME).requests
    for at, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            safe = [None if text is None else csv_text(text) for text in table.column(at).to_pylist()]
            table = table.set_column(at, field, pa.array(safe, pa.string()))
    out = io.BytesIO()
    pyarrow.csv.write_csv(table, out, pyarrow.csv.WriteOptions(quoting_style="needed"))
    return out.getvalue().decode("utf-8")
