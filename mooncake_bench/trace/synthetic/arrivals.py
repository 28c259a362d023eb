"""Arrival processes. Each gives its first ``count`` times in ms, increasing, from ``start_ms`` on, at a mean rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mooncake_bench.errors import SetupError
from mooncake_bench.trace.synthetic import draws, spelling
from mooncake_bench.trace.synthetic.spelling import Spelled, unknown_kind

if TYPE_CHECKING:
    from mooncake_bench.trace.model import Floats
    from mooncake_bench.trace.synthetic.draws import Draws

KINDS = ("poisson", "gamma", "mmpp", "diurnal", "replay")
MOST_STATES = 50_000_000  # changes of state of one trace
TABLE_POINTS = 1 << 16  # of one period's cumulative rate, before the inversion is refined


class Arrivals(Protocol):
    """What every arrival process offers."""

    @property
    def own_rate_rps(self) -> float | None:
        """The mean rate it has by itself; None: it needs one."""

    @property
    def limit(self) -> int | None:
        """The most arrivals it can give; None: any number."""

    def times_ms(self, draw: Draws, count: int, rate_rps: float, start_ms: float) -> Floats:
        """Its first ``count`` times, ms, from about ``start_ms`` on, at a mean rate of ``rate_rps``."""


@dataclass(frozen=True)
class Poisson:
    """Independent exponential gaps."""

    own_rate_rps: float | None = None
    limit: int | None = None

    def times_ms(self, draw: Draws, count: int, rate_rps: float, start_ms: float) -> Floats:
        return start_ms + np.cumsum(draws.exponential(draw("arrivals", count))) * (1000 / rate_rps)


@dataclass(frozen=True)
class Gamma:
    """Independent gamma gaps of coefficient of variation ``cv``: above 1 bursty, below 1 regular."""

    cv: float
    own_rate_rps: float | None = None
    limit: int | None = None

    def times_ms(self, draw: Draws, count: int, rate_rps: float, start_ms: float) -> Floats:
        gaps = draws.gamma_of(draw("arrivals", count), 1 / self.cv**2)
        return start_ms + np.cumsum(gaps) * (1000 / rate_rps)


@dataclass(frozen=True)
class Mmpp:
    """A Poisson process whose rate goes round a ring of states, each held for an exponential time.

    It starts in a state chosen by the time spent in each, so that the mean rate is the same from the first second on.
    """

    rates_rps: tuple[float, ...]
    dwell_ms: tuple[float, ...]  # mean time in each state
    limit: int | None = None

    @property
    def own_rate_rps(self) -> float:
        """The mean rate over time."""
        weighed = sum(rate * dwell for rate, dwell in zip(self.rates_rps, self.dwell_ms, strict=True))
        return weighed / sum(self.dwell_ms)

    def times_ms(self, draw: Draws, count: int, rate_rps: float, start_ms: float) -> Floats:
        wanted = np.cumsum(draws.exponential(draw("arrivals", count)))
        first = self._first(draw)
        cycle_ms = sum(self.dwell_ms)
        periods = int(count / (rate_rps / 1000 * cycle_ms) * 1.2 * len(self.dwell_ms)) + 100
        while True:
            if periods > MOST_STATES:
                raise SetupError(
                    f"--arrivals mmpp: over {MOST_STATES:,} changes of state are needed; give longer dwell="
                )
            state = (first + np.arange(periods)) % len(self.dwell_ms)
            held = draws.exponential(draw("dwell", periods)) * np.asarray(self.dwell_ms)[state]
            edges = np.concatenate(([0.0], np.cumsum(held)))
            per_ms = np.asarray(self.rates_rps)[state] * (rate_rps / self.own_rate_rps / 1000)
            expected = np.concatenate(([0.0], np.cumsum(held * per_ms)))
            if not count or expected[-1] > wanted[-1]:
                return start_ms + _inverse(wanted, expected, edges)
            periods *= 2

    def _first(self, draw: Draws) -> int:
        share = np.cumsum(self.dwell_ms) / sum(self.dwell_ms)
        return int(np.searchsorted(share, draw("state", 1)[0], side="right"))


def _inverse(wanted: Floats, expected: Floats, edges: Floats) -> Floats:
    """Where a piecewise linear cumulative rate reaches each wanted value; a silent stretch is jumped over."""
    piece = np.clip(np.searchsorted(expected, wanted, side="left") - 1, 0, len(edges) - 2)
    rise = expected[piece + 1] - expected[piece]
    part = np.divide(wanted - expected[piece], rise, out=np.zeros_like(wanted), where=rise > 0)
    found: Floats = edges[piece] + part * (edges[piece + 1] - edges[piece])
    return found


def _rising(times: Floats) -> Floats:
    """Times that never fall, whatever rounding did."""
    rising: Floats = np.maximum.accumulate(times)
    return rising


@dataclass(frozen=True)
class Diurnal:
    """A Poisson process of rate ``mean * (1 - depth * cos(2 pi t / period))``: lowest at the trace's start."""

    period_ms: float
    depth: float
    own_rate_rps: float | None = None
    limit: int | None = None

    def times_ms(self, draw: Draws, count: int, rate_rps: float, start_ms: float) -> Floats:
        turn = 2 * np.pi / self.period_ms
        grid = np.linspace(0, self.period_ms, TABLE_POINTS + 1)

        def expected(at_ms: Floats) -> Floats:  # of a process of mean rate 1 a ms, since time 0
            values: Floats = at_ms - self.depth / turn * np.sin(turn * at_ms)
            return values

        begin = float(expected(np.array([start_ms]))[0])
        wanted = begin + np.cumsum(draws.exponential(draw("arrivals", count))) * (1000 / rate_rps)
        whole = np.floor(wanted / self.period_ms)
        rest = wanted - whole * self.period_ms
        at = np.interp(rest, expected(grid), grid)
        for _ in range(2):  # Newton's steps, kept in the period; nothing to gain where the rate is almost 0
            slope = np.maximum(1 - self.depth * np.cos(turn * at), 1e-3)
            at = np.clip(at - (expected(at) - rest) / slope, 0, self.period_ms)
        return _rising(whole * self.period_ms + at)


