"""The evictions against lists that are searched from end to end, and by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_bench.checks import Scene
from mooncake_bench.plugins import build

if TYPE_CHECKING:
    from mooncake_bench.api import Eviction, Floats, Ints, Request


@dataclass
class Entry:
    """What the reference keeps of a stored block; times count events."""

    block: int
    position: int
    stored: int
    used: int
    uses: int = 0


Rank = Callable[[Entry], Any]

RANKS: dict[str, Rank] = {  # the entry of the smallest rank is given up
    "fifo": lambda entry: entry.stored,
    "lru": lambda entry: entry.used,
    "lfu": lambda entry: (entry.uses, entry.used),
    "length-aware": lambda entry: (entry.uses, -entry.position, entry.used),
    "length-aware:bias=keep": lambda entry: (entry.uses, entry.position, entry.used),
    "length-aware:bias=position": lambda entry: (-entry.position, entry.uses, entry.used),
}


class Reference:
    """A list of entries, searched from end to end for every victim."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.entries: list[Entry] = []
        self.clock = 0

    def insert(self, blocks: list[int], positions: list[int]) -> None:
        for block, position in zip(blocks, positions, strict=True):
            self.clock += 1
            self.entries.append(Entry(block, position, self.clock, self.clock))

    def touch(self, blocks: list[int]) -> None:
        for block in blocks:
            self.clock += 1
            entry = next(entry for entry in self.entries if entry.block == block)
            entry.used, entry.uses = self.clock, entry.uses + 1

    def evict(self, pinned: set[int]) -> int:
        victim = min((entry for entry in self.entries if entry.block not in pinned), key=self.rank)
        self.entries.remove(victim)
        return victim.block

    def remove(self, block: int) -> None:
        self.entries = [entry for entry in self.entries if entry.block != block]

    def blocks(self) -> set[int]:
        return {entry.block for entry in self.entries}


prompts = st.builds(
    lambda chain, length: [100 * chain + place for place in range(length)],
    st.integers(0, 4),
    st.integers(1, 7),
)
events = st.lists(
    st.one_of(
        st.tuples(st.just("request"), prompts),
        st.tuples(st.just("end"), st.integers(0, 10)),  # the running request of this index ends
        st.tuples(st.just("drop"), st.integers(0, 10)),  # the stored block of this index leaves
        st.tuples(st.just("evict"), st.just(0)),
    ),
    max_size=60,
)


@pytest.mark.parametrize("spec", RANKS)
@given(events=events, capacity=st.integers(1, 20), sequential=st.booleans())
def test_victims_are_those_of_a_list_searched_from_end_to_end(
    spec: str, events: list[tuple[str, Any]], capacity: int, sequential: bool
) -> None:
    policy, reference = build_cached(spec), Reference(RANKS[spec])
    policy.open(capacity)
    running: list[list[int]] = []
    for kind, what in events:
        pinned = {block for blocks in running for block in blocks}
        if kind == "request":
            serve(policy, reference, what, pinned, capacity, sequential)
            running.append([] if sequential else sorted(reference.blocks().intersection(what)))
        elif kind == "end" and running:
            running.pop(what % len(running))
        elif kind == "drop" and (loose := sorted(reference.blocks() - pinned)):
            policy.remove(loose[what % len(loose)])
            reference.remove(loose[what % len(loose)])
        elif kind == "evict" and reference.blocks() - pinned:
            assert policy.evict(pinned) == reference.evict(pinned)
    while reference.entries:
        assert policy.evict(set()) == reference.evict(set())


def serve(
    policy: Eviction, reference: Reference, prompt: list[int], pinned: set[int], capacity: int, sequential: bool
) -> None:
    """Store and touch a prompt: as a router's node does, or one block after the other as a single pool does."""
    for blocks in [[block] for block in prompt] if sequential else [prompt]:
        pinned = pinned | reference.blocks().intersection(blocks)
        absent = [block for block in blocks if block not in reference.blocks()]
        while len(reference.entries) + len(absent) > capacity and reference.blocks() - pinned:
            assert policy.evict(pinned) == reference.evict(pinned)
        absent = absent[: capacity - len(reference.entries)]
        positions = [prompt.index(block) for block in absent]
        policy.insert(absent, positions)
        reference.insert(absent, positions)
        used = [block for block in blocks[::-1] if block in reference.blocks()]
        if sequential:  # storing is the use
            used = [block for block in used if block not in absent]
        policy.touch(used, [prompt.index(block) for block in used])
        reference.touch(used)


FOUND: dict[str, Any] = {}


def build_cached(spec: str) -> Eviction:
    """A fresh eviction object; the SPEC is read once."""
    if spec not in FOUND:
        FOUND[spec] = build(spec)
    made: Eviction = FOUND[spec].evictions()
    return made


def eviction(spec: str) -> Eviction:
    """Blocks 10, 11, 12 at positions 0, 1, 2 of one prompt, stored and used once, tail first."""
    made = build(spec).evictions()
    made.open(3)
    made.insert([10, 11, 12], [0, 1, 2])
    made.touch([12, 11, 10], [2, 1, 0])
    return made


def drain(made: Eviction, count: int = 3) -> list[int]:
    return [made.evict(set()) for _ in range(count)]


@pytest.mark.parametrize(
    ("spec", "victims"),
    [
        ("lru", [12, 11, 10]),  # the tail was used first
        ("fifo", [10, 11, 12]),  # the head was stored first
        ("lfu", [12, 11, 10]),  # one use each: least recently used
        ("length-aware", [12, 11, 10]),  # one use each: the latest in its prompt
        ("length-aware:bias=keep", [10, 11, 12]),  # one use each: the earliest in its prompt
        ("length-aware:bias=position", [12, 11, 10]),
    ],
)
def test_victims_of_one_prompt(spec: str, victims: list[int]) -> None:
    assert drain(eviction(spec)) == victims


