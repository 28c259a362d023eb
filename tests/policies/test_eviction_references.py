"""The evictions from the literature against slow caches written from their papers: the same hits, one by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instant import policy, serve
from slow_evictions import LRUK, S3FIFO, SLOW, ExactCounts
from thorough import many

references = st.one_of(
    st.lists(st.integers(0, 12), max_size=250),
    st.lists(st.integers(0, 40), min_size=100, max_size=400),
)


def made(spec: str, capacity: int) -> Any:
    """The policy; a w-tinylfu with exact counts, because what blocks share counters is no business of the paper's."""
    eviction = policy(spec)
    if spec == "w-tinylfu":
        opened = eviction.open

        def open_exact(capacity_blocks: int) -> None:
            opened(capacity_blocks)
            eviction._sketch = ExactCounts(10 * capacity)  # type: ignore[attr-defined]

        eviction.open = open_exact  # type: ignore[method-assign]
    return eviction


@pytest.mark.parametrize("spec", SLOW)
@given(blocks=references, capacity=st.integers(1, 24))
@settings(max_examples=many(50, 500))
def test_hits_are_those_of_the_paper(spec: str, blocks: list[int], capacity: int) -> None:
    slow = SLOW[spec](capacity)
    expected = [slow.access(block) for block in blocks]
    times_ms = [1000.0 * row for row in range(len(blocks))]
    assert serve(made(spec, capacity), capacity, [(block,) for block in blocks], times_ms).blocks == expected


@pytest.mark.parametrize("spec", [spec for spec in SLOW if spec not in ("w-tinylfu", "lru-k")])
@given(lengths=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), max_size=60), capacity=st.integers(1, 24))
@settings(max_examples=many(40, 400))
@pytest.mark.parametrize("reverse", [False, True])
def test_hits_of_prompts_are_those_of_their_blocks_one_by_one(
    spec: str, reverse: bool, lengths: list[tuple[int, int]], capacity: int
) -> None:
    prompts = [tuple(range(10 * chain, 10 * chain + length)) for chain, length in lengths]
    slow = SLOW[spec](capacity)
    expected = [slow.access(block) for prompt in prompts for block in (prompt[::-1] if reverse else prompt)]
    assert serve(policy(spec), capacity, prompts, reverse=reverse).blocks == expected


@given(blocks=references, capacity=st.integers(1, 24), k=st.integers(1, 4), retained_s=st.sampled_from((0, 7, 10**6)))
@settings(max_examples=many(50, 500))
def test_lru_k_remembers_the_uses_of_blocks_that_left_for_a_while(
    blocks: list[int], capacity: int, k: int, retained_s: int
) -> None:
    slow = LRUK(capacity, k, retained_s)
    expected = [slow.access(block) for block in blocks]
    eviction = policy(f"lru-k:k={k},retained_ms={retained_s}s")
    times_ms = [1000.0 * row for row in range(len(blocks))]
    assert serve(eviction, capacity, [(block,) for block in blocks], times_ms).blocks == expected


@given(blocks=references, capacity=st.integers(1, 24), promote=st.integers(1, 3))
def test_s3_fifo_promotes_after_as_many_uses_as_told(blocks: list[int], capacity: int, promote: int) -> None:
    slow = S3FIFO(capacity, promote)
    expected = [slow.access(block) for block in blocks]
    hits = serve(policy(f"s3-fifo:promote={promote}"), capacity, [(block,) for block in blocks])
    assert hits.blocks == expected
