"""LRU at all capacities in one pass over the trace, by stack distances (Mattson, Gecsei, Slutz, Traiger 1970).

LRU holds a block at capacity C exactly when fewer than C other blocks were used since its last use. The distinct blocks
used between two moments are those references whose own previous one lies before both; how many those are is counted for
all references at once, bit by bit of that previous number, as a wavelet matrix does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.cache.columns import check_numbers
from mooncake_bench.cache.uses import Uses, uses

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mooncake_bench.cache.point import TouchOrder
    from mooncake_bench.trace import Trace
    from mooncake_bench.trace.model import Ints

_NEVER = np.iinfo(np.int64).max  # the capacity a first sight needs


@dataclass(frozen=True, eq=False)
class Curve:
    """Exact LRU hits at each of ``capacities`` (blocks, ascending); the counts stand in parallel, shape (n,).

    Names and definitions are those of :class:`Point`.
    """

    touch_order: TouchOrder
    warm_requests: int
    block_tokens: int
    requests: int
    blocks: int
    full_blocks: int
    tokens: int
    capacities: Ints
    block_hits: Ints
    prefix_blocks: Ints
    prefix_full_blocks: Ints
    prefix_tokens: Ints


def lru_curve(
    trace: Trace,
    capacities: Iterable[int] | None = None,
    *,
    touch_order: TouchOrder = "forward",
    warm_requests: int = 0,
) -> Curve:
    """Exact LRU hits at ``capacities``, or (None) at every capacity at which any of the counts grows.

    Equal to :func:`simulate` with ``lru`` on one pool. The last capacity of the full curve gives what an infinite
    cache gives. Raises SetupError for a capacity below 1.
    """
    wanted = None if capacities is None else np.array(sorted(set(capacities)), np.int64)
    check_numbers(trace, None if wanted is None or not len(wanted) else int(wanted[0]), warm_requests)
    seen = uses(trace, reverse=touch_order == "reverse")
    for_block, for_prefix = needed(seen)
    measured = seen.row >= warm_requests
    full = trace.input_tokens // trace.block_tokens
    is_full = seen.place < full[seen.row]
    last_tokens = trace.input_tokens - full * trace.block_tokens
    weights = np.where(is_full, trace.block_tokens, last_tokens[seen.row])
    hit_block, hit_prefix = measured & (for_block != _NEVER), measured & (for_prefix != _NEVER)
    if wanted is None:
        wanted = np.union1d(for_block[hit_block], for_prefix[hit_prefix])
    rows = slice(warm_requests, None)
    return Curve(
        touch_order=touch_order,
        warm_requests=warm_requests,
        block_tokens=trace.block_tokens,
        requests=len(trace) - warm_requests,
        blocks=int(measured.sum()),
        full_blocks=int(full[rows].sum()),
        tokens=int(trace.input_tokens[rows].sum()),
        capacities=wanted,
        block_hits=_total(for_block[hit_block], None, wanted),
        prefix_blocks=_total(for_prefix[hit_prefix], None, wanted),
        prefix_full_blocks=_total(for_prefix[hit_prefix], is_full[hit_prefix].astype(np.int64), wanted),
        prefix_tokens=_total(for_prefix[hit_prefix], weights[hit_prefix], wanted),
    )


def needed(seen: Uses) -> tuple[Ints, Ints]:
    """The smallest capacity at which each reference is a hit per block, and part of its prompt's prefix hit.

    Shape (m,), in touch order; ``_NEVER`` where none is large enough.
    """
    again = np.flatnonzero(seen.previous >= 0)
    previous = seen.previous[again]
    by_turn = np.full(len(seen.row), _NEVER, np.int64)
    at_arrival = by_turn.copy()
    # References before a moment whose previous one is no later than `previous`, less those up to and with `previous`
    # itself: the distinct blocks used in between. The first sights among them are counted apart.
    before = np.arange(len(again))
    sights = again - before  # first sights before each of these references
    by_turn[again] = sights + _smaller_before(previous, before) - previous
    start = seen.start[again]
    before = np.searchsorted(again, start)
    at_arrival[again] = start - before + _smaller_before(previous, before) - previous
    return by_turn, _running_maximum(seen, at_arrival)


def _smaller_before(values: Ints, before: Ints) -> Ints:
    """For each i, how many of ``values[:before[i]]`` are no larger than ``values[i]``; the values are distinct, >= 0.

    ``before[i] <= i`` where ``values[i]`` itself must not count.
    """
    order = np.argsort(values, kind="stable")
    ranks = np.empty(len(values), np.int64)
    ranks[order] = np.arange(len(values))
    count = np.zeros(len(values), np.int64)
    begin, end, here = np.zeros_like(before), before, ranks  # those of `here` that share the higher bits of each rank
    for bit in range(len(values).bit_length() - 1, -1, -1):
        ones = (here >> bit) & 1
        zeros_before = np.concatenate(([0], np.cumsum(1 - ones)))
        zeros_begin, zeros_end = zeros_before[begin], zeros_before[end]
        high = (ranks >> bit) & 1 == 1
        count += np.where(high, zeros_end - zeros_begin, 0)
        begin = np.where(high, zeros_before[-1] + begin - zeros_begin, zeros_begin)
        end = np.where(high, zeros_before[-1] + end - zeros_end, zeros_end)
        here = np.concatenate((here[ones == 0], here[ones == 1]))  # sorted by the bits done so far, last one first
    return count


def _running_maximum(seen: Uses, capacity: Ints) -> Ints:
    """The largest capacity up to and with each reference, from the head of its prompt."""
    by_place = seen.start + seen.place  # where each reference stands when prompts are head first
    head_first = np.empty_like(capacity)
    head_first[by_place] = capacity
    finite = head_first != _NEVER
    top = int(head_first[finite].max(initial=0)) + 1
    lifted = np.where(finite, head_first, top) + seen.row * (top + 1)  # so that a prompt starts above all before it
    highest = np.maximum.accumulate(lifted) - seen.row * (top + 1)
    capped: Ints = np.where(highest == top, _NEVER, highest)[by_place]
    return capped


def _total(capacity: Ints, weight: Ints | None, at: Ints) -> Ints:
    """The summed weight (None: 1 each) of what hits at each of the capacities ``at``."""
    order = np.argsort(capacity, kind="stable")
    reached = np.searchsorted(capacity[order], at, side="right")
    if weight is None:
        return reached.astype(np.int64)
    return np.concatenate(([0], np.cumsum(weight[order])))[reached]
