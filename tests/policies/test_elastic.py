"""The bundled policy that moves instances between the pools, tick by tick."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from reference.workloads import bundled

from mooncake_bench.api import SetRole
from mooncake_bench.checks.scene import Scene

# TTFT SLO 30 s, TBT SLO 100 ms, VRAM 1,000,000 tokens; a step takes 10 ms + 1 ms a request + 1 us a token
BUSY_PREFILL = Scene(prefill=2, decode=2, queue=[30_000, 15_000], routed=[5000, 4000])  # loads .75 and .0045
BUSY_DECODE = Scene(
    prefill=2, decode=2, queue=[900, 300], batch=[40, 40], context=[40_000, 10_000]
)  # .02, (.9 + .6) / 2
EVEN = Scene(prefill=2, decode=2, queue=[15_000, 15_000], context=[500_000, 300_000])  # .5, .4
LAST_DECODE = Scene(prefill=3, decode=1, queue=[30_000] * 3)


def ticks(scenes: list[Scene], **parameters: Any) -> list[Any]:
    """What the policy wants at each tick."""
    given = "".join(f",{name}={value}" for name, value in parameters.items())
    policy = bundled(f"elastic:{given[1:]}" if given else "elastic")
    policy.start(scenes[0], np.random.default_rng(0))
    return [list(policy.on_tick(scene)) for scene in scenes]


@pytest.mark.parametrize(
    ("scene", "wanted"), [(BUSY_PREFILL, SetRole(3, "prefill")), (BUSY_DECODE, SetRole(1, "decode"))]
)
def test_the_instance_with_the_least_to_do_moves_once_the_loads_differed_for_a_while(scene: Scene, wanted: Any) -> None:
    assert ticks([scene] * 4, patience=3) == [[], [], [wanted], []]


def test_no_other_moves_for_a_while_after_that() -> None:
    moved = ticks([BUSY_PREFILL] * 9, patience=2, pause=4)
    assert [bool(wanted) for wanted in moved] == [False, True, False, False, False, False, True, False, False]


@pytest.mark.parametrize("between", [EVEN, BUSY_DECODE])
def test_a_difference_has_to_last(between: Scene) -> None:
    assert ticks([BUSY_PREFILL, BUSY_PREFILL, between, BUSY_PREFILL, BUSY_PREFILL]) == [[]] * 5


def test_the_last_instance_of_a_pool_stays() -> None:
    assert ticks([LAST_DECODE] * 5) == [[]] * 5
