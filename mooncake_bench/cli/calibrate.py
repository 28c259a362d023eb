"""``calibrate``: costs from measurements, and what they are worth."""

from __future__ import annotations

from mooncake_bench.cli.options import Example

HELP = "Fit the cost model to measurements, and see how far off it is."
EXAMPLES = (
    Example("calibrate fit --example rows.csv", "what a table looks like, filled with a preset's predictions"),
    Example("calibrate fit rows.csv -o mine.toml --status derived", "a node's preset from a table, for --node"),
    Example("calibrate validate F25-EQ2 HELDOUT", "predictions against measurements; --measurements DIR runs all"),
)
