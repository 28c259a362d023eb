"""splitwise-sim CSV: ``request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size``.

``arrival_timestamp`` is in SECONDS (float), sizes are in tokens. ``request_type`` 2 (GENERATIVE_LLM) is the only one
that splitwise-sim replays; another, or a ``batch_size`` other than 1, is an error, for what it stands for is no request
of ours. ``request_id`` is kept, ``application_id`` is not. A request at 0 s and one of a single output token are
ordinary (both crash splitwise-sim). No prefix ids.

Published with splitwise-sim (Patel et al., ISCA'24) under MIT; its real traces are made from Azure 2023.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_bench.trace.formats import _csv
from mooncake_bench.trace.formats._csv import Column, Part, Table
from mooncake_bench.trace.formats._plain import request_ids
from mooncake_bench.trace.formats._rows import Gathered

if TYPE_CHECKING:
    from mooncake_bench.trace.formats import Source
    from mooncake_bench.trace.schema import RawColumns

NAME = "splitwise-sim-csv"
DESCRIPTION = "splitwise-sim CSV: arrivals in seconds, no prefix ids"
COLUMNS = (
    Column("arrival_timestamp", _csv.REAL, "a number >= 0 (seconds)"),
    Column("prompt_size", _csv.INTEGER, "an integer >= 1 (tokens)"),
    Column("token_size", _csv.INTEGER, "an integer >= 1 (tokens)"),
    Column("request_type", _csv.INTEGER, "2 (GENERATIVE_LLM), the only type that is a request to a language model"),
    Column("batch_size", _csv.INTEGER, "1: one request a row", optional=True),
    Column("request_id", _csv.TEXT, "an id", optional=True),
)
FIELDS = {"timestamp": "arrival_timestamp", "input_tokens": "prompt_size", "output_tokens": "token_size"}
NOT_KEPT = ("application_id",)
ONLY = {"request_type": 2, "batch_size": 1}


def recognises(head: bytes) -> bool:
    """A header with one of the two size columns."""
    return _csv.has_any(head, {"prompt_size", "token_size"})


def read(source: Source) -> RawColumns:
    """All rows of the text. Raises TraceError for the first row that is not of the format."""
    table = Table(source, COLUMNS, NOT_KEPT)
    gathered = Gathered(source, NAME, FIELDS, unit="s", has_ids=False)
    gathered.notices += table.notices
    for part in table.parts():
        _check_kind(table, part)
        gathered.add(part.lines, *(part.values[column.name] for column in COLUMNS[:3]))
        if table.has("request_id"):
            gathered.add_request_ids(_ids(part))
    return gathered.columns()


def _ids(part: Part) -> list[str]:
    names = part.values["request_id"].to_pylist()
    return request_ids(names, lambda row, text: part.error(row, "request_id", repr(text)))


def _check_kind(table: Table, part: Part) -> None:
    for name, only in ONLY.items():
        if table.has(name):
            others = part.values[name] != only
            if others.any():
                row = int(others.argmax())
                raise part.error(row, name, part.values[name][row])
