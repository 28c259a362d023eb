"""From preset names, one node an instance, to the cost model of a cluster."""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple
from hashlib import sha256
from typing import TYPE_CHECKING

from mooncake_bench.errors import SetupError, nearest
from mooncake_bench.hardware.analytic import AnalyticCost
from mooncake_bench.hardware.presets import NIC_GBYTES_PER_S, STATUSES, load_engine, load_model, load_node

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from mooncake_bench.hardware.presets import Engine, Model, Node, NodeCosts

FORMULAS_VERSION = "2"
"""Raise it when E1 to E4 change; the rest of a cost model's version is a hash of its numbers."""
MOST_VRAM_TOKENS = 10**15
_STATUS_WORDS = {
    "measured": "measured",
    "derived": "derived, not measured",
    "predicted": "predicted, not measured",
    "assumed": "assumed, not measured",
}


def build_cost(
    instance_nodes: Sequence[str],
    model: str,
    engine: str,
    vram_tokens: int | None = None,
    nic_gbytes_per_s: float | None = None,
) -> AnalyticCost:
    """The analytic cost of ``model`` served by ``engine`` on one node (preset name or .toml file) an instance.

    ``vram_tokens`` [tokens] and ``nic_gbytes_per_s`` [1e9 bytes/s, each way] replace every node's own number.
    Raises SetupError on an unknown or faulty preset, on a node that has no coefficients for the model, and on an engine
    whose time would be counted twice.
    """
    check_settings(instance_nodes, vram_tokens, nic_gbytes_per_s)
    the_model, the_engine = load_model(model), load_engine(engine)
    nodes = {name: load_node(name) for name in dict.fromkeys(instance_nodes)}
    costs = {name: costs_on(node, the_model) for name, node in nodes.items()}
    for name in nodes:
        _check_engine(name, the_model, costs[name], the_engine)
        _check_positive(name, costs[name], the_engine)
    vram = [vram_tokens or costs[name].vram_tokens for name in instance_nodes]
    nic = [1e9 * (nic_gbytes_per_s or nodes[name].nic_gbytes_per_s) for name in instance_nodes]
    coefficients = [costs[name].coefficients for name in instance_nodes]
    return AnalyticCost(
        coefficients,
        the_engine.overhead,
        name=f"analytic: {the_model.name} on {_counted(nodes, instance_nodes)}, engine {the_engine.name}",
        version=_version(the_model, the_engine, set(zip(coefficients, vram, nic, strict=True))),
        error=_error_sentence(the_model, the_engine, nodes, costs, nic_gbytes_per_s),
        error_short=_error_short(the_model, the_engine, nodes, costs),
        layers=the_model.layers,
        kv_bytes_per_token=the_model.kv_bytes_per_token,
        nic_bytes_per_s=nic,
        vram_tokens=vram,
    )


def check_settings(instance_nodes: Sequence[str], vram_tokens: int | None, nic_gbytes_per_s: float | None) -> None:
    """Raises SetupError for no instance, and for an amount of KVCache or a network that a replay cannot hold."""
    if not instance_nodes:
        raise SetupError("the cluster has no instance: expected at least one node")
    if vram_tokens is not None and not 0 < vram_tokens <= MOST_VRAM_TOKENS:
        raise SetupError(f"vram_tokens is {vram_tokens:g}: expected a whole number from 1 to 1e15 [tokens]")
    least, most = NIC_GBYTES_PER_S
    if nic_gbytes_per_s is not None and not least <= nic_gbytes_per_s <= most:
        expected = f"a number from {least:g} to {most:g} [GB/s]"
        raise SetupError(f"nic_gbytes_per_s is {nic_gbytes_per_s:g}: expected {expected}")


def costs_on(node: Node, model: Model) -> NodeCosts:
    """Those of the node's own table, else predicted from the model's dimensions and the GPU's datasheet."""
    if model.costs_of in node.costs:
        return node.costs[model.costs_of]
    if node.gpu and model.shape:
        from mooncake_bench.hardware.predict import predicted_costs

        return predicted_costs(model.shape, node.gpu, node.gpus)
    lacking = "gives no dimensions (a table [shape])" if node.gpu else "the node names no datasheet (gpu = ...)"
    raise SetupError(
        f"node {node.name!r} has no cost coefficients for model {model.costs_of!r}"
        f"{nearest(model.costs_of, node.costs)}; "
        f"it has: {', '.join(node.costs) or 'none'}; none can be predicted: "
        f"{'the model ' if node.gpu else ''}{lacking}; "
        f"add a table [costs.{model.costs_of}] to a node file of yours, or set costs_of in the model's file"
    )


def _whose(node: Node, model: Model) -> str:
    """The model whose costs these are: predicted ones are always the model's own."""
    return model.costs_of if model.costs_of in node.costs else model.name.removesuffix(".toml")


def _hold_an_engine(model: Model, costs: NodeCosts) -> bool:
    """Whether an engine's time is in the costs: what experts cost was fitted to served steps (``expert_us``)."""
    return costs.status == "predicted" and model.shape is not None and model.shape.experts is not None


