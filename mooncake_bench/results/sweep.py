"""A sweep's dataset: many replays, a row each, in a folder of parquet parts beside a manifest.

``DIR/part-*.parquet`` are one dataset for pyarrow, pandas, polars and DuckDB; ``DIR/_sweep.json`` says what it is, and
``DIR/_runs/<point>`` are whole run folders, where these were kept. Columns: ``point``, ``policy`` (SPEC),
``policy_label``, every varied setting under its dotted name, ``status`` (done or failed), ``error``,
``content_sha256``, ``wall_s``, every metric under its name, and the sample count of each as ``<metric>.n``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pyarrow as pa

from mooncake_bench import jsonfile
from mooncake_bench.errors import ResultError, nearest
from mooncake_bench.results.content import content_sha256
from mooncake_bench.results.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mooncake_bench.results.metric import Metric

MANIFEST, PARTS, RUNS = "_sweep.json", "part-*.parquet", "_runs"
FORMAT_VERSION = 1
DONE, FAILED = "done", "failed"
HEAD = (("point", pa.int64()), ("policy", pa.string()), ("policy_label", pa.string()))
TAIL = (("status", pa.string()), ("error", pa.string()), ("content_sha256", pa.string()), ("wall_s", pa.float64()))
FIXED = frozenset(name for name, _ in (*HEAD, *TAIL))
TYPES = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "str": pa.string()}  # as a manifest names them
WHOLE = ("requests", "tokens", "blocks", "times", "bytes")  # units that are counted, not measured
SAMPLES = ".n"  # what follows a metric's name in the name of its sample count


@dataclass(frozen=True)
class Sweep:
    """A stored sweep: ``table`` has a row for each point that was replayed, by number, failed ones included."""

    path: Path
    manifest: Mapping[str, Any]
    table: pa.Table

    @property
    def name(self) -> str:
        """What the sweep is called."""
        return str(self.manifest["name"])

    @property
    def points(self) -> Sequence[Mapping[str, Any]]:
        """Every point of the sweep, replayed or not: ``point``, ``policy``, ``policy_label`` and what was varied."""
        points: Sequence[Mapping[str, Any]] = self.manifest["points"]
        return points

    @property
    def varied(self) -> tuple[str, ...]:
        """Columns that tell the points apart: ``policy_label`` where there are several, then what was varied."""
        several = len({point["policy_label"] for point in self.points}) > 1
        return (*(("policy_label",) if several else ()), *self.manifest["varied"])

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that the dataset holds."""
        return tuple(self.manifest["metrics"])

    @property
    def mine(self) -> tuple[int, ...]:
        """Numbers of the points that are this folder's: all of them, or those of its shard."""
        shard, count = self.manifest["shard"] or (1, 1)
        return tuple(range(shard - 1, len(self.points), count))

    @cached_property
    def done(self) -> pa.Table:
        """The rows of the points whose replay came to an end."""
        return self._rows(DONE)

    @cached_property
    def failed(self) -> pa.Table:
        """The rows of the points whose replay failed: ``error`` says why."""
        return self._rows(FAILED)

    @cached_property
    def left(self) -> tuple[int, ...]:
        """Points of this folder that have not been replayed."""
        found = set(self.table.column("point").to_pylist())
        return tuple(number for number in self.mine if number not in found)

    def metric(self, name: str) -> Metric:
        """The declaration of a metric, by its name or alias. Raises ResultError for one that is not in the dataset."""
        from mooncake_bench.results.metrics import find

        metric = find(name)
        if metric.name not in self.metrics:
            raise ResultError(f"{self.path}: holds no {metric.name}; it was made by an older version")
        return metric

    def column(self, name: str) -> list[Any]:
        """A column of the points that are done, as Python values; an undefined metric is None.

        Raises ResultError with the nearest column for an unknown name.
        """
        if name not in self.table.schema.names:
            raise ResultError(f"{self.path}: no column {name!r}{nearest(name, self.table.schema.names)}")
        values: list[Any] = self.done.column(name).to_pylist()
        return values

    def content_sha256(self) -> str:
        """The hash of what was found: the same whatever was replayed when, where and how fast."""
        return content_sha256(self.table.drop_columns(["wall_s"]))

    def _rows(self, status: str) -> pa.Table:
        import pyarrow.compute as pc

        return self.table.filter(pc.equal(self.table.column("status"), status))


