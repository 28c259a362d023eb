"""The plain admissions against a still cluster: instances 0-1 prefill, 2-3 decode; 1 computed token = 1 ms."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from mooncake_bench.api import Request, Route
from mooncake_bench.checks import Scene
from mooncake_bench.plugins import build

if TYPE_CHECKING:
    from mooncake_bench.api import Admission

REQUEST = Request(row=0, arrival_ms=1000.0, input_tokens=2048, blocks=(0, 1, 2, 3))
ROUTE = Route(prefill=1, decode=2, ttft_ms=5000.0)


def admission(spec: str) -> Admission:
    built = build(spec).admission
    built.start(Scene(), np.random.default_rng(0))
    return built


def test_accept_all_admits_whatever_the_load() -> None:
    busy = Scene(queue=[1e9, 1e9], queued=[999, 999], batch=[999, 999], ttft_slo_ms=1.0, tbt_slo_ms=1.0)
    policy = admission("accept-all")
    assert policy.reject(REQUEST, ROUTE, busy) is None
    assert policy.reject_prefill(REQUEST, ROUTE, busy) is None
    assert policy.reject_decode(REQUEST, ROUTE, busy) is None


@pytest.mark.parametrize(("queued", "reason"), [(2, None), (3, "queue"), (4, "queue")])
def test_queue_cap_counts_the_requests_of_the_routed_instance_alone(queued: int, reason: str | None) -> None:
    assert admission("queue-cap:limit=3").reject(REQUEST, ROUTE, Scene(queued=[99, queued])) == reason


@pytest.mark.parametrize(
    ("now_ms", "reason"),
    # own prefill: 2048 - 512 cached = 1536 ms; the deadline: 1000 + 10000 = 11000; so its turn may come until 9464
    [(9464.0, None), (9464.1, "ttft")],
)
def test_deadline_drops_a_request_whose_first_token_would_come_after_its_slo(now_ms: float, reason: str | None) -> None:
    policy = admission("deadline")
    at_arrival = Scene(now_ms=1000.0, cached=[0, 512], ttft_slo_ms=10_000.0)
    assert policy.reject(REQUEST, ROUTE, at_arrival) is None
    # by its turn its own promised blocks read as cached: they must not count
    at_its_turn = replace(at_arrival, now_ms=now_ms, cached=[0, 2048])
    assert policy.reject_prefill(REQUEST, ROUTE, at_its_turn) == reason


def test_deadline_counts_fetched_tokens_as_not_computed() -> None:
    policy = admission("deadline")
    scene = Scene(now_ms=1000.0, cached=[1024, 0], ttft_slo_ms=10_000.0)
    assert policy.reject(REQUEST, ROUTE._replace(fetch_from=0), scene) is None
    # 2048 - 1024 fetched = 1024 ms to compute: the last good moment is 11000 - 1024 = 9976
    assert policy.reject_prefill(REQUEST, ROUTE, replace(scene, now_ms=9976.0)) is None
    assert policy.reject(REQUEST, ROUTE._replace(fetch_from=0), scene) is None
    assert policy.reject_prefill(REQUEST, ROUTE, replace(scene, now_ms=9976.5)) == "ttft"
