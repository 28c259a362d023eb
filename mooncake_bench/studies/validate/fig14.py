"""What the three checks of FAST'25 figure 14 share: one request on the paper's nodes, and the costs of them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from mooncake_bench.hardware.build import build_cost

if TYPE_CHECKING:
    from mooncake_bench.hardware.analytic import AnalyticCost

FIGURE = "FAST25_fig14"
CACHED_PERCENT = ("0", "95")
NODE, MODEL, TP = "a800", "llama-3-70b", 8
ENGINE, KERNELS = "mooncake-a800", "none"
ON: dict[str, Any] = {"node": NODE, "model": MODEL, "tp": TP}
"""Facts of a row about this node."""


@cache
def cost(engine: str, node: str = NODE, model: str = MODEL) -> AnalyticCost:
    """One instance of the paper's node under an overhead preset."""
    return build_cost([node], model, engine)


def cached_tokens(tokens: int, percent: str) -> int:
    """How much of a prompt is cached."""
    return round(tokens * int(percent) / 100)


def k(tokens: float) -> str:
    """A prompt's length as the figures label it: 8k, 128k."""
    return f"{tokens / 1024:g}k"
