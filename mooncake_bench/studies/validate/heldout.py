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
NOTES = "the cost model's notes, section 3, mean over 14 models and parallelisms"

PUBLISHED = {  # node: errors of those notes in prefill (E1) and decode (E2, roof form), median and p90
    "a100": {"prefill": (1.6, 6.6), "decode": (2.0, 5.2)},
    "h100": {"prefill": (1.9, 6.3), "decode": (1.9, 4.8)},
    "h200": {"prefill": (2.3, 6.1), "decode": (1.9, 4.1)},
}


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
             "configuration predicted without its own rows"]  # fmt: skip
    facts += [f"nothing is recorded of {', '.join(without)}"] if without else []
    return Outcome(tuple(rows), tuple(facts))


def _rows(node: str, phase: str, by_model: dict[str, HeldOut]) -> Iterator[Row]:
    for model, one in by_model.items():
        halves = Errors(one.rows, one.median, one.p90, one.worst)
        left = Errors(one.rows, one.left_out_median, one.left_out_p90, None)
        name = f"{node}, {model}: {phase}"
        yield Row(name, HELD_OUT, node=node, model=model, engine=KERNELS, limits=AIM, recorded=halves)
        yield Row(f"{name}, {LEFT_OUT}", LEFT_OUT, node=node, model=model, engine=KERNELS, recorded=left)
    if by_model and node in PUBLISHED:
        published = Limits(NOTES, *PUBLISHED[node][phase], decimals=1)
        yield Row(f"{node}: {phase}, mean of {len(by_model)} models", HELD_OUT, node=node, engine=KERNELS,
                  limits=published, recorded=_mean(list(by_model.values())))  # fmt: skip


def _mean(found: list[HeldOut]) -> Errors:
    means = (sum(getattr(one, name) for one in found) / len(found) for name in ("median", "p90", "worst"))
    return Errors(sum(one.rows for one in found), *means)
