"""From a trace to another one of the same requests: thinned out, jittered, spread over its ticks, in larger blocks.

Nothing here changes the trace it is given. Random numbers are PCG64's, one named stream a purpose: the same seed
gives the same trace in every process. What was done is added to ``metadata["transform"]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench import spool
from mooncake_bench.errors import TraceError, nearest
from mooncake_bench.trace.grid import coarse_grid_ms, shares_times
from mooncake_bench.trace.model import NO_SESSION
from mooncake_bench.trace.rows import by_time, remade, row_chunks, taken
from mooncake_bench.trace.schema import MAX_SPAN_MS, MAX_TOKENS
from mooncake_bench.trace.sessions import NO_PARENT, given_parents
from mooncake_bench.trace.synth import stream

if TYPE_CHECKING:
    from mooncake_bench.trace.model import Floats, Ints, Trace

SPREADS = ("uniform", "poisson")
NO_BLOCK = -1


def every(trace: Trace, step: int) -> Trace:
    """The requests 0, ``step``, 2 ``step``, …; a delay that counted from an answer now left out becomes unknown.

    Raises TraceError for a step below 1.
    """
    if step < 1:
        raise TraceError(f"every is {step}; expected at least 1")
    if step == 1:
        return trace
    rows = np.arange(0, len(trace), min(step, len(trace)))
    columns, notices = taken(trace, rows), []
    if trace.session_id is not None:
        parent = given_parents(trace.session_id)[rows]
        lost = (parent != NO_PARENT) & (parent % min(step, len(trace)) != 0)
        if lost.any():
            notices.append(
                f"{int(lost.sum()):,} turns stand without the turn before them: one request in {step} was taken"
            )
        if columns["delay_ms"] is not None:
            columns["delay_ms"] = np.where(lost, np.nan, columns["delay_ms"])
    return remade(trace, f"one request in {step} of {len(trace)}", notices, **columns)


def part(
    trace: Trace,
    start_ms: float | None = None,
    end_ms: float | None = None,
    step: int = 1,
    max_requests: int | None = None,
) -> Trace:
    """The arrivals in ``[start_ms, end_ms)``, of those every ``step``-th, of those at most ``max_requests``.

    Raises TraceError when nothing is left.
    """
    window = trace.select(None, start_ms, end_ms)
    if start_ms is not None or end_ms is not None:
        until = "the end" if end_ms is None else f"{end_ms:,.10g} ms"
        window = remade(window, f"arrivals from {start_ms or 0:,.10g} ms to {until}")
    thinned = every(window, step)
    kept = thinned.select(max_requests)
    return kept if len(kept) == len(thinned) else remade(kept, f"the first {len(kept):,} of {len(thinned):,}")


def jitter(trace: Trace, jitter_ms: float, seed: int = 0) -> Trace:
    """Every arrival moved by a uniform number in ``[-jitter_ms, jitter_ms)``, then sorted stably.

    The turns of a session (where the trace gives sessions) keep their order: they share out the times drawn for them.
    Raises TraceError for a jitter that is not a finite number above 0.
    """
    check_jitter(jitter_ms)
    if trace.span_ms + 2 * jitter_ms > MAX_SPAN_MS:
        raise _too_much(jitter_ms)
    moved = trace.arrival_ms + jitter_ms * (2 * stream(seed, "jitter").random(len(trace)) - 1)
    if trace.session_id is not None:
        moved = _in_turn(moved, trace.session_id)
    order = by_time(moved)
    columns = taken(trace, order) | {"arrival_ms": moved[order]}
    return remade(trace, f"jitter ±{jitter_ms:g} ms, seed {seed}", **columns)


def check_jitter(jitter_ms: float) -> None:
    """Raises TraceError for a jitter that fits no trace."""
    if not 0 < jitter_ms < np.inf:
        raise TraceError(f"jitter is {jitter_ms:g} ms; expected a finite number above 0")
    if 2 * jitter_ms > MAX_SPAN_MS:
        raise _too_much(jitter_ms)


def _too_much(jitter_ms: float) -> TraceError:
    return TraceError(f"jitter is {jitter_ms:g} ms; expected one that leaves a span of at most {MAX_SPAN_MS:g} ms")


def _in_turn(moved: Floats, session_id: Ints) -> Floats:
    """The times of each session handed to its rows in ascending order; rows without a session keep theirs."""
    times, rows = moved.copy(), np.flatnonzero(session_id != NO_SESSION)
    by_row = rows[np.argsort(session_id[rows], kind="stable")]
    times[by_row] = moved[rows[np.lexsort((moved[rows], session_id[rows]))]]
    return times


def spread_ticks(trace: Trace, how: str, seed: int = 0) -> Trace:
    """Requests of a coarse arrival grid moved to times inside their own tick; their order stays.

    A tick lasts from its time to the next arrival's, at most one grid step. ``uniform``: one request in each ``n``-th
    part of a tick of ``n``, at a random place of its part; ``poisson``: independent uniform times, which is a Poisson
    process given its count. Raises TraceError for another ``how``, and where arrivals lie on no coarse grid or several.
    """
    check_spread(how)
    grid_ms = coarse_grid_ms(trace.arrival_ms)
    if grid_ms is None:
        raise TraceError(f"trace {trace.name!r}: {_no_grid(trace)}; leave spread-ticks out")
    begins = np.flatnonzero(np.diff(trace.arrival_ms, prepend=-1.0) > 0)
    counts = np.diff(begins, append=len(trace))
    lasts = np.minimum(np.diff(trace.arrival_ms[begins], append=np.inf), grid_ms)
    tick = np.repeat(np.arange(len(begins)), counts)
    part = stream(seed, f"spread/{how}").random(len(trace))
    if how == "uniform":
        part = (np.arange(len(trace)) - begins[tick] + part) / counts[tick]
    else:
        part = part[np.lexsort((part, tick))]
    spread = trace.arrival_ms + lasts[tick] * part
    return remade(trace, f"ticks of {grid_ms:g} ms spread ({how}), seed {seed}", arrival_ms=spread)


def check_spread(how: str) -> None:
    """Raises TraceError for a word that :func:`spread_ticks` does not know."""
    if how not in SPREADS:
        raise TraceError(f"spread-ticks is {how!r}; expected one of {', '.join(SPREADS)}{nearest(how, SPREADS)}")


def _no_grid(trace: Trace) -> str:
    if not shares_times(trace.arrival_ms):
        return "its arrivals lie on no coarse grid"
    distinct = 1 + int((np.diff(trace.arrival_ms) > 0).sum())
    return (
        f"its arrivals lie on no one regular grid: the {distinct:,} distinct times of {len(trace):,} requests are not "
        "multiples of one step apart (copies at different offsets? spread the trace before it is copied or merged)"
    )


def reblock(trace: Trace, block_tokens: int) -> Trace:
    """The same prompts in larger blocks of ``block_tokens``, a multiple of the trace's own block size.

    A coarse block takes the id of the last fine block in it. As fine ids are prefix-chained, two prompts share a full
    coarse block exactly when they share all its fine ones: full coarse blocks that an infinite cache hits are
    ``fine hits // (block_tokens // fine block size)``. The last coarse block, where partial, is shared by prompts that
    end at the same fine block only; the tokens found in it by a longer prompt are lost. So hits never rise.
    Raises TraceError for another size, and for ids that are not prefix-chained.
    """
    step, rest = divmod(block_tokens, trace.block_tokens)
    if step < 1 or rest or block_tokens > MAX_TOKENS:
        raise TraceError(
            f"trace {trace.name!r}: reblock to {block_tokens} tokens; expected a multiple of its block size, "
            f"{trace.block_tokens}"
        )
    if step == 1:
        return trace
    if trace.has_prefix_ids:
        check_chained(trace)
    offsets = np.zeros(len(trace) + 1, np.int64)
    np.cumsum(-(-trace.input_tokens // block_tokens), out=offsets[1:])
    ids = spool.empty(int(offsets[-1]), np.int64)
    for first, end in row_chunks(trace):
        counts = np.diff(offsets[first : end + 1])
        row = np.repeat(np.arange(first, end), counts)
        place = np.arange(offsets[first], offsets[end]) - offsets[row]
        last = np.minimum(trace.block_offsets[row] + (place + 1) * step, trace.block_offsets[row + 1]) - 1
        ids[offsets[first] : offsets[end]] = trace.block_ids[last]
    ids.flags.writeable = False
    facts = dict(trace.metadata) | {"block_tokens": str(block_tokens)}
    done = f"blocks of {trace.block_tokens} tokens joined to {block_tokens}"
    return remade(trace, done, block_offsets=offsets, block_ids=ids, block_tokens=block_tokens, metadata=facts)


def check_chained(trace: Trace) -> None:
    """Raises TraceError when a block follows two different ones: its id does not stand for the whole prefix."""
    largest = int(trace.block_ids.max(initial=0))
    if largest >= 4 * len(trace.block_ids) + 1024:  # sparse ids: number them, so that a table can be indexed by them
        label = np.unique(trace.block_ids, return_inverse=True)[1]
        largest = int(label.max(initial=0))
    else:
        label = trace.block_ids
    before = np.full(largest + 1, NO_BLOCK - 1, np.int64)
    for learning in (True, False):
        for first, end in row_chunks(trace):
            begin, stop = int(trace.block_offsets[first]), int(trace.block_offsets[end])
            ids = label[begin:stop]
            previous = np.empty(len(ids), np.int64)
            previous[1:] = ids[:-1]
            previous[trace.block_offsets[first:end] - begin] = NO_BLOCK
            if learning:
                before[ids] = previous
            elif (before[ids] != previous).any():
                at = begin + int((before[ids] != previous).argmax())
                row = int(np.searchsorted(trace.block_offsets, at, side="right")) - 1
                raise TraceError(
                    f"trace {trace.name!r}, row {row} (the first is 0), field 'block_ids': block {trace.block_ids[at]} "
                    "follows another block here than elsewhere; expected prefix-chained ids, without which larger "
                    "blocks cannot be told apart"
                )
