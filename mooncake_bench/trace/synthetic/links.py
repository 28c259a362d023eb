"""Who continues whom in a trace: the earlier prompt that each one shares most with, beyond widely shared openings.

Unlike :mod:`mooncake_bench.trace.sessions`, which finds conversations that grow, this also finds prompts that keep only
a part of an earlier one (an edited message) or repeat it: every block that a cache could reuse belongs to some link.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.trace.stats import ceiling_blocks

if TYPE_CHECKING:
    from mooncake_bench.trace.model import Ints, Trace

OPENING_SHARE, OPENING_LEAST = 0.005, 20  # a block in so large a share, and number, of requests is a shared opening
NOBODY = -1
GROWS, REPEATS, EDITS = 0, 1, 2


@dataclass(frozen=True)
class Opening:
    """A widely shared beginning of prompts."""

    blocks: int
    requests: int  # that open with it, none of its continuations, and continue nobody
    like: int  # an earlier opening that this one shares its first blocks with, or NOBODY
    like_blocks: int


@dataclass(frozen=True)
class Links:
    """One entry a request."""

    parent: Ints  # row of the continued request, or NOBODY
    shared_blocks: Ints  # with the parent; without one, with any earlier request
    kind: Ints  # GROWS, REPEATS or EDITS; of no meaning without a parent
    turn: Ints  # 1: continues nobody
    opening: Ints  # number of the opening of it, or of the request that its turns go back to; or NOBODY
    openings: tuple[Opening, ...]


def links(trace: Trace) -> Links:
    """The links of a trace with prefix ids."""
    rows, offsets = len(trace), trace.block_offsets
    ids = np.unique(trace.block_ids, return_inverse=True)[1]
    counts = np.diff(offsets)
    popular = np.bincount(ids)[ids] >= max(OPENING_LEAST, OPENING_SHARE * rows)
    first_rare = np.minimum.reduceat(
        np.where(popular, np.iinfo(np.int64).max, np.arange(len(ids)) - np.repeat(offsets[:-1], counts)), offsets[:-1]
    )
    opening_blocks = np.minimum(first_rare, counts)
    shared = ceiling_blocks(trace, np.arange(rows))
    parent = _parents(trace, ids, shared, opening_blocks)
    turn = np.ones(rows, np.int64)
    number, openings = _openings(trace, ids, opening_blocks, parent)
    for row in np.flatnonzero(parent != NOBODY).tolist():
        turn[row], number[row] = turn[parent[row]] + 1, number[parent[row]]
    return Links(parent, shared, _kinds(trace, parent, shared), turn, number, openings)


def _parents(trace: Trace, ids: Ints, shared: Ints, opening_blocks: Ints) -> Ints:
    """The latest earlier row that has the last shared block, where sharing goes beyond the opening.

    The previous request of the same session comes first where sessions are given and it has that block, too.
    """
    parent = np.full(len(trace), NOBODY, np.int64)
    latest = np.full(int(ids.max()) + 1, NOBODY, np.int64)
    previous: dict[int, int] = {}
    sessions = None if trace.session_id is None else trace.session_id.tolist()
    offsets = trace.block_offsets.tolist()
    for row in range(len(trace)):
        blocks = ids[offsets[row] : offsets[row + 1]]
        if shared[row] > opening_blocks[row]:
            parent[row] = latest[blocks[shared[row] - 1]]
        if sessions is not None:
            before = previous.get(sessions[row], NOBODY)
            previous[sessions[row]] = row
            if parent[row] != NOBODY and before != NOBODY and sessions[row] >= 0:
                place = offsets[before] + shared[row] - 1
                if place < offsets[before + 1] and ids[place] == blocks[shared[row] - 1]:
                    parent[row] = before
        latest[blocks] = row
    return parent


def _kinds(trace: Trace, parent: Ints, shared: Ints) -> Ints:
    """How each request continues its parent."""
    before = np.maximum(parent, 0)
    tokens, old = trace.input_tokens, trace.input_tokens[before]
    whole = shared >= old // trace.block_tokens
    same = (tokens == old) & (shared == np.diff(trace.block_offsets)[before])
    return np.where(same, REPEATS, np.where(whole & (tokens > old), GROWS, EDITS))


def _openings(trace: Trace, ids: Ints, opening_blocks: Ints, parent: Ints) -> tuple[Ints, tuple[Opening, ...]]:
    """The distinct openings of requests that continue nobody, the most frequent first, and which one each of those has.

    Their order depends on how often and when they are used, not on the ids.
    """
    fresh = np.flatnonzero((parent == NOBODY) & (opening_blocks > 0))
    last = ids[trace.block_offsets[fresh] + opening_blocks[fresh] - 1]
    _, first, inverse, uses = np.unique(last, return_index=True, return_inverse=True, return_counts=True)
    order = np.lexsort((first, -uses))
    number = np.full(len(trace), NOBODY, np.int64)
    number[fresh] = np.argsort(order)[inverse]
    chains = [
        ids[trace.block_offsets[row] : trace.block_offsets[row] + opening_blocks[row]].tolist()
        for row in fresh[first[order]].tolist()
    ]
    found = []
    for at, chain in enumerate(chains):
        common = [_common(chain, other) for other in chains[:at]]
        best = int(np.argmax(common)) if any(common) else NOBODY
        found.append(Opening(len(chain), int(uses[order[at]]), best, common[best] if best != NOBODY else 0))
    return number, tuple(found)


def _common(one: list[int], other: list[int]) -> int:
    for at, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return at
    return min(len(one), len(other))
