"""The rows of a grid on disk, each kept as it comes, so that an interrupted grid continues where it was.

They stand in a CSV file: phase, sizes, time [ms], how well it was measured, and all that the time depends on. Rows of
another device, model or way of measuring are refused rather than mixed, and so is a row that cannot be a measurement.
"""

from __future__ import annotations

import csv
import io
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mooncake_bench.errors import SetupError
from mooncake_bench.live.measurement import (
    LEAST_MS,
    MOST_ERROR,
    MOST_MS,
    MOST_ROUNDS,
    MOST_SIZE,
    Measurement,
    Shape,
    least_second,
)
from mooncake_bench.outfile import writing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

SIZES = ("phase", "batch", "computed_tokens", "prefix_tokens", "context")
"""``batch`` sequences, each of so many tokens. Prefill: computed after a cached prefix; decode: a context."""
QUALITY = ("spread", "rounds", "noisy", "depth_error_percent", "notice")
SHOWN_CHARS = 40  # of a cell that is refused


@dataclass(frozen=True)
class Row:
    """One shape's time."""

    shape: Shape
    measurement: Measurement


class RowsFile:
    """The rows measured so far, on disk: read once, rewritten whole after each."""

    def __init__(self, path: Path, key: Mapping[str, Any]) -> None:
        """``key``: what all times depend on besides their shape. Raises SetupError for a file of other rows."""
        self.path = path
        self.key = {name: _text(value) for name, value in key.items()}
        self.rows = self._read()

    def add(self, row: Row) -> None:
        """Keep one more row. Raises SetupError where the file cannot be written."""
        self.rows[row.shape] = row
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self._header)
        writer.writerows([*_cells(row), *self.key.values()] for row in self.rows.values())
        with writing(self.path, force=True, label=f"--rows {self.path}", error=SetupError) as partial:
            partial.write_text(text.getvalue(), encoding="utf-8")

    @property
    def _header(self) -> list[str]:
        return [*SIZES, "ms", *QUALITY, *self.key]

    def _read(self) -> dict[Shape, Row]:
        try:
            lines = list(csv.reader(io.StringIO(self.path.read_text(encoding="utf-8-sig"))))
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise self._other(getattr(error, "strerror", None) or "not a text of rows") from None
        if not lines or lines[0] != self._header:
            raise self._other("its header is not that of rows measured by calibrate live")
        rows: dict[Shape, Row] = {}
        numbers: dict[Shape, int] = {}
        for number, cells in enumerate(lines[1:], start=2):
            if cells:  # not a blank line
                row = self._row(number, cells)
                if row.shape in rows:
                    raise self._bad(number, f"the shape of row {numbers[row.shape]} again, expected each shape once")
                rows[row.shape], numbers[row.shape] = row, number
        return rows

    def _row(self, number: int, cells: Sequence[str]) -> Row:
        if len(cells) != len(self._header):
            raise self._bad(number, f"{len(cells)} cells, expected {len(self._header)}, as in the header")
        found = dict(zip(self._header, cells, strict=True))
        for name, value in self.key.items():
            if found[name] != value:
                raise self._other(f"row {number} has {name} {_shown(found[name])}, expected {value!r}")
        try:
            return _parsed(found)
        except ValueError as error:
            raise self._bad(number, str(error)) from None

    def _bad(self, number: int, fault: str) -> SetupError:
        return SetupError(f"--rows {self.path}: row {number}: {fault}; delete the row, and its shape is measured again")

    def _other(self, reason: str) -> SetupError:
        return SetupError(f"--rows {self.path}: {reason}; name another file, or delete it to measure anew")


def _cells(row: Row) -> list[str]:
    (phase, first, second), one = row.shape, row.measurement
    sizes = [1, first, second, ""] if phase == "prefill" else [first, "", "", second]
    spread, depth = ("" if value is None else repr(value) for value in (one.spread, one.depth_error))
    quality = [spread, one.samples, "yes" if one.noisy else "no", depth, one.notice]
    return [phase, *map(str, [*sizes, repr(one.ms), *quality])]


def _parsed(cells: Mapping[str, str]) -> Row:
    """A row of the file. Raises ValueError that says which cell cannot be, and what was expected."""
    phase = cells["phase"]
    if phase == "prefill":
        _fixed(cells, {"batch": "1", "context": ""})
        names = ("computed_tokens", "prefix_tokens")
    elif phase == "decode":
        _fixed(cells, {"computed_tokens": "", "prefix_tokens": ""})
        names = ("batch", "context")
    else:
        raise ValueError(f"phase {_shown(phase)}, expected prefill or decode")
    first = _whole(cells, names[0], 1, MOST_SIZE)
    second = _whole(cells, names[1], least_second(phase), MOST_SIZE)
    if cells["noisy"] not in ("yes", "no"):
        raise ValueError(f"noisy {_shown(cells['noisy'])}, expected yes or no")
    spread, depth = (
        _number(cells, name, 0, MOST_ERROR) if cells[name] else None for name in ("spread", "depth_error_percent")
    )
    measurement = Measurement(
        ms=_number(cells, "ms", LEAST_MS, MOST_MS),
        spread=spread,
        samples=_whole(cells, "rounds", 1, MOST_ROUNDS),
        noisy=cells["noisy"] == "yes",
        depth_error=depth,
        notice=cells["notice"],
    )
    return Row((phase, first, second), measurement)


def _fixed(cells: Mapping[str, str], expected: Mapping[str, str]) -> None:
    """The cells that a phase leaves no choice of."""
    for name, value in expected.items():
        if cells[name] != value:
            raise ValueError(f"{name} {_shown(cells[name])} of a {cells['phase']}, expected {value or 'nothing'}")


def _whole(cells: Mapping[str, str], name: str, least: int, most: int) -> int:
    text = cells[name]
    if re.fullmatch(r"[0-9]{1,12}", text) and least <= int(text) <= most:
        return int(text)
    raise ValueError(f"{name} {_shown(text)}, expected a whole number from {least} to {most:,}")


def _number(cells: Mapping[str, str], name: str, least: float, most: float) -> float:
    try:
        value = float(cells[name])
    except ValueError:
        value = math.nan
    if least <= value <= most:
        return value
    raise ValueError(f"{name} {_shown(cells[name])}, expected a number from {least:g} to {most:g}")


def _shown(text: str) -> str:
    return repr(text) if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]!r}…"


def _text(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)
