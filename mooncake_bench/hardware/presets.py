"""Models, nodes and engines by name, from ``presets/*.toml`` or from a file of the user's own.

A bundled file holds many presets, one a table. A user's file (any name ending in ``.toml``) holds one, its keys at the
top level; a model is then known to nodes by the file's stem. Every number has its source, and its known error.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mooncake_bench.errors import SetupError, nearest
from mooncake_bench.hardware.analytic import Coefficients, EngineOverhead
from mooncake_bench.hardware.architecture_config import read_config, read_shape
from mooncake_bench.hardware.datasheets import gpu_names
from mooncake_bench.hardware.tables import Table, read_toml

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_bench.hardware.architecture import Architecture

Preset = TypeVar("Preset")

_FOLDER = Path(__file__).resolve().parent / "presets"
STATUSES = ("measured", "derived", "predicted", "assumed")
"""measured: fitted to measurements of that very hardware; derived: computed from others'; predicted: from the model's
dimensions and a datasheet (E5); assumed: none of these."""
LEAST_MS, MOST_MS = 1e-9, 1e9
"""A picosecond, the clock's unit: less would round to nothing. And eleven days."""
NIC_GBYTES_PER_S = (1e-3, 1e9)
"""The network speeds that a replay's clock can hold: beyond them a transfer takes no time, or years."""
NIC_STATUSES = (*STATUSES, "line rate, not measured")


@dataclass(frozen=True)
class Model:
    """A model, as far as serving it costs: its KVCache and whose coefficients it uses."""

    name: str
    description: str
    source: str
    layers: int
    kv_bytes_per_token: int
    costs_of: str
    """The model whose coefficients a node must hold; the model itself unless told."""
    error: str
    """What using them costs in accuracy, and what its own file left open; empty when neither."""
    shape: Architecture | None = None
    """Its dimensions, from which costs can be predicted where none were fitted."""


@dataclass(frozen=True)
class HeldOut:
    """How far a fit is off on rows that it did not see, relative [%], and on how many rows it stands."""

    rows: int
    median: float
    """Mean over random halves of the rows; so are p90 and worst."""
    p90: float
    worst: float
    left_out_median: float
    """Each configuration (a prompt length, a batch size, a model…) predicted without its own rows."""
    left_out_p90: float


@dataclass(frozen=True)
class NodeCosts:
    """What one model costs on one node, without engine overhead."""

    status: str
    source: str
    error: str
    short: str
    """``error`` in so many words as fit the head of a report."""
    vram_tokens: int
    coefficients: Coefficients
    prefill_heldout: HeldOut | None = None
    decode_heldout: HeldOut | None = None


@dataclass(frozen=True)
class Node:
    """One instance's hardware."""

    name: str
    description: str
    gpus: int
    pool_tokens: int
    """DRAM of the node's share of the KVCache pool, in tokens of a 70B model."""
    pool_source: str
    nic_gbytes_per_s: float
    nic_status: str
    nic_source: str
    costs: dict[str, NodeCosts]
    gpu: str = ""
    """The GPU's datasheet, from which other models' costs can be predicted; empty where there is none."""


@dataclass(frozen=True)
class Engine:
    """A serving engine's own time on top of the kernels."""

    name: str
    description: str
    status: str
    source: str
    error: str
    short: str
    """On the nodes of ``fitted_on``: what is known of whole steps, in so many words as fit the head of a report."""
    fitted_on: tuple[str, ...]
    """Nodes on which the overheads were fitted."""
    overhead: EngineOverhead


def model_names() -> list[str]:
    """Bundled models, in the order of their file."""
    return list(_bundled("models"))


def node_names() -> list[str]:
    """Bundled nodes, in the order of their file."""
    return list(_bundled("nodes"))


def engine_names() -> list[str]:
    """Bundled engines, in the order of their file."""
    return list(_bundled("engines"))


def load_model(name: str) -> Model:
    """A model by its name, its .toml file or its own config.json. Raises SetupError when it is unknown or faulty."""
    return _model_of_config(Path(name)) if name.endswith(".json") else _load("model", name, _model)


def load_node(name: str) -> Node:
    """A node by its name or its .toml file. Raises SetupError when it is unknown or faulty."""
    return _load("node", name, _node)


def load_engine(name: str) -> Engine:
    """An engine by its name or its .toml file. Raises SetupError when it is unknown or faulty."""
    return _load("engine", name, _engine)


@cache
def _bundled(kind: str) -> dict[str, Any]:
    """All presets of a kind: of ``KIND.toml`` first, then of ``KIND_*.toml``."""
    files = [_FOLDER / f"{kind}.toml", *sorted(_FOLDER.glob(f"{kind}_*.toml"))]
    return {name: table for file in files for name, table in read_toml(file).items()}


def _load(kind: str, name: str, parse: Callable[[str, Table], Preset]) -> Preset:
    if name.endswith(".toml"):
        table = Table(read_toml(Path(name)), name)
        label = Path(name).name  # with its ending, so that a report never takes it for a bundled one
    else:
        known = _bundled(f"{kind}s")
        if name not in known:
            raise SetupError(
                f"unknown {kind} {name!r}{nearest(name, known)}; known: {', '.join(known)}; "
                "or give a .toml file of yours"
            )
        table = Table(known, f"{kind}s.toml").table(name)
        label = name
    preset = parse(label, table)
    table.done()
    return preset


def _model(name: str, table: Table) -> Model:
    own = name.removesuffix(".toml")
    costs_of = table.text("costs_of", default=own)
    shape = read_shape(own, table.table("shape")) if table.has("shape") else None
    kv_bytes = shape.whole_kv_bytes_per_token if shape else None
    return Model(
        name=name,
        description=table.text("description"),
        source=table.text("source"),
        layers=_whole_or(table, "layers", shape.layers if shape else None),
        kv_bytes_per_token=_whole_or(table, "kv_bytes_per_token", kv_bytes),
        costs_of=costs_of,
        error=table.text("error") if costs_of != own else table.text("error", default=""),
        shape=shape,
    )


