"""The specification that describes a trace: counts, shares and quantile tables, nothing of a single request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mooncake_bench.trace.synthetic.tables import Binned, Table

VERSION = 1
CLASS_EDGES = (2, 3, 5, 9, 17)  # turn numbers 1, 2, 3-4, 5-8, 9-16, 17 and more
CLASSES = len(CLASS_EDGES) + 1
KINDS = ("grows", "repeats", "edits")


@dataclass(frozen=True)
class ArrivalCurve:
    """How many requests arrive in each window, and how unevenly within it."""

    window_ms: float
    counts: tuple[int, ...]  # requests in each window; the last window may be cut short by `span_ms`
    span_ms: float
    burst_ms: float  # the rate within a window is constant for so long ...
    burst_cv: float  # ... and differs between such stretches by this coefficient of variation
    grid_ms: float  # arrivals are rounded down to multiples of this; 0: not


@dataclass(frozen=True)
class Openings:
    """Widely shared beginnings of prompts, as parallel lists."""

    blocks: tuple[int, ...]
    requests: tuple[int, ...]  # that open with it and continue nobody
    continued: tuple[int, ...]  # requests that continue another and go back to one that opens with it
    like: tuple[int, ...]  # an earlier one with the same first blocks, or -1
    like_blocks: tuple[int, ...]
    without: int  # requests that continue nobody and have no such opening
    without_continued: int


@dataclass(frozen=True)
class Continuations:
    """Requests that go on from an earlier one: a next turn, a repetition, an edited message."""

    share: tuple[float, ...]  # of requests, in equally many parts of the trace by count
    classes: tuple[tuple[float, ...], ...]  # shares by the continued request's turn number, in fewer parts of the trace
    kinds: tuple[tuple[float, ...], ...]  # shares of KINDS in each class
    lag_ms: tuple[tuple[Binned, ...], ...]  # since the continued one's arrival by time passed: KINDS, CLASSES
    parent_tokens: tuple[Binned, ...]  # length of the continued prompt by its turn number, for each of KINDS
    growth_tokens: Binned  # how much longer a growing prompt is, by the continued prompt's length
    kept_per_mille: Binned  # how much of the continued prompt an edited one keeps, by its length
    rewritten_per_mille: Binned  # new text of an edited prompt over what it dropped, by `kept_per_mille`


@dataclass(frozen=True)
class Spec:
    """A whole trace."""

    block_tokens: int
    prefix_ids: bool  # False: the source does not say what prompts share
    longest_tokens: int
    arrivals: ArrivalCurve
    output_tokens: Binned  # by input tokens
    own_tokens: tuple[
        Table, ...
    ]  # of a request that continues nobody, beyond its opening: each opening's, then others'
    openings: Openings
    continuations: Continuations | None  # None: nobody continues anybody
