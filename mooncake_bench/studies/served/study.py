"""From names to a fit: the node's costs for the model, the engine to start from, the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_bench.hardware.build import costs_on
from mooncake_bench.hardware.presets import load_engine, load_model, load_node
from mooncake_bench.studies.served.fit import fit, least
from mooncake_bench.studies.served.reading import read
from mooncake_bench.studies.served.show import Served

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mooncake_bench.studies.served.engine import Limits


def fit_served(
    path: Path,
    *,
    node: str,
    model: str,
    limits: Limits,
    engine: str = "none",
    columns: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Served:
    """Fit the overheads of the engine that served the log in ``path`` with ``model`` on ``node``.

    Node, model and ``engine``, whose overheads are tried first, are preset names or .toml files. ``progress``: see
    :func:`.fit.fit`. Raises SetupError, TraceError or NothingToConclude, one line each.
    """
    the_node, the_model, start = load_node(node), load_model(model), load_engine(engine)
    costs = costs_on(the_node, the_model)
    log = read(path, columns)
    return Served(
        log=log,
        node=the_node.name,
        model=the_model.name,
        vram_tokens=costs.vram_tokens,
        costs_short=costs.short,
        limits=limits,
        least=least(costs.coefficients),
        fit=fit(log, costs.coefficients, start.overhead, limits, progress),
    )
