"""``calibrate``: costs from measurements, and what they are worth."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mooncake_bench.cli.options import Example

HELP = "Fit the cost model to measurements, make them here, and see how far off it is."
EXAMPLES: list[Example] = []
