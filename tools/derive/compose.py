"""Whole-model step times [ms] summed from separately measured kernels: no engine or CPU time is in them.

    step = layers x (matrix products + elementwise operations + 2 all-reduces + attention) + output layer

Between measured points a matrix product and an all-reduce go straight on logarithmic axes along tokens, a product
straight along each of its other two sizes, elementwise operations straight along tokens; beyond the last point all grow
in proportion. Attention is taken where it was measured. The all-reduce is the faster of vLLM's own (CUDA graph) and
NCCL's.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mooncake_bench.errors import TraceError

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray

    from mooncake_bench.hardware.architecture import Architecture

    Floats = NDArray[np.float64]
    Curve = tuple[Floats, Floats]
    """Measured tokens and times [ms], rising in tokens."""

SMALL_OPERATIONS = ("input_layernorm", "attn_rope", "post_attention_layernorm", "mlp_act", "add", "add")
"""Elementwise operations of one layer; a layer adds twice."""


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU, and the folders of its tables."""

    name: str
    vllm: str
    nccl: str
    elementwise: str
    """Whose elementwise operations vidur measured."""
    grid_bytes: float
    """Memory that bounds the contexts of the composed grid [bytes]."""


GPUS = {
    "a100": Gpu("a100_sxm", "0.14.0", "2.27.3", "a100", 80e9),
    "h100": Gpu("h100_sxm", "0.24.0", "2.27.3", "h100", 80e9),
    "h200": Gpu("h200_sxm", "0.24.0", "2.26.2", "h100", 141e9),
}
MODELS = {
    "llama-3-70b": ("meta-llama/Llama-2-70b-hf", "llama-70b"),
    "llama2-70b": ("meta-llama/Llama-2-70b-hf", "llama2-70b"),
    "llama-3-8b": ("meta-llama/Llama-2-7b-hf", "llama3-8b"),
    "qwen3-32b": ("internlm/internlm-20b", "qwen3-32b"),
}
"""Dense models: whose elementwise operations in vidur's tables stand for theirs, and their name in composed tables."""
PARTS = ("gemm", "elementwise", "all_reduce", "attention", "head")


