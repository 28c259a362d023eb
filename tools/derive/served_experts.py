"""Decode steps of models with experts, fitted to real serving: the one parameter that no kernel table gives, o_e.

The points are pooled TPOT of whole servers (8 GPUs at most, experts split as the rest), without prefill and decode on
separate machines: TPOT = decode(B, B (isl + osl/2)) + B prefill(isl) / osl. So o_e also holds what an engine adds.
"""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.hardware import physical
from mooncake_bench.hardware.architecture import Architecture, Experts
from mooncake_bench.hardware.presets import load_model

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from mooncake_bench.hardware.physical import Efficiencies, Gpu

    Array = NDArray[np.float64]

SYSTEM = "h200_sxm"
LONGEST_TTFT_MS = 5000.0  # beyond it requests queued
LEAST_POINTS = 8
SCALE = 0.1  # relative residual above which a point counts less than its square


@dataclass(frozen=True)
class Points:
    """One server's points: concurrency, prompt and answer lengths [tokens], TPOT [ms]; each (N,)."""

    model: str
    engine: str
    gpus: int
    batch: Array
    prompt: Array
    answer: Array
    tpot_ms: Array


def shapes() -> dict[str, Architecture]:
    """Models of the points; DeepSeek-R1 has V3's dimensions, and its points are the ones listed for V3 again."""
    kimi = load_model("kimi-k2").shape
    deepseek = load_model("deepseek-v3").shape
    assert kimi is not None
    assert kimi.experts is not None
    assert deepseek is not None
    four_bit = replace(kimi, weight_bytes=2.0, experts=replace(kimi.experts, weight_bytes=0.5))
    return {
        "deepseek-ai/DeepSeek-R1": deepseek,
        "moonshotai/Kimi-K2.5": four_bit,
        "MiniMaxAI/MiniMax-M2.5": Architecture(
            "minimax-m2.5", 62, 3072, 48, 8, 128, 1536, 200064, 1.0, 2.0, experts=Experts(256, 8, 1536, 0, 0)
        ),
        "Qwen/Qwen3-235B-A22B-FP8": Architecture(
            "qwen3-235b", 94, 4096, 64, 4, 128, 12288, 151936, 1.0, 2.0, experts=Experts(128, 8, 1536, 0, 0)
        ),
    }


def read_points(measurements: Path) -> list[Points]:
    """Servers with enough points, in a fixed order; the same point listed twice counts once."""
    found: dict[tuple[str, str, int], set[tuple[int, int, int, float]]] = {}
    with gzip.open(measurements / "aiconfigurator" / "silicon_sample.csv.gz", "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if _is_ours(row):
                key = (row["model_path"], row["backend"], int(row["tp_size"]))
                numbers = (int(row["batch_size"]), int(row["isl"]), int(row["osl"]))
                found.setdefault(key, set()).add((*numbers, round(float(row["silicon_tpot_ms"]), 1)))
    kept = sorted((key, sorted(points)) for key, points in found.items() if len(points) >= LEAST_POINTS)
    return [Points(*key, *np.array(points, dtype=np.float64).T) for key, points in kept]


def _is_ours(row: dict[str, str]) -> bool:
    return (
        row["mode"] == "agg"
        and row["system"] == SYSTEM
        and row["model_path"] in shapes()
        and row["attention_dp_size"] in ("", "1")
        and row["moe_ep_size"] == "1"
        and row["tp_size"] in ("2", "4", "8")
        and float(row["silicon_ttft_ms"] or "inf") < LONGEST_TTFT_MS
    )


def tpot_ms(points: Points, efficiencies: Efficiencies, gpu: Gpu) -> Array:
    """(N,) predicted [ms]."""
    shape = shapes()[points.model]
    context = points.batch * (points.prompt + points.answer / 2)
    decode = physical.decode_work(shape, gpu, points.gpus, points.batch, context)
    prefill = physical.prefill_work(shape, gpu, points.gpus, points.prompt, points.prompt**2 / 2)
    interleaved = points.batch * physical.step_ms(prefill, efficiencies) / points.answer
    return physical.step_ms(decode, efficiencies) + interleaved


def fit_expert_us(servers: list[Points], efficiencies: Efficiencies, gpu: Gpu) -> float:
    """o_e [us] that suits all servers, each counting the same."""
    from scipy.optimize import least_squares

    def residuals(x: Array) -> Array:
        guess = replace(efficiencies, expert_us=float(np.exp(x[0])))
        return np.concatenate(
            [4 * (tpot_ms(each, guess, gpu) / each.tpot_ms - 1) / np.sqrt(len(each.batch)) for each in servers]
        )

    return float(np.exp(least_squares(residuals, [np.log(50.0)], loss="soft_l1", f_scale=SCALE).x[0]))


def left_out_errors(servers: list[Points], efficiencies: Efficiencies, gpu: Gpu) -> dict[str, tuple[float, float]]:
    """Median and 90th percentile [%] of each model, predicted with the o_e of the others."""
    errors = {}
    for model in dict.fromkeys(each.model for each in servers):
        own = [each for each in servers if each.model == model]
        others = [each for each in servers if each.model != model]
        guess = replace(efficiencies, expert_us=fit_expert_us(others, efficiencies, gpu))
        off = 100 * np.abs(np.concatenate([tpot_ms(each, guess, gpu) / each.tpot_ms - 1 for each in own]))
        errors[model.partition("/")[2]] = (float(np.median(off)), float(np.percentile(off, 90)))
    return errors
