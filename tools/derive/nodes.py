"""The costs tables of nodes.toml: measured from kernel sums, derived from those of others, and their sentences."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from derive.cause import bus_bytes_per_s
from derive.compose import read_figures
from derive.fits import TP, USED_SHARE, fitted
from mooncake_bench.hardware.calibrate.rows import DecodeRows, PrefillRows
from mooncake_bench.hardware.presets import load_engine, load_model

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from derive.compose import Kernels
    from derive.fits import Fitted
    from mooncake_bench.hardware.architecture import Architecture
    from mooncake_bench.hardware.calibrate.forms import Decode, Prefill
    from mooncake_bench.hardware.presets import HeldOut

SHIPPED = ("llama-3-70b", "llama-3-8b", "qwen3-32b")
MEMORY_BYTES = {"a100": 80 * 2**30, "a800": 80 * 2**30, "h100": 80 * 2**30, "h800": 80 * 2**30, "h200": 141e9}
"""Of one GPU."""
PAPERS_MODEL, PAPERS_NODE, PAPERS_ENGINE = "llama-3-70b", "a800", "mooncake-a800"
LARGE_TOKENS = 16384  # x 8192 values: an all-reduce of 256 MiB, where the bus bandwidth has levelled off
DIGITS = 4

PREAMBLE = """\
# Nodes of 8 GPUs serving a model in bf16 at tensor parallelism 8.
#
# costs.MODEL.prefill: E1, sqrt(floor^2 + (token n)^2) + constant + token2 S + late n^2 / (n^2 + late_tokens^2)
#                      [ms; S = n p + n^2/2]
# costs.MODEL.decode:  E2, (floor^4 + (roof B)^4)^(1/4) + sequence B + root sqrt(B) + token T  [ms]
# Sums of separately measured kernels: no engine time in them (engines.toml has that). Errors are relative, median and
# 90th percentile on rows held out of the fit: the mean of 20 random halves of one grid, so a little optimistic;
# left_out: each prompt total, or batch size, predicted without its own rows. short: for a report's head.
#
# vram_tokens: 0.9 of the GPU memory less the weights, over the bytes of a token; activations are ignored.
# pool_tokens: the DRAM a node lends to the pool. nic_gbytes_per_s: usable bandwidth each way, 1e9 bytes.
#
# The tables [NODE.costs.MODEL] are written by `python tools/derive_presets.py MEASUREMENTS_DIR --write`, not edited by
# hand; all else is. docs/costs.md tells how they are made.
"""


@dataclass(frozen=True)
class Derived:
    """A node without kernel tables: another's kernel sums with a slower all-reduce."""

    of: str
    share: float | None
    """Of the other's bus bandwidth."""
    bytes_per_s: float | None
    """Or the bus bandwidth itself."""
    why: str
    warning: str = ""


DERIVED = {
    "a800": Derived("a100", 200 / 300, None, "a guess (the A100's measured {base:.0f} x 200/300)"),
    "h800": Derived("h100", None, 215e9, "one user's measurement (NVIDIA/nccl issue 1374; the H100's is {base:.0f})",
                    ", and a physical model of Qwen3-8B was 39 % below an H800's measured TTFT at 32k tokens"),
}  # fmt: skip


def shape(model: str) -> Architecture:
    """The dimensions of a bundled model."""
    known = load_model(model).shape
    assert known is not None, model
    return known


def measured(kernels: Mapping[str, Kernels]) -> dict[tuple[str, str], Fitted]:
    """Every (GPU, model) with kernel tables, fitted and rounded as it is written."""
    return {(gpu, model): _rounded(fitted(kernels[gpu], shape(model))) for gpu in kernels for model in SHIPPED}


def tables(
    kernels: Mapping[str, Kernels], fits: Mapping[tuple[str, str], Fitted], measurements: Path
) -> dict[str, str]:
    """The text of all costs tables of each node."""
    parts: dict[str, list[str]] = {}
    for (gpu, model), fit in fits.items():
        source = (
            f"aiconfigurator and vidur kernel tables for {gpu.upper()} SXM, summed over the model's layers"
            if gpu != "h200"
            else "aiconfigurator kernel tables for H200 SXM, summed over the model's layers; "
            "elementwise operations are the H100's"
        )
        off = _off(fit)
        error = f"held-out kernel sums are off by {off} (median/p90), whole bf16 steps were not measured"
        short = f"kernel sums off by {off} (median/p90, held-out)"
        heldouts = (fit.prefill_error, fit.decode_error)
        parts.setdefault(gpu, []).append(
            _table(gpu, model, "measured", source, error, short, fit.prefill, fit.decode, heldouts)
        )
    for node, how in DERIVED.items():
        parts[node] = [_derived(node, how, model, kernels, fits, measurements) for model in SHIPPED]
    return {node: "\n".join(texts) for node, texts in parts.items()}


