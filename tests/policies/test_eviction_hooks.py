"""What the cluster tells and asks an eviction beyond its victims: ``begin`` and ``expire``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from instant import policy

from mooncake_bench.api import Eviction
from mooncake_bench.errors import PolicyError
from mooncake_bench.sim.pool import Node, Pool, PrefixIndex

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

MS = 10**9  # ps


def pool_of(spec: str) -> Pool:
    return Pool(PrefixIndex(2, 512), {0: 8, 1: 8}, lambda: policy(spec), "tail-first")


def served(pool: Pool, instance: int, blocks: tuple[int, ...], now_ms: int) -> None:
    new, stored = pool.claim(instance, blocks, 0, now_ms * MS)
    pool.nodes[instance].set_ready(new)
    pool.nodes[instance].unpin(stored)


def test_expired_blocks_leave_the_index_and_the_journal_says_so() -> None:
    pool = pool_of("ttl:ttl_ms=10s")
    pool.index.journal = []
    served(pool, 0, (1, 2, 3), now_ms=0)
    served(pool, 1, (1, 2), now_ms=5000)
    for node in pool.expiring:
        node.expire(10_000.0)
    assert pool.index.holders == {1: 0b10, 2: 0b10}
    what, bit, blocks = pool.index.journal[-1]
    assert (what, bit, sorted(blocks)) == ("gone", 0b01, [1, 2, 3])
    assert (pool.nodes[0].resident, pool.nodes[0].evictions) == (0, 3)


def test_blocks_of_a_request_that_has_not_been_prefilled_do_not_expire() -> None:
    pool = pool_of("ttl:ttl_ms=10s")
    new, stored = pool.claim(0, (1, 2, 3), 0, now_ps=0)
    pool.nodes[0].expire(60_000.0)
    assert pool.nodes[0].resident == 3
    pool.nodes[0].set_ready(new)
    pool.nodes[0].unpin(stored)
    pool.nodes[0].expire(60_000.0)
    assert pool.nodes[0].resident == 0


def test_policies_that_never_expire_anything_are_not_asked() -> None:
    assert pool_of("lru").expiring == []
    assert not any(node.begins for node in pool_of("lru").nodes.values())


class Greedy(Eviction):
    """Gives up what it must not."""

    name = "greedy"

    def expire(self, now_ms: float, pinned: Container[int]) -> Sequence[int]:
        return [1]


@pytest.mark.parametrize(("pinned", "state"), [([1], "pinned by a running request"), ([], "not stored on this node")])
def test_expiring_a_block_that_must_stay_is_the_policys_fault(pinned: list[int], state: str) -> None:
    node = Node(0, 4, PrefixIndex(1, 512), Greedy())
    if pinned:
        node.store(pinned, ())
        node.pin(pinned)
    with pytest.raises(PolicyError, match=rf"policy 'greedy': expire\(\) returned block 1, which is {state}"):
        node.expire(0.0)
