"""What a gate came to: all its checks, and the exit code that follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mooncake_bench.results.gate.judge import FAIL, INCONCLUSIVE, NO_BASELINE, PASS
from mooncake_bench.results.words import counted

if TYPE_CHECKING:
    from mooncake_bench.results.gate.judge import Check

PASSED, FAILED, NOTHING_TO_CONCLUDE = 0, 1, 3


@dataclass(frozen=True)
class Outcome:
    """A gate's checks, and how they are to be read."""

    checks: tuple[Check, ...]
    base: str  # as the user named it
    new: str
    notices: tuple[str, ...] = ()
    missing_baseline: str | None = None  # "pass", "fail", or None: nothing to conclude
    replays: int = 0  # jittered ones behind each number
    subject: str = "policy"  # what rules are judged on: a policy or a benchmark
    when: str = ""  # when the gate began to judge
    took_s: float = 0.0

    def of(self, *verdicts: str) -> list[Check]:
        """The checks of these verdicts."""
        return [check for check in self.checks if check.verdict in verdicts]

    def fails(self, check: Check) -> bool:
        """Whether a check makes the gate fail: a broken rule, and a missing baseline where that is asked for."""
        return check.verdict == FAIL or (check.verdict == NO_BASELINE and self.missing_baseline == "fail")

    @property
    def exit_code(self) -> int:
        """1 when a rule is broken, 3 when none is but one says nothing, else 0."""
        if any(self.fails(check) for check in self.checks):
            return FAILED
        open_ones = self.of(INCONCLUSIVE) if self.missing_baseline == "pass" else self.of(INCONCLUSIVE, NO_BASELINE)
        return NOTHING_TO_CONCLUDE if open_ones else PASSED

    @property
    def verdict(self) -> str:
        """The whole outcome in a few words."""
        word = {PASSED: "passed", FAILED: "FAILED", NOTHING_TO_CONCLUDE: "nothing to conclude"}[self.exit_code]
        counts = {"failed": FAIL, "inconclusive": INCONCLUSIVE, "without baseline": NO_BASELINE, "passed": PASS}
        shown = ", ".join(f"{len(self.of(verdict))} {name}" for name, verdict in counts.items() if self.of(verdict))
        return f"gate {word}: {counted(len(self.checks), 'check')}, {shown}"
