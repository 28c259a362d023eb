"""ServeGen's client files: what one client of a service did in each window of a day.

``chunk-I-trace.csv`` has no header and a line for each 600 s: time (s), rate (requests/s), coefficient of variation of
the gaps, name of their distribution (``Gamma`` or ``Weibull``, empty when idle) and its two arguments, shape and
scale. ``chunk-I-dataset.json`` has for each 21,600 s the lengths' distributions, each as the text of a Python dict
``{tokens: probability}``: ``input_tokens`` (or, for several kinds of input, ``text_tokens`` and ``image_tokens``,
``image_count`` and so on) and ``output_tokens``. Nothing says what prompts share. Source: github.com/alibaba/ServeGen
(Apache-2.0).
"""

from __future__ import annotations

import ast
import csv
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench.errors import SetupError, TraceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.trace.model import Floats, Ints

WINDOW_S, LENGTHS_WINDOW_S = 600, 21_600
MEDIA = ("image", "audio", "video")
PATTERNS = ("Gamma", "Weibull")
MOST_RPS, MOST_TOKENS, MOST_ITEMS = 1e6, 1_000_000_000, 10_000
_TRACE_NAME = re.compile(r"chunk-(\d+)-trace\.csv")


@dataclass(frozen=True)
class Window:
    """One line of a client's trace; ``shape`` of the gaps' distribution ``pattern``."""

    start_s: float
    rate_rps: float
    pattern: str
    shape: float


@dataclass(frozen=True)
class Pmf:
    """Values and how likely each is, added up."""

    values: Ints
    cumulative: Floats  # ends with 1

    def __call__(self, uniform: Floats) -> Ints:
        """Values for uniform numbers in [0, 1)."""
        return self.values[np.searchsorted(self.cumulative, uniform, side="right")]


