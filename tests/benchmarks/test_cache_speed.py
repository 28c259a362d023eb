"""How fast cache analysis is: the whole LRU curve, one policy at one capacity, the bound at five.

Process time of one core, the least of a few rounds: what a busy machine adds is not ours.
"""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mooncake_bench.cache import lru_curve, optimum, simulate
from mooncake_bench.plugins import discover
from mooncake_bench.trace import Trace, load

if TYPE_CHECKING:
    from collections.abc import Callable

TRACE = Path(__file__).resolve().parents[3] / "shared" / "traces" / "mooncake-fast25" / "conversation_trace.jsonl"
ROUNDS = 5

pytestmark = [
    pytest.mark.benchmark,
    pytest.mark.skipif(not TRACE.is_file(), reason=f"{TRACE.name} is not in ../shared"),
]


@pytest.fixture(scope="module")
def conversation() -> Trace:
    """288,500 block references."""
    return load(TRACE)


def least_seconds(benchmark: Any, work: Callable[[], Any]) -> float:
    """Process time of the fastest round, garbage collected before each; shown with ``-s``."""
    times = []

    def timed() -> None:
        gc.collect()
        began = time.process_time()
        work()
        times.append(time.process_time() - began)

    benchmark.pedantic(timed, rounds=ROUNDS)
    benchmark.extra_info |= {"least_process_seconds": min(times)}
    print(f"\n{min(times):.3f} s")
    return min(times)


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_the_whole_lru_curve_takes_a_second_or_less(benchmark: Any, conversation: Trace, order: Any) -> None:
    assert least_seconds(benchmark, lambda: lru_curve(conversation, touch_order=order)) <= 1.0


@pytest.mark.parametrize("spec", sorted(name for name, policy in discover().items() if "eviction" in policy.kinds))
def test_one_policy_at_one_capacity_takes_half_a_second_or_less(benchmark: Any, conversation: Trace, spec: str) -> None:
    """5,859 blocks hold 3 million tokens; every eviction that is bundled."""
    assert least_seconds(benchmark, lambda: simulate(conversation, spec, 5859)) <= 0.5


@pytest.mark.parametrize("capacity", [1000, 30_000])
@pytest.mark.parametrize("spec", ["lru", "lfu:counts=perfect", "length-aware"])
def test_the_papers_policies_do_so_at_small_and_large_capacities(
    benchmark: Any, conversation: Trace, spec: str, capacity: int
) -> None:
    assert least_seconds(benchmark, lambda: simulate(conversation, spec, capacity)) <= 0.5


def test_the_bound_at_five_capacities_takes_five_seconds_or_less(benchmark: Any, conversation: Trace) -> None:
    def five() -> None:
        for capacity in (1000, 5859, 10_000, 30_000, 50_000):
            optimum(conversation, capacity)

    assert least_seconds(benchmark, five) <= 5.0
