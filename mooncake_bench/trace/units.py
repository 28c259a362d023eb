"""Timestamps of any unit to milliseconds from the first arrival."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mooncake_bench.errors import TraceError, nearest

if TYPE_CHECKING:
    from mooncake_bench.trace.model import Floats

Timestamps = NDArray[Any]  # int64 or float64

DATES = "dates"  # a default unit: whole ns since 1970 (UTC), read from dates
UNITS = ("auto", "s", "ms", "us", "ns")
_PER_MS = {"us": 1_000, "ns": 1_000_000}
# Seconds since 1970 of the years 2001 to 2096: a first timestamp in such a range, in some unit, is wall-clock time.
_EPOCH_S = (1_000_000_000, 4_000_000_000)
_PER_S = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def to_arrival_ms(
    timestamp: Timestamps, unit: str, default_unit: str, label: str, notices: list[str]
) -> tuple[Floats, dict[str, str]]:
    """Times in ms from the earliest one, and what the metadata should record of the conversion.

    ``unit`` is one of :data:`UNITS`; ``auto`` takes the format's ``default_unit`` unless the numbers are wall-clock
    times of another unit. Raises TraceError for an unknown unit.
    """
    if unit not in UNITS:
        raise TraceError(f"timestamp unit {unit!r} is not one of {', '.join(UNITS)}{nearest(unit, UNITS)}")
    first = timestamp.min()
    if default_unit == DATES:
        return _since_first_date(timestamp, first, unit, label)
    chosen = _guess(first, default_unit) if unit == "auto" else unit
    if unit == "auto" and (chosen != default_unit or _is_epoch(first, chosen)):
        notices.append(
            f"{label}: timestamps start at {first}: read as wall-clock time in {chosen} and counted from the first "
            "arrival; use --timestamp-unit if that is wrong"
        )
    facts = {"timestamp_unit": chosen, "timestamp_unit_given": unit, "first_timestamp": str(first)}
    return _scaled(timestamp - first, chosen), facts  # integers are rebased before they become floats: exact


def _since_first_date(timestamp: Timestamps, first: Any, unit: str, label: str) -> tuple[Floats, dict[str, str]]:
    if unit != "auto":
        found = f"found timestamp unit {unit!r}"
        raise TraceError(f"{label}: its times are dates, which need no unit; {found}; leave the option out")
    facts = {
        "timestamp_unit": "dates",
        "timestamp_unit_given": unit,
        "first_timestamp": str(np.datetime64(int(first), "ns")),
    }
    return _scaled(timestamp - first, "ns"), facts


def _is_epoch(first: Any, unit: str) -> bool:
    low, high = _EPOCH_S
    return bool(low * _PER_S[unit] <= first < high * _PER_S[unit])


def _guess(first: Any, default_unit: str) -> str:
    if _is_epoch(first, default_unit):
        return default_unit
    return next((unit for unit in _PER_S if _is_epoch(first, unit)), default_unit)


def _scaled(since: Timestamps, unit: str) -> Floats:
    times = since.astype(np.float64)
    if unit == "s":
        return times * 1000.0
    return times if unit == "ms" else times / float(_PER_MS[unit])
