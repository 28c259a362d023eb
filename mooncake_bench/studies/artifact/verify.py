"""An archive's runs, replayed and held against what was stored."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from mooncake_bench.errors import BenchError, ResultError, SetupError
from mooncake_bench.paths import bundled
from mooncake_bench.plugins import parse
from mooncake_bench.results.repeat import setup_of, trace_of
from mooncake_bench.results.run import Run, open_run
from mooncake_bench.results.store import MANIFEST as RUN_JSON
from mooncake_bench.results.store import TABLES
from mooncake_bench.sim.setup import Setup
from mooncake_bench.studies.artifact import archive
from mooncake_bench.studies.artifact.contents import Contents, PackedRun, PackedTrace, Part, read, sha256_of
from mooncake_bench.studies.artifact.outcome import FAILED, MISSING, Outcome, compared
from mooncake_bench.studies.replays import whole
from mooncake_bench.trace import bundled_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Progress = Callable[[int, int, float], None]
    ProgressOf = Callable[[str], contextlib.AbstractContextManager[Progress]]

LIVE = "live"
SEARCHED = 100_000  # files of a folder of traces that are looked at


@contextlib.contextmanager
def opened(path: Path, most_bytes: int) -> Iterator[tuple[Path, Contents]]:
    """An archive unpacked in a folder that is gone afterwards, and its contents, checked. Nothing of it is run."""
    if not path.is_file():
        raise ResultError(f"{str(path)!r}: no such file; expected an artifact that `artifact pack` wrote")
    with tempfile.TemporaryDirectory(prefix="mooncake-bench-") as name:
        folder = Path(name)
        archive.unpack(path, folder, most_bytes)
        contents = read(folder, str(path))
        check_setups(contents, folder, str(path))
        yield folder, contents


@cache
def installed() -> frozenset[str]:
    """The sha256 of every policy file that comes with this installation."""
    return frozenset(sha256_of(path) for path in bundled("policies").glob("*.py"))


def is_here(part: Part) -> bool:
    """Whether the very file of a policy comes with this installation."""
    return part.bundled and part.sha256 in installed()


def code_to_run(contents: Contents, missing: Sequence[PackedTrace] = ()) -> dict[str, str]:
    """Policy files whose code verifying runs out of the archive, with their sha256; not of runs without a trace."""
    absent = {trace.path for trace in missing}
    runs = (run for run in contents.runs if run.trace not in absent)
    return {part.file: part.sha256 for run in runs for part in run.parts if not is_here(part)}


def spec_of(run: PackedRun) -> str:
    """The SPEC that replays a run: by name where the very same file is installed, else with the archive's code."""
    parts = [
        part.named if is_here(part) else part.packed for part in run.parts if not (part.implied and is_here(part))
    ]  # fmt: skip
    text = "+".join(parts)
    return text if run.spec_label is None else f"{run.spec_label}={text}"


def check_setups(contents: Contents, folder: Path, where: str) -> None:
    """Raises ResultError where a run would read, or run, a file that the archive does not tell of."""
    for run in contents.runs:
        manifest = open_run(folder / run.folder).manifest
        try:
            strange = list(_strange(contents, run, manifest))
        except (KeyError, TypeError, AttributeError) as error:
            raise ResultError(f"{where} is damaged: {run.folder}/{RUN_JSON}: {type(error).__name__}: {error}") from None
        if strange:
            raise ResultError(
                f"{where}: {run.folder} names {strange[0]!r}, which the archive does not tell of: do not trust it"
            )


def _strange(contents: Contents, run: PackedRun, manifest: Mapping[str, Any]) -> Iterator[str]:
    """Files that a run names and the archive does not."""
    setup, trace, warm = manifest["setup"], manifest["trace"]["path"], manifest["setup"].get("warm_from")
    policies = {part.file for each in contents.runs for part in each.parts}
    code = [part.target for text in (setup["policy"], spec_of(run)) for part in parse(text).parts if part.is_file]
    yield from (name for name in code if name not in policies)
    nodes = [node for _, node in Setup(cluster=setup["cluster"], node=setup["node"]).instances]
    presets = [name for name in (setup["model"], setup["engine"], *nodes) if name.endswith((".toml", ".json"))]
    yield from (name for name in presets if name not in contents.files)
    traces = {trace.path for trace in contents.traces} | {*bundled_names()}
    if trace not in traces or trace != run.trace:
        yield trace
    if warm is not None and warm not in traces | {each.folder for each in contents.runs}:
        yield warm


