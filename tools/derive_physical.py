"""Fit the physical form (E5) to kernel tables, print its errors on models and parallelisms left out, write presets.

    python tools/derive_physical.py MEASUREMENTS            # print the errors beside those to be beaten
    python tools/derive_physical.py MEASUREMENTS --write    # and write the presets

Each kind of kernel is fitted by itself first (residuals relative to sqrt(kernel x step), so that what weighs in a step
weighs in the fit), then all parameters together to whole steps, held near the first values: alone, a fit of whole steps
cannot tell one kernel's time from another's. Left out: LLaMA2-70B and Llama-3-70B count as one model.
"""

from __future__ import annotations

import argparse
from dataclasses import astuple, dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from derive import compose, served_experts, vidur_linear

from mooncake_bench.hardware import physical
from mooncake_bench.hardware.datasheets import Errors, load_gpu
from mooncake_bench.hardware.physical import Efficiencies, Gpu, Work
from mooncake_bench.hardware.presets import load_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

PRESETS = Path(__file__).resolve().parent.parent / "mooncake_bench" / "hardware" / "presets" / "physical.toml"
HEADER = """# Parameters of the physical form (E5), a set for each kind of GPU; hardware/physical.py has the formula.
# Made by `python tools/derive_physical.py MEASUREMENTS --write`.
# left_out_model: errors on the worst of three dense models, each predicted from the others; left_out_tp8: tensor
# parallelism 8 predicted from 1, 2 and 4. Relative [%]. expert_us was fitted on H200 and is taken for the others too.
"""
PARALLEL = (1, 2, 4, 8)
USED_SHARE = 0.9
MOST_BATCH = 512
KINDS = {"products": "gemm", "elementwise": "elementwise", "reduce": "all_reduce", "attention": "attention"}
"""Kinds of kernels of E5, and their names in the composed steps."""
PARAMETERS = {
    "products": ("memory", "math", "power"),
    "elementwise": ("passes", "split_passes", "layer_us"),
    "reduce": ("reduce_us", "link", "reduce_root"),
    "prefill attention": ("score_math", "score_tokens", "score_us"),
    "decode attention": ("cache", "cache_unit_us", "cache_us"),
}
START = Efficiencies(
    memory=0.8, math=0.8, power=2.2, passes=10, split_passes=2, layer_us=25, reduce_us=5, link=0.75, reduce_root=0.03,
    score_math=0.7, score_tokens=400, score_us=10, cache=0.85, cache_unit_us=0.02, cache_us=10,
)  # fmt: skip
LIMITS = {"power": (1.5, 4.0)}
SCALE = 0.1  # relative residual above which a row counts less than its square
HOLD = 0.15  # how hard the whole-step fit is held near each kernel's own: 0.15 sqrt(rows) a unit of log
FIXED_US = 20.0  # launch overhead of a layer's products; moved into layer_us by the fit
GROUPS = {"llama-3-70b": "70B", "llama2-70b": "70B", "llama-3-8b": "8B", "qwen3-32b": "32B"}
MOST_TOKENS = {"a100": 8192, "h100": 32768, "h200": 32768}
"""Largest prefill whose products were measured, not extrapolated."""
BARS = {
    "a100": {"model": (5.9, 15, 4.5, 11), "tp8": (3.3, 12.5, 4.3, 9.9)},
    "h100": {"model": (7.0, 13, 3.8, 10), "tp8": (10.9, 14.6, 4.7, 10.5)},
    "h200": {"model": (6.6, 14, 4.3, 10), "tp8": (12.3, 17.5, 4.2, 12.4)},
}
"""Errors of the form's first version: median and 90th percentile of prefill, then of decode; the worst model [%]."""


@dataclass(frozen=True)
class Steps:
    """Composed steps: what they work, what they took by kind of kernel, and where they come from; each (N,)."""

    work: Work
    took: dict[str, Array]
    model: NDArray[np.str_]
    gpus: Array

    @property
    def total(self) -> Array:
        """Whole steps [ms]."""
        return sum(self.took.values(), np.zeros_like(self.gpus))

    def where(self, mask: Any) -> Steps:
        """The steps of a mask."""
        work = Work(*(getattr(self.work, each.name)[mask] for each in fields(Work)))
        return Steps(work, {kind: ms[mask] for kind, ms in self.took.items()}, self.model[mask], self.gpus[mask])


