"""Which of several pools serves a request.

- ``round-robin``: the pools in turn.
- ``hashed``: by a hash of the session; a request without one by a hash of its first two blocks, so that prompts which
  agree on them meet. (One block would not do: in the Mooncake traces everybody shares the first.)
- ``cache-aware``: the pool that stores the longest prefix of the prompt, ready or not; of equals the one that served
  the fewest requests so far, then the lowest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.trace.model import NO_SESSION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from mooncake_bench.cache.point import Assignment
    from mooncake_bench.trace import Trace
    from mooncake_bench.trace.model import Ints

HASHED_BLOCKS = 2


def fixed(trace: Trace, assignment: Assignment, pools: int) -> Ints | None:
    """The pool of each request, shape (n,); None when that depends on what the pools hold (``cache-aware``)."""
    if pools == 1:
        return np.zeros(len(trace), np.int64)
    if assignment == "round-robin":
        return np.arange(len(trace), dtype=np.int64) % pools
    if assignment == "hashed":
        return (_keys(trace) % np.uint64(pools)).astype(np.int64)
    return None


def longest(blocks: Sequence[int], holders: Mapping[int, int], served: Sequence[int]) -> int:
    """The pool of the longest stored prefix; ``holders`` has one bit a pool, ``served`` its requests so far."""
    alive = (1 << len(served)) - 1
    for block in blocks:
        held = holders.get(block, 0) & alive
        if not held:
            break
        alive = held
    best = [pool for pool in range(len(served)) if alive >> pool & 1]
    return min(best, key=served.__getitem__)


def _keys(trace: Trace) -> NDArray[np.uint64]:
    """A well-mixed number for each request: of its session, or of its first blocks."""
    counts = np.diff(trace.block_offsets)
    keys = np.zeros(len(trace), np.uint64)
    for place in range(HASHED_BLOCKS):
        has = counts > place
        keys[has] = _mixed(keys[has] ^ _mixed(trace.block_ids[trace.block_offsets[:-1][has] + place].astype(np.uint64)))
    if trace.session_id is not None:
        known = trace.session_id != NO_SESSION
        keys[known] = _mixed(trace.session_id[known].astype(np.uint64))
    return keys


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
