"""The engine against the step-by-step reference, on random small worlds: equal to the picosecond, and in every view.

``MOONCAKE_BENCH_EXAMPLES=5000 pytest tests/test_sim_differential.py`` tries other worlds, and more of them.
"""

from __future__ import annotations

import os
from typing import Any
from unittest import mock

from hypothesis import HealthCheck, given, settings
from reference import fast, simulate
from reference.watch import watch
from reference.workloads import World, worlds

from mooncake_bench.sim import state

EXAMPLES = int(os.environ.get("MOONCAKE_BENCH_EXAMPLES", "300"))
COUNTED = ("fetches", "fetched_bytes", "evictions", "refused_blocks", "steps")


def outcome(engine: Any, world: World) -> tuple[Any, list[tuple[Any, ...]]]:
    """The result of a world, and everything that its policies saw and answered."""
    router, admission, eviction = world.policies()
    log: list[tuple[Any, ...]] = []
    for policy in (router, admission):
        watch(policy, log, world.also)
    args = world.requests, world.prefill, world.decode, world.make_cost(), router, admission, eviction
    return engine(*args, **world.options), log


def differences(world: World) -> list[str]:
    """What the two engines disagree on, in words; views first, because what follows from them comes later."""
    (slow, seen), (quick, also_seen) = outcome(simulate, world), outcome(fast.simulate, world)
    found = []
    for number, (one, other) in enumerate(zip(seen, also_seen, strict=False)):
        if one != other:
            views = [(k, v, other[3].get(k)) for k, v in one[3].items() if v != other[3].get(k)]
            found.append(f"call {number}: {one[:3]} -> {one[4]}, fast {other[:3]} -> {other[4]}; views {views}")
            break
    if len(seen) != len(also_seen):
        found.append(f"{len(seen)} calls, fast {len(also_seen)}")
    for row, (one, other) in enumerate(zip(slow.requests, quick.requests, strict=True)):
        found += [f"row {row} {k}: {v!r}, fast {other[k]!r}" for k, v in one.items() if repr(v) != repr(other[k])]
    for row, (times, others) in enumerate(zip(slow.token_times_ps, quick.token_times_ps, strict=True)):
        if times != others:
            found.append(f"row {row} tokens: {times}, fast {others}")
    for name in COUNTED:
        if slow.counters[name] != quick.counters[name]:
            found.append(f"{name}: {slow.counters[name]}, fast {quick.counters[name]}")
    return found


def try_many(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize="MOONCAKE_BENCH_EXAMPLES" not in os.environ,
        suppress_health_check=list(HealthCheck),
    )


@try_many(EXAMPLES)
@given(worlds())
def test_both_engines_agree_on_everything(world: World) -> None:
    assert differences(world) == []


@try_many(max(1, EXAMPLES // 5))
@given(worlds())
def test_the_columns_of_large_clusters_show_the_same(world: World) -> None:
    with mock.patch.object(state, "FEW", 0):  # up to so many busy instances are read one by one
        assert differences(world) == []
