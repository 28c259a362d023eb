"""Small random traces: against lists searched from end to end, and what must hold whatever the trace."""

from __future__ import annotations

from dataclasses import astuple
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncake_bench.cache import Point, belady, lru_curve, optimum, simulate, study
from mooncake_bench.cache.simulate import serve
from mooncake_bench.cache.spec import choose
from mooncake_bench.errors import PolicyError, SetupError
from mooncake_bench.trace import Trace

BLOCK = 4
SPECS = (
    "lru", "fifo", "lfu", "lfu:ties=insertion", "lfu:counts=perfect", "lfu:counts=perfect,ties=insertion",
    "length-aware", "length-aware:bias=keep", "length-aware:bias=position",
)  # fmt: skip

read_once = cache(choose)  # simulate() reads all policy files on each call; here are thousands of calls


def run(
    trace: Trace,
    spec: str,
    capacity: int | None,
    touch_order: Any = "forward",
    pools: int = 1,
    assignment: Any = "round-robin",
    warm_requests: int = 0,
) -> Point:
    """simulate(), with the policy read before."""
    return serve(trace, read_once(spec), capacity, touch_order, pools, assignment, 0.0, warm_requests)


@st.composite
def traces(draw: Any) -> Trace:
    """Up to 14 prompts down a small tree: a block's id says the whole way to it, as a chained hash does."""
    rows, now, names = [], 0, {}
    for _ in range(draw(st.integers(1, 14))):
        way = tuple(draw(st.lists(st.integers(0, 2), min_size=1, max_size=6)))
        blocks = [names.setdefault(way[: depth + 1], len(names)) for depth in range(len(way))]
        now += draw(st.sampled_from([0, 1, 5]))
        rows.append((float(now), BLOCK * len(way) - draw(st.integers(0, BLOCK - 1)), 1, blocks))
    return Trace.of(rows, BLOCK)


class Slow:
    """One pool as a list of [block, place, stored, used, uses], the victim searched from end to end."""

    def __init__(self, spec: str, capacity: int) -> None:
        self.spec, self.capacity, self.entries, self.clock, self.past = spec, capacity, [], 0, {}
        self.evictions = 0

    def rank(self, entry: list[int]) -> Any:
        block, place, stored, used, uses = entry
        return {
            "lru": used,
            "fifo": stored,
            "lfu": (uses, used),
            "lfu:ties=insertion": (uses, stored),
            "lfu:counts=perfect": (self.past.get(block), used),
            "lfu:counts=perfect,ties=insertion": (self.past.get(block), stored),
            "length-aware": (uses, -place, used),
            "length-aware:bias=keep": (uses, place, used),
            "length-aware:bias=position": (-place, uses, used),
        }[self.spec]

    def holds(self, block: int) -> bool:
        return any(entry[0] == block for entry in self.entries)

    def access(self, block: int, place: int) -> bool:
        self.clock += 1
        hit = self.holds(block)
        if hit:
            entry = next(entry for entry in self.entries if entry[0] == block)
            entry[3], entry[4] = self.clock, entry[4] + 1
        else:
            if len(self.entries) == self.capacity:
                self.entries.remove(min(self.entries, key=self.rank))
                self.evictions += 1
            self.entries.append([block, place, self.clock, self.clock, 1])
        self.past[block] = self.past.get(block, 0) + 1
        return hit


def slow(trace: Trace, spec: str, capacity: int, reverse: bool, warm: int = 0) -> tuple[int, int, int, int]:
    """(hits per block, prefix blocks, prefix tokens, evictions)."""
    pool, totals = Slow(spec, capacity), [0, 0, 0, 0]
    for row in range(len(trace)):
        blocks, before = trace.blocks(row).tolist(), pool.evictions
        prefix = 0
        while prefix < len(blocks) and pool.holds(blocks[prefix]):
            prefix += 1
        turns = [(place, blocks[place]) for place in range(len(blocks))][:: -1 if reverse else 1]
        hits = sum([pool.access(block, place) for place, block in turns])
        if row >= warm:
            found = hits, prefix, min(prefix * BLOCK, int(trace.input_tokens[row])), pool.evictions - before
            totals = [total + one for total, one in zip(totals, found, strict=True)]
    return tuple(totals)  # type: ignore[return-value]


