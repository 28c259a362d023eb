"""Token gaps: against a plain Python expansion of every single token, and by hand."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_results_tiny import MS, SEGMENT_NAMES, STAY_NAMES, table, tiny_replay

from mooncake_bench.results.gaps import PooledGaps, gap_stats
from mooncake_bench.results.records import Records
from mooncake_bench.results.steps import Segments, Stays

PERCENTS = (0, 1, 5, 10, 50, 90, 95, 99, 100)


class Decoding(NamedTuple):
    """Some decoding, as the simulator keeps it, and the time of every token, as a person would list them."""

    segments: Segments
    stays: Stays
    first_token_ps: np.ndarray
    token_times: list[list[int]]  # of each request, its first token included

    @property
    def gap_ps(self) -> np.ndarray:
        return self.stays.gap_ps(self.segments, self.first_token_ps)

    def gaps(self, exclude_first: bool) -> list[list[int]]:
        return [[b - a for a, b in pairwise(times)][int(exclude_first) :] for times in self.token_times]


@st.composite
def decodings(draw: st.DrawFn) -> Decoding:
    """Requests that join, leave, come back and move between two instances, at random."""
    requests = draw(st.integers(1, 6))
    first = [draw(st.integers(0, 10)) for _ in range(requests)]
    tokens: list[list[int]] = [[time] for time in first]
    segments: list[tuple[int, ...]] = []
    stays: list[tuple[int, ...]] = []
    clocks, numbers = [20, 25], [0, 0]
    open_stays: dict[int, list[int]] = {}  # request -> [instance, join, first step]
    for _ in range(draw(st.integers(0, 8))):
        instance = draw(st.integers(0, 1))
        here = [r for r, stay in open_stays.items() if stay[0] == instance]
        for request in here:
            if draw(st.booleans()):
                stay = open_stays.pop(request)
                stays.append((request, instance, stay[1], stay[2], numbers[instance] - stay[2]))
        for request in range(requests):
            if request not in open_stays and tokens[request][-1] < clocks[instance] and draw(st.booleans()):
                open_stays[request] = [instance, clocks[instance], numbers[instance]]
        batch = [r for r, stay in open_stays.items() if stay[0] == instance]
        if not batch:
            clocks[instance] += draw(st.integers(1, 50))  # idle: no gap of anyone here
            continue
        steps, step, growth = draw(st.integers(1, 25)), draw(st.integers(1, 9)), draw(st.integers(0, 3))
        segments.append((instance, clocks[instance], numbers[instance], steps, step, growth, len(batch), 0))
        for j in range(steps):
            clocks[instance] += step + j * growth
            for request in batch:
                tokens[request].append(clocks[instance])
        numbers[instance] += steps
    for request, (instance, joined, start) in open_stays.items():
        stays.append((request, instance, joined, start, numbers[instance] - start))
    located = Segments.of(table(SEGMENT_NAMES, *segments))
    return Decoding(located, Stays.of(table(STAY_NAMES, *stays), located), np.array(first), tokens)


@given(decodings(), st.booleans(), st.integers(0, 63))
def test_gap_statistics_of_each_request_equal_those_of_its_listed_tokens(
    decoding: Decoding, exclude_first: bool, mask: int
) -> None:
    rows = len(decoding.token_times)
    wanted = np.array([bool(mask >> row & 1) for row in range(rows)])
    stats = gap_stats(decoding.segments, decoding.stays, decoding.gap_ps, wanted, exclude_first=exclude_first, p99=True)
    for row, gaps in enumerate(decoding.gaps(exclude_first)):
        if not wanted[row] or not gaps:
            assert (stats.count[row], stats.tail_count[row]) == (0, 0)
            assert all(math.isnan(stats.metric_ms(name)[row]) for name in ("tail10", "max", "mean", "p99"))
            continue
        k = max(1, math.ceil(len(gaps) / 10))
        assert stats.count[row] == len(gaps)
        assert stats.sum_ps[row] == sum(gaps)
        assert stats.max_ps[row] == max(gaps)
        assert (stats.tail_count[row], stats.tail_sum_ps[row]) == (k, sum(sorted(gaps)[-k:]))
        assert stats.metric_ms("p99")[row] == np.percentile(np.array(gaps) / MS, 99)


@given(decodings(), st.booleans(), st.integers(0, 63))
def test_pooled_percentiles_equal_those_of_all_listed_gaps(decoding: Decoding, exclude_first: bool, mask: int) -> None:
    wanted = np.array([bool(mask >> row & 1) for row in range(len(decoding.token_times))])
    gaps = [gap for row, gaps in enumerate(decoding.gaps(exclude_first)) if wanted[row] for gap in gaps]
    pool = PooledGaps(decoding.segments, decoding.stays, decoding.gap_ps, wanted, exclude_first=exclude_first)
    assert pool.count == len(gaps)
    if not gaps:
        assert pool.percentiles_ms(PERCENTS) == [None] * len(PERCENTS)
        assert (pool.mean_ms(), pool.max_ms()) == (None, None)
        return
    assert pool.percentiles_ms(PERCENTS) == np.percentile(np.array(gaps) / MS, PERCENTS).tolist()
    assert pool.mean_ms() == pytest.approx(sum(gaps) / len(gaps) / MS, rel=1e-12)
    assert pool.max_ms() == max(gaps) / MS


def test_the_hand_counted_gaps_are_found() -> None:
    records = Records.of(tiny_replay())
    stats = records.gap_stats()
    # a: 8 -> 20.009, then steps of 12.021 and 12.023; b: 10 -> 32.030, then 12.023; c and d have no gap
    assert stats.count.tolist() == [3, 2, 0, 0]
    assert stats.max_ps.tolist() == [12_023 * 10**6, 22_030 * 10**6, 0, 0]
    assert stats.metric_ms("mean")[:2].tolist() == [36_053 / 3000, 34_053 / 2000]
    pool = PooledGaps(records.segments, records.stays, records.gap_ps, np.ones(4, bool))
    # pooled and sorted: 12.009, 12.021, 12.023, 12.023, 22.030
    assert pool.percentiles_ms([0, 25, 50, 75, 100]) == [12.009, 12.021, 12.023, 12.023, 22.03]


def test_the_first_gap_can_be_left_out() -> None:
    records = Records.of(tiny_replay())
    stats = gap_stats(records.segments, records.stays, records.gap_ps, np.ones(4, bool), exclude_first=True, p99=False)
    assert stats.count.tolist() == [2, 1, 0, 0]
    assert stats.metric_ms("tail10")[:2].tolist() == [12.023, 12.023]


@pytest.mark.parametrize(("gaps", "longest"), [(1, 1), (9, 1), (10, 1), (11, 2), (20, 2), (21, 3), (1999, 200)])
def test_the_longest_tenth_is_rounded_up_and_at_least_one(gaps: int, longest: int) -> None:
    # one request alone, steps of 100, 101, 102, … ps; its first gap (1 ps of waiting more) is 101 ps
    segments = Segments.of(table(SEGMENT_NAMES, (0, 1, 0, gaps, 100, 1, 1, 0)))
    stays = Stays.of(table(STAY_NAMES, (0, 0, 1, 0, gaps)), segments)
    gap_ps = stays.gap_ps(segments, np.array([0]))
    stats = gap_stats(segments, stays, gap_ps, np.array([True]), exclude_first=False, p99=False)
    expected = sorted([101, *range(101, 100 + gaps)])[-longest:]
    assert stats.tail_count[0] == longest
    assert stats.tail_sum_ps[0] == sum(expected)


def test_many_requests_of_very_different_lengths_are_worked_on_in_chunks() -> None:
    # request i is alone on instance i for (i % 700) + 1 steps of i + 1 ps each
    count = 3_000
    steps = np.arange(count) % 700 + 1
    rows = [(i, 10, 0, int(steps[i]), i + 1, 0, 1, 0) for i in range(count)]
    segments = Segments.of(table(SEGMENT_NAMES, *rows))
    stays = Stays.of(table(STAY_NAMES, *[(i, i, 10, 0, int(steps[i])) for i in range(count)]), segments)
    gap_ps = stays.gap_ps(segments, np.full(count, 10))
    stats = gap_stats(segments, stays, gap_ps, np.ones(count, bool), exclude_first=False, p99=False)
    assert (stats.count == steps).all()
    assert (stats.sum_ps == steps * (np.arange(count) + 1)).all()
    assert (stats.max_ps == np.arange(count) + 1).all()
