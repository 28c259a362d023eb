"""FAST'25 figure 12: moving 1 to 100 GB between two nodes with the transfer engine and with TCP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mooncake_bench.hardware.links import load_link
from mooncake_bench.report import plots
from mooncake_bench.report.sheets import Sheet
from mooncake_bench.sim.costs import cost_of
from mooncake_bench.sim.network import SCALE, Flow, Network
from mooncake_bench.sim.setup import Setup
from mooncake_bench.studies.reproduce.outcome import CLOSE, Claim, Result, Row
from mooncake_bench.studies.validate.f25_fig12 import (
    AT_GBYTES,
    ENGINE_SERIES,
    LINKS,
    NICS,
    SAID_GBYTES_PER_S,
    SAID_TIMES_TCP,
    TCP_SERIES,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mooncake_bench.studies.reproduce.sources import Traces

ID = "F25-F12"
TITLE = "moving 1 to 100 GB between two nodes"
SOURCE = "FAST'25, figure 12, digitised"

GBYTES = (1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100)
# Seconds of each curve at GBYTES
PUBLISHED: dict[tuple[str, str], tuple[float, ...]] = {
    ("4x200Gbps", ENGINE_SERIES): (
        0.0132, 0.0587, 0.1141, 0.2265, 0.3398, 0.4514, 0.5531, 0.6705, 0.7739, 1.0467, 0.9921, 1.1029,
    ),
    ("8x400Gbps", ENGINE_SERIES): (
        0.0074, 0.0273, 0.0546, 0.1033, 0.1422, 0.2108, 0.2604, 0.2869, 0.3902, 0.3696, 0.4150, 0.4580,
    ),
    ("4x200Gbps", TCP_SERIES): (
        0.0703, 0.2191, 0.2720, 0.5407, 0.8069, 1.0814, 1.3386, 1.5643, 1.8561, 2.1918, 2.3332, 2.6862,
    ),
    ("8x400Gbps", TCP_SERIES): (
        0.0273, 0.1290, 0.2852, 0.4952, 0.7400, 0.9657, 1.2790, 1.5684, 1.7792, 1.9876, 2.1926, 2.4713,
    ),
}  # fmt: skip
SHOWN = (1, 10, 40, 100)  # GB, of the rows
SIMULATED = "simulated network"

Curves = dict[tuple[str, str], list[float]]  # milliseconds at GBYTES


def run(traces: Traces) -> Result:
    """The links' presets, and one flow over the simulated network of two nodes; needs no published trace."""
    links: Curves = {
        key: [load_link(name).transfer_ms(1e9 * gbytes) for gbytes in GBYTES] for key, name in LINKS.items()
    }
    flows: Curves = {
        (nic, SIMULATED): [flow_ms(gbytes * 10**9, bandwidth) for gbytes in GBYTES]
        for nic, bandwidth in _bandwidths().items()
    }
    return Result(
        rows=tuple(_rows(links, flows)),
        claims=tuple(_claims(links, flows)),
        used=(),
        parameters=tuple(_parameters(flows)),
        notes=tuple(_notes(links, flows)),
        sheets=(_sheet(links, flows),),
        draw=lambda: _draw(links, flows),
        measured=tuple(
            {"nics": nic, "curve": curve, "gbytes": gbytes, "milliseconds": ms}
            for (nic, curve), times in (links | flows).items()
            for gbytes, ms in zip(GBYTES, times, strict=True)
        ),
    )


# ---- measuring


def _bandwidths() -> dict[str, int]:
    """Bytes a second of a node's network: the default setup's; the text's figure where no node has the NICs."""
    return {
        "4x200Gbps": int(cost_of(Setup()).nic_bytes_per_s[0]),
        "8x400Gbps": int(1e9 * SAID_GBYTES_PER_S["8x400Gbps"]),
    }


