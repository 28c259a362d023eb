"""Files that a gate leaves for CI systems: looked at before anything is replayed, written after the answer."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from mooncake_bench.cli.output import note
from mooncake_bench.errors import ResultError, SetupError
from mooncake_bench.outfile import check_target, writing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mooncake_bench.results.gate.outcome import Outcome
    from mooncake_bench.results.run import Run

BENCHMARK_FILES = {"lower": "smaller-is-better.json", "higher": "bigger-is-better.json"}


def check_files(given: Mapping[str, Any]) -> None:
    """Raises SetupError for a file that could not be written."""
    for name in ("junit", "summary"):
        if given[name]:
            check_target(given[name], force=True, label=f"--{name} {given[name]}", error=SetupError)
    folder = given["github_benchmark"]
    if folder and not folder.is_dir():
        raise SetupError(f"--github-benchmark {folder}: there is no such folder; make it first")


def write_files(given: Mapping[str, Any], outcome: Outcome, runs: Sequence[Run]) -> None:
    """Everything that was asked for. Raises SetupError where it cannot be written."""
    if given["junit"]:
        from mooncake_bench.report.junit import junit

        _write(given["junit"], junit(outcome), f"--junit {given['junit']}")
    if given["summary"]:
        _append_summary(given["summary"], outcome)
    if given["github_benchmark"]:
        _write_benchmarks(given, outcome, runs)
    if given["annotations"]:
        from mooncake_bench.report.annotations import workflow_commands

        lines = workflow_commands(outcome)
        if lines:
            note(lines)


def _write(path: Path, text: str, label: str) -> None:
    with writing(path, force=True, label=label, error=SetupError) as partial:
        partial.write_text(text, encoding="utf-8")


def _append_summary(path: Path, outcome: Outcome) -> None:
    from mooncake_bench.report.gate_sheets import report
    from mooncake_bench.report.markup import markdown

    length = path.stat().st_size if path.exists() else None
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"## mooncake-bench gate\n\n{markdown(report(outcome))}\n")
    except OSError as error:
        with contextlib.suppress(OSError):
            _restore(path, length)
        raise SetupError(f"--summary {path}: cannot be written: {error.strerror}") from None


def _restore(path: Path, length: int | None) -> None:
    """Leave a file as long as it was; None: it was not there."""
    if length is None:
        path.unlink()
    else:
        os.truncate(path, length)


def _write_benchmarks(given: Mapping[str, Any], outcome: Outcome, runs: Sequence[Run]) -> None:
    """A file a direction, where there is a number for it: the action takes no empty file."""
    from mooncake_bench.results.exporters._custom import entries

    metrics = {check.rule.metric.name for check in outcome.checks}
    for better, name in BENCHMARK_FILES.items():
        path = given["github_benchmark"] / name
        try:
            content = entries(runs, better, metrics)
        except ResultError as error:
            note(f"{path} is not written: {error}")
        else:
            _write(path, content, f"--github-benchmark {path}")
