"""Measured links as small tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_bench.report.sheets import Report, Sheet
from mooncake_bench.results.words import DASH, integer, significant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.live.transfer.measure import Measured

FITS = ("link", "latency ms", "GB/s", "error median", "p90", "worst", "spread", "transfers")
POOR_PERCENT = 25
"""A left-out error above this at p90 is told: the link is no straight line."""


def report(measured: Sequence[Measured], lacking: Sequence[str]) -> Report:
    """The fits, the times behind them, and what a reader should know; ``lacking``: what was not measured, and why."""
    sheets = (
        Sheet("Links: latency + bytes / bandwidth", FITS, tuple(map(_fit_row, measured)), _FIT_NOTES),
        Sheet("Time of one transfer [ms], median", _headers(measured), tuple(map(_time_row, measured))),
    )
    return Report(tuple(_head(measured)), sheets, (*_notices(measured), *lacking))


_FIT_NOTES = (
    "error: a size's median, predicted without that size [%]; spread: distance between a size's quartiles over its "
    "median [%], of the median size; every transfer's data was checked byte by byte",
)


def _head(measured: Sequence[Measured]) -> list[str]:
    seen = dict.fromkeys((one.link.device, one.link.versions) for one in measured)
    places = dict.fromkeys(device for device, _ in seen)
    versions = dict.fromkeys(versions for _, versions in seen)
    about = [f"{one.link.name}: {one.link.description}" for one in measured]
    return [f"Measured on {'; '.join(places)}; {', '.join(versions)}", *about]


def _fit_row(one: Measured) -> tuple[str, ...]:
    fit = one.fit
    if fit is None:
        return (one.link.name, *[DASH] * (len(FITS) - 2), integer(len(one.link.ms)))
    shown = (fit.left_out_median, fit.left_out_p90, fit.left_out_worst, 100 * fit.spread)
    return (
        one.link.name,
        significant(fit.latency_ms),
        significant(fit.gbytes_per_s),
        *(f"{percent:.1f}" for percent in shown),
        integer(len(one.link.ms)),
    )


def _headers(measured: Sequence[Measured]) -> tuple[str, ...]:
    return ("link", *(_size(size.nbytes) for size in measured[0].sizes))


def _time_row(one: Measured) -> tuple[str, ...]:
    return (one.link.name, *(significant(size.median_ms) for size in one.sizes))


def _notices(measured: Sequence[Measured]) -> list[str]:
    noisy = [one.link.name for one in measured if one.fit is not None and one.fit.noisy]
    told = [one.why_not for one in measured if one.why_not]
    told += [
        f"{one.link.name}: up to {one.fit.left_out_worst:.0f} % off on a size left out of the fit: one latency and one "
        "bandwidth do not describe it"
        for one in measured
        if one.fit is not None and one.fit.left_out_p90 > POOR_PERCENT
    ]
    if noisy:
        told.append(f"noisy: {', '.join(noisy)}; measure again on a machine that does nothing else")
    return told


def _size(nbytes: int) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes % scale == 0:
            return f"{nbytes // scale} {unit}"
    return f"{nbytes:,} B"