def find_traces(contents: Contents, folder: Path, traces_dir: Path | None) -> list[PackedTrace]:
    """Put each trace that is not in the archive where its runs look for it; returns those that are not to be had."""
    if traces_dir is not None and not traces_dir.is_dir():
        raise SetupError(f"--traces: there is no folder {str(traces_dir)!r}")
    wanted = [trace for trace in contents.traces if not trace.included]
    by_size = {} if traces_dir is None or not wanted else _by_size(traces_dir, {trace.bytes for trace in wanted})
    missing = []
    for trace in wanted:
        match = next((path for path in by_size.get(trace.bytes, ()) if sha256_of(path) == trace.sha256), None)
        if match is None:
            missing.append(trace)
            continue
        (folder / trace.path).parent.mkdir(parents=True, exist_ok=True)
        try:
            (folder / trace.path).symlink_to(match.resolve())
        except OSError:  # a file system without links
            shutil.copyfile(match, folder / trace.path)
    return missing


def _by_size(folder: Path, sizes: set[int]) -> dict[int, list[Path]]:
    found: dict[int, list[Path]] = {}
    for number, path in enumerate(sorted(folder.rglob("*"))):
        if number >= SEARCHED:
            raise SetupError(f"--traces {folder}: holds more than {SEARCHED:,} files; name the folder of the traces")
        if path.is_file() and path.stat().st_size in sizes:
            found.setdefault(path.stat().st_size, []).append(path)
    return found


def verify(
    contents: Contents, folder: Path, missing: Sequence[PackedTrace], progress_of: ProgressOf
) -> Iterator[Outcome]:
    """Replay each run, one after the other, in the archive's folder; ``progress_of(label)`` gives its progress.

    Policy code of the archive is run here, and nowhere else.
    """
    absent = {trace.path: trace for trace in missing}
    with contextlib.chdir(folder):
        for run in contents.runs:
            with progress_of(run.label) as progress:
                yield _verify(run, contents, absent, progress)


def _verify(run: PackedRun, contents: Contents, absent: Mapping[str, PackedTrace], progress: Progress) -> Outcome:
    try:
        stored = open_run(Path(run.folder))
        setup = replace(setup_of(stored), policy=spec_of(run))
        why = _not_now(run, contents, setup, absent)
        if why:
            return Outcome(run.folder, run.label, MISSING, run.requests, why=why)
        return _replayed(run, stored, setup, progress)
    except BenchError as error:
        return Outcome(run.folder, run.label, FAILED, run.requests, why=str(error))


def _not_now(run: PackedRun, contents: Contents, setup: Setup, absent: Mapping[str, PackedTrace]) -> str:
    """Why a run cannot be replayed here; empty where it can be."""
    if LIVE in (setup.cost, _cost_of(setup.warm_from)):
        return "its costs were timed on live kernels, which no other machine repeats"
    warm = next((each for each in contents.runs if each.folder == setup.warm_from), None)
    needed = [
        run.trace,
        *([] if setup.warm_from is None else [setup.warm_from]),
        *([] if warm is None else [warm.trace]),
    ]
    for path in needed:
        if path in absent:
            trace = absent[path]
            return (
                f"trace {Path(path).name} ({trace.bytes:,} bytes, sha256 {trace.sha256[:12]}) is not at hand; name its "
                "folder with --traces"
            )
    return ""


def _cost_of(folder: str | None) -> str | None:
    """Where the durations of the run that warmed the caches come from."""
    if folder is None or not (Path(folder) / RUN_JSON).is_file():
        return None
    return str(open_run(Path(folder)).manifest["setup"].get("cost"))


def _replayed(run: PackedRun, stored: Run, setup: Setup, progress: Progress) -> Outcome:
    trace = trace_of(stored, setup, run.folder)
    replayed = Run.from_replay(whole(trace, setup, progress=progress))
    columns = {name: pq.read_schema(os.fspath(Path(run.folder, f"{name}.parquet"))).names for name in TABLES}
    return compared(run.folder, stored, replayed, columns, tuple(_notes(stored, replayed)))


def _notes(stored: Run, replayed: Run) -> Iterator[str]:
    then, now = stored.manifest, replayed.manifest
    if then["simulator_version"] != now["simulator_version"]:
        yield f"simulator {then['simulator_version']} then, {now['simulator_version']} now"
    if then["cost"]["version"] != now["cost"]["version"]:
        yield f"costs {then['cost']['version']} then, {now['cost']['version']} now"
