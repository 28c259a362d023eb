"""What arrival times show: the coarse grid that they may lie on, an odd rate, a unit that looks wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mooncake_bench.trace.model import Floats
    from mooncake_bench.trace.units import Timestamps

GRID_NOTICE = "arrivals lie on a coarse grid"
LOW_RATE_RPS, HIGH_RATE_RPS = 0.01, 10_000.0
MANY_REQUESTS = 100  # from which whole timestamps, too, are doubted
COARSE_SHARE = 0.5  # share of requests that arrive together with their predecessor from which a grid is reported
COARSE_MIN_REQUESTS = 20
GRID_SHARE, GRID_SLACK = 0.9, 0.1  # of a grid's gaps, the share that is a multiple of one step; in steps, how nearly
NEAR_STEPS, FAR_SHARE = 4, 0.25  # where most requests share a time, few gaps are many steps
LEAST_STEP = 0.25  # of the usual gap: a smaller one is no grid that requests lie on
SHORT_MIN_REQUESTS, SHORT_MAX_REQUESTS = 20, 1000  # below: too few to tell; from there on whole times are believed
SHORT_SPAN_MS = 100_000.0  # a day of seconds read as ms
BUSY_RPS, BUSY_WHOLE_RPS = 100.0, 400.0  # from which a short trace with, without fractions of a ms is doubted


def suspect_seconds(timestamp: Timestamps, field: str, arrival_ms: Floats, notices: list[str]) -> None:
    """Adds a note on ``timestamp``, read as ms, that is more likely seconds.

    That is more than one request a ms (few whole times are believed), or a short trace that is busy all the time; where
    the name of the ``field`` says ms, only the former.
    """
    n, span_ms = len(arrival_ms), float(arrival_ms[-1])
    if n < 3 or not span_ms > 0 or n > HIGH_RATE_RPS * span_ms / 1000:  # beyond that: noted as a rate
        return
    rate_rps = n / span_ms * 1000
    fractions = timestamp.dtype.kind == "f" and bool((timestamp % 1 != 0).any())
    crowded = span_ms < n - 1 and (fractions or n >= MANY_REQUESTS)
    busy = rate_rps >= BUSY_RPS if fractions else rate_rps >= BUSY_WHOLE_RPS and n < SHORT_MAX_REQUESTS
    short = n >= SHORT_MIN_REQUESTS and span_ms < SHORT_SPAN_MS and not field.endswith("_ms")
    if crowded or (short and busy):
        notices.append(
            f"timestamps look like seconds: read as ms they are {rate_rps:,.0f} requests/s; use "
            "--timestamp-unit s (or ms, if that is right)"
        )


def describe_arrivals(arrival_ms: Floats, notices: list[str]) -> None:
    """Adds what a person should know of the arrivals: an odd rate, a coarse grid."""
    n, span_s = len(arrival_ms), float(arrival_ms[-1]) / 1000
    if n > 1 and span_s > 0 and not LOW_RATE_RPS <= n / span_s <= HIGH_RATE_RPS:
        notices.append(
            f"mean arrival rate is {n / span_s:.4g}/s, outside {LOW_RATE_RPS:g} to {HIGH_RATE_RPS:,.0f}/s: "
            "is the timestamp unit right? (--timestamp-unit s|ms|us|ns)"
        )
    grid = coarse_grid_ms(arrival_ms)
    if grid is not None:
        distinct = 1 + int((np.diff(arrival_ms) > 0).sum())
        notices.append(f"{GRID_NOTICE}: {distinct:,} distinct times for {n:,} requests, about {grid:g} ms apart")


def coarse_grid_ms(arrival_ms: Floats) -> float | None:
    """The step, ms, of the one regular grid that arrivals lie on; None where there is none.

    Most requests share their predecessor's time, and the gaps between distinct times are multiples of one step, the
    usual gap or else the smallest: all but a tenth of them, or but one, each within a tenth of the step, and at most a
    quarter more than four steps. Several grids interleaved, such as copies of a trace some time apart, are none.
    """
    gaps = np.diff(arrival_ms)
    apart = gaps[gaps > 0]
    if not shares_times(arrival_ms) or not len(apart):
        return None
    usual = float(np.median(apart))
    smallest = float(apart.min())
    steps = [usual, smallest] if smallest >= LEAST_STEP * usual else [usual]
    return next((step for step in steps if _is_step(apart, step)), None)


def shares_times(arrival_ms: Floats) -> bool:
    """Whether more than half of the requests, of at least 20, arrive together with their predecessor."""
    together = int((np.diff(arrival_ms) == 0).sum())
    return len(arrival_ms) >= COARSE_MIN_REQUESTS and together > COARSE_SHARE * (len(arrival_ms) - 1)


def _is_step(gaps: Floats, step: float) -> bool:
    steps = gaps / step
    odd = int(((steps < 1 - GRID_SLACK) | (np.abs(steps - np.rint(steps)) > GRID_SLACK)).sum())
    far = int((steps > NEAR_STEPS + GRID_SLACK).sum())  # often: the step is the distance of two grids
    return odd <= max((1 - GRID_SHARE) * len(gaps), min(1, len(gaps) - 2)) and far <= FAR_SHARE * len(gaps)
