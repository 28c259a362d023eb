"""Fit the nodes of ``mooncake_bench/hardware/presets/nodes_rtx.toml`` to LLMServingSim's kernel tables.

    python tools/derive_rtx.py MEASUREMENTS            print the fits and their errors
    python tools/derive_rtx.py MEASUREMENTS --write    write the file

MEASUREMENTS is the folder of measurements that its own README describes. A step of n tokens is

    layers x (sum of a layer's dense kernels at n tokens, its two norms counted twice, + attention)
    + embedding + last norm + output layer (lm_head) for the sequences that get a token

Prefill rows are the attention table's rows without decoding sequences (one chunk over a prefix), decode rows those
without a chunk. The sampler is the engine's. Two GPUs exchange activations after attention and MLP; no table has that
all-reduce, so it is left out. Between the measured token counts of a dense kernel we go straight.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mooncake_bench.hardware.calibrate.forms import fit_decode, fit_prefill
from mooncake_bench.hardware.calibrate.heldout import heldout, relative_errors
from mooncake_bench.hardware.calibrate.rows import DecodeRows, PrefillRows

if TYPE_CHECKING:
    from mooncake_bench.hardware.calibrate.forms import Decode, Prefill
    from mooncake_bench.hardware.presets import HeldOut

OUT = Path(__file__).resolve().parent.parent / "mooncake_bench" / "hardware" / "presets" / "nodes_rtx.toml"
HARDWARE = "RTXPRO6000"
ONCE = ("embedding", "final_layernorm")
TWICE = "layernorm"
GPU_BYTES = 96 * 2**30
USED_SHARE = 0.9
POOL_TOKENS = 780_000
NIC = 12.5
LONG = 512  # tokens
HEAD = """# RTX PRO 6000 (Blackwell, 96 GB), one or two. Made by `python tools/derive_rtx.py MEASUREMENTS --write`.
# Keys as in nodes.toml: E1 and E2 [ms], fitted to sums of separately measured kernels, no engine time in them.
# vram_tokens: 0.9 of the GPU memory less the weights, over the KVCache bytes of a token; activations are ignored.
"""


@dataclass(frozen=True)
class Served:
    """A model on so many GPUs."""

    preset: str
    model: str
    """Its name in the tables."""
    gpus: int
    layers: int
    parameters: float
    kv_bytes: int
    """Of a token, all layers."""

    def vram_tokens(self) -> int:
        """KVCache that fits beside the bf16 weights, in whole thousands."""
        free = USED_SHARE * self.gpus * GPU_BYTES - 2 * self.parameters
        return int(free / self.kv_bytes / 1000) * 1000


LLAMA = "meta-llama/Llama-3.1-8B"
QWEN = "Qwen/Qwen3-32B"
NODES = {
    "rtxpro6000": (
        Served("llama-3-8b", LLAMA, 1, 32, 8.03e9, 131_072),
        Served("qwen3-32b", QWEN, 1, 64, 32.76e9, 262_144),
    ),
    "rtxpro6000x2": (Served("qwen3-32b", QWEN, 2, 64, 32.76e9, 262_144),),
}


@dataclass(frozen=True)
class Fitted:
    """Both forms of a model on a node, and their errors on rows that they did not see."""

    served: Served
    prefill: Prefill
    decode: Decode
    prefill_errors: HeldOut
    decode_errors: HeldOut
    long_chunks: Any
    """In-sample relative errors [%] of chunks of at least LONG tokens."""

    def short(self) -> str:
        """Median and 90th percentile of both phases, held-out."""
        p, d = self.prefill_errors, self.decode_errors
        return f"off by {p.median:.1f}/{p.p90:.1f} % in prefill and {d.median:.1f}/{d.p90:.1f} % in decode"


def step_rows(folder: Path, served: Served) -> tuple[PrefillRows, DecodeRows]:
    """Whole-model steps summed from the tables."""
    table = _table(folder / "rtx_attention.parquet", served)
    chunk, prefix, batch, context, us = (
        table[name].to_numpy().astype(float)
        for name in ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")
    )
    layer, once, head = _dense(folder, served)

    def step_ms(tokens: Any, sequences: Any, attention_us: Any) -> Any:
        return (served.layers * (layer(tokens) + attention_us) + once(tokens) + head(sequences)) / 1e3

    p, d = (chunk > 0) & (batch == 0), (chunk == 0) & (batch > 0)
    prefill = PrefillRows(
        chunk[p], chunk[p] * (prefix[p] + chunk[p] / 2), step_ms(chunk[p], np.ones(p.sum()), us[p])
    )  # fmt: skip
    decode = DecodeRows(batch[d], batch[d] * context[d], step_ms(batch[d], batch[d], us[d]))
    return prefill, decode


def _dense(folder: Path, served: Served) -> tuple[Any, Any, Any]:
    """Time [us] of a layer's dense kernels, of the kernels outside the layers, and of the output layer."""
    table = _table(folder / "rtx_dense.parquet", served)
    names, tokens, us = (table[name].to_numpy(zero_copy_only=False) for name in ("layer", "tokens", "time_us"))
    heads = _table(folder / "rtx_per_sequence.parquet", served)
    heads = heads.filter(pc.equal(heads["layer"], "lm_head"))
    sequences, head_us = heads["sequences"].to_numpy(), heads["time_us"].to_numpy()

    def kernel(name: str) -> Any:
        mine = names == name
        order = np.argsort(tokens[mine])
        return tokens[mine][order], us[mine][order]

    curves = {name: kernel(name) for name in sorted(set(names))}
    inside = [(2 if name == TWICE else 1, curve) for name, curve in curves.items() if name not in ONCE]

    def layer(at: Any) -> Any:
        return sum(count * np.interp(at, *curve) for count, curve in inside)

    def once(at: Any) -> Any:
        return sum(np.interp(at, *curves[name]) for name in ONCE)

    return layer, once, lambda at: np.interp(at, sequences, head_us)


