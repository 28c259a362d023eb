"""Tables of measured times of a person's own: CSV or parquet, prefills and decode steps told apart by their columns."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mooncake_bench.errors import SetupError, nearest
from mooncake_bench.hardware.calibrate.rows import DecodeRows, PrefillRows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

Floats: TypeAlias = "NDArray[np.float64]"

ALIASES: dict[str, tuple[str, ...]] = {
    "n": ("n", "computed_tokens", "new_tokens", "computed"),
    "s": ("s", "S", "S2"),
    "prefix": ("prefix", "prefix_tokens", "cached_tokens"),
    "isl": ("isl", "prompt_tokens", "input_tokens"),
    "batch": ("batch", "B", "b", "batch_size", "sequences"),
    "tokens": ("tokens", "T", "total_tokens"),
    "context": ("context", "ctx", "context_tokens"),
    "ms": ("ms", "t", "time_ms", "latency_ms"),
    "phase": ("phase",),
}
"""What a row has -> the names that its column may have."""
PHASES = ("prefill", "decode")
HOW = (
    "a prefill has n (computed tokens), or batch and isl, and may have prefix or s; a decode step has batch and tokens "
    "(of all sequences) or context (of each); both have ms; name others with --columns n=NAME,ms=NAME"
)
SHOWN = 12
ROUNDED = 1e-3
"""The relative error of a number that was rounded, or of a mean: columns that differ by more contradict each other."""


@dataclass
class Measurements:
    """All rows of some files."""

    prefill: PrefillRows | None = None
    decode: DecodeRows | None = None
    notices: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Table:
    """A file's columns as they stand, and the number that messages give to each row."""

    label: str
    columns: dict[str, list[Any]]
    numbers: list[int]
    word: str

    def where(self, row: int, name: str) -> str:
        first = " (the first is 0)" if self.word == "row" else ""
        return f"{self.label}, {self.word} {self.numbers[row]}{first}, field {name!r}"

    def kept(self, rows: Sequence[int]) -> _Table:
        columns = {name: [column[row] for row in rows] for name, column in self.columns.items()}
        return _Table(self.label, columns, [self.numbers[row] for row in rows], self.word)


def parse_pairs(text: str | None, flag: str) -> dict[str, str]:
    """``a=b,c=d`` as a mapping. Raises SetupError, naming ``flag``."""
    found: dict[str, str] = {}
    for part in (text or "").split(",") if text else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals and value):
            raise SetupError(f"{flag}: expected NAME=VALUE,..., got {part!r}")
        if key in found:
            raise SetupError(f"{flag}: {key} is given twice; keep one")
        found[key] = value
    return found


def read_tables(
    paths: Sequence[Path], where: Mapping[str, str] | None = None, columns: Mapping[str, str] | None = None
) -> Measurements:
    """All rows of ``paths`` that ``where`` (column -> value) leaves, ``columns`` (key -> the file's name) as told.

    A column ``phase`` says of each row what it is; without one a file's columns do. Raises SetupError for a file that
    cannot be read, a column or a key that is not known, a filter that leaves no row, and the first bad value.
    """
    for key in columns or {}:
        if key not in ALIASES:
            raise SetupError(f"--columns: no key {key!r}{nearest(key, ALIASES)}; known: {', '.join(ALIASES)}")
    found: dict[str, list[Any]] = {phase: [] for phase in PHASES}
    notices: list[str] = []
    for path in paths:
        table = _filtered(_read(path), where or {})
        names = _names(table, columns or {})
        for phase, part in _by_phase(table, names):
            found[phase].append((_prefill if phase == "prefill" else _decode)(part, names, notices))
    return Measurements(_joined(found["prefill"]), _joined(found["decode"]), notices)


