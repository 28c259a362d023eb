"""``compare``: stored runs side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mooncake_bench.cli import options
from mooncake_bench.cli.options import Example, option
from mooncake_bench.cli.output import answer, note, screen
from mooncake_bench.cli.pictures import asked, draw, plot_option
from mooncake_bench.errors import NothingToConclude, SetupError

if TYPE_CHECKING:
    from mooncake_bench.cli.options import Commands

EXAMPLES = (
    Example("compare @last:2", "the two latest runs, the older as the reference"),
    Example("compare 1 2 --format markdown", "two runs by number, as a Markdown table"),
    Example("compare @last:2 --why", "also what the difference of mean TTFT is made of"),
)


@options.takes(
    options.runs_argument(),
    option("force", bool, ("--force",), "Compare even runs of different work [default: off]", False),
    options.by_option(),
    option(
        "why",
        bool,
        ("--why",),
        "Split each difference of mean TTFT into queue, fetch and prefill, and list the requests that made it "
        "[default: off]",
        False,
        panel="Output",
    ),
    option(
        "top",
        int | None,
        ("--top",),
        "Of --why: so many requests of each run [requests; default: 10]",
        panel="Output",
        metavar="N",
    ),
    options.out_option("Folder in which numbers, names and @last are looked up"),
    plot_option(),
    options.format_option(),
)
def compare(**given: Any) -> None:
    """Compare stored runs of the same work, paired by request.

    Runs whose trace, block size, SLOs, TBT metric, first gap or warm-up differ are refused: their difference would not
    be the policy's. Numbers and @last follow the order in which runs are stored; where commands run in parallel, give
    each a --name and compare by that.
    """
    shown = options.chosen_format(given["format"])
    from mooncake_bench.report.tables import render
    from mooncake_bench.results.run import open_runs

    top = _top(given, shown)
    pictures = asked(given["plot"])
    runs = open_runs(given["runs"], *([given["out"]] if given["out"] else []))
    if top is not None and len(runs) < 2:
        raise SetupError("--why: no effect on one run, which differs from nothing; name two or more")
    answer(render(runs, shown, by=given["by"], force=given["force"], why=top, **screen()))
    for line in draw(pictures, runs):
        note(line)
    if not any(run.completed_requests for run in runs):
        raise NothingToConclude("no request completed in any of these runs, so there is nothing to compare")


def _top(given: dict[str, Any], shown: str) -> int | None:
    """How many requests --why lists; None without it."""
    if not given["why"]:
        if given["top"] is not None:
            raise SetupError("--top: no effect without --why; add that, or drop this")
        return None
    if shown == "csv":
        raise SetupError("--why: no effect with --format csv, which lists the metrics of whole runs; use json")
    if given["top"] is not None and given["top"] < 1:
        raise SetupError(f"--top: expected at least 1 request, got {given['top']}")
    return int(given["top"] or 10)


COMMANDS: Commands = (("compare", compare, EXAMPLES),)
