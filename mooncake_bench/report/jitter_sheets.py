"""How far each metric moves when arrivals are jittered, and the rules that this suggests."""

from __future__ import annotations

import csv
import io
import json
import shlex
from typing import TYPE_CHECKING, Any

from mooncake_bench.report.sheets import Report, Sheet
from mooncake_bench.results.words import DASH, counted, csv_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mooncake_bench.results.gate.spread import Spread
    from mooncake_bench.results.metric import Number

HEADERS = ("metric", "as it is", "lowest", "highest", "range")
COLUMNS = ("policy", "metric", "unit", "better", "unjittered", "low", "median", "high", "relative_range")


def report(spreads: Mapping[str, Sequence[Spread]], replays: int) -> Report:
    """A table a policy, of the metrics that are something."""
    head = (
        f"{counted(replays, 'replay')} of each policy with every arrival moved by at most 1 ms, seeds from 0",
        "lowest, highest: of these and the run as it is; range: (highest - lowest) / median of these: what chance does "
        "to a single replay",
    )
    return Report(head, tuple(_sheet(label, found) for label, found in spreads.items()), ())


def _sheet(label: str, found: Sequence[Spread]) -> Sheet:
    shown = [each for each in found if each.low != each.high or each.high]
    left = len(found) - len(shown)
    notes = (f"not shown: {counted(left, 'metric')}, always 0 or somewhere undefined",) if left else ()
    return Sheet(f"policy {label}", HEADERS, tuple(map(_row, shown)), notes)


def command(rules: Sequence[str]) -> str:
    """The suggested rules as a command to paste; empty where there are none."""
    return " \\\n".join(["mooncake-bench gate BASE NEW", *(f"  --fail-if {shlex.quote(rule)}" for rule in rules)])


def _row(spread: Spread) -> tuple[str, ...]:
    return (spread.metric.name, *map(_number, (spread.unjittered, spread.low, spread.high)), _percent(spread.relative))


def _number(value: Number) -> str:
    return DASH if value is None else f"{value:,.5g}" if abs(value) < 1e5 else f"{value:,.0f}"


def _percent(part: float | None) -> str:
    if not part:
        return DASH if part is None else "0 %"
    return f"{100 * part:,.0f} %" if part >= 1 else f"{100 * part:.3g} %"


def spread_json(spreads: Mapping[str, Sequence[Spread]], rules: Sequence[str], replays: int, ascii_only: bool) -> str:
    """Strict JSON: undefined is null."""
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in _fields(spreads)]
    answer: dict[str, Any] = {"jittered_replays": replays, "jitter_ms": 1.0, "suggested": list(rules), "metrics": rows}
    return json.dumps(answer, indent=2, ensure_ascii=ascii_only, allow_nan=False) + "\n"


def spread_csv(spreads: Mapping[str, Sequence[Spread]]) -> str:
    """One line a metric of a policy."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for label, *values in _fields(spreads):
        writer.writerow([csv_text(label), *("" if value is None else value for value in values)])
    return out.getvalue()


def _fields(spreads: Mapping[str, Sequence[Spread]]) -> Iterator[tuple[Any, ...]]:
    for label, found in spreads.items():
        for each in found:
            metric = each.metric
            yield (
                label, metric.name, metric.unit, metric.better, each.unjittered, each.low, each.middle, each.high,
                each.relative,
            )  # fmt: skip
