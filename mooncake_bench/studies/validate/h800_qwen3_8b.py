"""Mooncake's own vLLM benchmark on two H800 nodes: Qwen3-8B's KVCache over the network, and its time to first token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.hardware.architecture import Architecture
from mooncake_bench.hardware.links import load_link
from mooncake_bench.hardware.presets import load_node
from mooncake_bench.studies.validate.fig14 import KERNELS
from mooncake_bench.studies.validate.linear import fit, left_out
from mooncake_bench.studies.validate.outcome import IN_SAMPLE, INDEPENDENT, LEFT_OUT, Limits, Outcome, Point, Row
from mooncake_bench.studies.validate.physics import steps

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from mooncake_bench.studies.validate.files import Line, Measurements

ID = "H800-QWEN3-8B"
TITLE = "Qwen3-8B on H800: TTFT less transfer, and transfer, by prompt length"
SOURCE = "Mooncake's vllm-v1-pd-performance.md: vLLM 0.11.2 with its connector"
FILES = ("mooncake/h800_qwen3-8b_tp8_vllm_pd_rdma.csv",)

NODE, MODEL, TP = "h800", "qwen3-8b", 8
SHAPE = Architecture(  # of its published configuration
    name=MODEL, layers=36, hidden=4096, heads=32, kv_heads=8, head_dim=128, width=12_288, vocabulary=151_936,
    weight_bytes=2.0, kv_value_bytes=2.0,
)  # fmt: skip
LINK = "h800-8xcx7"
LIMITS = Limits("the cost model's notes, section 3: TTFT in-sample within 8.1 %", worst=8.1, decimals=1)
LINK_LIMITS = Limits("section 5: transfers in-sample within 8 %", worst=8.0, decimals=0)


def run(measurements: Measurements) -> Outcome:
    """The network by the node's and the link's preset, and both times by forms fitted to the other lengths."""
    lines = measurements.enough(FILES[0], 4)
    n, ttft, moved, bytes_ = (
        np.array([line.positive(key) for line in lines])
        for key in ("prompt_tokens", "mean_ttft_ms", "kv_transfer_ms", "kv_bytes_computed")
    )
    ttft = ttft - moved
    nic = load_node(NODE).nic_gbytes_per_s
    link = load_link(LINK)
    one = np.ones_like(n)
    model = steps(NODE, SHAPE, TP)
    predicted = np.array([model.prefill_ms(tokens, tokens * tokens / 2) for tokens in n])
    rows = (
        Row("prefill by the physical form, engine none", INDEPENDENT, _points(lines, ttft, predicted), node=NODE,
            model=MODEL, tp=TP, engine=KERNELS),
        *_fitted("prefill: constant + n + n^2 / 2", lines, np.stack([one, n, n * n / 2], axis=1), ttft, LIMITS),
        *_fitted("transfer: constant + bytes / speed", lines, np.stack([one, bytes_], axis=1), moved, LINK_LIMITS),
        Row(f"transfer, link {LINK}", IN_SAMPLE,
            _points(lines, moved, np.array([link.transfer_ms(size) for size in bytes_])), node=NODE, model=MODEL,
            tp=TP),
        Row(f"transfer at {nic:g} GB/s, node {NODE}", IN_SAMPLE, _points(lines, moved, bytes_ / nic / 1e6), node=NODE,
            model=MODEL, tp=TP),
    )  # fmt: skip
    most = int(np.argmax(n))
    facts = (
        f"physical form (E5): {predicted[most]:.0f} ms at {n[most]:,.0f} tokens where {ttft[most]:.0f} were "
        f"measured less the transfer "
        f"({100 * (predicted[most] / ttft[most] - 1):+.0f} %): beside the kernels, TTFT has proxy, tokenizer and "
        "chunking in it, on a model small for 8 GPUs; the cause of its slope is not known",
        f"in-sample: node {NODE}'s {nic:g} GB/s and link {LINK} ({link.latency_ms or 0:.2f} ms + bytes / "
        f"{link.gbytes_per_s:g} GB/s) come from these transfers; a replay's network has no start-up time",
    )
    return Outcome(rows, facts)


def _fitted(
    name: str, lines: Sequence[Line], terms: NDArray[np.float64], measured: NDArray[np.float64], limits: Limits
) -> Iterator[Row]:
    """A form fitted to all lengths, of which something is claimed, and to the others of each."""
    for basis, ours in ((IN_SAMPLE, terms @ fit(terms, measured)), (LEFT_OUT, left_out(terms, measured))):
        yield Row(
            name if basis == IN_SAMPLE else f"{name}, {basis}", basis, _points(lines, measured, ours), node=NODE,
            model=MODEL, tp=TP, limits=limits if basis == IN_SAMPLE else None,
        )  # fmt: skip


def _points(lines: Sequence[Line], measured: NDArray[np.float64], ours: NDArray[np.float64]) -> tuple[Point, ...]:
    return tuple(
        Point(f"{line.text('prompt_tokens')} tokens", float(theirs), float(own))
        for line, theirs, own in zip(lines, measured, ours, strict=True)
    )
