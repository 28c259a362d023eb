"""``compare``: stored runs side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mooncake_bench.cli import options
from mooncake_bench.cli.options import Example, option
from mooncake_bench.cli.output import answer, screen
from mooncake_bench.errors import NothingToConclude

if TYPE_CHECKING:
    from mooncake_bench.cli.options import Commands

EXAMPLES = (
    Example("compare @last:2", "the two latest runs, the older as the reference"),
    Example("compare 1 2 --format markdown", "two runs by number, as a Markdown table"),
    Example("compare @last:2 --by input_tokens", "also split by the length of the prompt"),
)


@options.takes(
    options.runs_argument(),
    option("force", bool, ("--force",), "Compare even runs of different work [default: off]", False),
    options.by_option(),
    options.out_option("Folder in which numbers, names and @last are looked up"),
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

    runs = open_runs(given["runs"], *([given["out"]] if given["out"] else []))
    answer(render(runs, shown, by=given["by"], force=given["force"], **screen()))
    if not any(run.completed_requests for run in runs):
        raise NothingToConclude("no request completed in any of these runs, so there is nothing to compare")


COMMANDS: Commands = (("compare", compare, EXAMPLES),)
