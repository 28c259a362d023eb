"""Shards of one sweep, each from a folder of its own, into one dataset."""

from __future__ import annotations

import secrets
import shutil
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from mooncake_bench.errors import ResultError
from mooncake_bench.results.sweep import DONE, FAILED, RUNS, open_sweep
from mooncake_bench.studies.sweep.points import FREE, check_same
from mooncake_bench.studies.sweep.store import PART_ROWS, write_manifest, write_part

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from mooncake_bench.results.sweep import Sweep

SHOWN = 10  # points named in a message


def merge(folders: Sequence[Path], out: Path, *, partial: bool = False) -> Sweep:
    """Put the rows, and the runs where these were kept, of several folders of one sweep in a new one.

    A point that is in several of them counts once. Raises ResultError for folders of different sweeps, for a point
    whose results differ, for points that are missing unless ``partial``, and where ``out`` is there already.
    """
    sweeps = [open_sweep(folder) for folder in folders]
    for other in sweeps[1:]:
        how = "only shards of one sweep can be merged"
        check_same(sweeps[0].manifest, other.manifest, f"{str(sweeps[0].path)!r}", how, FREE)
    if out.exists():
        raise ResultError(f"-o {str(out)!r}: already exists; choose another folder")
    owners = _owners(sweeps)
    if not partial:
        _check_whole(sweeps, set(owners))
    kept = [(one, [point for point, owner in owners.items() if owner is one]) for one in sweeps]
    temporary = out.parent / f".partial-{secrets.token_hex(6)}"
    try:
        temporary.mkdir(parents=True)
        names = {one.name for one in sweeps}
        _fill(temporary, kept, names.pop() if len(names) == 1 else out.absolute().name)
        temporary.rename(out)
    except OSError as error:
        raise ResultError(f"-o {str(out)!r} cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return open_sweep(out)


def _owners(sweeps: Sequence[Sweep]) -> dict[int, Sweep]:
    """Which folder each point is taken from: the first in which it is done, else the first in which it failed."""
    owners: dict[int, Sweep] = {}
    found: dict[int, tuple[str, str]] = {}
    for one in sweeps:
        for point, status, content in _results(one):
            if point not in found or (found[point][0] == FAILED and status == DONE):
                owners[point], found[point] = one, (status, content)
            elif status == DONE and found[point] != (status, content):
                where = f"{str(owners[point].path)!r} and {str(one.path)!r}"
                raise ResultError(f"point {point} has different results in {where}: one of them is not what it says")
    return owners


def _results(one: Sweep) -> Iterator[tuple[int, str, str]]:
    columns = (one.table.column(name).to_pylist() for name in ("point", "status", "content_sha256"))
    return zip(*columns, strict=True)


def _check_whole(sweeps: Sequence[Sweep], found: set[int]) -> None:
    """Raises ResultError, naming shards where the folders are such, when points are missing."""
    missing = [point for point in range(len(sweeps[0].points)) if point not in found]
    if not missing:
        return
    counts = {one.manifest["shard"][1] for one in sweeps if one.manifest["shard"]}
    listed = ", ".join(map(str, missing[:SHOWN])) + (", ..." if len(missing) > SHOWN else "")
    text = f"{len(missing)} of {len(sweeps[0].points)} points are missing ({listed})"
    if len(counts) == 1:
        count = counts.pop()
        there = {one.manifest["shard"][0] for one in sweeps if one.manifest["shard"]}
        shards = dict.fromkeys(point % count + 1 for point in missing)
        text += ": " + ", ".join(
            f"shard {number}/{count} is {'unfinished' if number in there else 'not given'}" for number in sorted(shards)
        )
    raise ResultError(f"{text}; finish them, give their folders too, or take what there is with --partial")


def _fill(folder: Path, kept: Sequence[tuple[Sweep, Sequence[int]]], name: str) -> None:
    first = kept[0][0]
    write_manifest(folder, {**first.manifest, "name": name, "shard": None})
    tables = [
        one.table.filter(pc.is_in(one.table.column("point"), pa.array(points, pa.int64()))) for one, points in kept
    ]
    rows = pa.concat_tables(tables).sort_by("point")
    for number, start in enumerate(range(0, len(rows), PART_ROWS)):
        write_part(folder, number, rows.slice(start, PART_ROWS))
    for one, points in kept if first.manifest["keep_runs"] else ():
        for point in points:
            if (one.path / RUNS / str(point)).is_dir():
                shutil.copytree(one.path / RUNS / str(point), folder / RUNS / str(point))