def _joined(parts: list[Any]) -> Any:
    if not parts:
        return None
    kind = type(parts[0])
    names = kind.__dataclass_fields__
    return kind(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def _read(path: Path) -> _Table:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
        return _read_parquet(path) if magic == b"PAR1" else _read_csv(path)
    except OSError as error:
        raise SetupError(f"{path}: cannot be read: {error.strerror or error}") from None


def _read_parquet(path: Path) -> _Table:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.read_table(path)
    except (pa.ArrowException, ValueError) as error:
        raise SetupError(f"{path}: the parquet file is damaged ({' '.join(str(error).split())[:200]})") from None
    columns = {name: table.column(at).to_pylist() for at, name in enumerate(table.column_names)}
    return _Table(str(path), columns, list(range(table.num_rows)), "row")


def _read_csv(path: Path) -> _Table:
    import csv

    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader((line for line in file), strict=True)
            lines = [(reader.line_num, row) for row in reader if row and not row[0].lstrip().startswith("#")]
    except (csv.Error, UnicodeDecodeError) as error:
        raise SetupError(f"{path}: not a CSV file in UTF-8 ({error}), nor parquet") from None
    if not lines:
        raise SetupError(f"{path}: the file is empty; expected a header and rows: {HOW}")
    names = [name.strip() for name in lines[0][1]]
    for name in names:
        if names.count(name) > 1:
            raise SetupError(f"{path}, line {lines[0][0]}: found the column {name!r} twice; expected each once")
    for number, row in lines[1:]:
        if len(row) != len(names):
            raise SetupError(f"{path}, line {number}: found {len(row)} fields; expected {len(names)}, as in the header")
    columns = {name: [row[at].strip() for _, row in lines[1:]] for at, name in enumerate(names)}
    return _Table(str(path), columns, [number for number, _ in lines[1:]], "line")


def _filtered(table: _Table, where: Mapping[str, str]) -> _Table:
    """The rows that have the values asked for."""
    kept = list(range(len(table.numbers)))
    for name, value in where.items():
        if name not in table.columns:
            known = ", ".join(list(table.columns)[:SHOWN])
            raise SetupError(f"--where {name}={value}: {table.label} has no column {name!r}"
                             f"{nearest(name, table.columns)}; it has: {known}")  # fmt: skip
        column = table.columns[name]
        left = [row for row in kept if _same(column[row], value)]
        if not left:
            seen = sorted({str(column[row]) for row in kept})
            more = ", …" if len(seen) > SHOWN else ""
            raise SetupError(f"--where {name}={value}: leaves 0 of {len(kept)} rows of {table.label}"
                             f"{nearest(value, seen)}; there are: {', '.join(seen[:SHOWN])}{more}")  # fmt: skip
        kept = left
    if not kept:
        raise SetupError(f"{table.label}: holds no rows; expected measured times: {HOW}")
    return table.kept(kept)


def _same(found: Any, wanted: str) -> bool:
    if str(found) == wanted:
        return True
    try:
        return float(found) == float(wanted)
    except (TypeError, ValueError):
        return False


def _names(table: _Table, given: Mapping[str, str]) -> dict[str, str]:
    """What a row has -> the file's column for it."""
    names = {}
    for key, aliases in ALIASES.items():
        if key in given:
            if given[key] not in table.columns:
                known = ", ".join(list(table.columns)[:SHOWN])
                raise SetupError(f"--columns {key}={given[key]}: {table.label} has no such column"
                                 f"{nearest(given[key], table.columns)}; it has: {known}")  # fmt: skip
            names[key] = given[key]
            continue
        there = [name for name in aliases if name in table.columns and name not in given.values()]
        if len(there) > 1:
            raise SetupError(f"{table.label}: the columns {', '.join(map(repr, there))} may all be {key}; say which: "
                             f"--columns {key}=NAME")  # fmt: skip
        if there:
            names[key] = there[0]
    return names


def _by_phase(table: _Table, names: Mapping[str, str]) -> list[tuple[str, _Table]]:
    """The prefills and the decode steps of a file."""
    if "phase" in names:
        column = [str(value).strip().lower() for value in table.columns[names["phase"]]]
        for row, value in enumerate(column):
            if value not in PHASES:
                raise SetupError(f"{table.where(row, names['phase'])}: found {value!r}; expected prefill or decode")
        parts = ((phase, [row for row, value in enumerate(column) if value == phase]) for phase in PHASES)
        return [(phase, table.kept(rows)) for phase, rows in parts if rows]
    prefill = "n" in names or {"batch", "isl"} <= names.keys()
    decode = "batch" in names and ("tokens" in names or "context" in names)
    if prefill == decode:
        what = "both prefills and decode steps" if prefill else "neither prefills nor decode steps"
        found = ", ".join(list(table.columns)[:SHOWN])
        fix = "; add a column phase (prefill or decode)" if prefill else ""
        raise SetupError(f"{table.label}: the columns ({found}) may be {what}{fix}; {HOW}")
    return [("prefill" if prefill else "decode", table)]


def _prefill(table: _Table, names: Mapping[str, str], notices: list[str]) -> PrefillRows:
    """S is what the file says, else from the prefix, the batch and the length of each sequence."""
    batched = {"batch", "isl"} <= names.keys() and _filled(table, names, "isl")
    prefix = _numbers(table, names, "prefix", least=0) if _filled(table, names, "prefix") else 0.0
    if batched:
        batch, isl = _numbers(table, names, "batch", above=0), _numbers(table, names, "isl", above=0)
        n, s = batch * isl, batch * isl * (prefix + isl / 2)
    if "n" in names or not batched:
        n = _numbers(table, names, "n", above=0)
        if batched:
            _agree(table, names, "n", n, batch * isl, batch * isl, "batch x isl", batch)
        s = s if batched else n * prefix + n * n / 2
    if _filled(table, names, "s"):
        s = _numbers(table, names, "s", above=0)
        _check_s(table, names, n, s, prefix)
    elif not batched and "prefix" not in names:
        notices.append(f"{table.label}: has no prefix, s, or batch and isl: each prefill is taken for one whole prompt")
    return PrefillRows(n, s, _numbers(table, names, "ms", above=0))


def _decode(table: _Table, names: Mapping[str, str], notices: list[str]) -> DecodeRows:
    batch = _numbers(table, names, "batch", above=0)
    if _filled(table, names, "tokens") or "context" not in names:
        tokens = _numbers(table, names, "tokens", least=0)
        if _filled(table, names, "context"):
            whole = batch * _numbers(table, names, "context", least=0, blanks=True)
            _agree(table, names, "tokens", tokens, whole, whole, "batch x context", batch)
    else:
        tokens = batch * _numbers(table, names, "context", least=0)
    return DecodeRows(batch, tokens, _numbers(table, names, "ms", above=0))


def _check_s(table: _Table, names: Mapping[str, str], n: Floats, s: Floats, prefix: Floats | float) -> None:
    """Raises SetupError for an S that no ``batch`` sequences of n tokens together, after ``prefix`` each, have.

    Equal lengths have the least, one long sequence among short ones the most. Without a prefix S itself says what it
    was, and with no batch a row that says a prefix is of one sequence.
    """
    if not _filled(table, names, "prefix"):
        return
    batch = _numbers(table, names, "batch", above=0, blanks=True) if _filled(table, names, "batch") else np.ones(len(n))
    least, most = n * prefix + n * n / (2 * batch), n * prefix + n * n / 2
    _agree(table, names, "s", s, least, most, "n x prefix + n^2 / 2, of all sequences", n)


def _agree(
    table: _Table, names: Mapping[str, str], key: str, found: Floats, least: Floats, most: Floats, what: str,
    slack: Floats,
) -> None:  # fmt: skip
    """Raises SetupError for the first row whose ``key`` is not what its other columns make it, but for rounding.

    ``slack``: what rounding of another column by 1 may do; a comparison with NaN, an empty field, is not made.
    """
    slack = slack + ROUNDED * found
    wrong = np.flatnonzero((found < least - slack) | (found > most + slack))
    if not len(wrong):
        return
    row = int(wrong[0])
    expected = f"{least[row]:.10g}" if least[row] == most[row] else f"{least[row]:.10g} to {most[row]:.10g}"
    raise SetupError(
        f"{table.where(row, names[key])}: found {found[row]:.10g}; expected {expected} ({what}) by the row's other "
        "columns; correct the one that is wrong, or leave it out of the file"
    )


def _filled(table: _Table, names: Mapping[str, str], key: str) -> bool:
    """Whether a column is there and not empty for these rows, as one of the other phase's is."""
    return key in names and any(value not in ("", None) for value in table.columns[names[key]])


def _numbers(
    table: _Table,
    names: Mapping[str, str],
    key: str,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    blanks: bool = False,
) -> Floats:
    """(N,) numbers of a column. Raises SetupError for the first that is none, or too small.

    With ``blanks`` an empty field is NaN.
    """
    if key not in names:
        found = ", ".join(list(table.columns)[:SHOWN])
        raise SetupError(f"{table.label}: has no column for {key} ({', '.join(ALIASES[key])}); found: {found}; {HOW}")
    bound = f" above {above:g}" if above > -math.inf else f" of at least {least:g}"
    values = np.empty(len(table.numbers))
    for row, found_value in enumerate(table.columns[names[key]]):
        if blanks and found_value in ("", None):
            values[row] = math.nan
            continue
        try:
            value = math.nan if isinstance(found_value, bool) else float(found_value)
        except (TypeError, ValueError):
            value = math.nan
        if not (math.isfinite(value) and value > above and value >= least):
            where = table.where(row, names[key])
            raise SetupError(f"{where}: found {found_value!r}; expected a number{bound}")
        values[row] = value
    return values