def _whole_or(table: Table, key: str, from_shape: int | None) -> int:
    """What the model's dimensions say, which the table may repeat but not contradict; without them, the table's."""
    if from_shape is None:
        return table.whole(key)
    if table.has(key) and table.whole(key) != from_shape:
        raise table.wrong(key, table.whole(key), f"{from_shape}, as the shape says, or no such key")
    return from_shape


def _model_of_config(path: Path) -> Model:
    """A model by its config.json; it costs what a bundled model of the same dimensions costs, where there is one."""
    shape = read_config(path)
    twins = (name for name in model_names() if load_model(name).shape == replace(shape, name=name))
    twin = next(twins, None)
    return Model(
        name=shape.name,
        description=f"{shape.parameters / 1e9:.3g} billion parameters, {shape.weight_bytes:g} bytes each",
        source=str(path),
        layers=shape.layers,
        kv_bytes_per_token=shape.whole_kv_bytes_per_token,
        costs_of=load_model(twin).costs_of if twin else shape.name,
        error=", ".join(([f"its dimensions are those of {twin}"] if twin else []) + list(shape.notes)),
        shape=shape,
    )


def _node(name: str, table: Table) -> Node:
    gpu = table.text("gpu", default=name if name in gpu_names() else "")
    if gpu and not gpu.endswith(".toml") and gpu not in gpu_names():
        known = f"one of {', '.join(gpu_names())}, or a .toml file of yours"
        raise table.wrong("gpu", gpu, known)
    costs = table.table("costs").tables() if table.has("costs") or not gpu else {}
    return Node(
        name=name,
        description=table.text("description"),
        gpus=table.whole("gpus"),
        pool_tokens=table.whole("pool_tokens"),
        pool_source=table.text("pool_source"),
        nic_gbytes_per_s=table.number("nic_gbytes_per_s", least=NIC_GBYTES_PER_S[0], most=NIC_GBYTES_PER_S[1]),
        nic_status=table.text("nic_status", one_of=NIC_STATUSES),
        nic_source=table.text("nic_source"),
        costs={model: _node_costs(entry) for model, entry in costs.items()},
        gpu=gpu,
    )


def _node_costs(table: Table) -> NodeCosts:
    error = table.text("error")
    costs = NodeCosts(
        status=table.text("status", one_of=STATUSES),
        source=table.text("source"),
        error=error,
        short=table.text("short", default=error),
        vram_tokens=table.whole("vram_tokens"),
        coefficients=_coefficients(table.table("prefill"), table.table("decode")),
        prefill_heldout=_heldout(table, "prefill_heldout"),
        decode_heldout=_heldout(table, "decode_heldout"),
    )
    table.done()
    return costs


def _heldout(costs: Table, key: str) -> HeldOut | None:
    if not costs.has(key):
        return None
    table = costs.table(key)
    errors = (table.number(name, least=0) for name in ("median", "p90", "worst", "left_out_median", "left_out_p90"))
    heldout = HeldOut(table.whole("rows"), *errors)
    table.done()
    for low, high in (("median", "p90"), ("p90", "worst"), ("left_out_median", "left_out_p90")):
        if getattr(heldout, low) > getattr(heldout, high):
            raise table.wrong(low, getattr(heldout, low), f"a number of at most {high}, {getattr(heldout, high):g}")
    return heldout


def _coefficients(prefill: Table, decode: Table) -> Coefficients:
    if prefill.has("late_ms") != prefill.has("late_tokens"):
        given, lacks = ("late_ms", "late_tokens") if prefill.has("late_ms") else ("late_tokens", "late_ms")
        raise prefill.wrong(given, prefill.number(given), f"{lacks} beside it, or neither")
    coefficients = Coefficients(
        prefill_floor_ms=prefill.number("floor_ms", least=0, most=MOST_MS),
        prefill_token_ms=prefill.number("token_ms", least=LEAST_MS, most=MOST_MS),
        prefill_constant_ms=prefill.number("constant_ms", least=0, most=MOST_MS),
        prefill_token2_ms=prefill.number("token2_ms", least=0, most=MOST_MS),
        decode_floor_ms=decode.number("floor_ms", above=0, most=MOST_MS),
        decode_roof_ms=decode.number("roof_ms", least=0, most=MOST_MS),
        decode_sequence_ms=decode.number("sequence_ms", least=0, most=MOST_MS),
        decode_token_ms=decode.number("token_ms", least=LEAST_MS, most=MOST_MS),
        prefill_late_ms=prefill.number("late_ms", least=0, most=MOST_MS, default=0.0),
        prefill_late_tokens=prefill.number("late_tokens", above=0, most=MOST_MS, default=1.0),
        decode_root_ms=decode.number("root_ms", least=0, most=MOST_MS, default=0.0),
    )
    prefill.done()
    decode.done()
    return coefficients


def _engine(name: str, table: Table) -> Engine:
    error = table.text("error")
    return Engine(
        name=name,
        description=table.text("description"),
        status=table.text("status", one_of=STATUSES),
        source=table.text("source"),
        error=error,
        short=table.text("short", default=error),
        fitted_on=table.texts("fitted_on"),
        # Negative is allowed: an engine may beat the kernels that the coefficients were fitted to.
        overhead=EngineOverhead(
            prefill_ms=table.number("prefill_ms", least=-MOST_MS, most=MOST_MS),
            decode_ms=table.number("decode_ms", least=-MOST_MS, most=MOST_MS),
        ),
    )