def counts(point: Point) -> tuple[int, int, int, int]:
    return point.block_hits, point.prefix_blocks, point.prefix_tokens, point.evictions


@pytest.mark.parametrize("spec", SPECS)
@given(trace=traces(), capacity=st.integers(1, 12), reverse=st.booleans(), warm=st.integers(0, 3))
@settings(max_examples=25)
def test_a_policy_gives_what_a_list_searched_from_end_to_end_gives(
    spec: str, trace: Trace, capacity: int, reverse: bool, warm: int
) -> None:
    warm = min(warm, len(trace) - 1)
    point = run(trace, spec, capacity, touch_order="reverse" if reverse else "forward", warm_requests=warm)
    assert counts(point) == slow(trace, spec, capacity, reverse, warm)
    assert point.prefix_blocks + point.misses.total == point.blocks
    assert sum(astuple(point.requests_by_first_miss)) == point.requests
    assert point.peak_blocks <= capacity


@given(trace=traces(), reverse=st.booleans(), warm=st.integers(0, 3))
@settings(max_examples=25)
def test_the_lru_curve_is_simulate_at_every_capacity(trace: Trace, reverse: bool, warm: int) -> None:
    order, warm = "reverse" if reverse else "forward", min(warm, len(trace) - 1)
    every = range(1, len(set(trace.block_ids.tolist())) + 2)
    curve = lru_curve(trace, every, touch_order=order, warm_requests=warm)  # type: ignore[arg-type]
    for at, capacity in enumerate(every):
        point = run(trace, "lru", capacity, touch_order=order, warm_requests=warm)
        ours = curve.block_hits[at], curve.prefix_blocks[at], curve.prefix_full_blocks[at], curve.prefix_tokens[at]
        assert ours == (point.block_hits, point.prefix_blocks, point.prefix_full_blocks, point.prefix_tokens)
        totals = curve.requests, curve.blocks, curve.full_blocks, curve.tokens
        assert totals == (point.requests, point.blocks, point.full_blocks, point.tokens)
    steps = lru_curve(trace, touch_order=order, warm_requests=warm)  # type: ignore[arg-type]
    for at, capacity in enumerate(steps.capacities.tolist()):
        assert steps.block_hits[at] == curve.block_hits[capacity - 1]
        assert steps.prefix_tokens[at] == curve.prefix_tokens[capacity - 1]


def best_batch(trace: Trace, capacity: int) -> int:
    """Most hits of any choice of what to keep after each request, by trying all of them."""
    rows = [frozenset(trace.blocks(row).tolist()) for row in range(len(trace))]
    best: dict[frozenset[int], int] = {frozenset(): 0}
    for prompt in rows:
        after: dict[frozenset[int], int] = {}
        for held, hits in best.items():
            total, union = hits + len(held & prompt), sorted(held | prompt)
            for bits in range(1 << len(union)):
                if bits.bit_count() <= capacity:
                    kept = frozenset(block for at, block in enumerate(union) if bits >> at & 1)
                    after[kept] = max(after.get(kept, 0), total)
        best = after
    return max(best.values())


@st.composite
def tiny_traces(draw: Any) -> Trace:
    prompts = draw(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3, unique=True), min_size=1, max_size=5))
    return Trace.of([(float(at), BLOCK * len(blocks), 1, blocks) for at, blocks in enumerate(prompts)], BLOCK)


@given(trace=tiny_traces(), capacity=st.integers(1, 4))
@settings(max_examples=25)
def test_the_optimum_is_the_best_of_all_choices(trace: Trace, capacity: int) -> None:
    assert optimum(trace, capacity).block_hits == best_batch(trace, capacity)


@given(trace=traces(), reverse=st.booleans())
@settings(max_examples=25)
def test_belady_gives_up_the_block_used_farthest_ahead(trace: Trace, reverse: bool) -> None:
    order: Any = "reverse" if reverse else "forward"
    turns = [block for row in range(len(trace)) for block in trace.blocks(row).tolist()[:: -1 if reverse else 1]]
    for capacity in range(1, 8):
        for bypass in (False, True):
            held: set[int] = set()
            hits = evictions = 0
            for at, block in enumerate(turns):
                ahead = turns[at + 1 :]
                hits += block in held
                if block not in held and len(held) == capacity:
                    among = held | {block} if bypass else held
                    farthest = max(among, key=lambda one: ahead.index(one) if one in ahead else len(turns))
                    held.discard(farthest)
                    evictions += 1
                    if farthest == block:
                        continue
                held.add(block)
            point = belady(trace, capacity, bypass=bypass, touch_order=order)
            assert point.block_hits == hits
            assert bypass or point.evictions == evictions
            assert point.prefix_blocks + point.misses.total == point.blocks


