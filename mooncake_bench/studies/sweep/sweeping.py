"""A sweep from its points to its dataset: what is left to do is done, and kept as it comes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mooncake_bench.results.sweep import FAILED, open_sweep
from mooncake_bench.studies.sweep.store import opened

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from mooncake_bench.results.sweep import Sweep
    from mooncake_bench.studies.sweep.executors import Executor
    from mooncake_bench.studies.sweep.points import Point

    Report = Callable[[int, int, int], None]


def sweep(
    points: Sequence[Point],
    manifest: Mapping[str, Any],
    folder: Path,
    executor: Executor,
    *,
    retry_failed: bool = False,
    begin: Callable[[int, int], None] = lambda there, failed: None,
    report: Report = lambda done, failed, total: None,
) -> Sweep:
    """Replay those of the points that have no row in the folder yet; returns the whole of it.

    ``begin(there, failed)`` is told once what was there, ``report(done, failed, total)`` after each change. What is
    done is kept, also when Ctrl-C raises KeyboardInterrupt. Raises ResultError where the folder cannot be used.
    """
    with opened(folder, manifest) as store:
        if retry_failed:
            store.forget_failed()
        done, failed = store.finished(), store.table.column("status").to_pylist().count(FAILED)
        left = [point for point in points if point.number not in done]
        begin(len(done), failed)
        count = len(done)
        report(count, failed, len(points))
        running = executor.run(left)
        try:
            for outcomes in running:
                store.add(outcomes)
                count += len(outcomes)
                failed += sum(outcome.status == FAILED for outcome in outcomes)
                report(count, failed, len(points))
        finally:
            running.close()
    return open_sweep(folder)
