"""Checks for people and programs: a report, plain values, lines of a table, and typed parquet tables."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mooncake_bench.report.sheets import Report, Sheet
from mooncake_bench.results.words import DASH, counted
from mooncake_bench.studies.validate.outcome import INDEPENDENT, PERCENT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mooncake_bench.studies.validate.outcome import Done, Row

STATISTICS = ("median", "p90", "worst")
SHORT_BASIS = {INDEPENDENT: "indep."}
LEGEND = (
    "error: median / 90th percentile / worst of the points' absolute errors, in % of the measured value unless a unit "
    "is given; limit: what is claimed of each, and an error counts in the digits that its limit has",
    "in-sample: a coefficient was chosen with these points in sight; indep.: independent of them; left out: each "
    "configuration predicted by a form fitted to the others; held out: random halves of the rows",
)
_TEXT, _NUMBER = pa.string(), pa.float64()
_ROW_FIELDS = (
    ("id", _TEXT), ("row", _TEXT), ("basis", _TEXT), ("node", _TEXT), ("model", _TEXT), ("tp", pa.int64()),
    ("engine", _TEXT), ("unit", _TEXT), ("error_unit", _TEXT), ("points", pa.int64()), ("median", _NUMBER),
    ("p90", _NUMBER), ("worst", _NUMBER), ("bias", _NUMBER), ("limit_median", _NUMBER), ("limit_p90", _NUMBER),
    ("limit_worst", _NUMBER), ("limit_source", _TEXT), ("verdict", _TEXT),
)  # fmt: skip
ROWS = pa.schema([pa.field(name, kind) for name, kind in _ROW_FIELDS])
"""One row of a check a line; null where there is nothing to say."""
POINTS = pa.schema(
    [pa.field(name, kind) for name, kind in (("id", _TEXT), ("row", _TEXT), ("point", _TEXT), ("unit", _TEXT),
     ("measured", _NUMBER), ("predicted", _NUMBER), ("error", _NUMBER), ("error_unit", _TEXT))]
)  # fmt: skip
"""One measurement a line; the error is signed."""


# ---- for people


def report(done: Sequence[Done]) -> Report:
    """A table a check that was run, a tally of all, and the skipped ones as notices."""
    sheets = [_sheet(one) for one in done if one.outcome is not None]
    return Report((), (*sheets, _tally(done)), tuple(_skipped(one) for one in done if one.outcome is None))


def _sheet(one: Done) -> Sheet:
    outcome = one.outcome
    assert outcome is not None
    rows = tuple(
        (_named(row), SHORT_BASIS.get(row.basis, row.basis), str(row.errors.points), _errors(row), _limits(row),
         row.verdict)
        for row in outcome.rows
    )  # fmt: skip
    headers = ("", "basis", "n", "error", "limit", "verdict")
    notes = (*_settings(outcome.rows), *outcome.facts, *_excluded(outcome.excluded), *_limit_sources(outcome.rows))
    return Sheet(f"{one.id}: {one.title} ({one.source})", headers, rows, notes)


def _named(row: Row) -> str:
    return row.name if row.error_unit == PERCENT else f"{row.name} [{row.error_unit}]"


def _errors(row: Row) -> str:
    errors = row.errors
    return "/".join(_error(getattr(errors, name), row) for name in STATISTICS)


def _error(value: float | None, row: Row) -> str:
    if value is None:
        return DASH
    if row.error_unit == PERCENT:
        return f"{value:.1f}"
    return f"{value:.3f}".removeprefix("0")


def _limits(row: Row) -> str:
    if row.limits is None:
        return DASH
    given = (getattr(row.limits, name) for name in STATISTICS)
    return "/".join(DASH if most is None else f"{most:.3g}".removeprefix("0") for most in given)


def _settings(rows: Sequence[Row]) -> Iterator[str]:
    """What was served on what, where that is one thing for all rows."""
    found = {(row.model, row.node, row.tp) for row in rows if row.model and row.node}
    if len(found) == 1:
        model, node, tp = found.pop()
        yield f"{model} on {node}" + (f", TP{tp}" if tp else "")


def _excluded(excluded: Sequence[str]) -> Iterator[str]:
    if excluded:
        yield f"not used: {'; '.join(excluded)}"


def _limit_sources(rows: Sequence[Row]) -> Iterator[str]:
    sources = dict.fromkeys(row.limits.source for row in rows if row.limits is not None)
    if sources:
        yield f"limits: {'; '.join(sources)}"


def _tally(done: Sequence[Done]) -> Sheet:
    verdicts = ("within", "beyond", "no claim")
    lines = []
    for one in done:
        found = [row.verdict for row in one.rows]
        counts = [str(len(found)), *(str(found.count(each)) for each in verdicts)]
        if one.outcome is None:
            counts = ["skipped", *[DASH] * len(verdicts)]
        lines.append((one.id, *counts))
    return Sheet("Rows", ("", "rows", *verdicts), tuple(lines), LEGEND)


def _skipped(one: Done) -> str:
    return f"{one.id}: skipped, {counted(len(one.absent), 'file')} absent: {', '.join(one.absent)}"


# ---- for programs


def as_json(done: Sequence[Done]) -> list[dict[str, Any]]:
    """Everything as plain values that strict JSON can hold."""
    return [
        {
            "id": one.id,
            "title": one.title,
            "source": one.source,
            "files": list(one.files),
            "skipped": one.outcome is None,
            "absent": list(one.absent),
            "rows": [_values(one, row) | {"values": [asdict(point) for point in row.points]} for row in one.rows],
            "facts": list(one.outcome.facts) if one.outcome else [],
            "excluded": list(one.outcome.excluded) if one.outcome else [],
        }
        for one in done
    ]


def as_items(done: Sequence[Done]) -> list[dict[str, Any]]:
    """A line a row, and one for each skipped check, with the columns of :data:`ROWS`."""
    empty = dict.fromkeys(ROWS.names)
    skipped = [
        empty | {"id": one.id, "verdict": f"skipped: {', '.join(one.absent)}"} for one in done if not one.outcome
    ]
    return [_values(one, row) for one in done for row in one.rows] + skipped


def _values(one: Done, row: Row) -> dict[str, Any]:
    limits = row.limits
    given = {f"limit_{name}": limits and getattr(limits, name) for name in STATISTICS}
    return {
        "id": one.id, "row": row.name, "basis": row.basis, "node": row.node or None, "model": row.model or None,
        "tp": row.tp, "engine": row.engine or None, "unit": row.unit, "error_unit": row.error_unit,
        **asdict(row.errors), **given, "limit_source": limits and limits.source, "verdict": row.verdict,
    }  # fmt: skip


def rows_table(done: Sequence[Done]) -> pa.Table:
    """Every row and skipped check, as an Arrow table of :data:`ROWS`."""
    return pa.Table.from_pylist(as_items(done), schema=ROWS)


def points_table(done: Sequence[Done]) -> pa.Table:
    """Every point, as an Arrow table of :data:`POINTS`."""
    lines = [
        {"id": one.id, "row": row.name, "point": point.label, "unit": row.unit, "measured": point.measured,
         "predicted": point.predicted, "error": _signed(row, point.measured, point.predicted),
         "error_unit": row.error_unit}
        for one in done for row in one.rows for point in row.points
    ]  # fmt: skip
    return pa.Table.from_pylist(lines, schema=POINTS)


def _signed(row: Row, measured: float, predicted: float) -> float:
    return 100 * (predicted / measured - 1) if row.error_unit == PERCENT else predicted - measured
