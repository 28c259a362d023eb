"""What is known of a model, a node, an engine or a link, as plain facts for a table or for a program."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench.errors import SetupError, nearest
from mooncake_bench.hardware.build import build_cost, costs_on
from mooncake_bench.hardware.links import link_names, load_link
from mooncake_bench.hardware.presets import (
    engine_names,
    load_engine,
    load_model,
    load_node,
    model_names,
    node_names,
)
from mooncake_bench.hardware.tables import read_toml

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_bench.hardware.presets import Node

Facts = dict[str, Any]

PREFILL_TOKENS = (512, 2_048, 8_192, 32_768, 131_072)
CACHED_RATIOS = (0.0, 0.9)
BATCHES = (1, 16, 64, 256)
CONTEXT_TOKENS = 2_048
TRANSFER_BYTES = (1e6, 1e8, 1e9, 1e10)
NO_ENGINE = "none"


def known() -> dict[str, list[str]]:
    """Kind to the names of its presets, in the order of their files."""
    return {"model": model_names(), "node": node_names(), "engine": engine_names(), "link": link_names()}


def list_presets(kind: str | None = None) -> list[Facts]:
    """Kind, name, status and description of every preset, or of those of one ``kind``. Raises SetupError."""
    names = known()
    if kind is not None and kind.removesuffix("s") not in names:
        raise SetupError(f"unknown kind {kind!r}{nearest(kind, names)}; known: {', '.join(names)}")
    chosen = names if kind is None else {kind.removesuffix("s"): names[kind.removesuffix("s")]}
    return [_listed(each, name) for each, of_kind in chosen.items() for name in of_kind]


def _listed(kind: str, name: str) -> Facts:
    if kind == "model":
        status, text = None, load_model(name).description
    elif kind == "node":
        node = load_node(name)
        status = ", ".join(dict.fromkeys(costs.status for costs in node.costs.values())) or None
        text = (
            f"{node.description}; measured or derived for {', '.join(node.costs)}" if node.costs else node.description
        )
    else:
        preset = load_engine(name) if kind == "engine" else load_link(name)
        status, text = preset.status, preset.description
    return {"kind": kind, "name": name, "status": status, "description": text}


def describe(name: str, model: str | None = None, engine: str | None = None) -> Facts:
    """Everything about one preset, a node's or an engine's .toml file or a model's config.json.

    ``model`` and ``engine`` choose what a node serves.

    Raises SetupError when the name is unknown, or an option says nothing about that kind of preset.
    """
    kinds = known()
    kind = next((kind for kind, names in kinds.items() if name in names), _kind_of_file(name))
    if kind is None:
        every = [each for names in kinds.values() for each in names]
        raise SetupError(f"unknown model, node, engine or link {name!r}{nearest(name, every)}; try hardware list")
    for option, value in (("--model", model), ("--engine", engine)):
        if value is not None and kind != "node":
            raise SetupError(f"{option}: no effect on the {kind} {name!r}; it goes with a node")
    if kind == "node":
        return {"kind": kind} | _node(name, model, engine or NO_ENGINE)
    shown: Callable[[str], Any] = {"model": load_model, "engine": load_engine, "link": load_link}[kind]
    facts = asdict(shown(name))
    if kind == "link":
        facts["medium"] = facts["kind"]
        facts["times"] = [{"bytes": size, "ms": load_link(name).transfer_ms(size)} for size in TRANSFER_BYTES]
    return facts | {"kind": kind}


def _kind_of_file(name: str) -> str | None:
    """What a file of the user's own holds: an engine alone says where it was fitted."""
    if name.endswith(".json"):
        return "model"
    if name.endswith(".toml"):
        return "engine" if "fitted_on" in read_toml(Path(name)) else "node"
    return None


def _node(name: str, model: str | None, engine: str) -> Facts:
    node = load_node(name)
    models = list(node.costs) if model is None else [model]
    return {
        "name": node.name,
        "description": node.description,
        "gpus": node.gpus,
        "pool_tokens": node.pool_tokens,
        "pool_source": node.pool_source,
        "nic_gbytes_per_s": node.nic_gbytes_per_s,
        "nic_status": node.nic_status,
        "nic_source": node.nic_source,
        "engine": engine,
        "engine_prefill_ms": load_engine(engine).overhead.prefill_ms,
        "engine_decode_ms": load_engine(engine).overhead.decode_ms,
        "costs": [_costs(name, node, each, engine) for each in models],
    }


def _costs(where: str, node: Node, model: str, engine: str) -> Facts:
    """Coefficients, where they are from, and what they come to."""
    found = costs_on(node, load_model(model))
    cost = build_cost([where], model, engine)
    facts: Facts = {
        "model": model,
        "status": found.status,
        "error": cost.error,
        "vram_tokens": int(cost.vram_tokens[0]),
        "coefficients": asdict(cost.coefficients[0]),
        "prefill_heldout": asdict(found.prefill_heldout) if found.prefill_heldout else None,
        "decode_heldout": asdict(found.decode_heldout) if found.decode_heldout else None,
    }
    facts["prefill"] = [
        {"tokens": tokens, "cached_ratio": ratio, "ms": _prefill_ms(cost, tokens, ratio)}
        for tokens in PREFILL_TOKENS
        for ratio in CACHED_RATIOS
    ]
    facts["decode"] = [
        {"batch": batch, "context_tokens": CONTEXT_TOKENS, "ms": _step_ms(cost, batch)}
        for batch in BATCHES
        if batch * CONTEXT_TOKENS <= cost.vram_tokens[0]
    ]
    return facts


def _prefill_ms(cost: Any, tokens: int, ratio: float) -> float:
    cached = int(ratio * tokens)
    return float(cost.prefill_ms(np.array([tokens - cached]), np.array([cached]))[0])


def _step_ms(cost: Any, batch: int) -> float:
    return float(cost.step_ms(np.array([batch]), np.array([batch * CONTEXT_TOKENS]))[0])
