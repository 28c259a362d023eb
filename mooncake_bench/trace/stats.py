"""What is in a trace, and what any cache could get out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench.trace.model import NO_SESSION
from mooncake_bench.trace.schema import coarse_grid_ms

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mooncake_bench.trace.model import Floats, Ints, Trace

PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)
DISPERSION_WINDOWS_MS = (1_000, 10_000, 60_000, 300_000)
TOP_BLOCKS = 10


def ceiling_blocks(trace: Trace, rows: Ints) -> Ints:
    """Infinite-cache prefix of each row in blocks: its leading blocks that an earlier row of ``rows`` has.

    ``rows`` are distinct row numbers in processed order; rows not among them get -1. Shape (n,).
    """
    rows = np.asarray(rows, np.int64)
    ceiling = np.full(len(trace), -1, np.int64)
    if len(rows):
        entries, starts, owner = _gather(trace, rows)
        first = _first_owner(entries, owner)
        place = np.arange(len(entries)) - np.repeat(starts, np.diff(starts, append=len(entries)))
        counts = np.diff(starts, append=len(entries))
        missed = np.where(first < owner, np.repeat(counts, counts), place)  # position of a miss, or past the end
        ceiling[rows] = np.minimum.reduceat(missed, starts)
    return ceiling


def ceiling_tokens(trace: Trace, rows: Ints) -> Ints:
    """Infinite-cache prefix of each row in tokens, ``min(blocks * block_tokens, input_tokens)``.

    ``rows`` are distinct row numbers in processed order; rows not among them get -1. Shape (n,).
    """
    blocks = ceiling_blocks(trace, rows)
    return np.where(blocks < 0, -1, np.minimum(blocks * trace.block_tokens, trace.input_tokens))


def _gather(trace: Trace, rows: Ints) -> tuple[Ints, Ints, Ints]:
    """Block ids of the rows in the given order, where each row starts, and the order number of each id's row."""
    begin = trace.block_offsets[rows]
    counts = trace.block_offsets[rows + 1] - begin
    starts = np.concatenate(([0], np.cumsum(counts)[:-1])).astype(np.int64)
    entries = trace.block_ids[np.arange(counts.sum()) + np.repeat(begin - starts, counts)]
    return entries, starts, np.repeat(np.arange(len(rows)), counts)


def _first_owner(entries: Ints, owner: Ints) -> NDArray[np.int64]:
    """For each entry, the smallest owner among the entries with the same id; owners never decrease."""
    if len(entries) and entries.max() >= 4 * len(entries):
        entries = np.unique(entries, return_inverse=True)[1]
    first = np.zeros(int(entries.max(initial=-1)) + 1, np.int64)
    first[entries[::-1]] = owner[::-1]  # of repeated ids the last write stays: the earliest owner
    return first[entries]


def info(trace: Trace) -> dict[str, Any]:
    """Everything ``traces info`` says of a trace, as plain values that strict JSON can hold; undefined is None."""
    return {
        "name": trace.name,
        "sha256": trace.sha256,
        "requests": len(trace),
        "span_ms": trace.span_ms,
        "block_tokens": trace.block_tokens,
        "input_tokens": summary(trace.input_tokens),
        "output_tokens": summary(trace.output_tokens),
        "arrivals": arrivals(trace.arrival_ms),
        "sharing": sharing(trace),
        "sessions": None if trace.session_id is None else sessions(trace.session_id),
        "infinite_cache": infinite_cache(trace),
        "metadata": dict(trace.metadata),
        "notices": list(trace.notices),
    }


def summary(values: Ints | Floats) -> dict[str, Any]:
    """Count, sum, mean, extremes and percentiles (numpy's ``linear``); only the count when there are none."""
    if not len(values):
        return {"count": 0}
    points = np.percentile(values, PERCENTILES)
    facts = {"count": len(values), "sum": values.sum().item(), "mean": float(values.mean()), "min": values.min().item()}
    return (
        facts | {f"p{q}": float(at) for q, at in zip(PERCENTILES, points, strict=True)} | {"max": values.max().item()}
    )


def arrivals(arrival_ms: Floats) -> dict[str, Any]:
    """Rate and burstiness. The index of dispersion is variance over mean of the counts in whole windows; 1: Poisson."""
    gaps = np.diff(arrival_ms)
    span_ms = float(arrival_ms[-1] - arrival_ms[0])
    _, at_once = np.unique(arrival_ms, return_counts=True)
    return {
        "request_rate_rps": len(arrival_ms) / span_ms * 1000 if span_ms else None,
        "distinct_times": len(at_once),
        "equal_to_previous": int((gaps == 0).sum()),
        "max_at_one_time": int(at_once.max()),
        "grid_ms": coarse_grid_ms(arrival_ms),
        "gap_cv": float(gaps.std() / gaps.mean()) if span_ms else None,
        "dispersion": [_dispersion(arrival_ms, window) for window in DISPERSION_WINDOWS_MS],
    }


