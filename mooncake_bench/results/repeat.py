"""What a stored run replayed, found again: its trace, its setup, its policies' code and its costs, each checked."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mooncake_bench.errors import BenchError, ResultError, SetupError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.results.run import Run
    from mooncake_bench.sim.setup import Setup
    from mooncake_bench.trace import Trace


class Repeat(NamedTuple):
    """What to replay."""

    trace: Trace  # as read: which of its requests are replayed is the setup's business
    setup: Setup
    policy_files: tuple[Path, ...]


def repeat_of(run: Run, policy_dirs: Sequence[Path] = (), trace_path: str | None = None) -> Repeat:
    """What ``run`` replayed; ``trace_path`` is where its trace lies now, if not where it lay then.

    Raises ResultError where the simulator, the trace, a policy's code or the costs are not what they were.
    """
    where = name_of(run)
    check_version(run, where)
    setup = setup_of(run)
    trace = trace_of(run, setup, where, trace_path)
    files = check_policies(run, setup, where, policy_dirs)
    check_costs(run, setup, where)
    return Repeat(trace, setup, files)


def name_of(run: Run) -> str:
    """How a message names a run."""
    return f"run {run.label!r}" if run.path is None else f"run {run.path.name!r}"


def setup_of(run: Run) -> Setup:
    """The setup of a run. Raises SetupError for a manifest that holds none."""
    from mooncake_bench.sim.setup import Setup

    given = {key: value for key, value in run.manifest["setup"].items() if value is not None}
    return Setup.from_dict(given, f"{name_of(run)}: setup")


def check_version(run: Run, where: str) -> None:
    """Raises ResultError for a run that another simulator made."""
    from mooncake_bench.sim.replay import SIMULATOR_VERSION

    version = run.manifest.get("simulator_version")
    if version != SIMULATOR_VERSION:
        raise ResultError(
            f"{where} is of simulator version {version}, and this is {SIMULATOR_VERSION}: it would not decide alike; "
            "replay it again, or use the version of mooncake-bench that made it"
        )


def trace_of(run: Run, setup: Setup, where: str, path: str | None = None) -> Trace:
    """The trace that a run replayed, as read. Raises ResultError where there is none, or it is another one now."""
    from mooncake_bench.sim.replay import as_replayed
    from mooncake_bench.trace.loading import find

    stored = run.manifest["trace"]
    path = path or str(stored["path"])
    try:
        stat = (file := find(path)).stat()
        trace = _load(path, str(file.resolve()), stat.st_mtime_ns, stat.st_size, tuple(setup.reading.items()))
        found = as_replayed(trace.select(setup.max_requests, setup.start_ms, setup.end_ms), setup).sha256
    except BenchError as error:
        raise ResultError(f"{where}: its trace cannot be read again: {error}") from None
    if found != stored["sha256"]:
        raise ResultError(
            f"{where}: the trace changed: {path!r} now has sha256 {found[:12]}, and the run replayed "
            f"{stored['sha256'][:12]}; restore it, or name the right file"
        )
    return trace


@lru_cache(maxsize=2)
def _load(path: str, file: str, mtime_ns: int, size: int, reading: tuple[tuple[str, Any], ...]) -> Trace:
    """A trace, read once for the runs of a paper: they mostly replay the same."""
    from mooncake_bench.trace import load

    return load(path, **dict(reading))


def check_policies(run: Run, setup: Setup, where: str, policy_dirs: Sequence[Path] = ()) -> tuple[Path, ...]:
    """The files of a run's policies. Raises ResultError where one is not what it was, PolicyError where it is gone."""
    from mooncake_bench import plugins

    stored = set((run.manifest["policy"].get("sources") or {}).values())
    found = plugins.build(setup.policy, policy_dirs).sources
    for file, digest in found.items():
        if digest not in stored:
            raise ResultError(
                f"{where}: the policy changed: file {file} is not what the run used (its sha256 is now {digest[:12]}); "
                "restore it, or replay the run again"
            )
    return tuple(map(Path, found))


def refuse_idle_folders(policy_dirs: Sequence[Path], used: Sequence[Path]) -> None:
    """Raises SetupError for a folder of policy files that none of the policies used lies in."""
    for folder in policy_dirs:
        if not any(file.resolve().is_relative_to(folder.resolve()) for file in used):
            raise SetupError(f"--policy-dir {folder}: no effect, none of these policies lies in it; drop it")


def check_costs(run: Run, setup: Setup, where: str) -> None:
    """Raises ResultError where a preset's numbers are not what a run used. Live kernels are not asked."""
    from mooncake_bench.sim.costs import cost_of

    if setup.cost == "live":
        return
    stored, found = run.manifest["cost"], cost_of(setup)
    if (stored["name"], stored["version"]) != (found.name, found.version):
        raise ResultError(
            f"{where}: the costs changed: {found.name} {found.version} now, and the run used {stored['name']} "
            f"{stored['version']}; restore the model, node or engine file, or replay the run again"
        )
