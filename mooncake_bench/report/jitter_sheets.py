"""How far each metric moves when arrivals are jittered, and the rules that this suggests."""

from __future__ import annotations

import csv
import io
import json
import shlex
from typing import TYPE_CHECKING, Any

from mooncake_bench.report.gate_sheets import number
from mooncake_bench.report.markup import csv_text
from mooncake_bench.report.sheets import Report, Sheet
from mooncake_bench.results.words import DASH, counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mooncake_bench.studies.gate import Spread

HEADERS = ("metric", "as it is", "lowest", "median", "highest", "range")
COLUMNS = ("policy", "metric", "unit", "better", "unjittered", "low", "median", "high", "relative_range")


def report(spreads: Mapping[str, Sequence[Spread]], rules: Sequence[str], replays: int) -> Report:
    """A table a policy; the suggested rules as they are pasted."""
    head = (
        f"{counted(replays, 'replay')} of each policy with every arrival moved by at most 1 ms, seeds from 0",
        "range: (highest - lowest) / median; what a single replay may change by chance",
    )
    sheets = [Sheet(f"policy {label}", HEADERS, tuple(map(_row, found))) for label, found in spreads.items()]
    notices = (f"suggested, as wide as that range: {flags(rules)}",) if rules else ("no rule can be suggested",)
    return Report(head, tuple(sheets), notices)


def flags(rules: Sequence[str]) -> str:
    """Rules as options that a shell reads."""
    return " ".join(f"--fail-if {shlex.quote(rule)}" for rule in rules)


def _row(spread: Spread) -> tuple[str, ...]:
    values = (spread.unjittered, spread.low, spread.middle, spread.high)
    return (spread.metric.name, *map(number, values), _percent(spread.relative))


def _percent(part: float | None) -> str:
    return DASH if part is None else "0 %" if not part else f"{100 * part:.3g} %"


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
