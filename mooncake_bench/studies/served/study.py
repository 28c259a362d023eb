"""From names to a fit: the node's costs for the model, the engine to start from, the log."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mooncake_bench.hardware.build import costs_on
from mooncake_bench.hardware.presets import load_engine, load_model, load_node
from mooncake_bench.studies.served.fit import MOST_TRIED, TOLD_APART, fit, least
from mooncake_bench.studies.served.reading import read
from mooncake_bench.studies.served.show import Served

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mooncake_bench.studies.served.engine import Limits
    from mooncake_bench.studies.served.fit import Fit


def fit_served(
    path: Path,
    *,
    node: str,
    model: str,
    limits: Limits,
    engine: str = "none",
    columns: str | None = None,
    compare: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Served:
    """Fit the overheads of the engine that served the log in ``path`` with ``model`` on ``node``.

    Node, model and ``engine``, whose overheads are tried first, are preset names or .toml files. With ``compare`` the
    way of scheduling that ``limits`` does not have is fitted as well, and taken where it fits much better.
    ``progress``: see :func:`.fit.fit`. Raises SetupError, TraceError or NothingToConclude, one line each.
    """
    the_node, the_model, start = load_node(node), load_model(model), load_engine(engine)
    costs = costs_on(the_node, the_model)
    log = read(path, columns)

    def fitted(some: Limits, before: int) -> Fit:
        told = progress and (lambda tried, most: progress(before + tried, (1 + compare) * most))
        return fit(log, costs.coefficients, start.overhead, some, told)

    best, rejected = fitted(limits, 0), None
    if compare:
        other = replace(limits, ahead=not limits.ahead)
        rejected = fitted(other, MOST_TRIED)
        if rejected.loss < TOLD_APART * best.loss:
            limits, best, rejected = other, rejected, best
    return Served(
        log=log,
        node=the_node.name,
        model=the_model.name,
        vram_tokens=costs.vram_tokens,
        costs_short=costs.short,
        limits=limits,
        least=least(costs.coefficients),
        fit=best,
        rejected_loss=None if rejected is None else rejected.loss,
    )
