"""One point replayed: what a process of a sweep does, wherever it runs."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import sys
import time
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from mooncake_bench.errors import BenchError, ResultError, TraceError, faults
from mooncake_bench.results.run import Run
from mooncake_bench.results.sweep import DONE, FAILED, MANIFEST, RUNS
from mooncake_bench.studies.replays import whole
from mooncake_bench.trace import load

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mooncake_bench.studies.sweep.points import Point
    from mooncake_bench.trace import Trace

TRACES_KEPT = 4  # read traces that a process keeps


class Outcome(NamedTuple):
    """What came of a point: metrics and their sample counts by name, or why it failed."""

    number: int
    status: str
    error: str | None = None
    content_sha256: str | None = None
    wall_s: float | None = None
    metrics: Mapping[str, tuple[Any, Any]] = {}


@dataclass(frozen=True)
class Work:
    """What a process is told once: where policies are looked for, and where run folders are kept, if they are."""

    policy_dirs: tuple[Path, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)  # file of a policy -> its SHA-256 when the sweep began
    keep: Path | None = None  # the sweep's folder
    name: str | None = None  # the sweep's, which groups the runs that are kept


def attempt(point: Point, work: Work, trace: Trace | None = None) -> Outcome:
    """Replay a point; a fault becomes the outcome. Ctrl-C ends it with KeyboardInterrupt.

    ``trace`` where it is at hand; else it is read, once a process.
    """
    started = time.perf_counter()
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what a policy prints
            run = _replayed(point, work, trace)
            metrics = {name: (value.value, value.n) for name, value in run.metrics().items()}
        wall_s = time.perf_counter() - started
        _keep(run, point, work)
    except BenchError as error:
        return failed(point, " ".join(str(error).split()))
    except faults() as error:  # a fault of ours, or too little memory: the other points go on
        return failed(point, " ".join(f"{type(error).__name__}: {error}".split()))
    return Outcome(point.number, DONE, None, content_of(run), wall_s, metrics)


def failed(point: Point, why: str) -> Outcome:
    """The outcome of a point that could not be replayed."""
    return Outcome(point.number, FAILED, why)


def content_of(run: Run) -> str:
    """One hash of all tables of a run."""
    listed = "".join(f"{name} {digest}\n" for name, digest in sorted(run.manifest["content_sha256"].items()))
    return hashlib.sha256(listed.encode()).hexdigest()


def _replayed(point: Point, work: Work, trace: Trace | None) -> Run:
    trace = _trace(point.trace, tuple(point.setup.reading.items())) if trace is None else trace
    if trace.sha256 != point.trace_sha256:
        raise TraceError(f"{point.trace}: the file has changed since the sweep began; bring it back, or sweep anew")
    started = time.perf_counter()
    replay = whole(trace, point.setup, policy_dirs=work.policy_dirs)
    for file, digest in replay.policy_sources.items():
        if work.sources.get(file, digest) != digest:
            raise ResultError(f"policy file {file} has changed since the sweep began; bring it back, or sweep anew")
    wall_s = time.perf_counter() - started
    return Run.from_replay(replay, wall_s=wall_s, name=work.name, trace_path=point.trace)


@lru_cache(maxsize=TRACES_KEPT)
def _trace(path: str, reading: tuple[tuple[str, Any], ...]) -> Trace:
    return load(path, **dict(reading))


def _keep(run: Run, point: Point, work: Work) -> None:
    """Store a run beside the dataset; one that is there is of a point whose row was never written."""
    if work.keep is None:
        return
    if not (work.keep / MANIFEST).is_file():
        raise ResultError(f"--keep-runs: this process does not see {str(work.keep)!r}; share it between the nodes")
    folder = work.keep / RUNS / str(point.number)
    shutil.rmtree(folder, ignore_errors=True)
    run.save(run_dir=folder)
