"""What it means that a replay keeps its SLOs.

Shares are of the requests offered after the warm-up: one that was rejected, failed, or had not ended keeps nothing. So
a percentile rule cannot be met by turning requests away, as a percentile over the completed ones could: "p90 TTFT
within 30 s" is "90 % of the offered requests have their first token within 30 s".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from mooncake_bench.errors import NothingToConclude
from mooncake_bench.results.facts import Facts
from mooncake_bench.results.metrics import BY_NAME
from mooncake_bench.results.run import Run

if TYPE_CHECKING:
    from mooncake_bench.results.steps import Bools
    from mooncake_bench.sim.replay import Replay

BY = ("request", "slo")


class Kept(NamedTuple):
    """Of one replay: how many requests counted, how many a second arrived, and the shares that kept their SLOs.

    ``both`` is FAST'25's effective request capacity: effective requests over all. ``offered_rps`` is None where all
    arrived at once.
    """

    offered: int
    offered_rps: float | None
    both: float
    ttft: float
    tbt: float
    completed: float


@dataclass(frozen=True)
class Rule:
    """``by`` request: so many requests keep all their SLOs. ``by`` slo: of each SLO, so many requests keep it.

    The first is FAST'25's and DistServe's attainment, the second v3's and Splitwise's percentiles, one a metric.
    """

    attain: float = 0.9
    by: str = "request"

    def holds(self, kept: Kept) -> bool:
        """Whether a replay is within the rule."""
        if self.by == "request":
            return kept.both >= self.attain
        return min(kept.ttft, kept.tbt) >= self.attain

    def broken(self, kept: Kept) -> str:
        """Which SLO is missed too often: ``TTFT``, ``TBT``, both, or their combination."""
        words = [name for name, share in (("TTFT", kept.ttft), ("TBT", kept.tbt)) if share < self.attain]
        return " and ".join(words) or ("" if self.holds(kept) else "TTFT or TBT")

    def words(self, slos: str) -> str:
        """The rule as a sentence's end."""
        share = f"{100 * self.attain:g} % of offered requests"
        return f"{share} keep {slos}" if self.by == "request" else f"{share} keep each of {slos}"


def judge(replay: Replay) -> Kept:
    """The shares of one replay. Raises NothingToConclude when no request counts."""
    run = Run.from_replay(replay)
    facts = Facts(run.manifest, run)
    if not facts.offered:
        raise NothingToConclude("no request arrives after the warm-up, so there is nothing to judge")
    done = facts.completed

    def share(where: Bools) -> float:
        return float(where.sum()) / facts.offered

    return Kept(
        offered=facts.offered,
        offered_rps=BY_NAME["offered_rps"].of(facts).value,
        both=share(done & facts.true("slo_ok")),
        ttft=share(done & facts.true("slo_ttft_ok")),
        tbt=share(done & (facts.true("slo_tbt_ok") | ~facts.known("slo_tbt_ok"))),  # no gap, nothing to keep
        completed=share(done),
    )
