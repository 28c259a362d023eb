"""FAST'25 figure 14: 128 tokens decoded for a single request after 8k to 128k tokens of context."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_bench.studies.validate.fig14 import CACHED_PERCENT, ENGINE, FIGURE, KERNELS, ON, cost, k
from mooncake_bench.studies.validate.files import FIGURES
from mooncake_bench.studies.validate.outcome import IN_SAMPLE, INDEPENDENT, Limits, Outcome, Point, Row

if TYPE_CHECKING:
    from mooncake_bench.studies.validate.files import Measurements

ID = "F25-FIG14-DECODE"
TITLE = "128 tokens decoded for one request after 8k to 128k tokens"
SOURCE = "FAST'25, figure 14, digitised"
FILES = (FIGURES,)

STEPS = 128
LIMITS = Limits("the cost model's notes, section 4: -3.1 to +0.4 %", worst=3.1, decimals=1)


def run(measurements: Measurements) -> Outcome:
    """The paper's own node under its engine preset and under none, at batch 1."""
    rows = tuple(
        Row(
            f"batch 1, engine {engine}",
            IN_SAMPLE if engine == ENGINE else INDEPENDENT,
            _points(measurements, engine),
            unit="s",
            engine=engine,
            limits=LIMITS if engine == ENGINE else None,
            **ON,
        )
        for engine in (ENGINE, KERNELS)
    )
    facts = (
        f"in-sample: o_dec of engine {ENGINE} ({cost(ENGINE).overhead.decode_ms:g} ms) was chosen to match these bars; "
        "V3-FIG2 (right) agrees with no overhead instead: no single o_dec fits both figures",
        _slopes(measurements),
    )
    return Outcome(rows, facts)


def _points(measurements: Measurements, engine: str) -> tuple[Point, ...]:
    return tuple(
        Point(f"{k(tokens)}, {percent} %", measured, decode_s(engine, int(tokens)))
        for percent in CACHED_PERCENT
        for tokens, measured in measurements.curve(FIGURE, percent, "decode")
    )


def decode_s(engine: str, tokens: int) -> float:
    """128 steps of one sequence whose context grows from ``tokens`` by one a step [s]."""
    contexts = STEPS * tokens + STEPS * (STEPS - 1) // 2
    return (STEPS * cost(engine).decode_ps(0, 1) + cost(engine).token_ps(0) * contexts) / 1e12


def _slopes(measurements: Measurements) -> str:
    import numpy as np

    bars = [bar for percent in CACHED_PERCENT for bar in measurements.curve(FIGURE, percent, "decode", least=2)]
    tokens, seconds = np.array(bars).T
    slope = float(np.polyfit(tokens, 1e3 * seconds / STEPS, 1)[0])
    ours = cost(KERNELS).token_ps(0) / 1e9
    return (
        f"context costs {slope:.3g} ms a token a step there, {ours:.3g} in the preset ({100 * (slope / ours - 1):+.0f} "
        "%): at batch 1 kernels read the KVCache less efficiently"
    )
