"""What a single process cannot measure: the all-reduces between the ranks of a model, by a GPU's datasheet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.hardware.datasheets import load_fitted, load_gpu
from mooncake_bench.hardware.physical import MOST_GPUS, components, prefill_work

if TYPE_CHECKING:
    from mooncake_bench.hardware.architecture import Architecture
    from mooncake_bench.hardware.cost import Column, FloatColumn
    from mooncake_bench.hardware.physical import Efficiencies, Gpu


@dataclass(frozen=True)
class AllReduce:
    """The all-reduces of a step, two a layer, as E5 has them: latency, and hidden states in bf16 over the link."""

    model: Architecture
    ranks: int
    gpu: Gpu
    fitted: Efficiencies

    def ms(self, tokens: Column) -> FloatColumn:
        """(N,) all that a step of ``tokens`` computed tokens does [ms]."""
        n = np.maximum(tokens, 1).astype(np.float64)
        time: FloatColumn = components(prefill_work(self.model, self.gpu, self.ranks, n, 0 * n), self.fitted)["reduce"]
        return time


def all_reduce(model: Architecture, ranks: int, gpu_name: str) -> AllReduce | None:
    """Of ``ranks`` GPUs of a datasheet; None where one rank has nothing to reduce, and where nothing is known of it."""
    if ranks == 1 or ranks > MOST_GPUS or not gpu_name:
        return None
    gpu = load_gpu(gpu_name)
    return AllReduce(model, ranks, gpu, load_fitted(gpu.efficiencies).efficiencies)
