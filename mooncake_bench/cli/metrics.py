"""``metrics list``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mooncake_bench.cli import options
from mooncake_bench.cli.options import Example

if TYPE_CHECKING:
    from mooncake_bench.cli.options import Commands

HELP = "What is measured, in which unit, over whom, and which way is better."
EXAMPLES = (
    Example("metrics list", "every metric with its definition"),
    Example("metrics list --format json", "the same, for a program"),
    Example("metrics list --format markdown", "the same, for a document"),
)


@options.takes(options.format_option())
def list_metrics(**given: Any) -> None:
    """List every metric: unit, which way is better, population and definition."""


COMMANDS: Commands = (("list", list_metrics, EXAMPLES),)
