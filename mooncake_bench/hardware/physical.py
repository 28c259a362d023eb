"""The physical form (E5): what a step of any model takes, from its dimensions and a GPU's datasheet.

One set of efficiencies a kind of GPU serves all models and tensor parallelisms. A layer on one of TP GPUs, n tokens:

products      ((W s / (TP BW beta))^p + (2 W n / (TP F eta))^p)^(1/p)    W weights of s bytes: read, or multiplied
elementwise   (kappa 2 n d + kappa_s 2 n a / TP) / BW                    d hidden, a: values that are split over GPUs
all-reduce    2 (alpha + x / eps + rho sqrt(x)),  x = 2 n d 2 (TP-1)/TP / NV
attention     4 h d_h (S + g n) / (TP F eta_a) + o_ap                    prefill, S = n p + n^2/2
              v s_kv T / (BW beta_kv) + c_u B u + o_ad                   decode; of v values a token, u heads a GPU
constant      o_l, and o_e more where there are experts

and once a step the output layer's products. With experts W is what n tokens wake: of E experts, each token taking k,
E (1 - (1 - k/E)^n) are read, k multiplied with. With latent attention (MLA) every GPU reads the whole cached vector.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from mooncake_bench.hardware.architecture import Architecture

    Array = NDArray[np.float64]

ACTIVATION_BYTES = 2
MOST_GPUS = 8
"""All-reduce was measured among the GPUs of one node; between nodes nothing was."""
_MS = 1e3


@dataclass(frozen=True)
class Gpu:
    """A GPU's datasheet."""

    name: str
    description: str
    source: str
    bf16_flops: float
    """Dense tensor-core FLOP/s."""
    fp8_flops: float
    """The same in 8 bits; as in bf16 where it has no such units."""
    memory_bytes: float
    memory_bytes_per_s: float
    link_bytes_per_s: float
    """NVLink, one direction."""
    reduce_link_bytes_per_s: float
    """The link with which the fitted parameters give its all-reduce: its own unless told."""
    reduce_source: str
    """Why, where nothing was measured on it; else empty."""
    efficiencies: str
    """Whose fitted :class:`Efficiencies` it has."""
    served: str = ""
    """What whole steps on it were held against predictions, where that says more than the fits' errors; else empty."""
    served_short: str = ""
    """The same in so many words as fit the head of a report."""

    def flops(self, weight_bytes: float) -> float:
        """FLOP/s at which products with such weights run: fewer than 8 bits are unpacked to bf16 first."""
        if weight_bytes == 1:
            return self.fp8_flops
        return self.bf16_flops if weight_bytes <= ACTIVATION_BYTES else self.bf16_flops / 2  # TF32


@dataclass(frozen=True)
class Efficiencies:
    """The fitted parameters of a kind of GPU; the letters are those of the formula."""

    memory: float
    """beta."""
    math: float
    """eta."""
    power: float
    """p."""
    passes: float
    """kappa: how often a layer's hidden vectors pass through memory, both ways."""
    split_passes: float
    """kappa_s: the same of values that are split over the GPUs."""
    layer_us: float
    """o_l."""
    reduce_us: float
    """alpha."""
    link: float
    """eps."""
    reduce_root: float
    """rho [sqrt(ms)]."""
    score_math: float
    """eta_a."""
    score_tokens: float
    """g."""
    score_us: float
    """o_ap."""
    cache: float
    """beta_kv."""
    cache_unit_us: float
    """c_u."""
    cache_us: float
    """o_ad."""
    expert_us: float = 0.0
    """o_e, on top of o_l where there are experts: routing and sorting tokens, and what an engine adds."""


@dataclass(frozen=True)
class Work:
    """What steps move and compute on one GPU, as times at the datasheet's peaks [ms], each (N,)."""

    dense_layers: Array
    dense_read: Array
    dense_math: Array
    expert_layers: Array
    mixed_read: Array
    """A layer with experts: what every token reads."""
    expert_read: Array
    """The experts that these tokens wake."""
    expert_math: Array
    passes: Array
    split_passes: Array
    reduce: Array
    """x."""
    score: Array
    score_token: Array
    cache: Array
    cache_units: Array
    head_read: Array
    head_math: Array
    is_decode: Array
    reduces: Array

    @classmethod
    def joined(cls, parts: Sequence[Work]) -> Work:
        """The steps of all ``parts``."""
        return cls(*(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(cls)))


def prefill_work(model: Architecture, gpu: Gpu, gpus: int, n: Array, s: Array, sequences: Array | float = 1.0) -> Work:
    """Prefills of ``n`` computed tokens and ``s`` = sum of n p + n^2/2 [token^2]; one output token a sequence."""
    zeros = np.zeros_like(n)
    score = 2 * model.heads * score_dims(model) / (gpus * gpu.bf16_flops) * _MS
    return _work(model, gpu, gpus, n, sequences + zeros, score * s, score * n, zeros, zeros, zeros)