def _dispersion(arrival_ms: Floats, window_ms: int) -> dict[str, Any]:
    whole = int((arrival_ms[-1] - arrival_ms[0]) // window_ms)
    if whole < 2:
        return {"window_ms": window_ms, "windows": whole, "index": None}
    slot = (arrival_ms - arrival_ms[0]) // window_ms
    _, counts = np.unique(slot[slot < whole], return_counts=True)  # empty windows may be many: only their number counts
    mean = int(counts.sum()) / whole
    variance = (int((counts * counts).sum()) - whole * mean * mean) / (whole - 1)
    index = variance / mean if mean else None
    return {"window_ms": window_ms, "windows": whole, "index": index}


def sharing(trace: Trace) -> dict[str, Any]:
    """Who shares which blocks: popularity, roots, and the prefix tree's depth and fan-out."""
    counts = np.diff(trace.block_offsets)
    values, label, uses = np.unique(trace.block_ids, return_inverse=True, return_counts=True)
    _, root_uses = np.unique(trace.block_ids[trace.block_offsets[:-1]], return_counts=True)
    top = np.lexsort((values, -uses))[:TOP_BLOCKS]
    return {
        "blocks": len(trace.block_ids),
        "unique_blocks": len(values),
        "blocks_seen_once": int((uses == 1).sum()),
        "blocks_per_request": summary(counts),
        "root_blocks": len(root_uses),
        "top_root_share": float(root_uses.max() / len(trace)),
        "top_blocks": [[int(values[at]), int(uses[at])] for at in top],
        "shared_prefix_blocks": summary(ceiling_blocks(trace, np.arange(len(trace)))),
        **_tree(trace, label, len(values)),
    }


def _tree(trace: Trace, label: Ints, unique: int) -> dict[str, Any]:
    """Fan-out of the prefix tree, and how many blocks follow more than one parent (0 when ids are chained)."""
    follows = np.ones(len(label), np.bool_)
    follows[trace.block_offsets[:-1]] = False
    child = np.flatnonzero(follows)
    edges = np.unique(label[child - 1] * unique + label[child])
    children = np.bincount(edges // unique, minlength=unique)
    parents = np.bincount(edges % unique, minlength=unique)
    return {
        "branching_blocks": int((children > 1).sum()),
        "max_children": int(children.max()),
        "blocks_with_two_parents": int((parents > 1).sum()),
    }


def sessions(session_id: Ints) -> dict[str, Any]:
    """How many sessions, and their lengths in requests; requests without a session are counted apart."""
    _, turns = np.unique(session_id[session_id != NO_SESSION], return_counts=True)
    alone = int((session_id == NO_SESSION).sum())
    return {"sessions": len(turns), "requests_without": alone, "turns": summary(turns)}


def infinite_cache(trace: Trace) -> dict[str, Any]:
    """Prefix hits of one cache that never evicts, requests served at once in trace order, under each definition.

    ``hit_ratio_blocks``: hit blocks of all blocks. ``hit_ratio_tokens``: hit tokens of all prompt tokens.
    ``hit_ratio_full_blocks``: hit full blocks of all full blocks. ``hit_blocks_over_full_blocks`` counts a hit
    partial block above the line but not below it. ``second_half`` lets the first half only warm the cache.
    """
    rows = np.arange(len(trace))
    blocks, tokens, half = ceiling_blocks(trace, rows), ceiling_tokens(trace, rows), len(trace) // 2
    return _hits(trace, blocks, tokens, slice(0, None)) | {
        "second_half": _hits(trace, blocks, tokens, slice(half, None))
    }


def _hits(trace: Trace, blocks: Ints, tokens: Ints, rows: slice) -> dict[str, Any]:
    inputs, counts = trace.input_tokens[rows], np.diff(trace.block_offsets)[rows]
    hit_blocks, hit_tokens, full = int(blocks[rows].sum()), int(tokens[rows].sum()), inputs // trace.block_tokens
    hit_full, all_full = int(np.minimum(blocks[rows], full).sum()), int(full.sum())
    return {
        "hit_blocks": hit_blocks,
        "hit_tokens": hit_tokens,
        "hit_full_blocks": hit_full,
        "full_blocks": all_full,
        "requests_with_hit": int((blocks[rows] > 0).sum()),
        "hit_ratio_blocks": hit_blocks / int(counts.sum()),
        "hit_ratio_tokens": hit_tokens / int(inputs.sum()),
        "hit_ratio_full_blocks": hit_full / all_full if all_full else None,
        "hit_blocks_over_full_blocks": hit_blocks / all_full if all_full else None,
        "mean_request_hit_ratio_tokens": float((tokens[rows] / inputs).mean()),
    }
