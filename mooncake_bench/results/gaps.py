"""Gaps between tokens: statistics of each request, and percentiles of all gaps pooled.

Nothing here sorts all token gaps. A request's gaps are slices of its instances' step lengths, partitioned a few
rows at a time; the pooled distribution is kept as arithmetic runs of equal weight and searched by bisection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.results.steps import elapsed_ps

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mooncake_bench.results.steps import Bools, Floats, Ints, Segments, Stays

PS_PER_MS = 10**9
CELLS = 32_768  # of a matrix of gaps worked on at once: it stays in the processor's cache
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
    work = _Work(segments, stays, first_gap_ps, wanted, exclude_first)
    rows = len(wanted)
    count, total, tail_count, tail, longest = (np.zeros(rows, np.int64) for _ in range(5))
    p99_ms = np.full(rows, np.nan) if p99 else None
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


class _Work:
    """Requests in order of their number of gaps, and where each one's gaps lie among the step lengths."""

    def __init__(self, segments: Segments, stays: Stays, gap_ps: Ints, wanted: Bools, exclude_first: bool) -> None:
        skip = int(exclude_first)
        self.durations = segments.durations_ps()
        self.include_first = not exclude_first
        counts = np.bincount(stays.request, stays.steps, minlength=len(wanted)).astype(np.int64)
        counts -= skip * (counts > 0)
        opening = np.flatnonzero(stays.opens)
        opening = opening[(wanted & (counts > 0))[stays.request[opening]]]
        opening = opening[np.argsort(counts[stays.request[opening]], kind="stable")]
        self.request = stays.request[opening]
        self.count = counts[self.request]
        base = (np.cumsum(segments.steps) - segments.steps)[stays.first]  # of each stay in the step lengths
        self.base = base[opening] + skip
        self.length = stays.steps[opening] - skip
        self.gap_ps = gap_ps[opening]
        self._later(stays, base, gap_ps, skip, len(wanted))

    def _later(self, stays: Stays, base: Ints, gap_ps: Ints, skip: int, rows: int) -> None:
        """Second and further stays: (place in the order, column, start and end of the slice, first gap) each."""
        place = np.full(rows, -1, np.int64)
        place[self.request] = np.arange(len(self.request))
        before = np.cumsum(stays.steps) - stays.steps
        column = before - np.repeat(before[stays.opens], np.diff(np.flatnonzero(stays.opens), append=len(stays))) - skip
        later = np.flatnonzero(~stays.opens & (place[stays.request] >= 0))
        later = later[np.argsort(place[stays.request[later]], kind="stable")]
        self.later_place = place[stays.request[later]]
        self.later = list(
            zip(
                self.later_place.tolist(), column[later].tolist(), base[later].tolist(),
                (base + stays.steps)[later].tolist(), gap_ps[later].tolist(), strict=True,
            )
        )  # fmt: skip

    def cells(self, begin: int, end: int) -> Ints:
        """The gaps of some requests, one row each, in token order, padded at the end."""
        columns = np.arange(int(self.count[end - 1]))
        cells: Ints = self.durations.take(self.base[begin:end, None] + columns, mode="clip")
        cells[columns >= self.length[begin:end, None]] = PADDING
        if self.include_first:
            cells[:, 0] = self.gap_ps[begin:end]
        low, high = np.searchsorted(self.later_place, (begin, end))
        for place, column, start, stop, gap in self.later[low:high]:
            cells[place - begin, column : column + stop - start] = self.durations[start:stop]
            cells[place - begin, column] = gap
        return cells


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

    Single values carry a weight; *runs* are arithmetic series (the steps of a segment after its first), each step
    weighted by the requests whose gap it is.
    """

    def __init__(
        self, segments: Segments, stays: Stays, gap_ps: Ints, wanted: Bools, *, exclude_first: bool = False
    ) -> None:
        mine = wanted[stays.request] & (stays.first >= 0)
        members = stays.taking_part(segments, mine)
        joining = np.bincount(stays.first[mine], minlength=len(segments))
        flat = segments.growth_ps == 0  # all its steps are equal: a single value of larger weight
        alone = gap_ps[mine & ~stays.opens] if exclude_first else gap_ps[mine]
        values = np.concatenate((segments.step_ps, segments.step_ps[flat], alone))
        weights = np.concatenate(
            (members - joining, (members * (segments.steps - 1))[flat], np.ones(len(alone), np.int64))
        )
        self._singles(values, weights)
        runs = ~flat & (members > 0) & (segments.steps > 1)
        self._value = (segments.step_ps + segments.growth_ps)[runs]
        self._growth = segments.growth_ps[runs]
        self._steps = segments.steps[runs] - 1
        self._weight = members[runs]
        self._last = self._value + self._growth * (self._steps - 1)

    def _singles(self, values: Ints, weights: Ints) -> None:
        values, weights = values[weights > 0], weights[weights > 0]
        order = np.argsort(values, kind="stable")
        self._single = values[order]
        self._single_weight = weights[order]
        self._single_up_to = np.concatenate(([0], np.cumsum(weights[order])))

    @property
    def count(self) -> int:
        """How many gaps there are."""
        return int(self._single_up_to[-1] + (self._steps * self._weight).sum())

    def mean_ms(self) -> float | None:
        """Mean gap; None when there is none."""
        if not self.count:
            return None
        runs = elapsed_ps(self._steps, self._value, self._growth).astype(np.float64) * self._weight
        singles = self._single.astype(np.float64) * self._single_weight
        return float((runs.sum() + singles.sum()) / self.count / PS_PER_MS)

    def max_ms(self) -> float | None:
        """Longest gap; None when there is none."""
        return self._range()[1] / PS_PER_MS if self.count else None

    def _range(self) -> tuple[int, int]:
        ends = [(c[0], c[-1]) for c in (self._single,) if len(c)]
        if len(self._value):
            ends.append((self._value.min(), self._last.max()))
        return int(min(low for low, _ in ends)), int(max(high for _, high in ends))

    def percentiles_ms(self, percents: Sequence[float]) -> list[float | None]:
        """numpy's ``linear`` percentiles of all gaps in ms; None when there is none."""
        count = self.count
        if not count:
            return [None] * len(percents)
        return [self._percentile(count, percent) for percent in percents]

    def _percentile(self, count: int, percent: float) -> float:
        position = (count - 1) * (percent / 100)
        rank = int(position)
        lower, up_to = self._select(rank)
        upper = lower if rank + 1 < up_to or rank + 1 == count else self._next_above(lower)
        ends = np.array([lower, upper]) / PS_PER_MS
        return float(_between(ends[:1], ends[1:], np.array([position - rank]))[0])

    def _select(self, rank: int) -> tuple[int, int]:
        """The gap of this rank (from 0) in ascending order, and how many gaps are no longer than it.

        Bisection over its value; runs that lie wholly on one side of the bracket drop out as it narrows.
        """
        low, high = self._range()
        low -= 1
        value, growth, steps, weight, last = self._value, self._growth, self._steps, self._weight, self._last
        below = 0  # gaps of runs wholly at or below `low`
        up_to_high = self.count
        while high - low > 1:
            middle = (low + high) // 2
            reached = np.clip((middle - value) // growth + 1, 0, steps)
            up_to = int(below + (reached * weight).sum() + self._singles_up_to(middle))
            if up_to > rank:
                high, up_to_high = middle, up_to
            else:
                low = middle
            live = (last > low) & (value <= high)
            if not live.all():
                done = last <= low
                below += int((steps[done] * weight[done]).sum())
                value, growth, steps, weight, last = (c[live] for c in (value, growth, steps, weight, last))
        return high, up_to_high

    def _singles_up_to(self, value: int) -> int:
        return int(self._single_up_to[np.searchsorted(self._single, value, "right")])

    def _next_above(self, value: int) -> int:
        """The shortest gap longer than ``value``."""
        at = int(np.searchsorted(self._single, value, "right"))
        candidates = [int(self._single[at])] if at < len(self._single) else []
        more = self._last > value
        if more.any():
            start, growth = self._value[more], self._growth[more]
            following = start + np.maximum((value - start) // growth + 1, 0) * growth
            candidates.append(int(following.min()))
        return min(candidates)
