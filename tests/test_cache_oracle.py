"""The numbers of the published oracle files, as exact integers: of the slow ones a third in a plain run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from thorough import spread

from mooncake_bench.cache import Point, belady, lru_curve, optimum, simulate, study
from mooncake_bench.trace import Trace, load

SPECS = {  # the oracle's name: ours
    "lru": "lru",
    "fifo": "fifo",
    "lfu": "lfu",
    "lfu_fifo": "lfu:ties=insertion",
    "lfu_perfect": "lfu:counts=perfect",
    "length_aware": "length-aware",
    "length_aware_p": "length-aware:bias=position",
    "length_aware_keep": "length-aware:bias=keep",
}
CAPACITIES = (1000, 5859, 10000, 30000, 50000, 97656, 100000)
FIG9 = (20, 195, 1953, 5859, 9766, 19531, 97656)
HALF = 12031 // 2

Numbers = dict[str, Any]


@pytest.fixture(scope="module")
def conversation(shared: Path) -> Trace:
    return load(shared / "traces" / "mooncake-fast25" / "conversation_trace.jsonl")


@pytest.fixture(scope="module")
def oracle(shared: Path) -> Numbers:
    found: Numbers = json.loads((shared / "oracles" / "mooncake-conversation.json").read_text(encoding="utf-8"))
    return found


def key(capacity: int | None) -> str:
    return "inf" if capacity is None else str(capacity)


def hits(point: Point) -> tuple[int, int, int]:
    return point.block_hits, point.prefix_blocks, point.prefix_tokens


def published(numbers: Numbers) -> tuple[int, int, int]:
    return numbers["block_hits"], numbers["prefix_block_hits"], numbers["prefix_token_hits"]


def check_reasons(point: Point) -> None:
    assert point.prefix_blocks + point.misses.total == point.blocks
    first = point.requests_by_first_miss
    assert first.none + first.first_sight + first.not_ready + first.elsewhere + first.evicted == point.requests
    assert (point.misses.not_ready, point.misses.elsewhere) == (0, 0)  # one pool, instant service


@pytest.mark.parametrize("name", [name for name in SPECS if name != "lru"])  # lru: by its curve, that by simulate
@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_every_policy_at_every_capacity(conversation: Trace, oracle: Numbers, name: str, order: Any) -> None:
    capacities = spread(CAPACITIES, list(SPECS).index(name) + (order == "reverse"))
    points = study(conversation, [SPECS[name]], capacities, touch_order=order, processes=1)
    for capacity, point in zip(capacities, points, strict=True):
        assert hits(point) == published(oracle[order][name][key(capacity)]), capacity
        check_reasons(point)
        assert point.misses.first_sight == oracle["unique_blocks"]
        assert point.peak_blocks == capacity


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_lru_at_every_capacity_in_one_pass(conversation: Trace, oracle: Numbers, order: Any) -> None:
    curve = lru_curve(conversation, CAPACITIES, touch_order=order)
    found = zip(curve.block_hits.tolist(), curve.prefix_blocks.tolist(), curve.prefix_tokens.tolist(), strict=True)
    assert dict(zip(map(str, curve.capacities.tolist()), found, strict=True)) == {
        str(capacity): published(oracle[order]["lru"][str(capacity)]) for capacity in CAPACITIES
    }


@pytest.mark.parametrize(("order", "capacity"), [("forward", 1000), ("reverse", 10000)])
def test_lru_run_block_by_block(conversation: Trace, oracle: Numbers, order: Any, capacity: int) -> None:
    point = simulate(conversation, "lru", capacity, touch_order=order)
    assert hits(point) == published(oracle[order]["lru"][str(capacity)])
    check_reasons(point)


@pytest.mark.parametrize("bypass", [False, True])
@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_belady_at_every_capacity(conversation: Trace, oracle: Numbers, order: Any, bypass: bool) -> None:
    for capacity in spread((*CAPACITIES, None), bypass + 2 * (order == "reverse")):
        point = belady(conversation, capacity, bypass=bypass, touch_order=order)
        assert hits(point) == published(oracle[order]["belady_bypass" if bypass else "belady"][key(capacity)])
        check_reasons(point)


def test_the_optimum_at_every_capacity(conversation: Trace, oracle: Numbers) -> None:
    for capacity in (*CAPACITIES, None):
        point = optimum(conversation, capacity)
        assert hits(point) == published(oracle["opt_batch"][key(capacity)])
        check_reasons(point)


def test_an_infinite_cache_and_each_of_its_ratios(conversation: Trace, oracle: Numbers) -> None:
    point = simulate(conversation, "fifo", None)
    for order in ("forward", "reverse"):
        assert {published(oracle[order][name]["inf"]) for name in SPECS} == {hits(point)}
    infinite = oracle["infinite_cache"]
    assert point.prefix_tokens == infinite["prefix_tokens"]
    assert point.requests_with_hit == infinite["requests_with_any_hit"]
    assert point.hit_ratio_per_block == infinite["block_ratio"]
    assert point.hit_ratio_blocks == infinite["prefix_block_ratio"]
    assert point.hit_ratio_tokens == infinite["prefix_token_ratio"]
    assert point.prefix_blocks_over_full_blocks == infinite["prefix_hits_over_full_blocks"]
    assert point.full_blocks == oracle["full_blocks_floor"]
    assert (point.evictions, point.evicted_ago_ms, point.misses.evicted) == (0, None, 0)


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_the_second_half_when_the_first_only_warms(conversation: Trace, oracle: Numbers, capacity: int) -> None:
    half = oracle["second_half_measured"]
    expected, team = half["by_capacity"][str(capacity)], half["mooncake_team_simulator_hit_tokens"]
    best = optimum(conversation, capacity, warm_requests=HALF)
    assert hits(best) == published(expected["opt_batch"])
    assert best.prefix_tokens == team[f"optimal@{capacity}"]
    for order in ("forward", "reverse"):
        curve = lru_curve(conversation, [capacity], touch_order=order, warm_requests=HALF)
        found = curve.block_hits.item(), curve.prefix_blocks.item(), curve.prefix_tokens.item()
        assert found == published(expected[f"lru_{order}"])
        assert order == "forward" or curve.prefix_tokens.item() == team[f"lru@{capacity}"]


def test_the_second_half_under_fifo_and_without_end(conversation: Trace, oracle: Numbers) -> None:
    half = oracle["second_half_measured"]
    points = study(conversation, ["fifo"], [*CAPACITIES, None], warm_requests=HALF, processes=1)
    for capacity, point in zip(CAPACITIES, points, strict=False):
        assert hits(point) == published(half["by_capacity"][str(capacity)]["fifo"])
        assert point.prefix_tokens == half["mooncake_team_simulator_hit_tokens"][f"fifo@{capacity}"]
        check_reasons(point)
    assert hits(points[-1]) == published(oracle["infinite_cache"]["second_half_only"])
    assert points[-1].prefix_tokens == half["mooncake_team_simulator_hit_tokens"]["ceiling@1000"]


@pytest.fixture(scope="module", params=["conversation", "synthetic"])
def figure9(request: pytest.FixtureRequest, shared: Path) -> tuple[Trace, Numbers]:
    """A trace of FAST'25 and what an independent script counts on it."""
    counted = json.loads((shared / "oracles" / "mooncake-fig9-comparison.json").read_text(encoding="utf-8"))["ours"]
    trace = load(shared / "traces" / "mooncake-fast25" / f"{request.param}_trace.jsonl")
    return trace, counted[request.param]


