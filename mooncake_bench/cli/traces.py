"""``traces list`` and ``traces info``."""

from __future__ import annotations

import csv
import io
import shutil
from typing import TYPE_CHECKING, Any

from mooncake_bench.cli import options
from mooncake_bench.cli.listing import aligned, render_list
from mooncake_bench.cli.options import Example
from mooncake_bench.cli.output import answer, json_answer
from mooncake_bench.cli.reading import read_given, reading_options, trace_argument

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mooncake_bench.cli.options import Commands

HELP = "Bundled traces, and what is in a trace file."
EXAMPLES = (
    Example("traces list", "the traces that ship with the package"),
    Example("traces info conversation-like", "requests, lengths, arrivals and prefix sharing of one"),
    Example("traces info toolagent-like --format json", "the same, for a program"),
)
DISTRIBUTION = ("count", "mean", "min", "p50", "p90", "p99", "max")  # what a table shows of one


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


@options.takes(trace_argument(), *reading_options(), options.format_option())
def info(**given: Any) -> None:
    """Say what is in a trace: requests, lengths, arrivals, and what any prefix cache could get out of it."""
    shown = options.chosen_format(given["format"])
    from mooncake_bench.trace import info as facts_of

    trace = read_given(given)
    facts = facts_of(trace)
    facts.pop("notices")
    if shown == "json":
        answer(json_answer(facts))
    elif shown == "table":
        answer("\n\n".join(_sections(facts)))
    elif shown == "csv":
        answer(_csv(facts))
    else:
        items = [{"fact": fact, "value": value} for fact, value in _lines(facts)]
        answer(render_list(f"Trace {trace.name}", items, shown))


def _csv(facts: dict[str, Any]) -> str:
    """One plain number or text a line, under a dotted key; what is not defined is empty."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([("key", "value"), *_flat(facts)])
    return out.getvalue()


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _flat(inner, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


def _sections(facts: dict[str, Any]) -> Iterator[str]:
    """The facts on top, then each group of facts under its own heading."""
    width = shutil.get_terminal_size().columns
    groups = {key: value for key, value in facts.items() if isinstance(value, dict) and "count" not in value}
    top = {key: value for key, value in facts.items() if key not in groups}
    for heading, group in {"trace": top, **groups}.items():
        rows = [[f"  {fact}", value] for fact, value in _lines(group)]
        yield aligned([heading.replace("_", " "), ""], rows, width)


def _lines(facts: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested facts as name and value; a distribution is one line, lists of numbers are left to ``--format json``."""
    for key, value in facts.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and "count" in value:
            yield name, ", ".join(f"{word} {_number(value[word])}" for word in DISTRIBUTION if word in value)
        elif isinstance(value, dict):
            yield from _lines(value, f"{name}.")
        elif not isinstance(value, list):
            yield name, _number(value)


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "not defined" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


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
    ("info", info, (*EXAMPLES[1:], Example("traces info conversation-like --format csv", "as comma-separated values"))),
)
