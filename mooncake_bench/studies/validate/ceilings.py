"""How far off each row may be before it counts as grown: a file of ceilings, compared and written.

A table a row: ``[ID."row name"]`` with ``points`` (exact), ``median``, ``p90`` and ``worst`` in the row's error unit.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mooncake_bench import outfile
from mooncake_bench.errors import SetupError
from mooncake_bench.hardware.tables import Table, read_toml

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from mooncake_bench.studies.validate.outcome import Done, Errors

MARGIN = 1.02
"""Of a written ceiling over what was measured: libraries round differently in the last digits."""
LEAST = 1e-3
"""A ceiling is never lower, so that an error of zero has room to round."""
LOOSE = 0.9
"""An error below so much of its ceiling is worth a tighter one."""
STATISTICS = ("median", "p90", "worst")


@dataclass(frozen=True)
class Ceiling:
    """The most that a row's errors may be, and how many points they must stand on."""

    points: int
    median: float
    p90: float
    worst: float | None
    """None for a row whose worst error nobody knows."""


@dataclass(frozen=True)
class Findings:
    """What a comparison with ceilings gave, each in one line."""

    breaches: tuple[str, ...]
    hints: tuple[str, ...]


def read_ceilings(path: Path) -> dict[str, dict[str, Ceiling]]:
    """Ceilings by check and row. Raises SetupError, naming file and key, for a file that is none."""
    checks = Table(read_toml(path), str(path)).tables()
    return {check: {row: _ceiling(entry) for row, entry in table.tables().items()} for check, table in checks.items()}


def _ceiling(entry: Table) -> Ceiling:
    worst = entry.number("worst", least=0) if entry.has("worst") else None
    ceiling = Ceiling(entry.whole("points"), entry.number("median", least=0), entry.number("p90", least=0), worst)
    entry.done()
    return ceiling


def compare(done: Sequence[Done], ceilings: dict[str, dict[str, Ceiling]], known: Sequence[str]) -> Findings:
    """Every row of ``done`` against its ceiling; ``known`` are the checks there are, run or not.

    A row without a ceiling, a ceiling without its row and another number of points are breaches too. Ceilings of checks
    that were not asked for are left alone.
    """
    breaches, hints = [f"{check}: no such check, yet it has ceilings" for check in ceilings if check not in known], []
    for one in done:
        given = ceilings.get(one.id, {})
        if one.outcome is None:
            if given:
                breaches.append(f"{one.id}: skipped, {' and '.join(one.absent)} absent, yet it has ceilings")
            continue
        rows = {row.name: row.errors for row in one.rows}
        breaches += [f"{one.id}, {name}: a ceiling, but no such row" for name in given if name not in rows]
        for name, errors in rows.items():
            if name not in given:
                breaches.append(f"{one.id}, {name}: a row without a ceiling")
                continue
            breaches += [f"{one.id}, {name}: {text}" for text in _grown(errors, given[name])]
            hints += [f"{one.id}, {name}: {text}" for text in _loose(errors, given[name])]
    return Findings(tuple(breaches), tuple(hints))


def _grown(errors: Errors, ceiling: Ceiling) -> Iterator[str]:
    if errors.points != ceiling.points:
        yield f"{errors.points} points, expected {ceiling.points}"
    for name, found, most in _pairs(errors, ceiling):
        if found is None or most is None:
            if found is not most:
                yield f"{name} error {_shown(found)}, its ceiling {_shown(most)}"
        elif found > most:
            yield f"{name} error {_shown(found)} is above its ceiling {_shown(most)}"


def _pairs(errors: Errors, ceiling: Ceiling) -> Iterator[tuple[str, float | None, float | None]]:
    for name in STATISTICS:
        yield name, getattr(errors, name), getattr(ceiling, name)


def _shown(error: float | None) -> str:
    return "is not known" if error is None else f"{error:.4g}"


def _loose(errors: Errors, ceiling: Ceiling) -> Iterator[str]:
    pairs = [(name, found, most) for name, found, most in _pairs(errors, ceiling) if found is not None]
    loose = [name for name, found, most in pairs if most is not None and max(found or 0, LEAST) < LOOSE * most]
    if loose:
        yield f"{' and '.join(loose)} well below the ceiling: tighten it with --write-ceilings"


def write_ceilings(done: Sequence[Done], path: Path, *, force: bool) -> Path:
    """Ceilings just above today's errors, for every row. Raises SetupError for a skipped check or a file in the way."""
    skipped = [one.id for one in done if one.outcome is None]
    if skipped:
        raise SetupError(f"--write-ceilings: {', '.join(skipped)} skipped, so the file would lack them; give a "
                         "--measurements folder that holds their files, or name the checks to write")  # fmt: skip
    with outfile.writing(path, force=force, label=f"--write-ceilings {str(path)!r}", error=SetupError) as partial:
        partial.write_text(ceilings_text(done), encoding="utf-8")
    return path


def ceilings_text(done: Sequence[Done]) -> str:
    """The file's text."""
    lines = [
        "# How far off each row of `mooncake-bench calibrate validate` may be. Written by --write-ceilings: today's",
        f"# errors with {100 * (MARGIN - 1):.0f} % to spare. points is exact.",
    ]
    for one in done:
        for row in one.rows:
            lines += ["", f"[{json.dumps(one.id)}.{json.dumps(row.name)}]", *_entry(row.errors)]
    return "\n".join(lines) + "\n"


def _entry(errors: Errors) -> Iterator[str]:
    yield f"points = {errors.points}"
    for name in STATISTICS:
        error: float | None = getattr(errors, name)
        if error is not None:
            yield f"{name} = {_rounded(error)}"


def _rounded(error: float) -> str:
    """With the margin, in four digits: a number that TOML reads as a float."""
    text = f"{max(error * MARGIN, LEAST):.4g}"
    return text if "." in text or "e" in text else f"{text}.0"