@cache
def _whole(path: Path) -> Any:
    return pq.read_table(path)


def _table(path: Path, served: Served) -> Any:
    table = _whole(path)
    wanted = {"hardware": HARDWARE, "model": served.model, "tp": served.gpus}
    for name, value in wanted.items():
        table = table.filter(pc.equal(table[name], value))
    return table


def fitted(folder: Path, served: Served) -> Fitted:
    """Fit both phases; held out are random halves and, in turn, every chunk length and batch size."""
    prefill, decode = step_rows(folder, served)
    form = fit_prefill(prefill)
    return Fitted(
        served,
        form,
        fit_decode(decode),
        heldout(prefill, fit_prefill, prefill.n),
        heldout(decode, fit_decode, decode.batch),
        relative_errors(prefill.select(prefill.n >= LONG), form),
    )


def node_text(name: str, models: list[Fitted]) -> str:
    """One node as TOML."""
    gpus = models[0].served.gpus
    lines = [
        f"[{name}]",
        f'description = "{gpus} x RTX PRO 6000 (Blackwell) 96 GB{"" if gpus == 1 else ", without NVLink"}"',
        f"gpus = {gpus}",
        f"pool_tokens = {POOL_TOKENS}",
        'pool_source = "assumed: 256 GB of DRAM, 0.78 million tokens of a 70B model"',
        f"nic_gbytes_per_s = {NIC}",
        'nic_status = "assumed"',
        'nic_source = "assumed: a workstation with 100 Gb/s; no measurement"',
    ]
    return "\n".join([*lines, *(_costs_text(name, model) for model in models)])


def _costs_text(node: str, fit: Fitted) -> str:
    served, p, d = fit.served, fit.prefill, fit.decode
    two = served.gpus > 1
    missing = ", and all-reduce over PCIe, for which there is no table, is left out" if two else ""
    tables = f"LLMServingSim kernel tables (vLLM 0.19, bf16, {served.gpus} GPU)"
    source = f"{tables}, summed over the model's layers{missing}"
    median, p90 = np.percentile(fit.long_chunks, [50, 90])
    where = (
        f"median/p90; chunks up to 2,048 tokens; in-sample {median:.1f}/{p90:.1f} % for {LONG} tokens and more, but "
        f"chunks below 128 tokens over a prefix above 8,000 are up to {fit.prefill_errors.worst:.0f} % too fast"
    )
    parts = [
        "",
        f"[{node}.costs.{served.preset}]",
        f'status = "{"derived" if two else "measured"}"',
        f'source = "{source}"',
        f'error = "held-out kernel sums are {fit.short()} ({where})'
        f'{", all-reduce is missing, so whole steps are longer" if two else ""}"',
        f'short = "kernel sums {"without all-reduce " if two else ""}{fit.short()} (median/p90, held-out)"',
        f"vram_tokens = {served.vram_tokens()}",
        f"prefill = {{ {_numbers(p)} }}",
        f"decode = {{ {_numbers(d)} }}",
    ]
    for phase, errors in (("prefill", fit.prefill_errors), ("decode", fit.decode_errors)):
        parts += [f"[{node}.costs.{served.preset}.{phase}_heldout]", *_error_lines(errors)]
    return "\n".join(parts)


def _numbers(form: Any) -> str:
    optional = {"late_ms": form.__dict__.get("late_ms", 1), "root_ms": form.__dict__.get("root_ms", 1)}
    dropped = {name for name, value in optional.items() if not value}
    if "late_ms" in dropped:
        dropped.add("late_tokens")
    return ", ".join(f"{key} = {value:.5g}" for key, value in vars(form).items() if key not in dropped)


def _error_lines(errors: HeldOut) -> list[str]:
    return [f"{key} = {value if key == 'rows' else format(value, '.2f')}" for key, value in vars(errors).items()]


def main(words: list[str]) -> None:
    """Print the file, or write it."""
    if not words or words[1:] not in ([], ["--write"]):
        raise SystemExit(__doc__)
    folder = Path(words[0]) / "llmservingsim"
    nodes = {name: [fitted(folder, served) for served in models] for name, models in NODES.items()}
    text = "\n\n".join([HEAD.rstrip(), *(node_text(name, models) for name, models in nodes.items())]) + "\n"
    if words[1:]:
        OUT.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
