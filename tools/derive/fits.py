"""From kernel sums to coefficients: the rows, what single kernels tell and is held fixed, the fits, their errors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from derive.compose import decode_parts_ms, prefill_parts_ms
from derive.linear import weights_of
from mooncake_bench.hardware.calibrate.forms import fit_decode, fit_prefill
from mooncake_bench.hardware.calibrate.heldout import heldout
from mooncake_bench.hardware.calibrate.rows import DecodeRows, PrefillRows

if TYPE_CHECKING:
    from collections.abc import Callable

    from derive.compose import Kernels
    from mooncake_bench.hardware.architecture import Architecture
    from mooncake_bench.hardware.calibrate.forms import Decode, Prefill
    from mooncake_bench.hardware.presets import HeldOut

TP = 8
"""Tensor parallelism of every preset: all GPUs of a node."""
LEAST_PROMPT, LEAST_CONTEXT, MOST_BATCH = 16, 128, 512
USED_SHARE = 0.9
"""Of the GPUs' memory: weights and KVCache; it bounds the contexts of a decode step."""
HAND_OVER_ELEMENTS = 4 * 2**20
"""vLLM's own all-reduce serves messages below 8 MiB, 4 Mi elements of two bytes; from there on NCCL does."""
LATE_ON = ("a100",)
"""Where that hand-over is a jump (``--cause``): on H100 and H200 NCCL is no slower than what it follows."""
ROOTED = ("h100", "h200")
"""Where the square root of E2 earns its place; on A100 it comes out as 0."""


@dataclass(frozen=True)
class Fitted:
    """Coefficients of one model on one node, and their errors on rows held out."""

    prefill: Prefill
    decode: Decode
    prefill_error: HeldOut
    decode_error: HeldOut


def prefill_rows(kernels: Kernels, model: Architecture, tp: int = TP) -> PrefillRows:
    """Kernel sums of all prefills that the tables hold: prompts from 16 tokens, batches up to the largest product."""
    grid = [
        (batch, length)
        for batch, length in kernels.prefill_grid(model, tp)
        if length >= LEAST_PROMPT and batch * length <= kernels.most_tokens
    ]
    batch, length = np.array(grid, dtype=np.float64).T
    ms = np.array([sum(prefill_parts_ms(kernels, model, tp, *each)) for each in grid])
    return PrefillRows(batch * length, batch * length**2 / 2, ms)


def decode_rows(kernels: Kernels, model: Architecture, tp: int = TP, least_context: int = LEAST_CONTEXT) -> DecodeRows:
    """Kernel sums of all decode steps of 1 to 512 sequences whose KVCache fits beside the weights."""
    room = USED_SHARE * tp * kernels.gpu.grid_bytes - model.total_weight_bytes
    grid = [
        (batch, context)
        for batch, context in kernels.decode_grid(model, tp)
        if batch <= MOST_BATCH and context >= least_context and batch * context * model.kv_bytes_per_token <= room
    ]
    batch, context = np.array(grid, dtype=np.float64).T
    ms = np.array([sum(decode_parts_ms(kernels, model, tp, *each)) for each in grid])
    return DecodeRows(batch, batch * context, ms)


def token2_ms(kernels: Kernels, model: Architecture, tp: int = TP) -> float:
    """c of E1 from the attention kernel alone, o + a n + c S: prompts of whole steps are too short to tell it."""
    grid = [each for each in kernels.prefill_grid(model, tp) if each[1] >= LEAST_PROMPT]
    batch, length = np.array(grid, dtype=np.float64).T
    n, s = batch * length, batch * length**2 / 2
    ms = model.layers * np.array([kernels.attention_ms(model, tp, "context", *each) for each in grid])
    return float(weights_of(np.stack([np.ones_like(n), n, s], axis=1), ms)[2])


def prefill_fit(kernels: Kernels, model: Architecture, tp: int = TP) -> Callable[[PrefillRows], Prefill]:
    """How a preset's prefill is fitted: c held fixed, and where the late term sets in where there is one."""
    token2 = token2_ms(kernels, model, tp)
    if not kernels.gpu.name.startswith(LATE_ON):
        return partial(fit_prefill, late=False, token2_ms=token2)
    return partial(fit_prefill, token2_ms=token2, late_tokens=HAND_OVER_ELEMENTS / model.hidden)


def decode_fit(kernels: Kernels) -> Callable[[DecodeRows], Decode]:
    """How a preset's decode is fitted: with the square root where it earns its place."""
    return partial(fit_decode, root=kernels.gpu.name.startswith(ROOTED))


def fitted(kernels: Kernels, model: Architecture) -> Fitted:
    """One preset: fitted to all rows, its errors from halves and from each prompt total or batch size left out."""
    prefill, decode = prefill_rows(kernels, model), decode_rows(kernels, model)
    of_prefill, of_decode = prefill_fit(kernels, model), decode_fit(kernels)
    return Fitted(
        of_prefill(prefill),
        of_decode(decode),
        heldout(prefill, of_prefill, prefill.n),
        heldout(decode, of_decode, decode.batch),
    )