def _derived(
    node: str, how: Derived, model: str, kernels: Mapping[str, Kernels], fits: Mapping[tuple[str, str], Fitted],
    measurements: Path,
) -> str:  # fmt: skip
    base, fit = how.of.upper(), fits[how.of, model]
    wide = shape(PAPERS_MODEL)
    there = bus_bytes_per_s(LARGE_TOKENS * wide.hidden, kernels[how.of].all_reduce_ms(wide, TP, LARGE_TOKENS))
    here = how.bytes_per_s or there * (how.share or 1)
    more = float(f"{extra_token_ms(shape(model), here, there):.3g}")
    prefill = replace(fit.prefill, token_ms=_round(fit.prefill.token_ms + more))
    decode = replace(fit.decode, sequence_ms=_round(fit.decode.sequence_ms + more))
    off = _off(fit)
    source = (
        f"the {base}'s kernel sums with all-reduce at {here / 1e9:.0f} GB/s, {how.why.format(base=there / 1e9)}, "
        f"which adds {more:g} ms a token; no {node.upper()} kernel table was found"
    )
    known = "not measured on it"
    if (node, model) == (PAPERS_NODE, PAPERS_MODEL):
        known = f"{_figure_14(prefill, decode, measurements)}, larger batches were not measured"
    short = f"{base} kernel sums (off by {off}, median/p90) with a guessed all-reduce"
    error = f"{known}, and the {base} kernel sums underneath are off by {off} (median/p90, held-out){how.warning}"
    return _table(node, model, "derived", source, error, short, prefill, decode, None)


def extra_token_ms(model: Architecture, here: float, there: float) -> float:
    """What two all-reduces a layer at ``here`` instead of ``there`` bytes/s of bus bandwidth add [ms a token]."""
    moved = model.layers * 2 * 2 * (TP - 1) / TP * model.hidden * 2
    return float(1e3 * moved * (1 / here - 1 / there))


def _figure_14(prefill: Prefill, decode: Decode, measurements: Path) -> str:
    """How FAST'25's figure 14 is missed under the engine that was fitted to it."""
    overhead = load_engine(PAPERS_ENGINE).overhead
    bars = {
        (setting, series): read_figures(measurements, "FAST25_fig14", setting, series)
        for setting, series in (("0", "prefill"), ("95", "prefill"), ("0", "decode"))
    }

    def missed(setting: str) -> str:
        n, seconds = bars[setting, "prefill"]
        hit = np.round(n * int(setting) / 100)
        rows = PrefillRows(n - hit, (n - hit) * hit + (n - hit) ** 2 / 2, 1e3 * seconds)
        return _range((prefill.predict(rows) + overhead.prefill_ms) / rows.ms)

    n, seconds = bars["0", "decode"]
    one = DecodeRows(np.ones_like(n), n + 63.5, 1e3 * seconds)  # 128 steps; the context grows from n to n + 127
    step = 128 * (decode.predict(one) + overhead.decode_ms) / one.ms
    return (
        f"with engine {PAPERS_ENGINE} FAST'25 Fig 14's prefill is missed by {missed('0')} % (95 % cached: "
        f"{missed('95')} %) and its decode at batch 1 by {_range(step)} %"
    )


def _range(ratios: np.ndarray) -> str:
    off = 100 * (ratios - 1)
    return f"{off.min():+.1f} to {off.max():+.1f}"


def _off(fit: Fitted) -> str:
    return f"{_pair(fit.prefill_error)} % in prefill and {_pair(fit.decode_error)} % in decode"


def _pair(error: HeldOut) -> str:
    return f"{error.median:.1f}/{error.p90:.1f}"


def _round(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _rounded(fit: Fitted) -> Fitted:
    prefill = replace(fit.prefill, **{key: _round(value) for key, value in vars(fit.prefill).items()})
    decode = replace(fit.decode, **{key: _round(value) for key, value in vars(fit.decode).items()})
    return replace(fit, prefill=prefill, decode=decode)


def vram_tokens(node: str, model: Architecture) -> int:
    """KVCache that fits beside the weights, to a thousand tokens."""
    room = USED_SHARE * TP * MEMORY_BYTES[node] - model.total_weight_bytes
    return int(round(room / model.kv_bytes_per_token, -3))


def _table(
    node: str, model: str, status: str, source: str, error: str, short: str, prefill: Prefill, decode: Decode,
    heldouts: tuple[HeldOut, HeldOut] | None,
) -> str:  # fmt: skip
    lines = [
        f"[{node}.costs.{model}]",
        f'status = "{status}"',
        f'source = "{source}"',
        f'error = "{error}"',
        f'short = "{short}"',
        f"vram_tokens = {vram_tokens(node, shape(model)):_}",
        f"prefill = {_inline(prefill, without={'late_ms', 'late_tokens'} if not prefill.late_ms else set())}",
        f"decode = {_inline(decode, without={'root_ms'} if not decode.root_ms else set())}",
    ]
    if heldouts:
        lines += [
            f"{name}_heldout = {_errors(each)}" for name, each in zip(("prefill", "decode"), heldouts, strict=True)
        ]
    return "\n".join(lines) + "\n"


def _inline(form: Prefill | Decode, without: set[str]) -> str:
    return "{ " + ", ".join(f"{key} = {value!r}" for key, value in vars(form).items() if key not in without) + " }"


def _errors(error: HeldOut) -> str:
    values = ((key, value) for key, value in vars(error).items())
    return "{ " + ", ".join(f"{key} = {round(value, 1)}" for key, value in values) + " }"


def rewritten(text: str, costs: Mapping[str, str]) -> str:
    """nodes.toml with the nodes' shipped costs tables in place of those it has; all other tables stay as they are."""
    blocks = re.split(r"(?m)^(?=\[)", text)
    ours = re.compile(rf"\[({'|'.join(costs)})\.costs\.({'|'.join(map(re.escape, SHIPPED))})[].]")
    kept = [block for block in blocks[1:] if not ours.match(block)]
    done = [PREAMBLE]
    for block in kept:
        done.append(block.strip() + "\n")
        name = block[1 : block.index("]")]
        if name in costs:
            done.append(costs[name])
    return "\n".join(done)