def steps_of(measurements: Path, hardware: compose.Gpu, gpu: Gpu) -> Steps:
    """All prefills and decode steps of the dense models that the kernel tables hold and the GPUs' memory allows."""
    kernels = compose.Kernels(measurements, hardware)
    most_tokens = MOST_TOKENS[gpu.name]
    works: list[Work] = []
    rows: list[tuple[float, ...]] = []
    models: list[str] = []
    parallel: list[float] = []
    for name, tp in product(compose.MODELS, PARALLEL):
        model = load_model(name).shape
        assert model is not None
        room = (USED_SHARE * hardware.grid_bytes * tp - model.total_weight_bytes) / model.kv_bytes_per_token
        if room > 0:
            prefill = [(b, n) for b, n in kernels.prefill_grid(model, tp) if n >= 16 and b * n <= most_tokens]
            decode = [(b, n) for b, n in kernels.decode_grid(model, tp) if b <= MOST_BATCH and b * n <= room]
            rows += [compose.prefill_parts_ms(kernels, model, tp, b, n) for b, n in prefill]
            rows += [compose.decode_parts_ms(kernels, model, tp, b, n) for b, n in decode]
            batch, length = np.array(prefill, dtype=np.float64).T
            works.append(physical.prefill_work(model, gpu, tp, batch * length, batch * length**2 / 2, batch))
            batch, length = np.array(decode, dtype=np.float64).T
            works.append(physical.decode_work(model, gpu, tp, batch, batch * length))
            models += [name] * (len(prefill) + len(decode))
            parallel += [float(tp)] * (len(prefill) + len(decode))
    took = dict(zip((*KINDS, "head"), np.array(rows).T, strict=True))
    return Steps(Work.joined(works), took, np.array(models), np.array(parallel))


def fitted(steps: Steps) -> Efficiencies:
    """The parameters for these steps: kernel by kernel, then refined on whole steps."""
    first = START
    for kind, names in PARAMETERS.items():
        first = _kernel_fit(steps, first, kind, names)
    first = replace(first, layer_us=first.layer_us + FIXED_US)
    everything = tuple(name for names in PARAMETERS.values() for name in names)
    whole = steps.total
    held = HOLD * np.sqrt(len(whole))
    near = np.log([getattr(first, name) for name in everything])

    def residuals(x: Array) -> Array:
        guess = _set(first, everything, x)
        return np.concatenate([physical.step_ms(steps.work, guess) / whole - 1, held * (x - near)])

    return _set(first, everything, _solved(residuals, near, everything))


def _kernel_fit(steps: Steps, first: Efficiencies, kind: str, names: tuple[str, ...]) -> Efficiencies:
    decode = steps.work.is_decode > 0
    part = kind.split()[-1]
    mask = steps.took[part] > 0
    if part == "attention":
        mask &= decode if kind.startswith("decode") else ~decode
    rows = steps.where(mask)
    target, weight = rows.took[part], np.sqrt(rows.took[part] * rows.total)
    shift = FIXED_US / 1e3 * (rows.work.dense_layers + rows.work.expert_layers) if part == "products" else 0.0

    def residuals(x: Array) -> Array:
        guess = physical.components(rows.work, _set(first, names, x))[part]
        residual: Array = (guess + shift - target) / weight
        return residual

    start = np.log([getattr(first, name) for name in names])
    return _set(first, names, _solved(residuals, start, names))


def _solved(residuals: Callable[[Array], Array], start: Array, names: tuple[str, ...]) -> Array:
    from scipy.optimize import least_squares

    low, high = np.log([LIMITS.get(name, (1e-4, 1e5)) for name in names]).T
    start = np.clip(start, low + 1e-6, high - 1e-6)
    x: Array = least_squares(residuals, start, bounds=(low, high), loss="soft_l1", f_scale=SCALE, max_nfev=300).x
    return x


def _set(base: Efficiencies, names: tuple[str, ...], logs: Array) -> Efficiencies:
    return replace(base, **{name: float(value) for name, value in zip(names, np.exp(logs), strict=True)})


def errors(steps: Steps, parameters: Efficiencies) -> tuple[float, float, float, float]:
    """Median and 90th percentile of prefill, then of decode, relative [%]."""
    off = 100 * np.abs(physical.step_ms(steps.work, parameters) / steps.total - 1)
    decode = steps.work.is_decode > 0
    found = [float(np.percentile(off[mask], q)) for mask in (~decode, decode) for q in (50, 90)]
    return found[0], found[1], found[2], found[3]


