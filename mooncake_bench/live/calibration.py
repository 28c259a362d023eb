"""From a grid measured here to a node's preset: fitted costs, their held-out errors, and where they come from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mooncake_bench import __version__
from mooncake_bench.hardware.calibrate.fitting import decode_fitted, prefill_fitted
from mooncake_bench.hardware.calibrate.preset import fitted_costs, with_costs
from mooncake_bench.hardware.presets import load_node
from mooncake_bench.live.bench import Bench, LiveSettings, TorchBench, place
from mooncake_bench.live.cachefile import digest
from mooncake_bench.live.cost import device_vram_tokens, kernels_key, not_modelled, shape_of
from mooncake_bench.live.dense import check_shape
from mooncake_bench.live.grid import FULL, SMALL, Grid, check_shapes, decode_rows, measure, prefill_rows
from mooncake_bench.live.quality import quality
from mooncake_bench.live.rowsfile import RowsFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mooncake_bench.hardware.architecture import Architecture
    from mooncake_bench.hardware.calibrate.fitting import PhaseFit
    from mooncake_bench.hardware.presets import Model, Node

BASE = "local"
"""The node whose network and DRAM a measured node has: kernels do not tell them."""


@dataclass(frozen=True)
class Calibration:
    """A model's costs on this device, as measured and as fitted."""

    prefill: PhaseFit
    decode: PhaseFit
    node: Node
    place: str
    """Device, type and versions, in words."""
    quality: str
    """How well the rows were measured, in words."""
    notices: tuple[str, ...]
    """What the kernels do not show."""


def calibrate(
    model: Model,
    tensor_parallel: int,
    settings: LiveSettings,
    grid: Grid | None,
    rows_file: Path,
    progress: Callable[[int, int], None],
    vram_tokens: int | None = None,
    open_kernels: Callable[[LiveSettings], Bench] | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Calibration:
    """Measure what ``rows_file`` does not have of ``grid`` (None: as the device is), fit all rows of the file.

    ``vram_tokens``: KVCache of an instance; None: what the device's memory holds. ``tell`` is told of each shape that
    is left out. Raises SetupError for a model that kernels cannot be run of, missing torch, an unusable device, rows of
    something else, fewer shapes than a fit needs, and as many of which too few fitted into memory.
    """
    shape = shape_of(model)
    check_shape(shape, tensor_parallel)
    bench = (open_kernels or TorchBench)(settings)
    vram = vram_tokens or device_vram_tokens(shape, tensor_parallel, bench.memory_bytes)
    file = RowsFile(rows_file, rows_key(bench, shape, tensor_parallel, settings))
    shapes = grid or (FULL if bench.is_gpu else SMALL)
    check_shapes([*shapes.shapes, *file.rows])
    left_out = measure(shapes, lambda: bench.kernels(shape, tensor_parallel), file, progress)
    for line in left_out:
        tell(line)
    if left_out:
        check_shapes(file.rows, left_out=len(left_out))
    rows = sorted(file.rows.values(), key=lambda row: row.shape)  # or a fit depends on the order they came in
    # A late term stands for what several ranks do together; one is run.
    prefill, decode = prefill_fitted(prefill_rows(rows), late=False), decode_fitted(decode_rows(rows), root=True)
    where, how = place(bench.facts), quality([row.measurement for row in rows])
    missing = [*sorted({row.measurement.notice for row in rows} - {""}), *not_modelled(shape, bench, tensor_parallel)]
    source = f"mooncake-bench {__version__} calibrate live on {where}: {how}"
    costs = fitted_costs(prefill, decode, vram_tokens=vram, source=source)
    costs = replace(costs, error="; ".join((costs.error, *missing)))
    node = replace(load_node(BASE), gpus=tensor_parallel)
    node = with_costs(node, model.costs_of, costs, f"{where}, tensor parallelism {tensor_parallel}")
    return Calibration(prefill, decode, node, where, how, tuple(missing))


def rows_key(bench: Bench, shape: Architecture, tensor_parallel: int, settings: LiveSettings) -> dict[str, Any]:
    """All that measured rows depend on, short enough for columns."""
    key = kernels_key(bench, shape, tensor_parallel, settings)
    return {**key, "dimensions": digest(key["dimensions"])}
