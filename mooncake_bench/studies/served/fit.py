"""Engine overheads from a served log: fitted on the earlier half of its requests, tried on the later half.

The whole log is served again by :mod:`.engine`, so that the later half meets a system that the earlier one has filled;
only the judged half's requests count. What is fitted is (o_pre, o_dec), by a soft |ln(predicted / observed)| over
quantiles and mean of TTFT and of TPOT: quantiles, because in a queue a single request's wait says little, and logs,
because half as long is as wrong as twice as long. A longer step and fewer of them can look the same, so the search has
several starts: the best points of a coarse grid, from which it goes downhill (Nelder and Mead), the same way each time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.errors import NothingToConclude, SetupError
from mooncake_bench.hardware.analytic import EngineOverhead
from mooncake_bench.studies.served.engine import StepCost, Work, serve
from mooncake_bench.studies.served.log import tbt

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from mooncake_bench.hardware.analytic import Coefficients
    from mooncake_bench.studies.served.engine import Answers, Limits
    from mooncake_bench.studies.served.log import Floats, ServedLog

    Mask = NDArray[np.bool_]

FITTED_AT = tuple(range(5, 100, 5))
SHOWN_AT = (10, 50, 90, 99)
SOFT = 0.03
"""ln(predicted / observed) up to which the loss grows with the square, beyond which in proportion."""
COARSE = (-0.2, 0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Overheads tried first, in decode steps of one sequence without any."""
STARTS = 3
TRIES = 60
"""Of each way downhill."""
FINER = (8, 80)
"""Parts of a decode step: the sizes of the next ways downhill, from the best point."""
MOST_TRIED = 1 + len(COARSE) ** 2 + (STARTS + len(FINER)) * (TRIES + 3)
FINEST_MS = 0.002
TOLD_APART = 0.7
"""A log tells two ways of scheduling apart where the loss of one is less than this share of the other's."""


@dataclass(frozen=True)
class Quantity:
    """One latency of the held-out requests, predicted and observed [ms]; quantiles and mean by name."""

    metric: str
    requests: int
    """That have it: an answer of one token has no TPOT."""
    predicted: dict[str, float]
    observed: dict[str, float]
    request_error_percent: float
    """Median over requests of |predicted / observed - 1|."""

    def error_percent(self, name: str) -> float:
        """How far the prediction of a quantile or the mean is off."""
        return 100 * (self.predicted[name] / self.observed[name] - 1)


@dataclass(frozen=True)
class Fit:
    """Overheads and what they are worth."""

    overhead: EngineOverhead
    start: EngineOverhead
    loss: float
    """Mean soft |ln(predicted / observed)| on the half that was fitted."""
    fitted_requests: int
    heldout: tuple[Quantity, ...]
    """On the later half."""
    fitted: tuple[Quantity, ...]
    """On the earlier half: in-sample."""
    unfitted: tuple[Quantity, ...]
    """On the later half, by the overheads at the start."""
    answers: Answers


def fit(
    log: ServedLog,
    coefficients: Coefficients,
    start: EngineOverhead,
    limits: Limits,
    progress: Callable[[int, int], None] | None = None,
) -> Fit:
    """Overheads of the engine that served ``log``; ``start`` is tried as well, and tells what fitting gained.

    ``progress`` is told after each overhead how many were tried, and of how many at most.
    Raises NothingToConclude for a log whose answers have one token each, and SetupError where no overhead can be.
    """
    longer = int(np.isfinite(log.tpot_ms).sum())
    if longer < len(log) // 2:
        raise NothingToConclude(
            f"{log.label}: {longer} of {len(log)} answers have more than one token: a decode overhead cannot be told; "
            "serve longer answers"
        )
    early = np.arange(len(log)) < (len(log) + 1) // 2
    judge = _Judge(log, coefficients, limits)

    tried = 0

    def loss(prefill_ms: float, decode_ms: float) -> float:
        nonlocal tried
        tried += 1
        if progress is not None:
            progress(tried, MOST_TRIED)
        return judge.loss(EngineOverhead(prefill_ms, decode_ms), early)

    best = _search(loss, coefficients.decode_floor_ms, (start.prefill_ms, start.decode_ms))
    overhead = EngineOverhead(*best)
    answers = judge.answers(overhead)
    return Fit(
        overhead=overhead,
        start=start,
        loss=judge.loss(overhead, early),
        fitted_requests=int(early.sum()),
        heldout=judge.quantities(answers, ~early),
        fitted=judge.quantities(answers, early),
        unfitted=judge.quantities(judge.answers(start), ~early),
        answers=answers,
    )


def least(coefficients: Coefficients) -> EngineOverhead:
    """The lowest overheads looked at: an engine may beat its kernels, but not by half of the shortest step."""
    prefill_ms = coefficients.prefill_floor_ms + coefficients.prefill_constant_ms
    return EngineOverhead(-prefill_ms / 2, -coefficients.decode_floor_ms / 2)