def flow_ms(size: int, bytes_per_s: int) -> float:
    """How long the simulated network takes for one flow of ``size`` bytes between two idle nodes [ms]."""
    ends: list[tuple[int, Flow, int]] = []
    network = Network([bytes_per_s] * 2, lambda *end: ends.append(end), lambda *_: None)
    network.start(0, 0, 1, size * SCALE, done=lambda *_: None)
    [(end, _, _)] = ends
    return end / 1e9


# ---- what to say


def _rows(links: Curves, flows: Curves) -> Iterator[Row]:
    at = GBYTES.index(int(AT_GBYTES))
    for nic, said in SAID_GBYTES_PER_S.items():
        ours = AT_GBYTES / links[nic, ENGINE_SERIES][at] * 1e3
        yield Row(NICS[nic], "transfer engine, 40 GB", said, ours, "GB/s")
    for nic, said in SAID_TIMES_TCP.items():
        yield Row(NICS[nic], "transfer engine over TCP, 40 GB", said, _times_tcp(links, nic))
    for (nic, series), published in PUBLISHED.items():
        for gbytes in SHOWN:
            seconds = published[GBYTES.index(gbytes)]
            ours = links[nic, series][GBYTES.index(gbytes)]
            yield Row(NICS[nic], f"{gbytes} GB, {_words(series)}", 1e3 * seconds, ours, "ms")
    for gbytes in SHOWN:
        place = GBYTES.index(gbytes)
        seconds = PUBLISHED["4x200Gbps", ENGINE_SERIES][place]
        what = f"{gbytes} GB, simulated flow"
        yield Row(NICS["4x200Gbps"], what, 1e3 * seconds, flows["4x200Gbps", SIMULATED][place], "ms")


def _words(series: str) -> str:
    return {ENGINE_SERIES: "transfer engine", TCP_SERIES: "TCP"}.get(series, series)


def _times_tcp(curves: Mapping[tuple[str, str], list[float]], nic: str) -> float:
    at = GBYTES.index(int(AT_GBYTES))
    return curves[nic, TCP_SERIES][at] / curves[nic, ENGINE_SERIES][at]


def _claims(links: Curves, flows: Curves) -> Iterator[Claim]:
    at = GBYTES.index(int(AT_GBYTES))
    for nic, said in SAID_GBYTES_PER_S.items():
        preset, flow = (AT_GBYTES / curve[at] * 1e3 for curve in (links[nic, ENGINE_SERIES], flows[nic, SIMULATED]))
        detail = f"link {LINKS[nic, ENGINE_SERIES]}: {preset:.1f} GB/s; a simulated flow: {flow:.1f} GB/s"
        text = f"{NICS[nic]}: the transfer engine reaches {said:g} GB/s at 40 GB"
        yield Claim(text, near(preset, said) and near(flow, said), detail)
    for nic, said in SAID_TIMES_TCP.items():
        ours = _times_tcp(links, nic)
        yield Claim(
            f"{NICS[nic]}: {said:g} times as fast as TCP",
            near(ours, said),
            f"{ours:.2f} times at 40 GB; {_own_ratios(nic)}",
        )


def _own_ratios(nic: str) -> str:
    """How the figure's own points spread around what the text says."""
    pairs = zip(PUBLISHED[nic, TCP_SERIES], PUBLISHED[nic, ENGINE_SERIES], strict=True)
    ratios = [tcp / engine for tcp, engine in pairs]
    at = ratios[GBYTES.index(int(AT_GBYTES))]
    return f"the figure's points: {at:.2f} there, {min(ratios):.1f} to {max(ratios):.1f} over all sizes"


def near(ours: float, said: float) -> bool:
    """Whether a number is the one of the text: within 10 %."""
    return abs(ours / said - 1) <= CLOSE


