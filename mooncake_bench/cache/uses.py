"""When each block reference of a trace is used again: one pass of sorting, for curves and bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mooncake_bench.trace import Trace
    from mooncake_bench.trace.model import Ints


@dataclass(frozen=True, eq=False)
class Uses:
    """Block references in touch order, numbered from 0. All arrays have shape (m,) unless said otherwise."""

    previous: Ints  # number of the block's previous reference; -1: there is none
    following: Ints  # number of its next reference; m: there is none
    row: Ints  # its request
    start: Ints  # number of the first reference of its request
    place: Ints  # where it stands in the prompt: 0 is the head
    offsets: Ints  # (n + 1,) of the requests


def uses(trace: Trace, reverse: bool) -> Uses:
    """References of all requests, each prompt head first, or (``reverse``) tail first."""
    offsets = trace.block_offsets - trace.block_offsets[0]
    counts = np.diff(offsets)
    row = np.repeat(np.arange(len(counts)), counts)
    start = np.repeat(offsets[:-1], counts)
    place = np.arange(len(row)) - start
    if reverse:
        place = np.repeat(counts, counts) - 1 - place
    ids = trace.block_ids[trace.block_offsets[0] :][start + place]
    order = np.argsort(ids, kind="stable")
    again = ids[order[1:]] == ids[order[:-1]]
    previous = np.full(len(ids), -1, np.int64)
    following = np.full(len(ids), len(ids), np.int64)
    previous[order[1:][again]] = order[:-1][again]
    following[order[:-1][again]] = order[1:][again]
    return Uses(previous, following, row, start, place, offsets)


def leading(seen: Uses, held: NDArray[np.bool_]) -> Ints:
    """How many blocks at each prompt's head are ``held``, shape (n,)."""
    counts = np.diff(seen.offsets)
    lengths = np.zeros(len(counts), np.int64)
    some = counts > 0
    if some.any():
        at_most = np.where(held, counts[seen.row], seen.place)
        lengths[some] = np.minimum.reduceat(at_most, seen.offsets[:-1][some])
    return lengths
