"""GPUs' datasheets (``presets/gpus.toml``) and the fitted parameters of E5 (``presets/physical.toml``) by name."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import fields as fields_of
from functools import cache
from pathlib import Path
from typing import Any

from mooncake_bench.errors import SetupError, nearest
from mooncake_bench.hardware.physical import Efficiencies, Gpu
from mooncake_bench.hardware.tables import Table, read_toml

_FOLDER = Path(__file__).resolve().parent / "presets"


@dataclass(frozen=True)
class Errors:
    """How far E5 is off on models that its fit did not see: the worst of them, relative [%]."""

    prefill_median: float
    prefill_p90: float
    decode_median: float
    decode_p90: float


@dataclass(frozen=True)
class Fitted:
    """Parameters of E5 and what they stand on."""

    name: str
    source: str
    rows: int
    efficiencies: Efficiencies
    left_out_model: Errors
    left_out_tp8: Errors
    """Predicted from tensor parallelisms 1, 2 and 4."""
    expert_error: str
    """How far decode steps of models with experts are off."""
    expert_short: str
    """The same in so many words as fit the head of a report."""


def gpu_names() -> list[str]:
    """Bundled datasheets, in the order of their file."""
    return list(_bundled("gpus"))


def load_gpu(name: str) -> Gpu:
    """A datasheet by its name or its .toml file. Raises SetupError when it is unknown or faulty."""
    table = Table(read_toml(Path(name)), name) if name.endswith(".toml") else _table("gpus", "GPU", name)
    bf16 = table.number("bf16_tflops", above=0) * 1e12
    link = table.number("nvlink_gbytes_per_s", above=0)
    gpu = Gpu(
        name=name,
        description=table.text("description"),
        source=table.text("source"),
        bf16_flops=bf16,
        fp8_flops=table.number("fp8_tflops", above=0, default=bf16 / 1e12) * 1e12,
        memory_bytes=table.number("memory_gbytes", above=0) * 1e9,
        memory_bytes_per_s=table.number("memory_gbytes_per_s", above=0) * 1e9,
        link_bytes_per_s=link * 1e9,
        reduce_link_bytes_per_s=table.number("reduce_link_gbytes_per_s", above=0, default=link) * 1e9,
        reduce_source=table.text("reduce_source", default=""),
        efficiencies=table.text("efficiencies"),
        served=table.text("served", default=""),
        served_short=table.text("served_short", default=""),
    )
    table.done()
    return gpu


def load_fitted(name: str) -> Fitted:
    """Fitted parameters by name. Raises SetupError when they are unknown."""
    table = _table("physical", "fitted GPU", name)
    values = table.table("efficiencies")
    fitted = Fitted(
        name=name,
        source=table.text("source"),
        rows=table.whole("rows"),
        efficiencies=Efficiencies(
            **{field.name: values.number(field.name, least=0) for field in fields_of(Efficiencies)}
        ),
        left_out_model=_errors(table.table("left_out_model")),
        left_out_tp8=_errors(table.table("left_out_tp8")),
        expert_error=table.text("expert_error"),
        expert_short=table.text("expert_short"),
    )
    values.done()
    table.done()
    return fitted


def _errors(table: Table) -> Errors:
    errors = Errors(**{field.name: table.number(field.name, least=0) for field in fields_of(Errors)})
    table.done()
    return errors


@cache
def _bundled(kind: str) -> dict[str, Any]:
    return read_toml(_FOLDER / f"{kind}.toml")


def _table(kind: str, word: str, name: str) -> Table:
    known = _bundled(kind)
    if name not in known:
        raise SetupError(f"unknown {word} {name!r}{nearest(name, known)}; known: {', '.join(known)}")
    return Table(known, f"{kind}.toml").table(name)
