"""Run folders: written whole or not at all, never overwritten, found again by number or by name.

``<out>/<n>_<trace>_<policy>/`` holds ``run.json`` and one parquet file a table. The folder is filled under a hidden
temporary name and then moved, so a reader never meets half a run.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mooncake_bench import jsonfile, spool
from mooncake_bench.errors import MissingRun, ResultError, nearest
from mooncake_bench.results.content import content_sha256
from mooncake_bench.results.manifest import FORMAT_VERSION
from mooncake_bench.results.manifest_shape import check_shape
from mooncake_bench.results.records import ADDED, REQUESTS, SEGMENTS, STAYS
from mooncake_bench.results.spooled import spooled
from mooncake_bench.results.timeline import TIMELINE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MANIFEST = "run.json"
TABLES: dict[str, pa.Schema] = {"requests": REQUESTS, "timeline": TIMELINE, "segments": SEGMENTS, "stays": STAYS}
OUT = Path("results")
_NUMBERED = re.compile(r"(\d+)_.+")
_KEPT = re.compile(r"[^A-Za-z0-9_.+=,-]+")


# ---- writing


def write_run(
    manifest: Mapping[str, Any], tables: Mapping[str, pa.Table], out_dir: str | Path = OUT, run_dir: Path | None = None
) -> Path:
    """Store a run: in the next free number of ``out_dir``, or in exactly ``run_dir``. Returns its folder.

    Raises ResultError when the place is taken or cannot be written.
    """
    with _place(out_dir, run_dir) as (parent, folder):
        _fill(folder, manifest, tables)
        if run_dir is None:
            return _take_number(folder, parent, _stem(manifest))
        folder.rename(run_dir)
        return run_dir


def check_place(out_dir: str | Path = OUT, run_dir: Path | None = None) -> None:
    """Raises ResultError when :func:`write_run` could not store a run there; to be asked before a long replay."""
    with _place(out_dir, run_dir):
        pass


@contextmanager
def _place(out_dir: str | Path, run_dir: Path | None) -> Iterator[tuple[Path, Path]]:
    """The folder in which a run folder goes, and a temporary folder in it that is gone afterwards."""
    parent = Path(out_dir) if run_dir is None else run_dir.parent
    if run_dir is not None and run_dir.exists():
        raise ResultError(f"--run-dir {run_dir}: already exists and a run is never overwritten; choose another folder")
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with _temporary(parent) as folder:
            yield parent, folder
    except OSError as error:
        raise ResultError(f"cannot write a run folder in {str(parent)!r}: {error.strerror or error}") from None


@contextmanager
def _temporary(parent: Path) -> Iterator[Path]:
    folder = parent / f".partial-{secrets.token_hex(6)}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # moved away by now, unless something failed


def _fill(folder: Path, manifest: Mapping[str, Any], tables: Mapping[str, pa.Table]) -> None:
    import pyarrow.parquet as pq

    for name, table in tables.items():
        words = [field.name for field in table.schema if pa.types.is_string(field.type)]
        with pq.ParquetWriter(
            folder / f"{name}.parquet", table.schema, compression="zstd", compression_level=1, use_dictionary=words,
            version="2.6", data_page_version="1.0", write_page_checksum=True,
        ) as writer:  # fmt: skip
            for part in spool.parts(len(table)):
                writer.write_table(table.slice(part.start, part.stop - part.start))
    text = json.dumps(manifest, indent=2, ensure_ascii=False, allow_nan=False)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def _take_number(folder: Path, parent: Path, stem: str) -> Path:
    """Move ``folder`` to the next free number; two processes never take the same one."""
    number = 1 + max(_numbers(parent), default=0)
    while True:
        claim = parent / f".claim-{number}"
        try:
            claim.mkdir()
        except FileExistsError:  # someone is storing under this number just now
            number += 1
            continue
        try:
            if number not in _numbers(parent):
                return folder.rename(parent / f"{number}_{stem}")
        finally:
            claim.rmdir()
        number += 1


def _stem(manifest: Mapping[str, Any]) -> str:
    parts = (manifest["trace"]["name"], manifest["policy"]["label"])
    return "_".join(_KEPT.sub("-", part).strip("-.")[:60] or "unnamed" for part in parts)


def _numbers(parent: Path) -> dict[int, Path]:
    """Numbered folders of ``parent`` by number, whatever they hold: these numbers are taken."""
    if not parent.is_dir():
        return {}
    matches = ((_NUMBERED.fullmatch(item.name), item) for item in parent.iterdir())
    return {int(match[1]): item for match, item in matches if match}


def _runs(parent: Path) -> dict[int, Path]:
    """Run folders of ``parent`` by number; a folder without a manifest is someone else's."""
    return {number: folder for number, folder in _numbers(parent).items() if (folder / MANIFEST).exists()}


# ---- reading


