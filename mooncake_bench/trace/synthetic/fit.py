"""From a trace to its specification: what is measured, and how. See :mod:`fitted` for what it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.errors import TraceError
from mooncake_bench.trace.grid import coarse_grid_ms
from mooncake_bench.trace.synthetic.fitted import (
    CLASS_EDGES,
    CLASSES,
    KINDS,
    ArrivalCurve,
    Continuations,
    Openings,
    Spec,
)
from mooncake_bench.trace.synthetic.links import EDITS, GROWS, NOBODY, links
from mooncake_bench.trace.synthetic.tables import LEAST_IN_BIN, Binned, Table, rounded

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mooncake_bench.trace.model import Floats, Ints, Trace
    from mooncake_bench.trace.synthetic.links import Links

LEAST_REQUESTS = 50  # a trace of fewer would be told almost row by row
MOST_WINDOWS, LEAST_IN_WINDOW = 60, 20
STRETCHES = 6  # of one window, for burstiness
PARTS, CLASS_PARTS = 20, 5  # of the trace, for the share of continuations and of their classes
LAG_BINS = 5
OUTPUT_BINS, LENGTH_BINS = 10, 6
LEAST_OF_OPENING = 100  # requests, from which its prompts have a table of their own


def specification(trace: Trace) -> Spec:
    """What a trace is like. Raises TraceError for one of so few requests that this would be a copy of it."""
    if len(trace) < LEAST_REQUESTS:
        raise TraceError(
            f"trace {trace.name!r} has {len(trace)} request{'s' * (len(trace) != 1)}; "
            f"expected at least {LEAST_REQUESTS}: a description of fewer would tell them one by one"
        )
    found = links(trace) if trace.has_prefix_ids else None
    return Spec(
        block_tokens=trace.block_tokens,
        prefix_ids=trace.has_prefix_ids,
        longest_tokens=int(np.ceil(rounded(float(trace.input_tokens.max())))),
        arrivals=_arrivals(trace.arrival_ms),
        output_tokens=Binned.of(trace.input_tokens, trace.output_tokens, OUTPUT_BINS),
        own_tokens=_own_tokens(trace, found),
        openings=_openings(found, len(trace)),
        continuations=None if found is None else _continuations(trace, found),
    )


def _arrivals(arrival_ms: Floats) -> ArrivalCurve:
    """Counts in windows, the variation within them beyond chance, and the grid."""
    grid = coarse_grid_ms(arrival_ms) or 0.0
    grid = grid if grid < 10 else float(round(grid, -1))  # the grid of a clock that ticks every 2,999 or 3,001 ms
    if not grid and not (arrival_ms % 1).any():
        grid = 1.0
    span_ms = rounded(float(arrival_ms[-1]) + max(grid, 1.0), 6)
    windows = max(1, min(MOST_WINDOWS, len(arrival_ms) // LEAST_IN_WINDOW))
    window_ms = span_ms / windows
    number = np.minimum(arrival_ms // window_ms, windows - 1).astype(np.int64)
    counts = np.bincount(number, minlength=windows)
    burst_ms = window_ms / STRETCHES
    if grid > burst_ms / 2:
        burst_ms = window_ms  # the grid is too coarse to see more
    return ArrivalCurve(
        window_ms, tuple(counts.tolist()), span_ms, burst_ms, _burst_cv(arrival_ms, counts, window_ms, burst_ms), grid
    )


def _burst_cv(arrival_ms: Floats, counts: Ints, window_ms: float, burst_ms: float) -> float:
    """The coefficient of variation of the rate between stretches of a window, chance taken off."""
    stretches = round(window_ms / burst_ms)
    if stretches < 2:
        return 0.0
    last = len(counts) * stretches - 1
    seen = np.bincount(np.minimum(arrival_ms // burst_ms, last).astype(np.int64), minlength=last + 1)
    mean = np.repeat(counts / stretches, stretches)
    squares = float(((seen - mean) ** 2).sum())
    by_chance = float((mean * (1 - 1 / stretches)).sum())  # counts of a window's requests thrown at random
    spread = float((mean**2 * (1 - 1 / stretches)).sum())
    return rounded(np.sqrt(max(0.0, squares - by_chance) / spread)) if spread else 0.0


def _own_tokens(trace: Trace, found: Links | None) -> tuple[Table, ...]:
    """Lengths beyond the opening of requests that continue nobody: for each frequent opening, then for all others."""
    if found is None:
        return (Table.of(trace.input_tokens),)
    fresh = found.parent == NOBODY
    opened = np.array([opening.blocks for opening in found.openings] or [0], np.int64)
    blocks = np.where(found.opening == NOBODY, 0, opened[np.maximum(found.opening, 0)])
    own = np.maximum(trace.input_tokens - blocks * trace.block_tokens, 0)
    frequent = [opening.requests >= LEAST_OF_OPENING for opening in found.openings]
    own_table = np.array([*frequent, False])[found.opening]  # NOBODY, -1, is the last: none of its own
    rest = own[fresh & ~own_table] if (fresh & ~own_table).any() else own[fresh]
    tables = [
        Table.of(own[fresh & (found.opening == number)] if often else rest) for number, often in enumerate(frequent)
    ]
    return (*tables, Table.of(rest))


def _openings(found: Links | None, requests: int) -> Openings:
    if found is None:
        return Openings((), (), (), (), (), requests, 0)
    listed, goes_on = found.openings, found.parent != NOBODY
    continued = np.bincount(found.opening[goes_on] + 1, minlength=len(listed) + 1).tolist()
    return Openings(
        tuple(one.blocks for one in listed),
        tuple(one.requests for one in listed),
        tuple(continued[1:]),
        tuple(one.like for one in listed),
        tuple(one.like_blocks for one in listed),
        int((~goes_on & (found.opening == NOBODY)).sum()),
        continued[0],
    )


def _continuations(trace: Trace, found: Links) -> Continuations | None:
    rows = np.flatnonzero(found.parent != NOBODY)
    if not len(rows):
        return None
    parent = found.parent[rows]
    old, new = trace.input_tokens[parent], trace.input_tokens[rows]
    kind, turn = found.kind[rows], found.turn[parent]
    turn_class = np.searchsorted(CLASS_EDGES, turn, side="right")
    lag = trace.arrival_ms[rows] - trace.arrival_ms[parent]
    grows, edits = kind == GROWS, kind == EDITS
    kept = np.minimum(found.shared_blocks[rows] * trace.block_tokens, old)[edits]
    kept_share = 1000 * kept / old[edits]
    rewritten = 1000 * (new[edits] - np.minimum(kept, new[edits])) / np.maximum(old[edits] - kept, 1)
    return Continuations(
        share=tuple(rounded(float(part.mean())) for part in np.array_split(found.parent != NOBODY, PARTS)),
        classes=tuple(
            _shares(turn_class[rows * CLASS_PARTS // len(trace) == part], CLASSES) for part in range(CLASS_PARTS)
        ),
        kinds=tuple(_shares(kind[turn_class == number], len(KINDS)) for number in range(CLASSES)),
        lag_ms=tuple(
            tuple(_lags(trace.arrival_ms[rows], lag, kind == which, turn_class == number) for number in range(CLASSES))
            for which in range(len(KINDS))
        ),
        parent_tokens=tuple(Binned.of(turn[kind == number], old[kind == number], 4) for number in range(len(KINDS))),
        growth_tokens=Binned.of(old[grows], (new - old)[grows], LENGTH_BINS),
        kept_per_mille=Binned.of(old[edits], kept_share, LENGTH_BINS),
        rewritten_per_mille=Binned.of(kept_share, rewritten, LENGTH_BINS),
    )


def _shares(numbers: Ints, count: int) -> tuple[float, ...]:
    found = np.bincount(numbers, minlength=count) / max(1, len(numbers))
    return tuple(rounded(share) for share in found.tolist())


def _lags(now_ms: Floats, lag_ms: Floats, kind: NDArray[np.bool_], turn_class: NDArray[np.bool_]) -> Binned:
    """The lags of a kind and class by the time that has passed; of the kind, or of all, where there is a handful."""
    everybody = np.ones(len(kind), np.bool_)
    own = next((rows for rows in (kind & turn_class, kind) if rows.sum() >= LEAST_IN_BIN), everybody)
    return Binned.of(now_ms[own], lag_ms[own], LAG_BINS)
