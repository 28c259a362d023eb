"""One node's pool with instant service against the published integer hits of an independent program."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from reference.workloads import bundled

from mooncake_bench.sim.pool import Pool, PrefixIndex
from mooncake_bench.trace import Trace, load

SHARED = Path(__file__).resolve().parents[2] / "shared"
TRACE = SHARED / "traces" / "mooncake-fast25" / "conversation_trace.jsonl"
ORACLE = SHARED / "oracles" / "mooncake-conversation.json"
BLOCK_TOKENS = 512
CAPACITIES = (1000, 5859, 10000, 30000, 50000, 97656, 100000)
POLICIES = {  # ours: the oracle's
    "lru": "lru",
    "lfu": "lfu",
    "fifo": "fifo",
    "length-aware": "length_aware",
    "length-aware:bias=position": "length_aware_p",
    "length-aware:bias=keep": "length_aware_keep",
}
# the others with -m benchmark: all of them take a minute
QUICK = {("lru", size) for size in (1000, 10000, 100000)} | {
    (policy, size) for policy in ("lfu", "fifo", "length-aware") for size in (1000, 100000)
}

pytestmark = pytest.mark.skipif(
    not (TRACE.is_file() and ORACLE.is_file()), reason="../shared has no conversation trace, or no oracle for it"
)


@cache
def prompts() -> list[tuple[int, tuple[int, ...]]]:
    """(input tokens, block ids) of each request."""
    trace: Trace = load(TRACE)
    return [(int(tokens), tuple(trace.blocks(row).tolist())) for row, tokens in enumerate(trace.input_tokens)]


@cache
def oracle() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ORACLE.read_text(encoding="utf-8"))
    return found


def one_node(policy: str, capacity: int) -> Pool:
    return Pool(PrefixIndex(1, BLOCK_TOKENS), {0: capacity}, lambda: bundled(policy), "head-first")


@pytest.mark.parametrize(
    ("policy", "capacity"),
    [
        pytest.param(policy, capacity, marks=[] if (policy, capacity) in QUICK else pytest.mark.benchmark)
        for policy in POLICIES
        for capacity in CAPACITIES
    ],
)
def test_a_pool_with_instant_service_hits_what_an_independent_program_hits(policy: str, capacity: int) -> None:
    node = one_node(policy, capacity).nodes[0]
    blocks = tokens = 0
    for length, prompt in prompts():
        hits = node.access(prompt)
        blocks += hits
        tokens += min(hits * BLOCK_TOKENS, length)
    expected = oracle()["forward"][POLICIES[policy]][str(capacity)]
    assert (blocks, tokens) == (expected["prefix_block_hits"], expected["prefix_token_hits"])


@pytest.mark.parametrize(("policy", "capacity"), [("lru", 1000), ("lru", 5859), ("lfu", 1000), ("fifo", 100000)])
def test_the_same_touched_tail_first(policy: str, capacity: int) -> None:
    pool = one_node(policy, capacity)
    node = pool.nodes[0]
    blocks = 0
    for _, prompt in prompts():
        blocks += pool.index.match(prompt).lengths[0]
        node.access(prompt[::-1])
    assert blocks == oracle()["reverse"][policy][str(capacity)]["prefix_block_hits"]


def test_a_pool_that_holds_everything_hits_the_infinite_cache() -> None:
    node = one_node("lru", 182_790).nodes[0]  # as many blocks as the trace has
    tokens = sum(min(node.access(prompt) * BLOCK_TOKENS, length) for length, prompt in prompts())
    assert tokens == oracle()["infinite_cache"]["prefix_tokens"]
    assert node.evictions == 0
