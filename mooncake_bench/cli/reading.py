"""How a trace is read: the options of every command that takes a TRACE, and the reading itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mooncake_bench.cli.options import argument, option
from mooncake_bench.cli.output import note

if TYPE_CHECKING:
    import inspect

    from mooncake_bench.trace import Trace

PANEL = "Reading the trace"


def trace_argument() -> inspect.Parameter:
    """TRACE: a file or a bundled name."""
    return argument("trace", str, "Trace file, or the name of a bundled trace")


def reading_options() -> list[inspect.Parameter]:
    """What may be said of a trace file's contents."""
    return [
        option(
            "block_tokens",
            str | None,
            ("--block-size",),
            "Block size of the trace [tokens; default: the format's own]",
            panel=PANEL,
            metavar="TOKENS",
        ),
        option(
            "timestamp_unit",
            str | None,
            ("--timestamp-unit",),
            "Unit of the trace's timestamps [default: auto]",
            panel=PANEL,
            metavar="auto|s|ms|us|ns",
        ),
        option(
            "columns",
            str | None,
            ("--column",),
            "Columns of a plain CSV, JSON lines or parquet trace, such as arrival=ts,input=prompt_len,output=gen_len; "
            "further keys: blocks, session, priority, id, delay [default: arrival_ms,input_tokens,output_tokens, and "
            "block_ids,session_id,priority,request_id,delay_ms where they are there]",
            panel=PANEL,
            metavar="NAME=COLUMN,...",
        ),
        option(
            "failures",
            str | None,
            ("--failures",),
            "Requests that failed where the trace was taken (BurstGPT) [default: exclude]",
            panel=PANEL,
            metavar="exclude|error",
        ),
    ]


def read_given(given: dict[str, Any], name: str | None = None) -> Trace:
    """The trace that a command line names, read as its options say; its notices go to stderr.

    ``name`` is the trace's path or name where it is not ``given["trace"]``.
    """
    from mooncake_bench.sim.setup import READING, Setup
    from mooncake_bench.trace import load

    chosen = Setup(**{key: given[key] for key in READING if given.get(key) is not None})
    trace = load(given["trace"] if name is None else name, **chosen.reading)
    for notice in () if given.get("quiet") else trace.notices:
        note(notice)
    return trace
