"""Rules of the physics that need exact picoseconds or several runs; the others are cases in ``reference/scenarios``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.fast import replay_with, token_times_ps
from reference.workloads import bundled

from mooncake_bench.api import Admission, Route, Router
from mooncake_bench.errors import PolicyError
from mooncake_bench.hardware.fake import FakeCost
from mooncake_bench.sim.replay import Replay, run
from mooncake_bench.sim.setup import Setup
from mooncake_bench.sim.stretch import elapsed, steps_within
from mooncake_bench.trace import Trace

HALF_PS = 2.0**-10  # ms: 976,562.5 ps, a float with no error, so three of it are 2,929,687.5 ps
MS = 10**9  # ps


@dataclass
class Told(Router):
    """Routes as told, row by row."""

    name = "told"
    routes: dict[int, Route]

    def route(self, request, cluster):
        return self.routes.get(request.row, Route(0))


def replayed(rows: list[tuple[float, int, int, list[int]]], cluster: str = "1P+1D", **more: Any) -> Replay:
    """A replay of rows of 4-token blocks; ``routes`` or a policy SPEC, cost parameters in ``cost``."""
    cost = FakeCost(sum(int(group[:-1]) for group in cluster.split("+")), **more.pop("cost", {}))
    trace = Trace.of(rows, block_tokens=4)
    routes = more.pop("routes", None)
    setup = Setup(cluster=cluster, **more)
    if routes is None:
        return run(trace, setup, cost=cost)
    return replay_with(trace, setup, Told(routes), bundled("accept-all"), lambda: bundled("lru"), cost)


# rule 1: the clock


@pytest.mark.parametrize(("arrival_ms", "ps"), [(1.5, 2), (2.5, 2), (3.5, 4)])
def test_an_arrival_is_divided_by_the_speedup_and_rounded_once_half_to_even(arrival_ms: float, ps: int) -> None:
    replay = replayed([(0.0, 4, 1, [1]), (arrival_ms, 4, 1, [2])], speedup=1e9)
    assert replay.columns["arrival_ps"].tolist() == [0, ps]


@pytest.mark.parametrize(("tokens", "ps"), [(1, 976_562), (3, 2_929_688), (5, 4_882_812)])  # ...2.5, ...7.5, ...2.5
def test_a_prefills_cost_is_rounded_once_half_to_even(tokens: int, ps: int) -> None:
    blocks = [1] if tokens <= 4 else [1, 2]
    replay = replayed([(0.0, tokens, 1, blocks)], cost={"computed_token_ms": HALF_PS})
    assert replay.columns["prefill_ps"][0] == replay.columns["first_token_ps"][0] == ps


def test_a_steps_base_and_its_cost_a_token_are_rounded_each_once_and_then_only_added() -> None:
    # f(1) = 2 * 976,562.5 = 1,953,125; c = 976,562 (half to even). Contexts 5, 6, 7: steps of f + 5c, f + 6c, f + 7c.
    cost = {"step_constant_ms": HALF_PS, "step_sequence_ms": HALF_PS, "step_token_ms": HALF_PS}
    replay = replayed([(0.0, 4, 4, [1])], cost=cost)
    joined = int(replay.columns["join_ps"][0])
    gaps = np.diff([joined, *token_times_ps(replay)[0][1:]]).tolist()
    assert gaps == [1_953_125 + context * 976_562 for context in (5, 6, 7)]


def test_a_transfer_ends_on_the_picosecond_after_its_last_bit() -> None:
    # 4 tokens of 1 byte at 3e9 B/s: 4e12 / 3e9 = 1333.3 ps
    replay = replayed(
        [(0.0, 4, 1, [1]), (10.0, 8, 1, [1, 2])],
        cluster="2P+1D",
        routes={1: Route(1, fetch_from=0)},
        cost={"kv_bytes_per_token": 1, "nic_bytes_per_s": 3e9},
    )
    assert replay.columns["start_ps"][1] - replay.columns["arrival_ps"][1] == 1334


@given(st.integers(1, 10**13), st.integers(0, 10**9), st.integers(0, 10**6))
def test_the_closed_form_of_a_stretch_is_the_sum_of_its_steps(step: int, growth: int, steps: int) -> None:
    first, last = step, step + growth * (steps - 1)
    assert elapsed(steps, step, growth) == (steps * (first + last) // 2 if steps else 0)
    few = min(steps, 50)
    assert elapsed(few, step, growth) == sum(step + growth * j for j in range(few))


@given(st.integers(1, 10**13), st.integers(0, 10**9), st.integers(0, 10**6), st.integers(-1, 1))
def test_the_steps_within_a_time_are_exact_at_every_boundary(base: int, growth: int, steps: int, off: int) -> None:
    step = base + growth  # a step costs its context at least once, and grows by less
    duration = max(0, elapsed(steps, step, growth) + off)
    found = steps_within(duration, step, growth)
    assert elapsed(found, step, growth) <= duration < elapsed(found + 1, step, growth)


# rule 2: ties


def test_requests_of_one_timestamp_keep_their_order_in_the_file() -> None:
    replay = replayed([(0.0, 4, 1, [row]) for row in range(5)])
    assert replay.columns["first_token_ps"].tolist() == [4 * MS, 8 * MS, 12 * MS, 16 * MS, 20 * MS]


# rule 4: block states


def test_a_block_is_fetchable_only_from_its_prefills_end_on() -> None:
    # Row 0 computes 8 tokens until 8 ms. Fetching its blocks at 7 ms is a wrong decision, at 8 ms it is a right one.
    def second(at: float) -> Replay:
        rows = [(0.0, 8, 1, [1, 2]), (at, 8, 1, [1, 2])]
        return replayed(rows, cluster="2P+1D", routes={1: Route(1, fetch_from=0)})

    with pytest.raises(PolicyError, match=r"'told', request 1: it fetches from instance 0, which has 0 leading blocks"):
        second(7.0)
    assert second(8.0).columns["fetched_tokens"][1] == 8


# rule 9 has its cases in reference/more_scenarios; rule 10:


def test_the_decode_instance_is_chosen_before_the_admission_is_asked() -> None:
    asked = []

    class Notes(Admission):
        name = "notes"

        def reject(self, request, route, cluster):
            asked.append(route)
            return

    trace = Trace.of([(0.0, 4, 1, [1]), (0.0, 4, 1, [2]), (0.0, 4, 1, [3])], block_tokens=4)
    replay_with(trace, Setup(cluster="1P+2D"), Told({}), Notes(), lambda: bundled("lru"), FakeCost(3))
    # contexts of 5 each: 0 and 0 (lowest id), 5 and 0, 5 and 5 (lowest id). E = 4 ms, the queue adds up.
    assert [(route.decode, route.ttft_ms) for route in asked] == [(1, 4.0), (2, 8.0), (1, 12.0)]


# rule 14: streams


@dataclass
class Drawing(Admission):
    """Draws from its own stream at every decision."""

    name = "drawing"
    draws: int

    def start(self, cluster, rng):
        self.rng = rng
        self.first = float(rng.random())

    def reject(self, request, route, cluster):
        self.rng.random(self.draws)


def random_routes(seed: int, draws: int) -> tuple[list[int], float]:
    trace = Trace.of([(float(row), 4, 1, [row]) for row in range(40)], block_tokens=4)
    admission = Drawing(draws)
    setup = Setup(cluster="4P+1D", seed=seed)
    replay = replay_with(trace, setup, bundled("random"), admission, lambda: bundled("lru"), FakeCost(5))
    return replay.columns["prefill_instance"].tolist(), admission.first


def test_every_component_draws_from_its_own_seeded_stream() -> None:
    routes, first = random_routes(seed=1, draws=0)
    assert random_routes(seed=1, draws=3) == (routes, first)  # what one draws changes nothing for another
    others, another = random_routes(seed=2, draws=0)
    assert routes != others
    assert first != another


def test_a_policy_that_is_router_and_admission_is_started_once() -> None:
    class Both(Told, Admission):
        name = "both"

        def start(self, cluster, rng):
            started.append(rng)

        def reject(self, request, route, cluster):
            return None

    started: list[Any] = []
    both = Both({})
    trace = Trace.of([(0.0, 4, 1, [1])], block_tokens=4)
    replay_with(trace, Setup(cluster="1P+1D"), both, both, lambda: bundled("lru"), FakeCost(2))
    assert len(started) == 1


# heterogeneous clusters: costs are columns


def test_unlike_instances_take_each_their_own_time() -> None:
    # 8 tokens: 8 ms on instance 0, 2 ms on instance 1; decode steps of 11 ms on 2, 6 ms on 3.
    cost = {"computed_token_ms": [1.0, 0.25, 1.0, 1.0], "step_constant_ms": [0.0, 0.0, 10.0, 5.0], "step_token_ms": 0.0}
    rows = [(0.0, 8, 2, [1, 2]), (0.0, 8, 2, [3, 4])]
    replay = replayed(rows, cluster="2P+2D", routes={0: Route(0, 2), 1: Route(1, 3)}, cost=cost)
    assert replay.columns["first_token_ps"].tolist() == [8 * MS, 2 * MS]
    assert (replay.columns["second_token_ps"] - replay.columns["join_ps"]).tolist() == [11 * MS, 6 * MS]


def test_real_presets_mix_in_one_cluster() -> None:
    trace = Trace.of([(float(row), 5000, 5, list(range(10 * row, 10 * row + 10))) for row in range(12)])
    replay = run(trace, Setup(cluster="1P@h800+1P@a800+1D@a100+1D@h200", policy="round-robin"))
    prefill, where = replay.columns["prefill_ps"], replay.columns["prefill_instance"]
    assert set(replay.columns["status"].tolist()) == {1}
    assert len({int(prefill[where == 0][0]), int(prefill[where == 1][0])}) == 2