FIG9_SPECS = {
    "fifo": ("fifo", "forward"),
    "lfu": ("lfu", "forward"),
    "lfu_rev": ("lfu", "reverse"),
    "lfu_perfect": ("lfu:counts=perfect", "forward"),
    "length_aware": ("length-aware", "forward"),
    "opt_batch": ("optimum", "forward"),
}


@pytest.mark.parametrize("label", FIG9_SPECS)
def test_figure_9s_capacities_down_to_less_than_one_prompt(figure9: tuple[Trace, Numbers], label: str) -> None:
    trace, expected = figure9
    spec, order = FIG9_SPECS[label]
    capacities = spread(FIG9, list(FIG9_SPECS).index(label) + (trace.name == "synthetic_trace"))
    points = study(trace, [spec], capacities, touch_order=order, processes=1)  # type: ignore[arg-type]
    for capacity, point in zip(capacities, points, strict=True):
        numbers = expected[label][str(capacity)]
        assert hits(point) == published(numbers), capacity
        assert label != "opt_batch" or point.prefix_blocks_over_full_blocks == numbers["prefix_over_full"]


@pytest.mark.parametrize(("label", "order"), [("lru", "forward"), ("lru_rev", "reverse")])
def test_figure_9s_lru_in_one_pass(figure9: tuple[Trace, Numbers], label: str, order: Any) -> None:
    trace, expected = figure9
    curve = lru_curve(trace, FIG9, touch_order=order)
    found = zip(curve.block_hits.tolist(), curve.prefix_blocks.tolist(), curve.prefix_tokens.tolist(), strict=True)
    assert list(found) == [published(expected[label][str(capacity)]) for capacity in FIG9]
