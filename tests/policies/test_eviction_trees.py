"""The evictions that know prompts or time against slow caches, and their rules by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instant import policy, serve
from slow_trees import LEAF_RANKS, LeafCache, TimedCache

LONGEST = 9


def tree_prompt(chain: int, branch_at: int, length: int) -> tuple[int, ...]:
    """Blocks of a prompt that shares two blocks with all others and more with those of its chain and branch."""
    ids = [place if place < 2 else 100 * (chain + 1) + place for place in range(length)]
    return tuple(block if place < branch_at + 3 else 1000 * (branch_at + 1) + block for place, block in enumerate(ids))


prompts = st.lists(st.builds(tree_prompt, st.integers(0, 3), st.integers(0, 4), st.integers(1, LONGEST)), max_size=70)


@pytest.mark.parametrize("name", LEAF_RANKS)
@pytest.mark.parametrize("reverse", [False, True])
@given(prompts=prompts, capacity=st.integers(LONGEST, 40))
@settings(max_examples=100)
def test_leaf_policies_give_up_the_leaf_that_a_search_finds(
    name: str, reverse: bool, prompts: list[tuple[int, ...]], capacity: int
) -> None:
    slow = LeafCache(name, capacity)
    expected = [hit for prompt in prompts for hit in slow.request(prompt, reverse)]
    assert serve(policy(name), capacity, prompts, reverse=reverse).blocks == expected


@pytest.mark.parametrize("name", ["leaf-lru", "leaf-fifo"])
@given(prompts=prompts, capacity=st.integers(1, LONGEST - 1))
def test_leaf_policies_do_so_on_nodes_smaller_than_a_prompt(
    name: str, prompts: list[tuple[int, ...]], capacity: int
) -> None:
    slow = LeafCache(name, capacity)
    expected = [hit for prompt in prompts for hit in slow.request(prompt, reverse=False)]
    assert serve(policy(name), capacity, prompts).blocks == expected


@pytest.mark.parametrize("name", LEAF_RANKS)
def test_a_prompt_that_the_node_cannot_hold_keeps_its_head(name: str) -> None:
    # 8 blocks into 5 slots: 0 to 4, then each of 5, 6, 7 takes the place of the one before; 0 to 3 are found again
    assert serve(policy(name), 5, [tuple(range(8))] * 2).prefix == [0, 4]


@pytest.mark.parametrize("name", ["ttl", "mooncake-store"])
@given(
    steps=st.lists(
        st.tuples(st.sampled_from((0.0, 1.0, 4999.5, 10_000.0, 299_999.0, 300_000.0)), st.integers(0, 40)), max_size=120
    ),
    capacity=st.integers(1, 30),
)
@settings(max_examples=200)
def test_timed_policies_give_up_what_a_search_finds(name: str, steps: list[tuple[float, int]], capacity: int) -> None:
    slow = TimedCache(name, capacity)
    times_ms, prompts, expected = [], [], []
    now_ms = 0.0
    for gap_ms, first in steps:
        now_ms += gap_ms
        times_ms.append(now_ms)
        prompts.append(tuple(range(first, first + 1 + first % 3)))
        expected += slow.request(prompts[-1], now_ms)
    assert serve(policy(name), capacity, prompts, times_ms).blocks == expected


def test_ttl_gives_a_block_up_at_the_end_of_its_life_and_not_before() -> None:
    made = policy("ttl:ttl_ms=10s")
    made.open(4)
    made.begin((1, 2), 0.0)
    made.insert((1, 2), (0, 1))
    made.begin((1,), 4000.0)
    made.touch((1,), (0,))
    assert list(made.expire(9999.0, set())) == []
    assert list(made.expire(10_000.0, {2})) == []  # pinned
    assert list(made.expire(13_999.0, set())) == [2]
    assert list(made.expire(14_000.0, set())) == [1]


def test_mooncake_store_gives_up_a_share_above_ninety_percent_and_no_running_lease() -> None:
    made = policy("mooncake-store")
    made.open(20)
    made.begin(tuple(range(18)), 0.0)
    made.insert(range(18), range(18))
    assert list(made.expire(1.0, set())) == []  # 18 / 20 is 0.9, no more
    made.begin((100, 101), 1.0)
    made.insert((100, 101), (0, 1))
    made.begin((0, 1, 2), 2.0)
    made.touch((0, 1, 2), (0, 1, 2))  # leases until 10,002 ms
    # use 1: 20 x max(0.05, 1 - 0.9 + 0.05 = 0.15) = 3 blocks, the oldest without a lease: 3, 4 and, 5 pinned, 6
    assert list(made.expire(3.0, {5})) == [3, 4, 6]
    made.begin((200,), 4.0)
    made.insert((200, 201, 202), (0, 1, 2))
    everything_but = set(range(7, 18)) | {5, 100, 101, 200, 201, 202}
    assert list(made.expire(10_001.0, everything_but)) == []  # the leases of 0, 1 and 2 run
    assert list(made.expire(10_002.0, everything_but)) == [0, 1, 2]
    assert made.evict(everything_but - {9}) == 9
