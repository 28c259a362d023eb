"""Every policy in every world, and who is ahead there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mooncake_bench.results.facts import Facts
from mooncake_bench.results.metrics import BY_NAME
from mooncake_bench.results.run import Run
from mooncake_bench.results.uncertainty import interval, kept
from mooncake_bench.studies import replays
from mooncake_bench.studies.robust.worlds import AS_IT_IS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from mooncake_bench.results.metric import Metric
    from mooncake_bench.results.steps import Floats
    from mooncake_bench.results.uncertainty import Interval
    from mooncake_bench.sim.setup import Setup
    from mooncake_bench.studies.robust.worlds import World

GOODPUT = "request_goodput_ratio"
PAIRED = (GOODPUT, "mean_ttft_ms", "mean_e2e_ms", "mean_tbt_ms")  # metrics that are a mean over requests
HOLDS, TURNS, OPEN = "holds", "turns", "cannot tell apart"
SAME = "the same"  # for the two that are compared: such a row tests nothing
AHEAD = "told apart"  # where there is no conclusion that could hold or turn


class Outcome(NamedTuple):
    """One policy in one world: the metric, how many requests completed, and the metric of each request (nan: none)."""

    value: float | None
    completed: int
    each: Floats | None  # of the requests that count, in order of arrival; None: the metric is no mean over requests


@dataclass(frozen=True)
class Row:
    """One world: what each policy got, by label; who is ahead, of whom and by how much.

    ``winner`` is None where nobody is ahead; ``lead`` is of the metric's mean, positive, with its interval where the
    metric is one of :data:`PAIRED`.
    """

    world: World
    outcomes: Mapping[str, Outcome]
    winner: str | None
    second: str | None
    lead: Interval | None
    margin: float | None  # the winner's value over the second's, minus 1
    told: bool  # whether the winner can be told from the second


def study(
    contenders: Mapping[str, Setup],
    worlds: Sequence[World],
    metric: Metric,
    policy_dirs: Sequence[Path] = (),
    watch: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """A row a world. Raises what a replay raises."""
    jobs = [(world, setup, metric.name, tuple(policy_dirs)) for world in worlds for setup in contenders.values()]
    done = iter(replays.spread(_outcome, jobs, watch))
    return [_row(world, {label: next(done) for label in contenders}, metric) for world in worlds]


def _outcome(world: World, setup: Setup, metric: str, policy_dirs: Sequence[Path]) -> Outcome:
    replay = replays.whole(world.trace, world.setup(setup), policy_dirs=policy_dirs, cost=world.cost(setup))
    run = Run.from_replay(replay)
    facts = Facts(run.manifest, run)
    each = None
    if metric == GOODPUT:
        each = kept(run)[facts.counted].astype(np.float64)
    elif metric in PAIRED:
        each = np.where(facts.completed, facts.column(metric.removeprefix("mean_")), np.nan)
    value = BY_NAME[metric].of(facts).value
    return Outcome(None if value is None else float(value), int(facts.completed.sum()), each)


def _row(world: World, outcomes: Mapping[str, Outcome], metric: Metric) -> Row:
    sign = 1 if metric.better == "higher" else -1
    known = {label: each.value for label, each in outcomes.items() if each.value is not None}
    ordered = sorted(known, key=lambda label: -sign * known[label])
    if len(ordered) < 2 or known[ordered[0]] == known[ordered[1]]:
        return Row(world, outcomes, None, None, None, None, told=False)
    first, second = ordered[:2]
    lead = _lead(outcomes[first], outcomes[second], sign)
    margin = known[first] / known[second] - 1 if known[second] else None
    return Row(world, outcomes, first, second, lead, margin, told=lead is None or lead.sign == 1)


def _lead(first: Outcome, second: Outcome, sign: int) -> Interval | None:
    if first.each is None or second.each is None:
        return None
    change = sign * (first.each - second.each)
    return interval(change[~np.isnan(change)])


class Verdict(NamedTuple):
    """What the rows say together: in how many the winner as it is wins again, and where not.

    ``rows`` counts those that test something: not the one as it is, and not ``same``, where what differs changes
    nothing for the best two.
    """

    winner: str | None  # None: nobody is ahead as it is, or it cannot be told
    holds: int
    turns: tuple[str, ...]  # worlds with another winner that can be told
    open: tuple[str, ...]  # worlds where it cannot be told
    same: tuple[str, ...]
    rows: int


def verdict(rows: Sequence[Row]) -> Verdict:
    """Over all rows but the one as it is."""
    base = next(row for row in rows if row.world.name == AS_IT_IS)
    words = {row.world.name: says(row, base) for row in rows if row is not base}
    named = {word: tuple(name for name, said in words.items() if said == word) for word in (HOLDS, TURNS, OPEN, SAME)}
    winner = base.winner if base.told else None
    tests = len(words) - len(named[SAME])
    return Verdict(winner, len(named[HOLDS]), named[TURNS], named[OPEN], named[SAME], tests)


def says(row: Row, base: Row) -> str:
    """What a row says of the conclusion drawn as it is."""
    compared = [label for label in (base.winner, base.second) if label is not None] or list(base.outcomes)
    if row is not base and all(_same(row.outcomes[label], base.outcomes[label]) for label in compared):
        return SAME
    if row.winner is None or not row.told:
        return OPEN
    if not base.told:
        return AHEAD
    return HOLDS if row.winner == base.winner else TURNS


def without_idle(rows: Sequence[Row], group: str) -> tuple[list[Row], bool]:
    """Rows without those of a group that changed nothing for any policy; and whether some went."""
    base = next(row for row in rows if row.world.name == AS_IT_IS)

    def idle(row: Row) -> bool:
        pairs = ((each, base.outcomes[label]) for label, each in row.outcomes.items())
        return row.world.group == group and all(_same(ours, theirs) for ours, theirs in pairs)

    left = [row for row in rows if not idle(row)]
    return left, len(left) < len(rows)


def _same(ours: Outcome, theirs: Outcome) -> bool:
    alike = ours.each is None or theirs.each is None or np.array_equal(ours.each, theirs.each, equal_nan=True)
    return alike and ours[:2] == theirs[:2]
