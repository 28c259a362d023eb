"""Arrival processes of the generator: rates, burstiness and shape, within five standard errors."""

from __future__ import annotations

from math import pi, sqrt

import numpy as np
import pytest

from mooncake_bench.errors import SetupError
from mooncake_bench.trace import Trace, load, save
from mooncake_bench.trace.synthetic import arrivals
from mooncake_bench.trace.synthetic.draws import Draws

N = 100_000


def times(text: str, rate_rps: float = 2.0, count: int = N, seed: int = 1, start_ms: float = 0.0) -> np.ndarray:
    return arrivals.parse(text).times_ms(Draws(seed, "test"), count, rate_rps, start_ms)


def dispersion(at_ms: np.ndarray, window_ms: float) -> tuple[float, int]:
    """Variance over mean of the counts in whole windows, and how many there are."""
    windows = int(at_ms[-1] // window_ms)
    counts = np.bincount((at_ms // window_ms).astype(int), minlength=windows)[:windows]
    return counts.var(ddof=1) / counts.mean(), windows


@pytest.mark.parametrize("text", ["poisson", "gamma:cv=3", "mmpp:rates=1/10,dwell=60s/5s", "diurnal:depth=1"])
def test_times_rise_and_a_longer_draw_begins_with_the_shorter_one(text: str) -> None:
    long, short = times(text, count=2_000), times(text, count=500)
    assert (np.diff(long) >= 0).all()
    assert np.array_equal(long[:500], short)


def test_poisson_arrivals_have_the_rate_and_an_index_of_dispersion_of_1() -> None:
    found = times("poisson")
    # the time of the N-th arrival is N / rate, its standard error 1 / sqrt(N) of that
    assert found[-1] / 1000 == pytest.approx(N / 2, rel=5 / sqrt(N))
    for window in (1_000, 10_000, 100_000):
        index, windows = dispersion(found, window)
        assert index == pytest.approx(1, abs=5 * sqrt(2 / windows))  # variance of a sample variance


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0])
def test_gamma_gaps_have_the_coefficient_of_variation(cv: float) -> None:
    gaps = np.diff(times(f"gamma:cv={cv}"))
    # gamma of shape 1/cv^2: excess kurtosis 6 cv^2, so the sample deviation has the relative error
    # sqrt((6 cv^2 + 2) / N) / 2; the mean's is cv / sqrt(N)
    error = sqrt((6 * cv**2 + 2) / N) / 2 + cv / sqrt(N)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=5 * error)
    assert gaps.mean() == pytest.approx(500, rel=5 * cv / sqrt(N))


def test_gamma_gaps_of_cv_1_are_poisson() -> None:
    assert times("gamma:cv=1") == pytest.approx(times("poisson"), rel=1e-9)


