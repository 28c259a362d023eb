"""Why a prefill jumps between 256 and 512 tokens on A100, and not on H100: what each kernel adds there."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from derive.compose import PARTS, prefill_parts_ms, products
from derive.fits import TP

if TYPE_CHECKING:
    from collections.abc import Iterator

    from derive.compose import Kernels
    from mooncake_bench.hardware.architecture import Architecture

BEFORE, AFTER = 256, 512
TOKENS = (128, 256, 384, 512, 768, 1024)
ALL_REDUCED = (128, 256, 512, 1024, 4096, 16384)
TILE = (128, 256)
"""Tokens and columns that one multiprocessor computes at a time: the times step as tiles of this size would have it."""
MULTIPROCESSORS = {"a100_sxm": 108, "h100_sxm": 132, "h200_sxm": 132}


def lines(kernels: Kernels, model: Architecture) -> Iterator[str]:
    """The jump by part, the all-reduce by kernel and the products by waves of tiles, as Markdown."""
    yield f"## {kernels.gpu.name}, {model.name}, TP{TP}\n"
    yield from _by_part(kernels, model)
    yield from _all_reduce(kernels, model)
    yield from _waves(kernels, model)


def _by_part(kernels: Kernels, model: Architecture) -> Iterator[str]:
    before, after = (np.array(prefill_parts_ms(kernels, model, TP, 1, n)) for n in (BEFORE, AFTER))
    whole = (after - before).sum()
    times = after.sum() / before.sum()
    yield f"From {BEFORE} to {AFTER} tokens: {before.sum():.1f} to {after.sum():.1f} ms, {times:.2f} times.\n"
    yield f"| part | {BEFORE} [ms] | {AFTER} [ms] | times | more [ms] | of the whole [%] | more a layer [us] |"
    yield "|---|---|---|---|---|---|---|"
    for name, a, b in zip(PARTS, before, after, strict=True):
        each = f"{1e3 * (b - a) / model.layers:.0f}" if name != "head" else ""
        yield f"| {name} | {a:.1f} | {b:.1f} | {b / a:.2f} | {b - a:.1f} | {100 * (b - a) / whole:.0f} | {each} |"
    yield ""


def _all_reduce(kernels: Kernels, model: Architecture) -> Iterator[str]:
    yield "| tokens | elements | message [MiB] | vLLM's own [us] | NCCL [us] | faster: bus bandwidth [GB/s] |"
    yield "|---|---|---|---|---|---|"
    for n in ALL_REDUCED:
        own, nccl, faster = (kernels.all_reduce_ms(model, TP, n, kernel=k) for k in ("custom", "nccl", "faster"))
        elements = n * model.hidden
        bandwidth = bus_bytes_per_s(elements, faster) / 1e9
        yield f"| {n} | {elements} | {2 * elements / 2**20:g} | {1e3 * own:.1f} | {1e3 * nccl:.1f} | {bandwidth:.0f} |"
    yield ""


def bus_bytes_per_s(elements: float, ms: float) -> float:
    """Bus bandwidth of an all-reduce of two-byte elements over TP GPUs."""
    return 2 * (TP - 1) / TP * 2 * elements / (ms / 1e3)


def _waves(kernels: Kernels, model: Architecture) -> Iterator[str]:
    units = MULTIPROCESSORS[kernels.gpu.name]
    yield f"Waves: tiles of {TILE[0]} tokens x {TILE[1]} columns over {units} multiprocessors.\n"
    yield "| product | columns x inner | " + " | ".join(f"{n}: us (waves)" for n in TOKENS) + " |"
    yield "|---" * (2 + len(TOKENS)) + "|"
    for name, (columns, inner) in products(model, TP).items():
        cells = (
            f"{1e3 * kernels.product_ms(n, columns, inner):.0f} "
            f"({ceil(ceil(n / TILE[0]) * ceil(columns / TILE[1]) / units)})"
            for n in TOKENS
        )
        yield f"| {name} | {columns} x {inner} | " + " | ".join(cells) + " |"
    yield ""
