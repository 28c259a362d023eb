"""BurstGPT CSV: ``Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type``.

``Timestamp`` is in SECONDS from midnight of the first day (integer or float); tokens are integers. A row with 0
``Response tokens`` is a request that FAILED where the trace was taken (many have 0 request tokens, too): it is counted
in a notice and left out, or, with ``--failures error``, refused. What is kept keeps the number of its row as its id.
The files of the third release insert ``Session ID`` (of conversations; empty for API calls), kept as the session, and
``Elapsed time`` (to the whole answer, seconds). That, ``Model`` (ChatGPT, GPT-4), ``Total tokens`` and ``Log Type``
are not kept. No prefix ids, even where sessions are known.

Published as BurstGPT (1,429.7k / 3,858.4k / 5,344.0k lines) under CC-BY 4.0; cite Wang et al., "BurstGPT", 2024
(arXiv:2401.17644).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.trace.formats import _csv
from mooncake_bench.trace.formats._csv import Column, Part, Table
from mooncake_bench.trace.formats._rows import Gathered
from mooncake_bench.trace.formats._texts import names_of
from mooncake_bench.trace.formats._turns import tell_sessions

if TYPE_CHECKING:
    from mooncake_bench.trace.formats import Source
    from mooncake_bench.trace.schema import RawColumns

NAME = "burstgpt-csv"
DESCRIPTION = "BurstGPT CSV: timestamps in seconds, failures as 0 response tokens, no prefix ids"
OPTIONS = frozenset({"failures"})
RESPONSE, SESSION = "Response tokens", "Session ID"
COLUMNS = (
    Column("Timestamp", _csv.REAL, "a number >= 0 (seconds)"),
    Column("Request tokens", _csv.INTEGER, "an integer >= 1 (tokens)"),
    Column(RESPONSE, _csv.INTEGER, "an integer >= 0 (tokens; 0: the request failed)"),
    Column(SESSION, _csv.TEXT, "a text, or an integer from 0 to 2**63 - 1", optional=True),
)
FIELDS = {
    "timestamp": "Timestamp",
    "input_tokens": "Request tokens",
    "output_tokens": RESPONSE,
    "session_id": SESSION,
}
NOT_KEPT = ("Model", "Total tokens", "Log Type", "Elapsed time")


def recognises(head: bytes) -> bool:
    """A header with one of the two token columns."""
    return _csv.has_any(head, {"Request tokens", RESPONSE})


def read(source: Source) -> RawColumns:
    """All rows of the text. Raises TraceError for the first row that is not of the format."""
    table = Table(source, COLUMNS, NOT_KEPT)
    gathered = Gathered(source, NAME, FIELDS, unit="s", has_ids=False)
    gathered.notices += table.notices
    rows, failed = 0, 0
    for part in table.parts():
        kept = part.values[RESPONSE] != 0
        failed += len(kept) - int(kept.sum())
        if failed and source.reading.failures == "error":
            hint = "an answer: --failures exclude leaves failed requests out"
            raise part.error(int(kept.argmin()), RESPONSE, "0, a request that failed", hint)
        _add(gathered, table, part, kept, rows)
        rows += len(kept)
    if failed:
        gathered.notices.append(
            f"{source.label}: {failed:,} of {rows:,} requests failed (0 response tokens): left out; --failures error "
            "refuses them"
        )
        gathered.metadata["failures"] = f"{failed} of {rows} left out"
    raw = gathered.columns()
    if not failed:
        raw.source_row = None
    return tell_sessions(gathered, raw)


def _add(gathered: Gathered, table: Table, part: Part, kept: np.typing.NDArray[np.bool_], before: int) -> None:
    """The rows of a part that did not fail; ``before`` is the number of rows ahead of it."""
    at = np.flatnonzero(kept)
    whole = len(at) == len(kept)
    lines = part.lines if whole else at + part.lines if isinstance(part.lines, int) else part.lines[at]
    gathered.add(lines, *(part.values[column.name][at] for column in COLUMNS[:3]))
    gathered.add_optional("source_row", at + before)
    if table.has(SESSION):
        gathered.add_names("session_id", names_of(part, SESSION, None if whole else kept))
