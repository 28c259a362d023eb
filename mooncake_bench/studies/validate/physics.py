"""Step times of a model at any parallelism on a node's GPUs: the physical form (E5), one number at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.hardware.datasheets import load_fitted, load_gpu
from mooncake_bench.hardware.physical import decode_work, prefill_work, step_ms

if TYPE_CHECKING:
    from mooncake_bench.hardware.architecture import Architecture
    from mooncake_bench.hardware.physical import Efficiencies, Gpu


@dataclass(frozen=True)
class Steps:
    """Times [ms] of one model on ``tp`` GPUs, without engine time."""

    gpu: Gpu
    fitted: Efficiencies
    shape: Architecture
    tp: int

    def prefill_ms(self, tokens: float, token2: float) -> float:
        """Of ``tokens`` computed ones of a single prompt, S = ``token2``."""
        work = prefill_work(self.shape, self.gpu, self.tp, np.array([tokens], float), np.array([token2], float))
        return float(step_ms(work, self.fitted)[0])

    def decode_ms(self, batch: float, tokens: float) -> float:
        """Of a step of ``batch`` sequences with ``tokens`` of context in all."""
        work = decode_work(self.shape, self.gpu, self.tp, np.array([batch], float), np.array([tokens], float))
        return float(step_ms(work, self.fitted)[0])


def steps(gpu: str, shape: Architecture, tp: int) -> Steps:
    """Step times on GPUs of a bundled data sheet. Raises SetupError for another."""
    sheet = load_gpu(gpu)
    return Steps(sheet, load_fitted(sheet.efficiencies).efficiencies, shape, tp)
