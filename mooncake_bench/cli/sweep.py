"""``sweep run``, ``sweep status``, ``sweep merge``: many replays, one dataset."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mooncake_bench.cli import options
from mooncake_bench.cli.interrupt import terminable
from mooncake_bench.cli.listing import render_report
from mooncake_bench.cli.options import Example, argument, option
from mooncake_bench.cli.output import answer, json_answer, policies_print_to_stderr, tell
from mooncake_bench.cli.planned import plan_parameters, source_option
from mooncake_bench.errors import NothingToConclude, SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from mooncake_bench.cli.options import Commands
    from mooncake_bench.cli.sweep_plan import Prepared
    from mooncake_bench.results.sweep import Sweep
    from mooncake_bench.studies.sweep.executors import Executor

HELP = "Replay a trace under many settings, into one dataset."
SOME_FAILED, SOME_LEFT = 1, 3
RESULTS = Path("results")
STATUS_FORMATS = ("table", "json", "markdown", "latex")

_sweep = partial(option, panel="The sweep")
_output = partial(option, panel="Output")


def _metric_option() -> Any:
    text = "Metric to show for each point; repeatable; `metrics list` has all [default: a handful]"
    return _output("metric", list[str] | None, ("--metric",), text, metavar="NAME")


def _quiet_option() -> Any:
    return _output("quiet", bool, ("-q", "--quiet"), "No progress, notices or paths on stderr [default: off]", False)


_SWEEP_PARAMETERS = [
    _sweep(
        "vary",
        list[str] | None,
        ("--vary",),
        "A setting by its dotted name (speedup=1,2,3), policy=SPEC,SPEC, a policy's parameter (LABEL.k=2,4), "
        "trace.path=A,B; ranges: seed=0..9, speedup=1..3..0.5; `;` separates values that hold commas; repeatable, all "
        "combinations are replayed [default: none]",
        metavar="KEY=V1,V2,...",
    ),
    _sweep(
        "list",
        bool,
        ("--list",),
        "Take the values of all --vary side by side, first with first, instead of all combinations [default: off]",
        False,
    ),
    _sweep("workers", int | None, ("--workers",), "Processes that replay at once [default: one a core]", metavar="N"),
    _sweep("shard", str | None, ("--shard",), "Replay the I-th of N equal parts only [default: all]", metavar="I/N"),
    _sweep(
        "ray",
        str | None,
        ("--ray",),
        "Replay on the Ray cluster at this address, or auto: the one that runs here; needs the extra ray "
        "[default: processes of this machine]",
        metavar="ADDRESS",
    ),
    _sweep(
        "retry_failed", bool, ("--retry-failed",), "Replay failed points of an earlier try again [default: off]", False
    ),
]

_TRACE, *_PLAN = plan_parameters()
RUN_PARAMETERS = [
    _TRACE,
    *_SWEEP_PARAMETERS,
    *_PLAN,
    source_option(
        "sweep",
        Path | None,
        ("--sweep",),
        "TOML file with a table [vary], and settings as --config has them [default: none]",
        metavar="FILE",
    ),
    _output(
        "out",
        Path | None,
        ("-o", "--out"),
        "Folder of the dataset; one that is there is gone on with [default: results/sweep-NAME]",
        metavar="DIR",
    ),
    _output(
        "name",
        str | None,
        ("--name",),
        "Name of the sweep [default: as --out, else of the trace and a hash]",
        metavar="NAME",
    ),
    _output(
        "keep_runs", bool, ("--keep-runs",), "Store each replay's run folder as well, in _runs [default: off]", False
    ),
    _metric_option(),
    options.format_option(),
    _quiet_option(),
]


@options.takes(*RUN_PARAMETERS)
def sweep_run(**given: Any) -> None:
    """Replay a trace under every combination of some settings, in parallel, into one parquet dataset.

    The same command again goes on where it was stopped, however that was: a point with a row is never replayed again.
    A point that fails is kept with its error, and the others go on.

    Exit codes: 0 all done; 1 some points failed; 3 all failed, or no request completed in any; 130 interrupted.
    """
    shown = options.chosen_format(given["format"])
    from mooncake_bench.cli.sweep_plan import folder_of, prepare
    from mooncake_bench.results.metrics import find

    for name in given["metric"] or ():
        find(name)
    _check_numbers(given)
    prepared = prepare(given)
    if given["workers"] != 1 and any(point.setup.cost == "live" for point in prepared.points):
        raise SetupError("cost live: kernels that are timed side by side disturb each other; give --workers 1")
    folder = folder_of(prepared, given, RESULTS)
    for notice in prepared.notices:
        tell(given, notice)
    tell(given, f"sweep folder: {folder}")
    sweep = _swept(prepared, folder, given)
    _answer(sweep, shown, given)
    _leave(sweep)


def _check_numbers(given: Mapping[str, Any]) -> None:
    """Raises SetupError for what is wrong beside the points."""
    from mooncake_bench.studies.sweep.points import parse_shard

    workers = given["workers"]
    if workers is not None and workers < 1:
        raise SetupError(f"--workers: expected at least 1, got {workers}")
    if workers is not None and given["ray"]:
        raise SetupError("--workers: no effect with --ray, which uses what the cluster has; drop one of the two")
    if given["shard"]:
        parse_shard(given["shard"])
    if not (given["vary"] or given["sweep"]):
        raise SetupError("nothing to vary: give --vary KEY=V1,V2,... or --sweep FILE; one setup is for replay")


def _swept(prepared: Prepared, folder: Path, given: Mapping[str, Any]) -> Sweep:
    """Do what is left to do."""
    from mooncake_bench.cli.sweep_progress import sweep_progress
    from mooncake_bench.studies.sweep.points import parse_shard
    from mooncake_bench.studies.sweep.sweeping import sweep
    from mooncake_bench.studies.sweep.work import Work

    shard = parse_shard(given["shard"]) if given["shard"] else None
    points = shard.of(prepared.points) if shard else prepared.points
    listed = [shard.number, shard.count] if shard else None
    manifest = {**prepared.manifest, "name": prepared.name, "shard": listed}
    keep = folder.absolute() if given["keep_runs"] else None
    work = Work(tuple(given["policy_dir"] or ()), prepared.sources, keep, prepared.name)
    kept = 0

    def begin(there: int, failed: int) -> None:
        if there:
            tell(given, f"{there} of {len(points)} points are there already{_again(failed)}")

    with terminable(), sweep_progress(given["quiet"]) as show, policies_print_to_stderr():

        def report(done: int, failed: int, total: int) -> None:
            nonlocal kept
            kept = done
            show(done, failed, total)

        with _told(lambda: f"{kept} of {len(points)} points are kept in {folder}; repeat the command to go on", given):
            return sweep(points, manifest, folder, _executor(work, given), retry_failed=given["retry_failed"],
                         begin=begin, report=report)  # fmt: skip


@contextmanager
def _told(text: Callable[[], str], given: Mapping[str, Any]) -> Iterator[None]:
    """Say on Ctrl-C, or SIGTERM, what is kept."""
    try:
        yield
    except KeyboardInterrupt:
        tell(given, text())
        raise


def _again(failed: int) -> str:
    return f", {failed} of them failed (--retry-failed replays these)" if failed else ""


def _executor(work: Any, given: Mapping[str, Any]) -> Executor:
    from mooncake_bench.studies.replays import workers
    from mooncake_bench.studies.sweep.executors import Here, Processes

    if given["ray"]:
        from mooncake_bench.studies.sweep.on_ray import connected

        return connected(work, given["ray"])
    count = given["workers"] or workers()
    return Here(work) if count == 1 else Processes(work, count)


def _answer(sweep: Sweep, shown: str, given: Mapping[str, Any]) -> None:
    from mooncake_bench.report import sweep_sheets

    metrics = given["metric"] or ()
    if shown == "json":
        answer(json_answer(sweep_sheets.as_json(sweep, metrics)))
    elif shown == "csv":
        answer(sweep_sheets.as_csv(sweep, metrics))
    else:
        answer(render_report(sweep_sheets.results(sweep, metrics), shown))


def _leave(sweep: Sweep) -> None:
    """The exit code of a sweep that has come to its end."""
    if len(sweep.mine) and not any(sweep.column("completed_requests")):
        raise NothingToConclude("no request completed at any point, so there is nothing to conclude")
    if len(sweep.failed):
        raise typer.Exit(SOME_FAILED)


@options.takes(
    argument("folder", Path, "The folder of a sweep", metavar="DIR"),
    options.format_option(*STATUS_FORMATS),
)
def sweep_status(**given: Any) -> None:
    """Say how far a sweep has come: points done, failed and why, and left.

    Exit codes: 0 all done; 1 some points failed and none is left; 3 points are left.
    """
    shown = options.chosen_format(given["format"], *STATUS_FORMATS)
    from mooncake_bench.report import sweep_sheets
    from mooncake_bench.results.sweep import open_sweep
    from mooncake_bench.studies.sweep.store import is_held

    sweep = open_sweep(given["folder"])
    running = is_held(sweep.path)
    if shown == "json":
        answer(json_answer({**sweep_sheets.progress_json(sweep), "running": running}))
    else:
        answer(render_report(sweep_sheets.status(sweep, running=running), shown))
    raise typer.Exit(SOME_LEFT if sweep.left else SOME_FAILED if len(sweep.failed) else 0)


@options.takes(
    argument("folders", list[Path], "Folders of one sweep, such as those of its shards", metavar="DIR..."),
    _output(
        "out",
        Path | None,
        ("-o", "--out"),
        "New folder of the whole dataset, which must be given [default: none]",
        metavar="DIR",
    ),
    _output("partial", bool, ("--partial",), "Merge what there is, though points are missing [default: off]", False),
    _metric_option(),
    options.format_option(),
    _quiet_option(),
)
def sweep_merge(**given: Any) -> None:
    """Put the shards of one sweep together in one dataset.

    A point that several folders hold counts once if they agree, and is refused if they do not.
    """
    shown = options.chosen_format(given["format"])
    if given["out"] is None:
        raise SetupError("no folder to merge into: give -o DIR")
    from mooncake_bench.results.metrics import find
    from mooncake_bench.studies.sweep.merge import merge

    for name in given["metric"] or ():
        find(name)
    sweep = merge(given["folders"], given["out"], partial=given["partial"])
    tell(given, f"sweep folder: {sweep.path}")
    _answer(sweep, shown, given)
    _leave(sweep)


EXAMPLES = (
    Example("sweep run conversation-like --vary speedup=1,2 --max-requests 500", "two replays, one table"),
    Example(
        "sweep run conversation-like -p random -p predictive --vary seed=0..2 --max-requests 300 -o seeds",
        "two policies with three seeds each, the dataset in the folder seeds",
    ),
    Example("sweep status seeds", "how far that is"),
)
RUN_EXAMPLES = (
    EXAMPLES[0],
    Example(
        "sweep run conversation-like --vary kvcache-centric.threshold=2,4 --vary cluster=6P+10D,8P+8D "
        "--max-requests 300",
        "a policy's parameter at two clusters",
    ),
    Example(
        "sweep run conversation-like --vary seed=0..3 -p random --max-requests 300 --shard 1/2 -o half-1",
        "every second of four replays; --shard 2/2 elsewhere, then sweep merge",
    ),
)
STATUS_EXAMPLES = (
    Example("sweep run conversation-like --vary speedup=1,2 --max-requests 200 -o two", "a sweep"),
    Example("sweep status two", "how far it has come"),
    Example("sweep status two --format json", "the same, for a program"),
)
MERGE_EXAMPLES = (
    Example("sweep run conversation-like --vary speedup=1,2 --max-requests 200 --shard 1/2 -o a", "one half"),
    Example("sweep run conversation-like --vary speedup=1,2 --max-requests 200 --shard 2/2 -o b", "the other"),
    Example("sweep merge a b -o both", "the whole"),
)
COMMANDS: Commands = (
    ("run", sweep_run, RUN_EXAMPLES),
    ("status", sweep_status, STATUS_EXAMPLES),
    ("merge", sweep_merge, MERGE_EXAMPLES),
)
