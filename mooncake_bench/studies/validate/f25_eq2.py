"""FAST'25 equation 2: the least bandwidth at which fetching a cached prefix is faster than computing it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_bench.studies.validate.fig14 import KERNELS, MODEL, TP, cost
from mooncake_bench.studies.validate.outcome import INDEPENDENT, Limits, Outcome, Point, Row

if TYPE_CHECKING:
    from mooncake_bench.studies.validate.files import Measurements

ID = "F25-EQ2"
TITLE = "bandwidth above which a prefix is worth fetching"
SOURCE = "FAST'25, equation 2 and table 1"
FILES = ()

PREFIX_TOKENS = 8192
HIDDEN, QUERY_PER_KV_HEAD, VALUE_BYTES, GPUS = 8192, 8, 2, 8  # LLaMA3-70B in bf16 on a node
QUADRATIC, LINEAR = 4, 22  # FAST'25's coefficients a and b of the operations of a layer
# Node: operations a second of one GPU (table 1 for the A800; the H800's data sheet), and what the text says in GB/s
PAPER = {"a800": (312e12, 6.0), "h800": (989e12, 19.0)}
LIMITS = Limits("the text gives whole GB/s", worst=0.5)


def run(measurements: Measurements) -> Outcome:
    """The equation as printed, and as the presets have it: bytes of the prefix over the time of its prefill."""
    points = tuple(Point(node, said, equation_2(flops)) for node, (flops, said) in PAPER.items())
    row = Row(f"equation 2 at {PREFIX_TOKENS:,} tokens", INDEPENDENT, points, unit="GB/s", error_unit="GB/s",
              model=MODEL, tp=TP, limits=LIMITS)  # fmt: skip
    computed = ", ".join(f"{point.predicted:.2f} on {point.label}" for point in points)
    presets = ", ".join(f"{preset_gbytes_per_s(node):.2f} on {node}" for node in PAPER)
    facts = (
        f"computed {computed} [GB/s]",
        f"with the presets' kernels, which reach less than the data sheet, the break-even is lower: {presets} [GB/s]",
    )
    return Outcome((row,), facts)


def equation_2(flops_per_gpu: float) -> float:
    """B > 2 d s G / (gqa (a p d + b d^2)) [GB/s]: a layer's K and V of p tokens over the time of p tokens' layer."""
    kv_bytes = 2 * HIDDEN * VALUE_BYTES / QUERY_PER_KV_HEAD
    operations = QUADRATIC * PREFIX_TOKENS * HIDDEN + LINEAR * HIDDEN * HIDDEN
    return kv_bytes * GPUS * flops_per_gpu / operations / 1e9


def preset_gbytes_per_s(node: str) -> float:
    """KV bytes of the prefix over the time in which the node's kernels compute it [GB/s]."""
    the_cost = cost(KERNELS, node, MODEL)
    return PREFIX_TOKENS * the_cost.kv_bytes_per_token / (the_cost.prefill_ps(0, PREFIX_TOKENS, 0) / 1e12) / 1e9
