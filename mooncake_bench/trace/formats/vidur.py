"""Vidur CSV: ``arrived_at,num_prefill_tokens,num_decode_tokens``.

``arrived_at`` is in SECONDS from the start (float), tokens are integers; other columns (``num_total_tokens``,
``pd_ratio``) follow from these and are not kept. No prefix ids. Vidur also has files of lengths alone, without
``arrived_at`` (``arxiv_summarization_stats_…csv``): no request arrives in them, so they are refused as traces, and
feed ``traces synth --lengths FILE``. Unlike Vidur, which cuts prompts at 4,096 tokens, nothing is cut.

Published with Vidur (Agrawal et al., MLSys'24) under MIT; the splitwise_* files derive from Azure 2023 (CC-BY 4.0).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_bench.errors import TraceError
from mooncake_bench.trace.formats import _csv
from mooncake_bench.trace.formats._csv import Column, Table
from mooncake_bench.trace.formats._rows import Gathered

if TYPE_CHECKING:
    from mooncake_bench.trace.formats import Source
    from mooncake_bench.trace.schema import RawColumns

NAME = "vidur-csv"
DESCRIPTION = "Vidur CSV: arrivals in seconds, no prefix ids"
COLUMNS = (
    Column("arrived_at", _csv.REAL, "a number >= 0 (seconds)"),
    Column("num_prefill_tokens", _csv.INTEGER, "an integer >= 1 (tokens)"),
    Column("num_decode_tokens", _csv.INTEGER, "an integer >= 1 (tokens)"),
)
FIELDS = {"timestamp": "arrived_at", "input_tokens": "num_prefill_tokens", "output_tokens": "num_decode_tokens"}
NOT_KEPT = ("num_total_tokens", "pd_ratio")


def recognises(head: bytes) -> bool:
    """A header with one of the two token columns."""
    return _csv.has_any(head, {"num_prefill_tokens", "num_decode_tokens"})


def read(source: Source) -> RawColumns:
    """All rows of the text. Raises TraceError for the first row that is not of the format, or without arrivals."""
    names = _csv.header(source.head)
    if set(names) <= {column.name for column in COLUMNS[1:]} | set(NOT_KEPT):
        raise TraceError(
            f"{source.label}: a Vidur file of lengths alone, without the column 'arrived_at': no request arrives; "
            f"make a trace of its lengths with: mooncake-bench traces synth --lengths {source.label} OUT.arrow"
        )
    table = Table(source, COLUMNS, NOT_KEPT)
    gathered = Gathered(source, NAME, FIELDS, unit="s", has_ids=False)
    gathered.notices += table.notices
    for part in table.parts():
        gathered.add(part.lines, *(part.values[column.name] for column in COLUMNS))
    return gathered.columns()