@given(trace=traces())
@settings(max_examples=25)
def test_nothing_beats_the_optimum_which_like_lru_grows_with_capacity(trace: Trace) -> None:
    unlimited = run(trace, "lru", None)
    curve = lru_curve(trace, range(1, 10))
    assert (curve.block_hits[1:] >= curve.block_hits[:-1]).all()
    before = 0
    for capacity in range(1, 10):
        best = optimum(trace, capacity)
        assert before <= best.prefix_blocks == best.block_hits <= unlimited.prefix_blocks  # a chain hits from its head
        before = best.block_hits
        points = [run(trace, spec, capacity, touch_order="reverse") for spec in SPECS]
        points += [belady(trace, capacity), belady(trace, capacity, bypass=True)]
        for point in points:
            assert max(point.block_hits, point.prefix_blocks) <= best.block_hits
            assert point.misses.first_sight == unlimited.misses.first_sight


# several pools, late blocks


@given(
    trace=traces(),
    capacity=st.integers(1, 12),
    pools=st.integers(2, 4),
    rule=st.sampled_from(["round-robin", "hashed"]),
)
@settings(max_examples=25)
def test_fixed_pools_are_as_many_separate_caches(trace: Trace, capacity: int, pools: int, rule: Any) -> None:
    from mooncake_bench.cache.assign import fixed

    of = fixed(trace, rule, pools)
    assert of is not None
    parts = [[row for row in range(len(trace)) if of[row] == pool] for pool in range(pools)]
    apart = [
        slow(Trace.of([row_of(trace, row) for row in rows], BLOCK), "lfu", capacity, False) for rows in parts if rows
    ]
    point = run(trace, "lfu", capacity, pools=pools, assignment=rule)
    assert counts(point) == tuple(map(sum, zip(*apart, strict=True)))
    assert point.pool_requests == tuple(map(len, parts))
    assert point.prefix_blocks + point.misses.total == point.blocks
    whole = run(trace, "lfu", None)
    assert point.misses.first_sight == whole.misses.first_sight


def row_of(trace: Trace, row: int) -> tuple[float, int, int, list[int]]:
    return float(trace.arrival_ms[row]), int(trace.input_tokens[row]), 1, trace.blocks(row).tolist()


def rows(*given: tuple[float, list[int]], tokens: int | None = None) -> Trace:
    return Trace.of([(at, BLOCK * len(blocks) if tokens is None else tokens, 1, blocks) for at, blocks in given], BLOCK)


def test_a_block_in_another_pool_is_a_miss_elsewhere() -> None:
    # Pools 0 and 1 in turn: 1 has never seen [1, 2]; then 0 has both again.
    point = simulate(rows((0, [1, 2]), (1, [1, 2]), (2, [1, 2])), "lru", 2, pools=2)
    assert (point.misses.first_sight, point.misses.elsewhere, point.prefix_blocks) == (2, 2, 2)
    assert (point.requests_by_first_miss.elsewhere, point.requests_by_first_miss.none) == (1, 1)


def test_cache_aware_goes_where_the_prefix_is_longest_then_to_the_idlest_then_to_the_lowest() -> None:
    # 0: all equal, pool 0. 1: nobody has [5], pools 1 and 2 served none, 1 is lower. 2: pool 2. 3: [1, 2] is on pool 0.
    trace = rows((0, [1, 2]), (1, [5]), (2, [7]), (3, [1, 2, 3]), (4, [7]), (5, [9]))
    point = simulate(trace, "lru", 10, pools=3, assignment="cache-aware")
    assert point.pool_requests == (2, 2, 2)  # the last one: pool 1 served fewest
    assert point.prefix_blocks == 3


