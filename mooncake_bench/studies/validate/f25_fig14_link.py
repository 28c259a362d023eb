"""FAST'25 figure 14: one request's KVCache over the network, and from host to GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_bench.hardware.links import load_link
from mooncake_bench.studies.validate.fig14 import CACHED_PERCENT, FIGURE, KERNELS, NODE, ON, cost, k
from mooncake_bench.studies.validate.files import FIGURES
from mooncake_bench.studies.validate.outcome import IN_SAMPLE, INDEPENDENT, Limits, Outcome, Point, Row

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mooncake_bench.studies.validate.files import Measurements

ID = "F25-FIG14-LINK"
TITLE = "KVCache of one request over the network and to the GPU"
SOURCE = "FAST'25, figure 14, digitised"
FILES = (FIGURES,)

PAPER_H2D_GBYTES_PER_S = 128.0  # FAST'25, table 1
NETWORK, TO_GPU = "fast25-4x200", "a800-h2d"  # links: fitted to figure 12, and to these very bars
LIMITS = Limits("the cost model's notes, section 4: 86 to 90 GB/s beside the preset's 87", worst=100 * (90 / 87 - 1))


def run(measurements: Measurements) -> Outcome:
    """The node's network bandwidth, the links' presets, and the paper's own figure for host to GPU."""
    nic = float(cost(KERNELS).nic_bytes_per_s[0]) / 1e9
    transfer, load = (_bars(measurements, series) for series in ("transfer", "load"))
    rows = (
        Row(f"transfer at {nic:g} GB/s, node {NODE}", IN_SAMPLE, _at_speed(transfer, nic), unit="s", limits=LIMITS,
            **ON),
        Row(f"transfer, link {NETWORK}", INDEPENDENT, _over(transfer, NETWORK), unit="s", **ON),
        Row(f"host to GPU, link {TO_GPU}", IN_SAMPLE, _over(load, TO_GPU), unit="s", **ON),
        Row(f"host to GPU at {PAPER_H2D_GBYTES_PER_S:g} GB/s, table 1", INDEPENDENT,
            _at_speed(load, PAPER_H2D_GBYTES_PER_S), unit="s", **ON),
    )  # fmt: skip
    facts = (
        f"in-sample: the node's {nic:g} GB/s was read from this figure and figure 12, link {TO_GPU} from these bars; "
        f"link {NETWORK} was fitted to figure 12 alone",
        f"the bars are worth {_range(transfer)} GB/s over the network and {_range(load)} GB/s from host to GPU, at "
        f"{cost(KERNELS).kv_bytes_per_token:,} bytes a token",
    )
    return Outcome(rows, facts)


def _bars(measurements: Measurements, series: str) -> list[tuple[str, float, float]]:
    """(label, GB, seconds) of every bar of a series."""
    return [
        (f"{k(tokens)}, {percent} %", tokens * cost(KERNELS).kv_bytes_per_token / 1e9, seconds)
        for percent in CACHED_PERCENT
        for tokens, seconds in measurements.curve(FIGURE, percent, series)
    ]


def _at_speed(bars: Iterable[tuple[str, float, float]], gbytes_per_s: float) -> tuple[Point, ...]:
    return tuple(Point(label, seconds, gbytes / gbytes_per_s) for label, gbytes, seconds in bars)


def _over(bars: Iterable[tuple[str, float, float]], name: str) -> tuple[Point, ...]:
    link = load_link(name)
    return tuple(Point(label, seconds, link.transfer_ms(1e9 * gbytes) / 1e3) for label, gbytes, seconds in bars)


def _range(bars: Iterable[tuple[str, float, float]]) -> str:
    speeds = [gbytes / seconds for _, gbytes, seconds in bars]
    return f"{min(speeds):.1f} to {max(speeds):.1f}"
