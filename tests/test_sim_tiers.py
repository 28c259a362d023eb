"""The SSD below a prefill node's pool, counted by hand.

Blocks of 4 tokens, 1,000 bytes a token: a block is 4,000 bytes. A prefill takes 1 ms a computed token. The SSD reads
10^6 B/s (1 ms a token, unless told otherwise: 4 ms a block) and writes 10^6 B/s.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.fast import replay_with
from reference.workloads import bundled
from test_sim_rules import Told

from mooncake_bench.api import Admission, Route, Router
from mooncake_bench.errors import InvariantError, SetupError
from mooncake_bench.hardware.fake import FakeCost
from mooncake_bench.results.run import Run
from mooncake_bench.sim.replay import Replay
from mooncake_bench.sim.setup import Setup
from mooncake_bench.trace import Trace

MS = 10**9  # ps
Rows = list[tuple[float, int, int, list[int]]]


def replayed(
    rows: Rows, pool: int, ssd: int | None, read: float = 1e6, write: float = 1e6,
    routes: dict[int, Route] | None = None, cluster: str = "1P+1D", router: Router | None = None,
    cost: dict[str, Any] | None = None, **more: Any,
) -> Replay:  # fmt: skip
    """A replay with so many blocks of pool and SSD a node, and rates in B/s."""
    rates = {} if ssd is None else {"ssd_read_gbytes_per_s": read / 1e9, "ssd_write_gbytes_per_s": write / 1e9}
    setup = Setup(cluster=cluster, pool_blocks=pool, ssd_blocks=ssd, **rates, **more)
    model = FakeCost(sum(int(group[:-1]) for group in cluster.split("+")), **(cost or {}))
    trace = Trace.of(rows, block_tokens=4)
    return replay_with(trace, setup, router or Told(routes or {}), bundled("accept-all"), lambda: bundled("lru"), model)


def hits(replay: Replay) -> list[int]:
    return replay.columns["hit_tokens"].tolist()


def starts_ms(replay: Replay) -> list[float]:
    return (replay.columns["start_ps"] / MS).tolist()


# A pool of 2 blocks: row 0 stores 1, 2; row 1 stores 3, 4 and evicts 2, 1 (the tail was touched first); row 2 comes for
# 1, 2 again, when both are on the SSD.
AGAIN: Rows = [(0.0, 8, 1, [1, 2]), (100.0, 8, 1, [3, 4]), (200.0, 8, 1, [1, 2])]


def test_an_evicted_block_is_written_to_the_ssd_and_comes_back_when_it_is_wanted() -> None:
    # Loading 8 tokens at 1 ms a token would take 8 ms, computing 7 fewer saves 7: recomputed. At 0.5 ms a token the
    # load takes 4 ms: the node idles for it from 200 to 204, and then computes 1 token.
    slow, fast = replayed(AGAIN, 2, 10, read=1e6), replayed(AGAIN, 2, 10, read=2e6)
    assert hits(slow) == [0, 0, 0]
    assert slow.counters["loads_declined"] == 1
    assert hits(fast) == [0, 0, 8]
    assert fast.columns["loaded_tokens"].tolist() == [0, 0, 8]
    assert (fast.columns["head_ps"][2] / MS, starts_ms(fast)[2]) == (200.0, 204.0)
    assert fast.columns["first_token_ps"][2] == 205 * MS
    # 1, 2 were written at 100 ms, 3, 4 at 200; 1, 2 stay on the SSD and are not written again
    told = {name: fast.counters[name] for name in ("demotions", "loads", "promotions", "loaded_bytes", "evictions")}
    assert told == {"demotions": 4, "loads": 1, "promotions": 2, "loaded_bytes": 8000, "evictions": 4}
    assert hits(replayed(AGAIN, 2, None)) == [0, 0, 0]


def test_a_block_whose_copy_is_on_the_ssd_is_not_written_twice() -> None:
    # 3, 4 come again at 300 ms: they push 1, 2 out, which are on the SSD still.
    replay = replayed([*AGAIN, (300.0, 8, 1, [3, 4])], 2, 10, read=2e6)
    assert hits(replay) == [0, 0, 8, 8]
    assert (replay.counters["demotions"], replay.counters["demotions_spared"]) == (4, 2)


@pytest.mark.parametrize(("arrival_ms", "loaded"), [(207.9, 0), (208.0, 8)])
def test_a_block_cannot_be_read_before_its_write_has_ended(arrival_ms: float, loaded: int) -> None:
    # Row 1 evicts 2 and 1 at 200 ms, in this order; each write takes 4 ms: 2 is there at 204, 1 at 208.
    rows: Rows = [(0.0, 8, 1, [1, 2]), (200.0, 8, 1, [3, 4]), (arrival_ms, 8, 1, [1, 2])]
    assert replayed(rows, 2, 10, read=2e6).columns["loaded_tokens"][2] == loaded


def test_the_ssd_gives_up_what_was_used_least_recently() -> None:
    # 2 blocks of SSD: 2, 1 at 100 ms; at 200 ms 4, 3 push both out. So 1, 2 are nowhere at 300 ms.
    rows: Rows = [(0.0, 8, 1, [1, 2]), (100.0, 8, 1, [3, 4]), (200.0, 8, 1, [5, 6]), (300.0, 8, 1, [1, 2])]
    replay = replayed(rows, 2, 2, read=2e6)
    assert hits(replay) == [0, 0, 0, 0]
    assert replay.counters["ssd_evictions"] == 4  # 2, 1, and when 6, 5 come at 300 ms, 4, 3
    assert hits(replayed(rows, 2, 4, read=2e6)) == [0, 0, 0, 8]


def test_loads_share_the_ssd_and_start_when_their_request_is_routed() -> None:
    # Two prefixes of 2 blocks each lie on the SSD. Both are wanted at 400 ms, 0.25 ms a token: 8 tokens take 2 ms
    # alone and 4 together, as they share. The first starts at 404 (1 ms to compute), the second, loaded by then too,
    # at 405. For the second the backlog is 2 ms and its own 2 ms: 4 ms < 7 ms saved.
    rows: Rows = [
        (0.0, 8, 1, [1, 2]), (100.0, 8, 1, [3, 4]), (200.0, 8, 1, [5, 6]), (300.0, 8, 1, [7, 8]),
        (400.0, 8, 1, [1, 2]), (400.0, 8, 1, [3, 4]),
    ]  # fmt: skip
    replay = replayed(rows, 4, 10, read=4e6)
    assert replay.columns["loaded_tokens"].tolist()[4:] == [8, 8]
    assert starts_ms(replay)[4:] == [404.0, 405.0]


def test_a_backlog_on_the_ssd_makes_recomputing_the_faster_choice() -> None:
    # At 0.5 ms a token each load takes 4 ms: the second would be behind 4 ms, 8 in all, and saves 7.
    rows: Rows = [
        (0.0, 8, 1, [1, 2]), (100.0, 8, 1, [3, 4]), (200.0, 8, 1, [5, 6]), (300.0, 8, 1, [7, 8]),
        (400.0, 8, 1, [1, 2]), (400.0, 8, 1, [3, 4]),
    ]  # fmt: skip
    replay = replayed(rows, 4, 10, read=2e6)
    assert replay.columns["loaded_tokens"].tolist()[4:] == [8, 0]
    assert replay.counters["loads_declined"] == 1


def test_a_prefix_may_alternate_between_pool_and_ssd() -> None:
    # Row 1 needs one slot of a pool of 3 and evicts 3, the tail of row 0 and its least recently used. Row 2 finds 1, 2
    # in the pool and 3 on the SSD: it loads 4 tokens in 2 ms instead of computing 4 - 1.
    rows: Rows = [(0.0, 12, 1, [1, 2, 3]), (100.0, 4, 1, [9]), (200.0, 12, 1, [1, 2, 3])]
    replay = replayed(rows, 3, 10, read=2e6)
    assert hits(replay) == [0, 0, 12]
    assert replay.columns["loaded_tokens"].tolist() == [0, 0, 4]
    assert starts_ms(replay)[2] == 202.0


def test_of_a_partial_last_block_only_its_tokens_are_loaded() -> None:
    # Prompts of 6 tokens: blocks of 4 and 2. Loading 6 tokens at 0.5 ms takes 3 ms.
    rows: Rows = [(0.0, 6, 1, [1, 2]), (100.0, 8, 1, [3, 4]), (200.0, 6, 1, [1, 2])]
    replay = replayed(rows, 2, 10, read=2e6)
    assert replay.columns["loaded_tokens"].tolist() == [0, 0, 6]
    assert starts_ms(replay)[2] == 203.0


def test_a_load_takes_slots_and_pushes_others_to_the_ssd() -> None:
    # After row 2 the pool holds 1, 2 again, and 3, 4 are on the SSD from 208 ms on: at 300 ms they are loaded.
    replay = replayed([*AGAIN, (300.0, 8, 1, [3, 4])], 2, 10, read=2e6)
    assert replay.columns["loaded_tokens"].tolist() == [0, 0, 8, 8]


def test_what_is_fetched_is_not_loaded_and_only_what_is_in_the_pool_is_fetched() -> None:
    # Instance 0 holds 1, 2; instance 1 had them, and they are on its SSD. A fetch of 8 tokens at 1 us each.
    rows: Rows = [(0.0, 8, 1, [1, 2]), (0.0, 8, 1, [1, 2]), (100.0, 8, 1, [3, 4]), (200.0, 8, 1, [1, 2])]
    routes = {0: Route(0), 1: Route(1), 2: Route(1), 3: Route(1, fetch_from=0)}
    replay = replayed(rows, 2, 10, read=2e6, routes=routes, cluster="2P+1D")
    assert replay.columns["fetched_tokens"].tolist() == [0, 0, 0, 8]
    assert replay.columns["loaded_tokens"].tolist() == [0, 0, 0, 0]


@dataclass
class Looks(Router):
    """Notes what it sees of the SSD."""

    name = "looks"

    def __post_init__(self) -> None:
        self.seen: list[Any] = []

    def route(self, request, cluster):
        tokens = cluster.loadable_tokens(request)
        missing = tokens - cluster.cached_tokens(request)
        self.seen.append((tokens.tolist()[0], cluster.cached_tokens(request).tolist()[0], cluster.load_ms(missing)[0]))
        return Route(0)


def test_a_policy_sees_what_could_be_loaded_and_how_long_that_takes() -> None:
    looks = Looks()
    replayed(AGAIN, 2, 10, read=2e6, router=looks)
    assert looks.seen == [(0, 0, 0.0), (0, 0, 0.0), (8, 0, 4.0)]
    without = Looks()
    replayed(AGAIN, 2, None, router=without)
    assert without.seen == [(0, 0, 0.0)] * 3


def test_the_harness_predicts_a_ttft_with_the_load() -> None:
    # 4 ms of load, 1 ms to compute
    assert replayed(AGAIN, 2, 10, read=2e6).columns["predicted_ttft_ms"][2] == 5.0


# invariants, over random worlds

prompts = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 3), st.integers(1, 24), st.integers(0, 2)), min_size=1, max_size=40
)


def world(drawn: list[tuple[int, int, int, int]]) -> Rows:
    """Rows of prompts that are prefixes of four documents, in order of time."""
    rows, now = [], 0.0
    for wait, document, tokens, output in drawn:
        now += wait
        rows.append((now, tokens, output + 1, [100 * document + i for i in range(-(-tokens // 4))]))
    return rows


@settings(max_examples=20, deadline=None, derandomize=True)
@given(prompts, st.integers(1, 12), st.integers(1, 12), st.sampled_from([2e6, 8e6, 64e6]))
def test_random_worlds_keep_every_invariant(drawn: Any, pool: int, ssd: int, read: float) -> None:
    replay = replayed(world(drawn), pool, ssd, read=read, write=4e6)  # raises when a rule is broken
    Run.from_replay(replay)
    assert (replay.columns["status"] == 1).all()


def test_a_pin_that_is_left_at_the_end_is_found() -> None:
    from mooncake_bench.sim.pool import Pool, PrefixIndex

    pool = Pool(PrefixIndex(1, 4), {0: 2}, lambda: bundled("lru"), "tail-first")
    _, stored = pool.claim(0, [1, 2], 0, 0)
    with pytest.raises(InvariantError, match="instance 0 has 2 blocks pinned at the end of the run"):
        pool.check_at_rest()
    pool.nodes[0].unpin(stored)
    with pytest.raises(InvariantError, match="2 blocks are still promised"):
        pool.check_at_rest()
    pool.nodes[0].set_ready(stored)
    pool.check_at_rest()


# more of one resource never lengthens a replay whose decisions are fixed

DRAWN = [tuple(row) for row in np.random.default_rng(5).integers((25, 0, 1, 0), (60, 4, 25, 1), (120, 4)).tolist()]


def ends(replay: Replay) -> Any:
    return replay.columns["first_token_ps"]


@pytest.mark.parametrize(("what", "values"), [("pool", [6, 8, 12, 24]), ("read", [4e6, 16e6, 1e9])])
def test_more_blocks_or_a_faster_ssd_never_lengthen_a_replay_of_fixed_decisions(what: str, values: list[float]) -> None:
    """One prefill node, LRU, pools no smaller than a prompt (6 blocks), and requests one after another.

    So what a smaller pool holds a larger one holds too; each prefix is computed or loaded as the sizes say.
    """
    rows, found = world(DRAWN), []
    for value in values:
        pool, ssd, read = (int(value), None, 1e6) if what == "pool" else (6, 100, value)
        found.append(ends(replayed(rows, pool, ssd, read=read, write=1e9)))
    for less, more in pairwise(found):
        assert (more <= less).all()
    assert (found[-1] < found[0]).any()


def test_a_faster_nic_never_lengthens_a_replay_of_fixed_decisions() -> None:
    """Instance 0 computes 20 documents of 24 tokens, and from 1,000 ms on instance 1 fetches one every 3 ms."""
    documents = [[100 * i + j for j in range(6)] for i in range(20)]
    rows: Rows = [(0.0, 24, 1, blocks) for blocks in documents]
    rows += [(1000.0 + 3 * i, 24, 1, blocks) for i, blocks in enumerate(documents)]
    routes = {i: Route(0) if i < 20 else Route(1, fetch_from=0) for i in range(40)}
    found = [
        ends(replayed(rows, 200, None, routes=routes, cluster="2P+1D", cost={"nic_bytes_per_s": nic}))
        for nic in (1e6, 3e6, 1e7, 1e8)
    ]
    for less, more in pairwise(found):
        assert (more <= less).all()
    # at 1 ms a token 20 fetches of 24 tokens take 480 ms; then 1 token is computed
    assert found[0][-1] >= (1000 + 480 + 1) * MS


# against lists kept by hand: requests one after another, so that nothing queues and every write has ended


def by_lists(rows: Rows, pool_blocks: int, ssd_blocks: int) -> list[tuple[int, int]]:
    """Hit and loaded tokens of each row: two lists, least recently used first, and a load of 1 us a token."""
    pool: list[int] = []
    ssd: list[int] = []
    told = []
    for _, tokens, _, blocks in rows:
        own = next((i for i, block in enumerate(blocks) if block not in pool), len(blocks))
        reach = next((i for i, block in enumerate(blocks) if block not in pool and block not in ssd), len(blocks))
        to_load = [block for block in blocks[:reach] if block not in pool]
        loaded = sum(min(4, tokens - 4 * blocks.index(block)) for block in to_load)
        before, after = min(4 * own, tokens), min(4 * reach, tokens)
        saved_ms = max(1, tokens - before) - max(1, tokens - after)
        if loaded * 0.001 >= saved_ms:
            to_load, loaded, after = [], 0, before
        for block in reversed(to_load):
            ssd.append(ssd.pop(ssd.index(block)))
        for block in [block for block in blocks if block not in pool]:
            if len(pool) == pool_blocks:
                victim = next((old for old in pool if old not in blocks), None)
                if victim is None:
                    break
                pool.remove(victim)
                room = len(ssd) < ssd_blocks or victim in ssd or next((b for b in ssd if b not in to_load), None)
                if room is not None:
                    if victim in ssd:
                        ssd.remove(victim)
                    elif len(ssd) == ssd_blocks:
                        ssd.remove(next(b for b in ssd if b not in to_load))
                    ssd.append(victim)
            pool.append(block)
        for block in reversed(blocks):
            if block in pool:
                pool.append(pool.pop(pool.index(block)))
        told.append((after, loaded))
    return told


@pytest.mark.parametrize(("pool", "ssd"), [(3, 2), (4, 9), (6, 3), (7, 12)])
def test_hits_and_loads_are_those_of_two_lists(pool: int, ssd: int) -> None:
    rows = world(DRAWN)
    replay = replayed(rows, pool, ssd, read=1e9, write=1e9)
    found = list(zip(hits(replay), replay.columns["loaded_tokens"].tolist(), strict=True))
    assert found == by_lists(rows, pool, ssd)
    assert sum(loaded for _, loaded in found) > 0


# off


def test_without_an_ssd_nothing_of_it_is_told() -> None:
    setup, replay = Setup(), replayed(AGAIN, 2, None)
    assert not [name for name in setup.to_dict() if name.startswith("ssd.")]
    assert not [name for name in replay.counters if "demotion" in name or "load" in name]
    assert "loaded_tokens" not in replay.columns
    assert set(Run.from_replay(replay).requests.column("loaded_tokens").to_pylist()) == {0}


def test_a_block_that_no_ssd_has_is_not_read_however_late_it_is() -> None:
    # 2^62 ps are 4.612e9 ms. A prompt that is turned away at 4.6e9 comes back 2e7 ms later, and finds nothing.
    class Once(Admission):
        name = "once"

        def reject(self, request, route, cluster):
            return None if request.attempt else "full"

    setup = Setup(cluster="1P+1D", pool_blocks=2, ssd_blocks=10, client_retries=1, client_backoff_ms=2e7)
    trace = Trace.of([(0.0, 8, 1, [1, 2]), (4.6e9, 8, 1, [3, 4])], block_tokens=4)
    replay = replay_with(trace, setup, Told({}), Once(), lambda: bundled("lru"), FakeCost(2))
    assert replay.columns["start_ps"][1] == 4_620_000_000 * MS > 1 << 62
    assert replay.counters["loads"] == 0


@pytest.mark.parametrize("name", ["ssd_read_gbytes_per_s", "ssd_write_gbytes_per_s"])
def test_the_rate_of_an_ssd_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(SetupError, match=r"no effect without ssd\.blocks"):
        Setup(**{name: 5.0})


def test_an_ssd_of_coupled_instances_is_refused() -> None:
    with pytest.raises(SetupError, match=r"ssd.blocks: no effect on cluster 4M"):
        Setup(cluster="4M", ssd_blocks=10)


# what is said of it


def test_a_run_whose_caches_never_evicted_says_that_more_dram_cannot_help() -> None:
    words = f"in {len(AGAIN)} requests no cache gave up or refused a block: more DRAM cannot help these"
    roomy, full = (Run.from_replay(replayed(AGAIN, pool, None)) for pool in (4, 2))
    assert [notice for notice in roomy.notices if words in notice]
    assert not [notice for notice in full.notices if words in notice]


# leases (mooncake-store): what pins what


def test_a_block_that_was_read_stays_until_its_lease_ends_and_not_a_moment_longer() -> None:
    # A store of 8 blocks that, above a use of 0.5, gives up all whose lease has ended as a request arrives; a read
    # leases for 1,000 ms, storing does not.
    rows: Rows = [
        (0.0, 8, 1, [1, 2]),
        (100.0, 8, 1, [1, 2]),  # read: leased until 1,100
        (200.0, 8, 1, [3, 4]),
        (300.0, 8, 1, [5, 6]),  # use was 4/8, not above 0.5, and is 6/8
        (400.0, 8, 1, [1, 2]),  # 3 to 6 go; 1, 2, stored before them, are hits, and leased until 1,400
        (500.0, 8, 1, [3, 4]),  # gone indeed; stored anew, use 4/8
        (600.0, 8, 1, [5, 6]),  # use 6/8
        (1400.0, 8, 1, [1, 2]),  # the leases have ended: all 6 go
    ]
    setup, store = Setup(cluster="1P+1D", pool_blocks=8), "mooncake-store:lease_ms=1000,high=0.5,ratio=1"
    replay = replay_with(
        Trace.of(rows, block_tokens=4), setup, Told({}), bundled("accept-all"), lambda: bundled(store), FakeCost(2)
    )
    assert hits(replay) == [0, 8, 0, 0, 8, 0, 0, 0]
    assert replay.counters["evictions"] == 4 + 6
    rows[-1] = (1399.9, 8, 1, [1, 2])
    replay = replay_with(
        Trace.of(rows, block_tokens=4), setup, Told({}), bundled("accept-all"), lambda: bundled(store), FakeCost(2)
    )
    assert hits(replay)[-1] == 8
