"""A grid of shapes run on this device, each row kept as it comes, so that an interrupted grid continues where it was.

The rows stand in a CSV file: phase, sizes, time [ms], how well it was measured, and all that the time depends on. Rows
of another device, model or way of measuring are refused rather than mixed.
"""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench.errors import SetupError
from mooncake_bench.hardware.calibrate.rows import DecodeRows, PrefillRows
from mooncake_bench.live.cache import MODE, Measurement, kept
from mooncake_bench.live.device import OutOfMemory
from mooncake_bench.outfile import writing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from mooncake_bench.live.cache import Kernels, Shape

SIZES = ("phase", "batch", "computed_tokens", "prefix_tokens", "context")
"""``batch`` sequences, each of so many tokens. Prefill: computed after a cached prefix; decode: a context."""
QUALITY = ("spread", "rounds", "noisy", "depth_error_percent", "notice")


@dataclass(frozen=True)
class Row:
    """One shape's time."""

    shape: Shape
    measurement: Measurement


@dataclass(frozen=True)
class Grid:
    """Shapes to run: (computed, prefix) prefills and (batch, context of each) decode steps [tokens]."""

    prefill: tuple[tuple[int, int], ...]
    decode: tuple[tuple[int, int], ...]

    @property
    def shapes(self) -> list[Shape]:
        """All of them in a fixed random order: a slow spell of the machine then falls on shapes of all sizes."""
        shapes: list[Shape] = [("prefill", *one) for one in self.prefill]
        shapes += [("decode", *one) for one in self.decode]
        return [shapes[i] for i in np.random.default_rng(0).permutation(len(shapes))]


def _product(firsts: Iterable[int], seconds: Iterable[int], most: float = float("inf")) -> tuple[tuple[int, int], ...]:
    """All pairs whose product does not exceed ``most``."""
    return tuple((first, second) for second in seconds for first in firsts if first * second <= most)


SMALL = Grid(
    prefill=_product((16, 32, 64, 96, 128, 192), (0, 128)),
    decode=_product((1, 2, 3, 5, 8, 12, 16), (64, 320)),
)
"""For a small model on a CPU: seconds."""
FULL = Grid(
    prefill=(
        *_product((64, 128, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 32768), (0,)),
        *_product((64, 256, 1024, 2048, 4096, 8192), (8192, 32768)),
    ),
    decode=_product((1, 2, 4, 8, 16, 32, 64, 128, 256), (128, 1024, 4096, 16384, 65536), 2**20),
)
"""For a model of some billions on a GPU: minutes."""
GRIDS = {"small": SMALL, "full": FULL}


def parse_prefill(text: str) -> tuple[tuple[int, int], ...]:
    """``64,256,1024+512``: computed tokens, and with a + the cached prefix before them. Raises SetupError."""
    return _pairs(text, r"(\d+)(?:\+(\d+))?", "--prefill", "COMPUTED or COMPUTED+PREFIX such as 64,256,1024+512", 0)


def parse_decode(text: str) -> tuple[tuple[int, int], ...]:
    """``1x512,8x1024``: sequences and the context of each [tokens]. Raises SetupError."""
    return _pairs(text, r"(\d+)x(\d+)", "--decode", "BATCHxCONTEXT such as 1x512,8x1024", 1)


