"""Foreign trace formats: one module each, recognised by content.

To add one, drop a module here that holds

* ``NAME`` and ``DESCRIPTION``: what ``traces info`` calls it, and one line on units and blocks;
* ``recognises(head) -> bool``: is this it, judged by the first bytes (at most :data:`HEAD_BYTES`, no byte-order mark);
* ``read(source) -> RawColumns``: the whole text, parsed; raises TraceError with the line and the field.
"""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mooncake_bench.trace.schema import RawColumns

HEAD_BYTES = 65_536


@dataclass(frozen=True)
class Source:
    """A text file, read and decompressed."""

    label: str  # how error lines name it
    text: bytes  # valid UTF-8, no byte-order mark
    metadata: dict[str, str]

    @property
    def head(self) -> bytes:
        """The first bytes, for recognition."""
        return self.text[:HEAD_BYTES]


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
