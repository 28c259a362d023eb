"""Whether a conclusion survives, for people and programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mooncake_bench.report.sheets import Report, Sheet
from mooncake_bench.results.words import DASH, counted, ms, rate, share, significant
from mooncake_bench.studies.robust.run import GOODPUT, OPEN, PAIRED, TURNS, says
from mooncake_bench.studies.robust.worlds import AS_IT_IS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mooncake_bench.results.metric import Metric
    from mooncake_bench.studies.robust.run import Row, Verdict

SHOW: Mapping[str, Callable[[float | None], str]] = {"ms": ms, "ratio": share, "requests/s": rate}
POINTS = pa.schema(
    [
        pa.field("world", pa.string(), nullable=False),
        pa.field("group", pa.string(), nullable=False),
        pa.field("policy", pa.string(), nullable=False),
        pa.field("metric", pa.string(), nullable=False),
        pa.field("value", pa.float64()),
        pa.field("completed_requests", pa.int64(), nullable=False),
        pa.field("ahead", pa.bool_(), nullable=False),
        pa.field("says", pa.string(), nullable=False),
    ]
)
"""One row a policy in a world."""


def points(rows: Sequence[Row], metric: Metric) -> pa.Table:
    """What every policy got in every world, as a table of :data:`POINTS`."""
    return pa.Table.from_pylist(list(_points(rows, metric)), schema=POINTS)


def _points(rows: Sequence[Row], metric: Metric) -> Iterator[dict[str, Any]]:
    base = _base(rows)
    for row in rows:
        for label, each in row.outcomes.items():
            yield {
                "world": row.world.name,
                "group": row.world.group,
                "policy": label,
                "metric": metric.name,
                "value": each.value,
                "completed_requests": each.completed,
                "ahead": label == row.winner,
                "says": says(row, base),
            }


def report(rows: Sequence[Row], found: Verdict, metric: Metric, notes: Sequence[str]) -> Report:
    """A row a world, and what they say together."""
    base, labels = _base(rows), list(rows[0].outcomes)
    show = SHOW.get(metric.unit, significant)
    headers = ("", *labels, "ahead", "by", "says")
    cells = tuple(tuple(_cells(row, base, labels, show)) for row in rows)
    unit = "" if metric.unit == "ratio" else f" [{metric.unit}]"
    about = f"{metric.name}{unit}, {metric.better} is better; by: over the next best"
    how = "told apart: by a block bootstrap over time, paired by request" if metric.name in PAIRED else "by value alone"
    sheet = Sheet("Does it survive?", headers, cells, (f"{about}; {how}",))
    return Report((conclusion(found),), (sheet,), (*_unlike(rows, metric), *notes))


def _cells(row: Row, base: Row, labels: Sequence[str], show: Callable[[float | None], str]) -> Iterator[str]:
    yield row.world.name
    yield from (show(row.outcomes[label].value) for label in labels)
    yield row.winner or DASH
    yield DASH if row.margin is None else f"{100 * abs(row.margin):.1f} %"
    yield "" if row is base and row.told else says(row, base)


def conclusion(found: Verdict) -> str:
    """The verdict as a sentence."""
    if found.winner is None:
        return f"as it is, the best two cannot be told apart: there is no conclusion to test ({found.rows} rows)"
    parts = [f"{found.winner} is ahead: holds in {found.holds} of {found.rows}"]
    for word, names in ((TURNS, found.turns), (OPEN, found.open)):
        if names:
            parts.append(f"{word}: {', '.join(names)}")
    return "; ".join(parts)


def _unlike(rows: Sequence[Row], metric: Metric) -> Iterator[str]:
    """A latency says little between policies that complete unlike numbers of requests."""
    counts = [each.completed for each in _base(rows).outcomes.values()]
    if metric.unit == "ms" and len(set(counts)) > 1:
        numbers = " and ".join(f"{count:,}" for count in counts)
        yield f"the policies complete {numbers} requests: a latency alone does not rank them; see {GOODPUT}"


def values(rows: Sequence[Row], found: Verdict, metric: Metric, notes: Sequence[str]) -> dict[str, Any]:
    """The same as plain values."""
    base = _base(rows)
    return {
        "metric": metric.name,
        "better": metric.better,
        "winner": found.winner,
        "holds": found.holds,
        "rows": found.rows,
        "turns": list(found.turns),
        "cannot_tell_apart": list(found.open),
        "conclusion": conclusion(found),
        "notes": list(notes),
        "worlds": [
            {
                "world": row.world.name,
                "group": row.world.group,
                "values": {label: each.value for label, each in row.outcomes.items()},
                "completed_requests": {label: each.completed for label, each in row.outcomes.items()},
                "ahead": row.winner,
                "second": row.second,
                "margin_ratio": row.margin,
                "lead": None if row.lead is None else row.lead._asdict(),
                "says": says(row, base),
            }
            for row in rows
        ],
    }


def _base(rows: Sequence[Row]) -> Row:
    return next(row for row in rows if row.world.name == AS_IT_IS)


def idle_words(rows: int) -> str:
    """Why seeds are no rows."""
    return f"{counted(rows, 'seed')} changed nothing: none of these policies draws random numbers"