def main() -> None:
    """Fit, print, and write if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("measurements", type=Path)
    parser.add_argument("--write", action="store_true", help=f"write {PRESETS.name}")
    arguments = parser.parse_args()
    found = [_derived(arguments.measurements, load_gpu(name), hardware) for name, hardware in compose.GPUS.items()]
    expert_us, *sentences = _experts(arguments.measurements, found)
    _print_vidur(arguments.measurements)
    if arguments.write:
        PRESETS.write_text(HEADER + "".join(_table(each, expert_us, *sentences) for each in found), encoding="utf-8")


@dataclass(frozen=True)
class Derived:
    """What was found for one kind of GPU."""

    gpu: Gpu
    rows: int
    efficiencies: Efficiencies
    left_out_model: Errors
    left_out_tp8: Errors


def _derived(measurements: Path, gpu: Gpu, hardware: compose.Gpu) -> Derived:
    steps = steps_of(measurements, hardware, gpu)
    whole = fitted(steps)
    groups = np.array([GROUPS[name] for name in steps.model])
    print(f"{gpu.name}: {len(steps.gpus)} steps; median/p90 of the relative error [%]")
    print(_line("in sample", errors(steps, whole)))
    left_out = {name: _left_out(steps, groups == name) for name in dict.fromkeys(groups)}
    for name, each in left_out.items():
        print(_line(f"{name} left out", each))
    worst = Errors(*(max(each) for each in zip(*left_out.values(), strict=True)))
    print(_line("  to be beaten", BARS[gpu.name]["model"]))
    tp8 = Errors(*_left_out(steps, steps.gpus == 8))
    print(_line("TP8 left out", astuple(tp8)))
    print(_line("  to be beaten", BARS[gpu.name]["tp8"]))
    return Derived(gpu, len(steps.gpus), whole, worst, tp8)


def _left_out(steps: Steps, left: Any) -> tuple[float, float, float, float]:
    return errors(steps.where(left), fitted(steps.where(~left)))


def _experts(measurements: Path, found: list[Derived]) -> tuple[float, str, str]:
    """o_e [us], and how far it is off, in a sentence and in short."""
    h200 = next(each for each in found if each.gpu.name == "h200")
    servers = served_experts.read_points(measurements)
    expert_us = served_experts.fit_expert_us(servers, h200.efficiencies, h200.gpu)
    off = served_experts.left_out_errors(servers, h200.efficiencies, h200.gpu)
    points = sum(len(each.batch) for each in servers)
    print(f"experts: o_e = {expert_us:.0f} us on {points} served points of {len(servers)} servers of H200; left out:")
    listed = ", ".join(f"{median:.1f}/{p90:.1f} % for {model}" for model, (median, p90) in off.items())
    print(f"  {listed}")
    medians = [median for median, _ in off.values()]
    short = f"with experts served TPOT off by {min(medians):.0f} to {max(medians):.0f} % in the median"
    return expert_us, f"served TPOT on H200 is off by {listed} (median/p90, each left out)", short


def _print_vidur(measurements: Path) -> None:
    for hardware, bar in vidur_linear.BARS.items():
        off = vidur_linear.left_out_errors(measurements, hardware)
        medians, p90s = zip(*off.values(), strict=True)
        print(
            f"vidur's products on {hardware}, {len(off)} models, each left out: {min(medians):.1f}-{max(medians):.1f}/"
            f"{min(p90s):.1f}-{max(p90s):.1f}   to be beaten {bar[0]:.1f}/{bar[1]:.1f}"
        )


def _table(found: Derived, expert_us: float, sentence: str, short: str) -> str:
    name = found.gpu.name
    values = astuple(replace(found.efficiencies, expert_us=expert_us))
    lines = [f"{field.name} = {value:.5g}" for field, value in zip(fields(Efficiencies), values, strict=True)]
    parts = [
        f"[{name}]",
        f'source = "aiconfigurator and vidur kernel tables of {name.upper()} SXM, four dense models at TP 1 to 8"',
        f"rows = {found.rows}",
        f'expert_error = "{sentence}"',
        f'expert_short = "{short}"',
        f"[{name}.efficiencies]",
        *lines,
    ]
    for key, each in (("left_out_model", found.left_out_model), ("left_out_tp8", found.left_out_tp8)):
        parts += [f"[{name}.{key}]", *(f"{field.name} = {getattr(each, field.name):.1f}" for field in fields(Errors))]
    return "\n" + "\n".join(parts) + "\n"


def _line(what: str, found: tuple[float, ...]) -> str:
    return f"  {what:14} prefill {found[0]:4.1f}/{found[1]:4.1f}   decode {found[2]:4.1f}/{found[3]:4.1f}"


if __name__ == "__main__":
    main()
