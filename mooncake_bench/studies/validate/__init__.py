"""The cost model's predictions beside what was measured end to end, one module a source.

A module of this package is a check when it has

- ``ID``: its name, such as ``F25-FIG14-PREFILL`` (v3: arXiv 2407.00079, F25: FAST'25, else the data's own name),
- ``TITLE``: what is compared, ``SOURCE``: who measured it,
- ``FILES``: what it reads, relative to the folder of measurements; empty for one that needs no file,
- ``run(measurements) -> Outcome``: predict each point, once all of its files are there.

Nothing is registered anywhere: :func:`checks` finds it, and ``mooncake-bench calibrate validate`` runs it. Its errors
have ceilings in ``tests/data/validation_ceilings.toml``, which ``--write-ceilings`` writes anew.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from mooncake_bench.errors import SetupError, nearest
from mooncake_bench.studies.validate.outcome import Done

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.studies.validate.files import Measurements
    from mooncake_bench.studies.validate.outcome import Outcome


class Check(Protocol):
    """A module that compares predictions with one source of measurements."""

    ID: str
    TITLE: str
    SOURCE: str
    FILES: tuple[str, ...]

    def run(self, measurements: Measurements) -> Outcome:
        """Predict what was measured. Raises SetupError for a file that cannot be read as it stands."""


def checks() -> dict[str, Check]:
    """Every check by its ID: first the papers', then the others, each in order of its name."""
    modules = [import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    found = [cast("Check", module) for module in modules if hasattr(module, "ID")]
    return {one.ID: one for one in sorted(found, key=lambda one: (not one.ID.startswith(("F25", "V3")), one.ID))}


def choose(ids: Sequence[str]) -> list[Check]:
    """The checks of these IDs (in any case, each once), all where none is given. Raises SetupError for another."""
    known = checks()
    by_lower = {each.lower(): one for each, one in known.items()}
    for each in ids:
        if each.lower() not in by_lower:
            hint = nearest(each.upper(), known) or f"; known: {', '.join(known)}"
            raise SetupError(f"no check {each!r}{hint}; `mooncake-bench calibrate validate --list` says what each is")
    return list({each.lower(): by_lower[each.lower()] for each in ids}.values()) if ids else list(known.values())


def validate(chosen: Sequence[Check], measurements: Measurements | None) -> list[Done]:
    """Run each check whose files are there; another is kept with the names of those that are absent."""
    done = []
    for one in chosen:
        absent = one.FILES if measurements is None else measurements.absent(one.FILES)
        done.append(Done(one.ID, one.TITLE, one.SOURCE, tuple(one.FILES), tuple(absent), None))
        if not absent:
            done[-1] = done[-1].with_outcome(one.run(measurements or _no_files()))
    return done


def _no_files() -> Measurements:
    from mooncake_bench.studies.validate.files import Measurements

    return Measurements(None)