def read_manifest(folder: Path) -> dict[str, Any]:
    """``run.json`` of a run folder. Raises ResultError when it is missing, damaged or of a newer format."""
    path = folder / MANIFEST
    manifest: dict[str, Any]
    try:
        manifest = jsonfile.load(path)
    except FileNotFoundError:
        raise ResultError(f"{str(folder)!r} is no run folder: it holds no {MANIFEST}") from None
    except OSError as error:
        raise ResultError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ResultError(f"{str(path)!r} is damaged ({error}); replay the run again") from None
    version = manifest.get("format_version") if isinstance(manifest, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ResultError(f"{str(path)!r} is no run manifest: expected a format_version, got {version!r}")
    if version > FORMAT_VERSION:
        raise ResultError(
            f"{str(path)!r} has format {version}, and this version reads up to {FORMAT_VERSION}: update mooncake-bench"
        )
    check_shape(manifest, str(path))
    return manifest


def read_table(folder: Path, name: str, manifest: Mapping[str, Any]) -> pa.Table:
    """One table of a run folder, checked against its manifest. Raises ResultError naming the file and the fault."""
    import pyarrow.parquet as pq

    path = folder / f"{name}.parquet"
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            groups = (file.read_row_group(group) for group in range(file.num_row_groups))
            table = spooled(file.schema_arrow, groups)
    except FileNotFoundError:
        raise ResultError(f"{str(path)!r} is missing; replay the run again") from None
    except (OSError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())[:120]
        raise ResultError(f"{str(path)!r} is damaged ({reason}); replay the run again") from None
    later = [field for field in TABLES[name] if field.name in ADDED and field.name not in table.schema.names]
    wrong = [field.name for field in TABLES[name] if field not in later and not _has(table.schema, field)]
    if wrong:
        raise ResultError(f"{str(path)!r} is damaged: column {wrong[0]!r} is missing or of another type")
    expected = manifest["content_sha256"].get(name)
    if content_sha256(table) != expected:
        raise ResultError(f"{str(path)!r} is not what {MANIFEST} describes (its content hash differs); was it edited?")
    for field in later:
        table = table.append_column(field, _repeated(ADDED[field.name], len(table), field.type))
    return table


def _repeated(value: float | None, rows: int, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), rows)


def _has(schema: pa.Schema, field: pa.Field) -> bool:
    return field.name in schema.names and schema.field(field.name).type == field.type


# ---- finding


def resolve_runs(references: Sequence[str], out_dir: str | Path = OUT) -> list[Path]:
    """Folders of the runs meant by folder, number, ``--name``, ``@last`` or ``@last:N`` (the N latest, oldest first).

    Raises ResultError for one that means nothing, with what there is.
    """
    return [folder for reference in references for folder in _resolve(reference, Path(out_dir))]


def _resolve(reference: str, out_dir: Path) -> list[Path]:
    if reference.startswith("@"):
        return _last(reference, out_dir)
    runs = _runs(out_dir)
    if reference.isdecimal():
        if int(reference) in runs:
            return [runs[int(reference)]]
        raise MissingRun(f"no run {reference} in {str(out_dir)!r}{_what_there_is(runs)}")
    for folder in (Path(reference), out_dir / reference):
        if (folder / MANIFEST).is_file():
            return [folder]
    named = _names(runs)
    if reference in named:
        return named[reference]
    if Path(reference).is_dir():
        raise ResultError(f"{reference!r} is no run folder: it holds no {MANIFEST}")
    known = [*named, *(folder.name for folder in runs.values())]
    hint = nearest(reference, known) or _what_there_is(runs)
    raise MissingRun(f"no run {reference!r}: neither a run folder nor a --name in {str(out_dir)!r}{hint}")


def _last(reference: str, out_dir: Path) -> list[Path]:
    match = re.fullmatch(r"@last(?::([1-9]\d*))?", reference)
    if not match:
        raise ResultError(f"{reference!r}: expected @last or @last:N, such as @last:2")
    runs, wanted = _runs(out_dir), int(match[1] or 1)
    if len(runs) < wanted:
        have = f"only {len(runs)} runs" if runs else "no runs yet"
        raise MissingRun(f"{reference}: {have} in {str(out_dir)!r}; make one with: mooncake-bench replay")
    return [runs[number] for number in sorted(runs)[-wanted:]]


def _names(runs: Mapping[int, Path]) -> dict[str, list[Path]]:
    """Runs by the ``--name`` that groups them; folders that cannot be read have none."""
    groups: dict[str, list[Path]] = {}
    for number in sorted(runs):
        try:
            name = read_manifest(runs[number]).get("name")
        except ResultError:
            continue
        if name:
            groups.setdefault(name, []).append(runs[number])
    return groups


def _what_there_is(runs: Mapping[int, Path]) -> str:
    if not runs:
        return "; it holds no runs yet"
    first, last = min(runs), max(runs)
    return f"; it holds runs {first} to {last}" if first < last else f"; it holds run {first}"
