"""``traces list`` and ``traces info``."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from mooncake_bench.cli import options
from mooncake_bench.cli.listing import render_list
from mooncake_bench.cli.options import Example, argument, option
from mooncake_bench.cli.output import answer, note

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mooncake_bench.cli.options import Commands

HELP = "Bundled traces, and what is in a trace file."
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
            "what": trace.metadata.get("description", ""),
        }
        for trace in traces
    ]
    answer(render_list("Bundled traces", items, shown))


@options.takes(
    argument("trace", str, "Trace file, or the name of a bundled trace"),
    option(
        "block_tokens",
        str | None,
        ("--block-size",),
        "Block size of the trace [tokens; default: the format's own]",
        metavar="TOKENS",
    ),
    option(
        "timestamp_unit",
        str | None,
        ("--timestamp-unit",),
        "Unit of the trace's timestamps [default: auto]",
        metavar="auto|s|ms|us|ns",
    ),
    options.format_option(),
)
def info(**given: Any) -> None:
    """Say what is in a trace: requests, lengths, arrivals, and what any prefix cache could get out of it."""
    shown = options.chosen_format(given["format"])
    from mooncake_bench.sim.setup import Setup, flatten
    from mooncake_bench.trace import info as facts_of
    from mooncake_bench.trace import load

    chosen = Setup(**{name: given[name] for name in ("block_tokens", "timestamp_unit") if given[name] is not None})
    trace = load(given["trace"], chosen.block_tokens, chosen.timestamp_unit)
    for notice in trace.notices:
        note(notice)
    facts = facts_of(trace)
    if shown == "json":
        answer(json.dumps(facts, indent=2, ensure_ascii=False, allow_nan=False))
        return
    items = [{"fact": key, "value": _worded(value)} for key, value in flatten(facts).items() if key != "notices"]
    answer(render_list(f"Trace {trace.name}", items, shown))
