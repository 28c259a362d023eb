"""``--columns arrival=sent:s,input=prompt_tokens,…``: a served log in a CSV, JSONL or parquet file of any names.

A time may carry its unit after a colon (s, ms, us or ns; ms unless told). A row without a first token, or without
output, is a failed request.
"""

from __future__ import annotations

import csv
import io
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from mooncake_bench.errors import TraceError, nearest
from mooncake_bench.studies.served.log import Row, build

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from mooncake_bench.studies.served.log import ServedLog

EXAMPLE = "arrival=sent:s,input=prompt_tokens,output=output_tokens,ttft=ttft:s,end=done:s"
TIMES = ("arrival", "ttft", "first", "end", "e2e", "gaps")
COUNTS = ("input", "output", "cached")
MEANING = (
    "arrival, input, output [tokens]; ttft (a duration) or first (a moment); end (a moment), e2e (a duration from the "
    "arrival) or gaps (a list); cached [tokens] where a prefix cache was used"
)
_NEXT = re.compile(r",(?=\s*\w+\s*=)")
_UNIT = re.compile(r"^(.+):(s|ms|us|ns)$")
_TO_MS = {"s": 1e3, "ms": 1.0, "us": 1e-3, "ns": 1e-6}


@dataclass(frozen=True)
class Mapping:
    """Whose column is what."""

    names: dict[str, str]
    to_ms: dict[str, float]


def parse(text: str) -> Mapping:
    """What ``--columns`` says. Raises TraceError for a key that is not known, missing, or contradicts another."""
    names: dict[str, str] = {}
    to_ms: dict[str, float] = {}
    for part in _NEXT.split(text):
        key, equals, name = (piece.strip() for piece in part.partition("="))
        if not equals or not name:
            raise TraceError(f"--columns: expected KEY=COLUMN, got {part!r}; such as {EXAMPLE}")
        if key not in TIMES + COUNTS:
            known = TIMES + COUNTS
            raise TraceError(f"--columns: no key {key!r}{nearest(key, known)}; known: {MEANING}")
        if key in names:
            raise TraceError(f"--columns: {key} is given twice; keep one")
        unit = _UNIT.match(name) if key in TIMES else None
        names[key] = unit[1] if unit else name
        to_ms[key] = _TO_MS[unit[2]] if unit else 1.0
    _check_keys(names)
    return Mapping(names, to_ms)


def _check_keys(names: dict[str, str]) -> None:
    for key in ("arrival", "input", "output"):
        if key not in names:
            raise TraceError(f"--columns: {key} is missing; needed: {MEANING}")
    for keys in (("ttft", "first"), ("end", "e2e", "gaps")):
        given = [key for key in keys if key in names]
        if len(given) != 1 and not (len(given) == 2 and "gaps" in given):
            found = f"found {' and '.join(given)}" if given else "found none"
            raise TraceError(f"--columns: expected one of {', '.join(keys)}, {found}; needed: {MEANING}")


def read_text(text: bytes, label: str, columns: str) -> ServedLog:
    """A CSV file with a header, or JSON lines."""
    mapping = parse(columns)
    if text.lstrip().startswith(b"{"):
        return _build(label, "JSONL", mapping, _json_records(text, label), lambda i: f"{label}, line {i + 1}")
    records = csv.DictReader(io.StringIO(text.decode()))
    present = list(records.fieldnames or ())
    _check_present(label, mapping, present)
    return _build(label, "CSV", mapping, list(records), lambda i: f"{label}, row {i + 1}")