@dataclass(frozen=True)
class Replay:
    """The arrivals of another trace, each moved by a uniform time in ``[-jitter_ms, jitter_ms]``; order is kept."""

    trace_ms: Floats
    jitter_ms: float
    source: str

    @property
    def limit(self) -> int:
        """As many as the trace has."""
        return len(self.trace_ms)

    @property
    def own_rate_rps(self) -> float:
        """The trace's mean rate."""
        span = float(self.trace_ms[-1] - self.trace_ms[0])
        return len(self.trace_ms) / span * 1000 if span else float("inf")

    def times_ms(self, draw: Draws, count: int, rate_rps: float, start_ms: float) -> Floats:
        stretch = self.own_rate_rps / rate_rps if np.isfinite(self.own_rate_rps) else 1.0
        moved = np.sort(self.trace_ms[:count] * stretch + (2 * draw("jitter", count) - 1) * self.jitter_ms)
        times: Floats = start_ms + moved - moved[0]
        return times


def parse(text: str) -> Arrivals:
    """The process that a text names. Raises SetupError for a bad text, TraceError for a trace that cannot be read."""
    part = Spelled(text, "--arrivals")
    made = _parsed(part)
    part.done(_KEYS[part.kind])
    return made


_KEYS = {
    "poisson": (),
    "gamma": ("cv",),
    "mmpp": ("rates", "dwell"),
    "diurnal": ("period", "depth"),
    "replay": ("jitter",),
}


def _parsed(part: Spelled) -> Arrivals:
    if part.kind == "poisson":
        return Poisson()
    if part.kind == "gamma":
        return Gamma(spelling.number(part.take("cv"), part.name("cv"), 0.01, 30))
    if part.kind == "mmpp":
        return _mmpp(part)
    if part.kind == "diurnal":
        period = spelling.duration_ms(part.take("period", "24h"), part.name("period"))
        if period <= 0:
            raise part.error("the period is 0")
        return Diurnal(period, spelling.number(part.take("depth"), part.name("depth"), 0, 1))
    if part.kind == "replay":
        return _replay(part)
    raise unknown_kind(part, KINDS)


def _mmpp(part: Spelled) -> Mmpp:
    rates = tuple(spelling.number(one, part.name("rates"), 0, 1e6) for one in part.take("rates").split("/"))
    dwell = tuple(spelling.duration_ms(one, part.name("dwell")) for one in part.take("dwell").split("/"))
    if len(rates) != len(dwell) or min(dwell) <= 0 or max(rates) <= 0:
        raise part.error("rates= and dwell= need as many values each, written 1/10, one rate and all times above 0")
    return Mmpp(rates, dwell)


def _replay(part: Spelled) -> Replay:
    from mooncake_bench.trace.loading import load

    source = part.first("a TRACE")
    jitter = spelling.duration_ms(part.take("jitter", "0"), part.name("jitter"))
    trace = load(source)
    if not trace.span_ms:
        raise SetupError(f"--arrivals {part.text!r}: all requests of {source!r} arrive at once; expected several times")
    return Replay(np.asarray(trace.arrival_ms), jitter, source)
