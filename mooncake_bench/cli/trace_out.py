"""Where a made trace goes: the options of every command that writes one, and the writing itself."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mooncake_bench.cli.options import argument, format_option, option
from mooncake_bench.cli.output import answer, json_answer, note
from mooncake_bench.errors import SetupError

if TYPE_CHECKING:
    import inspect
    from collections.abc import Sequence

    from mooncake_bench.trace import Trace

PANEL = "Writing the trace"
CHANGES = "Changing arrivals"
STDOUT = "-"
FORMATS = ("table", "json")


def out_argument() -> inspect.Parameter:
    """OUT: the file of the new trace."""
    text = "File to write: .arrow, .parquet, .csv, .jsonl, .csv.gz or .jsonl.gz; - is stdout (JSON lines, or --to csv)"
    return argument("out", str, text)


def writing_options() -> list[inspect.Parameter]:
    """How the file is written, and how the summary is printed."""
    return [
        option(
            "to",
            str | None,
            ("--to",),
            "What to write [default: what OUT's ending says]",
            panel=PANEL,
            metavar="arrow|parquet|csv|mooncake",
        ),
        option("force", bool, ("--force",), "Overwrite an existing file [default: off]", False, panel=PANEL),
        format_option(*FORMATS),
    ]


def arrival_options() -> list[inspect.Parameter]:
    """Small changes of arrival times."""
    return [
        option(
            "jitter",
            str | None,
            ("--jitter",),
            "Move each arrival by up to so much, earlier or later; bare number: ms, or 1s, 250us [ms; default: none]",
            panel=CHANGES,
            metavar="TIME",
        ),
        option(
            "spread_ticks",
            str | None,
            ("--spread-ticks",),
            "Spread the requests of a coarse arrival grid inside their tick: uniform (evenly, each at a random place "
            "of its part) or poisson (independent) [default: not spread]",
            panel=CHANGES,
            metavar="uniform|poisson",
        ),
    ]


def seed_option(text: str) -> inspect.Parameter:
    """``--seed``: of what is random here."""
    return option("seed", int | None, ("--seed",), f"Seed of {text} [default: 0]", panel=CHANGES, metavar="N", min=0)


def seed_given(given: dict[str, Any], used: bool, needs: str) -> int:
    """The seed, 0 unless told. Raises SetupError for one that would have no effect."""
    if given["seed"] is not None and not used:
        raise SetupError(f"--seed: nothing is random here without {needs}; leave it out")
    return given["seed"] or 0


def with_arrivals_changed(trace: Trace, given: dict[str, Any], seed: int) -> Trace:
    """The trace after ``--spread-ticks``, then ``--jitter``."""
    from mooncake_bench.sim.setup import parse_duration_ms
    from mooncake_bench.trace import transform

    if given["spread_ticks"] is not None:
        trace = transform.spread_ticks(trace, given["spread_ticks"], seed)
    if given["jitter"] is not None:
        trace = transform.jitter(trace, parse_duration_ms(given["jitter"], "--jitter"), seed)
    return trace


def checked_out(given: dict[str, Any]) -> None:
    """Raises an error for an OUT that could not be written, before any work is done."""
    from mooncake_bench.trace import export

    if given["out"] != STDOUT:
        export.check_target(given["out"], given["to"], given["force"])
    elif given["format"] is not None or given["force"]:
        raise SetupError("--format and --force: no effect where the trace itself goes to stdout; leave them out")
    elif given["to"] not in (None, *export.TEXT_KINDS):
        raise SetupError(f"--to {given['to']}: cannot go to stdout; expected {' or '.join(export.TEXT_KINDS)}")


def write_given(trace: Trace, given: dict[str, Any], told: Sequence[str] = ()) -> None:
    """Write the trace where the command line says, and sum up what it is; notices that are not ``told`` yet are."""
    from mooncake_bench.trace import export

    for notice in trace.notices:
        if notice not in told:
            note(notice)

    if given["out"] == STDOUT:
        sink = sys.stdout.buffer if sys.stdout is not None else contextlib.nullcontext()
        lost = export.write_text(trace, sink, given["to"] or "mooncake")  # type: ignore[arg-type]
        sys.stdout.flush()
        note(_line(export.facts(trace), "stdout"))
    else:
        lost = export.write(trace, given["out"], given["to"], given["force"])
        facts = {"out": given["out"], **export.facts(trace), "bytes": Path(given["out"]).stat().st_size}
        shown = json_answer(facts | {"left_out": lost}) if given["format"] == "json" else _line(facts, given["out"])
        answer(shown)
    for line in lost:
        note(line)


def _line(facts: dict[str, Any], where: str) -> str:
    done = f"; {facts['transform']}" if facts["transform"] else ""
    size = f", {facts['bytes']:,} bytes" if "bytes" in facts else ""
    return (
        f"{where}: {facts['requests']:,} requests in {facts['span_ms'] / 1000:,.1f} s, {facts['input_tokens']:,} input "
        f"and {facts['output_tokens']:,} output tokens, blocks of {facts['block_tokens']}{size}{done}"
    )
