"""arXiv v3 figure 7: storing a prompt's KVCache after the prefill, and layer by layer during it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.hardware.links import load_link
from mooncake_bench.studies.validate.fig14 import KERNELS, NODE, TP, cost
from mooncake_bench.studies.validate.files import FIGURES
from mooncake_bench.studies.validate.linear import left_out
from mooncake_bench.studies.validate.outcome import INDEPENDENT, LEFT_OUT, Outcome, Point, Row

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mooncake_bench.studies.validate.files import Measurements

ID = "V3-FIG7"
TITLE = "storing KVCache serialised or layer by layer, 8k to 128k tokens"
SOURCE = "arXiv 2407.00079 v3, figure 7, digitised"
FILES = (FIGURES,)

MODEL = "llama2-70b"
LINK = "a800-h2d"  # host to GPU; the other way has no preset


def run(measurements: Measurements) -> Outcome:
    """A bandwidth for the serialised store, a constant for the layer-wise one; each point predicted from the others."""
    the_cost = cost(KERNELS, NODE, MODEL)
    serial = measurements.curve("arXivv3_fig7", "", "store_serialized_s", least=3)
    layered = measurements.curve("arXivv3_fig7", "", "store_layerwise_s", least=3)
    tokens, seconds = np.array(serial).T
    gbytes = tokens * the_cost.kv_bytes_per_token / 1e9
    terms = np.stack([np.ones_like(gbytes), gbytes], axis=1)
    flat = np.array([value for _, value in layered])
    link = load_link(LINK)
    copied = np.array([link.transfer_ms(1e9 * size) / 1e3 for size in gbytes])
    rows = (
        Row(f"serialised: the copy alone, link {LINK}", INDEPENDENT, _points(tokens, seconds, copied), unit="s",
            node=NODE, model=MODEL, tp=TP),
        Row("serialised: constant + bytes / bandwidth", LEFT_OUT, _points(tokens, seconds, left_out(terms, seconds)),
            unit="s", node=NODE, model=MODEL, tp=TP),
        Row("layer-wise: a constant", LEFT_OUT, _points(tokens, flat, left_out(np.ones((len(flat), 1)), flat)),
            unit="s", node=NODE, model=MODEL, tp=TP),
    )  # fmt: skip
    per_gbyte, start = np.polyfit(gbytes, seconds, 1)
    last = gbytes[-1] * per_gbyte / the_cost.layers
    facts = (
        f"serialised, by least squares: {1e3 * start:.0f} ms + bytes / {1 / per_gbyte:.1f} GB/s: copying out is not "
        f"all of it; at {tokens[-1]:,.0f} tokens it takes "
        f"{seconds[-1] / flat[-1]:.1f} times the layer-wise store",
        f"layer-wise: the last of {the_cost.layers} layers alone would take {1e3 * last:.0f} ms there, so the figure's "
        f"{1e3 * float(np.median(flat)):.0f} ms are a constant of its engine, not a bandwidth; a replay adds neither",
    )
    return Outcome(rows, facts)


def _points(tokens: NDArray[np.float64], measured: NDArray[np.float64], ours: NDArray[np.float64]) -> tuple[Point, ...]:
    return tuple(Point(f"{n / 1000:g}k", float(m), float(o)) for n, m, o in zip(tokens, measured, ours, strict=True))
