"""Kernels of multi-head latent attention (DeepSeek-V3's shape) in decode: does a form linear in the context hold?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.studies.validate.linear import fit
from mooncake_bench.studies.validate.outcome import HELD_OUT, Errors, Limits, Outcome, Point, Row, errors_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from mooncake_bench.studies.validate.files import Measurements

ID = "MLA-DECODE"
TITLE = "latent attention's decode kernels by batch, context and sqrt(batch)"
SOURCE = "aiconfigurator's kernel tables, vLLM 0.24: attention module of DeepSeek-V3"
NODES = {"h100": "h100_sxm", "h200": "h200_sxm"}
FILES = tuple(
    f"aiconfigurator/{system}/mla/vllm/0.24.0/mla_generation_module_perf.parquet" for system in NODES.values()
)

COLUMNS = ("batch_size", "step", "latency", "num_heads", "kv_cache_dtype", "gemm_type")
HEADS = {16: 8, 128: 1}  # heads on one GPU -> tensor parallelism
PRODUCTS = "bfloat16"
CACHES = ("bfloat16", "fp8")
HALVES, SEED = 20, 0
NOTES = "the cost model's notes, section 3 (of a range, its upper end)"
LIMITS = {16: Limits(NOTES, median=3.0, p90=7.0, decimals=1), 128: Limits(NOTES, median=8.7, p90=21.0, decimals=1)}


def run(measurements: Measurements) -> Outcome:
    """Half of a table's rows from the other, for the heads of one GPU at TP8 and TP1, KVCache in bf16 and fp8."""
    rows = [row for node, file in zip(NODES, FILES, strict=True) for row in _rows(node, file, measurements)]
    used = sum(row.errors.points for row in rows)
    there = sum(len(measurements.columns(file, COLUMNS)["latency"]) for file in FILES)
    facts = (
        f"one layer's attention module, not a step; constant + batch + context + sqrt(batch); means over {HALVES} "
        "random halves",
    )
    return Outcome(tuple(rows), facts, (f"{there - used:,} rows of other head counts, or with products in fp8",))


def _rows(node: str, file: str, measurements: Measurements) -> Iterator[Row]:
    table = measurements.columns(file, COLUMNS)
    for heads, tp in HEADS.items():
        for cache in CACHES:
            chosen = (table["num_heads"] == heads) & (table["kv_cache_dtype"] == cache)
            chosen &= table["gemm_type"] == PRODUCTS
            batch, context, ms = (table[name][chosen].astype(float) for name in ("batch_size", "step", "latency"))
            terms = np.stack([np.ones_like(batch), batch, batch * context, np.sqrt(batch)], axis=1)
            yield Row(f"{node} TP{tp}, {heads} heads, KVCache {cache}", HELD_OUT, node=node, model="deepseek-v3", tp=tp,
                      engine="none", limits=LIMITS[heads], recorded=_halves(terms, ms))  # fmt: skip


def _halves(terms: NDArray[np.float64], ms: NDArray[np.float64]) -> Errors:
    """Errors on one random half of a fit to the other: means over the draws."""
    drawn = np.random.default_rng(SEED)
    found = []
    for _ in range(HALVES):
        order = drawn.permutation(len(ms))
        seen, unseen = order[: (len(ms) + 1) // 2], order[(len(ms) + 1) // 2 :]
        ours = terms[unseen] @ fit(terms[seen], ms[seen])
        points = [Point("", float(m), float(o)) for m, o in zip(ms[unseen], ours, strict=True)]
        errors = errors_of(points, relative=True)
        found.append((errors.median, errors.p90, errors.worst, errors.bias))
    return Errors(len(ms), *np.array(found, dtype=float).mean(axis=0).tolist())
