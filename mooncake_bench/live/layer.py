"""The arithmetic of one transformer layer, in torch kernels: what prefill and decode steps are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from mooncake_bench.live.shard import NORM_EPSILON

if TYPE_CHECKING:
    from mooncake_bench.live.shard import Layer, Shard

Rotation = tuple[Any, Any]


def project(shard: Shard, layer: Layer, hidden: Any, rotation: Rotation) -> tuple[Any, Any]:
    """Normalised, projected and rotated: query (rows, heads, head_dim) and KV (rows, 2, kv_heads, head_dim)."""
    normed = functional.rms_norm(hidden, (shard.hidden,), layer.norm, NORM_EPSILON)
    qkv = functional.linear(normed, layer.qkv).view(len(hidden), -1, shard.head_dim)
    keyed = shard.heads + shard.kv_heads
    rotated = _rotate(qkv[:, :keyed], *rotation)
    new = torch.stack((rotated[:, shard.heads :], qkv[:, keyed:]), dim=1)
    return rotated[:, : shard.heads], new


def finish(shard: Shard, layer: Layer, hidden: Any, attention: Any) -> Any:
    """Hidden states after the output projection and the gated MLP; ``attention`` is (rows, heads x head_dim)."""
    hidden = hidden + functional.linear(attention, layer.output)
    normed = functional.rms_norm(hidden, (shard.hidden,), layer.mlp_norm, NORM_EPSILON)
    gate, up = functional.linear(normed, layer.gate_up).split(shard.width, dim=1)
    return hidden + functional.linear(functional.silu(gate) * up, layer.down)


def logits(shard: Shard, hidden: Any) -> Any:
    """This rank's part of the vocabulary for each row."""
    normed = functional.rms_norm(hidden, (shard.hidden,), shard.final_norm, NORM_EPSILON)
    return functional.linear(normed, shard.head)


def attend_causally(shard: Shard, query: Any, kv: Any) -> Any:
    """Attention of the last ``len(query)`` tokens of ``kv``, each over itself and all before it.

    ``query`` is (new, heads, head_dim), ``kv`` (prefix + new, 2, kv_heads, head_dim); gives (new, heads x head_dim).
    """
    attention = _attend_on_gpu if shard.device.cuda else _attend_on_cpu
    return attention(_heads_first(query), _heads_first(kv[:, 0]), _heads_first(kv[:, 1])).flatten(1)


def attend_once(shard: Shard, query: Any, keys: Any, values: Any) -> Any:
    """Attention of one new token of each sequence over its whole context, its own token included.

    ``query`` is (batch, heads, head_dim), ``keys`` and ``values`` (batch, context, kv_heads, head_dim). The heads
    that share a KV head stand as rows of one query, so no kernel has to know of groups.
    """
    grouped = query.view(len(query), shard.kv_heads, -1, shard.head_dim)
    found = functional.scaled_dot_product_attention(grouped, keys.transpose(1, 2), values.transpose(1, 2))
    return found.reshape(len(query), -1)


def _attend_on_gpu(query: Any, keys: Any, values: Any) -> Any:
    """Flash attention aligned to the last key; float32, which it lacks, takes the memory-efficient kernel."""
    new, total = query.shape[2], keys.shape[2]
    groups = query.shape[1] // keys.shape[1]
    if query.dtype == torch.float32 and groups > 1:  # that kernel knows no groups
        keys, values = (part.repeat_interleave(groups, dim=1) for part in (keys, values))
        groups = 1
    mask = None
    if new < total:  # imported here: it takes seconds, and a CPU has no use for it; a GPU's trial has done it before
        from torch.nn.attention.bias import causal_lower_right

        mask = causal_lower_right(new, total)
    found = functional.scaled_dot_product_attention(
        query, keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=groups > 1
    )
    return found[0].transpose(0, 1)


def _attend_on_cpu(query: Any, keys: Any, values: Any) -> Any:
    """Flash attention, whose mask ends at the first key: new tokens over each other, and over the prefix without one.

    The two are joined by their shares of the whole softmax, which the sums of their exponentials are.
    """
    prefix = keys.shape[2] - query.shape[2]
    groups = query.shape[1] // keys.shape[1]
    keys, values = (part.repeat_interleave(groups, dim=1) for part in (keys, values))
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    found, log_sum = flash(query, keys[:, :, prefix:], values[:, :, prefix:], 0.0, True)
    if prefix:
        before, log_before = flash(query, keys[:, :, :prefix], values[:, :, :prefix], 0.0, False)
        share = torch.sigmoid(log_sum - log_before)[..., None]
        found = torch.lerp(before.float(), found.float(), share).to(query.dtype)
    return found[0].transpose(0, 1)


def _heads_first(rows: Any) -> Any:
    """(tokens, heads, head_dim) seen as a batch of one: (1, heads, tokens, head_dim)."""
    return rows.transpose(0, 1).unsqueeze(0)


def _rotate(heads: Any, cosine: Any, sine: Any) -> Any:
    """Rotary positions: the halves of each head turned by its row's angles."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
