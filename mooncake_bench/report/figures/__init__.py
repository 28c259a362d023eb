"""Pictures of runs, one module a kind.

A module of this package is a kind when it has

- ``NAME``: what ``mooncake-bench plot`` calls it, such as ``ttft-cdf``; ``TITLE`` and ``DESCRIPTION``: a few words, and
  a sentence,
- ``TAKES``: ``runs`` (a sequence of :class:`~mooncake_bench.results.Run`) or ``sweep`` (the stored results of one),
- ``draw(source, labels) -> Figure``: what it shows, from stored tables alone. ``labels`` name the runs,
- where it has choices, ``OPTIONS``: each with its help. ``draw`` takes them as keywords, strings, each with a default,
- where it only puts other kinds together, ``COMBINES``: their names.

Nothing is registered anywhere: :func:`kinds` finds it. Runs that have nothing to show give a figure whose ``empty``
says why, never an error.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from mooncake_bench.errors import SetupError, nearest
from mooncake_bench.report.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mooncake_bench.results import Run


class Kind(Protocol):
    """A module that draws one kind of picture."""

    NAME: str
    TITLE: str
    DESCRIPTION: str
    TAKES: Literal["runs", "sweep"]

    def draw(self, source: Any, labels: Sequence[str], **options: str) -> Figure:
        """The picture. Raises SetupError for an option's value that means nothing."""


@cache
def kinds() -> Mapping[str, Kind]:
    """Every kind by its name, in order of names."""
    names = [found.name for found in pkgutil.iter_modules(__path__) if not found.name.startswith("_")]
    modules = (cast("Kind", import_module(f"{__name__}.{name}")) for name in names)
    return {kind.NAME: kind for kind in sorted(modules, key=lambda kind: kind.NAME)}


def choose(name: str) -> Kind:
    """One kind by its name. Raises SetupError for an unknown one."""
    known = kinds()
    if name not in known:
        hint = nearest(name, known) or f"; known: {', '.join(known)}"
        raise SetupError(f"no picture {name!r}{hint}; `mooncake-bench plot --list` says what each is")
    return known[name]


def options_of(kind: Kind) -> Mapping[str, str]:
    """Choices that a kind has, each with its help."""
    found: Mapping[str, str] = getattr(kind, "OPTIONS", {})
    return found


def make(name: str, source: Any, labels: Sequence[str] | None = None, **options: str) -> Figure:
    """The picture of a kind, from runs or from a sweep's results.

    ``labels`` name the runs, by default as ``compare`` does. Raises SetupError for an unknown kind, an option that it
    does not have, or a value that means nothing.
    """
    kind = choose(name)
    for option in options:
        if option not in options_of(kind):
            raise SetupError(f"--{option}: no effect on the picture {name!r}; drop it")
    if kind.TAKES == "sweep":
        return kind.draw(source, labels or (), **options)
    runs: Sequence[Run] = source
    if not runs:
        return Figure(kind.NAME, kind.TITLE, (), empty="there are no runs to draw")
    if labels is None:
        from mooncake_bench.results.compare import distinct_labels

        labels = distinct_labels(runs)
    return kind.draw(runs, labels, **options)