def _all_hold_an_engine(model: Model, costs: dict[str, NodeCosts]) -> bool:
    return all(_hold_an_engine(model, cost) for cost in costs.values())


def _takes_no_time(engine: Engine) -> bool:
    return not (engine.overhead.prefill_ms or engine.overhead.decode_ms)


def _check_engine(node: str, model: Model, costs: NodeCosts, engine: Engine) -> None:
    """Raises SetupError where a bundled engine's time would be counted twice; a file's may be fitted on top."""
    if _hold_an_engine(model, costs) and not _takes_no_time(engine) and not engine.name.endswith(".toml"):
        raise SetupError(
            f"{model.name} on {node}: predicted costs of a model with experts hold an engine's time already, and "
            f"engine {engine.name!r} would add another; give --engine none"
        )


def _check_positive(node: str, costs: NodeCosts, engine: Engine) -> None:
    c = costs.coefficients
    prefill = c.prefill_floor_ms + c.prefill_constant_ms + engine.overhead.prefill_ms
    decode = c.decode_floor_ms + engine.overhead.decode_ms
    if min(prefill, decode) <= 0:
        raise SetupError(
            f"engine {engine.name!r} on node {node!r}: a time would not be above 0 (shortest prefill {prefill:g} ms, "
            f"shortest decode step {decode:g} ms); raise the engine's prefill_ms or decode_ms"
        )


def _counted(nodes: dict[str, Node], instance_nodes: Sequence[str]) -> str:
    counts = Counter(instance_nodes)
    return " + ".join(f"{count} x {nodes[name].name}" for name, count in counts.items())


def _version(model: Model, engine: Engine, kinds: Collection[object]) -> str:
    """The formulas' version and a hash of all numbers of the different ``kinds`` of instance, however many of each."""
    numbers = (model.layers, model.kv_bytes_per_token, astuple(engine.overhead), sorted(map(repr, kinds)))
    return f"{FORMULAS_VERSION}-{sha256(repr(numbers).encode()).hexdigest()[:8]}"


def _error_sentence(
    model: Model,
    engine: Engine,
    nodes: dict[str, Node],
    costs: dict[str, NodeCosts],
    nic_gbytes_per_s: float | None,
) -> str:
    """Status and error of everything the costs are made of, as one sentence."""
    parts = [
        f"{_whose(nodes[name], model)} on {nodes[name].name} is {cost.status}: {cost.error}"
        for name, cost in costs.items()
    ]
    own = model.costs_of == model.name.removesuffix(".toml")
    if model.error and (own or any(model.costs_of in node.costs for node in nodes.values())):
        parts.append(f"{model.name}: {model.error}")
    if _takes_no_time(engine) and _all_hold_an_engine(model, costs):
        parts.append(f"engine {engine.name} adds nothing")
    else:
        parts.append(f"engine {engine.name} is {engine.status}: {engine.error}")
    strangers = [node.name for node in nodes.values() if engine.fitted_on and node.name not in engine.fitted_on]
    if strangers:
        parts.append(f"that engine was fitted on {', '.join(engine.fitted_on)}, not on {', '.join(strangers)}")
    if nic_gbytes_per_s is not None:
        parts.append(f"network {nic_gbytes_per_s:g} GB/s as set")
    else:
        parts += [f"network of {n.name} {n.nic_gbytes_per_s:g} GB/s ({n.nic_status})" for n in nodes.values()]
    return "; ".join(parts) + "."


def _error_short(model: Model, engine: Engine, nodes: dict[str, Node], costs: dict[str, NodeCosts]) -> str:
    """What matters most of :func:`_error_sentence`: of whole steps where the engine was fitted, else of kernels."""
    predicted = any(cost.status == "predicted" for cost in costs.values())
    other = predicted and not engine.name.endswith(".toml")  # bundled engines were fitted with a model that has costs
    if not other and all(node.name in engine.fitted_on for node in nodes.values()):
        status = max(engine.status, *(cost.status for cost in costs.values()), key=STATUSES.index)
        parts = [f"{_STATUS_WORDS[status]}: {engine.short}"]
    else:
        names = {name: f"{node.name} " if len(nodes) > 1 else "" for name, node in nodes.items()}
        parts = [f"{names[name]}{_STATUS_WORDS[cost.status]}: {cost.short}" for name, cost in costs.items()]
        strangers = [node.name for node in nodes.values() if node.name not in engine.fitted_on]
        not_on = f", not on {', '.join(strangers)}" if strangers else " with another model"
        fitted = f"engine fitted on {', '.join(engine.fitted_on)}{not_on}"
        if not (_takes_no_time(engine) and _all_hold_an_engine(model, costs)):
            parts.append(fitted if engine.fitted_on else engine.short)
    if any(_whose(node, model) != model.name.removesuffix(".toml") for node in nodes.values()):
        parts.append(f"costs of {model.costs_of}")
    return "; ".join(parts)
