"""How close the synthetic traces are to the published statistics they aim at.

``python -m mooncake_bench.trace.likeness [NAME]`` prints the table of ``traces/README.md``.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from mooncake_bench.errors import TraceError, nearest
from mooncake_bench.trace.stats import info

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mooncake_bench.trace.model import Trace

T2 = "FAST'25 Table 2"
FILE = "counted in the published file"
BLOG = "kvcache-ai/kvcache-blog, second half of the arXiv trace"

# name of the trace -> rows of (statistic, published value, where that is from)
PUBLISHED: dict[str, tuple[tuple[str, float, str], ...]] = {
    "conversation-like": (
        ("requests", 12_031, T2),
        ("last arrival, s", 3_537, FILE),
        ("distinct arrival times", 1_180, FILE),
        ("most arrivals at one time", 28, FILE),
        ("index of dispersion, 10 s", 2.1, FILE),
        ("index of dispersion, 60 s", 2.9, FILE),
        ("index of dispersion, 300 s", 8.0, FILE),
        ("input tokens, mean", 12_035, T2),
        ("input tokens, shortest", 891, FILE),
        ("input tokens, p50", 6_909, FILE),
        ("input tokens, p90", 27_367, FILE),
        ("input tokens, p99", 85_400, FILE),
        ("input tokens, longest", 126_195, FILE),
        ("output tokens, mean", 343, T2),
        ("output tokens, p50", 350, FILE),
        ("output tokens, p90", 597, FILE),
        ("output tokens, p99", 1_118, FILE),
        ("output tokens, longest", 2_000, FILE),
        ("requests that open with the root block", 1.0, FILE),
        ("unique blocks", 182_790, FILE),
        ("blocks", 288_500, FILE),
        ("infinite cache, hits of tokens", 0.374, FILE),
        ("infinite cache, hits of blocks", 0.366, FILE),
        ("infinite cache, second half, of tokens", 0.398, f"{FILE}; {T2} says .40"),
        ("LRU of 1,000 blocks, hits of blocks", 0.044, FILE),
        ("LRU of 5,859 blocks, hits of blocks", 0.136, FILE),
        ("LRU of 30,000 blocks, hits of blocks", 0.326, FILE),
    ),
    "toolagent-like": (
        ("requests", 23_608, T2),
        ("last arrival, s", 3_600, "FAST'25: one hour"),
        ("input tokens, mean", 8_596, T2),
        ("output tokens, mean", 182, T2),
        ("infinite cache, hits of tokens", 0.59, T2),
        ("LRU of 1,000 blocks, hits over infinite", 0.62, BLOG),
        ("LRU of 5,859 blocks, hits over infinite", 0.73, BLOG),
        ("LRU of 10,000 blocks, hits over infinite", 0.83, BLOG),
        ("LRU of 30,000 blocks, hits over infinite", 0.97, BLOG),
    ),
}


def lru_hit_blocks(trace: Trace, capacity_blocks: int) -> int:
    """Prefix hits, in blocks, of one LRU cache with requests served at once in trace order.

    A request's blocks are touched head first; a missing one is stored, and the least recently touched one leaves.
    """
    stored: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for row in range(len(trace)):
        blocks = trace.blocks(row).tolist()
        hits += next((at for at, block in enumerate(blocks) if block not in stored), len(blocks))
        for block in blocks:
            stored[block] = None
            stored.move_to_end(block)
            if len(stored) > capacity_blocks:
                stored.popitem(last=False)
    return hits


def measure(trace: Trace) -> dict[str, float]:
    """Every statistic that PUBLISHED may name, of one trace."""
    facts = info(trace)
    return _lengths(facts) | _arrivals(facts) | _reuse(trace, facts)


def _lengths(facts: dict[str, Any]) -> dict[str, float]:
    labels = {"mean": "mean", "min": "shortest", "p50": "p50", "p90": "p90", "p99": "p99", "max": "longest"}
    return {
        f"{side} tokens, {label}": facts[f"{side}_tokens"][key]
        for side in ("input", "output")
        for key, label in labels.items()
    }


def _arrivals(facts: dict[str, Any]) -> dict[str, float]:
    seen = facts["arrivals"]
    return {
        "requests": facts["requests"],
        "last arrival, s": facts["span_ms"] / 1000,
        "distinct arrival times": seen["distinct_times"],
        "most arrivals at one time": seen["max_at_one_time"],
        **{f"index of dispersion, {row['window_ms'] // 1000} s": row["index"] for row in seen["dispersion"]},
    }


def _reuse(trace: Trace, facts: dict[str, Any]) -> dict[str, float]:
    ideal, shared = facts["infinite_cache"], facts["sharing"]
    hits = {capacity: lru_hit_blocks(trace, capacity) for capacity in (1_000, 5_859, 10_000, 30_000)}
    return {
        "requests that open with the root block": shared["top_root_share"],
        "unique blocks": shared["unique_blocks"],
        "blocks": shared["blocks"],
        "infinite cache, hits of tokens": ideal["hit_ratio_tokens"],
        "infinite cache, hits of blocks": ideal["hit_ratio_blocks"],
        "infinite cache, second half, of tokens": ideal["second_half"]["hit_ratio_tokens"],
        **{f"LRU of {size:,} blocks, hits of blocks": hit / shared["blocks"] for size, hit in hits.items()},
        **{f"LRU of {size:,} blocks, hits over infinite": hit / ideal["hit_blocks"] for size, hit in hits.items()},
    }


def rows(name: str, trace: Trace) -> Iterator[tuple[str, float, float, str]]:
    """(statistic, published, ours, source) for one bundled trace. Raises TraceError for a name without a table."""
    if name not in PUBLISHED:
        raise TraceError(f"nothing published about {name!r}{nearest(name, PUBLISHED)}; known: {', '.join(PUBLISHED)}")
    ours = measure(trace)
    for statistic, published, source in PUBLISHED[name]:
        yield statistic, published, ours[statistic], source


def table(name: str, trace: Trace) -> str:
    """The comparison as a Markdown table."""
    lines = ["| statistic | published | ours | source |", "|---|---:|---:|---|"]
    for statistic, published, ours, source in rows(name, trace):
        lines.append(f"| {statistic} | {_number(published)} | {_number(ours)} | {source} |")
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) <= 1 else f"{value:.1f}" if value < 20 else f"{value:,.0f}"


if __name__ == "__main__":
    from mooncake_bench.trace.loading import load

    for chosen in sys.argv[1:] or PUBLISHED:
        print(f"{chosen}\n\n{table(chosen, load(chosen))}\n")
