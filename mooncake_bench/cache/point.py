"""One policy at one capacity: what hit, what missed, and why."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

TouchOrder = Literal["forward", "reverse"]
Assignment = Literal["round-robin", "hashed", "cache-aware"]

TOUCH_ORDERS: tuple[TouchOrder, ...] = ("forward", "reverse")
ASSIGNMENTS: tuple[Assignment, ...] = ("round-robin", "hashed", "cache-aware")


@dataclass(frozen=True)
class Misses:
    """Block references outside their request's prefix hit, each under one reason, as things stood at its arrival.

    ``prefix_blocks`` and these five add up to ``blocks``. Reasons are tried in the order of the fields.
    """

    first_sight: int  # no request before it had the block: no cache of any size hits
    not_ready: int  # stored in its pool, but less than ready_after_ms ago
    behind_gap: int  # stored and ready, but a block before it in the prompt was not: no part of the prefix
    elsewhere: int  # not in its pool, but in another one
    evicted: int  # was in a pool once, and is in none now

    @property
    def total(self) -> int:
        return sum(getattr(self, item.name) for item in fields(self))


@dataclass(frozen=True)
class FirstMiss:
    """Requests by the reason of their first missing block; ``none``: every block hit. They add up to ``requests``."""

    none: int
    first_sight: int
    not_ready: int
    elsewhere: int
    evicted: int


@dataclass(frozen=True)
class Point:
    """One policy at one capacity on one trace. Counts are of the measured requests: not the first ``warm_requests``.

    Two definitions of a hit. *Per block* (``block_hits``): each block of a prompt is looked up in turn, in touch
    order, and stored when absent. *Prefix* (``prefix_*``): the leading run of a prompt's blocks that its pool holds
    when the request arrives; its tokens are ``min(block_tokens * blocks, input_tokens)``, its full blocks leave out a
    hit partial block. A ratio's name ends in its denominator; it is None where that is 0.
    """

    policy: str  # label: the SPEC's, or the bound's name
    spec: str
    capacity_blocks: int | None  # of each pool; None: infinite
    pools: int
    assignment: Assignment | None  # None: there is one pool
    touch_order: TouchOrder
    ready_after_ms: float
    warm_requests: int
    block_tokens: int
    # the work
    requests: int
    blocks: int  # block references
    full_blocks: int  # of them, those that a prompt fills: sum of input_tokens // block_tokens
    tokens: int  # prompt tokens
    # the hits
    block_hits: int
    prefix_blocks: int
    prefix_full_blocks: int
    prefix_tokens: int
    requests_with_hit: int  # whose prefix hit is at least one block
    # why not more
    misses: Misses
    requests_by_first_miss: FirstMiss
    evictions: int
    evicted_ago_ms: Mapping[str, float] | None  # p50, p90, p99: how long before its miss an `evicted` block had gone
    peak_blocks: int  # most blocks that one pool held at the end of a request, warm ones too
    pool_requests: tuple[int, ...]  # measured requests of each pool

    @property
    def hit_ratio_per_block(self) -> float | None:
        """Per-block hits of all block references."""
        return _ratio(self.block_hits, self.blocks)

    @property
    def hit_ratio_blocks(self) -> float | None:
        """Prefix hits of all block references."""
        return _ratio(self.prefix_blocks, self.blocks)

    @property
    def hit_ratio_tokens(self) -> float | None:
        """Prefix hit tokens of all prompt tokens."""
        return _ratio(self.prefix_tokens, self.tokens)

    @property
    def hit_ratio_full_blocks(self) -> float | None:
        """Hit full blocks of all full blocks."""
        return _ratio(self.prefix_full_blocks, self.full_blocks)

    @property
    def prefix_blocks_over_full_blocks(self) -> float | None:
        """Prefix hits, partial blocks among them, over full blocks: a partial block counts above the line only."""
        return _ratio(self.prefix_blocks, self.full_blocks)


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
