"""``traces slice``, ``merge`` and ``scale``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mooncake_bench.cli import options
from mooncake_bench.cli.options import Example
from mooncake_bench.cli.reading import read_given, reading_options, trace_argument
from mooncake_bench.cli.trace_out import (
    FORMATS,
    arrival_options,
    changes_arrivals,
    checked_out,
    out_argument,
    seed_given,
    seed_option,
    with_arrivals_changed,
    write_given,
    writing_options,
)
from mooncake_bench.errors import SetupError, nearest

if TYPE_CHECKING:
    import inspect

    from mooncake_bench.cli.options import Commands

WAYS = ("time", "copies", "sessions")
_TIME = "; bare number: ms, or 30s, 10min"


def _time_option(name: str, flag: str, text: str, default: str) -> inspect.Parameter:
    return options.option(name, str | None, (flag,), f"{text}{_TIME} [ms; default: {default}]", metavar="TIME")


def _duration_ms(text: str | None, flag: str) -> float | None:
    from mooncake_bench.sim.parsing import parse_duration_ms

    return None if text is None else parse_duration_ms(text, flag)


@options.takes(
    trace_argument(),
    out_argument(),
    _time_option("start_ms", "--start", "Leave out what arrives earlier", "0"),
    _time_option("end_ms", "--end", "Leave out what arrives at that time or later", "the end"),
    options.option(
        "every", int, ("--every",), "Of those, every K-th request [default: 1, all of them]", 1, metavar="K", min=1
    ),
    options.option(
        "max_requests", int | None, ("--max-requests",), "Of those, at most N [default: all]", metavar="N", min=1
    ),
    *reading_options(),
    *writing_options(),
)
def cut(**given: Any) -> None:
    """Write a part of a trace: a stretch of time, every K-th request of it, at most N of those."""
    options.chosen_format(given["format"], *FORMATS)
    start_ms, end_ms = _duration_ms(given["start_ms"], "--start"), _duration_ms(given["end_ms"], "--end")
    checked_out(given)
    from mooncake_bench.trace.transform import part

    trace = read_given(given)
    write_given(part(trace, start_ms, end_ms, given["every"], given["max_requests"]), given, trace.notices)


@options.takes(
    options.argument("traces", list[str], "Trace files, or names of bundled traces; at least two", metavar="TRACE..."),
    out_argument(),
    options.option(
        "offsets",
        str | None,
        ("--offset",),
        "When each trace begins, with commas between; bare numbers: ms, or 30s, 10min [ms; default: all at 0]",
        metavar="TIME,TIME",
    ),
    options.option(
        "share_blocks",
        bool,
        ("--share-blocks",),
        "The traces' block ids mean the same blocks: keep them [default: off, ids are kept apart]",
        False,
    ),
    *reading_options(),
    *writing_options(),
)
def merge(**given: Any) -> None:
    """Interleave traces by arrival. Sessions stay apart, and so do blocks unless --share-blocks is given."""
    options.chosen_format(given["format"], *FORMATS)
    words = [] if given["offsets"] is None else given["offsets"].split(",")
    offsets = [_duration_ms(word, "--offset") or 0.0 for word in words]
    from mooncake_bench.trace import merging

    merging.check_offsets(len(given["traces"]), offsets)
    checked_out(given)
    traces = [read_given(given, name) for name in given["traces"]]
    told = [notice for trace in traces for notice in (*trace.notices, *merging.named_notices(trace))]
    write_given(merging.merge(traces, offsets or None, given["share_blocks"]), given, told)


@options.takes(
    trace_argument(),
    out_argument(),
    options.option(
        "by",
        str,
        ("--by",),
        "How load rises: time (the same requests, faster), copies (the whole trace several times at once) or sessions "
        "(more users or fewer, as fast as before) [default: none, it must be said]",
        ...,
        metavar="time|copies|sessions",
    ),
    options.option(
        "factor", float, ("--factor",), "How many times as much load [default: none, it must be said]", ..., metavar="X"
    ),
    options.option(
        "shared",
        str | None,
        ("--shared",),
        "What copies and new sessions share with the original: openings (system prompts and documents that many "
        "begin with), roots (only the first block) or none [default: openings]",
        metavar="openings|roots|none",
    ),
    options.option(
        "max_offset",
        str | None,
        ("--max-offset",),
        f"By copies: how much later a copy may begin{_TIME} [ms; default: the mean gap between arrivals; 0 on a "
        "coarse arrival grid]",
        metavar="TIME",
    ),
    *arrival_options(),
    seed_option("what is random: which sessions, when they begin, jitter"),
    *reading_options(),
    *writing_options(),
)
def scale(**given: Any) -> None:
    """Write a trace of more load, or less: faster, copied, or with more users.

    The three are not the same: faster users get turns in before the answer they wait for (see: traces info).
    """
    options.chosen_format(given["format"], *FORMATS)
    by, factor = given["by"], given["factor"]
    if by not in WAYS:
        raise SetupError(f"--by: expected one of {', '.join(WAYS)}, got {by!r}{nearest(by, WAYS)}")
    if by == "time" and given["shared"] is not None:
        raise SetupError("--shared: no effect by time, which makes no copies; leave it out")
    if by != "copies" and given["max_offset"] is not None:
        raise SetupError(f"--max-offset: no effect by {by}; leave it out")
    random = changes_arrivals(given) or by != "time"
    seed = seed_given(given, random, "--jitter or --spread-ticks")
    offset_ms = _duration_ms(given["max_offset"], "--max-offset")
    from mooncake_bench.trace import scaling

    scaling.check_factor(by, factor)
    if offset_ms is not None:
        scaling.check_max_offset(0.0, offset_ms)
    checked_out(given)
    trace, shared = read_given(given), given["shared"] or "openings"
    if by == "time":
        scaled = scaling.scale_time(trace, factor)
    elif by == "copies":
        scaled = scaling.scale_copies(trace, factor, seed, shared, offset_ms)
    else:
        scaled = scaling.scale_sessions(trace, factor, seed, shared)
    write_given(with_arrivals_changed(scaled, given, seed), given, trace.notices)


COMMANDS: Commands = (
    (
        "slice",
        cut,
        (
            Example("traces slice conversation-like hour.arrow --start 10min --end 20min", "ten minutes of it"),
            Example("traces slice conversation-like few.jsonl --max-requests 100", "the first hundred requests"),
            Example("traces slice toolagent-like thin.csv --every 10", "every tenth request"),
        ),
    ),
    (
        "merge",
        merge,
        (
            Example("traces merge conversation-like toolagent-like both.arrow", "two workloads at once"),
            Example(
                "traces merge conversation-like conversation-like day.arrow --offset 0,10min --share-blocks",
                "the same again after ten minutes, the same blocks",
            ),
            Example(
                "traces merge conversation-like toolagent-like both.jsonl --format json", "a summary for a program"
            ),
        ),
    ),
    (
        "scale",
        scale,
        (
            Example(
                "traces scale conversation-like fast.arrow --by time --factor 2", "the same requests, twice as fast"
            ),
            Example("traces scale conversation-like users.arrow --by sessions --factor 1.5", "half as many users more"),
            Example(
                "traces scale toolagent-like copies.arrow --by copies --factor 2 --shared none",
                "twice the trace, nothing shared between the copies",
            ),
        ),
    ),
)
