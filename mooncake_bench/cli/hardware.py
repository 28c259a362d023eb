"""``hardware``: the models, nodes, links and engines whose costs are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mooncake_bench.cli.options import Commands, Example

HELP = "The models, nodes, links and engines that costs are known for."
EXAMPLES: list[Example] = []
COMMANDS: Commands = []
