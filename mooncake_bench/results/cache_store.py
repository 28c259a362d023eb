"""Cache analyses as parquet: one row a policy and capacity, every count and ratio, types that are always the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from mooncake_bench import outfile
from mooncake_bench.errors import SetupError
from mooncake_bench.results.cache_analysis import rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.results.cache_analysis import Analysis


def _fields(kind: pa.DataType, names: str, *, nullable: bool = False) -> Sequence[pa.Field]:
    return [pa.field(name, kind, nullable=nullable) for name in names.split()]


SCHEMA = pa.schema(
    [
        *_fields(pa.string(), "trace trace_sha256 policy spec role capacity"),
        *_fields(pa.int64(), "studied_capacity_blocks capacity_blocks", nullable=True),  # null: infinite
        *_fields(pa.int64(), "pools"),
        *_fields(pa.string(), "assignment", nullable=True),
        *_fields(pa.string(), "touch_order"),
        *_fields(pa.float64(), "ready_after_ms"),
        *_fields(pa.int64(), "warm_requests block_tokens requests blocks full_blocks tokens"),
        *_fields(pa.int64(), "block_hits prefix_blocks prefix_full_blocks prefix_tokens requests_with_hit"),
        *_fields(
            pa.float64(), "hit_ratio_blocks hit_ratio_tokens hit_ratio_full_blocks hit_ratio_per_block", nullable=True
        ),
        *_fields(pa.float64(), "prefix_blocks_over_full_blocks", nullable=True),
        *_fields(pa.float64(), "prefix_blocks_over_bound", nullable=True),
        *_fields(pa.int64(), "misses_first_sight misses_not_ready misses_behind_gap misses_elsewhere misses_evicted"),
        *_fields(pa.int64(), "requests_first_miss_none requests_first_miss_first_sight requests_first_miss_not_ready"),
        *_fields(pa.int64(), "requests_first_miss_elsewhere requests_first_miss_evicted"),
        *_fields(pa.int64(), "evictions"),
        *_fields(pa.float64(), "evicted_ago_p50_ms evicted_ago_p90_ms evicted_ago_p99_ms", nullable=True),
        *_fields(pa.int64(), "peak_blocks most_requests_of_a_pool pools_without_requests"),
    ]
)


def table_of(analysis: Analysis) -> pa.Table:
    """The analysis as an Arrow table of :data:`SCHEMA`, which those of other analyses can be appended to."""
    return pa.Table.from_pylist(list(rows(analysis)), schema=SCHEMA)


def check_file(path: str | Path, *, force: bool = False, flag: str = "-o", ending: str = ".parquet") -> Path:
    """The path of a file to be written, looked at before any work is done.

    Raises SetupError, naming ``flag``, for another ending, a folder that is not there, or an existing file unless
    ``force``.
    """
    target = Path(path)
    if target.suffix.lower() != ending:
        found = "the name is empty" if str(path) in ("", ".") else repr(str(path))
        raise SetupError(f"{flag} {found}: expected a file name that ends in {ending}")
    outfile.check_target(target, force=force, label=f"{flag} {str(path)!r}", error=SetupError)
    return target


def write_table(table: pa.Table, path: str | Path, *, force: bool = False, flag: str = "-o") -> Path:
    """Write a table as parquet, whole or not at all. Raises SetupError as :func:`check_file`, or when it cannot be."""
    import pyarrow.parquet as pq

    target = check_file(path, force=force, flag=flag)
    with outfile.writing(target, force=force, label=f"{flag} {str(path)!r}", error=SetupError) as partial:
        pq.write_table(table, partial, compression="zstd", version="2.6", data_page_version="1.0")
    return target