def test_hashed_keeps_prompts_of_one_beginning_together_and_uses_every_pool() -> None:
    import numpy as np

    from mooncake_bench.cache.assign import fixed

    of = fixed(rows(*[(at, [0, 1 + at % 50, 1000 + at]) for at in range(1000)]), "hashed", 4)
    assert of is not None
    assert all(len(set(of[first::50].tolist())) == 1 for first in range(50))
    assert np.bincount(of, minlength=4).min() > 0


def test_a_block_is_ready_only_after_its_time() -> None:
    # Stored at 0, ready at 10: not at 9, and at 10.
    trace = rows((0, [1, 2]), (9, [1, 2]), (10, [1, 2]))
    point = simulate(trace, "lru", 4, ready_after_ms=10)
    assert (point.misses.first_sight, point.misses.not_ready, point.prefix_blocks, point.block_hits) == (2, 2, 2, 2)
    assert (point.requests_by_first_miss.not_ready, point.requests_by_first_miss.none) == (1, 1)


def test_a_block_behind_a_gap_is_no_part_of_the_prefix() -> None:
    # FIFO, 2 blocks: [1, 2], then [3] for 1; then 1 is gone, and 2 stands behind the gap. 1 had left 4 ms before.
    point = simulate(rows((0, [1, 2]), (1, [3]), (5, [1, 2])), "fifo", 2)
    assert (point.misses.first_sight, point.misses.behind_gap, point.misses.evicted) == (3, 1, 1)
    assert point.evicted_ago_ms == {"p50": 4.0, "p90": 4.0, "p99": 4.0}
    assert point.requests_by_first_miss.evicted == 1


def test_a_prompt_longer_than_the_cache_evicts_itself() -> None:
    # LRU of 2 under [1, 2, 3] twice: 2 and 3 stay, so nothing of the prefix; storing 1 then drops 2, and so on.
    assert counts(simulate(rows((0, [1, 2, 3]), (1, [1, 2, 3])), "lru", 2)) == (0, 0, 0, 4)
    # Tail first 2 and 1 stay: two hits in advance, but storing 3 drops 2, storing 2 drops 1, and so on.
    assert counts(simulate(rows((0, [1, 2, 3]), (1, [1, 2, 3])), "lru", 2, touch_order="reverse")) == (0, 2, 8, 4)


def test_a_partial_block_counts_its_tokens_and_is_no_full_block() -> None:
    # Two blocks of 4 tokens, 6 tokens in all: the second holds 2.
    point = simulate(rows((0, [1, 2]), (1, [1, 2]), tokens=6), "lru", 4)
    assert (point.prefix_blocks, point.prefix_tokens, point.prefix_full_blocks) == (2, 6, 1)
    assert (point.hit_ratio_tokens, point.hit_ratio_full_blocks) == (0.5, 0.5)
    assert point.prefix_blocks_over_full_blocks == 1.0  # 2 of 2: the partial one above the line only


def test_perfect_lfu_counts_storing_and_the_touch_that_follows_as_one_use() -> None:
    from mooncake_bench.plugins import build

    made = build("lfu:counts=perfect").evictions()
    made.open(2)
    for block in (1, 2):  # as a node of the cluster does: store, then touch
        made.begin((block,), 0.0)
        made.insert((block,), (0,))
        made.touch((block,), (0,))
    made.begin((1,), 1.0)
    made.touch((1,), (0,))  # 1: twice, 2: once
    assert made.evict(()) == 2
    made.begin((2,), 2.0)
    made.insert((2,), (0,))  # 2: twice now, and later than 1
    assert made.evict(()) == 1


