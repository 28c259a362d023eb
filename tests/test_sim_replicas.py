"""Copies of hot blocks that a policy asks for, counted by hand.

Blocks of 4 tokens, 1,000 bytes a token, NICs of 10^6 B/s: a block takes 4 ms. A prefill takes 1 ms a computed token.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from reference.fast import replay_with
from reference.workloads import bundled

from mooncake_bench.api import Replicate, Route, Router
from mooncake_bench.errors import PolicyError
from mooncake_bench.hardware.fake import FakeCost
from mooncake_bench.results.run import Run
from mooncake_bench.sim.replay import Replay
from mooncake_bench.sim.setup import Setup
from mooncake_bench.trace import Trace

MS = 10**9  # ps
Rows = list[tuple[float, int, int, list[int]]]


@dataclass
class Copies(Router):
    """Routes as told, and at its ticks, one every 10 ms from the first arrival on, copies as told."""

    name = "copies"
    tick_ms: float = 10.0
    routes: dict[int, Route] = field(default_factory=dict)
    ticks: dict[int, list[Any]] = field(default_factory=dict)  # the n-th tick: actions

    def __post_init__(self) -> None:
        self._tick = 0
        self.saw: list[list[int]] = []

    def route(self, request, cluster):
        self.saw.append([cluster.cached_tokens(request)[1], cluster.fetchable_tokens(request)[1]])
        return self.routes.get(request.row, Route(0))

    def on_tick(self, cluster):
        self._tick += 1
        return self.ticks.get(self._tick, [])


def replayed(rows: Rows, router: Router, cluster: str = "2P+1D", pool: int = 10, **more: Any) -> Replay:
    setup = Setup(cluster=cluster, pool_blocks=pool, **more)
    cost = FakeCost(sum(int(group[:-1]) for group in cluster.split("+")), nic_bytes_per_s=1e6)
    trace = Trace.of(rows, block_tokens=4)
    return replay_with(trace, setup, router, bundled("accept-all"), lambda: bundled("lru"), cost)


# Row 0 computes blocks 1, 2 on instance 0 from 0 to 8 ms. At the first tick, 10 ms, they go to instance 1, in 8 ms.
COPY = {1: [Replicate(0, 1, [1, 2])]}


def test_a_copied_prefix_is_a_hit_where_it_was_copied_to() -> None:
    router = Copies(routes={1: Route(1)}, ticks=COPY)
    replay = replayed([(0.0, 8, 1, [1, 2]), (30.0, 8, 1, [1, 2])], router)
    assert replay.columns["hit_tokens"].tolist() == [0, 8]
    assert replay.columns["start_ps"][1] == 30 * MS
    assert (replay.counters["replications"], replay.counters["replicated_bytes"]) == (1, 8000)
    Run.from_replay(replay)


def test_a_request_that_counts_on_a_copy_under_way_waits_for_it() -> None:
    # At 12 ms the copy has 6 of its 8 ms to go: the blocks are promised there, not ready. The head idles to 18 ms.
    router = Copies(routes={1: Route(1)}, ticks=COPY)
    replay = replayed([(0.0, 8, 1, [1, 2]), (12.0, 8, 1, [1, 2])], router)
    assert router.saw == [[0, 0], [8, 0]]
    assert replay.columns["hit_tokens"].tolist() == [0, 8]
    assert (replay.columns["head_ps"][1], replay.columns["start_ps"][1]) == (12 * MS, 18 * MS)


def test_a_copy_shares_the_network_with_a_fetch() -> None:
    # From 10 ms on 8 tokens go to instance 1 by a copy, and 8 to instance 2 by the fetch of row 1: 16 ms each.
    router = Copies(routes={1: Route(2, fetch_from=0)}, ticks=COPY)
    replay = replayed([(0.0, 8, 1, [1, 2]), (10.0, 8, 1, [1, 2])], router, "3P+1D")
    assert replay.columns["start_ps"][1] == 26 * MS


def test_only_what_the_target_lacks_is_copied() -> None:
    # Instance 1 computes block 1 itself by 4 ms: one block is copied. Asked again at the next tick, nothing is.
    router = Copies(routes={1: Route(1)}, ticks=COPY | {3: COPY[1]})
    replay = replayed([(0.0, 8, 1, [1, 2]), (0.0, 4, 1, [1]), (50.0, 4, 1, [9])], router)
    assert (replay.counters["replications"], replay.counters["replicated_bytes"]) == (1, 4000)


def test_a_copy_takes_slots_and_its_blocks_stay_pinned_on_both_sides_until_it_ends() -> None:
    # Pools of 2. At 12 ms prompts of 2 new blocks come to both instances: all slots hold what is being copied, so
    # nothing of them is stored. At 30 ms the copy is long over: 1, 2 are hits on instance 1.
    router = Copies(routes={1: Route(0), 2: Route(1), 3: Route(1)}, ticks=COPY)
    rows: Rows = [(0.0, 8, 1, [1, 2]), (12.0, 8, 1, [3, 4]), (12.0, 8, 1, [5, 6]), (30.0, 8, 1, [1, 2])]
    replay = replayed(rows, router, pool=2)
    assert replay.counters["refused_blocks"] == 4
    assert replay.columns["hit_tokens"].tolist() == [0, 0, 0, 8]


def test_a_full_target_gives_up_its_victims_for_a_copy() -> None:
    # Instance 1 holds 3, 4 of 2 slots; the copy of 1, 2 evicts them.
    router = Copies(routes={1: Route(1)}, ticks=COPY)
    rows: Rows = [(0.0, 8, 1, [1, 2]), (0.0, 8, 1, [3, 4]), (50.0, 4, 1, [9])]
    assert replayed(rows, router, pool=2).counters["evictions"] == 2 + 1  # and 9 on instance 0


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (Replicate(0, 1, [1, 9]), "instance 0 does not have block 9 ready"),
        (Replicate(1, 0, [1]), "instance 1 does not have block 1 ready"),
        (Replicate(0, 0, [1]), "source and target are the same instance"),
        (Replicate(0, 2, [1]), "instance 2 is no prefill instance that takes requests"),
        (Replicate(0, 7, [1]), "instance 7 is no prefill instance"),
        (Replicate(0, 1, [1, 1]), "it names a block twice"),
        (Replicate(0, 1, 1), "give a list of block ids"),  # type: ignore[arg-type]
    ],
)
def test_a_copy_that_cannot_be_made_names_the_policy(action: Replicate, words: str) -> None:
    router = Copies(ticks={1: [action]})
    with pytest.raises(PolicyError, match=rf"policy 'copies', on_tick\(\): it wants Replicate.*{words}"):
        replayed([(0.0, 8, 1, [1, 2]), (50.0, 4, 1, [9])], router)


def test_nothing_is_copied_where_pools_are_local() -> None:
    with pytest.raises(PolicyError, match=r"pool.scope is local"):
        replayed([(0.0, 8, 1, [1, 2]), (50.0, 4, 1, [9])], Copies(ticks=COPY), pool_scope="local")


def test_a_late_view_is_forgiven_for_blocks_that_are_gone() -> None:
    ticks = {1: [Replicate(0, 1, [1, 2, 9])]}
    replay = replayed([(0.0, 8, 1, [1, 2]), (50.0, 4, 1, [9])], Copies(ticks=ticks), view="delayed:5ms")
    assert replay.counters["replicated_bytes"] == 8000


@pytest.mark.parametrize(("fails", "hit"), [(0, 0), (1, 0)], ids=["its source", "its target"])
def test_a_copy_dies_with_either_side_and_leaves_nothing_behind(fails: int, hit: int) -> None:
    # The copy runs from 10 to 18 ms; at 14 ms one side dies. Row 1, which came at 12 ms and counts on it, computes
    # anew: on instance 1 from 14 ms on, or, when that is the one that died, wherever it is routed again.
    router = Copies(routes={1: Route(1)}, ticks=COPY)
    rows: Rows = [(0.0, 8, 1, [1, 2]), (12.0, 8, 1, [1, 2]), (100.0, 8, 1, [1, 2])]
    if fails == 1:
        router.route = lambda request, cluster: Route(int(request.row == 1 and cluster.is_prefill[1]))  # type: ignore[method-assign]
    else:
        router.route = lambda request, cluster: Route(int(request.row > 0))  # type: ignore[method-assign]
    replay = replayed(rows, router, events=f"14ms:fail:prefill:{fails}")
    Run.from_replay(replay)
    assert (replay.columns["status"] == 1).all()
    if fails == 0:
        assert replay.columns["start_ps"][1] == 14 * MS
        assert replay.columns["hit_tokens"].tolist() == [0, 0, 8]


def test_hot_replicas_spreads_a_prefix_that_many_requests_share() -> None:
    # Four requests with blocks 1, 2 within 40 ms, all on instance 0 while it has the only copy and no queue; at the
    # tick, 50 ms, 1, 2 are hot (4 uses) and copied to instance 1, their tails are not.
    router = bundled("hot-replicas:tick_ms=50")
    rows: Rows = [(10.0 * i, 12, 1, [1, 2, 10 + i]) for i in range(4)] + [(100.0, 12, 1, [1, 2, 20])] * 2
    replay = replayed(rows, router)
    assert replay.counters["replications"] == 1
    assert replay.counters["replicated_bytes"] == 8000
    assert sorted(replay.columns["prefill_instance"][4:].tolist()) == [0, 1]
    assert replay.columns["hit_tokens"].tolist()[4:] == [8, 8]
