"""``explain``: one decision of a stored run."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from mooncake_bench.cli import options
from mooncake_bench.cli.listing import render_report
from mooncake_bench.cli.options import Example, argument, option
from mooncake_bench.cli.output import answer, json_answer, policies_print_to_stderr
from mooncake_bench.cli.progress import progress_bar
from mooncake_bench.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.cli.options import Commands
    from mooncake_bench.results.explain import Explanation
    from mooncake_bench.results.run import Run

EXAMPLES = (
    Example("explain @last 120", "why request 120 of the latest run went where it went"),
    Example("explain 1 120 --all", "the same of run 1, with every instance of a large cluster"),
    Example("explain @last 120 --format json", "all numbers of the decision, for a program"),
)

SHOWN = 8  # runs listed where a name means several


@options.takes(
    argument("run", str, "A stored run: a folder, a number, a --name, or @last"),
    argument("request", str, "Its request_id; where a trace has none, the number of its row in the source, from 0"),
    option(
        "attempt",
        int | None,
        ("--attempt",),
        "Of a request that was retried: which time, from 1 [default: the last]",
        metavar="N",
    ),
    option("trace", str | None, ("--trace",), "Where the run's trace lies now [default: where it lay]", metavar="FILE"),
    options.policy_dir_option(),
    options.out_option("Folder in which numbers, names and @last are looked up"),
    option("all", bool, ("--all",), "Every instance, not only the 16 best [default: off]", False, panel="Output"),
    options.format_option(),
    option("quiet", bool, ("-q", "--quiet"), "No progress on stderr [default: off]", False, panel="Output"),
)
def explain(**given: Any) -> None:
    """Explain a decision, and what came of it.

    Shows what the policy saw of each candidate, what it chose, and what then happened.

    A run's folder does not hold what policies saw, so the run is replayed up to that decision, with the trace, the
    setup and the policies' code that it had; where one of them is another now, that is said instead. What happened
    afterwards is read from the run.
    """
    shown = options.chosen_format(given["format"])
    if given["all"] and shown in ("json", "csv"):
        raise SetupError(f"--all: no effect with --format {shown}, which has every instance; drop it")
    from mooncake_bench.results.explain import explain as explained
    from mooncake_bench.results.run import open_runs

    runs = open_runs([given["run"]], *([given["out"]] if given["out"] else []))
    if len(runs) != 1:
        raise SetupError(_several(given["run"], runs))
    with progress_bar(runs[0].label, given["quiet"]) as progress, policies_print_to_stderr():
        found = explained(
            runs[0],
            given["request"],
            attempt=given["attempt"],
            policy_dirs=given["policy_dir"] or (),
            trace_path=given["trace"],
            progress=progress,
        )
    answer(_rendered(found, shown, whole=given["all"]))


def _several(given: str, runs: Sequence[Run]) -> str:
    """Which runs a name means, by what one of them is named with."""
    names = [(run.path.name if run.path else "?", run.label) for run in runs]
    shown = ", ".join(f"{folder.partition('_')[0]} ({label})" for folder, label in names[:SHOWN])
    more = f", and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    first = names[0][0].partition("_")[0]
    return f"{given}: means {len(runs)} runs: {shown}{more}; name one by its number, such as {first}"


def _rendered(found: Explanation, shown: str, *, whole: bool) -> str:
    from mooncake_bench.report.explain_sheets import explain_report, explain_rows

    if shown == "json":
        return json_answer(found.to_dict())
    if shown == "csv":
        rows, out = explain_rows(found), io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([list(rows[0]), *(list(row.values()) for row in rows)])
        return out.getvalue()
    return render_report(explain_report(found, whole=whole), shown)


COMMANDS: Commands = (("explain", explain, EXAMPLES),)
