"""A gate's outcome as GitHub workflow commands: a line an annotation, whatever letters names hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_bench.report.gate_sheets import why
from mooncake_bench.results.gate.judge import PASS
from mooncake_bench.results.words import clean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mooncake_bench.results.gate.outcome import Outcome


def workflow_commands(outcome: Outcome) -> str:
    """``::error`` for each broken rule, ``::warning`` for what says nothing; empty where all passed."""
    return "".join(f"{line}\n" for line in _lines(outcome))


def _lines(outcome: Outcome) -> Iterator[str]:
    for check in outcome.checks:
        if check.verdict != PASS:
            level = "error" if outcome.fails(check) else "warning"
            title = _property(f"gate: {outcome.subject} {check.policy}")
            yield f"::{level} title={title}::{_message(f'{check.verdict}: {why(check)}')}"


def _message(text: str) -> str:
    return clean(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
