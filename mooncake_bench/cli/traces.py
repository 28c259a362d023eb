"""``traces list`` and ``traces info``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mooncake_bench.cli import options
from mooncake_bench.cli.listing import facts_csv, render_list, render_report
from mooncake_bench.cli.options import Example, option
from mooncake_bench.cli.output import answer, json_answer, note
from mooncake_bench.cli.reading import read_given, reading_options, trace_argument

if TYPE_CHECKING:
    from mooncake_bench.cli.options import Commands
    from mooncake_bench.trace import Trace

HELP = "Look into traces, check, change, make, share and fetch them."
EXAMPLES = (
    Example("traces list", "the traces that ship with the package"),
    Example("traces info conversation-like", "requests, lengths, arrivals and prefix sharing of one"),
    Example("traces info toolagent-like --format json", "the same, for a program"),
)


@options.takes(options.format_option())
def list_traces(**given: Any) -> None:
    """List the traces that ship with the package; each name can be given wherever a TRACE is asked for."""
    shown = options.chosen_format(given["format"])
    from mooncake_bench.trace import bundled_names, load

    traces = [load(name) for name in bundled_names()]
    items = [
        {
            "name": trace.name,
            "requests": len(trace),
            "span_s": round(trace.span_ms / 1000),
            "block_tokens": trace.block_tokens,
            "about": trace.metadata.get("about", ""),
        }
        for trace in traces
    ]
    answer(render_list("Bundled traces", items, shown))


@options.takes(
    trace_argument(),
    *reading_options(),
    options.format_option(),
    option(
        "plot",
        Path | None,
        ("--plot",),
        "Also draw it: arrivals, lengths, reuse, working set; the ending chooses png, svg or pdf [default: no picture]",
        panel="Output",
        metavar="FILE",
    ),
    option("force", bool, ("--force",), "Let --plot replace an existing file [default: off]", False, panel="Output"),
)
def info(**given: Any) -> None:
    """Say what is in a trace: requests, lengths, arrivals, and what any prefix cache could get out of it."""
    shown = options.chosen_format(given["format"])
    _check_plot(given)
    from mooncake_bench.trace import info as facts_of

    trace = read_given(given)
    facts = facts_of(trace)
    facts.pop("notices")
    answer(_rendered(facts, shown))
    if given["plot"] is not None:
        _draw(trace, given)


def _rendered(facts: dict[str, Any], shown: str) -> str:
    if shown == "json":
        return json_answer(facts)
    if shown == "csv":
        return facts_csv(facts)
    from mooncake_bench.report.trace_sheets import trace_report

    return render_report(trace_report(facts), shown)


def _check_plot(given: dict[str, Any]) -> None:
    """Refuse a picture that could not be written before any work is done."""
    if given["plot"] is not None:
        from mooncake_bench.report.plots import check_target

        check_target(given["plot"], force=given["force"])
    elif given["force"]:
        from mooncake_bench.errors import SetupError

        raise SetupError("--force: no effect without --plot; drop it")


def _draw(trace: Trace, given: dict[str, Any]) -> None:
    from mooncake_bench.report.trace_plot import draw

    note(f"picture: {draw(trace, given['plot'], force=given['force'])}")


COMMANDS: Commands = (
    (
        "list",
        list_traces,
        (
            EXAMPLES[0],
            Example("traces list --format json", "the same, for a program"),
            Example("traces list --format markdown", "the same, for a document"),
        ),
    ),
    (
        "info",
        info,
        (
            EXAMPLES[1],
            EXAMPLES[2],
            Example("traces info conversation-like --plot conversation.png", "with a picture; needs the extra 'plots'"),
        ),
    ),
)