def _parameters(flows: Curves) -> Iterator[str]:
    least, most = ((1 - CLOSE) * SAID_GBYTES_PER_S["4x200Gbps"], (1 + CLOSE) * SAID_GBYTES_PER_S["4x200Gbps"])
    yield (
        f"network of a node: {_bandwidths()['4x200Gbps'] / 1e9:g} GB/s, the default node's; a flow is within 10 % of "
        f"the text's {SAID_GBYTES_PER_S['4x200Gbps']:g} GB/s from {least:.0f} to {most:.0f} GB/s"
    )
    yield (
        f"of 8 x 400G no node preset exists: the flow there runs at the text's {SAID_GBYTES_PER_S['8x400Gbps']:g} GB/s"
    )


def _notes(links: Curves, flows: Curves) -> Iterator[str]:
    yield (
        "no trace is needed. The links' presets and the default node's network speed come from this very figure: the "
        "rows say how well start-up time + bytes / speed fits it, no more"
    )
    small = flows["4x200Gbps", SIMULATED][0] / links["4x200Gbps", ENGINE_SERIES][0]
    yield (
        f"a simulated flow has no start-up time: 1 GB takes {small:.0%} of what the link takes here, which has "
        f"{load_link(LINKS['4x200Gbps', ENGINE_SERIES]).latency_ms:.1f} ms; the KVCache of 8k tokens has 2.7 GB"
    )
    yield (
        f"on 8 x 400G the curve is no straight line ({_speeds('8x400Gbps')}): a line is off by up to "
        f"{_worst(links, '8x400Gbps'):.0%}"
    )


def _speeds(nic: str) -> str:
    published = PUBLISHED[nic, ENGINE_SERIES]
    speeds = [f"{gbytes} GB at {gbytes / published[GBYTES.index(gbytes)]:.0f} GB/s" for gbytes in SHOWN]
    return ", ".join(speeds)


def _worst(links: Curves, nic: str) -> float:
    pairs = zip(links[nic, ENGINE_SERIES], PUBLISHED[nic, ENGINE_SERIES], strict=True)
    return max(abs(ms / 1e3 / seconds - 1) for ms, seconds in pairs)


def _sheet(links: Curves, flows: Curves) -> Sheet:
    rows = []
    for nic, name in NICS.items():
        for series in (ENGINE_SERIES, TCP_SERIES):
            published = [1e3 * PUBLISHED[nic, series][GBYTES.index(gbytes)] for gbytes in SHOWN]
            rows.append((f"{name}, {_words(series)}, published", *(f"{ms:,.0f}" for ms in published)))
            rows.append((f"{name}, link {LINKS[nic, series]}", *_shown(links[nic, series])))
        rows.append((f"{name}, simulated flow", *_shown(flows[nic, SIMULATED])))
    headers = ("", *(f"{gbytes} GB" for gbytes in SHOWN))
    return Sheet("Milliseconds of a transfer between two nodes", headers, tuple(rows), ())


def _shown(times: list[float]) -> list[str]:
    return [f"{times[GBYTES.index(gbytes)]:,.0f}" for gbytes in SHOWN]


# ---- the figure


def _draw(links: Curves, flows: Curves) -> Any:
    figure, panels = plots.figure(columns=len(NICS))
    for axes, (nic, name) in zip(panels, NICS.items(), strict=True):
        for i, series in enumerate((ENGINE_SERIES, TCP_SERIES)):
            axes.plot(GBYTES, [ms / 1e3 for ms in links[nic, series]], label=f"{_words(series)}, ours (link preset)",
                      **plots.series(i))  # fmt: skip
            axes.plot(GBYTES, PUBLISHED[nic, series], color=plots.BOUND, linestyle="", marker=plots.marker(i),
                      markerfacecolor="none", markeredgewidth=0.8, label=f"{_words(series)}, published")  # fmt: skip
        axes.plot(GBYTES, [ms / 1e3 for ms in flows[nic, SIMULATED]], label="simulated flow", **plots.series(2))
        axes.set_title(f"{name}b/s".replace("Gb", " Gb"))
        axes.set_xlabel("size, GB")
        axes.set_ylim(0, 2.9)
    panels[0].set_ylabel("seconds")
    panels[0].legend(loc="upper left")
    return figure
