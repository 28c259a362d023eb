"""The parts of tools/live_check.sh that no command of the program does."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

LENGTHS = ((1024, 0), (4096, 0), (16384, 0), (32768, 0), (1024, 16384), (4096, 16384))
"""(computed, prefix) at which layer-wise and serialised prefill are compared on a GPU."""
SHORT_LENGTHS = ((64, 0), (256, 0), (64, 256), (256, 256))
NODE = """description = "the machine of a live check, {ranks} of its devices an instance"
gpus = {ranks}
pool_tokens = 780_000
pool_source = "assumed"
nic_gbytes_per_s = 12.5
nic_status = "assumed"
nic_source = "assumed: 100 Gb/s"
[costs]
"""


def environment(device: str, dtype: str, out: str) -> int:
    """What the kernels will run on."""
    from mooncake_bench.live.device import choose_device

    chosen = choose_device(device, dtype)
    facts = {**chosen.describe(), "kind": "cuda" if chosen.cuda else "cpu", "memory_bytes": chosen.memory_bytes}
    _write(out, {**facts, "python": sys.version.split()[0], "cores": os.cpu_count()})
    print(*(f"{name}: {value}" for name, value in facts.items()), sep="\n")
    return 0


def correctness(device: str, out: str) -> int:
    """Every type that the device runs, against float64; 1 where a shape is off."""
    from mooncake_bench.errors import SetupError
    from mooncake_bench.live.check import correctness as check
    from mooncake_bench.live.device import DTYPES, choose_device

    rows: list[dict[str, Any]] = []
    for dtype in DTYPES:
        try:
            chosen = choose_device(device, dtype)
        except SetupError as error:
            print(f"{dtype}: not run: {error}")
            continue
        for one in check(chosen):
            rows.append({**asdict(one), "passed": one.passed})
            errors = f"attention {one.attention_error:.1e}, KV {one.kv_error:.1e}, logits {one.logits_error:.1e}"
            same = "modes equal" if one.modes_equal else "MODES DIFFER"
            verdict = "ok" if one.passed else "FAILED"
            print(f"{dtype} {one.computed}+{one.prefix}: {errors} (limit {one.limit:g}), {same}: {verdict}")
    _write(out, rows)
    return 0 if rows and all(row["passed"] for row in rows) else 1


def modes(device: str, dtype: str, model: str, ranks: str, out: str) -> int:
    """Layer-wise against serialised prefill."""
    from mooncake_bench.hardware.presets import load_model
    from mooncake_bench.live.check import compare_modes
    from mooncake_bench.live.cost import shape_of
    from mooncake_bench.live.device import choose_device
    from mooncake_bench.live.timing import Kernels

    chosen = choose_device(device, dtype)
    kernels = Kernels(shape_of(load_model(model)), int(ranks), chosen)
    rows = compare_modes(kernels, LENGTHS if chosen.cuda else SHORT_LENGTHS)
    for one in rows:
        gain = one.serialised_ms / one.layerwise_ms
        noisy = ", noisy" if one.noisy else ""
        print(
            f"{one.computed}+{one.prefix}: layer-wise {one.layerwise_ms:.2f} ms, serialised {one.serialised_ms:.2f} ms "
            f"({gain:.2f}x), spread {100 * one.spread:.1f} %{noisy}"
        )
    print(*kernels.notices(), sep="\n")
    _write(out, {"model": model, "ranks": int(ranks), "notices": kernels.notices(), "rows": [asdict(r) for r in rows]})
    return 0


def node(ranks: str, out: str) -> int:
    """A node file of as many devices an instance."""
    Path(out).write_text(NODE.format(ranks=ranks), encoding="utf-8")
    return 0


def trace(requests: str, out: str) -> int:
    """Short prompts for a CPU: lengths in a fixed pattern, every third shares its first block with others."""
    rows = []
    for i in range(int(requests)):
        tokens = 32 + 37 * i % 480
        rows.append({"timestamp": 40 * i, "input_length": tokens, "output_length": 2 + i % 12, "hash_ids": [i // 3]})
    Path(out).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return 0


def _write(path: str, value: Any) -> None:
    Path(path).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> int:
    """One part by its name; errors as one line."""
    from mooncake_bench.errors import BenchError

    parts = {"environment": environment, "correctness": correctness, "modes": modes, "node": node, "trace": trace}
    try:
        return parts[arguments[0]](*arguments[1:])
    except BenchError as error:
        print(f"live_check: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
