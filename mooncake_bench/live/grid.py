"""Which shapes a calibration runs on this device, and running them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.errors import SetupError
from mooncake_bench.hardware.calibrate.doubts import check_variety
from mooncake_bench.hardware.calibrate.forms import LEAST_ROWS
from mooncake_bench.hardware.calibrate.rows import DecodeRows, PrefillRows
from mooncake_bench.live.cache import MODE
from mooncake_bench.live.device import OutOfMemory
from mooncake_bench.live.measurement import MOST_SIZE, Measurement, kept
from mooncake_bench.live.rowsfile import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mooncake_bench.live.cache import Kernels
    from mooncake_bench.live.measurement import Shape
    from mooncake_bench.live.rowsfile import RowsFile


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
    return _pairs(
        text, r"([0-9]+)(?:\+([0-9]+))?", "--prefill", "COMPUTED or COMPUTED+PREFIX such as 64,256,1024+512", 0
    )


def parse_decode(text: str) -> tuple[tuple[int, int], ...]:
    """``1x512,8x1024``: sequences and the context of each [tokens]. Raises SetupError."""
    return _pairs(text, r"([0-9]+)x([0-9]+)", "--decode", "BATCHxCONTEXT such as 1x512,8x1024", 1)


def _pairs(text: str, pattern: str, flag: str, expected: str, least: int) -> tuple[tuple[int, int], ...]:
    pairs: dict[tuple[int, int], None] = {}
    for part in text.split(","):
        if any(len(digits) > len(str(MOST_SIZE)) or int(digits) > MOST_SIZE for digits in re.findall(r"[0-9]+", part)):
            raise SetupError(f"{flag}: {part.strip()[:40]!r}: expected sizes of at most {MOST_SIZE:,}")
        match = re.fullmatch(pattern, part.strip())
        first, second = (int(match[1]), int(match[2] or 0)) if match else (0, 0)
        if first < 1 or second < least:
            raise SetupError(f"{flag}: expected {expected}, got {part!r} in {text!r}")
        if (first, second) in pairs:
            raise SetupError(f"{flag}: {part.strip()!r} is given twice in {text!r}; keep one")
        pairs[first, second] = None
    return tuple(pairs)


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


def check_shapes(shapes: Iterable[Shape], left_out: int = 0) -> None:
    """Raises SetupError unless a fit can be made of times of these shapes; ``left_out`` more did not fit in memory."""
    rows = [Row(shape, Measurement(1.0, None, 1, True, None)) for shape in dict.fromkeys(shapes)]  # whatever it takes
    try:
        for phase, of_phase in (("prefill", prefill_rows(rows)), ("decode", decode_rows(rows))):
            if len(of_phase) < LEAST_ROWS:
                raise SetupError(f"{len(of_phase)} {phase} rows: a fit needs at least {LEAST_ROWS}; measure more sizes")
            check_variety(of_phase)
    except SetupError as error:
        if not left_out:
            raise
        found = str(error).partition("; measure")[0]
        raise SetupError(
            f"{left_out} of the shapes did not fit in memory, and of those that did {found}; give smaller shapes, "
            "run fewer layers (--layers) or a type of 2 bytes (--dtype)"
        ) from None


def _run(kernels: Kernels, shape: Shape) -> Row:
    phase, first, second = shape
    timing = kernels.prefill_ms(first, second, MODE) if phase == "prefill" else kernels.decode_ms(first, second)
    return Row(shape, kept(shape, timing))


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
