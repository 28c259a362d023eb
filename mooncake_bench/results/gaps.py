"""Gaps between tokens: statistics of each request, and percentiles of all gaps pooled.

Nothing here sorts or even lists all token gaps. A request's gaps are slices of its instances' step lengths,
partitioned a few rows at a time; the pooled distribution is counted step by step, each step weighted by the requests
whose gap it is, and only the neighbourhood of a percentile is looked at closely.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench import spool

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mooncake_bench.results.steps import Bools, Floats, Ints, Segments, Stays

PS_PER_MS = 10**9
CELLS = 32_768  # of a matrix of gaps worked on at once: it stays in the processor's cache
BIN_BITS = 20  # of the bins in which the pooled gaps are counted first
STEPS = 2**20  # of the pooled gaps counted at once
GROUP_STEPS = 2**23  # of requests whose gaps are listed at once
PADDING = -1  # shorter than any gap


@dataclass(frozen=True)
class GapStats:
    """Token gaps of each request (one entry a trace row; 0 where it has none or was not asked for)."""

    count: Ints
    sum_ps: Ints
    tail_count: Ints  # the longest 10 % of them, at least one
    tail_sum_ps: Ints
    max_ps: Ints
    p99_ms: Floats | None  # only when asked for; nan where there is no gap

    def __getitem__(self, rows: slice) -> GapStats:
        """Those of some rows."""
        p99_ms = None if self.p99_ms is None else self.p99_ms[rows]
        sums = self.sum_ps[rows], self.tail_count[rows], self.tail_sum_ps[rows], self.max_ps[rows]
        return GapStats(self.count[rows], *sums, p99_ms)

    def metric_ms(self, name: str) -> Floats:
        """``tail10``, ``max``, ``mean`` or ``p99`` of each request's gaps in ms; nan where there is no gap."""
        if name == "p99":
            assert self.p99_ms is not None
            return self.p99_ms
        total, parts = {
            "tail10": (self.tail_sum_ps, self.tail_count),
            "max": (self.max_ps, np.minimum(self.count, 1)),
            "mean": (self.sum_ps, self.count),
        }[name]
        mean = np.full(len(total), np.nan)
        np.divide(total, parts * float(PS_PER_MS), out=mean, where=parts > 0)
        return mean


def gap_stats(
    segments: Segments, stays: Stays, first_gap_ps: Ints, wanted: Bools, *, exclude_first: bool, p99: bool
) -> GapStats:
    """Gap statistics of the requests marked in ``wanted`` (one entry a trace row).

    ``first_gap_ps`` is :meth:`Stays.gap_ps`. ``exclude_first`` leaves out the gap from first to second token.
    """
    rows = len(wanted)
    count, total, tail_count, tail, longest = (spool.full(rows, 0, np.int64) for _ in range(5))
    p99_ms = spool.full(rows, np.nan, np.float64) if p99 else None
    for group in _groups(stays, wanted):
        work = _Work(segments, stays[group], first_gap_ps[group], exclude_first)
        for begin, end in _chunks(work.count):
            who, gaps = work.request[begin:end], work.count[begin:end]
            cells = work.cells(begin, end)
            count[who] = gaps
            total[who] = cells.sum(axis=1) - PADDING * (cells.shape[1] - gaps)
            longest[who] = cells.max(axis=1)
            tail_count[who], tail[who] = _tails(cells, gaps, whole=p99)
            if p99_ms is not None:
                p99_ms[who] = _row_percentile(cells, gaps, 99)
    return GapStats(count, total, tail_count, tail, longest, p99_ms)


def _groups(stays: Stays, wanted: Bools) -> Iterator[Ints]:
    """Indices of the stays of some wanted requests at a time, of about ``GROUP_STEPS`` steps: those near in time."""
    opens = np.flatnonzero(stays.opens)
    ends = np.append(opens[1:], len(stays))[: len(opens)]
    chosen = wanted[stays.request[opens]]
    opens, ends = opens[chosen], ends[chosen]
    order = np.argsort(stays.first[opens], kind="stable")
    up_to = np.concatenate(([0], np.cumsum(stays.steps)))
    steps = np.cumsum((up_to[ends] - up_to[opens])[order])
    bounds = np.searchsorted(steps, np.arange(0, steps[-1] if len(steps) else 0, GROUP_STEPS), "left")
    for begin, end in pairwise([*bounds.tolist(), len(order)]):
        mine = np.sort(order[begin:end])
        if len(mine):
            yield _ranges(opens[mine], ends[mine])
        if len(bounds) > 1:
            spool.trim()


def _ranges(begin: Ints, end: Ints) -> Ints:
    """All integers of some ranges, one range after the other."""
    sizes = end - begin
    return np.repeat(begin - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())


