"""Runs in the formats of other tools: one module each.

To add one, drop a module here that holds

* ``NAME`` and ``DESCRIPTION``: what the command line calls it, and one line on what it is for;
* ``EXTENSION``: how its files end, with the dot;
* ``export(runs) -> str``: the file's content. Raises ResultError for runs that the format cannot hold.

Modules whose name begins with an underscore are shared by others and are no format.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from mooncake_bench.errors import ResultError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.results.run import Run


class Exporter(Protocol):
    """A module that writes one format."""

    NAME: str
    DESCRIPTION: str
    EXTENSION: str

    def export(self, runs: Sequence[Run]) -> str:
        """The content of a file about these runs."""


def exporters() -> dict[str, Exporter]:
    """Every format by its name."""
    names = sorted(found.name for found in pkgutil.iter_modules(__path__) if not found.name.startswith("_"))
    modules = [cast("Exporter", import_module(f"{__name__}.{name}")) for name in names]
    return {module.NAME: module for module in modules}


def exporter(name: str) -> Exporter:
    """The format of this name. Raises ResultError with the nearest one."""
    known = exporters()
    if name not in known:
        raise ResultError(f"no format {name!r}{nearest(name, known) or '; known: ' + ', '.join(known)}")
    return known[name]
