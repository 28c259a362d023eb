"""A reproduced result for people and programs: a report, plain values, and a typed parquet table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mooncake_bench.report.sheets import Report, Sheet
from mooncake_bench.results.words import DASH, factor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mooncake_bench.studies.reproduce import Published
    from mooncake_bench.studies.reproduce.outcome import Result, Row

STAND_IN = "+"  # marks numbers that do not come from the published trace
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("group", pa.string(), nullable=False),
        pa.field("what", pa.string(), nullable=False),
        pa.field("unit", pa.string(), nullable=False),
        pa.field("published", pa.float64(), nullable=False),
        pa.field("reading_error", pa.float64(), nullable=False),
        pa.field("ours", pa.float64()),
        pa.field("ratio", pa.float64()),
        pa.field("stand_in", pa.bool_(), nullable=False),
        pa.field("verdict", pa.string(), nullable=False),
    ]
)
"""One row a published number."""


def report(one: Published, result: Result) -> Report:
    """The result as small tables: in the paper's form first, then number by number, then what was claimed."""
    sheets = [*result.sheets, _numbers(result), *([_claims(result)] if result.claims else [])]
    return Report(tuple(_head(one, result)), tuple(sheets), result.notes)


def summary(done: Sequence[tuple[Published, Result]]) -> Report:
    """One line a result, and one for its numbers on stand-in traces."""
    rows = tuple(row for one, result in done for row in _tally(one, result))
    headers = ("id", "numbers", "in 10 %", "in 25 %", "misread", "claims", "hold")
    note = "in 10 %, in 25 %: so near to the published value; misread: further, but within its reading error"
    if any(row.stand_in for _, result in done for row in result.rows):
        note += f"; {STAND_IN} on a stand-in trace"
    titles = (f"{one.ID}: {one.TITLE}" for one, _ in done)
    return Report((), (Sheet("Reproduced results", headers, rows, (*titles, note)),), ())


def full_summary(done: Sequence[tuple[Published, Result]]) -> Report:
    """One line a claim and one for the numbers of each result, for a file: no width to fit."""
    headers = ("id", "what the paper says", "verdict", "detail")
    claims = tuple((one.ID, claim.text, claim.verdict, claim.detail) for one, result in done for claim in result.claims)
    numbers = tuple((one.ID, one.TITLE, one.SOURCE, result.verdict) for one, result in done)
    sheets = (
        Sheet("Numbers", ("id", "result", "source", "verdict"), numbers),
        Sheet("What the papers say with them", headers, claims),
    )
    notes = tuple(f"{one.ID}: {note}" for one, result in done for note in result.notes)
    return Report((), sheets, notes)


def measured_table(result: Result) -> pa.Table:
    """Every number that was computed for a result: a row each, its own columns."""
    return pa.Table.from_pylist(list(result.measured))


def _tally(one: Published, result: Result) -> Iterator[tuple[str, ...]]:
    claims = (str(len(result.claims)), str(sum(claim.holds is True for claim in result.claims)))
    for stand_in, name in ((False, one.ID), (True, f"{one.ID} {STAND_IN}")):
        found = [row.verdict for row in result.rows if row.stand_in == stand_in and row.ours is not None]
        if found:
            close, near = found.count("within 10 %"), found.count("within 25 %")
            yield name, *map(str, (len(found), close, close + near, found.count("reading error"))), *claims
            claims = ("", "")
    if not result.concluded:
        yield one.ID, "0", DASH, DASH, DASH, *claims


def _head(one: Published, result: Result) -> Iterator[str]:
    yield f"{one.ID}: {one.TITLE} ({one.SOURCE})"
    for used in result.used:
        name = "" if used.name is None else f"; {used.name}, content sha256 {(used.sha256 or '')[:12]}"
        yield f"{used.wanted}: {used.words}{name}"
    yield from (f"free: {text}" for text in result.parameters)
    yield f"verdict: {result.verdict}"


def _numbers(result: Result) -> Sheet:
    rows = tuple(
        (_what(row), _number(row, row.published), _number(row, row.ours), factor(row.ratio), row.verdict)
        for row in result.rows
    )
    note = "ratio: ours over the published value; off: further than 25 % away"
    if any(row.stand_in for row in result.rows):
        note += f"; {STAND_IN} on a stand-in trace"
    if any(row.verdict == "reading error" for row in result.rows):
        note += "; reading error: no further away than the published value may have been misread from its figure"
    return Sheet("Number by number", ("", "published", "ours", "ratio", "verdict"), rows, (note,))


def _what(row: Row) -> str:
    return f"{row.group}, {row.what}{f' {STAND_IN}' if row.stand_in else ''}"


def _number(row: Row, value: float | None) -> str:
    if value is None:
        return DASH
    return f"{value:.3f}" if row.unit == "ratio" else f"{value:,.0f}"


def _claims(result: Result) -> Sheet:
    rows = tuple((f"{i}. {claim.text}", claim.verdict) for i, claim in enumerate(result.claims, start=1))
    notes = tuple(f"{i}. {claim.detail}" for i, claim in enumerate(result.claims, start=1) if claim.detail)
    return Sheet("What the paper says with them", ("", "verdict"), rows, notes)


def as_json(one: Published, result: Result) -> dict[str, Any]:
    """Everything as plain values that strict JSON can hold."""
    return {
        "id": one.ID,
        "title": one.TITLE,
        "source": one.SOURCE,
        "verdict": result.verdict,
        "traces": [used.__dict__ for used in result.used],
        "parameters": list(result.parameters),
        "rows": [_values(row) for row in result.rows],
        "claims": [{"text": c.text, "holds": c.holds, "verdict": c.verdict, "detail": c.detail} for c in result.claims],
        "notes": list(result.notes),
        "measured": list(result.measured),
    }


def _values(row: Row) -> dict[str, Any]:
    return row.__dict__ | {"ratio": row.ratio, "verdict": row.verdict}


def as_table(one: Published, result: Result) -> pa.Table:
    """The numbers as an Arrow table of :data:`SCHEMA`, which those of other results can be appended to."""
    return pa.Table.from_pylist([{"id": one.ID} | _values(row) for row in result.rows], schema=SCHEMA)