class Kernels:
    """The kernel tables of one kind of GPU, read once."""

    def __init__(self, measurements: Path, gpu: Gpu) -> None:
        """Raises TraceError where a table is missing."""
        self.gpu = gpu
        self._root = measurements
        self._gemm = _curves(self._table("gemm", "gemm_perf", gemm_dtype="bfloat16"), ("n", "k"), "m", "latency")
        self._columns, self._inner = (sorted({shape[axis] for shape in self._gemm}) for axis in (0, 1))
        self._attention = {
            kind: _curves(
                self._attention_table(kind),
                ("num_heads", "num_key_value_heads", "batch_size"),
                "isl" if kind == "context" else "step",
                "latency",
            )
            for kind in ("context", "generation")
        }
        graph = self._table("comm", "custom_allreduce_perf", backend="vllm_graph")
        self._custom = _curves(graph, ("num_gpus",), "message_size", "latency")
        nccl = self._read(f"comm/nccl/{gpu.nccl}/nccl_perf.parquet", op_name="all_reduce", nccl_dtype="half")
        self._nccl = _curves(nccl, ("num_gpus",), "message_size", "latency")
        self._small: dict[tuple[str, int], Curve] = {}
        self.product_ms = cache(self._product_ms)

    def _read(self, path: str, **equal: object) -> pa.Table:
        return read(self._root / "aiconfigurator" / self.gpu.name / path, **equal)

    def _table(self, kind: str, name: str, **equal: object) -> pa.Table:
        return self._read(f"{kind}/vllm/{self.gpu.vllm}/{name}.parquet", **equal)

    def _attention_table(self, kind: str) -> pa.Table:
        table = self._table("attention", f"{kind}_attention_perf", head_dim=128, kv_cache_dtype="bfloat16")
        return where(table, window_size=0) if "window_size" in table.column_names else table

    def _product_ms(self, tokens: int, columns: int, inner: int) -> float:
        """(tokens, inner) x (inner, columns) [ms], between measured shapes in proportion."""
        return sum(
            n_share * k_share * _along(self._gemm[n, k], tokens)
            for n, n_share in _shares(columns, self._columns)
            for k, k_share in _shares(inner, self._inner)
        )

    def gemm_ms(self, model: Architecture, tp: int, tokens: int) -> float:
        """The four matrix products of one layer on one GPU [ms]."""
        shapes = products(model, tp)
        return sum(self.product_ms(tokens, n, k) for n, k in shapes.values())

    def head_ms(self, model: Architecture, tp: int, sequences: int) -> float:
        """The output layer, one token a sequence [ms]."""
        return self.product_ms(sequences, model.vocabulary // tp, model.hidden)

    def elementwise_ms(self, model: Architecture, tp: int, tokens: int) -> float:
        """Norms, rotary embedding, activation and additions of one layer [ms]."""
        key = (MODELS[model.name][0], tp)
        if key not in self._small:
            path = self._root / "vidur" / "mlp.parquet"
            table = read(path, hardware=self.gpu.elementwise, model=key[0], num_tensor_parallel_workers=tp)
            self._small[key] = _summed(table)
        known, times = self._small[key]
        if tokens > known[-1]:
            return float(times[-1] * tokens / known[-1])
        return float(np.interp(tokens, known, times))

    def all_reduce_ms(self, model: Architecture, tp: int, tokens: int, *, kernel: str = "faster") -> float:
        """One all-reduce over ``tp`` GPUs [ms]; ``kernel``: custom, nccl, or the faster of the two."""
        if tp == 1:
            return 0.0
        curves = {"custom": self._custom[tp,], "nccl": self._nccl[tp,]}
        chosen = curves.values() if kernel == "faster" else [curves[kernel]]
        return min(_along(curve, tokens * model.hidden) for curve in chosen)

    def attention_ms(self, model: Architecture, tp: int, kind: str, batch: int, length: int) -> float:
        """Attention of one layer [ms]; ``kind`` context: prompt length; generation: context. Both on the grid."""
        known, times = self._attention[kind][model.heads // tp, max(1, model.kv_heads // tp), batch]
        return float(times[int(np.flatnonzero(known == length)[0])])

    @property
    def most_tokens(self) -> int:
        """The largest matrix product that was measured [tokens]."""
        return int(max(curve[0][-1] for curve in self._gemm.values()))

    def prefill_grid(self, model: Architecture, tp: int) -> list[tuple[int, int]]:
        """(batch, prompt length) that the attention table holds for the model."""
        return self._grid("context", model, tp)

    def decode_grid(self, model: Architecture, tp: int) -> list[tuple[int, int]]:
        """(batch, context) that the attention table holds; a step attends to the new token too."""
        return [(batch, step + 1) for batch, step in self._grid("generation", model, tp)]

    def _grid(self, kind: str, model: Architecture, tp: int) -> list[tuple[int, int]]:
        heads = (model.heads // tp, max(1, model.kv_heads // tp))
        curves = {key[2]: curve for key, curve in self._attention[kind].items() if key[:2] == heads}
        return [(batch, int(length)) for batch in sorted(curves) for length in curves[batch][0]]


def products(model: Architecture, tp: int) -> dict[str, tuple[int, int]]:
    """(columns, inner) of the matrix products of one layer on one of ``tp`` GPUs."""
    q = model.heads // tp * model.head_dim
    kv = max(1, model.kv_heads // tp) * model.head_dim
    return {
        "qkv": (q + 2 * kv, model.hidden),
        "attention output": (model.hidden, q),
        "MLP gate and up": (2 * model.width // tp, model.hidden),
        "MLP down": (model.hidden, model.width // tp),
    }


def prefill_parts_ms(kernels: Kernels, model: Architecture, tp: int, batch: int, length: int) -> tuple[float, ...]:
    """PARTS of the prefill of ``batch`` prompts of ``length`` tokens, whole model [ms]."""
    n = batch * length
    attention = kernels.attention_ms(model, tp, "context", batch, length)
    return _parts(kernels, model, tp, n, batch, attention)


def decode_parts_ms(kernels: Kernels, model: Architecture, tp: int, batch: int, context: int) -> tuple[float, ...]:
    """PARTS of one decode step of ``batch`` sequences with ``context`` tokens each, whole model [ms]."""
    attention = kernels.attention_ms(model, tp, "generation", batch, context - 1)
    return _parts(kernels, model, tp, batch, batch, attention)


def _parts(
    kernels: Kernels, model: Architecture, tp: int, tokens: int, sequences: int, attention_ms: float
) -> tuple[float, ...]:
    each = (
        kernels.gemm_ms(model, tp, tokens),
        kernels.elementwise_ms(model, tp, tokens),
        2 * kernels.all_reduce_ms(model, tp, tokens),
        attention_ms,
    )
    return (*(model.layers * ms for ms in each), kernels.head_ms(model, tp, sequences))


def read(path: Path, **equal: object) -> pa.Table:
    """A parquet table, rows whose columns have the given values. Raises TraceError when there is no such file."""
    if not path.is_file():
        raise TraceError(f"{path}: no such table; give the folder of measurements that holds it")
    return where(pq.read_table(path), **equal)


def where(table: pa.Table, **equal: object) -> pa.Table:
    """The rows whose columns have the given values."""
    for name, value in equal.items():
        table = table.filter(pc.equal(table[name], value))
    return table


def _curves(table: pa.Table, keys: tuple[str, ...], along: str, value: str) -> dict[tuple[Any, ...], Curve]:
    """Rows gathered by ``keys``, each a curve of ``value`` along ``along``; the same point twice is averaged."""
    gathered: dict[tuple[Any, ...], dict[int, list[float]]] = {}
    columns = [table[name].to_pylist() for name in (*keys, along, value)]
    for *key, x, y in zip(*columns, strict=True):
        gathered.setdefault(tuple(key), {}).setdefault(x, []).append(y)
    return {key: _curve(points) for key, points in gathered.items()}


def _curve(points: dict[int, list[float]]) -> Curve:
    xs = sorted(points)
    return np.array(xs, dtype=np.float64), np.array([float(np.mean(points[x])) for x in xs])


def _summed(table: pa.Table) -> Curve:
    """Medians of the elementwise operations, summed, along tokens."""
    tokens = table["num_tokens"].to_pylist()
    rows = zip(*(table[f"time_stats.{name}.median"].to_pylist() for name in SMALL_OPERATIONS), strict=True)
    points: dict[int, list[float]] = {}
    for n, row in zip(tokens, rows, strict=True):
        points.setdefault(n, []).append(sum(row))
    return _curve(points)


def _along(curve: Curve, x: float) -> float:
    """Between points straight on logarithmic axes, beyond the last in proportion."""
    xs, ys = curve
    if x > xs[-1]:
        return float(ys[-1] * x / xs[-1])
    return float(np.exp(np.interp(np.log(x), np.log(xs), np.log(ys))))


def _shares(size: int, known: list[int]) -> list[tuple[int, float]]:
    """The measured sizes next to ``size`` and what each counts; beyond the last in proportion."""
    if size in known:
        return [(size, 1.0)]
    if size > known[-1]:
        return [(known[-1], size / known[-1])]
    high = next(each for each in known if each > size)
    low = known[known.index(high) - 1]
    share = (size - low) / (high - low)
    return [(low, 1 - share), (high, share)]


def read_figures(measurements: Path, figure: str, setting: str, series: str) -> Curve:
    """One digitised curve of the papers: x and value."""
    with (measurements / "mooncake" / "paper_figures_digitized.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["figure"] == figure]
    points = [(float(r["x"]), float(r["value"])) for r in rows if (r["setting"], r["series"]) == (setting, series)]
    return np.array([x for x, _ in points]), np.array([y for _, y in points])
