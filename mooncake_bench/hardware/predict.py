"""Costs of a model on a node where nothing was fitted for it: E5 from its dimensions and the GPU's datasheet.

E5 rounds corners in other ways than E1 and E2 do, so it is reduced to them by a fit on a grid; how far that is off is
said beside E5's own errors.
"""

from __future__ import annotations

from dataclasses import astuple
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.errors import SetupError
from mooncake_bench.hardware import physical
from mooncake_bench.hardware.analytic import Coefficients
from mooncake_bench.hardware.calibrate.forms import coefficients, fit_decode, fit_prefill
from mooncake_bench.hardware.calibrate.rows import DecodeRows, PrefillRows
from mooncake_bench.hardware.datasheets import load_fitted, load_gpu
from mooncake_bench.hardware.presets import NodeCosts

if TYPE_CHECKING:
    from mooncake_bench.hardware.architecture import Architecture
    from mooncake_bench.hardware.datasheets import Fitted
    from mooncake_bench.hardware.physical import Gpu

USED_SHARE = 0.9
"""Of GPU memory: weights and KVCache. Activations take from the rest."""
PREFILLS = np.geomspace(16, 131_072, 40)
BATCHES = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512], dtype=np.float64)
MOST_BATCH_OF_EXPERTS = 128
"""Up to here the square root of E2 can follow the experts that a batch wakes; beyond, all are awake and it does not."""
CONTEXTS = (512.0, 4096.0)
DIGITS = 6
QUANTISED_ERROR = (
    "no quantised model was among those fitted (served with FP8 weights, TPOT was off by 2 to 17 % in the median for "
    "Llama-3.1-70B, vLLM on H100 and H200 without engine time, and by 69 to 183 % for Llama-3.1-8B, vLLM on H200)"
)
"""Medians by tensor parallelism, as ``calibrate validate SILICON-DENSE`` prints them."""


@cache
def predicted_costs(model: Architecture, gpu_name: str, gpus: int) -> NodeCosts:
    """What ``model`` costs on ``gpus`` GPUs of a datasheet, split over all of them.

    Raises SetupError where it does not fit into their memory, cannot be split so, spans more than one node, or has
    weights of more bytes than any that was fitted.
    """
    gpu = load_gpu(gpu_name)
    fitted = load_fitted(gpu.efficiencies)
    _check(model, gpu, gpus)
    vram_tokens = _vram_tokens(model, gpu, gpus)
    reduced, off = _reduced(model, gpu, gpus, fitted)
    return NodeCosts(
        status="predicted",
        source=f"E5 from the model's dimensions and the datasheet of {gpu.description}; parameters of {fitted.source}",
        error=_error(model, gpu, fitted, off, cache_copies(model, gpus)),
        short=_short(model, gpu, fitted),
        vram_tokens=vram_tokens,
        coefficients=reduced,
    )


def cache_copies(model: Architecture, gpus: int) -> float:
    """How often a token's KVCache is held when attention is split over ``gpus``: heads cannot be cut, nor MLA's vector.

    Attention in data parallel would hold MLA's once; it is not modelled.
    """
    return float(gpus) if model.latent else max(1.0, gpus / model.kv_heads)


def _check(model: Architecture, gpu: Gpu, gpus: int) -> None:
    widest = max(model.weight_bytes, model.expert_weight_bytes)
    if widest > physical.ACTIVATION_BYTES:
        raise SetupError(
            f"{model.name} has weights of {widest:g} bytes: no cost can be predicted beyond "
            f"{physical.ACTIVATION_BYTES}, and servers load such checkpoints in bf16: set torch_dtype to bfloat16 "
            "(weight_bytes to 2 in a .toml file) in a copy of the file"
        )
    if gpus > physical.MOST_GPUS:
        raise SetupError(
            f"{model.name} on {gpus} x {gpu.name}: no cost can be predicted beyond {physical.MOST_GPUS} GPUs, the "
            "largest node whose all-reduce was measured; give the node file a table of costs of your own"
        )
    if model.heads % gpus:
        raise SetupError(f"{model.name} has {model.heads} heads, which {gpus} GPUs cannot share: expected a divisor")
    room, weights = USED_SHARE * gpu.memory_bytes * gpus, model.total_weight_bytes
    if weights >= room:
        least = int(weights / (USED_SHARE * gpu.memory_bytes)) + 1
        smaller = room / weights * model.weight_bytes
        raise SetupError(
            f"{model.name} does not fit: its weights are {weights / 1e9:,.1f} GB, and 0.9 of {gpus} x {gpu.name} "
            f"({gpu.memory_bytes / 1e9:.1f} GB each) is {room / 1e9:,.1f} GB; it would take {least} such GPUs"
            f"{' (more than one node, which cannot be predicted)' if least > physical.MOST_GPUS else ''}, "
            f"a GPU with more memory, or weights of less than {smaller:.2f} bytes (it has {model.weight_bytes:g})"
        )


