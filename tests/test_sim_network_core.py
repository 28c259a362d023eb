"""An oversubscribed core: one link that every transfer between instances crosses as well.

At n B/s a byte takes 10^12 / n ps.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import network as naive
from test_sim_network import NODES, SECOND, Line, Naive, Quick, events, story
from test_sim_rules import replayed

from mooncake_bench.api import Route
from mooncake_bench.errors import SetupError
from mooncake_bench.sim.core import CoredNetwork
from mooncake_bench.sim.setup import Setup


class Cored(Line):
    """As Line, with a core."""

    def __init__(self, core: int, *capacities: int) -> None:
        super().__init__(*capacities)
        watch = self.network._watch
        self.network = CoredNetwork(list(capacities), self._post, watch, core)


def test_flows_between_different_instances_share_the_core() -> None:
    # Three pairs of NICs of 10 B/s want 30; the core has 12: 4 each. When one is gone the others take 6 each.
    line = Cored(12, *[10] * 6)
    flows = [line.send(0, source, source + 3) for source in range(3)]
    assert [flow.rate for flow in flows] == [4, 4, 4]
    line.network.stop(SECOND, flows.pop())
    assert [flow.rate for flow in flows] == [6, 6]
    assert line.next_end() == SECOND + 16 * SECOND  # 100 - 4 bytes at 6 B/s


def test_who_needs_less_than_its_share_of_the_core_leaves_it_to_others() -> None:
    # A stream of at most 2 B/s, and two fetches for the other 10 of the core's 12: the one into a NIC of 3 gets 3, the
    # other 7.
    line = Cored(12, 10, 10, 10, 10, 3, 10)
    stream, slow, fast = line.send(0, 0, 3, cap=2), line.send(0, 1, 4), line.send(0, 2, 5)
    assert [flow.rate for flow in (stream, slow, fast)] == [2, 3, 7]
    # Its cap gone, it asks for a third of 12 - 3: 4 (of 9, rounded down).
    line.network.release_cap(0, stream, 0, lambda now, owner: None, None)
    assert [flow.rate for flow in (stream, slow, fast)] == [4, 3, 4]


def test_a_core_wide_enough_for_all_flows_changes_nothing() -> None:
    line = Cored(30, *[10] * 6)
    assert [line.send(0, source, source + 3).rate for source in range(3)] == [10, 10, 10]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.integers(40, 120), min_size=NODES, max_size=NODES), st.integers(45, 300), events)
def test_the_core_gives_the_rates_and_ends_of_a_global_refill(
    capacities: list[int], core: int, script: list[Any]
) -> None:
    class CoredQuick(Quick):
        def __init__(self, capacities: list[int], post: Any) -> None:
            self.inner = CoredNetwork(capacities, post, lambda now, flow: None, core)

    class CoredNaive(Naive):
        def __init__(self, capacities: list[int], post: Any) -> None:
            self.inner = naive.Network(capacities, post, core=core)

    assert story(CoredQuick, capacities, script) == story(CoredNaive, capacities, script)


# in a replay

FETCHES = {1: Route(2, fetch_from=0), 3: Route(3, fetch_from=1)}


def fetched(core_gbytes_per_s: float | None) -> list[int]:
    """When two prefills start that fetch 1,000 tokens of 1,000 bytes at 10 s, from two instances to two others."""
    blocks, others = list(range(250)), list(range(250, 500))
    rows = [(0.0, 1000, 1, blocks), (10_000.0, 1000, 1, blocks), (0.0, 1000, 1, others), (10_000.0, 1000, 1, others)]
    order = [0, 2, 1, 3]
    routes = {0: Route(0), 1: Route(1), 2: Route(2, fetch_from=0), 3: Route(3, fetch_from=1)}
    replay = replayed(
        [rows[i] for i in order], "4P+1D", routes=routes, nic_core_gbytes_per_s=core_gbytes_per_s,
        cost={"nic_bytes_per_s": 1e6},
    )  # fmt: skip
    return (replay.columns["start_ps"][2:] - 10_000 * 10**9).tolist()


def test_fetches_between_four_instances_wait_for_a_narrow_core() -> None:
    # 10^6 bytes each at 10^6 B/s take 1 s; a core of 10^6 B/s shares itself among the two: 2 s.
    assert fetched(None) == fetched(0.002) == [SECOND, SECOND]
    assert fetched(0.001) == [2 * SECOND, 2 * SECOND]


def test_a_wider_core_never_lengthens_the_fetches() -> None:
    times = [fetched(core) for core in (0.001, 0.0012, 0.0015, 0.0018, 0.002, 0.004)]
    assert all(
        a >= b for wider, narrower in zip(times[1:], times, strict=False) for a, b in zip(narrower, wider, strict=True)
    )


@pytest.mark.parametrize("cluster", ["4M", "1P+0D"])
def test_a_core_that_nothing_crosses_is_refused(cluster: str) -> None:
    with pytest.raises(SetupError, match=r"nic\.core_gbytes_per_s: no effect on cluster"):
        Setup(cluster=cluster, nic_core_gbytes_per_s=10.0)


def test_a_default_setup_does_not_tell_of_the_core() -> None:
    assert "nic.core_gbytes_per_s" not in Setup().to_dict()
    assert Setup(nic_core_gbytes_per_s=100.0).to_dict()["nic.core_gbytes_per_s"] == 100.0
