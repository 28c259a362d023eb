"""A gate's outcome as tables of text, JSON and CSV: every check with its numbers, every breach with its reason."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

from mooncake_bench.report.sheets import Report, Sheet
from mooncake_bench.results.gate import judge
from mooncake_bench.results.gate.judge import FAIL, PASS
from mooncake_bench.results.gate.rules import Bound, rounded
from mooncake_bench.results.words import DASH, counted, csv_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from fractions import Fraction

    from mooncake_bench.results.gate.judge import Check
    from mooncake_bench.results.gate.outcome import Outcome
    from mooncake_bench.results.metric import Number

HEADERS = ("rule: fails when", "BASE", "NEW", "change", "verdict")
COLUMNS = (
    "policy", "rule", "metric", "unit", "better", "base", "new", "change", "relative_change", "p_value", "verdict",
    "reason",
)  # fmt: skip


def report(outcome: Outcome) -> Report:
    """A table a policy, broken rules explained below it."""
    head = [f"{outcome.verdict}", f"BASE {outcome.base}", f"NEW  {outcome.new}"]
    if outcome.replays:
        head.append(
            f"numbers are medians of {counted(outcome.replays, 'replay')} with arrivals jittered by 1 ms; change: the "
            "median over pairs of the same arrivals"
        )
    groups: dict[str, list[Check]] = {}
    for check in outcome.checks:
        groups.setdefault(check.policy, []).append(check)
    sheets = tuple(_sheet(outcome.subject, label, checks) for label, checks in groups.items())
    return Report(tuple(head), sheets, outcome.notices)


def _sheet(subject: str, label: str, checks: Sequence[Check]) -> Sheet:
    failed = sum(check.verdict == FAIL for check in checks)
    title = f"{subject} {label}: " + (f"{failed} of {counted(len(checks), 'rule')} failed" if failed else _kind(checks))
    notes = [f"{check.verdict.upper() if check.verdict == FAIL else check.verdict}: {why(check)}" for check in checks]
    told = [note for note, check in zip(notes, checks, strict=True) if check.verdict != PASS]
    return Sheet(title, HEADERS, tuple(_row(check) for check in checks), tuple(dict.fromkeys(told)))


def _kind(checks: Sequence[Check]) -> str:
    return "passed" if all(check.verdict == PASS for check in checks) else "nothing to conclude"


def _row(check: Check) -> tuple[str, ...]:
    verdict = "FAIL" if check.verdict == FAIL else check.verdict
    limit = rounded(check.rule.limit) if isinstance(check.rule, Bound) else None
    base, new = number(check.base, check.new, limit), number(check.new, check.base, limit)
    return (check.rule.text, base, new, change(check), verdict)


def why(check: Check) -> str:
    """What a check that did not pass says, with its rule."""
    return f"{check.rule.text}: {check.reason}"


def number(value: Number, *others: Number) -> str:
    """A number as reasons show it, apart from others that it is not; an undefined one is a dash."""
    return DASH if value is None else judge.number(value, *others)


def change(check: Check) -> str:
    """The change as its rule measures it; a bound measures none."""
    move = check.move
    if move is None or isinstance(check.rule, Bound):
        return DASH
    if not move.change:
        return "0"
    if check.rule.relative and move.relative is not None:
        return f"{_signed(100 * move.relative)} %"
    return _signed(move.change)


def _signed(change: Fraction) -> str:
    """Three digits that count: 0 only when it is exactly that."""
    value = rounded(change)
    if value is None or not 1000 <= abs(value) < 1e15:
        return f"{'-' if change < 0 else '+'}{judge.part(abs(change))}"
    return f"{value:+,.0f}"


# ---- for programs


def gate_json(outcome: Outcome, *, ascii_only: bool = False) -> str:
    """Strict JSON: undefined is null."""
    answer = {
        "verdict": {0: "passed", 1: "failed", 3: "nothing to conclude"}[outcome.exit_code],
        "exit_code": outcome.exit_code,
        "base": outcome.base,
        "new": outcome.new,
        "jittered_replays": outcome.replays,
        "checks": [fields(check) for check in outcome.checks],
        "notices": list(outcome.notices),
    }
    return json.dumps(answer, indent=2, ensure_ascii=ascii_only, allow_nan=False) + "\n"


def gate_csv(outcome: Outcome) -> str:
    """One line a check, numbers in full."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_csv_row(check) for check in outcome.checks)
    return out.getvalue()


def _csv_row(check: Check) -> Iterator[Any]:
    for value in fields(check).values():
        yield "" if value is None else csv_text(value) if isinstance(value, str) else value


def fields(check: Check) -> dict[str, Any]:
    """A check by column."""
    move, metric = check.move, check.rule.metric
    relative = None if move is None or move.relative is None else rounded(move.relative)
    values = (
        check.policy, check.rule.text, metric.name, metric.unit, metric.better, check.base, check.new,
        None if move is None else rounded(move.change), relative, check.p_value, check.verdict, check.reason or None,
    )  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))
