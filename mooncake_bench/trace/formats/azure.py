"""Azure LLM inference CSV, 2023 and 2024: ``TIMESTAMP,ContextTokens,GeneratedTokens``.

``TIMESTAMP`` is a date such as ``2023-11-16 18:17:03.9799600``: seven fractional digits, ticks of 100 ns, which are
read exactly (0 to 9 digits are), without a zone in 2023, with ``+00:00`` in 2024 (one form a file). Tokens are whole.
In the published files lines end in CRLF and the last has no end; both ways are read. No prefix ids: sharing is not
known. More columns (``NumImages`` of the 2025 multimodal file) are ignored with a notice.

Published as AzurePublicDataset under CC-BY 4.0: attribute, and cite Patel et al., "Splitwise", ISCA'24 (2023), and
Stojkovic et al., "DynamoLLM", HPCA'25 (2024).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_bench.trace.formats import _csv
from mooncake_bench.trace.formats._csv import Column, Table
from mooncake_bench.trace.formats._rows import Gathered
from mooncake_bench.trace.units import DATES

if TYPE_CHECKING:
    from mooncake_bench.trace.formats import Source
    from mooncake_bench.trace.schema import RawColumns

NAME = "azure-csv"
DESCRIPTION = "Azure LLM inference CSV: dates with 100 ns ticks, no prefix ids"
COLUMNS = (
    Column("TIMESTAMP", _csv.DATE, _csv.DATE_WANTED),
    Column("ContextTokens", _csv.INTEGER, "an integer >= 1 (tokens)"),
    Column("GeneratedTokens", _csv.INTEGER, "an integer >= 1 (tokens)"),
)
FIELDS = {"timestamp": "TIMESTAMP", "input_tokens": "ContextTokens", "output_tokens": "GeneratedTokens"}


def recognises(head: bytes) -> bool:
    """A header with one of the two token columns."""
    return _csv.has_any(head, {"ContextTokens", "GeneratedTokens"})


def read(source: Source) -> RawColumns:
    """All rows of the text. Raises TraceError for the first row that is not of the format."""
    table = Table(source, COLUMNS)
    gathered = Gathered(source, NAME, FIELDS, unit=DATES, has_ids=False)
    gathered.notices += table.notices
    for part in table.parts():
        gathered.add(part.lines, *(part.values[column.name] for column in COLUMNS))
    return gathered.columns()
