"""``cache``: what any cache could get out of a trace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mooncake_bench.cli import options
from mooncake_bench.cli.listing import render_report
from mooncake_bench.cli.options import Example, option
from mooncake_bench.cli.output import answer, json_answer, note, policies_print_to_stderr, tell
from mooncake_bench.cli.progress import progress_bar
from mooncake_bench.cli.reading import read_given, reading_options, trace_argument
from mooncake_bench.errors import SetupError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.cli.options import Commands
    from mooncake_bench.results.cache_analysis import Analysis, Definition, Model
    from mooncake_bench.sim.parsing import Size
    from mooncake_bench.studies.cache import Asked
    from mooncake_bench.trace import Trace

FORMATS = (*options.FORMATS, "parquet")
MODEL_PANEL = "The cache"

PARAMETERS = [
    trace_argument(),
    option(
        "policy",
        list[str] | None,
        ("-p", "--policy"),
        "Eviction SPEC as for replay; or all: every eviction; or an offline bound: belady, belady-bypass; repeatable. "
        "The exact optimum (opt) is always shown [default: lru]",
        panel="Policies",
        metavar="SPEC",
    ),
    options.policy_dir_option(),
    option(
        "capacity",
        list[str] | None,
        ("--capacity",),
        "Sizes with commas between; bare number: blocks, or 3Mtok, 1TB, 64GiB, inf [blocks; default: 1Mtok,3Mtok,5Mtok,"
        "10Mtok,50Mtok,inf]",
        panel=MODEL_PANEL,
        metavar="SIZES",
    ),
    option(
        "model",
        str | None,
        ("--model",),
        "Model whose KVCache sizes in bytes hold, a preset or a file.toml [default: llama-3-70b]",
        panel=MODEL_PANEL,
        metavar="NAME",
    ),
    option(
        "local",
        str | None,
        ("--local",),
        "That many pools of the capacity each instead of one, and how requests are assigned: N:round-robin, N:hashed "
        "or N:cache-aware [default: one pool]",
        panel=MODEL_PANEL,
        metavar="N:HOW",
    ),
    option(
        "touch_order",
        str | None,
        ("--touch-order",),
        "Order in which a prompt's blocks are touched: forward (head first) or reverse (tail first, as replay does) "
        "[default: forward]",
        panel=MODEL_PANEL,
        metavar="forward|reverse",
    ),
    option(
        "ready_after",
        str | None,
        ("--ready-after",),
        "How long after it was stored a block can be found; bare number: ms, or 1s [ms; default: 0]",
        panel=MODEL_PANEL,
        metavar="TIME",
    ),
    option(
        "warm_requests",
        str | None,
        ("--warm-requests",),
        "Requests that only warm the cache and are not counted: a number, or half [requests; default: 0]",
        panel=MODEL_PANEL,
        metavar="N|half",
    ),
    *reading_options(),
    option(
        "definition",
        list[str] | None,
        ("--definition",),
        "Hit ratios shown: blocks, tokens, full-blocks, per-block, or all; repeatable [default: blocks]",
        panel="Output",
        metavar="NAME",
    ),
    option(
        "why",
        bool,
        ("--why",),
        "Why blocks and requests miss at every capacity [default: blocks at the capacity nearest to 3 M tokens]",
        False,
        panel="Output",
    ),
    option(
        "plot",
        Path | None,
        ("--plot",),
        "Draw hit ratio against capacity into this .png, .svg or .pdf file [default: none]",
        panel="Output",
        metavar="FILE",
    ),
    options.format_option(*FORMATS),
    option(
        "out", Path | None, ("-o", "--out"), "File for --format parquet [default: none]", panel="Output", metavar="FILE"
    ),
    option("force", bool, ("--force",), "Overwrite existing files [default: off]", False, panel="Output"),
    option(
        "jobs",
        int | None,
        ("--jobs",),
        "Processes to use [processes; default: one a core]",
        panel="Output",
        metavar="N",
    ),
    option(
        "quiet",
        bool,
        ("-q", "--quiet"),
        "No progress, notices or paths on stderr [default: off]",
        False,
        panel="Output",
    ),
]


@options.takes(*PARAMETERS)
def cache(**given: Any) -> None:
    """Say what a prefix cache gets out of a trace.

    By eviction policy and capacity, and what no cache can beat.

    Requests are served at once in trace order, without a cluster. Beside each policy stand the exact offline optimum
    and an infinite cache; the answer also says why blocks miss.
    """
    shown = options.chosen_format(given["format"], *FORMATS)
    _refuse_idle(given, shown)
    definitions = _definitions(given["definition"])
    _check_files(given, shown)
    wanted = _wanted(given)
    trace = read_given(given)
    with policies_print_to_stderr():
        analysis = _analyse(trace, wanted, given)
    if given["plot"] is not None:
        _plot(trace, analysis, definitions[0], given)
    _print(analysis, definitions, shown, given)


def _refuse_idle(given: dict[str, Any], shown: str) -> None:
    if shown == "parquet" and given["out"] is None:
        raise SetupError("--format parquet: needs the file to write, such as -o cache.parquet")
    if shown != "parquet" and given["out"] is not None:
        raise SetupError("--out: no effect without --format parquet; other formats go to stdout")
    if shown in ("json", "csv", "parquet"):
        if given["why"]:
            raise SetupError(f"--why: no effect with --format {shown}, which holds every count; drop it")
        if given["definition"] and given["plot"] is None:
            raise SetupError(f"--definition: no effect with --format {shown}, which holds them all; drop it")
    if given["force"] and given["out"] is None and given["plot"] is None:
        raise SetupError("--force: no effect where no file is written; drop it")
    if given["jobs"] is not None and given["jobs"] < 1:
        raise SetupError(f"--jobs: must be at least 1, got {given['jobs']}")


def _check_files(given: dict[str, Any], shown: str) -> None:
    if shown == "parquet":
        from mooncake_bench.results.cache_store import check_file

        check_file(given["out"], force=given["force"])
    if given["plot"] is not None:
        from mooncake_bench.report.plots import check_target

        check_target(given["plot"], force=given["force"])


def _definitions(names: Sequence[str] | None) -> list[Definition]:
    from mooncake_bench.results.cache_analysis import DEFINITIONS, USUAL

    known = [*DEFINITIONS, "all"]
    for name in names or ():
        if name not in known:
            raise SetupError(f"--definition: expected one of {', '.join(known)}, got {name!r}{nearest(name, known)}")
    if names and "all" in names:
        return list(DEFINITIONS.values())
    return [DEFINITIONS[name] for name in dict.fromkeys(names or [USUAL])]


class Wanted(NamedTuple):
    """What the command line asks of a trace, whichever it is."""

    policies: dict[str, Asked]
    sizes: dict[str, Size | None]
    model: Model


def _wanted(given: dict[str, Any]) -> Wanted:
    """Everything that can be found wrong before the trace is read. Raises BenchError."""
    from mooncake_bench.cli.capacities import DEFAULT, read_local, read_sizes, read_touch_order, refuse_idle_model
    from mooncake_bench.results.cache_analysis import Model
    from mooncake_bench.sim.parsing import parse_duration_ms
    from mooncake_bench.studies.cache import eviction_specs

    sizes = read_sizes(given["capacity"] or DEFAULT)
    refuse_idle_model(sizes, given["model"])
    pools, assignment = read_local(given["local"])
    ready_after_ms = parse_duration_ms(given["ready_after"] or "0", "--ready-after")
    if ready_after_ms < 0:
        raise SetupError(f"--ready-after: must be at least 0, got {given['ready_after']!r}")
    model = Model(read_touch_order(given["touch_order"]), pools, assignment, ready_after_ms)
    with policies_print_to_stderr():
        policies = eviction_specs(given["policy"] or ["lru"], given["policy_dir"] or (), warn=note)
    return Wanted(policies, sizes, model)


def _analyse(trace: Trace, wanted: Wanted, given: dict[str, Any]) -> Analysis:
    from mooncake_bench.cli.capacities import in_blocks, read_warm
    from mooncake_bench.studies.cache import analyse

    capacities, notices = in_blocks(wanted.sizes, trace.block_tokens, given["model"])
    for notice in notices:
        tell(given, notice)
    model = replace(wanted.model, warm_requests=read_warm(given["warm_requests"], len(trace)))
    with progress_bar("cache", given["quiet"], "points") as bar:
        return analyse(
            trace,
            wanted.policies,
            capacities,
            model,
            policy_dirs=given["policy_dir"] or (),
            processes=given["jobs"],
            progress=lambda done, total: bar(done, total, 0.0),
        )


def _print(analysis: Analysis, definitions: Sequence[Definition], shown: str, given: dict[str, Any]) -> None:
    from mooncake_bench.results.cache_analysis import plain, rows
    from mooncake_bench.results.cache_notices import lopsided

    for notice in lopsided(analysis):
        tell(given, notice)
    if shown == "parquet":
        from mooncake_bench.results.cache_store import table_of, write_table

        tell(given, f"written: {write_table(table_of(analysis), given['out'], force=given['force'])}")
    elif shown == "json":
        answer(json_answer(plain(analysis)))
    elif shown == "csv":
        from mooncake_bench.report.cache_tables import as_csv

        answer(as_csv(rows(analysis)))
    else:
        from mooncake_bench.report.cache_tables import cache_report

        report = cache_report(analysis, definitions, why=given["why"])
        answer(render_report(report, shown))


def _plot(trace: Trace, analysis: Analysis, definition: Definition, given: dict[str, Any]) -> None:
    from mooncake_bench.report import cache_plot, plots
    from mooncake_bench.studies.cache import bound_line, lru_line, published_points

    curve = lru_line(trace, analysis.model) if cache_plot.LRU in analysis.labels else None
    published, source = published_points(trace, analysis.model)
    bound = bound_line(trace, analysis, published or ())
    with plots.style():
        figure = cache_plot.draw(analysis, definition, bound, curve, published, source)
        tell(given, f"written: {plots.save(figure, given['plot'], force=given['force'])}")


EXAMPLES = (
    Example("cache conversation-like --capacity 1000,3Mtok,inf", "LRU, the bound, and why blocks miss"),
    Example("cache toolagent-like -p lru -p lfu -p fifo --capacity 3Mtok --definition tokens", "by tokens"),
    Example(
        "cache conversation-like --local 8:hashed --capacity 3Mtok --format json", "eight local pools, for a program"
    ),
)
COMMANDS: Commands = (("cache", cache, EXAMPLES),)
