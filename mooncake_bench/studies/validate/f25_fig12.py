"""FAST'25 figure 12: moving 1 to 100 GB between two nodes with the transfer engine and with TCP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.hardware.links import load_link
from mooncake_bench.studies.validate.fig14 import KERNELS, NODE, cost
from mooncake_bench.studies.validate.files import FIGURES
from mooncake_bench.studies.validate.linear import left_out
from mooncake_bench.studies.validate.outcome import IN_SAMPLE, INDEPENDENT, LEFT_OUT, Limits, Outcome, Point, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from mooncake_bench.studies.validate.files import Measurements

ID = "F25-FIG12"
TITLE = "moving 1 to 100 GB between two nodes"
SOURCE = "FAST'25, figure 12, digitised"
FILES = (FIGURES,)

FIGURE = "FAST25_fig12"
ENGINE_SERIES, TCP_SERIES = "TransferEngine_latency_s", "TCP_latency_s"
NICS = {"4x200Gbps": "4 x 200G", "8x400Gbps": "8 x 400G"}
LINKS = {  # of presets/links.toml
    ("4x200Gbps", ENGINE_SERIES): "fast25-4x200", ("8x400Gbps", ENGINE_SERIES): "fast25-8x400",
    ("4x200Gbps", TCP_SERIES): "fast25-4x200-tcp", ("8x400Gbps", TCP_SERIES): "fast25-8x400-tcp",
}  # fmt: skip
AT_GBYTES = 40.0  # what the text speaks of
# The text of FAST'25: GB/s of the transfer engine moving 40 GB, and its speed over TCP's.
SAID_GBYTES_PER_S = {"4x200Gbps": 87.0, "8x400Gbps": 190.0}
SAID_TIMES_TCP = {"4x200Gbps": 2.4, "8x400Gbps": 4.6}
LIMITS = Limits("two digits of the paper's text and 0.5 % of the figure's axis", worst=5.0)


def run(measurements: Measurements) -> Outcome:
    """The node's bandwidth, the links' presets, the same form fitted to the other points, and what the text says."""
    curves = {key: measurements.curve(FIGURE, *key, least=3) for key in LINKS}
    speed = float(cost(KERNELS).nic_bytes_per_s[0]) / 1e9
    rows = [
        Row(f"transfer engine, 4 x 200G, node {NODE}: {speed:g} GB/s", IN_SAMPLE,
            _points(curves["4x200Gbps", ENGINE_SERIES], lambda gbytes: gbytes / speed), unit="s", node=NODE),
        *(Row(f"{_words(*key)}, link {LINKS[key]}", IN_SAMPLE, _points(curve, _link_s(LINKS[key])), unit="s")
          for key, curve in curves.items()),
        *(_fitted(key, curve) for key, curve in curves.items()),
        Row("the text's GB/s at 40 GB", INDEPENDENT, tuple(_said_speeds(curves)), unit="GB/s", limits=LIMITS),
        Row("the text's times TCP at 40 GB", INDEPENDENT, tuple(_said_ratios(curves)), unit="times", limits=LIMITS),
    ]  # fmt: skip
    slopes = "; ".join(f"{_words(*key)} {_slope(curve):.1f}" for key, curve in curves.items())
    facts = (
        f"in-sample: node {NODE}'s network speed and the links' presets come from this figure; a node's network has no "
        "start-up time",
        f"slopes of the curves [GB/s]: {slopes}",
        "no node preset has the 8 x 400G testbed: the other nodes' speeds come from other networks",
    )
    return Outcome(tuple(rows), facts)


def _words(nic: str, series: str) -> str:
    return f"{'transfer engine' if series == ENGINE_SERIES else 'TCP'}, {NICS[nic]}"


def _points(curve: Sequence[tuple[float, float]], predict: Callable[[float], float]) -> tuple[Point, ...]:
    return tuple(Point(f"{gbytes:g} GB", seconds, predict(gbytes)) for gbytes, seconds in curve)


def _terms(curve: Sequence[tuple[float, float]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    gbytes, seconds = np.array(curve).T
    return np.stack([np.ones_like(gbytes), gbytes], axis=1), seconds


def _link_s(name: str) -> Callable[[float], float]:
    """Seconds of so many GB over a link's preset."""
    link = load_link(name)
    return lambda gbytes: link.transfer_ms(1e9 * gbytes) / 1e3


def _fitted(key: tuple[str, str], curve: Sequence[tuple[float, float]]) -> Row:
    terms, seconds = _terms(curve)
    ours = left_out(terms, seconds)
    points = tuple(Point(f"{x:g} GB", y, float(own)) for (x, y), own in zip(curve, ours, strict=True))
    return Row(f"{_words(*key)}: constant + bytes / speed", LEFT_OUT, points, unit="s")


def _slope(curve: Sequence[tuple[float, float]]) -> float:
    """GB/s of a straight line through a curve, each point weighing the same in seconds."""
    gbytes, seconds = np.array(curve).T
    return float(1 / np.polyfit(gbytes, seconds, 1)[0])


def _at(curve: Sequence[tuple[float, float]]) -> float:
    """Seconds that the figure shows for the size that the text speaks of."""
    return next(seconds for gbytes, seconds in curve if gbytes == AT_GBYTES)


def _said_speeds(curves: dict[tuple[str, str], list[tuple[float, float]]]) -> Iterator[Point]:
    for nic, said in SAID_GBYTES_PER_S.items():
        yield Point(NICS[nic], said, AT_GBYTES / _at(curves[nic, ENGINE_SERIES]))


def _said_ratios(curves: dict[tuple[str, str], list[tuple[float, float]]]) -> Iterator[Point]:
    for nic, said in SAID_TIMES_TCP.items():
        yield Point(NICS[nic], said, _at(curves[nic, TCP_SERIES]) / _at(curves[nic, ENGINE_SERIES]))
