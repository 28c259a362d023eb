"""FAST'25 figure 14: the prefill of one request, without a cache and with 95 % of the prompt cached."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_bench.studies.validate.fig14 import CACHED_PERCENT, ENGINE, FIGURE, KERNELS, ON, cached_tokens, cost, k
from mooncake_bench.studies.validate.files import FIGURES
from mooncake_bench.studies.validate.outcome import IN_SAMPLE, INDEPENDENT, Limits, Outcome, Point, Row

if TYPE_CHECKING:
    from mooncake_bench.studies.validate.files import Measurements

ID = "F25-FIG14-PREFILL"
TITLE = "prefill of one request, 8k to 128k tokens, 0 and 95 % cached"
SOURCE = "FAST'25, figure 14, digitised"
FILES = (FIGURES,)

LIMITS = Limits("this tool's own aim: all ten bars within 10 %", worst=10.0)


def run(measurements: Measurements) -> Outcome:
    """The paper's own node under its engine preset and under none."""
    rows = [
        Row(
            f"{percent} % cached, engine {engine}",
            IN_SAMPLE if engine == ENGINE else INDEPENDENT,
            _points(measurements, percent, engine),
            unit="s",
            engine=engine,
            limits=LIMITS if engine == ENGINE else None,
            **ON,
        )
        for engine in (ENGINE, KERNELS)
        for percent in CACHED_PERCENT
    ]
    facts = (
        f"in-sample: o_pre of engine {ENGINE} ({cost(ENGINE).overhead.prefill_ms:g} ms) was chosen to match these bars",
        "independent as far as the node goes: its coefficients come from A100 kernel tables, but its all-reduce "
        "bandwidth, a guess, was kept after a look at this figure",
        "computed tokens are 5 % of the prompt at 95 % cached",
    )
    return Outcome(tuple(rows), facts)


def _points(measurements: Measurements, percent: str, engine: str) -> tuple[Point, ...]:
    made = []
    for tokens, measured in measurements.curve(FIGURE, percent, "prefill"):
        hit = cached_tokens(int(tokens), percent)
        made.append(Point(k(tokens), measured, cost(engine).prefill_ps(0, int(tokens) - hit, hit) / 1e12))
    return tuple(made)