class Client:
    """One client's two files, read when needed."""

    def __init__(self, number: int, folder: Path) -> None:
        self.number = number
        self.trace_path = folder / f"chunk-{number}-trace.csv"
        self.lengths_path = folder / f"chunk-{number}-dataset.json"
        self._lengths: dict[str, Any] | None = None
        self._pmfs: dict[tuple[int, str], Pmf | None] = {}

    def windows(self) -> list[Window]:
        """Every line of the client's trace. Raises TraceError for a bad one."""
        found: list[Window] = []
        try:
            with self.trace_path.open(encoding="utf-8-sig", newline="") as file:
                rows = csv.reader(file)
                for row in rows:
                    if row:
                        found.append(_window(row, f"{self.trace_path}, line {rows.line_num}", len(found)))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise TraceError(f"{self.trace_path} cannot be read: {error}") from None
        if not found:
            raise TraceError(f"{self.trace_path}: found no windows; expected a line for each {WINDOW_S} s")
        return found

    def pmf(self, time_s: float, field: str, optional: bool = False) -> Pmf | None:
        """The distribution of a field in the window that holds ``time_s``; None: absent and optional.

        Raises TraceError where it is missing, empty or no distribution.
        """
        window = int(time_s // LENGTHS_WINDOW_S) * LENGTHS_WINDOW_S
        if (window, field) not in self._pmfs:
            self._pmfs[window, field] = self._read(window, field, optional)
        return self._pmfs[window, field]

    def _read(self, window: int, field: str, optional: bool) -> Pmf | None:
        if self._lengths is None:
            self._lengths = _json_object(self.lengths_path)
        where = f"{self.lengths_path}, window {str(window)!r}, field {field!r}"
        fields = self._lengths.get(str(window))
        if not isinstance(fields, dict):
            known = ", ".join(list(self._lengths)[:6])
            raise TraceError(f"{where}: the window is missing; found {known or 'none'}; expected one for each 21600 s")
        if field not in fields and optional:
            return None
        return _distribution(fields.get(field), where)


def _json_object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise TraceError(f"{path} cannot be read: {error}; expected a client's distributions of lengths") from None
    if not isinstance(found, dict):
        raise TraceError(f"{path}: found {type(found).__name__}; expected an object with one entry a window")
    return found


def _window(row: Sequence[str], where: str, index: int) -> Window:
    if len(row) != 6:
        raise TraceError(f"{where}: found {len(row)} fields; expected 6: time, rate, cv, distribution, shape, scale")
    start = _number(row[0], f"{where}, field 'timestamp_s'", 1e12)
    rate = _number(row[1], f"{where}, field 'rate_rps'", MOST_RPS)
    cv = _number(row[2], f"{where}, field 'cv'", 1e6)
    if start % WINDOW_S or (index and start == 0):
        raise TraceError(f"{where}, field 'timestamp_s': found {row[0]!r}; expected windows {WINDOW_S} s apart")
    if not rate:
        return Window(start, 0.0, "", 1.0)
    pattern = row[3].strip()
    if not pattern and cv > 0:  # a rate and its variation only
        return Window(start, rate, "Gamma", 1 / cv**2)
    if pattern not in PATTERNS:
        raise TraceError(f"{where}, field 'pat_name': found {pattern!r}; expected {' or '.join(PATTERNS)}")
    shape = _number(row[4], f"{where}, field 'pat_arg1'", 1e6)
    if not shape:
        raise TraceError(f"{where}, field 'pat_arg1': found {row[4]!r}; expected a shape above 0")
    return Window(start, rate, pattern, shape)


def _number(text: str, where: str, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= most:
        raise TraceError(f"{where}: found {text!r}; expected a number from 0 to {most:g}")
    return value


def _distribution(text: Any, where: str) -> Pmf:
    expected = "the text of a dict {tokens: probability} whose probabilities add up to 1"
    try:
        table = ast.literal_eval(text) if isinstance(text, str) else None
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        table = None
    if not isinstance(table, dict):
        shown = "nothing" if text is None else repr(text)[:40]
        raise TraceError(f"{where}: found {shown}; expected {expected}")
    if not table:
        raise TraceError(f"{where}: found no lengths, though the client sends requests then; expected {expected}")
    for value, share in table.items():
        good = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS
        if not good or isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1.001:
            raise TraceError(f"{where}: found {value!r}: {share!r}; expected {expected}")
    values = sorted(table)
    total = sum(table.values())
    if abs(total - 1) > 1e-3:
        raise TraceError(f"{where}: the probabilities add up to {total:g}; expected 1")
    cumulative = np.cumsum([table[value] for value in values]) / total
    last = int(np.flatnonzero(np.diff(cumulative, prepend=0.0) > 0)[-1])  # beyond it nothing has a chance
    cumulative[last:] = 1.0
    return Pmf(np.array(values[: last + 1], np.int64), cumulative[: last + 1])


def clients(folder: str | Path, chosen: str | None = None) -> list[Client]:
    """The clients of a folder, in order of number; ``chosen`` names some, such as ``0,3-5``.

    Raises TraceError for a folder without client files, SetupError for a client that is not there.
    """
    path = Path(folder)
    try:
        names = sorted(item.name for item in path.iterdir())
    except OSError as error:
        raise TraceError(f"--servegen {str(folder)!r} cannot be read: {error.strerror}") from None
    numbers = sorted(int(match[1]) for name in names if (match := _TRACE_NAME.fullmatch(name)))
    if not numbers:
        raise TraceError(
            f"--servegen {str(folder)!r}: found no chunk-I-trace.csv; expected the folder of one model's client files"
        )
    return [Client(number, path) for number in (numbers if chosen is None else _chosen(chosen, numbers))]


def _chosen(text: str, known: Sequence[int]) -> list[int]:
    wanted: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part)
        if not match:
            raise SetupError(f"--clients: expected numbers such as 0,3-5, got {text!r}")
        low, high = int(match[1]), int(match[2] or match[1])
        found = [number for number in known if low <= number <= high]
        if not found or (match[2] is None and low not in known):
            raise SetupError(f"--clients {text!r}: no client {part.strip()}; there are {known[0]} to {known[-1]}")
        wanted.update(found)
    return sorted(wanted)
