"""Node presets of dense models, derived from public kernel tables: ``nodes.toml``, its errors and what explains them.

    python tools/derive_presets.py MEASUREMENTS            fit, and say how the file that is there differs
    python tools/derive_presets.py MEASUREMENTS --write    fit, and write mooncake_bench/hardware/presets/nodes.toml
    python tools/derive_presets.py MEASUREMENTS --check    our kernel sums beside the composed tables of the folder
    python tools/derive_presets.py MEASUREMENTS --cause    why a prefill jumps between 256 and 512 tokens on A100
    python tools/derive_presets.py MEASUREMENTS --errors   held-out errors of every form (takes minutes)

Whole-model step times are summed from kernel tables (``derive/compose.py``), E1 and E2 fitted to them by the package's
own fits (``derive/fits.py``) and written with their held-out errors (``derive/nodes.py``). A800 and H800 have no
tables: they are A100 and H100 with a slower all-reduce. docs/costs.md tells it in words.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))  # the package beside this script

from derive import cause, errors, nodes
from derive.compose import GPUS, MODELS, Kernels, decode_parts_ms, prefill_parts_ms, read, where
from derive.fits import HAND_OVER_ELEMENTS, prefill_rows, token2_ms

from mooncake_bench.errors import BenchError
from mooncake_bench.hardware.calibrate.forms import fit_prefill

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

NODES_TOML = Path(__file__).resolve().parent.parent / "mooncake_bench" / "hardware" / "presets" / "nodes.toml"
PART_COLUMNS = ("g", "e", "ar", "att", "lm")
"""Of the composed tables, in the order of compose.PARTS."""


def derived(measurements: Path, text: str) -> str:
    """What nodes.toml should hold: ``text`` with its costs tables fitted anew."""
    kernels = tables(measurements)
    fits = nodes.measured(kernels)
    return nodes.rewritten(text, nodes.tables(kernels, fits, measurements))


def tables(measurements: Path) -> dict[str, Kernels]:
    """The kernel tables of every kind of GPU. Raises TraceError where one is missing."""
    return {name: Kernels(measurements, gpu) for name, gpu in GPUS.items()}


def compared(kernels: Mapping[str, Kernels], measurements: Path) -> Iterator[str]:
    """How far our kernel sums are from the composed tables, all parts and the whole, as Markdown."""
    yield "| GPU | phase | configurations | rows | largest difference of a part | of the whole |"
    yield "|---|---|---|---|---|---|"
    for phase in ("prefill", "decode"):
        known = read(measurements / "derived" / f"composed_{phase}_ms.parquet")
        for gpu, each in kernels.items():
            part, whole, kinds, count = 0.0, 0.0, 0, 0
            for model, (_, composed) in MODELS.items():
                for tp in (1, 2, 4, 8):
                    rows = where(known, hw=GPUS[gpu].name, model=composed, tp=tp).to_pylist()
                    if not rows:
                        continue
                    ours = np.array([_parts(each, phase, model, tp, row) for row in rows])
                    theirs = np.array([[row[name] for name in PART_COLUMNS] for row in rows])
                    off = np.abs(ours - theirs) / np.where(theirs > 0, theirs, 1)
                    part = max(part, float(off.max()))
                    whole = max(whole, float(np.abs(ours.sum(1) / [row["t"] for row in rows] - 1).max()))
                    kinds, count = kinds + 1, count + len(rows)
            yield f"| {gpu} | {phase} | {kinds} | {count} | {part:.0e} | {whole:.0e} |"


def _parts(kernels: Kernels, phase: str, model: str, tp: int, row: dict[str, int]) -> tuple[float, ...]:
    if phase == "prefill":
        return prefill_parts_ms(kernels, nodes.shape(model), tp, row["b"], row["isl"])
    return decode_parts_ms(kernels, nodes.shape(model), tp, row["B"], row["ctx"])


def explained(kernels: Mapping[str, Kernels]) -> Iterator[str]:
    """The cause of the jump, on the GPU that has it and on one that has not."""
    for gpu in ("a100", "h100"):
        yield from cause.lines(kernels[gpu], nodes.shape("llama-3-70b"))
    yield "| model | values a token | hand-over at [tokens] | late_tokens, fitted freely |"
    yield "|---|---|---|---|"
    for model in nodes.SHIPPED:
        shape = nodes.shape(model)
        free = fit_prefill(prefill_rows(kernels["a100"], shape), token2_ms=token2_ms(kernels["a100"], shape))
        yield f"| {model} | {shape.hidden} | {HAND_OVER_ELEMENTS / shape.hidden:g} | {free.late_tokens:.0f} |"


def main(given: Sequence[str] | None = None) -> int:
    """Exit code: 0, or 1 when the file that is there would change and was not written, or 2 on bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measurements", type=Path, help="folder of the public measurements")
    for name in ("write", "check", "cause", "errors"):
        parser.add_argument(f"--{name}", action="store_true")
    asked = parser.parse_args(given)
    try:
        return _answer(asked)
    except BenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _answer(asked: argparse.Namespace) -> int:
    if asked.check or asked.cause or asked.errors:
        kernels = tables(asked.measurements)
        answers = {
            "check": compared(kernels, asked.measurements) if asked.check else (),
            "cause": explained(kernels) if asked.cause else (),
            "errors": errors.lines(kernels) if asked.errors else (),
        }
        for line in (line for answer in answers.values() for line in answer):
            print(line, flush=True)
        return 0
    before = NODES_TOML.read_text(encoding="utf-8")
    after = derived(asked.measurements, before)
    if after == before:
        print(f"{NODES_TOML.name} is what the tables give")
        return 0
    if asked.write:
        NODES_TOML.write_text(after, encoding="utf-8")
        print(f"wrote {NODES_TOML}")
        return 0
    print(f"{NODES_TOML.name} would change; --write writes it", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