def test_an_mmpp_spends_its_time_in_its_states_and_has_their_mean_rate() -> None:
    process = arrivals.parse("mmpp:rates=2/100,dwell=100s/50s")
    # (2 * 100 + 100 * 50) / 150 = 34.67 requests/s
    assert process.own_rate_rps == pytest.approx(5200 / 150)
    found = process.times_ms(Draws(3, "test"), 2_000_000, 5200 / 150, 0.0)
    counts = np.bincount((found // 1000).astype(int))
    # about 57,700 s are 385 cycles; a third of the time is busy. Busy time over 385 exponential dwells has a relative
    # error of 1 / sqrt(385) = 5 %, so has idle time: 7 % of the odds 1/2, or 0.016 of the share
    assert (counts > 30).mean() == pytest.approx(1 / 3, abs=5 * 0.016)
    assert counts[counts > 60].mean() == pytest.approx(100, abs=1)  # Poisson of 100 within a second: error 10 / 130
    assert found[-1] / 1000 == pytest.approx(2_000_000 / 34.67, rel=5 * 0.05)


def test_a_rate_scales_all_states_of_an_mmpp() -> None:
    once = times("mmpp:rates=1/10,dwell=60s/5s", rate_rps=110 / 65)
    # dwell times stay; the same share of requests in bursts, so twice the rate ends in about half the time
    twice = times("mmpp:rates=1/10,dwell=60s/5s", rate_rps=2 * 110 / 65)
    assert twice[-1] == pytest.approx(once[-1] / 2, rel=0.1)


def test_a_silent_state_of_an_mmpp_has_no_arrivals() -> None:
    found = times("mmpp:rates=0/10,dwell=100s/100s", rate_rps=5, count=20_000)
    gaps = np.diff(found)
    # 10 requests/s while it speaks: a gap of over 5 s has a chance of e^-50 then, so it is a silence
    assert (gaps > 5_000).sum() > 10
    assert gaps[gaps < 5_000].mean() == pytest.approx(100, rel=0.05)


def test_diurnal_arrivals_follow_the_cosine() -> None:
    found = times("diurnal:period=1h,depth=0.8", rate_rps=10, count=360_000)  # 10 periods
    phase = found % 3_600_000 / 3_600_000
    # integral of 1 - 0.8 cos(2 pi x) over the first quarter: 1/4 - 0.8 / (2 pi); error sqrt(p (1 - p) / n)
    for low, expected in ((0.0, 0.25 - 0.8 / (2 * pi)), (0.25, 0.25 + 0.8 / (2 * pi))):
        share = ((phase >= low) & (phase < low + 0.25)).mean()
        assert share == pytest.approx(expected, abs=5 * sqrt(0.25 / 360_000))
    assert found[-1] / 1000 == pytest.approx(36_000, rel=0.01)


def test_diurnal_phase_is_that_of_the_trace_not_of_the_first_session() -> None:
    early = times("diurnal:period=1h,depth=1", rate_rps=10, count=36_000, start_ms=-1_800_000)
    assert early[0] >= -1_800_000
    # half a period before the trace begins the rate is highest: 20/s; at its start it is 0
    assert ((early >= -1_800_000) & (early < -1_740_000)).sum() > 1_000  # 60 s at nearly 20/s
    assert (abs(early) < 30_000).sum() < 20  # 60 s around the lowest point: under 0.01/s there


def replayed(tmp_path: pytest.TempPathFactory) -> tuple[Trace, str]:
    trace = Trace.of([(100.0 * row * (1 + row % 3), 10, 1, [row]) for row in range(200)])
    path = f"{tmp_path}/arrivals.arrow"
    save(trace, path)
    return load(path), path


def test_replayed_arrivals_are_those_of_the_trace_moved_by_at_most_the_jitter(tmp_path: pytest.TempPathFactory) -> None:
    trace, path = replayed(tmp_path)
    exact = arrivals.parse(f"replay:{path}")
    assert exact.limit == 200
    assert exact.own_rate_rps is not None
    same = exact.times_ms(Draws(0, "test"), 200, exact.own_rate_rps, 0.0)
    assert same == pytest.approx(trace.arrival_ms)
    moved = arrivals.parse(f"replay:{path},jitter=100ms").times_ms(Draws(0, "test"), 200, exact.own_rate_rps, 0.0)
    # sorting brings no arrival further from its place than the largest move; the first is moved to 0 again
    assert abs(moved - trace.arrival_ms).max() <= 200
    assert abs(moved - trace.arrival_ms).max() > 20


def test_replayed_arrivals_at_twice_the_rate_take_half_the_time(tmp_path: pytest.TempPathFactory) -> None:
    trace, path = replayed(tmp_path)
    process = arrivals.parse(f"replay:{path}")
    assert process.own_rate_rps is not None
    fast = process.times_ms(Draws(0, "test"), 200, 2 * process.own_rate_rps, 0.0)
    assert fast == pytest.approx(trace.arrival_ms / 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("possion", "no kind 'possion'; did you mean 'poisson'"),
        ("poisson:cv=2", "unknown value 'cv'; poisson takes nothing"),
        ("gamma", "cv= is missing"),
        ("gamma:cv=0", "expected a number from 0.01 to 30, got '0'"),
        ("gamma:cv=nan", "got 'nan'"),
        ("gamma:cv=2,cv=3", "'cv=3' twice"),
        ("gamma:cv=2,cvs=3", "unknown value 'cvs'; did you mean 'cv'"),
        ("mmpp:rates=1/10,dwell=60s", "as many values each"),
        ("mmpp:rates=0/0,dwell=1s/1s", "one rate and all times above 0"),
        ("mmpp:rates=1/x,dwell=1s/1s", "expected a number"),
        ("diurnal:period=0,depth=1", "the period is 0"),
        ("diurnal:depth=1.5", "from 0 to 1"),
        ("diurnal:depth=0.5,period=1y", "expected a duration"),
        ("replay", "a TRACE is missing"),
        ("", "nothing given"),
    ],
)
def test_a_bad_arrival_process_gives_one_line_that_says_what_was_expected(text: str, message: str) -> None:
    with pytest.raises(SetupError, match=message) as caught:
        arrivals.parse(text)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("--arrivals")