@pytest.mark.parametrize(
    ("spec", "victims"),
    [
        ("lru", [11, 10, 12]),
        ("fifo", [10, 11, 12]),
        ("lfu", [11, 10, 12]),
        ("length-aware", [11, 10, 12]),
        ("length-aware:bias=keep", [10, 11, 12]),
        ("length-aware:bias=position", [12, 11, 10]),  # whatever the uses
    ],
)
def test_victims_when_the_tail_was_used_again(spec: str, victims: list[int]) -> None:
    made = eviction(spec)
    made.touch([12], [2])
    assert drain(made) == victims


@pytest.mark.parametrize("spec", RANKS)
def test_pinned_blocks_stay_and_are_given_up_once_they_are_free(spec: str) -> None:
    made = eviction(spec)
    last = made.evict({10, 11})
    assert last == 12
    assert made.evict({10}) == 11
    assert made.evict(set()) == 10


@pytest.mark.parametrize("spec", RANKS)
def test_asking_for_a_victim_when_all_are_pinned_is_an_error_and_loses_nothing(spec: str) -> None:
    made = eviction(spec)
    with pytest.raises(LookupError, match="every stored block is pinned"):
        made.evict({10, 11, 12})
    assert sorted(drain(made)) == [10, 11, 12]


def test_lfu_forgets_the_count_of_a_block_that_left() -> None:
    made = eviction("lfu")
    made.touch([10, 10, 10], [0, 0, 0])
    made.remove(10)
    made.insert([10], [0])
    made.touch([10], [0])
    # 11 and 12 were used once and before: 12, 11; then 10, once again new
    assert drain(made) == [12, 11, 10]


NEWER = (
    "leaf-lru", "leaf-fifo", "leaf-slru", "clock", "sieve", "s3-fifo", "2q", "arc", "lru-k", "slru", "lfu-da", "gdsf",
    "w-tinylfu", "ttl", "mooncake-store",
)  # fmt: skip


def request(made: Eviction, row: int, blocks: list[int], new: bool) -> None:
    """A request as the cluster serves it: stored head first if new, then touched tail first."""
    made.begin(tuple(blocks), 1000.0 * row)
    if new:
        made.insert(blocks, range(len(blocks)))
    made.touch(blocks[::-1], range(len(blocks))[::-1])


@pytest.mark.parametrize("spec", NEWER)
def test_newer_policies_give_up_pinned_blocks_once_they_are_free(spec: str) -> None:
    made = build_cached(spec)
    made.open(4)
    request(made, 0, [10, 11, 12, 13], new=True)
    made.begin((20,), 1000.0)
    assert made.evict({10, 11, 12}) == 13
    assert made.evict({10, 11}) == 12
    with pytest.raises(LookupError, match="every stored block is pinned"):
        made.evict({10, 11})
    assert sorted([made.evict(set()), made.evict(set())]) == [10, 11]


@pytest.mark.parametrize("spec", NEWER)
def test_newer_policies_forget_a_dropped_block_and_take_it_back(spec: str) -> None:
    made = build_cached(spec)
    made.open(4)
    request(made, 0, [10, 11, 12, 13], new=True)
    made.remove(13)
    made.remove(12)
    made.begin((10, 11, 12), 1000.0)
    made.insert([12], [2])
    made.touch([12, 11, 10], [2, 1, 0])
    made.begin((), 2000.0)
    assert sorted(drain(made)) == [10, 11, 12]


@pytest.mark.parametrize("spec", [spec for spec in NEWER if spec not in ("2q", "leaf-fifo", "w-tinylfu")])
def test_the_touch_by_the_request_that_stored_a_block_is_no_second_use(spec: str) -> None:
    made = build_cached(spec)
    made.open(10)
    request(made, 0, [10], new=True)
    request(made, 1, [10], new=False)
    request(made, 2, [10], new=False)  # used by three requests
    request(made, 3, [20], new=True)
    request(made, 4, [30], new=True)
    made.begin((40,), 5000.0)
    assert made.evict(set()) == (10 if spec in ("leaf-lru", "ttl") else 20)


def test_w_tinylfu_protects_no_block_for_the_touch_by_the_request_that_stored_it() -> None:
    made = build_cached("w-tinylfu")
    made.open(10)
    request(made, 0, [10, 11], new=True)  # 10 leaves the window of one block for probation, and is touched there
    request(made, 1, [20], new=True)  # 11 follows it
    assert made.evict({20}) == 10


def test_gdsf_keeps_the_blocks_whose_prefill_costs_more() -> None:
    made = build_cached("gdsf")
    made.open(4)
    made.start(Pricey(), np.random.default_rng(0))
    request(made, 0, [10, 11, 12], new=True)
    # a block at position p takes 512 + 0.5 x 512 p ms after the blocks before it: worth 1, 1.5 and 2 of the first
    assert drain(made) == [10, 11, 12]
    made.open(4)
    request(made, 1, [20, 21], new=True)
    request(made, 2, [20], new=False)  # 2 x 1 against 1 x 1.5
    assert drain(made, 2) == [21, 20]


class Pricey(Scene):
    """Each computed token also attends to the tokens before it."""

    def prefill_ms(self, request: Request, cached: Ints) -> Floats:
        return np.where(self.is_prefill, request.input_tokens - cached + 0.5 * cached, np.inf)