def read_parquet(path: Path, label: str, columns: str) -> ServedLog:
    """A parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    mapping = parse(columns)
    try:
        _check_present(label, mapping, pq.read_schema(path).names)
        table = pq.read_table(path, columns=list(dict.fromkeys(mapping.names.values())))
    except (OSError, pa.ArrowException) as error:
        raise TraceError(f"{label}: not a parquet file that can be read: {' '.join(str(error).split())}") from None
    return _build(label, "parquet", mapping, table.to_pylist(), lambda i: f"{label}, row {i + 1}")


def _json_records(text: bytes, label: str) -> list[dict[str, Any] | None]:
    """One a line, None for a blank one, so that positions are lines."""
    records: list[dict[str, Any] | None] = []
    for number, line in enumerate(text.split(b"\n"), start=1):
        try:
            record = msgspec.json.decode(line) if line.strip() else None
        except (msgspec.MsgspecError, RecursionError) as error:
            raise TraceError(f"{label}, line {number}: not JSON: {error}") from None
        if record is not None and not isinstance(record, dict):
            raise TraceError(f"{label}, line {number}: expected a JSON object of one request, found other JSON")
        records.append(record)
    return records


def _check_present(label: str, mapping: Mapping, present: Sequence[str]) -> None:
    for key, name in mapping.names.items():
        if name not in present:
            has = ", ".join(present)
            raise TraceError(f"{label}: no column {name!r} for {key}{nearest(name, present)}; it has: {has}")


def _build(
    label: str, kind: str, mapping: Mapping, records: Sequence[dict[str, Any] | None], where: Callable[[int], str]
) -> ServedLog:
    rows, failed = [], 0
    for i, record in enumerate(records):
        if record is None:
            continue
        row = _row(_Record(record, mapping, where(i)))
        failed += row is None
        rows += [] if row is None else [row]
    return build(label, f"{kind} with --columns", rows, failed)


class _Record:
    """One request's fields under the names of ``--columns``."""

    def __init__(self, fields: dict[str, Any], mapping: Mapping, where: str) -> None:
        self._fields, self._mapping, self.where = fields, mapping, where

    def has(self, key: str) -> bool:
        """Whether the mapping holds the key."""
        return key in self._mapping.names

    def empty(self, key: str) -> bool:
        """Whether there is nothing in the field: null, an empty text, NaN."""
        value = self._fields.get(self._mapping.names[key])
        return value is None or value == "" or (isinstance(value, float) and math.isnan(value))

    def number(self, key: str) -> float:
        """A number, times in ms. Raises TraceError for anything else."""
        return self._scaled(key, self._fields.get(self._mapping.names[key]))

    def numbers(self, key: str) -> list[float]:
        """A list of times [ms], in CSV written as JSON."""
        value = self._fields.get(self._mapping.names[key])
        if isinstance(value, str):
            try:
                value = msgspec.json.decode(value)
            except msgspec.MsgspecError:
                value = None
        if not isinstance(value, list):
            raise TraceError(f"{self.where}: {self._named(key)}: expected a list of times such as [10.5, 11]")
        return [self._scaled(key, each) for each in value]

    def _scaled(self, key: str, value: Any) -> float:
        try:
            if isinstance(value, bool):
                raise ValueError
            return float(value) * self._mapping.to_ms.get(key, 1.0)
        except (TypeError, ValueError):
            found = "nothing" if value is None or value == "" else repr(str(value)[:40])
            raise TraceError(f"{self.where}: {self._named(key)}: expected a number, found {found}") from None

    def _named(self, key: str) -> str:
        return f"column {self._mapping.names[key]!r} ({key})"


def _row(record: _Record) -> Row | None:
    """The request, or None where it failed: no first token, or no output."""
    first_key = "ttft" if record.has("ttft") else "first"
    arrival, tokens = record.number("arrival"), record.number("input")
    if record.empty(first_key) or record.empty("output") or record.number("output") == 0:
        return None
    output = record.number("output")
    ttft = record.number("ttft") if record.has("ttft") else record.number("first") - arrival
    gaps = record.numbers("gaps") if record.has("gaps") else None
    if record.has("end"):
        rest = record.number("end") - arrival - ttft
    elif record.has("e2e"):
        rest = record.number("e2e") - ttft
    else:
        rest = sum(gaps or ())
    cached = record.number("cached") if record.has("cached") and not record.empty("cached") else 0.0
    return Row(record.where, arrival, tokens, output, ttft, rest, cached, gaps)