def decode_work(model: Architecture, gpu: Gpu, gpus: int, batch: Array, tokens: Array) -> Work:
    """Decode steps of ``batch`` sequences with ``tokens`` of context in all."""
    zeros = np.zeros_like(batch)
    heads = 1.0 if model.latent else max(model.kv_heads / gpus, 1.0)
    values = model.kv_values_per_token / (1 if model.latent else model.kv_heads) * heads
    cache = values * model.kv_value_bytes * tokens / gpu.memory_bytes_per_s * _MS
    return _work(model, gpu, gpus, batch, batch, zeros, zeros, cache, heads * batch, zeros + 1)


def score_dims(model: Architecture) -> int:
    """Dimensions of a head's key and value together: what a pair of tokens costs, in multiplications."""
    if model.latent is None:
        return 2 * model.head_dim
    return model.latent.plain_dim + model.latent.rope_dim + model.latent.value_dim


def _work(
    model: Architecture, gpu: Gpu, gpus: int, n: Array, sequences: Array,
    score: Array, score_token: Array, cache: Array, cache_units: Array, is_decode: Array,
) -> Work:  # fmt: skip
    zeros = np.zeros_like(n)
    experts, taken = (model.experts.experts, model.experts.experts_per_token) if model.experts else (1, 0)
    dense = model.attention_parameters + model.mlp_parameters
    mixed = model.attention_parameters + model.always_on_parameters
    read = model.weight_bytes / (gpus * gpu.memory_bytes_per_s) * _MS
    expert_read = model.expert_weight_bytes / (gpus * gpu.memory_bytes_per_s) * _MS * model.expert_parameters
    math = 2 / (gpus * gpu.flops(model.weight_bytes)) * _MS
    expert_math = 2 / (gpus * gpu.flops(model.expert_weight_bytes)) * _MS * model.expert_parameters
    token = ACTIVATION_BYTES / gpu.memory_bytes_per_s * _MS * n
    return Work(
        dense_layers=zeros + model.dense_layers,
        dense_read=zeros + dense * read,
        dense_math=dense * math * n,
        expert_layers=zeros + model.layers - model.dense_layers,
        mixed_read=zeros + mixed * read,
        expert_read=expert_read * woken_experts(experts, taken, n),
        expert_math=(mixed * math + expert_math * taken) * n,
        passes=token * model.hidden,
        split_passes=token * split_values(model) / gpus,
        reduce=ACTIVATION_BYTES * model.hidden * 2 * (gpus - 1) / gpus / gpu.reduce_link_bytes_per_s * _MS * n,
        score=score,
        score_token=score_token,
        cache=cache,
        cache_units=cache_units,
        head_read=zeros + model.head_parameters * read,
        head_math=model.head_parameters * math * sequences,
        is_decode=is_decode,
        reduces=zeros + (gpus > 1),
    )


def woken_experts(experts: int, taken: int, tokens: Array) -> Array:
    """How many of a layer's experts ``tokens`` wake, each taking ``taken`` at random: the expected number."""
    return experts * (1 - (1 - taken / experts) ** tokens)


def split_values(model: Architecture) -> float:
    """Values a token that attention and MLP pass on within a layer, split over the GPUs; layers' mean."""
    attention = (model.heads + 2 * model.kv_heads) * model.head_dim
    if model.latent:
        attention = model.heads * model.head_dim + model.latent.kv_rank + model.latent.rope_dim
    widths = model.dense_layers * model.width
    if model.experts:
        per_layer = model.experts.experts_per_token * model.experts.width + model.experts.shared_width
        widths += (model.layers - model.dense_layers) * per_layer
    return attention + 3 * widths / model.layers


def step_ms(work: Work, fitted: Efficiencies) -> Array:
    """(N,) kernel time of each step, without any engine's [ms]."""
    return sum(components(work, fitted).values(), np.zeros_like(work.reduce))


def components(work: Work, fitted: Efficiencies) -> dict[str, Array]:
    """The same, by kind of kernel."""
    layers = work.dense_layers + work.expert_layers
    p = fitted.power
    dense = _rounded(work.dense_read / fitted.memory, work.dense_math / fitted.math, p)
    read = (work.mixed_read + work.expert_read) / fitted.memory
    mixed = _rounded(read, work.expert_math / fitted.math, p) + fitted.expert_us / 1e3
    passes = work.passes * fitted.passes + work.split_passes * fitted.split_passes
    reduce = fitted.reduce_us / 1e3 + work.reduce / fitted.link + fitted.reduce_root * np.sqrt(work.reduce)
    score = (work.score + fitted.score_tokens * work.score_token) / fitted.score_math + fitted.score_us / 1e3
    cache = work.cache / fitted.cache + fitted.cache_unit_us / 1e3 * work.cache_units + fitted.cache_us / 1e3
    return {
        "products": work.dense_layers * dense + work.expert_layers * mixed,
        "elementwise": layers * (passes + fitted.layer_us / 1e3),
        "reduce": layers * 2 * work.reduces * reduce,
        "attention": layers * np.where(work.is_decode > 0, cache, score),
        "head": _rounded(work.head_read / fitted.memory, work.head_math / fitted.math, 2.0),
    }


def _rounded(read: Array, math: Array, p: float) -> Array:
    """The larger of two times, with the corner between them rounded; scaled first, so that no power overflows."""
    most = np.maximum(read, math)
    least = np.minimum(read, math)
    rounded: Array = most * (1 + (least / most) ** p) ** (1 / p)
    return rounded
