"""A gate's setups replayed again with jittered arrivals, the same for both sides."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mooncake_bench import plugins
from mooncake_bench.errors import SetupError
from mooncake_bench.results.gate.sides import Jittered, Side
from mooncake_bench.sim.replay import SIMULATOR_VERSION, as_replayed
from mooncake_bench.sim.setup import Setup
from mooncake_bench.studies import replays
from mooncake_bench.trace import load
from mooncake_bench.trace.transform import jitter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mooncake_bench.results.metric import Number
    from mooncake_bench.trace import Trace

JITTER_MS = 1.0


class Prepared(NamedTuple):
    """What a side replays, checked to be what it was."""

    trace: Trace
    setup: Setup

    @property
    def key(self) -> tuple[str, Setup]:
        """What a replay depends on; the code is the same, for it has been checked."""
        return self.trace.sha256, self.setup


# ---- replaying


def with_jitter(sides: Sequence[Side], count: int, policy_dirs: Sequence[Path] = ()) -> list[Side]:
    """Each side with ``count`` replays of its setup under jittered arrivals; those of the same seed share arrivals.

    What a baseline file has stored is taken from it, the rest is replayed on every core. Raises SetupError for a side
    that is no longer what it was, or whose durations are measured.
    """
    wanted = [None if _stored(side, count) else prepare(side, policy_dirs) for side in sides]
    again = {each.key: each for each in wanted if each is not None}  # the same on both sides is replayed once
    work = [(each.trace, each.setup, seed, tuple(policy_dirs)) for each in again.values() for seed in range(count)]
    found = replays.spread(_one, work) if work else []
    by_key = {key: _gathered(found[i * count : (i + 1) * count]) for i, key in enumerate(again)}
    return [
        _shortened(side, count) if each is None else replace(side, jittered=by_key[each.key])
        for side, each in zip(sides, wanted, strict=True)
    ]


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
