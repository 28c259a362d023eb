"""What policies see is a setting: exact, delayed, or only what the router sees itself."""

from __future__ import annotations

import numpy as np
import pytest

from mooncake_bench.errors import PolicyError
from mooncake_bench.hardware.fake import FakeCost
from mooncake_bench.sim.replay import Replay, run
from mooncake_bench.sim.setup import Setup
from mooncake_bench.trace import Trace

# Two prefill instances and one decode instance; a prefill takes 1 ms a token (FakeCost).
# Least queued time, ties to the lowest id:
#   0 ms, 200 tokens: both idle -> P0, busy until 200 ms
#  50 ms, 100 tokens: P0 has 150 ms left -> P1, busy until 150 ms
# 210 ms,  10 tokens: both idle -> P0, for whoever sees that
ROWS = [(0.0, 200, 2, [1]), (50.0, 100, 2, [2]), (210.0, 10, 2, [3])]


def replayed(
    view: str = "exact", policy: str = "load-balancing", rows: list | None = None, **settings: object
) -> Replay:
    trace = Trace.of(rows or ROWS, block_tokens=512)
    setup = Setup(cluster="2P+1D", policy=policy, view=view, **settings)
    return run(trace, setup, cost=FakeCost(3))


def where(replay: Replay) -> list[int]:
    return replay.columns["prefill_instance"].tolist()


def test_an_exact_view_sees_that_both_are_idle() -> None:
    assert where(replayed("exact")) == [0, 1, 0]


def test_a_view_delayed_by_5_ms_sees_both_idle_as_they_were_at_205_ms() -> None:
    assert where(replayed("delayed:5ms")) == [0, 1, 0]


def test_a_view_delayed_by_20_ms_still_sees_10_ms_of_work_on_the_first() -> None:
    assert where(replayed("delayed:20ms")) == [0, 1, 1]


def test_a_view_delayed_by_a_second_knows_only_what_the_router_sent_where() -> None:
    # nothing had happened a second ago; sent since: 200 ms of work to P0, 100 ms to P1
    assert where(replayed("delayed:1s")) == [0, 1, 1]


def test_a_router_only_view_learns_from_first_tokens_that_both_are_idle() -> None:
    assert where(replayed("router-only")) == [0, 1, 0]


FETCHER = '''
from mooncake_bench.api import Route, Router


class Fetcher(Router):
    """The second request goes to instance 1 and fetches from instance 0."""

    name = "fetcher"

    def route(self, request, cluster):
        return Route(prefill=request.row, fetch_from=0 if request.row else None)
'''


@pytest.fixture
def fetcher(tmp_path):
    path = tmp_path / "fetcher.py"
    path.write_text(FETCHER, encoding="utf-8")
    return str(path)


TWINS = [(0.0, 512, 2, [7]), (100.0, 512, 2, [7])]  # the first is still in prefill (512 ms) when the second comes


def test_a_fetch_of_blocks_that_are_not_ready_is_the_policy_s_fault_when_it_could_see_it(fetcher) -> None:
    with pytest.raises(
        PolicyError, match=r"'fetcher', request 1: it fetches from instance 0, which has 0 leading blocks"
    ):
        replayed("exact", fetcher, TWINS)


@pytest.mark.parametrize("view", ["delayed:10ms", "router-only"])
def test_a_fetch_that_finds_nothing_brings_nothing_when_it_could_not_see_it(view: str, fetcher) -> None:
    columns = replayed(view, fetcher, TWINS).columns
    assert columns["fetched_tokens"].tolist() == [0, 0]
    assert columns["computed_tokens"].tolist() == [512, 512]


def test_a_late_view_shows_a_routed_prefix_at_once_as_a_hit_of_its_own_node_only() -> None:
    # cache-aware goes back to P0 for the shared block as long as waiting there costs less than computing it anew:
    # at 100 ms P0 has 412 ms left (462 by a view of 50 ms ago) and then 1 token to compute; P1 would need 512 ms
    for view in ("exact", "delayed:50ms", "router-only"):
        assert where(replayed(view, "cache-aware", TWINS)) == [0, 0], view


def test_a_view_of_before_a_decision_shows_its_work_undiminished() -> None:
    # a second ago there was nothing; sent since: 512 ms to P0, and 512 + 1 is more than P1's 512
    assert where(replayed("delayed:1s", "cache-aware", TWINS)) == [0, 1]


def test_an_error_of_the_estimates_changes_predictions_and_nothing_that_happens() -> None:
    plain, wrong = replayed(policy="round-robin"), replayed(policy="round-robin", estimate_error=0.3)
    for name, column in plain.columns.items():
        if name.startswith("predicted"):
            continue
        assert np.array_equal(column, wrong.columns[name]), name
    assert not np.array_equal(plain.columns["predicted_ttft_ms"], wrong.columns["predicted_ttft_ms"])


def test_an_error_of_the_estimates_comes_from_the_seed() -> None:
    runs = [
        replayed(policy="round-robin", estimate_error=0.3, seed=seed).columns["predicted_ttft_ms"] for seed in (1, 1, 2)
    ]
    assert np.array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])


@pytest.mark.parametrize("view", ["exact", "delayed:50ms", "delayed:5s", "router-only"])
@pytest.mark.parametrize("policy", ["kvcache-centric", "cache-aware", "load-balancing:by=requests", "predictive:td=2s"])
def test_every_request_ends_and_the_picture_empties_whatever_the_view(view: str, policy: str) -> None:
    rng = np.random.default_rng(3)
    arrivals = np.sort(rng.uniform(0, 20_000, 60))
    rows = [(float(at), 600, 1 + i % 5, [0, i % 7 + 1]) for i, at in enumerate(arrivals)]
    replay = replayed(view, policy, rows, pool_blocks=4)
    assert set(replay.columns["status"].tolist()) <= {1, 2}
    assert replay.columns["status"].tolist().count(1) > 0
