"""``traces list`` and ``traces info``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mooncake_bench.cli import options
from mooncake_bench.cli.options import Example, argument, option

if TYPE_CHECKING:
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


@options.takes(
    argument("trace", str, "Trace file, or the name of a bundled trace"),
    option(
        "block_tokens",
        int | None,
        ("--block-size",),
        "Block size of the trace [tokens; default: the format's own]",
        metavar="TOKENS",
    ),
    option(
        "timestamp_unit",
        str,
        ("--timestamp-unit",),
        "Unit of the timestamps: auto, s, ms, us or ns [default: auto]",
        "auto",
        metavar="UNIT",
    ),
    options.format_option(),
)
def info(**given: Any) -> None:
    """Say what is in a trace: requests, lengths, arrivals, and what any prefix cache could get out of it."""


COMMANDS: Commands = (
    ("list", list_traces, EXAMPLES[:1]),
    ("info", info, EXAMPLES[1:]),
)
