"""``--points``: everything that a study replayed, as one parquet file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mooncake_bench.cli.options import option
from mooncake_bench.cli.output import tell
from mooncake_bench.errors import SetupError

if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable, Mapping

    import pyarrow as pa


def points_options(what: str) -> list[inspect.Parameter]:
    """``--points`` for ``what``, and its ``--force``."""
    text = f"Write {what} to this .parquet [default: none]"
    return [
        option("points", Path | None, ("--points",), text, panel="Output", metavar="FILE"),
        option("force", bool, ("--force",), "Replace the file of --points [default: off]", False, panel="Output"),
    ]


def check_points(given: Mapping[str, Any]) -> None:
    """Raises SetupError for a file that could not be written, before any work is done."""
    if given["points"] is None:
        if given["force"]:
            raise SetupError("--force: no effect without --points; drop it, or name a file")
        return
    from mooncake_bench.results.cache_store import check_file

    check_file(given["points"], force=given["force"], flag="--points")


def store_points(given: Mapping[str, Any], table: Callable[[], pa.Table]) -> None:
    """Write the table, if it was asked for."""
    if given["points"] is not None:
        from mooncake_bench.results.cache_store import write_table

        written = write_table(table(), given["points"], force=given["force"], flag="--points")
        tell(given, f"written: {written}")