class _Work:
    """Requests in order of their number of gaps, and where each one's gaps lie among the step lengths."""

    def __init__(self, segments: Segments, stays: Stays, gap_ps: Ints, exclude_first: bool) -> None:
        skip = int(exclude_first)
        covered = _covered(stays)
        segments = segments[covered]
        self.step_gaps = segments.gaps_ps()
        self.include_first = not exclude_first
        opens = np.flatnonzero(stays.opens)
        counts = np.add.reduceat(stays.steps, opens) - skip if len(opens) else opens
        order = np.argsort(counts, kind="stable")
        order = order[counts[order] > 0]
        opening = opens[order]
        self.request = stays.request[opening]
        self.count = counts[order]
        # of each stay in the step lengths
        base = (np.cumsum(segments.steps) - segments.steps)[np.searchsorted(covered, stays.first)]
        self.base = base[opening] + skip
        self.length = stays.steps[opening] - skip
        self.gap_ps = gap_ps[opening]
        self._later(stays, base, gap_ps, skip, opens, order)

    def _later(self, stays: Stays, base: Ints, gap_ps: Ints, skip: int, opens: Ints, order: Ints) -> None:
        """Second and further stays: (place in the order, column, start and end of the slice, first gap) each."""
        places = np.full(len(opens), -1, np.int64)
        places[order] = np.arange(len(order))
        sizes = np.diff(opens, append=len(stays))
        before = np.cumsum(stays.steps) - stays.steps
        column = before - np.repeat(before[opens], sizes) - skip
        place = np.repeat(places, sizes)
        later = np.flatnonzero(~stays.opens & (place >= 0))
        later = later[np.argsort(place[later], kind="stable")]
        self.later_place = place[later]
        self.later = list(
            zip(
                self.later_place.tolist(), column[later].tolist(), base[later].tolist(),
                (base + stays.steps)[later].tolist(), gap_ps[later].tolist(), strict=True,
            )
        )  # fmt: skip

    def cells(self, begin: int, end: int) -> Ints:
        """The gaps of some requests, one row each, in token order, padded at the end."""
        columns = np.arange(int(self.count[end - 1]))
        cells: Ints = self.step_gaps.take(self.base[begin:end, None] + columns, mode="clip")
        cells[columns >= self.length[begin:end, None]] = PADDING
        if self.include_first:
            cells[:, 0] = self.gap_ps[begin:end]
        low, high = np.searchsorted(self.later_place, (begin, end))
        for place, column, start, stop, gap in self.later[low:high]:
            cells[place - begin, column : column + stop - start] = self.step_gaps[start:stop]
            cells[place - begin, column] = gap
        return cells


def _covered(stays: Stays) -> Ints:
    """Indices of the segments that any of the stays covers, in order."""
    order = np.argsort(stays.first, kind="stable")
    first, after = stays.first[order], np.maximum.accumulate(stays.last[order] + 1)
    opens = np.flatnonzero(np.append(True, first[1:] >= after[:-1])[: len(first)])
    return _ranges(first[opens], after[np.append(opens[1:], len(first))[: len(opens)] - 1])


