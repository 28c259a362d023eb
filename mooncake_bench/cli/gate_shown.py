"""A gate's answers in every format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_bench.cli.listing import render_report
from mooncake_bench.cli.output import screen
from mooncake_bench.report import gate_sheets, jitter_sheets
from mooncake_bench.report.letters import shows_all

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mooncake_bench.results.gate.outcome import Outcome
    from mooncake_bench.results.gate.spread import Spread


def shown_outcome(outcome: Outcome, fmt: str) -> str:
    """Every check."""
    if fmt == "json":
        return gate_sheets.gate_json(outcome, ascii_only=_ascii_only())
    return gate_sheets.gate_csv(outcome) if fmt == "csv" else render_report(gate_sheets.report(outcome), fmt)


def shown_spreads(spreads: Mapping[str, Sequence[Spread]], rules: Sequence[str], replays: int, fmt: str) -> str:
    """Every metric's spread, and the suggested rules."""
    if fmt == "json":
        return jitter_sheets.spread_json(spreads, rules, replays, _ascii_only())
    if fmt == "csv":
        return jitter_sheets.spread_csv(spreads)
    return render_report(jitter_sheets.report(spreads, replays), fmt) + (_to_paste(rules, fmt) if rules else "")


def _to_paste(rules: Sequence[str], fmt: str) -> str:
    lines = ["Rules as wide as the widest of these ranges, rounded up:", "", *jitter_sheets.command(rules).splitlines()]
    if fmt == "markdown":
        lines[1:] = ["", "```sh", *lines[2:], "```"]
    return "\n" + "".join(f"{'% ' if fmt == 'latex' else ''}{line}".rstrip() + "\n" for line in lines)


def _ascii_only() -> bool:
    return not shows_all(screen()["encoding"])
