"""A sweep's folder while it grows: whoever holds it adds rows, each part is there whole or not, no row comes twice.

The last part is written anew, in one step, with what has come since, until it is long enough for the next to begin: a
reader always meets each finished point once, whenever the sweep is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mooncake_bench import filelock, outfile
from mooncake_bench.errors import ResultError
from mooncake_bench.results.sweep import FAILED, MANIFEST, PARTS, RUNS, read_manifest, read_parts, schema_of
from mooncake_bench.studies.sweep.points import FREE, check_same

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from mooncake_bench.studies.sweep.work import Outcome

LOCK = ".lock"
PART_ROWS = 100
PAUSE_S = 2.0  # at least, between two times that the last part is written, unless replays take that long


class Store:
    """The folder of a sweep, open for adding."""

    def __init__(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        self.folder, self.manifest = folder, manifest
        self._schema = schema_of(manifest)
        for stray in folder.glob(".part-*.partial"):  # of a process that was killed
            stray.unlink()
        self.table = read_parts(folder, self._schema)  # all that there is, checked
        self._waiting: list[Outcome] = []
        self._wrote_s = 0.0
        self._part, self._tail = self._last_part()

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Keep what came of some points: on disk at once if replays take long, else with what comes in a moment.

        To be called every :data:`PAUSE_S`, with nothing if need be.
        """
        self._waiting += outcomes
        long = any((outcome.wall_s or 0) > PAUSE_S for outcome in outcomes)
        if long or time.monotonic() - self._wrote_s > PAUSE_S:
            self.flush()

    def flush(self) -> None:
        """Write what is not yet on disk."""
        if not self._waiting:
            return
        rows = pa.Table.from_pylist([self._row(outcome) for outcome in self._waiting], self._schema)
        self._tail = pa.concat_tables([self._tail, rows])
        write_part(self.folder, self._part, self._tail)
        self._waiting, self._wrote_s = [], time.monotonic()
        if len(self._tail) >= PART_ROWS:
            self._part, self._tail = self._part + 1, self._schema.empty_table()

    def finished(self) -> set[int]:
        """Points that have a row."""
        return set(self.table.column("point").to_pylist())

    def forget_failed(self) -> None:
        """Drop the rows of failed points, so that they are replayed again."""
        import pyarrow.compute as pc

        for path in sorted(self.folder.glob(PARTS)):
            table = _read(path)
            kept = table.filter(pc.not_equal(table.column("status"), FAILED))
            if not len(kept):
                path.unlink()
            elif len(kept) < len(table):
                write_part(self.folder, _number(path), kept)
        self.table = read_parts(self.folder, self._schema)
        self._part, self._tail = self._last_part()

    def _last_part(self) -> tuple[int, pa.Table]:
        """The part that grows: the last one, unless it is long enough."""
        paths = sorted(self.folder.glob(PARTS))
        if not paths:
            return 0, self._schema.empty_table()
        number, tail = _number(paths[-1]), _read(paths[-1]).cast(self._schema)
        return (number, tail) if len(tail) < PART_ROWS else (number + 1, self._schema.empty_table())

    def _row(self, outcome: Outcome) -> dict[str, Any]:
        row = dict(self.manifest["points"][outcome.number])
        row |= {key: getattr(outcome, key) for key in ("status", "error", "content_sha256", "wall_s")}
        for name, (value, count) in outcome.metrics.items():
            row[name], row[f"{name}.n"] = value, count
        return row


@contextlib.contextmanager
def opened(folder: Path, manifest: Mapping[str, Any]) -> Iterator[Store]:
    """The folder of this sweep, made where there is none, held against other processes.

    Raises ResultError where it holds another sweep (with what differs) or anything else, where another process holds
    it, and where it cannot be written.
    """
    with _writable(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with _held(folder):
        with _writable(folder):
            _begin(folder, manifest)
            store = Store(folder, manifest)
        try:
            yield store
        finally:
            store.flush()


def is_held(folder: Path) -> bool:
    """Whether a process is adding to a folder just now."""
    try:
        handle = os.open(folder / LOCK, os.O_RDWR)
    except OSError:  # not there, or not ours to write in
        return False
    try:
        return not filelock.take(handle)
    finally:
        os.close(handle)


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write ``_sweep.json`` whole."""
    created = {"created": datetime.now(UTC).isoformat(timespec="seconds")}
    text = json.dumps({**manifest, **created}, indent=1, ensure_ascii=False, allow_nan=False)
    path = folder / MANIFEST
    with outfile.writing(path, force=False, label=str(path), error=ResultError) as partial:
        partial.write_text(text + "\n", encoding="utf-8")


def write_part(folder: Path, number: int, table: pa.Table) -> None:
    """Write a part whole, in place of the one of that number."""
    import pyarrow.parquet as pq

    path = folder / PARTS.replace("*", f"{number:04}")
    with outfile.writing(path, force=True, label=str(path), error=ResultError) as partial:
        words = [field.name for field in table.schema if pa.types.is_string(field.type)]
        pq.write_table(
            table, partial, compression="zstd", version="2.6", use_dictionary=words, write_statistics=False,
            write_page_checksum=True,
        )  # fmt: skip


def _begin(folder: Path, manifest: Mapping[str, Any]) -> None:
    where, how = f"-o {str(folder)!r}", "choose another folder, or remove that one"
    if (folder / MANIFEST).exists():
        there = read_manifest(folder)
        check_same(there, manifest, where, how, [key for key in FREE if key != "shard"])
        return
    strange = next((item.name for item in folder.iterdir() if item.name != LOCK and ".partial" not in item.name), None)
    if strange is not None:
        raise ResultError(f"{where} holds no sweep but {strange!r}; choose an empty folder, or a new name")
    if manifest["keep_runs"]:
        (folder / RUNS).mkdir()
    write_manifest(folder, manifest)


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold a folder; the system lets go of it when the process ends, however it ends. Raises ResultError if taken."""
    with _writable(folder):
        handle = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o666)
    try:
        if not filelock.take(handle):
            raise ResultError(f"{str(folder)!r}: another process is adding to that sweep; wait for it, or end it")
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def _writable(folder: Path) -> Iterator[None]:
    """What the system refuses there becomes one line."""
    try:
        yield
    except OSError as error:
        raise ResultError(f"{str(folder)!r} cannot be written: {error.strerror or error}") from None


def _read(path: Path) -> pa.Table:
    import pyarrow.parquet as pq

    with path.open("rb") as stream:
        return pq.ParquetFile(stream).read()


def _number(path: Path) -> int:
    return int(path.stem.removeprefix("part-"))
