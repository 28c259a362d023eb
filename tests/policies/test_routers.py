"""Each router against a still cluster: 0-2 prefill, 3-4 decode; a computed token takes 1 ms, a fetched one 0.01 ms."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest

from mooncake_bench.api import Request, Route
from mooncake_bench.checks import Scene
from mooncake_bench.plugins import build

if TYPE_CHECKING:
    from mooncake_bench.api import Router

REQUEST = Request(row=0, arrival_ms=0.0, input_tokens=4096, blocks=tuple(range(8)))


def scene(**changes: object) -> Scene:
    return Scene(prefill=3, decode=2, **changes)  # type: ignore[arg-type]


def router(spec: str, seed: int = 0) -> Router:
    built = build(spec).router
    built.start(scene(), np.random.default_rng(seed))
    return built


def dead(*instances: int) -> Scene:
    """A scene whose prefill ``instances`` read inf, as the dead do."""
    return scene(queue=[np.inf if i in instances else 0.0 for i in range(3)])


def test_random_draws_every_live_prefill_instance_equally_and_no_other() -> None:
    policy = router("random")
    drawn = Counter(policy.route(REQUEST, dead(1)).prefill for _ in range(4000))
    assert set(drawn) == {0, 2}
    assert abs(drawn[0] - 2000) < 200  # 6 standard deviations of a fair coin: 6 * sqrt(4000) / 2 = 190


def test_random_repeats_with_its_seed() -> None:
    def draws(seed: int) -> list[int]:
        policy = router("random", seed)
        return [policy.route(REQUEST, scene()).prefill for _ in range(50)]

    assert draws(1) == draws(1) != draws(2)


def test_round_robin_takes_turns_from_the_lowest_id() -> None:
    policy = router("round-robin")
    assert [policy.route(REQUEST, scene()).prefill for _ in range(5)] == [0, 1, 2, 0, 1]


def test_round_robin_passes_over_an_instance_that_died() -> None:
    policy = router("round-robin")
    assert [policy.route(REQUEST, cluster).prefill for cluster in (scene(), dead(1), dead(1), dead(0), scene())] == [
        0, 2, 0, 1, 2,
    ]  # fmt: skip


def test_load_balancing_takes_the_shortest_queue_in_time_and_the_lowest_id_of_equals() -> None:
    policy = router("load-balancing")
    assert policy.route(REQUEST, scene(queue=[30, 20, 20], queued=[1, 9, 0])) == Route(prefill=1)


def test_load_balancing_by_requests_takes_the_fewest_outstanding_requests() -> None:
    policy = router("load-balancing:by=requests")
    assert policy.route(REQUEST, scene(queue=[30, 20, 20], queued=[1, 9, 1])) == Route(prefill=0)


def test_load_balancing_by_requests_never_goes_to_the_dead_or_to_decode() -> None:
    policy = router("load-balancing:by=requests")
    assert policy.route(REQUEST, scene(queue=[np.inf, 5, 5], queued=[0, 7, 8])).prefill == 1


def test_cache_aware_weighs_its_own_hits_against_the_wait_and_fetches_nothing() -> None:
    # TTFT: 0 + 4096 = 4096; 3000 + (4096 - 2048) = 5048; 500 + (4096 - 1024) = 3572
    found = router("cache-aware").route(REQUEST, scene(queue=[0, 3000, 500], cached=[0, 2048, 1024]))
    assert found == Route(prefill=2, ttft_ms=3572.0)


def test_kvcache_centric_fetches_a_far_longer_remote_prefix() -> None:
    # holder 1 has 3072. Instance 0 (hit 512, 3072 > 4 * 512) fetches 2560: 0 + 25.6 + 1024 = 1049.6;
    # instance 1: 2000 + 1024 = 3024; instance 2 (hit 1024, 3072 <= 4 * 1024) stays local: 0 + 3072 = 3072
    found = router("kvcache-centric").route(REQUEST, scene(queue=[0, 2000, 0], cached=[512, 3072, 1024]))
    assert found == Route(prefill=0, fetch_from=1, ttft_ms=pytest.approx(1049.6))  # type: ignore[arg-type]


def test_kvcache_centric_stays_local_when_the_remote_prefix_is_exactly_threshold_times_its_own() -> None:
    # 2048 = 4 * 512 is not more: instance 0 computes 4096 - 512 = 3584; instance 1 waits 5000 and computes 2048
    found = router("kvcache-centric").route(REQUEST, scene(queue=[0, 5000, 9000], cached=[512, 2048, 0]))
    assert found == Route(prefill=0, ttft_ms=3584.0)
    # a hair less of a threshold and it fetches 1536: 15.36 + 2048
    found = router("kvcache-centric:threshold=3.99").route(REQUEST, scene(queue=[0, 5000, 9000], cached=[512, 2048, 0]))
    assert found == Route(prefill=0, fetch_from=1, ttft_ms=pytest.approx(2063.36))  # type: ignore[arg-type]


def test_kvcache_centric_with_nothing_cached_takes_the_lowest_id_and_fetches_nothing() -> None:
    assert router("kvcache-centric").route(REQUEST, scene()) == Route(prefill=0, ttft_ms=4096.0)


def test_kvcache_centric_counts_promised_blocks_as_its_own_but_fetches_only_ready_ones() -> None:
    # instance 1 was promised 3072 and has 0 ready, so nobody can fetch them; it computes 1024 itself after 100 ms
    found = router("kvcache-centric").route(REQUEST, scene(queue=[0, 100, 0], cached=[0, 3072, 0], fetchable=[0, 0, 0]))
    assert found == Route(prefill=1, ttft_ms=1124.0)


def test_kvcache_centric_with_a_huge_threshold_routes_as_cache_aware_does() -> None:
    rng = np.random.default_rng(4)
    local, never = router("cache-aware"), router("kvcache-centric:threshold=1e9")
    for _ in range(200):
        cached = (512 * rng.integers(1, 8, 3)).tolist()  # never 0: 1e9 * 0 is less than any hit
        cluster = scene(queue=rng.integers(0, 4000, 3).tolist(), cached=cached)
        assert never.route(REQUEST, cluster) == local.route(REQUEST, cluster)
