"""Numbers of tokens: fixed, lognormal, uniform, or as they occur in a file; alone or input and output together."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mooncake_bench.errors import SetupError, TraceError
from mooncake_bench.trace.synthetic import draws, spelling
from mooncake_bench.trace.synthetic.spelling import MOST_TOKENS, Spelled, unknown_kind

if TYPE_CHECKING:
    from mooncake_bench.trace.model import Floats, Ints

KINDS = ("fixed", "lognormal", "uniform", "empirical")
LENGTH_COLUMNS = (  # input and output columns of files of lengths: Vidur's, and names of our own
    ("num_prefill_tokens", "num_decode_tokens"),
    ("input_tokens", "output_tokens"),
    ("input_length", "output_length"),
)
MAX_FILE_BYTES = 2**30


class Lengths(Protocol):
    """What every distribution of lengths offers."""

    def __call__(self, uniform: Floats) -> Ints:
        """Whole numbers of tokens, at least 1, for uniform numbers in [0, 1)."""


@dataclass(frozen=True)
class Fixed:
    """Always the same."""

    tokens: int

    def __call__(self, uniform: Floats) -> Ints:
        return np.full(len(uniform), self.tokens, np.int64)


@dataclass(frozen=True)
class Lognormal:
    """Lognormal, rounded, at least 1; with ``largest`` the distribution is cut there, nothing piles up at it."""

    mean: float
    cv: float
    largest: int | None = None

    def __call__(self, uniform: Floats) -> Ints:
        if not self.cv:
            return np.full(len(uniform), max(1, round(self.mean)), np.int64)
        top = 1.0 if self.largest is None else draws.lognormal_share(self.largest, self.mean, self.cv)
        values = np.rint(draws.lognormal_of(uniform * top, self.mean, self.cv))
        return np.clip(values, 1, MOST_TOKENS).astype(np.int64)


@dataclass(frozen=True)
class Uniform:
    """Whole numbers from ``low`` to ``high``, both included, all alike."""

    low: int
    high: int

    def __call__(self, uniform: Floats) -> Ints:
        return self.low + np.floor(uniform * (self.high - self.low + 1)).astype(np.int64)


@dataclass(frozen=True)
class Empirical:
    """Values of a file, each as often as it occurs there."""

    values: Ints  # sorted

    def __call__(self, uniform: Floats) -> Ints:
        return self.values[np.floor(uniform * len(self.values)).astype(np.int64)]


@dataclass(frozen=True)
class Joint:
    """Rows of input and output lengths of a file, drawn together."""

    input_tokens: Ints
    output_tokens: Ints
    source: str

    def rows(self, uniform: Floats) -> Ints:
        """Which row each uniform number chooses."""
        return np.floor(uniform * len(self.input_tokens)).astype(np.int64)


def parse(text: str, what: str) -> Lengths:
    """The distribution that a text names; ``what`` is the option, ``--input`` or ``--output``.

    Raises SetupError for a bad text, TraceError for a file that cannot be read.
    """
    part = Spelled(f"fixed:{text}" if text[:1].isdigit() else text, what)
    made = _parsed(part)
    part.done({"lognormal": ("mean", "cv", "max")}.get(part.kind, ()))
    return made


def _parsed(part: Spelled) -> Lengths:
    if part.kind == "fixed":
        return Fixed(spelling.token_count(part.first("a number of tokens"), part.name("tokens")))
    if part.kind == "lognormal":
        mean = spelling.token_count(part.take("mean"), part.name("mean"))
        cv = spelling.number(part.take("cv", "1"), part.name("cv"), 0, 100)
        return Lognormal(
            mean, cv, spelling.token_count(part.take("max"), part.name("max")) if part.has("max") else None
        )
    if part.kind == "uniform":
        low, high = (spelling.token_count(part.first("A,B"), part.name(end)) for end in ("A", "B"))
        if high < low:
            raise part.error("the second number is below the first")
        return Uniform(low, high)
    if part.kind == "empirical":
        both = joint(part.first("a TRACE or a file of lengths"), part.what)
        return Empirical(np.sort(both.output_tokens if part.what == "--output" else both.input_tokens))
    raise unknown_kind(part, KINDS)


def joint(source: str, what: str) -> Joint:
    """Input and output lengths of a trace, or of a CSV file that holds nothing else of a request (as Vidur's).

    Raises TraceError for a file that cannot be read or has a bad length.
    """
    found = _from_csv(source, what)
    if found is None:
        from mooncake_bench.trace.loading import load

        trace = load(source)
        found = trace.input_tokens, trace.output_tokens
    return Joint(*found, source)


def _from_csv(source: str, what: str) -> tuple[Ints, Ints] | None:
    """The two columns of a CSV file whose header names them; None for any other file."""
    path = Path(source)
    try:
        if not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
            return None
        with path.open("rb") as file:
            head = file.readline(4096).decode("utf-8-sig", "replace")
    except (OSError, ValueError):
        return None  # the reader of traces says what is wrong
    names = [name.strip() for name in head.strip().split(",")]
    pair = next((pair for pair in LENGTH_COLUMNS if set(pair) <= set(names)), None)
    if pair is None:
        return None
    try:
        return _columns(path, [names.index(name) for name in pair], pair, what)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{what} {source!r} cannot be read: {error}") from None


def _columns(path: Path, at: list[int], names: tuple[str, str], what: str) -> tuple[Ints, Ints]:
    found: list[tuple[int, int]] = []
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file)
        next(rows)
        for row in rows:
            if row:
                where = f"{what} {str(path)!r}, line {rows.line_num}"
                first, second = (_length(row, index, where, name) for index, name in zip(at, names, strict=True))
                found.append((first, second))
    if not found:
        raise TraceError(f"{what} {str(path)!r}: found no lengths after the header; expected at least one row")
    table = np.array(found, np.int64)
    return table[:, 0], table[:, 1]


def _length(row: list[str], index: int, where: str, name: str) -> int:
    text = row[index].strip() if index < len(row) else ""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 1 <= value <= MOST_TOKENS or value != int(value):
        expected = f"a whole number of tokens from 1 to {MOST_TOKENS}"
        raise TraceError(f"{where}, field {name!r}: found {text!r}; expected {expected}")
    return int(value)


def mixed(joint_given: bool, single_given: bool) -> None:
    """Raises SetupError where lengths are given both together and one by one."""
    if joint_given and single_given:
        raise SetupError("--lengths gives input and output together: leave --input and --output out, or --lengths")
