"""What is in a trace, and what any cache could get out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench import spool
from mooncake_bench.trace.grid import coarse_grid_ms
from mooncake_bench.trace.model import NO_SESSION
from mooncake_bench.trace.rows import CHUNK_ENTRIES
from mooncake_bench.trace.sharing import Labels, Walk
from mooncake_bench.trace.summary import summary

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mooncake_bench.trace.model import Floats, Ints, Trace

DISPERSION_WINDOWS_MS = (1_000, 10_000, 60_000, 300_000)
NO_PREFIX_IDS = "the source has no prefix ids: what requests share, and what a cache could hit, is not known"


def ceiling_blocks(trace: Trace, rows: Ints, warm: Ints | None = None) -> Ints:
    """Infinite-cache prefix of each row in blocks: its leading blocks that an earlier row of ``rows`` has.

    ``rows`` are distinct row numbers in processed order; rows not among them get -1. Shape (n,). ``warm``: blocks that
    are there from the start. Block references are taken in pieces.
    """
    rows = np.asarray(rows, np.int64)
    ceiling = np.full(len(trace), -1, np.int64)
    labels = Labels(trace.block_ids)
    kind = np.int32 if len(rows) < 2**31 else np.int64
    owner = np.full(labels.size, len(rows), kind)  # the first of ``rows``, by its place there, to have each block
    if warm is not None:
        owner[labels.of(np.intersect1d(warm, trace.block_ids))] = -1
    ends = np.cumsum(np.diff(trace.block_offsets)[rows])
    first = 0
    while first < len(rows):
        before = int(ends[first - 1]) if first else 0
        end = max(first + 1, int(np.searchsorted(ends, before + CHUNK_ENTRIES, side="right")))
        ceiling[rows[first:end]] = _ceilings(trace, rows[first:end], first, labels, owner)
        spool.trim()
        first = end
    return ceiling


def _ceilings(trace: Trace, rows: Ints, first: int, labels: Labels, owner: NDArray[Any]) -> Ints:
    """Ceilings of some rows, the ``first`` processed and on; notes in ``owner`` who was the first to have a block."""
    begin = trace.block_offsets[rows]
    counts = trace.block_offsets[rows + 1] - begin
    starts = np.concatenate(([0], np.cumsum(counts)[:-1])).astype(np.int64)
    place = np.arange(counts.sum()) - np.repeat(starts, counts)
    label = labels.of(trace.block_ids[place + np.repeat(begin, counts)])
    number = np.repeat(np.arange(first, first + len(rows)), counts)
    new = owner[label] > number
    owner[label[new][::-1]] = number[new][::-1]  # of repeated ids the last write stays: the earliest row
    missed = np.where(owner[label] < number, np.repeat(counts, counts), place)  # place of a miss, or past the end
    ceilings: Ints = np.minimum.reduceat(missed, starts)
    return ceilings


def ceiling_tokens(trace: Trace, rows: Ints, warm: Ints | None = None) -> Ints:
    """Infinite-cache prefix of each row in tokens, ``min(blocks * block_tokens, input_tokens)``.

    ``rows`` are distinct row numbers in processed order; rows not among them get -1. Shape (n,). ``warm``: blocks that
    are there from the start.
    """
    blocks = ceiling_blocks(trace, rows, warm)
    return np.where(blocks < 0, -1, np.minimum(blocks * trace.block_tokens, trace.input_tokens))


def info(trace: Trace) -> dict[str, Any]:
    """Everything ``traces info`` says of a trace, as plain values that strict JSON can hold; undefined is None.

    What concerns sharing is None for a trace whose source has no prefix ids; ``no_prefix_ids`` then says so.
    """
    from mooncake_bench.trace.published import published
    from mooncake_bench.trace.sessions import closed_loop_gap, early_turns

    walk = Walk(trace) if trace.has_prefix_ids else None
    facts = {
        "name": trace.name,
        "sha256": trace.sha256,
        "requests": len(trace),
        "span_ms": trace.span_ms,
        "block_tokens": trace.block_tokens,
        "input_tokens": summary(trace.input_tokens),
        "output_tokens": summary(trace.output_tokens),
        "arrivals": arrivals(trace.arrival_ms),
        "no_prefix_ids": NO_PREFIX_IDS if walk is None else None,
        "sharing": None if walk is None else walk.facts(),
        "sessions": None if trace.session_id is None else sessions(trace.session_id),
        "early_turns": early_turns(trace),
        "closed_loop": {"possible": (gap := closed_loop_gap(trace)) is None, "gap": gap},
        "infinite_cache": None if walk is None else infinite_cache(trace, walk.ceiling_blocks),
        "working_set": None if walk is None else walk.working_set(),
        "metadata": dict(trace.metadata),
        "notices": list(trace.notices),
    }
    return facts | {"published": published(facts)}


def arrivals(arrival_ms: Floats) -> dict[str, Any]:
    """Rate and burstiness. The index of dispersion is variance over mean of the counts in whole windows; 1: Poisson.

    ``gap_cv`` is the standard deviation of the gaps over their mean; ``grid_ms`` the step of a coarse arrival grid.
    """
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
        return {"window_ms": window_ms, "windows": whole, "max_requests": None, "index": None}
    slot = (arrival_ms - arrival_ms[0]) // window_ms
    _, counts = np.unique(slot[slot < whole], return_counts=True)  # empty windows may be many: only their number counts
    mean = int(counts.sum()) / whole
    variance = (int((counts * counts).sum()) - whole * mean * mean) / (whole - 1)
    index = variance / mean if mean else None
    return {"window_ms": window_ms, "windows": whole, "max_requests": int(counts.max()), "index": index}


def sessions(session_id: Ints) -> dict[str, Any]:
    """How many sessions, and their lengths in requests; requests without a session are counted apart."""
    _, turns = np.unique(session_id[session_id != NO_SESSION], return_counts=True)
    alone = int((session_id == NO_SESSION).sum())
    return {"sessions": len(turns), "requests_without": alone, "turns": summary(turns)}


def infinite_cache(trace: Trace, blocks: Ints | None = None) -> dict[str, Any]:
    """Prefix hits of one cache that never evicts, requests served at once in trace order, under each definition.

    ``hit_ratio_blocks``: hit blocks of all blocks. ``hit_ratio_tokens``: hit tokens of all prompt tokens.
    ``hit_ratio_full_blocks``: hit full blocks of all full blocks. ``hit_blocks_over_full_blocks`` counts a hit
    partial block above the line but not below it. ``mean_request_hit_ratio_tokens``: the mean over requests of each
    one's hit tokens of its prompt. ``second_half`` lets the first half only warm the cache. ``blocks`` are the
    ceilings in trace order, if they are known.
    """
    blocks = ceiling_blocks(trace, np.arange(len(trace))) if blocks is None else blocks
    tokens, half = np.minimum(blocks * trace.block_tokens, trace.input_tokens), len(trace) // 2
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
