"""How close one trace is to another: the same statistics of both, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench.trace.likeness import lru_hit_blocks
from mooncake_bench.trace.stats import info

if TYPE_CHECKING:
    from mooncake_bench.trace.model import Trace

CAPACITIES = (1_000, 5_859, 30_000)  # FAST'25 Fig 9: of 512-token blocks
SMALL_SHARES = (0.01, 0.05, 0.2)  # of the original's blocks, where it has fewer than the largest capacity


def rows(original: Trace, copy: Trace) -> list[dict[str, Any]]:
    """One row a statistic: ``statistic``, ``original``, ``copy`` and ``ratio`` (of copy to original)."""
    capacities = _capacities(original)
    ours, theirs = _facts(copy, capacities), _facts(original, capacities)
    return [
        {
            "statistic": name,
            "original": value,
            "copy": ours[name],
            "ratio": ours[name] / value if value and ours[name] is not None else None,
        }
        for name, value in theirs.items()
    ]


def shown(row: dict[str, Any]) -> dict[str, str]:
    """A row as a table prints it."""
    return {key: _text(value) for key, value in row.items()}


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return "not defined"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:,.1f}" if abs(value) < 1000 else f"{value:,.0f}"


def _capacities(original: Trace) -> tuple[int, ...]:
    """Cache sizes at which an LRU cache is compared, blocks; none for a trace without prefix ids."""
    if not original.has_prefix_ids:
        return ()
    blocks = len(np.unique(original.block_ids))
    return CAPACITIES if blocks > CAPACITIES[-1] else tuple(max(1, round(share * blocks)) for share in SMALL_SHARES)


def _facts(trace: Trace, capacities: tuple[int, ...]) -> dict[str, Any]:
    facts = info(trace)
    arrivals, sides = facts["arrivals"], (("input", facts["input_tokens"]), ("output", facts["output_tokens"]))
    found: dict[str, Any] = {
        "requests": len(trace),
        "requests/s": arrivals["request_rate_rps"],
        **{f"dispersion over {row['window_ms'] / 1000:g} s": row["index"] for row in arrivals["dispersion"]},
        **{
            f"{side} tokens, {key}": values[key]
            for side, values in sides
            for key in ("mean", "p10", "p25", "p50", "p75", "p90", "p99", "max")
        },
    }
    return found | (_reuse(trace, facts, capacities) if trace.has_prefix_ids else {})


def _reuse(trace: Trace, facts: dict[str, Any], capacities: tuple[int, ...]) -> dict[str, Any]:
    from mooncake_bench.trace.sessions import infer

    ideal, shared = facts["infinite_cache"], facts["sharing"]
    turns = infer(trace)
    return {
        "blocks": shared["blocks"],
        "unique blocks": shared["unique_blocks"],
        "blocks seen once / unique": shared["blocks_seen_once"] / shared["unique_blocks"],
        "top root's share of requests": shared["top_root_share"],
        "infinite cache, hits of tokens": ideal["hit_ratio_tokens"],
        "infinite cache, hits of blocks": ideal["hit_ratio_blocks"],
        "infinite cache, second half, of tokens": ideal["second_half"]["hit_ratio_tokens"],
        "infinite cache, mean hits of a request": ideal["mean_request_hit_ratio_tokens"],
        **{
            f"LRU of {size:,} blocks, hits of blocks": lru_hit_blocks(trace, size) / shared["blocks"]
            for size in capacities
        },
        "requests per inferred session": len(turns) / (int(turns.max()) + 1),
    }
