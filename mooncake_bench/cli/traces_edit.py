"""``traces convert``, ``check`` and ``head``; the commands of the two modules beside it are listed here, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mooncake_bench.cli import options, traces_change, traces_hash
from mooncake_bench.cli.listing import aligned, render_list
from mooncake_bench.cli.options import Example
from mooncake_bench.cli.output import answer, json_answer
from mooncake_bench.cli.reading import read_given, reading_options, trace_argument
from mooncake_bench.cli.trace_out import (
    CHANGES,
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

if TYPE_CHECKING:
    from mooncake_bench.cli.options import Commands

CHECK_FORMATS = ("table", "json")
MOST_IDS = 6  # of a row that a table shows in full


@options.takes(
    trace_argument(),
    out_argument(),
    *reading_options(),
    options.option(
        "reblock",
        int | None,
        ("--reblock",),
        "Join blocks to larger ones, a multiple of the trace's block size [tokens; default: as they are]",
        panel=CHANGES,
        metavar="TOKENS",
        min=1,
    ),
    *arrival_options(),
    seed_option("--jitter and --spread-ticks"),
    *writing_options(),
)
def convert(**given: Any) -> None:
    """Write a trace as another kind of file; an existing file is left alone unless --force says otherwise.

    Arrow and parquet hold all of a trace. For CSV and JSON lines (the form of the Mooncake traces), what such a file
    cannot hold is said.
    """
    options.chosen_format(given["format"], *CHECK_FORMATS)
    seed = seed_given(given, changes_arrivals(given), "--jitter or --spread-ticks")
    checked_out(given)
    source = read_given(given)
    trace = with_arrivals_changed(source, given, seed)
    if given["reblock"] is not None:
        from mooncake_bench.trace.transform import reblock

        trace = reblock(trace, given["reblock"])
    write_given(trace, given, source.notices)


@options.takes(trace_argument(), *reading_options(), options.format_option(*CHECK_FORMATS))
def check(**given: Any) -> None:
    """Say whether a trace can be read as it stands: OK and what it is, or the first thing that is wrong (exit 2)."""
    shown = options.chosen_format(given["format"], *CHECK_FORMATS)
    from mooncake_bench.trace import export

    trace = read_given(given)
    facts = {"ok": True, "trace": given["trace"], "name": trace.name, **export.facts(trace)}
    if shown == "json":
        answer(json_answer(facts | {"notices": list(trace.notices)}))
        return
    del facts["ok"]
    notices = len(trace.notices)
    facts["notices"] = f"{notices}, on stderr" if notices else "none"
    rows = [[f"  {key.replace('_', ' ')}", _shown(value)] for key, value in facts.items() if value is not None]
    answer(aligned(["OK", ""], rows, width=10**6))


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.15g}" if isinstance(value, float) else str(value)


@options.takes(
    trace_argument(),
    options.option("n", int, ("-n",), "How many requests to show [default: 5]", 5, metavar="N", min=1),
    *reading_options(),
    options.format_option(),
)
def head(**given: Any) -> None:
    """Show the first requests of a trace; in a table, block ids in the middle of a row are left out."""
    shown = options.chosen_format(given["format"])
    from mooncake_bench.trace import export

    trace = read_given(given)
    items = export.first_rows(trace, given["n"])
    if shown == "csv":  # plain numbers, ids as in the files that `convert` writes
        items = [{key: _cell(value) for key, value in item.items()} for item in items]
    elif shown != "json":
        items = [item | {"block_ids": _shortened(item["block_ids"])} for item in items]
    answer(render_list(f"First requests of {trace.name}", items, shown))


def _cell(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)


def _shortened(ids: list[int]) -> str:
    """The outer ones of many block ids, and how many there are."""
    return _cell(ids) if len(ids) <= MOST_IDS else f"{_cell(ids[:3])} … {ids[-1]} ({len(ids)})"


COMMANDS: Commands = (
    (
        "convert",
        convert,
        (
            Example("traces convert conversation-like mine.jsonl", "as Mooncake JSON lines, which most tools read"),
            Example("traces convert toolagent-like mine.parquet --reblock 1024", "in blocks of twice the size"),
            Example("traces convert conversation-like - --to csv --jitter 1ms", "to stdout, arrivals moved a little"),
        ),
    ),
    (
        "check",
        check,
        (
            Example("traces check conversation-like", "OK, and what it is"),
            Example("traces check toolagent-like --format json", "the same, for a program"),
            Example("traces check toolagent-like --block-size 512", "insist on a block size"),
        ),
    ),
    (
        "head",
        head,
        (
            Example("traces head conversation-like", "the first five requests"),
            Example("traces head toolagent-like -n 2 --format json", "two, with all block ids"),
            Example("traces head toolagent-like -n 20 --format csv", "twenty, as comma-separated values"),
        ),
    ),
    *traces_change.COMMANDS,
    *traces_hash.COMMANDS,
)
