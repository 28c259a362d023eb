"""``metrics list``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mooncake_bench.cli import options
from mooncake_bench.cli.listing import render_list
from mooncake_bench.cli.options import Example
from mooncake_bench.cli.output import answer

if TYPE_CHECKING:
    from mooncake_bench.cli.options import Commands

HELP = "What is measured, and which way is better."
EXAMPLES = (
    Example("metrics list", "every metric with its definition"),
    Example("metrics list --format json", "the same, for a program"),
    Example("metrics list --format markdown", "the same, for a document"),
)


@options.takes(options.format_option())
def list_metrics(**given: Any) -> None:
    """List every metric: unit, which way is better, population and definition."""
    shown = options.chosen_format(given["format"])
    from mooncake_bench.results.metrics import METRICS

    columns = ("name", "unit", "better", "population", "definition")
    items = [{column: getattr(metric, column) for column in columns} for metric in METRICS]
    if shown == "table":  # five columns do not fit a terminal
        items = [
            {"name": item["name"], "unit": item["unit"], "better": item["better"], "of": _of(item)} for item in items
        ]
    answer(render_list("Metrics", items, shown))


def _of(item: dict[str, str]) -> str:
    return f"{item['definition']} ({item['population']})"


COMMANDS: Commands = (("list", list_metrics, EXAMPLES),)
