"""Foreign trace formats: one module each, recognised by content.

To add one, drop a module here that holds

* ``NAME`` and ``DESCRIPTION``: what ``traces info`` calls it, and one line on units and blocks;
* ``recognises(head) -> bool``: is this it, judged by the first bytes (at most :data:`HEAD_BYTES`, no byte-order mark);
* ``read(source) -> RawColumns``: the whole text, piece by piece; raises TraceError with the line and the field;
* optionally ``OPTIONS``: which of ``columns`` and ``failures`` (see :class:`Reading`) have an effect on it.

Its docstring says fields, units, quirks, licence and what to cite. What modules share begins with an underscore:
``_rows`` gathers pieces, ``_csv`` and ``_jsonl`` turn them into values.
"""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from mooncake_bench.trace.pieces import check_utf8, lines, of_bytes, pieces

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from mooncake_bench.trace.pieces import HashedFile, Piece
    from mooncake_bench.trace.schema import RawColumns

HEAD_BYTES = 65_536


@dataclass(frozen=True)
class Reading:
    """What a user says of a file's contents."""

    block_tokens: int | None = None  # None: the format's own
    columns: Mapping[str, str] = field(default_factory=dict)  # what a request has -> the file's name for it
    failures: str = "exclude"  # or "error": what becomes of requests that failed where the trace was taken


class Source:
    """A text file on its way in: recognised by its head, then read once, piece by piece."""

    def __init__(
        self,
        label: str,
        text: bytes | HashedFile,
        metadata: Mapping[str, str],
        reading: Reading | None = None,
        path: Path | None = None,
    ) -> None:
        self.label = label  # how error lines name it
        self.path = path  # None: not to be opened again, or not plain
        self.reading = reading or Reading()
        self._metadata = dict(metadata)
        self._file = None if isinstance(text, bytes) else text
        self._pieces = of_bytes(text) if isinstance(text, bytes) else pieces(text)
        self._first = next(self._pieces, None)

    @property
    def empty(self) -> bool:
        """Whether there is nothing but blanks."""
        return self._first is None

    @property
    def head(self) -> bytes:
        """The first bytes, for recognition."""
        return b"" if self._first is None else self._first.text[:HEAD_BYTES]

    @property
    def head_line(self) -> int:
        """The number of the first line that is not blank."""
        if self._first is None:
            return 1
        return next((number for number, _ in lines(self.head, self._first.first_line)), 1)

    def pieces(self) -> Iterator[Piece]:
        """The text as pieces of whole lines, valid UTF-8, once. Raises TraceError for what is damaged or no text."""
        if self._first is not None:
            first, self._first = self._first, None
            yield check_utf8(first, self.label)
            del first
        for piece in self._pieces:
            yield check_utf8(piece, self.label)

    def metadata(self) -> dict[str, str]:
        """What the metadata should record; complete once all is read."""
        sha256 = {} if self._file is None else {"source_sha256": self._file.sha256()}
        return self._metadata | sha256


class Format(Protocol):
    """What a module of this folder offers."""

    NAME: str
    DESCRIPTION: str

    def recognises(self, head: bytes) -> bool: ...

    def read(self, source: Source) -> RawColumns: ...


def all_formats() -> Iterator[Format]:
    """Every format module, by name."""
    for module in sorted(item.name for item in pkgutil.iter_modules(__path__) if not item.name.startswith("_")):
        yield cast("Format", import_module(f"{__name__}.{module}"))
