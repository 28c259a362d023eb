"""Where a made trace goes: the options of every command that writes one, and the writing itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mooncake_bench.cli.options import argument, format_option, option
from mooncake_bench.cli.output import answer, json_answer, note, silence
from mooncake_bench.errors import SetupError

if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable, Sequence

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
        option(
            "quiet",
            bool,
            ("-q", "--quiet"),
            "No notices on stderr, of what is read or what cannot be written [default: off]",
            False,
            panel="Output",
        ),
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


def changes_arrivals(given: dict[str, Any]) -> bool:
    """Whether a command line changes arrivals at random. Raises an error for a change that fits no trace."""
    from mooncake_bench.sim.parsing import parse_duration_ms
    from mooncake_bench.trace import transform

    if given["spread_ticks"] is not None:
        transform.check_spread(given["spread_ticks"])
    if given["jitter"] is not None:
        transform.check_jitter(parse_duration_ms(given["jitter"], "--jitter"))
    return given["jitter"] is not None or given["spread_ticks"] is not None


def with_arrivals_changed(trace: Trace, given: dict[str, Any], seed: int) -> Trace:
    """The trace after ``--spread-ticks``, then ``--jitter``."""
    from mooncake_bench.sim.parsing import parse_duration_ms
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
    elif sys.stdout is None:  # closed by whoever started us
        raise SetupError("the trace cannot be written: stdout is closed; redirect it to a file, or name one")
    elif given["format"] is not None or given["force"]:
        raise SetupError("--format and --force: no effect where the trace itself goes to stdout; leave them out")
    elif given["to"] not in (None, *export.TEXT_KINDS):
        raise SetupError(f"--to {given['to']}: cannot go to stdout; expected {' or '.join(export.TEXT_KINDS)}")


def write_given(trace: Trace, given: dict[str, Any], told: Sequence[str] = (), more: str = "") -> None:
    """Write the trace where the command line says, and sum up what it is; notices that are not ``told`` yet are.

    ``more`` is added to the line that sums it up.
    """
    from mooncake_bench.trace import export

    tell = _silent if given["quiet"] else note
    tell_news(trace, told, tell)
    if given["out"] == STDOUT:
        lost = _to_stdout(trace, given["to"] or "mooncake")
        tell(_line(export.facts(trace), "stdout", more))
    else:
        lost = export.write(trace, given["out"], given["to"], given["force"])
        facts = {"out": given["out"], **export.facts(trace), "bytes": Path(given["out"]).stat().st_size}
        shown = (
            json_answer(facts | {"left_out": lost}) if given["format"] == "json" else _line(facts, given["out"], more)
        )
        answer(shown)
    for line in lost:
        tell(line)


def _to_stdout(trace: Trace, kind: str) -> list[str]:
    """The trace as text on stdout. Raises SetupError where stdout cannot take it."""
    from mooncake_bench.trace import export

    try:
        lost = export.write_text(trace, sys.stdout.buffer, kind)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        silence(sys.stdout)
        raise SetupError(f"the trace cannot be written to stdout: {error.strerror or error}") from None
    return lost


def _silent(text: str) -> None:
    """Tells nobody: ``--quiet``."""


def tell_news(trace: Trace, told: Sequence[str], tell: Callable[[str], None] = note) -> None:
    """Tell those notices of a trace that are not ``told``; the one on a coarse grid once, whatever it counts."""
    from mooncake_bench.trace.grid import GRID_NOTICE

    spoke = any(GRID_NOTICE in notice for notice in told)
    for notice in trace.notices:
        if notice not in told and not (spoke and notice.startswith(GRID_NOTICE)):
            tell(notice)


def _line(facts: dict[str, Any], where: str, more: str) -> str:
    from mooncake_bench.results.words import counted

    done = "".join(f"; {part}" for part in (facts["transform"], more) if part)
    size = f", {facts['bytes']:,} bytes" if "bytes" in facts else ""
    return (
        f"{where}: {counted(facts['requests'], 'request')} in {facts['span_ms'] / 1000:,.1f} s, "
        f"{facts['input_tokens']:,} input and {facts['output_tokens']:,} output tokens, "
        f"blocks of {facts['block_tokens']}{size}{done}"
    )
