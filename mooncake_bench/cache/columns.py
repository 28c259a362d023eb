"""What one run found, a row a request, and the :class:`Point` that it adds up to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench.cache.point import FirstMiss, Misses, Point
from mooncake_bench.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mooncake_bench.trace import Trace
    from mooncake_bench.trace.model import Floats, Ints

NONE, FIRST_SIGHT, NOT_READY, ELSEWHERE, EVICTED = range(5)  # the fields of FirstMiss, in order
PERCENTILES = (50, 90, 99)


@dataclass
class Columns:
    """One entry a request, shape (n,), except where said."""

    prefix: Ints  # leading blocks that its pool held at its arrival
    hits: Ints  # blocks that were stored when their turn came
    not_ready: Ints  # beyond the prefix, by reason; what is left of them was never seen before
    behind_gap: Ints
    elsewhere: Ints
    evicted: Ints
    first_miss: Ints  # NONE, FIRST_SIGHT, ...
    evictions: Ints  # blocks that its pool gave up for it
    pool: Ints
    evicted_ago_ms: Floats  # one entry an evicted block reference, request by request
    peak_blocks: int

    def point(self, trace: Trace, pools: int, warm: int, labels: Mapping[str, Any]) -> Point:
        """The sums over all but the first ``warm`` requests."""
        rows = slice(warm, None)
        prefix, tokens = self.prefix[rows], trace.input_tokens[rows]
        counts, full = np.diff(trace.block_offsets)[rows], tokens // trace.block_tokens
        known = {name: int(getattr(self, name)[rows].sum()) for name in _REASONS}
        blocks, prefix_blocks = int(counts.sum()), int(prefix.sum())
        first = np.bincount(self.first_miss[rows], minlength=5).tolist()
        return Point(
            pools=pools,
            warm_requests=warm,
            block_tokens=trace.block_tokens,
            requests=len(prefix),
            blocks=blocks,
            full_blocks=int(full.sum()),
            tokens=int(tokens.sum()),
            block_hits=int(self.hits[rows].sum()),
            prefix_blocks=prefix_blocks,
            prefix_full_blocks=int(np.minimum(prefix, full).sum()),
            prefix_tokens=int(np.minimum(prefix * trace.block_tokens, tokens).sum()),
            requests_with_hit=int((prefix > 0).sum()),
            misses=Misses(first_sight=blocks - prefix_blocks - sum(known.values()), **known),
            requests_by_first_miss=FirstMiss(*first),
            evictions=int(self.evictions[rows].sum()),
            evicted_ago_ms=_percentiles(self.evicted_ago_ms[int(self.evicted[:warm].sum()) :]),
            peak_blocks=self.peak_blocks,
            pool_requests=tuple(np.bincount(self.pool[rows], minlength=pools).tolist()),
            **labels,
        )


_REASONS = ("not_ready", "behind_gap", "elsewhere", "evicted")


def check_numbers(trace: Trace, capacity_blocks: int | None, warm_requests: int) -> None:
    """Raises SetupError for a capacity below 1, or when the warm requests leave none to measure."""
    if capacity_blocks is not None and capacity_blocks < 1:
        raise SetupError(f"capacity is {capacity_blocks} blocks; expected at least 1, or none for an infinite cache")
    if not 0 <= warm_requests < max(len(trace), 1):
        raise SetupError(
            f"warm_requests is {warm_requests}; expected from 0 to {max(len(trace) - 1, 0)}, so that at least one of "
            f"the {len(trace)} requests of trace {trace.name!r} is measured"
        )


def _percentiles(values: Floats) -> dict[str, float] | None:
    if not len(values):
        return None
    return {f"p{q}": float(at) for q, at in zip(PERCENTILES, np.percentile(values, PERCENTILES), strict=True)}
