"""Quantile tables: a distribution as a few rounded points, alone or by bins of another quantity."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from mooncake_bench.trace.model import Floats

    Numbers = NDArray[Any]

POINTS = (
    *(0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75),
    *(0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99, 0.995, 1.0),
)
FEW = 100  # of so few values only FEW_POINTS are told
FEW_POINTS = (0.0, 0.25, 0.5, 0.75, 1.0)
DIGITS = 3
LEAST_IN_BIN = 40


def rounded(value: float, digits: int = DIGITS) -> float:
    """A number to a few significant digits."""
    return float(f"{value:.{digits}g}")


@dataclass(frozen=True)
class Table:
    """A distribution of numbers >= 0 by points of its quantile function; ``log(1 + value)`` is linear between them."""

    at: tuple[float, ...]
    values: tuple[float, ...]

    @classmethod
    def of(cls, numbers: Numbers) -> Table:
        """The table of a sample; every point is rounded, and of a small sample there are few."""
        at = POINTS if len(numbers) >= FEW else FEW_POINTS
        values = np.quantile(np.asarray(numbers, np.float64), at) if len(numbers) else np.zeros(len(at))
        return cls(at, tuple(rounded(value) for value in values.tolist()))

    def __call__(self, uniform: Floats) -> Floats:
        """Values for uniform numbers in [0, 1)."""
        return np.expm1(np.interp(uniform, self.at, np.log1p(self.values)))

    def share_below(self, value: float) -> float:
        """The probability of a smaller value."""
        return float(np.interp(value, self.values, self.at))


@dataclass(frozen=True)
class Binned:
    """A table of one quantity in each bin of another: ``edges`` between the bins, one fewer than tables."""

    edges: tuple[float, ...]
    tables: tuple[Table, ...]

    @classmethod
    def of(cls, by: Numbers, numbers: Numbers, bins: int) -> Binned:
        """Tables in up to ``bins`` bins of about equal counts, none of them of a handful of values."""
        count = max(1, min(bins, len(by) // LEAST_IN_BIN))
        inner = np.quantile(np.asarray(by, np.float64), np.arange(1, count) / count) if len(by) else np.empty(0)
        edges = sorted({rounded(edge) for edge in inner.tolist()})
        bin_of = np.searchsorted(edges, by, side="right")
        full = [number for number in range(len(edges) + 1) if (bin_of == number).any()]
        if len(full) <= len(edges):  # rounding emptied a bin
            return cls((), (Table.of(numbers),))
        return cls(tuple(edges), tuple(Table.of(numbers[bin_of == number]) for number in full))

    def table(self, by: float) -> Table:
        """The table of the bin that a value of the other quantity falls into."""
        return self.tables[bisect_right(self.edges, by)]

    def value(self, by: float, uniform: float) -> float:
        """One value, given the other quantity."""
        table = self.table(by)
        return float(np.expm1(np.interp(uniform, table.at, np.log1p(table.values))))

    def each(self, by: Numbers, uniform: Floats) -> Floats:
        """Many values."""
        found = np.empty(len(uniform))
        bin_of = np.searchsorted(self.edges, by, side="right")
        for number, table in enumerate(self.tables):
            rows = bin_of == number
            found[rows] = table(uniform[rows])
        return found


def plain(value: Table | Binned) -> dict[str, Any]:
    """A table as TOML holds it: values only, the places are those of POINTS or FEW_POINTS."""
    if isinstance(value, Table):
        return {"values": [_short(number) for number in value.values]}
    return {
        "edges": [_short(edge) for edge in value.edges],
        "values": [list(plain(table)["values"]) for table in value.tables],
    }


def _short(value: float) -> float | int:
    return int(value) if value == int(value) else value


def table_from(plain: Mapping[str, Any]) -> Table:
    """The table in what :func:`plain` gave. Raises ValueError for anything else."""
    return _table(plain["values"])


def binned_from(plain: Mapping[str, Any]) -> Binned:
    """The tables in what :func:`plain` gave. Raises ValueError for anything else."""
    edges, tables = _numbers(plain["edges"]), plain["values"]
    if not isinstance(tables, list) or len(tables) != len(edges) + 1 or sorted(edges) != list(edges):
        raise ValueError(f"{len(edges)} edges in order need {len(edges) + 1} rows of values")
    return Binned(edges, tuple(_table(values) for values in tables))


def _table(listed: Any) -> Table:
    values = _numbers(listed)
    at = {len(POINTS): POINTS, len(FEW_POINTS): FEW_POINTS}.get(len(values))
    if at is None or sorted(values) != list(values) or min(values) < 0:
        raise ValueError(f"expected {len(POINTS)} or {len(FEW_POINTS)} numbers from 0 on that never fall")
    return Table(at, values)


def _numbers(listed: Any) -> tuple[float, ...]:
    if not isinstance(listed, list) or any(
        isinstance(item, bool) or not isinstance(item, int | float) for item in listed
    ):
        raise ValueError("expected a list of numbers")
    if not all(np.isfinite(listed)):
        raise ValueError("expected finite numbers")
    return tuple(map(float, listed))
