"""How fast a cost answers: the simulator asks the scalars at each event, a policy the arrays at each arrival.

Run with ``pytest -m benchmark tests/benchmarks/test_hardware_speed.py``. The bounds leave room for a busy machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mooncake_bench.hardware.build import build_cost

pytestmark = pytest.mark.benchmark

COST = build_cost(["a800"] * 16, "llama-3-70b", "mooncake-a800")
COMPUTED = np.linspace(1.0, 100_000.0, 16)
PREFIX = np.linspace(100_000.0, 0.0, 16)


@pytest.mark.parametrize(
    ("ask", "limit_us"),
    [
        (lambda: COST.prefill_ps(3, 8192, 4096), 0.6),
        (lambda: COST.decode_ps(3, 57), 0.6),
        (lambda: COST.prefill_ms(COMPUTED, PREFIX), 6.0),
        (lambda: COST.step_ms(COMPUTED, PREFIX), 6.0),
    ],
    ids=["prefill_ps", "decode_ps", "prefill_ms of 16", "step_ms of 16"],
)
def test_a_cost_is_answered_in_microseconds(benchmark: Any, ask: Any, limit_us: float) -> None:
    benchmark(ask)
    assert benchmark.stats.stats.min * 1e6 < limit_us