def _vram_tokens(model: Architecture, gpu: Gpu, gpus: int) -> int:
    room = USED_SHARE * gpu.memory_bytes * gpus - model.total_weight_bytes
    tokens = int(room / (model.kv_bytes_per_token * cache_copies(model, gpus)))
    if tokens <= 0:
        raise SetupError(
            f"{model.name} leaves {room / 1e6:,.1f} MB of {gpus} x {gpu.name} for KVCache: expected room for a token"
        )
    return tokens


def _reduced(model: Architecture, gpu: Gpu, gpus: int, fitted: Fitted) -> tuple[Coefficients, tuple[float, float]]:
    """E1 and E2 closest to E5, and the 90th percentile of what they are off by in prefill and in decode [%]."""
    prefills = _prefill_rows(model, gpu, gpus, fitted)
    decodes = _decode_rows(model, gpu, gpus, fitted)
    token2_ms = 2 * model.heads * physical.score_dims(model) / (gpus * gpu.bf16_flops) * 1e3
    token2_ms *= model.layers / fitted.efficiencies.score_math
    prefill = fit_prefill(prefills, token2_ms=token2_ms)
    decode = fit_decode(decodes, root=True)
    off = (
        float(np.percentile(np.abs(form.predict(rows) / rows.ms - 1), 90)) * 100  # type: ignore[arg-type]
        for form, rows in ((prefill, prefills), (decode, decodes))
    )
    exact = coefficients(prefill, decode)
    return Coefficients(*(float(f"{value:.{DIGITS}g}") for value in astuple(exact))), (next(off), next(off))


def _prefill_rows(model: Architecture, gpu: Gpu, gpus: int, fitted: Fitted) -> PrefillRows:
    s = PREFILLS**2 / 2
    work = physical.prefill_work(model, gpu, gpus, PREFILLS, s)
    return PrefillRows(PREFILLS, s, physical.step_ms(work, fitted.efficiencies))


def _decode_rows(model: Architecture, gpu: Gpu, gpus: int, fitted: Fitted) -> DecodeRows:
    batches = BATCHES[BATCHES <= MOST_BATCH_OF_EXPERTS] if model.experts else BATCHES
    batch = np.repeat(batches, len(CONTEXTS))
    tokens = batch * np.tile(CONTEXTS, len(batches))
    work = physical.decode_work(model, gpu, gpus, batch, tokens)
    return DecodeRows(batch, tokens, physical.step_ms(work, fitted.efficiencies))


def _error(model: Architecture, gpu: Gpu, fitted: Fitted, off: tuple[float, float], copies: float) -> str:
    worst = fitted.left_out_model
    parts = [
        f"on dense models left out of the fit E5 on {fitted.name} is off by "
        f"{worst.prefill_median:.1f}/{worst.prefill_p90:.1f} % in prefill and "
        f"{worst.decode_median:.1f}/{worst.decode_p90:.1f} % in decode (median/p90 of the worst model, kernel sums)",
        f"E1 and E2 are within {off[0]:.1f} and {off[1]:.1f} % of it (p90)",
    ]
    if model.experts:
        parts.append(
            f"with experts {fitted.expert_error}, with an engine's time in it, so only engine none, or one fitted on "
            "top, goes with it"
        )
        parts.append(f"batches above {MOST_BATCH_OF_EXPERTS} are outside what the square root of E2 can follow")
    elif _is_quantised(model):
        parts.append(QUANTISED_ERROR)
    if gpu.served:
        parts.append(gpu.served)
    if model.latent:
        parts.append("prefill of latent attention was held against no measurement")
    if copies > 1:
        parts.append(f"a token's KVCache is held {copies:g} times")
    if gpu.reduce_source:
        parts.append(f"its all-reduce is {gpu.reduce_source}")
    return ", ".join(parts)


def _is_quantised(model: Architecture) -> bool:
    return model.weight_bytes < physical.ACTIVATION_BYTES


def _short(model: Architecture, gpu: Gpu, fitted: Fitted) -> str:
    worst = fitted.left_out_model
    short = (
        f"from dimensions and datasheet, off by {worst.prefill_median:.1f}/{worst.prefill_p90:.1f} % in prefill, "
        f"{worst.decode_median:.1f}/{worst.decode_p90:.1f} % in decode on models left out (median/p90)"
    )
    if model.experts:
        short = f"{short}, {fitted.expert_short}"
    elif _is_quantised(model):
        short = f"{short}, none of them quantised"
    return f"{short}, {gpu.served_short}" if gpu.served_short else short
