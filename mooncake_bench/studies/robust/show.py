"""Whether a conclusion survives, for people and programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mooncake_bench.report.sheets import Report, Sheet
from mooncake_bench.results.words import DASH, counted, ms, rate, share, significant
from mooncake_bench.studies.robust.run import GOODPUT, OPEN, PAIRED, SAME, TURNS, says
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
        pa.field("lead", pa.float64()),
        pa.field("lead_low", pa.float64()),
        pa.field("lead_high", pa.float64()),
        pa.field("says", pa.string(), nullable=False),
    ]
)
"""One row a policy in a world; lead: of who is ahead over the next, with its 95 % interval, in the metric's unit."""


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
                **_lead(row, label),
                "says": says(row, base),
            }


def _lead(row: Row, label: str) -> dict[str, float | None]:
    found = row.lead if label == row.winner else None
    numbers = (None, None, None) if found is None else tuple(found)
    return dict(zip(("lead", "lead_low", "lead_high"), numbers, strict=True))


def report(rows: Sequence[Row], found: Verdict, metric: Metric, notes: Sequence[str]) -> Report:
    """A row a world, and what they say together."""
    base, labels = _base(rows), list(rows[0].outcomes)
    show = SHOW.get(metric.unit, significant)
    headers = ("", *labels, "ahead", "by", "says")
    cells = tuple(tuple(_cells(row, base, labels, show, metric)) for row in rows)
    unit = "" if metric.unit == "ratio" else f" [{metric.unit}]"
    about = f"{metric.name}{unit}, {metric.better} is better; by: over the next best"
    how = "told apart: by a block bootstrap over time, paired by request" if metric.name in PAIRED else "by value alone"
    sheet = Sheet("Does it survive?", headers, cells, (f"{about}; {how}",))
    return Report((conclusion(found, metric),), (sheet,), (*_unlike(rows, metric), *notes))


def _cells(
    row: Row, base: Row, labels: Sequence[str], show: Callable[[float | None], str], metric: Metric
) -> Iterator[str]:
    yield row.world.name
    yield from (show(row.outcomes[label].value) for label in labels)
    yield row.winner or DASH
    yield _margin(row, metric)
    yield "" if row is base and row.told else says(row, base)


def _margin(row: Row, metric: Metric) -> str:
    """How far ahead: a share in points of a per cent, for its relative change would be read as such."""
    if row.winner is None or row.second is None:
        return DASH
    first, second = (row.outcomes[label].value for label in (row.winner, row.second))
    if metric.unit == "ratio" and first is not None and second is not None:
        return f"{100 * abs(first - second):.1f} points"
    return DASH if row.margin is None else f"{100 * abs(row.margin):.1f} %"


def conclusion(found: Verdict, metric: Metric) -> str:
    """The verdict as a sentence."""
    if found.winner is None:
        return "as it is, the best two cannot be told apart: there is no conclusion to test"
    alone = "" if metric.name in PAIRED else ", by value alone"
    parts = [f"{found.winner} is ahead{alone}: holds in {found.holds} of {found.rows} other rows"]
    for word, names in ((TURNS, found.turns), (OPEN, found.open), (f"{SAME}, not counted", found.same)):
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
        "the_same": list(found.same),
        "conclusion": conclusion(found, metric),
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
