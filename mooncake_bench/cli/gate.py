"""``gate``: whether new numbers are as good as a baseline's, for a person and for CI."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import typer

from mooncake_bench.cli import options
from mooncake_bench.cli.options import Example, argument, option
from mooncake_bench.cli.output import answer, policies_print_to_stderr
from mooncake_bench.errors import SetupError

if TYPE_CHECKING:
    from mooncake_bench.cli.options import Commands

EXAMPLES = (
    Example(
        "gate 1 2 --fail-if p99_ttft_ms:+2% --fail-if 'rejected_ratio>0.5'",
        "fail where run 2 is worse than run 1, or turns away too much",
    ),
    Example("gate --write-baseline baseline.json 1", "what to compare with, to be committed"),
    Example(
        "gate baseline.json 2 --fail-if mean_ttft_ms:2% --junit gate.xml", "the same in CI, with a file for its pages"
    ),
)

_files = partial(option, panel="Files for CI")
_how = partial(option, panel="How it is judged")

PARAMETERS = [
    argument(
        "base", str, "A run (folder, number, --name, @last), or a file: baseline.json, or one of pytest-benchmark"
    ),
    argument(
        "new",
        list[str] | None,
        "Runs of the same policies, or a file of pytest-benchmark; with --write-baseline or --suggest, more runs",
        None,
    ),
    _how(
        "fail_if",
        list[str] | None,
        ("--fail-if",),
        "METRIC:CHANGE against BASE (p99_ttft_ms:+2% grew by more than 2 %, completed_ratio:-1% fell, "
        "mean_ttft_ms:50ms got worse by more than 50 ms, computed_tokens:+-0% moved at all), or a bound on NEW "
        "('rejected_ratio>0.05'); repeatable, all are judged [default: none]",
        metavar="RULE",
    ),
    _how("only", list[str] | None, ("--only",), "Judge this policy; repeatable [default: all]", metavar="LABEL"),
    _how(
        "missing_baseline",
        str | None,
        ("--missing-baseline",),
        "Where BASE, or a policy in it, is not there: pass or fail [default: exit 3, nothing to conclude]",
        metavar="pass|fail",
    ),
    _how(
        "jitter",
        int | None,
        ("--jitter",),
        "Replay both sides N times more with arrivals jittered by 1 ms, the same for both, and judge medians "
        "[replays; default: the runs as they are; 8 with --suggest]",
        metavar="N",
    ),
    _how(
        "force",
        bool,
        ("--force",),
        "Judge runs of different work; replace the file of --write-baseline [default: off]",
        False,
    ),
    option(
        "write_baseline",
        Path | None,
        ("--write-baseline",),
        "Write the runs named to this file instead, for later gates; with --fail-if only these metrics, with --jitter "
        "also their values then [default: none]",
        metavar="FILE",
    ),
    option(
        "suggest",
        bool,
        ("--suggest",),
        "Judge nothing: show how far the metrics of the runs named move by jitter, and rules to paste [default: off]",
        False,
    ),
    options.policy_dir_option(),
    _files("junit", Path | None, ("--junit",), "Write JUnit XML, replacing the file [default: none]", metavar="FILE"),
    _files(
        "summary",
        Path | None,
        ("--summary",),
        "Append the answer as Markdown, as to $GITHUB_STEP_SUMMARY [default: none]",
        metavar="FILE",
    ),
    _files(
        "annotations",
        bool,
        ("--annotations",),
        "Print GitHub's ::error lines on stderr [default: off]",
        False,
    ),
    _files(
        "github_benchmark",
        Path | None,
        ("--github-benchmark",),
        "Write the judged metrics of NEW as smaller-is-better.json and bigger-is-better.json for "
        "github-action-benchmark into this folder [default: none]",
        metavar="DIR",
    ),
    options.out_option("Folder in which numbers, names and @last are looked up"),
    options.format_option(),
]
FOR_JUDGING = ("only", "missing_baseline", "junit", "summary", "annotations", "github_benchmark")


@options.takes(*PARAMETERS)
def gate(**given: Any) -> None:
    """Fail when new results are worse than a baseline's.

    Exit code 0: every rule holds. 1: a rule is broken. 2: wrong use, or runs of different work. 3: nothing to conclude
    (no baseline, or noise). All broken rules are told, and a number that is missing or undefined breaks its rule.
    """
    given["runs"] = [given["base"], *(given["new"] or ())]
    _refuse_idle(given)
    shown = options.chosen_format(given["format"])
    if given["write_baseline"]:
        _write_baseline(given)
    elif given["suggest"]:
        _suggest(given, shown)
    else:
        _judge(given, shown)


def _refuse_idle(given: dict[str, Any]) -> None:
    """An option without effect is an error, and so is a gate that cannot fail."""
    flags = {name: f"--{name.replace('_', '-')}" for name in (*FOR_JUDGING, "force", "fail_if", "suggest", "format")}
    other = "--write-baseline" if given["write_baseline"] else "--suggest" if given["suggest"] else ""
    idle = list(FOR_JUDGING) if other else []
    idle += ["suggest", "format"] if given["write_baseline"] else ["force", "fail_if"] if other else []
    for name in idle:
        if given[name]:
            raise SetupError(f"{flags[name]}: no effect with {other}; drop one of the two")
    if given["missing_baseline"] not in (None, "pass", "fail"):
        raise SetupError(f"--missing-baseline: expected pass or fail, got {given['missing_baseline']!r}")
    if given["jitter"] is not None and not 1 <= given["jitter"] <= 1000:
        raise SetupError(f"--jitter: expected 1 to 1000 replays, got {given['jitter']}")
    if given["policy_dir"] and not given["jitter"] and not given["suggest"]:
        raise SetupError("--policy-dir: no effect without --jitter, for nothing is replayed; drop it")
    if not other:
        _check_judging(given)


def _check_judging(given: dict[str, Any]) -> None:
    from mooncake_bench.results.gate.rules import FORMS

    if len(given["runs"]) < 2:
        raise SetupError(f"gate: expected BASE and NEW, got only {given['base']!r}")
    if not given["fail_if"]:
        raise SetupError(f"gate: no rule, so it could never fail; add --fail-if {FORMS}; --suggest finds some")


def _judge(given: dict[str, Any], shown: str) -> None:
    from mooncake_bench.cli.gate_files import check_files, write_files
    from mooncake_bench.cli.gate_inputs import outcome_of
    from mooncake_bench.cli.gate_shown import shown_outcome

    check_files(given)
    began, start_s = datetime.now(UTC), perf_counter()
    with policies_print_to_stderr():
        outcome, runs = outcome_of(given)
    outcome = replace(outcome, when=began.isoformat(timespec="seconds"), took_s=perf_counter() - start_s)
    answer(shown_outcome(outcome, shown))
    write_files(given, outcome, runs)
    raise typer.Exit(outcome.exit_code)


def _write_baseline(given: dict[str, Any]) -> None:
    from mooncake_bench.cli.gate_inputs import jittered, rules_of_runs, stored_sides
    from mooncake_bench.outfile import check_target
    from mooncake_bench.results.gate.baseline import write
    from mooncake_bench.results.gate.sides import COMPLETED
    from mooncake_bench.results.metrics import BY_NAME

    path, force = given["write_baseline"], given["force"]
    check_target(path, force=force, label=f"--write-baseline {path}", error=SetupError)
    rules, _ = rules_of_runs(given)
    sides = stored_sides(given["runs"], given)
    sides = jittered(sides, given) if given["jitter"] else sides
    metrics = {rule.metric.name for rule in rules} | {COMPLETED} if rules else set(BY_NAME)
    write(path, sides, metrics, force=force)
    answer(f"baseline of {', '.join(side.label for side in sides)}: {path}")


def _suggest(given: dict[str, Any], shown: str) -> None:
    from mooncake_bench.cli.gate_inputs import jittered, stored_sides
    from mooncake_bench.cli.gate_shown import shown_spreads
    from mooncake_bench.results.gate.spread import spreads, suggested

    given["jitter"] = given["jitter"] or 8
    found = {side.label: spreads(side) for side in jittered(stored_sides(given["runs"], given), given)}
    answer(shown_spreads(found, suggested(list(found.values())), given["jitter"], shown))


COMMANDS: Commands = (("gate", gate, EXAMPLES),)
