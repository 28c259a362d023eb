"""What an archive holds, and what came of verifying it, as small tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mooncake_bench.report.sheets import Report, Sheet
from mooncake_bench.results.words import DASH, counted, integer, size
from mooncake_bench.studies.artifact.collect import safe_name
from mooncake_bench.studies.artifact.outcome import IDENTICAL, WITHIN

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mooncake_bench.studies.artifact.contents import Contents
    from mooncake_bench.studies.artifact.outcome import Outcome

COLUMNS_SHOWN = 6


def contents_report(contents: Contents, notices: Sequence[str] = ()) -> Report:
    """Runs, policies and traces of an archive."""
    whole = sum(fact["bytes"] for fact in contents.files.values())
    head = (
        f"{counted(len(contents.runs), 'run')}, {counted(len(contents.files), 'file')}, {size(whole)} unpacked; packed "
        f"by mooncake-bench {contents.tool_version}, simulator {contents.simulator_version}",
    )
    runs = [
        (run.folder.removeprefix("runs/"), run.label, run.trace_name, integer(run.requests)) for run in contents.runs
    ]
    sheets = [Sheet("Runs", ("run", "policy", "trace", "requests"), tuple(runs)), _policies(contents)]
    if contents.traces:
        sheets.append(_traces(contents))
    return Report(head, tuple(sheets), tuple(notices))


def _policies(contents: Contents) -> Sheet:
    parts = sorted({(part.file, part.name, part.bundled) for run in contents.runs for part in run.parts})
    rows = tuple((file, name, "mooncake-bench" if ours else "its authors") for file, name, ours in parts)
    note = (
        "a bundled policy is taken from this installation where its file is the same; else verifying runs the "
        "archive's code"
    )
    return Sheet("Policies' files", ("file", "policy", "comes from"), rows, (note,))


def _traces(contents: Contents) -> Sheet:
    rows = tuple(
        (trace.path, size(trace.bytes), trace.sha256[:12], "yes" if trace.included else "no: verify --traces DIR")
        for trace in contents.traces
    )
    return Sheet("Traces", ("file", "size", "sha256", "included"), rows)


def verified_report(outcomes: Sequence[Outcome]) -> Report:
    """One line a run, and below what differs."""
    # a folder's usual name ends with the policy, which would stand there twice
    told = all(safe_name(each.label) in each.folder for each in outcomes)
    rows = [
        (
            each.folder.removeprefix("runs/"),
            *(() if told else (each.label,)),
            integer(each.requests),
            each.verdict,
            _decisions(each),
            _worst(each),
        )
        for each in outcomes
    ]
    headers = ("run", *(() if told else ("policy",)), "requests", "verdict", "decisions", "off by")
    notes = (
        "identical: every table, bit by bit; decisions: requests with another one; off by: the largest relative "
        "difference of any number",
    )
    sheets = [Sheet("Replayed against what was stored", headers, tuple(rows), notes)]
    sheets += [_different(each) for each in outcomes if each.columns and each.verdict not in (IDENTICAL, WITHIN)]
    notices = [f"{_name(each.folder)}: {text}" for each in outcomes for text in _words(each)]
    verdicts = [each.verdict for each in outcomes]
    counts = ", ".join(f"{verdicts.count(word)} {word}" for word in dict.fromkeys(verdicts))
    return Report((f"{counted(len(outcomes), 'run')}: {counts}",), tuple(sheets), tuple(notices))


def _name(folder: str) -> str:
    return folder.removeprefix("runs/")


def _decisions(each: Outcome) -> str:
    return integer(each.differing_requests) if each.verdict in (IDENTICAL, WITHIN, "differs") else DASH


def _worst(each: Outcome) -> str:
    if each.verdict == IDENTICAL:
        return "0"
    return DASH if each.worst is None else f"{each.worst:.1e}"


def _different(each: Outcome) -> Sheet:
    rows = [(f"request {one.request_id}", one.what, _value(one.stored), _value(one.replayed)) for one in each.decisions]
    more = each.differing_requests - len(rows)
    columns = [one for one in each.columns if one.table == "requests"] or list(each.columns)
    notes = [f"and {counted(more, 'request')} more"] if more > 0 else []
    names = ", ".join(_column(one) for one in columns[:COLUMNS_SHOWN])
    rest = len(each.columns) - len(columns[:COLUMNS_SHOWN])
    notes.append(f"values that differ: {names}" + (f", and in {rest} more columns" if rest > 0 else ""))
    title = f"{_name(each.folder)}: decisions that differ"
    return Sheet(title, ("decision", "what", "stored", "replayed"), tuple(rows), tuple(notes))


def _column(one: Any) -> str:
    far = "" if one.relative is None else f" by up to {one.relative:.1e}"
    return f"{one.values:,} of {one.table}.{one.column}{far}"


def _value(value: Any) -> str:
    return DASH if value is None else str(value)


def _words(each: Outcome) -> Iterator[str]:
    if each.why:
        yield each.why
    yield from each.notes
