"""The highest load of each policy and cluster, over seeds.

Seed 0 is the trace as it is. Every other seed moves each arrival by up to 1 ms and draws the policies' random numbers
anew, the same for all: near saturation a replay is fragile, and the spread over seeds says how much.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from mooncake_bench.studies import replays
from mooncake_bench.studies.capacity.rule import judge
from mooncake_bench.studies.capacity.search import Bracket, loads
from mooncake_bench.studies.rounds import together
from mooncake_bench.trace.transform import jitter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from mooncake_bench.hardware.cost import CostModel
    from mooncake_bench.sim.setup import Setup
    from mooncake_bench.studies.capacity.rule import Kept, Rule
    from mooncake_bench.trace import Trace

JITTER_MS = 1.0
NARROW = 1.03  # first step from the load that another seed found


class Point(NamedTuple):
    """A replay: of which contender, at which seed, load and cluster."""

    contender: str
    seed: int
    speedup: float
    cluster: str


@dataclass(frozen=True)
class Limits:
    """Where loads are looked for, and how exactly."""

    start: float = 1.0
    tolerance: float = 0.02
    least: float = 1 / 64
    most: float = 64.0
    seeds: int = 1


@dataclass
class Bench:
    """Judges replays of one trace; each point once, those of a round on every core."""

    trace: Trace
    contenders: Mapping[str, Setup]
    rule: Rule
    policy_dirs: Sequence[Path] = ()
    cost: Callable[[Setup], CostModel] | None = None
    watch: Callable[[int], None] = lambda _: None
    judged: dict[Point, Kept] = field(default_factory=dict)

    def holds(self, points: Sequence[Point]) -> list[bool]:
        """Whether the rule holds at each point."""
        self._replay([point for point in dict.fromkeys(points) if point not in self.judged])
        return [self.rule.holds(self.judged[point]) for point in points]

    def _replay(self, points: Sequence[Point]) -> None:
        if not points:
            return
        jobs = [(self._trace(point.seed), self._setup(point), tuple(self.policy_dirs), self.cost) for point in points]
        self.judged |= zip(points, replays.spread(_judged, jobs), strict=True)
        self.watch(len(self.judged))

    def _trace(self, seed: int) -> Trace:
        return self.trace if seed == 0 else jitter(self.trace, JITTER_MS, seed)

    def _setup(self, point: Point) -> Setup:
        setup = self.contenders[point.contender]
        return replace(setup, speedup=point.speedup, cluster=point.cluster, seed=setup.seed + point.seed)


def _judged(trace: Trace, setup: Setup, policy_dirs: Sequence[Path], cost: Callable[[Setup], CostModel] | None) -> Kept:
    own: dict[str, Any] = {} if cost is None else {"cost": cost(setup)}
    return judge(replays.whole(trace, setup, policy_dirs=policy_dirs, **own))


@dataclass(frozen=True)
class Capacity:
    """What was found of one contender: a bracket a seed, and what the replays at its ends kept."""

    contender: str
    brackets: tuple[Bracket, ...]
    kept: tuple[Kept | None, ...]  # at each bracket's low end
    above: tuple[Kept | None, ...]  # at its high end

    @property
    def lows(self) -> list[float]:
        """The highest load that holds, of each seed that has one."""
        return [bracket.low for bracket in self.brackets if bracket.low is not None]

    @property
    def seed(self) -> int:
        """The seed whose load is the median, of an even number the lower; the first where some seed has none."""
        if len(self.lows) < len(self.brackets):
            return 0
        return sorted(range(len(self.brackets)), key=lambda seed: self.lows[seed])[(len(self.brackets) - 1) // 2]

    @property
    def speedup(self) -> float | None:
        """The load of that seed; None where the rule held at no load of some seed."""
        return self.lows[self.seed] if len(self.lows) == len(self.brackets) else None

    @property
    def bounded(self) -> bool:
        """Whether a load was found that is too much, at every seed."""
        return all(bracket.high is not None for bracket in self.brackets)


def capacities(bench: Bench, limits: Limits) -> list[Capacity]:
    """The highest load of each contender. Raises what a replay raises."""
    first = _search(bench, {(name, 0): (limits.start, None) for name in bench.contenders}, limits)
    later = {
        (name, seed): (first[name, 0].low or limits.start, NARROW)
        for name in bench.contenders
        for seed in range(1, limits.seeds)
    }
    found = first | _search(bench, later, limits)
    return [_capacity(bench, name, [found[name, seed] for seed in range(limits.seeds)]) for name in bench.contenders]


def _search(
    bench: Bench, starts: Mapping[tuple[str, int], tuple[float, float | None]], limits: Limits
) -> dict[tuple[str, int], Bracket]:
    """A search for each contender and seed, from its own start and first step."""
    searches = {
        key: loads(start, limits.tolerance, limits.least, limits.most, *([step] if step else []))
        for key, (start, step) in starts.items()
    }

    def answer(asked: list[tuple[tuple[str, int], float]]) -> list[bool]:
        return bench.holds([_at(bench, name, seed, load) for (name, seed), load in asked])

    return together(searches, answer)


def _at(bench: Bench, name: str, seed: int, load: float) -> Point:
    return Point(name, seed, load, bench.contenders[name].cluster)


def _capacity(bench: Bench, name: str, brackets: Sequence[Bracket]) -> Capacity:
    def at(seed: int, load: float | None) -> Kept | None:
        return None if load is None else bench.judged[_at(bench, name, seed, load)]

    kept = tuple(at(seed, bracket.low) for seed, bracket in enumerate(brackets))
    above = tuple(at(seed, bracket.high) for seed, bracket in enumerate(brackets))
    return Capacity(name, tuple(brackets), kept, above)