def open_sweep(path: str | Path) -> Sweep:
    """The sweep stored in a folder. Raises ResultError when it is missing, damaged, or of a newer format."""
    folder = Path(path)
    manifest = read_manifest(folder)
    return Sweep(folder, manifest, read_parts(folder, schema_of(manifest)))


def read_manifest(folder: Path) -> dict[str, Any]:
    """``_sweep.json``. Raises ResultError when it is missing, damaged or of a newer format."""
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = jsonfile.load(path)
    except FileNotFoundError:
        raise ResultError(f"{str(folder)!r} holds no sweep: there is no {MANIFEST} in it") from None
    except OSError as error:
        raise ResultError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ResultError(f"{str(path)!r} is damaged ({error}); run the sweep in another folder") from None
    version = manifest.get("format_version") if isinstance(manifest, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ResultError(f"{str(path)!r} is no manifest of a sweep: expected a format_version, got {version!r}")
    if version > FORMAT_VERSION:
        raise ResultError(
            f"{str(path)!r} has format {version}, and this version reads up to {FORMAT_VERSION}: update mooncake-bench"
        )
    missing = [key for key in _NEEDED if key not in manifest]
    if missing:
        raise ResultError(f"{str(path)!r} is damaged: it lacks {', '.join(missing)}")
    _check_shape(manifest, path)
    return manifest


class _Shape(msgspec.Struct):
    """What readers of a manifest ask of it; other keys are free."""

    name: str | None
    shard: tuple[int, int] | None
    points: list[dict[str, Any]]
    varied: list[str]
    types: dict[str, Literal["int", "float", "bool", "str"]]
    metrics: dict[str, str]
    traces: list[dict[str, Any]]
    setup: dict[str, Any]
    costs: list[dict[str, str]]
    oracles: list[str]
    sources: dict[str, str] = {}


def _check_shape(manifest: Mapping[str, Any], path: Path) -> None:
    try:
        shape = msgspec.convert(manifest, _Shape)
    except msgspec.ValidationError as error:
        raise ResultError(f"{str(path)!r} is damaged: {error}; run the sweep in another folder") from None
    untyped = [key for key in shape.varied if key not in shape.types]
    if untyped:
        raise ResultError(f"{str(path)!r} is damaged: types lacks {untyped[0]!r}; run the sweep in another folder")


_NEEDED = ("name", "shard", "points", "varied", "types", "metrics", "traces", "setup", "costs", "oracles")


def schema_of(manifest: Mapping[str, Any]) -> pa.Schema:
    """The columns of a sweep, each metric with its unit and which way is better as metadata."""
    declared = {metric.name: metric for metric in METRICS}
    varied = [pa.field(key, TYPES[manifest["types"][key]]) for key in manifest["varied"]]
    metrics = [_metric_field(name, unit, declared.get(name)) for name, unit in manifest["metrics"].items()]
    samples = [pa.field(name + SAMPLES, pa.int64()) for name in manifest["metrics"]]
    return pa.schema([*map(pa.field, *zip(*HEAD, strict=True)), *varied, *map(pa.field, *zip(*TAIL, strict=True)),
                      *metrics, *samples])  # fmt: skip


def read_parts(folder: Path, schema: pa.Schema) -> pa.Table:
    """The rows of all parts, by point. Raises ResultError for a damaged part, and for a point that is there twice."""
    tables = [_read_part(path, schema) for path in sorted(folder.glob(PARTS))]
    table = pa.concat_tables([schema.empty_table(), *tables]).sort_by("point").combine_chunks()
    points = table.column("point").to_pylist()
    twice = next((a for a, b in pairwise(points) if a == b), None)
    if twice is not None:
        raise ResultError(f"{str(folder)!r}: point {twice} is there twice; merge folders with sweep merge")
    return table


def _read_part(path: Path, schema: pa.Schema) -> pa.Table:
    import pyarrow.parquet as pq

    try:
        with path.open("rb") as stream:  # opened once: a part that grows is replaced, and may be just now
            table = pq.ParquetFile(stream, page_checksum_verification=True).read()
    except (OSError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())[:120]
        raise ResultError(f"{str(path)!r} is damaged ({reason}); remove it, and run the sweep again") from None
    if not table.schema.equals(schema):
        raise ResultError(f"{str(path)!r} has other columns than {MANIFEST} says; it is no part of this sweep")
    return table.cast(schema)


def _metric_field(name: str, unit: str, declared: Metric | None) -> pa.Field:
    better = "none" if declared is None else declared.better
    return pa.field(name, TYPES["int" if unit in WHOLE else "float"], metadata={"unit": unit, "better": better})
