"""A run as it was stored against the same run replayed: identical, alike to 1e-9, or where it differs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mooncake_bench.results.compare import DECISIONS
from mooncake_bench.results.content import content_sha256
from mooncake_bench.results.store import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mooncake_bench.results.run import Run

CLOSE = 1e-9  # relative
IDENTICAL, WITHIN, DIFFERS, FAILED, MISSING = "identical", "within 1e-9", "differs", "failed", "not verified"
SHOWN = 5  # decisions of a run
MADE = tuple(name for name in DECISIONS if name != "queue_ms")  # decisions that are no measured time


class Decided(NamedTuple):
    """A decision that is not what it was."""

    request_id: str
    what: str
    stored: Any
    replayed: Any


class ColumnDifference(NamedTuple):
    """How far a column of a table is off."""

    table: str
    column: str
    values: int  # that are not the same
    relative: float | None  # the largest difference over the larger of the two; None: of no two numbers


@dataclass(frozen=True)
class Outcome:
    """What came of one run."""

    folder: str
    label: str
    verdict: str
    requests: int
    differing_requests: int = 0  # with another decision
    decisions: tuple[Decided, ...] = ()  # the first of them
    columns: tuple[ColumnDifference, ...] = ()
    why: str = ""  # it failed, or could not be verified
    notes: tuple[str, ...] = ()

    @property
    def worst(self) -> float | None:
        """The largest relative difference of any number."""
        found = [each.relative for each in self.columns if each.relative is not None]
        return max(found, default=None)

    def to_dict(self) -> dict[str, Any]:
        """As JSON carries it."""
        lists = {
            "decisions": [each._asdict() for each in self.decisions],
            "columns": [each._asdict() for each in self.columns],
        }
        return asdict(self) | lists


def compared(
    folder: str, stored: Run, replayed: Run, stored_columns: dict[str, Sequence[str]], notes: tuple[str, ...]
) -> Outcome:
    """Hold a replay against what was stored. ``stored_columns``: those that the files have, of each table."""
    requests = len(stored.requests)
    same = [
        content_sha256(getattr(replayed, name).select(list(stored_columns[name])))
        == stored.manifest["content_sha256"][name]
        for name in TABLES
    ]
    if all(same):
        return Outcome(folder, stored.label, IDENTICAL, requests, notes=notes)
    tables = [name for name, alike in zip(TABLES, same, strict=True) if not alike]
    columns = tuple(
        each for name in tables for each in _columns(name, stored, replayed, stored_columns[name])
    )  # fmt: skip
    count, decisions = _decisions(stored.requests, replayed.requests)
    close = not count and all(each.relative is not None and each.relative <= CLOSE for each in columns)
    return Outcome(folder, stored.label, WITHIN if close else DIFFERS, requests, count, decisions, columns, "", notes)


def _columns(name: str, stored: Run, replayed: Run, columns: Sequence[str]) -> Iterator[ColumnDifference]:
    before, after = getattr(stored, name), getattr(replayed, name)
    if len(before) != len(after):
        yield ColumnDifference(name, "(rows)", abs(len(before) - len(after)), None)
        return
    for column in columns:
        found = _column(before.column(column), after.column(column))
        if found is not None:
            yield ColumnDifference(name, column, *found)


def _column(before: pa.ChunkedArray, after: pa.ChunkedArray) -> tuple[int, float | None] | None:
    """How many values differ, and by how much at most; None where none does."""
    if before.equals(after):
        return None
    unlike = pc.fill_null(pc.not_equal(before, after), False)
    absent = pc.not_equal(before.is_null(), after.is_null())
    count = int(pc.sum(pc.or_(unlike, absent)).as_py())
    if not pa.types.is_floating(before.type) and not pa.types.is_integer(before.type):
        return count, None
    if pc.any(absent).as_py():
        return count, None  # a number against none
    a, b = (each.drop_null().to_numpy().astype(np.float64) for each in (before, after))
    scale = np.maximum(np.abs(a), np.abs(b))
    return count, float((np.abs(a - b) / np.where(scale > 0, scale, 1)).max())


def _decisions(before: pa.Table, after: pa.Table) -> tuple[int, tuple[Decided, ...]]:
    """How many requests were decided otherwise, and the first of them: a line for each request."""
    rows = min(len(before), len(after))
    unlike = np.zeros(rows, np.bool_)
    first: dict[int, str] = {}
    for name in reversed(MADE):  # the first of them is what is shown
        a, b = (table.column(name).slice(0, rows) for table in (before, after))
        differs = pc.or_(pc.fill_null(pc.not_equal(a, b), False), pc.not_equal(a.is_null(), b.is_null())).to_numpy()
        unlike |= differs
        first.update(dict.fromkeys(np.flatnonzero(differs).tolist(), name))
    ids = before.column("request_id")
    shown = [
        Decided(
            ids[row].as_py(), first[row], before.column(first[row])[row].as_py(), after.column(first[row])[row].as_py()
        )
        for row in sorted(first)[:SHOWN]
    ]
    return int(unlike.sum()), tuple(shown)
