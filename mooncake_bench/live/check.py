"""Whether live kernels are right on a device: against plain float64 arithmetic, and one mode against the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from mooncake_bench.hardware.architecture import Architecture
from mooncake_bench.live.prefill import prefill
from mooncake_bench.live.shard import NORM_EPSILON, ROPE_BASE, Shard

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.live.device import Device
    from mooncake_bench.live.timing import Kernels

LIMITS = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 3e-3}
"""Relative error allowed of attention, KV and logits after two layers: |found - exact| / |exact|, as vectors."""
SHAPES = ((1, 0), (1, 90), (7, 3), (64, 0), (64, 64), (70, 90), (129, 0), (129, 257), (300, 1000))
"""(computed, prefix) tokens: single tokens, whole blocks, and remainders of blocks."""
MODEL = Architecture("check", 2, 256, 8, 2, 64, 688, 1000, 2, 2)
"""Small, with groups of 4 heads and a head size that every attention kernel takes."""


@dataclass(frozen=True)
class Correctness:
    """One shape against float64."""

    dtype: str
    computed: int
    prefix: int
    attention_error: float
    """Relative, the worst layer's."""
    kv_error: float
    logits_error: float
    modes_equal: bool
    """Layer-wise and serialised runs left the same bits."""
    limit: float

    @property
    def passed(self) -> bool:
        """Every error within the limit, and the modes equal; a NaN does not pass."""
        errors = (self.attention_error, self.kv_error, self.logits_error)
        return self.modes_equal and all(error <= self.limit for error in errors)


@dataclass(frozen=True)
class Modes:
    """One length in both modes."""

    computed: int
    prefix: int
    layerwise_ms: float
    serialised_ms: float
    spread: float
    """The larger one of the two."""
    noisy: bool


def correctness(device: Device, shapes: Sequence[tuple[int, int]] = SHAPES, seed: int = 0) -> list[Correctness]:
    """Prefills of a small model of two layers on ``device``, each in both modes and once in float64 on the CPU."""
    shard = Shard(MODEL, 1, MODEL.layers, device, seed)
    return [_correctness(shard, computed, prefix) for computed, prefix in shapes]


def compare_modes(kernels: Kernels, shapes: Sequence[tuple[int, int]]) -> list[Modes]:
    """How long (computed, prefix) takes with KV moved beside the computing, and before and after it."""
    rows = []
    for computed, prefix in shapes:
        beside, apart = (kernels.prefill_ms(computed, prefix, mode) for mode in ("layerwise", "serialised"))
        spread, noisy = max(beside.spread, apart.spread), beside.noisy or apart.noisy
        rows.append(Modes(computed, prefix, beside.median_ms, apart.median_ms, spread, noisy))
    return rows


def relative_error(found: Any, exact: Any) -> float:
    """|found - exact| / |exact| of two tensors as vectors."""
    exact = exact.double()
    return float((found.double().cpu() - exact).norm() / exact.norm())


@dataclass(frozen=True)
class Exact:
    """What :func:`exact_prefill` gives, in float64 on the CPU; shapes as in ``Written``."""

    attention: list[Any]
    kv: Any
    logits: Any


def exact_prefill(shard: Shard, inputs: Any, prefix_kv: Any) -> Exact:
    """The prefill again, in plain float64: whole matrices of scores, a head at a time."""
    hidden, prefix, attentions, stored = _exact(inputs), prefix_kv.shape[1], [], []
    positions = torch.arange(prefix, prefix + len(hidden), dtype=torch.float64)
    for layer, before in zip(shard.layers, _exact(prefix_kv), strict=True):
        heads = (_normed(hidden, layer.norm) @ _exact(layer.qkv).T).view(len(hidden), -1, shard.head_dim)
        query, keys, values = heads.split([shard.heads, shard.kv_heads, shard.kv_heads], dim=1)
        new = torch.stack((_turned(keys, positions), values), dim=1)
        stored.append(new)
        attention = _exact_attention(_turned(query, positions), torch.cat((before, new)))
        attentions.append(attention)
        hidden = hidden + attention @ _exact(layer.output).T
        gate, up = (_normed(hidden, layer.mlp_norm) @ _exact(layer.gate_up).T).chunk(2, dim=1)
        hidden = hidden + (gate / (1 + torch.exp(-gate)) * up) @ _exact(layer.down).T
    logits = _normed(hidden[-1:], shard.final_norm) @ _exact(shard.head).T
    return Exact(attentions, torch.stack(stored), logits)


def _correctness(shard: Shard, computed: int, prefix: int) -> Correctness:
    """One shape, with inputs of its own."""
    with torch.inference_mode():
        inputs = shard.inputs(computed, seed=10 + computed)
        prefix_kv = shard.history(shard.layers_run, prefix, seed=20 + prefix)
        found = prefill(shard, computed, prefix, "layerwise", inputs=inputs, prefix_kv=prefix_kv)
        again = prefill(shard, computed, prefix, "serialised", inputs=inputs, prefix_kv=prefix_kv)
        exact = exact_prefill(shard, inputs, prefix_kv)
        worst = max(relative_error(*pair) for pair in zip(found.attention, exact.attention, strict=True))
        return Correctness(
            dtype=shard.device.dtype,
            computed=computed,
            prefix=prefix,
            attention_error=worst,
            kv_error=relative_error(found.kv, exact.kv),
            logits_error=relative_error(found.logits, exact.logits),
            modes_equal=torch.equal(found.kv, again.kv) and torch.equal(found.logits, again.logits),
            limit=LIMITS[shard.device.dtype],
        )


def _exact_attention(query: Any, kv: Any) -> Any:
    """Each query over the keys up to its own; (new, heads x head_dim)."""
    new, heads, size = query.shape
    hidden_keys = torch.ones(new, len(kv), dtype=torch.bool).triu(len(kv) - new + 1)
    outputs = []
    for head in range(heads):
        shared = head // (heads // kv.shape[2])
        scores = query[:, head] @ kv[:, 0, shared].T / size**0.5
        outputs.append(scores.masked_fill(hidden_keys, float("-inf")).softmax(dim=1) @ kv[:, 1, shared])
    return torch.cat(outputs, dim=1)


def _turned(heads: Any, positions: Any) -> Any:
    """Rotary positions."""
    half = heads.shape[-1] // 2
    angles = positions[:, None, None] * ROPE_BASE ** (-torch.arange(half, dtype=torch.float64) / half)
    turned = torch.complex(heads[..., :half], heads[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((turned.real, turned.imag), dim=-1)


def _normed(rows: Any, scale: Any) -> Any:
    """Root-mean-square normalisation."""
    return rows / (rows.square().mean(dim=1, keepdim=True) + NORM_EPSILON).sqrt() * _exact(scale)


def _exact(part: Any) -> Any:
    return part.detach().cpu().double()
