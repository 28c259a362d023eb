"""``metrics list``."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from mooncake_bench.cli import options
from mooncake_bench.cli.listing import grouped, render_list
from mooncake_bench.cli.options import Example
from mooncake_bench.cli.output import answer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.cli.options import Commands
    from mooncake_bench.results.metric import Metric

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

    if shown == "table":
        answer(_by_population(METRICS))
        return
    columns = ("name", "unit", "better", "population", "definition")
    answer(
        render_list("Metrics", [{column: getattr(metric, column) for column in columns} for metric in METRICS], shown)
    )


def _by_population(metrics: Sequence[Metric]) -> str:
    """Five columns do not fit a terminal, and few populations come again and again: a heading each."""
    groups: dict[str, list[tuple[str, ...]]] = {}
    for metric in metrics:
        row = (metric.name, metric.unit, metric.better, metric.definition)
        groups.setdefault(f"Of {metric.population}:", []).append(row)
    return grouped(("name", "unit", "better", "definition"), groups, shutil.get_terminal_size().columns)


COMMANDS: Commands = (("list", list_metrics, EXAMPLES),)