def _pairs(text: str, pattern: str, flag: str, expected: str, least: int) -> tuple[tuple[int, int], ...]:
    pairs: dict[tuple[int, int], None] = {}
    for part in text.split(","):
        match = re.fullmatch(pattern, part.strip())
        first, second = (int(match[1]), int(match[2] or 0)) if match else (0, 0)
        if first < 1 or second < least:
            raise SetupError(f"{flag}: expected {expected}, got {part!r} in {text!r}")
        if (first, second) in pairs:
            raise SetupError(f"{flag}: {part.strip()!r} is given twice in {text!r}; keep one")
        pairs[first, second] = None
    return tuple(pairs)


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
            lines = list(csv.reader(io.StringIO(self.path.read_text(encoding="utf-8"))))
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise self._wrong(getattr(error, "strerror", None) or "not a text of rows") from None
        if not lines or lines[0] != self._header:
            raise self._wrong("its header is not that of rows measured by calibrate live")
        rows = [self._row(number, cells) for number, cells in enumerate(lines[1:], start=2)]
        return {row.shape: row for row in rows}

    def _row(self, number: int, cells: Sequence[str]) -> Row:
        found = dict(zip(self._header, cells, strict=False))
        for name, value in self.key.items():
            if found.get(name) != value:
                raise self._wrong(f"row {number} has {name} {found.get(name)!r}, expected {value!r}")
        try:
            return _parsed(found)
        except ValueError:
            raise self._wrong(f"row {number} is not a measured time: {','.join(cells[:10])!r}") from None

    def _wrong(self, reason: str) -> SetupError:
        return SetupError(f"--rows {self.path}: {reason}; name another file, or delete it to measure anew")


def measure(
    grid: Grid, kernels: Callable[[], Kernels], file: RowsFile, progress: Callable[[int, int], None]
) -> list[str]:
    """Run what the file does not have yet; ``progress(done, of)`` before each shape and at the end.

    Returns what to tell: shapes for which memory did not suffice, which are left out. ``kernels`` is called once, when
    the first shape is run. Ctrl-C leaves every finished row in the file.
    """
    notices: list[str] = []
    built: Kernels | None = None
    shapes = grid.shapes
    for done, shape in enumerate(shapes):
        progress(done, len(shapes))
        if shape in file.rows:
            continue
        built = built or kernels()
        try:
            file.add(_run(built, shape))
        except OutOfMemory as error:
            notices.append(f"left out: {error}")
    progress(len(shapes), len(shapes))
    return notices


def _run(kernels: Kernels, shape: Shape) -> Row:
    phase, first, second = shape
    timing = kernels.prefill_ms(first, second, MODE) if phase == "prefill" else kernels.decode_ms(first, second)
    return Row(shape, kept(timing))


def prefill_rows(rows: Iterable[Row]) -> PrefillRows:
    """The prefills, as E1 is fitted to: n computed tokens, S = n p + n^2 / 2."""
    table = np.array(
        [(*row.shape[1:], row.measurement.ms) for row in rows if row.shape[0] == "prefill"], float
    ).reshape(-1, 3)
    n, p, ms = table.T
    return PrefillRows(n, n * p + n * n / 2, ms)


def decode_rows(rows: Iterable[Row]) -> DecodeRows:
    """The decode steps, as E2 is fitted to: sequences, and the context of all of them."""
    table = np.array([(*row.shape[1:], row.measurement.ms) for row in rows if row.shape[0] == "decode"], float).reshape(
        -1, 3
    )
    batch, context, ms = table.T
    return DecodeRows(batch, batch * context, ms)


def _cells(row: Row) -> list[str]:
    (phase, first, second), one = row.shape, row.measurement
    sizes = [1, first, second, ""] if phase == "prefill" else [first, "", "", second]
    spread, depth = ("" if value is None else repr(value) for value in (one.spread, one.depth_error))
    quality = [spread, one.samples, "yes" if one.noisy else "no", depth, one.notice]
    return [phase, *map(str, [*sizes, repr(one.ms), *quality])]


def _parsed(cells: Mapping[str, str]) -> Row:
    """A row of the file. Raises ValueError."""
    phase = cells["phase"]
    names = {"prefill": ("computed_tokens", "prefix_tokens"), "decode": ("batch", "context")}
    if phase not in names or float(cells["ms"]) <= 0:
        raise ValueError(phase)
    first, second = (int(cells[name]) for name in names[phase])
    spread, depth = (float(cells[name]) if cells[name] else None for name in ("spread", "depth_error_percent"))
    rounds, noisy = int(cells["rounds"]), cells["noisy"] == "yes"
    measurement = Measurement(float(cells["ms"]), spread, rounds, noisy, depth, cells["notice"])
    return Row((phase, first, second), measurement)


def _text(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)
