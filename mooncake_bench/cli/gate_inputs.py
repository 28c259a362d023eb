"""What a gate compares: runs, baselines and benchmark files as a command line names them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mooncake_bench.cli.output import note
from mooncake_bench.errors import MissingRun, NothingToConclude, SetupError
from mooncake_bench.results.gate import baseline, bench
from mooncake_bench.results.gate.judge import judge
from mooncake_bench.results.gate.outcome import Outcome
from mooncake_bench.results.gate.rules import Declared, doubts, parse_rules
from mooncake_bench.results.gate.sides import (
    Matched,
    check_comparable,
    dropped,
    match,
    pairs_of,
    remarks,
    sides_of,
    unchanged,
)
from mooncake_bench.results.metrics import ALIASES, BY_NAME
from mooncake_bench.results.run import open_runs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mooncake_bench.results.gate.judge import Check
    from mooncake_bench.results.gate.rules import Rule
    from mooncake_bench.results.gate.sides import Side
    from mooncake_bench.results.run import Run


def outcome_of(given: Mapping[str, Any]) -> tuple[Outcome, list[Run]]:
    """All checks, and the runs of NEW. Raises BenchError for what cannot be compared."""
    base, *new = given["runs"]
    files = [Path(name) for name in given["runs"]]
    if bench.is_benchmark(files[1]) or (bench.is_benchmark(files[0]) and files[1].suffix == ".json"):
        return _of_benchmarks(files, given), []
    file = next((name for name in new if Path(name).suffix == ".json" and not Path(name).is_dir()), None)
    if file is not None:
        raise SetupError(f"gate: NEW is {file!r}, a file; expected runs, or files of pytest-benchmark on both sides")
    rules, notices = rules_of_runs(given)
    runs = _opened(new, given)
    sides = sides_of(runs)
    found, missing = _base(base, given)
    matching = match(found, sides, given["only"] or ())
    rows = list(matching.rows)
    forced = check_comparable(rows, force=given["force"])
    if given["jitter"]:
        rows = _jittered_rows(rows, given)
    checks = judge(rules, pairs_of(rows, jittered=bool(given["jitter"])))
    same = [row.label for row in rows if unchanged(row)]
    told = [f"{', '.join(same)}: BASE and NEW are the same replay to the last bit"] if same else []
    notices += [*missing, *matching.notices, *forced, *remarks(rows), *dropped(rows, rules), *told]
    return _outcome(given, base, ", ".join(new), checks, notices), runs


def _outcome(
    given: Mapping[str, Any], base: str, new: str, checks: Sequence[Check], notices: Sequence[str], **more: Any
) -> Outcome:
    if not checks:
        raise NothingToConclude("there is nothing to judge: neither side holds anything")
    missing = given["missing_baseline"]
    return Outcome(tuple(checks), base, new, tuple(notices), missing, given["jitter"] or 0, **more)


# ---- runs and baselines


def known_of_runs() -> dict[str, Declared]:
    """Every metric, by name and alias."""
    known = {name: Declared(name, metric.unit, metric.better) for name, metric in BY_NAME.items()}
    return known | {alias: known[name] for alias, name in ALIASES.items()}


def rules_of_runs(given: Mapping[str, Any]) -> tuple[list[Rule], list[str]]:
    """The rules, and doubts about them."""
    rules = parse_rules(given["fail_if"] or (), known_of_runs())
    return rules, doubts(rules)


def stored_sides(references: Sequence[str], given: Mapping[str, Any]) -> list[Side]:
    """The sides of runs named on the command line."""
    return sides_of(_opened(references, given))


def _opened(references: Sequence[str], given: Mapping[str, Any]) -> list[Run]:
    """Runs by name. Raises SetupError for one that is meant twice: it is no second run."""
    runs = open_runs(references, *([given["out"]] if given["out"] else []))
    folders = [run.path.resolve() for run in runs if run.path]
    twice = next((folder for i, folder in enumerate(folders) if folder in folders[:i]), None)
    if twice is not None:
        raise SetupError(f"gate: run {twice.name} is named twice ({', '.join(references)}); name it once")
    return runs


def _base(reference: str, given: Mapping[str, Any]) -> tuple[list[Side], list[str]]:
    """The sides of BASE and what was accepted of it; none, and why, where it is not there."""
    try:
        if Path(reference).suffix == ".json" and not Path(reference).is_dir():
            return baseline.read(Path(reference), force=given["force"])
        return stored_sides([reference], given), []
    except MissingRun as error:
        return [], [_no_baseline(error, given)]


def _no_baseline(error: MissingRun, given: Mapping[str, Any]) -> str:
    told = "; with --missing-baseline pass nothing is compared until it is there: is the name right?"
    return f"no baseline: {error}{told if given['missing_baseline'] == 'pass' else ''}"


def jittered(sides: Sequence[Side], given: Mapping[str, Any]) -> list[Side]:
    """The sides with their jittered replays."""
    from mooncake_bench.studies.gate import with_jitter

    note(f"replaying each policy {given['jitter']} times with jittered arrivals, unless its baseline holds that")
    return with_jitter(sides, given["jitter"], given["policy_dir"] or ())


def _jittered_rows(rows: Sequence[Matched], given: Mapping[str, Any]) -> list[Matched]:
    """Both sides of every policy, replayed together."""
    sides = [side for row in rows for side in (row.base, row.new) if side is not None]
    done = iter(jittered(sides, given))
    return [Matched(row.label, row.base and next(done), row.new and next(done)) for row in rows]


# ---- pytest-benchmark


def _of_benchmarks(files: Sequence[Path], given: Mapping[str, Any]) -> Outcome:
    if len(files) > 2 or files[0].suffix != ".json":
        raise SetupError("gate: expected two files of pytest-benchmark, BASE and NEW, and nothing else")
    for name in ("jitter", "only", "github_benchmark"):
        if given[name]:
            raise SetupError(f"--{name.replace('_', '-')}: no effect on files of pytest-benchmark; drop it")
    rules = parse_rules(given["fail_if"], bench.STATISTICS)
    new, base, notices = bench.read(files[1]), None, doubts(rules)
    try:
        base = bench.read(files[0])
    except MissingRun as error:
        notices.append(_no_baseline(error, given))
    if base is not None:
        notices += bench.check_comparable(base, new, force=given["force"])
    checks = judge(rules, bench.pairs_of(base, new))
    return _outcome(given, str(files[0]), str(files[1]), checks, notices, subject="benchmark")