def _search(
    loss: Callable[[float, float], float], unit_ms: float, start: tuple[float, float]
) -> tuple[float, float]:  # fmt: skip
    """The overheads of least loss: downhill from the best points of a grid in units of ``unit_ms``, then finer."""
    points = [start, *((unit_ms * a, unit_ms * b) for a in COARSE for b in COARSE)]
    known = sorted((loss(*point), point) for point in dict.fromkeys(points))
    best = min(_downhill(loss, point, unit_ms / FINER[0]) for _, point in known[:STARTS])
    if not np.isfinite(best[0]):
        raise SetupError("no engine overhead makes every step longer than 0 ms; check the node's costs")
    for parts in FINER:
        best = min(best, _downhill(loss, best[1], unit_ms / parts))
    return round(best[1][0], 3), round(best[1][1], 3)


def _downhill(
    loss: Callable[[float, float], float], point: tuple[float, float], size_ms: float
) -> tuple[float, tuple[float, float]]:
    """Nelder and Mead's simplex from a point: the least loss and where it is."""
    from scipy.optimize import minimize

    a, b = point
    simplex = [(a, b), (a + size_ms, b), (a, b + size_ms)]
    options = {"initial_simplex": simplex, "xatol": FINEST_MS, "fatol": 1e-6, "maxfev": TRIES}
    found = minimize(lambda x: loss(*x.tolist()), point, method="Nelder-Mead", options=options)
    return float(found.fun), (float(found.x[0]), float(found.x[1]))


class _Judge:
    """A log beside what the engine model makes of it."""

    def __init__(self, log: ServedLog, coefficients: Coefficients, limits: Limits) -> None:
        self._log, self._coefficients, self._limits = log, coefficients, limits
        columns = (log.arrival_ms, log.input_tokens, log.output_tokens, log.cached_tokens)
        self._work = Work(*(column.tolist() for column in columns))
        self._cost = StepCost(coefficients, EngineOverhead(), limits.sequences)
        self.least = least(coefficients)
        self._gaps = bool(np.isfinite(log.tbt_ms).any())
        self._observed = {"ttft": log.ttft_ms, "tpot": log.tpot_ms, "tbt": log.tbt_ms}

    def answers(self, overhead: EngineOverhead) -> Answers:
        """The log served again."""
        return serve(self._work, self._cost.under(overhead), self._limits)

    def loss(self, overhead: EngineOverhead, chosen: Mask) -> float:
        """Mean soft |ln(predicted / observed)| of TTFT and TPOT on the chosen requests; infinite below the least."""
        if overhead.prefill_ms < self.least.prefill_ms or overhead.decode_ms < self.least.decode_ms:
            return np.inf
        try:
            answers = self.answers(overhead)
        except SetupError:
            return np.inf
        parts = []
        for metric, predicted in (("ttft", self._ttft(answers)), ("tpot", self._tpot(answers))):
            usable = chosen & np.isfinite(self._observed[metric])
            pair = [_at(values[usable], FITTED_AT) for values in (predicted, self._observed[metric])]
            if usable.any():
                with np.errstate(divide="ignore", invalid="ignore"):
                    off = np.log(pair[0] / pair[1]) / SOFT
                parts.append(2 * SOFT * (np.sqrt(1 + off * off) - 1).mean())
        return float(np.nan_to_num(np.mean(parts), nan=np.inf))

    def quantities(self, answers: Answers, chosen: Mask) -> tuple[Quantity, ...]:
        """What is predicted and what was observed of the chosen requests."""
        predicted = {"ttft": self._ttft(answers), "tpot": self._tpot(answers)}
        if self._gaps:
            predicted["tbt"] = np.array([tbt(answers.gaps_ms(i)) for i in range(len(self._log))])
        found = (_quantity(name, values, self._observed[name], chosen) for name, values in predicted.items())
        return tuple(each for each in found if each is not None)

    def _ttft(self, answers: Answers) -> Floats:
        return answers.first_ms() - self._log.arrival_ms

    def _tpot(self, answers: Answers) -> Floats:
        gaps = self._log.output_tokens - 1
        each: Floats = np.full(len(gaps), np.nan)
        np.divide(answers.last_ms() - answers.first_ms(), gaps, out=each, where=gaps > 0)
        return each


def _at(values: Floats, percentiles: tuple[int, ...]) -> Floats:
    """Percentiles and, last, the mean."""
    return np.append(np.percentile(values, percentiles), values.mean())


def _quantity(metric: str, predicted: Floats, observed: Floats, chosen: Mask) -> Quantity | None:
    usable = chosen & np.isfinite(observed) & np.isfinite(predicted)
    if not usable.any():
        return None
    ours, theirs = predicted[usable], observed[usable]
    names = (*(f"p{percentile}" for percentile in SHOWN_AT), "mean")
    return Quantity(
        metric=metric,
        requests=int(usable.sum()),
        predicted=dict(zip(names, _at(ours, SHOWN_AT).tolist(), strict=True)),
        observed=dict(zip(names, _at(theirs, SHOWN_AT).tolist(), strict=True)),
        request_error_percent=float(100 * np.median(np.abs(ours / theirs - 1))),
    )
