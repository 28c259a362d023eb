"""``replay``: one trace through one or several policies."""

from __future__ import annotations

import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mooncake_bench.cli import options
from mooncake_bench.cli.config import plan_toml
from mooncake_bench.cli.decisions import decision_lines
from mooncake_bench.cli.options import Commands, Example, option
from mooncake_bench.cli.output import answer, note, policies_print_to_stderr, screen
from mooncake_bench.cli.pictures import asked, draw, plot_option
from mooncake_bench.cli.planned import plan_parameters, resolve, source_option
from mooncake_bench.cli.progress import progress_bar
from mooncake_bench.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mooncake_bench.results.run import Run
    from mooncake_bench.sim.cluster import Cluster
    from mooncake_bench.sim.setup import Setup
    from mooncake_bench.trace import Trace

NOTHING_COMPLETED, INTERRUPTED = 3, 130
OUT = Path("results")

_output = partial(option, panel="Output")

PARAMETERS = [
    *plan_parameters(),
    source_option(
        "dry_run", bool, ("--dry-run",), "Print the resolved setup as TOML and replay nothing [default: off]", False
    ),
    options.out_option("Folder in which run folders are made"),
    _output(
        "run_dir",
        Path | None,
        ("--run-dir",),
        "The exact folder of the run, for one policy [default: numbered in --out]",
        metavar="DIR",
    ),
    _output("name", str | None, ("--name",), "Name that groups this command's runs [default: none]", metavar="NAME"),
    options.by_option(),
    plot_option(),
    options.format_option(),
    _output(
        "profile",
        Path | None,
        ("--profile",),
        "Write a cProfile of the replays to this file [default: none]",
        metavar="FILE",
    ),
    _output("quiet", bool, ("-q", "--quiet"), "No progress, notices or paths on stderr [default: off]", False),
    _output("verbose", bool, ("-v", "--verbose"), "One line a decision on stderr [default: off]", False),
]


@options.takes(*PARAMETERS)
def replay(**given: Any) -> None:
    """Replay a trace through one or several policies.

    Prints what each does to the requests: how many complete, are rejected or fail, and how long they take.

    The answer goes to stdout; notices, progress and the path of each run folder go to stderr.
    """
    from mooncake_bench.report.tables import render
    from mooncake_bench.results.store import check_place

    shown = options.chosen_format(given["format"])
    if given["dry_run"] and given["plot"]:
        raise SetupError("--plot: no effect with --dry-run, which replays nothing; drop one of the two")
    pictures = asked(given["plot"])
    plan, trace, setups, notices = resolve(given)
    _tell(given, notices)
    if given["dry_run"]:
        answer(plan_toml(plan.path, setups))
        return
    check_place(given["out"] or OUT, given["run_dir"])
    with _profile(given["profile"]), policies_print_to_stderr():
        runs = _replay_all(plan.path, trace, setups, given)
    answer(render(runs, shown, by=given["by"], **screen()))
    _tell(given, draw(pictures, runs))
    raise typer.Exit(_exit_code(runs))


def _replay_all(path: str, trace: Trace, setups: Sequence[Setup], given: dict[str, Any]) -> list[Run]:
    """One stored run a setup; an interrupted one is the last, and the policies after it are named."""
    from mooncake_bench.plugins import parse

    runs: list[Run] = []
    for number, setup in enumerate(setups, start=1):
        runs.append(_replay_one(path, trace, setup, given))
        _tell(given, [f"run folder: {runs[-1].path}"])
        if given["verbose"]:
            note("\n".join(decision_lines(runs[-1])))
        if runs[-1].interrupted:
            left = ", ".join(parse(later.policy).label for later in setups[number:])
            _tell(given, [f"not run: {left}"] if left else [])
            break
    return runs


def _replay_one(path: str, trace: Trace, setup: Setup, given: dict[str, Any]) -> Run:
    from mooncake_bench.results.run import Run
    from mooncake_bench.sim.costs import live_cost_of, with_mechanics
    from mooncake_bench.sim.pulse import pulse
    from mooncake_bench.sim.replay import run as simulate

    started = time.perf_counter()
    with progress_bar(setup.policy, given["quiet"]) as progress:
        live = live_cost_of(setup, progress.say) if setup.cost == "live" else None
        cost = with_mechanics(live, setup) if live else None

        def look(cluster: Cluster, _now: int) -> None:
            if progress.wants_pulse:
                progress.beat(pulse(cluster, setup))

        done = simulate(trace, setup, progress, given["policy_dir"] or (), cost=cost, watch=(None, look))
    _tell(given, [live.summary()] if live else [])
    run = Run.from_replay(done, wall_s=time.perf_counter() - started, name=given["name"], trace_path=path)
    run.save(given["out"] or OUT, run_dir=given["run_dir"])
    return run


@contextmanager
def _profile(path: Path | None) -> Iterator[None]:
    """Profile what happens inside into ``path``, readable by pstats; nothing without a path."""
    if path is None:
        yield
        return
    import cProfile

    try:
        path.touch()  # found out now, not after the replays
    except OSError as error:
        raise SetupError(f"--profile {path}: cannot be written: {error.strerror}; name another file") from None
    profile = cProfile.Profile()
    try:
        with profile:
            yield
    finally:
        profile.dump_stats(path)


def _tell(given: dict[str, Any], lines: Sequence[str]) -> None:
    if not given["quiet"]:
        for line in lines:
            note(line)


def _exit_code(runs: Sequence[Run]) -> int:
    """Interrupted before all else; then 3 when a policy completed no request, for nothing can be said of it."""
    if any(run.interrupted for run in runs):
        return INTERRUPTED
    return 0 if all(run.completed_requests for run in runs) else NOTHING_COMPLETED


EXAMPLES = (
    Example("replay -p predictive", "the bundled trace under overload, one policy"),
    Example("replay conversation-like -p random -p kvcache-centric --max-requests 2000", "two routers, one table"),
    Example("replay conversation-like --speedup 2 --dry-run", "the resolved setup, nothing replayed"),
)
COMMANDS: Commands = (("replay", replay, EXAMPLES),)