# faults, and many at once


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"capacity_blocks": 0}, "capacity is 0 blocks; expected at least 1"),
        ({"warm_requests": 2}, "warm_requests is 2; expected from 0 to 1"),
        ({"pools": 0}, "pools is 0; expected from 1"),
        ({"assignment": "hashd"}, "did you mean 'hashed'"),
        ({"touch_order": "back"}, "expected one of forward, reverse"),
        ({"ready_after_ms": -1.0}, "ready_after_ms is -1"),
    ],
)
def test_a_number_out_of_range_is_an_error(change: dict[str, Any], words: str) -> None:
    given = {"trace": rows((0, [1]), (1, [2])), "spec": "lru", "capacity_blocks": 4} | change
    with pytest.raises(SetupError, match=words):
        simulate(**given)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("load-balancing", "is of kind router, which a cache without a cluster has no use for"),
        ("kvcache-centric+lru", "is of kind router"),
        ("lru+fifo", "names 2 eviction policies"),
        ("lrv", "unknown policy 'lrv'; did you mean 'lru'"),
    ],
)
def test_a_spec_that_is_not_one_eviction_policy_is_an_error(spec: str, words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        simulate(rows((0, [1])), spec, 4)


WRONG = """
from mooncake_bench.api import Eviction
class Wrong(Eviction):
    name = "wrong"
    def evict(self, pinned):
        {body}
"""


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return 99", r"policy 'wrong': evict\(\) returned block 99, which is not stored"),
        ("raise ValueError('no idea')", r"policy 'wrong', request 1: it raised ValueError: no idea at wrong.py:6"),
    ],
)
def test_a_policy_at_fault_is_named(tmp_path: Any, body: str, words: str) -> None:
    (tmp_path / "wrong.py").write_text(WRONG.format(body=body), encoding="utf-8")
    with pytest.raises(PolicyError, match=words):
        simulate(rows((0, [1]), (1, [2])), str(tmp_path / "wrong.py"), 1)


def test_a_policy_that_expires_blocks_gives_them_up_before_hits_are_counted(tmp_path: Any) -> None:
    (tmp_path / "brief.py").write_text(
        "from mooncake_bench.api import Eviction\n"
        "class Brief(Eviction):\n"
        "    name = 'brief'\n"
        "    def open(self, capacity_blocks):\n"
        "        self.held = []\n"
        "    def insert(self, blocks, positions):\n"
        "        self.held += blocks\n"
        "    def expire(self, now_ms, pinned):\n"
        "        gone, self.held = (self.held, []) if now_ms >= 5 else ([], self.held)\n"
        "        return gone\n"
        "    def evict(self, pinned):\n"
        "        return self.held.pop(0)\n",
        encoding="utf-8",
    )
    # At 1 all hits; at 5 both are given up first, at that moment.
    point = simulate(rows((0, [1, 2]), (1, [1, 2]), (5, [1, 2])), str(tmp_path / "brief.py"), None)
    assert (point.prefix_blocks, point.misses.evicted, point.evictions) == (2, 2, 2)
    assert point.evicted_ago_ms == {"p50": 0.0, "p90": 0.0, "p99": 0.0}


def test_a_study_over_processes_is_the_study_in_one() -> None:
    trace = rows(*[(at, [0, 1 + at * 7 % 5, 10 + at % 3]) for at in range(40)])
    told: list[tuple[int, int]] = []
    specs, capacities = ["lru", "fewest=lfu", "optimum", "belady", "belady-bypass"], [2, 5, None]
    here = study(trace, specs, capacities, processes=1)
    assert study(trace, specs, capacities, processes=2, progress=lambda *done: told.append(done)) == here
    assert told == [(done, 15) for done in range(1, 16)]
    assert [(point.policy, point.capacity_blocks) for point in here[3:6]] == [
        ("fewest", 2),
        ("fewest", 5),
        ("fewest", None),
    ]


def test_a_bound_for_one_pool_is_refused_for_several() -> None:
    with pytest.raises(
        SetupError, match="optimum is a bound for one pool with instant service; leave it out with 2 pools"
    ):
        study(rows((0, [1])), ["optimum"], [4], pools=2)


def test_one_request_and_no_request() -> None:
    import numpy as np

    one = rows((0, [1, 2]))
    nothing = np.zeros(0, np.int64)
    none = Trace("none", np.zeros(0), nothing, nothing, np.zeros(1, np.int64), nothing)
    for trace, blocks in ((one, 2), (none, 0)):
        points = [simulate(trace, "lru", 4), optimum(trace, 4), belady(trace, None), simulate(trace, "lru", 4, pools=3)]
        for point in points:
            assert (point.blocks, point.misses.first_sight, point.block_hits) == (blocks, blocks, 0)
            assert point.evicted_ago_ms is None
        assert lru_curve(trace, [4]).block_hits.tolist() == [0]
        assert lru_curve(trace).capacities.tolist() == []
    assert simulate(none, "lru", 4).hit_ratio_tokens is None
