"""The papers' results, one module each, beside what this tool gives.

A module of this package is a result when it has

- ``ID``: its name in the papers, such as ``F25-F9`` (v3: arXiv 2407.00079, F25: FAST'25; T: table, F: figure),
- ``TITLE``: what it shows, ``SOURCE``: where it is printed,
- where the papers show it in several figures, ``ALIASES``: their names,
- ``run(traces) -> Result``: measure it on what :class:`~mooncake_bench.studies.reproduce.sources.Traces` finds.

Nothing is registered anywhere: :func:`results` finds it, and ``mooncake-bench reproduce`` runs it.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from mooncake_bench.errors import SetupError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.studies.reproduce.outcome import Result
    from mooncake_bench.studies.reproduce.sources import Traces


class Published(Protocol):
    """A module that reproduces one published result."""

    ID: str
    TITLE: str
    SOURCE: str

    def run(self, traces: Traces) -> Result:
        """Measure it. Raises NothingToConclude where no trace at hand can say anything."""


def results() -> dict[str, Published]:
    """Every result by its ID, in the order of the papers: v3 before F25, tables before figures, then by number."""
    names = sorted(found.name for found in pkgutil.iter_modules(__path__))
    modules = [import_module(f"{__name__}.{name}") for name in names]
    found = [cast("Published", module) for module in modules if hasattr(module, "ID")]
    return {one.ID: one for one in sorted(found, key=_place)}


def _place(one: Published) -> tuple[bool, bool, int]:
    paper, _, item = one.ID.partition("-")
    return paper != "v3", not item.startswith("T"), int("".join(filter(str.isdigit, item)) or 0)


def choose(ids: Sequence[str]) -> list[Published]:
    """The results of these IDs (in any case, each once), all where none is given. Raises SetupError for another."""
    known = results()
    by_lower = {each.lower(): one for one in known.values() for each in names(one)}
    for each in ids:
        if each.lower() not in by_lower:
            hint = (
                nearest(each, [name for one in known.values() for name in names(one)]) or f"; known: {', '.join(known)}"
            )
            raise SetupError(f"no published result {each!r}{hint}; `mooncake-bench reproduce --list` says what each is")
    chosen = [by_lower[each.lower()] for each in ids]
    return list({one.ID: one for one in chosen}.values()) if ids else list(known.values())


def names(one: Published) -> tuple[str, ...]:
    """What a result is called in the papers, its ID first."""
    return one.ID, *getattr(one, "ALIASES", ())
