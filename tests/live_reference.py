"""A plain prefill in numpy's float64: one token, one head, one key at a time; shares nothing with the live kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

ROPE_BASE = 500_000.0
EPSILON = 1e-5


@dataclass(frozen=True)
class Plain:
    """What each layer attended to and wrote, and the last token's logits."""

    attention: np.ndarray
    """(layers, tokens, heads x head_dim)."""
    kv: np.ndarray
    """(layers, tokens, 2, kv_heads, head_dim), of the new tokens."""
    logits: np.ndarray
    """(vocabulary,)."""


def numpy(tensor: Any) -> np.ndarray:
    """A torch tensor of any type, on any device, in float64."""
    return tensor.detach().cpu().double().numpy()


def relative_error(found: Any, exact: np.ndarray) -> float:
    """|found - exact| / |exact| as vectors; NaN where a NaN was found."""
    return float(np.linalg.norm(numpy(found) - exact) / np.linalg.norm(exact))


def prefill(shard: Any, inputs: Any, prefix_kv: Any) -> Plain:
    """``inputs`` (tokens, hidden) after ``prefix_kv`` (layers, prefix, 2, kv_heads, head_dim)."""
    hidden, attentions, stored = numpy(inputs), [], []
    for layer, before in zip(shard.layers, numpy(prefix_kv), strict=True):
        cache, outputs = list(before), []
        for token in hidden:
            query, new = project(shard, layer, token, position=len(cache))
            cache.append(new)
            outputs.append(attend(query, np.array(cache)))
        attentions.append(np.array(outputs))
        stored.append(np.array(cache[len(before) :]))
        hidden = np.array([after(layer, *pair) for pair in zip(hidden, outputs, strict=True)])
    logits = numpy(shard.head) @ normed(hidden[-1], shard.final_norm)
    return Plain(np.array(attentions), np.array(stored), logits)


def project(shard: Any, layer: Any, token: np.ndarray, position: int) -> tuple[np.ndarray, np.ndarray]:
    """One token's query (heads, head_dim) and its K and V (2, kv_heads, head_dim), turned to its position."""
    parts = (numpy(layer.qkv) @ normed(token, layer.norm)).reshape(-1, shard.head_dim)
    query, key, value = np.split(parts, [shard.heads, shard.heads + shard.kv_heads])
    return turned(query, position), np.array([turned(key, position), value])


def turned(heads: np.ndarray, position: int) -> np.ndarray:
    """Pair j of a head is its entries j and j + half; it turns by position / base^(2 j / head_dim)."""
    size = heads.shape[1]
    out = heads.copy()
    for j in range(size // 2):
        angle = position / ROPE_BASE ** (2 * j / size)
        rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        pair = [j, j + size // 2]
        out[:, pair] = heads[:, pair] @ rotation.T
    return out


def attend(query: np.ndarray, cache: np.ndarray) -> np.ndarray:
    """One token's query over all that is cached, itself included: consecutive query heads share a KV head."""
    sharing = len(query) // cache.shape[2]
    outputs = []
    for number, head in enumerate(query):
        keys, values = cache[:, 0, number // sharing], cache[:, 1, number // sharing]
        weights = np.exp(keys @ head / np.sqrt(len(head)))
        outputs.append(weights @ values / weights.sum())
    return np.concatenate(outputs)


def after(layer: Any, token: np.ndarray, attention: np.ndarray) -> np.ndarray:
    """One token after the output projection and the gated MLP, each added to what came in."""
    token = token + numpy(layer.output) @ attention
    gate, up = np.split(numpy(layer.gate_up) @ normed(token, layer.mlp_norm), 2)
    return token + numpy(layer.down) @ (gate / (1 + np.exp(-gate)) * up)


def normed(token: np.ndarray, scale: Any) -> np.ndarray:
    return token / np.sqrt(np.mean(token**2) + EPSILON) * numpy(scale)
