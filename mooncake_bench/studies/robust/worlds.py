"""What may well be a little other than in the one replay that a conclusion rests on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from mooncake_bench.errors import SetupError, TraceError
from mooncake_bench.hardware.build import build_cost
from mooncake_bench.hardware.presets import load_model, load_node, node_names
from mooncake_bench.hardware.scaled import ScaledCost
from mooncake_bench.sim.costs import with_mechanics
from mooncake_bench.trace.transform import jitter, spread_ticks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mooncake_bench.hardware.cost import CostModel
    from mooncake_bench.sim.setup import Setup
    from mooncake_bench.trace import Trace

JITTER_MS = 1.0
VIEWS = ("delayed:1s", "router-only")
LOADS = (0.9, 1.1)
SPREADS = ("uniform", "poisson")
AS_IT_IS = "as it is"


class Scale(NamedTuple):
    """How many times as long prefills and decode steps take."""

    prefill: float = 1.0
    decode: float = 1.0


FITTED = Scale()  # as the fitted costs say


@dataclass(frozen=True)
class World:
    """One row: a trace, what differs in the setups, and how far off the costs are."""

    name: str
    trace: Trace
    changes: Mapping[str, Any] = field(default_factory=dict)
    scale: Scale = FITTED
    group: str = ""  # of rows that say the same kind of thing

    def setup(self, setup: Setup) -> Setup:
        """A contender's setup in this world."""
        own = dict(self.changes)
        if "load" in own:
            own["speedup"] = setup.speedup * own.pop("load")
        if "more_seed" in own:
            own["seed"] = setup.seed + own.pop("more_seed")
        return replace(setup, **own)

    def cost(self, setup: Setup) -> CostModel | None:
        """The costs of a setup here; None: its own."""
        if self.scale == FITTED:
            return None
        nodes = [node for _, node in setup.instances]
        base = build_cost(nodes, setup.model, setup.engine, setup.vram_tokens, setup.nic_gbytes_per_s)
        return with_mechanics(ScaledCost(base, prefill=self.scale.prefill, decode=self.scale.decode), setup)


class Errors(NamedTuple):
    """Relative p90 errors of prefill and decode costs, and whose they are."""

    prefill: float
    decode: float
    source: str


def cost_errors(setup: Setup) -> Errors:
    """The largest held-out p90 errors of the setup's nodes with its model.

    A node that has none of its own counts with the worst of those that were measured with that model. Raises SetupError
    where no node was.
    """
    model = load_model(setup.model).costs_of
    nodes = dict.fromkeys(node for _, node in setup.instances)
    found = {node: own for node in nodes if (own := _heldout(node, model)) is not None}
    if len(found) < len(nodes):
        measured = {node: own for node in node_names() if (own := _heldout(node, model)) is not None}
        if not measured:
            raise SetupError(
                f"model {setup.model!r}: its costs have no held-out error; say what to assume, such as "
                "--cost-error 10%,10%"
            )
        worst = max(measured, key=lambda node: max(measured[node]))
        lacking = [node for node in nodes if node not in found]
        found[worst] = measured[worst]
        words = f"held-out p90 of {worst}, the worst measured with {model}: {', '.join(lacking)} has none of its own"
    else:
        words = f"held-out p90 of {', '.join(found)} with {model}"
    return Errors(max(each[0] for each in found.values()), max(each[1] for each in found.values()), words)


def _heldout(node: str, model: str) -> tuple[float, float] | None:
    costs = load_node(node).costs.get(model)
    if costs is None or costs.prefill_heldout is None or costs.decode_heldout is None:
        return None
    return costs.prefill_heldout.p90 / 100, costs.decode_heldout.p90 / 100


def worlds(trace: Trace, setup: Setup, seeds: int, errors: Errors) -> tuple[list[World], list[str]]:
    """Every row, the one as it is first; and why some are not there, a sentence each."""
    found, missing = [World(AS_IT_IS, trace)], []
    found += [
        World(f"arrivals ±1 ms, {seed}", jitter(trace, JITTER_MS, seed), group="arrivals")
        for seed in range(1, seeds + 1)
    ]
    try:
        found += [World(f"ticks, {how}", spread_ticks(trace, how), group="ticks") for how in SPREADS]
    except TraceError as error:
        missing.append(f"no ticks are spread: {str(error).removesuffix('; leave spread-ticks out')}")
    found += [World(f"seed {setup.seed + k}", trace, {"more_seed": k}, group="seed") for k in range(1, seeds + 1)]
    found += [World(f"view {view}", trace, {"view": view}, group="view") for view in VIEWS if view != setup.view]
    found += _costs(trace, errors)
    found += [World(f"load {100 * (by - 1):+.0f} %", trace, {"load": by}, group="load") for by in LOADS]
    return found, missing


def _costs(trace: Trace, errors: Errors) -> Iterator[World]:
    for phase, error in (("prefill", errors.prefill), ("decode", errors.decode)):
        for sign in (1, -1):
            scale = Scale(**{phase: 1 + sign * error})
            yield World(f"{phase} {100 * sign * error:+.1f} %", trace, scale=scale, group="cost")
