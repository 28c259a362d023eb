"""The shipped presets' own errors on kernel sums that they did not see, as their file records them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_bench.hardware.presets import load_node, node_names
from mooncake_bench.studies.validate.fig14 import KERNELS
from mooncake_bench.studies.validate.outcome import HELD_OUT, LEFT_OUT, Errors, Limits, Outcome, Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mooncake_bench.hardware.presets import HeldOut
    from mooncake_bench.studies.validate.files import Measurements

ID = "HELDOUT"
TITLE = "presets against kernel sums held out of their fit"
SOURCE = "the presets' own file, written with them from kernel tables (aiconfigurator, vidur)"
FILES = ()

AIM = Limits("this tool's own aim: 5 % median, 10 % p90", median=5.0, p90=10.0)


def run(measurements: Measurements) -> Outcome:
    """Every node and model whose table records held-out errors; the others are named."""
    rows, without = [], []
    for name in node_names():
        held: dict[str, dict[str, HeldOut]] = {"prefill": {}, "decode": {}}
        for model, costs in load_node(name).costs.items():
            for phase, one in (("prefill", costs.prefill_heldout), ("decode", costs.decode_heldout)):
                if one is None:
                    without.append(f"{model} on {name} in {phase} ({costs.status})")
                else:
                    held[phase][model] = one
        rows += [row for phase, by_model in held.items() for row in _rows(name, phase, by_model)]
    facts = ["recorded with each fit, not computed here; held out: means over random halves; left out: every "
             "configuration predicted without its own rows; the same over all models and parallelisms, beside the cost "
             "model's notes: python tools/derive_presets.py MEASUREMENTS --errors"]  # fmt: skip
    facts += [f"nothing is recorded of {', '.join(without)}"] if without else []
    return Outcome(tuple(rows), tuple(facts))


def _rows(node: str, phase: str, by_model: dict[str, HeldOut]) -> Iterator[Row]:
    for model, one in by_model.items():
        halves = Errors(one.rows, one.median, one.p90, one.worst)
        left = Errors(one.rows, one.left_out_median, one.left_out_p90, None)
        name = f"{node}, {model}: {phase}"
        yield Row(name, HELD_OUT, node=node, model=model, engine=KERNELS, limits=AIM, recorded=halves)
        yield Row(f"{name}, {LEFT_OUT}", LEFT_OUT, node=node, model=model, engine=KERNELS, recorded=left)
