"""Rows of any format, gathered piece by piece: checked at once, kept out of memory when they are many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench import spool
from mooncake_bench.errors import TraceError
from mooncake_bench.trace.model import DEFAULT_BLOCK_TOKENS, NO_SESSION, Ints
from mooncake_bench.trace.schema import RawColumns, check_rows, checked_block_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from mooncake_bench.trace.formats import Source
    from mooncake_bench.trace.units import Timestamps

NONE = np.zeros(0, np.int64)
MAX_OWN_IDS = 2**31  # ids given to the blocks of a source that has none: 16 GiB


class Places:
    """On which line each row of a file stands, or, in a file that has none, which row it is."""

    def __init__(self, has_lines: bool = True) -> None:
        self._has_lines = has_lines
        self._first_rows: list[int] = [0]
        self._lines: list[int | Ints] = []  # of each piece: the number of its first line, or of every line

    def add(self, rows: int, lines: int | Ints) -> None:
        """So many rows that stand on consecutive lines from ``lines`` on, or each on the line given."""
        self._first_rows.append(self._first_rows[-1] + rows)
        self._lines.append(lines)

    def line(self, row: int) -> int:
        """The line of a row, both counted over the whole file."""
        piece = int(np.searchsorted(self._first_rows, row, side="right")) - 1
        lines, inside = self._lines[piece], row - self._first_rows[piece]
        return lines + inside if isinstance(lines, int) else int(lines[inside])

    def __call__(self, row: int) -> str:
        return f"line {self.line(row)}" if self._has_lines else f"row {self.line(row)} (the first is 0)"


class Column:
    """Numbers of the rows so far; ``missing`` stands for a row without one."""

    def __init__(self, kind: Any, missing: float = 0) -> None:
        self.kind = np.dtype(kind)
        self.rows = 0
        self._missing = missing
        self._growing = spool.Growing(self.kind)

    def add(self, values: NDArray[Any]) -> None:
        """Of the next rows."""
        self.rows += len(values)
        self._growing.append(values)

    def skip(self, rows: int) -> None:
        """The next rows have none."""
        if rows:
            self.add(np.full(rows, self._missing, self.kind))

    def column(self) -> NDArray[Any]:
        """All of them, read-only; nothing more can be added."""
        return self._growing.column()

    def as_floats(self) -> Column:
        """The same as floats, to go on with."""
        floats = Column(np.float64, self._missing)
        floats.add(self.column().astype(np.float64))
        return floats


class Names:
    """Names as integers: integers are kept as they are; once one is a text, all are numbered by first appearance."""

    def __init__(self) -> None:
        self._column = Column(np.int64, NO_SESSION)
        self._numbers: dict[Any, int] | None = None
        self.missing = 0

    @property
    def rows(self) -> int:
        """Rows so far."""
        return self._column.rows

    @property
    def numbered(self) -> int | None:
        """How many different names got a number; None when all are integers."""
        return None if self._numbers is None else len(self._numbers)

    def add(self, values: Sequence[int | str | None] | Ints) -> None:
        """Of the next rows; None: a row without one. Integers must lie in 0 .. 2**63 - 1."""
        if isinstance(values, np.ndarray):
            if self._numbers is None:
                self._column.add(values)
                return
            values = values.tolist()
        if self._numbers is None and any(isinstance(value, str) for value in values):
            self._number()
        numbers = self._numbers
        self.missing += sum(value is None for value in values)
        if numbers is None:
            kept = [NO_SESSION if value is None else value for value in values]
        else:
            kept = [NO_SESSION if value is None else numbers.setdefault(value, len(numbers)) for value in values]
        self._column.add(np.array(kept, np.int64))

    def skip(self, rows: int) -> None:
        """The next rows have no name."""
        self.missing += rows
        self._column.skip(rows)

    def _number(self) -> None:
        """What was kept so far gets numbers, too."""
        before, self._column = self._column.column().tolist(), Column(np.int64, NO_SESSION)
        self._numbers, self.missing = {}, 0
        self.add([None if value == NO_SESSION else value for value in before])

    def column(self) -> Ints:
        """All of them; nothing more can be added."""
        return self._column.column()


class Gathered:
    """The columns of a file in the making."""

    def __init__(
        self, source: Source, name: str, fields: dict[str, str], *, block_tokens: int = DEFAULT_BLOCK_TOKENS,
        unit: str = "ms", has_ids: bool = True, has_lines: bool = True,
    ) -> None:  # fmt: skip
        given = source.reading.block_tokens
        self.size = checked_block_tokens(block_tokens if given is None else given)
        self.notices: list[str] = []
        self.metadata: dict[str, str] = {"format": name}
        self.places = Places(has_lines)
        self._has_lines = has_lines
        self.unit = unit
        self.rows = 0
        self._has_ids = has_ids
        self.label = source.label
        self._source, self._fields, self._default_size = source, fields, block_tokens
        self._columns: dict[str, Column] = {}
        self._optional: dict[str, Column | Names] = {}
        self._request_ids: list[str] = []

    def add(
        self, lines: int | Ints, timestamp: Timestamps, input_tokens: Ints, output_tokens: Ints,
        counts: Ints | None = None, block_ids: Ints = NONE,
    ) -> RawColumns:  # fmt: skip
        """The next rows, checked; ``lines`` says where they stand, ``counts`` how many blocks each has.

        Gives them as they were checked, for error lines. Raises TraceError for the first bad row.
        """
        offsets = np.zeros(len(timestamp) + 1, np.int64)
        if counts is not None:
            np.cumsum(counts, out=offsets[1:])
        part = self.part(lines, timestamp, input_tokens, output_tokens, offsets, block_ids)
        check_rows(part, self.size, blocks=self._has_ids)
        self.places.add(len(timestamp), lines)
        self.rows += len(timestamp)
        self._append("timestamp", timestamp)
        self._append("input_tokens", input_tokens)
        self._append("output_tokens", output_tokens)
        if counts is not None:
            self._append("counts", counts)
            self._append("block_ids", block_ids)
        return part

    def part(
        self, lines: int | Ints, timestamp: Timestamps = NONE, input_tokens: Ints = NONE, output_tokens: Ints = NONE,
        offsets: Ints = NONE, block_ids: Ints = NONE,
    ) -> RawColumns:  # fmt: skip
        """Some rows on their own, for their checks and error lines."""
        places = Places(self._has_lines)
        places.add(2**62, lines)
        return RawColumns(
            self.label, timestamp, input_tokens, output_tokens, offsets, block_ids, places, self._fields,
            default_unit=self.unit,
        )  # fmt: skip

    def _append(self, name: str, values: NDArray[Any]) -> None:
        column = self._columns.setdefault(name, Column(values.dtype))
        if column.kind == np.int64 and values.dtype == np.float64:
            column = self._columns[name] = column.as_floats()
        column.add(values)

    def add_names(self, name: str, values: Sequence[int | str | None] | Ints) -> Names:
        """``session_id`` of the rows added last."""
        names = self._optional.setdefault(name, Names())
        assert isinstance(names, Names)
        names.skip(self.rows - len(values) - names.rows)
        names.add(values)
        return names

    def add_optional(self, name: str, values: NDArray[Any], missing: float = 0) -> None:
        """``priority``, ``delay_ms`` or ``source_row`` of the rows added last; rows without one get ``missing``."""
        column = self._optional.setdefault(name, Column(values.dtype, missing))
        column.skip(self.rows - len(values) - column.rows)
        column.add(values)

    def add_request_ids(self, values: Sequence[str]) -> bool:
        """``request_id`` of the rows added last; whether every row so far has one."""
        self._request_ids += values
        return len(self._request_ids) == self.rows

    @property
    def has_request_ids(self) -> bool:
        """Whether rows have a request id so far."""
        return bool(self._request_ids)

    def names(self, name: str) -> Names:
        """What :meth:`add_names` gathered."""
        names = self._optional[name]
        assert isinstance(names, Names)
        return names

    def columns(self) -> RawColumns:
        """All that was gathered, checked row by row. Raises TraceError when there is nothing."""
        if not self.rows:
            raise TraceError(f"{self.label}: found 0 requests; expected at least one{self._why_none()}")
        for added in self._optional.values():
            added.skip(self.rows - added.rows)
        columns = {name: column.column() for name, column in self._columns.items()}
        offsets, ids = self._blocks(columns)
        optional: dict[str, Any] = {name: added.column() for name, added in self._optional.items()}
        return RawColumns(
            label=self.label,
            timestamp=columns["timestamp"],
            input_tokens=columns["input_tokens"],
            output_tokens=columns["output_tokens"],
            block_offsets=offsets,
            block_ids=ids,
            place=self.places,
            fields=self._fields,
            default_unit=self.unit,
            block_tokens=self._default_size,
            request_id=tuple(self._request_ids) if self._request_ids else None,
            metadata=self._source.metadata() | self.metadata,
            notices=self.notices,
            checked=True,
            **optional,
        )

    def _why_none(self) -> str:
        return f" ({self.notices[-1].removeprefix(f'{self.label}: ')})" if self.notices else ""

    def _blocks(self, columns: dict[str, Any]) -> tuple[Ints, Ints]:
        """Where each row's blocks begin, and the ids; one of its own for each block where the source has none."""
        offsets = np.zeros(self.rows + 1, np.int64)
        if self._has_ids:
            np.cumsum(columns["counts"], out=offsets[1:])
            return offsets, columns["block_ids"]
        np.cumsum(-(-columns["input_tokens"] // self.size), out=offsets[1:])
        if offsets[-1] > MAX_OWN_IDS:
            raise TraceError(
                f"{self.label}: {offsets[-1]:,} blocks of {self.size} tokens need an id of their own, for the source "
                f"has no prefix ids; expected at most {MAX_OWN_IDS:,}: use a larger --block-size"
            )
        self.metadata["prefix_ids"] = "none"
        self.notices.append(
            f"{self.label}: the source has no prefix ids: each block gets an id of its own, none is shared"
        )
        return offsets, _counting(int(offsets[-1]))


def _counting(count: int) -> Ints:
    """The numbers 0 .. count - 1."""
    ids = spool.Growing(np.int64)
    for first in range(0, count, spool.PART_ROWS):
        ids.append(np.arange(first, min(first + spool.PART_ROWS, count), dtype=np.int64))
    return ids.column()
