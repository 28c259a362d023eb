"""Exact hit counts of a one-node pool with instant service against an independent program's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from thorough import spread

from mooncake_bench.plugins import build

if TYPE_CHECKING:
    from mooncake_bench.api import Eviction

SHARED = Path(__file__).resolve().parents[3] / "shared"
TRACE = SHARED / "traces" / "mooncake-fast25" / "conversation_trace.jsonl"
ORACLE = SHARED / "oracles" / "mooncake-conversation.json"

pytestmark = pytest.mark.skipif(
    not (TRACE.is_file() and ORACLE.is_file()),
    reason="the conversation trace and its oracle are not beside the repository",
)

SPECS = {  # the oracle's name: ours
    "lru": "lru",
    "lfu": "lfu",
    "fifo": "fifo",
    "length_aware": "length-aware",
    "length_aware_p": "length-aware:bias=position",
    "length_aware_keep": "length-aware:bias=keep",
}


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    with TRACE.open(encoding="utf-8") as lines:
        return [json.loads(line)["hash_ids"] for line in lines]


@pytest.fixture(scope="module")
def oracle() -> dict[str, dict[str, dict[str, int]]]:
    found: dict[str, dict[str, dict[str, int]]] = json.loads(ORACLE.read_text(encoding="utf-8"))["forward"]
    return found


def hits(eviction: Eviction, capacity: int, prompts: list[list[int]]) -> tuple[int, int]:
    """(block hits, leading block hits) when every block is looked up, and stored if absent, in order of position."""
    stored: set[int] = set()
    nothing: frozenset[int] = frozenset()
    block_hits = prefix_hits = 0
    eviction.open(capacity)
    for blocks in prompts:
        prefix_hits += next((place for place, block in enumerate(blocks) if block not in stored), len(blocks))
        for place, block in enumerate(blocks):
            if block in stored:
                block_hits += 1
                eviction.touch([block], [place])
                continue
            if len(stored) == capacity:
                stored.remove(eviction.evict(nothing))
            eviction.insert([block], [place])
            stored.add(block)
    return block_hits, prefix_hits


@pytest.mark.parametrize(
    ("policy", "capacity"),
    [
        (policy, capacity)
        for row, policy in enumerate(SPECS)
        for capacity in spread((1000, 10000, 30000, 100000), row, 2)
    ]
    + [("lru", capacity) for capacity in spread((5859, 50000, 97656), 0)],
)
def test_hits_of_the_conversation_trace_equal_the_oracle(
    policy: str, capacity: int, prompts: list[list[int]], oracle: dict[str, dict[str, dict[str, int]]]
) -> None:
    expected = oracle[policy][str(capacity)]
    found = hits(build(SPECS[policy]).evictions(), capacity, prompts)
    assert found == (expected["block_hits"], expected["prefix_block_hits"])