def _chunks(counts: Ints) -> Iterator[tuple[int, int]]:
    """Ranges of rows of about ``CELLS`` cells each; ``counts`` (row widths) never decrease."""
    begin = 0
    while begin < len(counts):
        rows = max(1, min(len(counts) - begin, CELLS // int(counts[begin])))
        while rows > 1 and rows * int(counts[begin + rows - 1]) > 2 * CELLS:
            rows = rows // 2
        yield begin, begin + rows
        begin += rows


def _tails(cells: Ints, gaps: Ints, *, whole: bool) -> tuple[Ints, Ints]:
    """Size and sum of the longest 10 % of each row's gaps. Reorders ``cells``; ``whole`` sorts the rows entirely."""
    width = cells.shape[1]
    size = (gaps + 9) // 10
    if whole:
        cells.sort(axis=1)
    else:
        cells.partition(np.unique(width - size), axis=1)
    columns = np.arange(width - int(size.max()), width)
    return size, np.where(columns >= width - size[:, None], cells[:, columns[0] :], 0).sum(axis=1)


def _row_percentile(cells: Ints, gaps: Ints, percent: float) -> Floats:
    """numpy's ``linear`` percentile of each sorted row, padding left out, in ms."""
    position = (gaps - 1) * (percent / 100)
    low = np.floor(position).astype(np.int64)
    start = cells.shape[1] - gaps + low
    rows = np.arange(len(gaps))
    lower = cells[rows, start] / PS_PER_MS
    upper = cells[rows, np.minimum(start + 1, cells.shape[1] - 1)] / PS_PER_MS
    return _between(lower, upper, position - low)


def _between(lower: Floats, upper: Floats, share: Floats) -> Floats:
    """numpy's own interpolation, written so that either end is exact."""
    rise = upper - lower
    return np.where(share < 0.5, lower + rise * share, upper - rise * (1 - share))


class PooledGaps:
    """All token gaps of some requests as one weighted distribution, without listing them.

    A gap is a step that the request took part in, with the pause before it; but the first of a stay began before
    that (``gap_ps``).
    """

    def __init__(
        self, segments: Segments, stays: Stays, gap_ps: Ints, wanted: Bools, *, exclude_first: bool = False
    ) -> None:
        mine = spool.empty(len(stays), np.bool_)
        for part in spool.parts(len(stays)):
            mine[part] = wanted[stays.request[part]] & (stays.first[part] >= 0)
        self._segments = segments
        self._members = stays.taking_part(segments, mine)
        self._joining = np.zeros(len(segments), np.int32)
        np.add.at(self._joining, stays.first[mine], 1)
        self._alone = gap_ps[mine & ~stays.opens] if exclude_first else gap_ps[mine]
        self.count, self._sum, self._least, self._most = 0, 0, 0, 0
        for values, weights in self._values():
            self._least = min(int(values.min()), self._least) if self.count else int(values.min())
            self._most = max(int(values.max()), self._most)
            self.count += int(weights.sum())
            self._sum += _exact_sum(values, weights)

    def _values(self) -> Iterator[tuple[Ints, Ints]]:
        """Gaps and how many requests had each, some at a time."""
        for part in spool.parts(len(self._alone)):
            if len(self._alone):
                yield self._alone[part], np.ones(part.stop - part.start, np.int64)
        for part in spool.parts(len(self._segments)):
            steps = np.cumsum(self._segments.steps[part])
            bounds = np.searchsorted(steps, np.arange(0, steps[-1] if len(steps) else 0, STEPS)) + part.start
            for begin, end in pairwise([*bounds.tolist(), part.stop]):
                yield from self._steps(slice(begin, end))

    def _steps(self, part: slice) -> Iterator[tuple[Ints, Ints]]:
        """Gaps that are whole steps of some segments."""
        segments = self._segments[part]
        weights = np.repeat(self._members[part], segments.steps)
        weights[np.cumsum(segments.steps) - segments.steps] -= self._joining[part]
        there = weights > 0
        if there.any():
            yield segments.gaps_ps()[there], weights[there]

    def mean_ms(self) -> float | None:
        """Mean gap; None when there is none."""
        return self._sum / (self.count * PS_PER_MS) if self.count else None

    def max_ms(self) -> float | None:
        """Longest gap; None when there is none."""
        return self._most / PS_PER_MS if self.count else None

    def percentiles_ms(self, percents: Sequence[float]) -> list[float | None]:
        """numpy's ``linear`` percentiles of all gaps in ms; None when there is none."""
        if not self.count:
            return [None] * len(percents)
        positions = [(self.count - 1) * (percent / 100) for percent in percents]
        ranks = [min(int(position) + more, self.count - 1) for position in positions for more in (0, 1)]
        found = np.array(self._ranked(ranks)) / PS_PER_MS
        shares = np.array([position - int(position) for position in positions])
        between: list[float | None] = _between(found[::2], found[1::2], shares).tolist()
        return between

    def _ranked(self, ranks: Sequence[int]) -> list[int]:
        """The gaps of these ranks, from 0, in ascending order: their bins first, then the gaps in those bins."""
        shift = max(0, (self._most - self._least).bit_length() - BIN_BITS)
        sizes = np.zeros(((self._most - self._least) >> shift) + 1, np.int64)
        for values, weights in self._values():
            np.add.at(sizes, (values - self._least) >> shift, weights)
        up_to = np.cumsum(sizes)
        bins = np.searchsorted(up_to, ranks, "right")
        wanted = np.zeros(len(sizes), np.bool_)
        wanted[bins] = True
        pieces = []
        for values, weights in self._values():
            near = wanted[(values - self._least) >> shift]
            pieces.append((values[near], weights[near]))
        values, weights = (np.concatenate(columns) for columns in zip(*pieces, strict=True))
        order = np.argsort(values, kind="stable")
        values, reached = values[order], np.cumsum(weights[order])
        left_out = np.cumsum(np.where(wanted, 0, sizes))[bins]  # shorter gaps in bins that nobody wants
        at = np.searchsorted(reached, np.array(ranks) - left_out, "right")
        found: list[int] = values[at].tolist()
        return found


def _exact_sum(values: Ints, weights: Ints) -> int:
    """The weighted sum of non-negative numbers, in pieces of 20 bits that cannot overflow."""
    return sum(int((((values >> shift) & (2**20 - 1)) * weights).sum()) << shift for shift in (0, 20, 40, 60))
