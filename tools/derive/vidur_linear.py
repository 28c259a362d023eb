"""A layer's matrix products in vidur's tables, one set of parameters a GPU, each model left out in turn.

    ((W s / (TP BW beta))^p + (2 W n' / (TP F eta))^p)^(1/p) + o,   n' = n + sum over tiles t of u_t (t ceil(n / t) - n)

t is a tile's rows, 64, 128 or 256: the last tile of a batch is computed whole. u_t is the share of the work in such
tiles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from derive.compose import read

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

DATASHEETS = {"a100": (312e12, 2.039e12), "h100": (989e12, 3.35e12), "a40": (149.7e12, 0.696e12)}
PRODUCTS = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")
TILES = (64, 128, 256)
SCALE = 0.05
BARS = {"a100": (4.9, 9.0), "h100": (4.5, 15.0), "a40": (4.1, 10.5)}
"""COST_MODEL's: the worst model's median and 90th percentile [%]."""


class Table:
    """The gated models' rows of one GPU."""

    def __init__(self, measurements: Path, hardware: str) -> None:
        table = read(measurements / "vidur" / "mlp.parquet", hardware=hardware, use_gated_mlp=True)
        columns = {name: np.array(table[name].to_pylist()) for name in table.column_names if "." not in name}
        self.ms = sum(np.array(table[f"time_stats.{name}.median"].to_pylist(), dtype=np.float64) for name in PRODUCTS)
        self.model = columns["model"]
        self.n = columns["num_tokens"].astype(np.float64)
        hidden, width = columns["n_embd"], columns["n_expanded_embd"]
        tp, heads = columns["num_tensor_parallel_workers"], columns["n_head"]
        kv_heads = np.maximum(columns["n_kv_head"], tp)
        weights = hidden * (hidden / heads) * 2 * (heads + kv_heads) + 3 * hidden * width
        flops, bytes_per_s = DATASHEETS[hardware]
        self.read_ms = weights / tp * 2 / bytes_per_s * 1e3
        self.token_ms = weights / tp * 2 / flops * 1e3

    def predicted(self, x: Array) -> Array:
        """(N,) ms; x: logs of 1/beta, 1/eta, p and o [us], then of u_t / (1 - sum of all u_t)."""
        memory, math, p, constant = np.exp(x[:4])
        shares = np.exp(x[4:]) / (1 + np.exp(x[4:]).sum())
        n = self.n + sum(u * (t * np.ceil(self.n / t) - self.n) for u, t in zip(shares, TILES, strict=True))
        rounded = ((self.read_ms * memory) ** p + (self.token_ms * n * math) ** p) ** (1 / p)
        return np.asarray(rounded + constant / 1e3)


def left_out_errors(measurements: Path, hardware: str) -> dict[str, tuple[float, float]]:
    """Median and 90th percentile [%] of each model, predicted from the others."""
    from scipy.optimize import least_squares

    table = Table(measurements, hardware)
    start = [*np.log([1.2, 1.4, 1.5, 3.0]), *(-1.0 for _ in TILES)]
    errors = {}
    for model in dict.fromkeys(table.model):
        others = table.model != model

        def residuals(x: Array, rows: Array = others) -> Array:
            return np.asarray(table.predicted(x)[rows] / table.ms[rows] - 1)

        x = least_squares(residuals, start, loss="soft_l1", f_scale=SCALE).x
        off = 100 * np.abs(table.predicted(x) / table.ms - 1)[~others]
        errors[str(model)] = (float(np.median(off)), float(np.percentile(off, 90)))
    return errors
