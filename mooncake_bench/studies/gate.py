"""A gate's setups replayed again with jittered arrivals: how far metrics move by chance, and pairs free of it."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from mooncake_bench import plugins
from mooncake_bench.errors import SetupError
from mooncake_bench.results.gate.rules import exact
from mooncake_bench.results.gate.sides import Jittered, Side
from mooncake_bench.results.metrics import METRICS
from mooncake_bench.sim.replay import SIMULATOR_VERSION, as_replayed
from mooncake_bench.sim.setup import Setup
from mooncake_bench.studies import replays
from mooncake_bench.trace import load
from mooncake_bench.trace.transform import jitter

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from mooncake_bench.results.metric import Metric, Number
    from mooncake_bench.trace import Trace

JITTER_MS = 1.0
PLACED = (  # metrics for which a rule is suggested
    "completed_ratio", "rejected_tokens_ratio", "request_goodput_ratio", "mean_ttft_ms", "p99_ttft_ms", "mean_tbt_ms",
    "p99_tbt_ms", "hit_ratio_tokens",
)  # fmt: skip
TOLERANCES = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)  # %


class Spread(NamedTuple):
    """A metric over jittered replays."""

    metric: Metric
    unjittered: Number
    low: Number
    middle: Number
    high: Number
    relative: float | None  # (high - low) / |middle|


class Prepared(NamedTuple):
    """What a side replays, checked to be what it was."""

    trace: Trace
    setup: Setup


# ---- replaying


def with_jitter(sides: Sequence[Side], count: int, policy_dirs: Sequence[Path] = ()) -> list[Side]:
    """Each side with ``count`` replays of its setup under jittered arrivals; those of the same seed share arrivals.

    What a baseline file has stored is taken from it, the rest is replayed on every core. Raises SetupError for a side
    that is no longer what it was, or whose durations are measured.
    """
    wanted = [None if _stored(side, count) else prepare(side, policy_dirs) for side in sides]
    again = [each for each in wanted if each is not None]
    work = [(each.trace, each.setup, seed, tuple(policy_dirs)) for each in again for seed in range(count)]
    found = iter(replays.spread(_one, work))
    done = []
    for side, each in zip(sides, wanted, strict=True):
        if each is None:
            done.append(_shortened(side, count))
        else:
            done.append(replace(side, jittered=_gathered([next(found) for _ in range(count)])))
    return done


def _stored(side: Side, count: int) -> bool:
    have = side.jittered
    return have is not None and have.replays >= count and have.jitter_ms == JITTER_MS


def _shortened(side: Side, count: int) -> Side:
    """The first ``count`` seeds of what is stored."""
    assert side.jittered is not None
    values = {name: list(each[:count]) for name, each in side.jittered.values.items()}
    return replace(side, jittered=Jittered(count, JITTER_MS, values))


def _gathered(found: Sequence[Mapping[str, Number]]) -> Jittered:
    return Jittered(len(found), JITTER_MS, {name: [each[name] for each in found] for name in found[0]})


def _one(trace: Trace, setup: Setup, seed: int, policy_dirs: Sequence[Path]) -> dict[str, Number]:
    with contextlib.redirect_stdout(sys.stderr):  # what a policy prints is not the answer
        return replays.metrics(replays.whole(jitter(trace, JITTER_MS, seed), setup, policy_dirs=policy_dirs))


# ---- being sure that it is the same replay


def prepare(side: Side, policy_dirs: Sequence[Path] = ()) -> Prepared:
    """Trace and setup of a side. Raises BenchError where its trace, its code or the simulator is no longer the same."""
    setup = Setup.from_dict(_known(side.manifest["setup"]), f"setup of {side.label}")
    if side.measured:
        raise SetupError(f"--jitter: durations of {side.label} were measured (--cost live); repeat its runs instead")
    version = side.manifest.get("simulator_version")
    if version != SIMULATOR_VERSION:
        raise SetupError(
            f"--jitter: {side.label} is from simulator version {version}, and this is {SIMULATOR_VERSION}; "
            "replay it with this version"
        )
    _check_code(side, setup, policy_dirs)
    trace = _trace(side, setup)
    return Prepared(trace, replace(setup, max_requests=None, start_ms=None, end_ms=None))


def _known(setup: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in setup.items() if value is not None}


def _trace(side: Side, setup: Setup) -> Trace:
    """The requests that a side replayed."""
    stored = side.manifest["trace"]
    selected = load(stored["path"], **setup.reading).select(setup.max_requests, setup.start_ms, setup.end_ms)
    found = as_replayed(selected, setup).sha256
    if found != stored["sha256"]:
        raise SetupError(
            f"--jitter: {stored['path']!r} (sha256 {found[:12]}) is not what {side.label} replayed (sha256 "
            f"{stored['sha256'][:12]}); put that trace there"
        )
    return selected


def _check_code(side: Side, setup: Setup, policy_dirs: Sequence[Path]) -> None:
    """A policy is not replayed with other code than it had."""
    now = plugins.build(setup.policy, policy_dirs).sources
    then = side.manifest["policy"].get("sources") or {}
    changed = {Path(file).name for file, digest in now.items() if then and digest not in then.values()}
    if changed:
        raise SetupError(
            f"--jitter: policy file {min(changed)} is not what {side.label} used, so it cannot be replayed again; keep "
            "the values of that code in a baseline: gate --write-baseline FILE RUN --jitter N"
        )


# ---- what to expect by chance


def spreads(side: Side) -> list[Spread]:
    """Every metric with a better side, and how far it moves under jitter."""
    return list(_spreads(side))


def _spreads(side: Side) -> Iterator[Spread]:
    assert side.jittered is not None
    for metric in METRICS:
        values = side.jittered.values.get(metric.name, ())
        if metric.better == "none" or not values:
            continue
        known = [value for value in values if value is not None]
        unjittered = side.samples[metric.name].value
        if len(known) < len(values):
            yield Spread(metric, unjittered, None, None, None, None)
            continue
        low, middle, high = min(known), median(known), max(known)
        relative = float((exact(high) - exact(low)) / abs(exact(middle))) if middle else None
        yield Spread(metric, unjittered, low, middle, high, relative)


def suggested(found: Collection[Sequence[Spread]]) -> list[str]:
    """A rule for each of the usual metrics, as wide as chance makes it over all policies, rounded up.

    A metric that is 0 or undefined in some policy gets none, for there is no part of nothing.
    """
    rules = []
    for name in PLACED:
        widths = [spread.relative for spreads in found for spread in spreads if spread.metric.name == name]
        known = [width for width in widths if width is not None]
        if known and len(known) == len(widths):
            rules.append(f"{name}:{_rounded_up(100 * max(known)):g}%")
    return rules


def _rounded_up(percent: float) -> float:
    """The next of a few round tolerances; 0 stays 0."""
    return next((each for each in (0, *TOLERANCES) if each >= percent), percent)
