"""FAST'25 figure 13: the network's speed, the time to first token, and how long a KVCache is really on its way."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mooncake_bench.report import plots
from mooncake_bench.report.sheets import Sheet
from mooncake_bench.sim.costs import cost_of
from mooncake_bench.sim.setup import Setup
from mooncake_bench.studies import replays
from mooncake_bench.studies.reproduce.outcome import Claim, Result, Row

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mooncake_bench.sim.replay import Replay
    from mooncake_bench.studies.reproduce.sources import Traces
    from mooncake_bench.trace import Trace

ID = "F25-F13"
TITLE = "TTFT and transfer times against the network's speed"
SOURCE = "FAST'25, figure 13, digitised"

GBITS = (24, 40, 80, 100, 160, 320, 400)  # of a node's network, a second
PUBLISHED: dict[str, tuple[float, ...]] = {  # seconds
    "ttft": (5.0944, 2.4013, 1.7305, 1.5963, 1.4063, 1.2455, 1.2520),
    "ideal": (1.5360, 0.9355, 0.4783, 0.3824, 0.2415, 0.1234, 0.0994),
    "actual": (3.6484, 1.1337, 0.5098, 0.4034, 0.2508, 0.1257, 0.1017),
}
WORDS = {"ttft": "mean TTFT", "ideal": "transfer in theory", "actual": "transfer, actual"}
GROUPS = {"ttft": "TTFT", "ideal": "theory", "actual": "actual"}
CLUSTER = "8P+8D"
CHOSEN = ("kvcache-centric", 1.0)  # routing, and speedup over the trace's own rate
OTHERS: dict[tuple[str, float], tuple[int, ...]] = {  # varied one at a time, at some speeds
    ("cache-aware", 1.0): (24, 40, 100),
    ("round-robin", 1.0): (24, 40, 100),
    ("kvcache-centric", 0.5): (40, 100, 160),
    ("kvcache-centric", 1.25): (40, 100, 160),
}
BELOW_S, FROM_GBITS = 2.0, 100  # what the text says
SHARP = 2.0  # times the TTFT at 100 Gbps: a sharp rise
LEAVES, KEEPS = 1.5, 1.15  # times the theory: actual transfers leave it; keep to it
FAST_GBITS = 160  # from here on a network is fast


class Point(NamedTuple):
    """What became of one network speed; seconds are means over requests."""

    ttft: float  # to the moment that the KVCache is where it decodes
    first_token: float  # to the end of the prefill: a replay's own TTFT
    ideal: float  # a prompt's KVCache at the network's full speed
    actual: float  # the same, and what sharing the network adds
    fetch_ideal: float  # of those that fetched
    fetch_actual: float
    fetched_tb: float
    busiest_gbits: float  # what the busiest prefill node sends on to decode nodes, over the whole trace


Points = dict[tuple[str, float, int], Point]  # by routing, speedup and Gbit/s


def run(traces: Traces) -> Result:
    """The seven speeds on the synthetic trace, and some of them under other routings and rates."""
    trace, used = traces.need("synthetic", ID)
    points = _measure(trace)
    return Result(
        rows=tuple(_rows(points)),
        claims=tuple(_claims(points)),
        used=(used,),
        parameters=tuple(_parameters(points)),
        notes=tuple(_notes(points)),
        sheets=(_sheet(points), _others_sheet(points)),
        draw=lambda: _draw(points),
        measured=tuple(
            {"policy": policy, "speedup": speedup, "gbit_per_s": gbits, **each._asdict()}
            for (policy, speedup, gbits), each in points.items()
        ),
    )


# ---- measuring


def _measure(trace: Trace) -> Points:
    keys = [(*CHOSEN, gbits) for gbits in GBITS]
    keys += [(*other, gbits) for other, speeds in OTHERS.items() for gbits in speeds]
    return dict(zip(keys, replays.each(trace, [_setup(*key) for key in keys], point), strict=True))


def _setup(policy: str, speedup: float, gbits: int) -> Setup:
    return Setup(cluster=CLUSTER, policy=policy, speedup=speedup, nic_gbytes_per_s=gbits / 8)


def point(replay: Replay) -> Point:
    """Means over the requests whose KVCache arrived; of fetches, over those that ended."""
    columns, cost = replay.columns, cost_of(replay.setup)
    there, fetched = columns["kv_arrival_ps"] >= 0, columns["fetch_end_ps"] >= 0
    size = replay.trace.input_tokens[there] * float(cost.kv_bytes_per_token)
    speed = float(cost.nic_bytes_per_s[0])
    span = float(columns["arrival_ps"][-1]) / 1e12 or inf  # one request has none

    def mean_s(later: str, earlier: str, where: Any) -> float:
        """Mean time from one moment to another."""
        return float((columns[later] - columns[earlier])[where].mean()) / 1e12 if where.any() else 0.0

    streamed_s = mean_s("kv_arrival_ps", "stream_start_ps", there)
    alone_s = float(columns["stream_ideal_ps"][there].mean()) / 1e12
    ideal_s = float(size.mean()) / speed
    return Point(
        ttft=mean_s("kv_arrival_ps", "arrival_ps", there),
        first_token=mean_s("first_token_ps", "arrival_ps", there),
        ideal=ideal_s,
        actual=ideal_s + streamed_s - alone_s,  # a stream runs beside its prefill, so it takes long even alone
        fetch_ideal=float(columns["fetch_ideal_ps"][fetched].mean()) / 1e12 if fetched.any() else 0.0,
        fetch_actual=mean_s("fetch_end_ps", "fetch_start_ps", fetched),
        fetched_tb=float(columns["fetched_tokens"].sum()) * cost.kv_bytes_per_token / 1e12,
        busiest_gbits=8 * float(np.bincount(columns["prefill_instance"][there], size).max()) / span / 1e9,
    )


# ---- what to say


def _series(points: Points, name: str) -> dict[int, float]:
    return {gbits: getattr(points[(*CHOSEN, gbits)], name) for gbits in GBITS}


def _rows(points: Points) -> Iterator[Row]:
    for name, published in PUBLISHED.items():
        for (gbits, ours), seconds in zip(_series(points, name).items(), published, strict=True):
            yield Row(WORDS[name], f"{gbits} Gbit/s", 1e3 * seconds, 1e3 * ours, "ms")


def below(found: Mapping[int, float]) -> bool:
    """Whether the mean TTFT is below two seconds at every speed from 100 Gbit/s on."""
    return all(seconds < BELOW_S for gbits, seconds in found.items() if gbits >= FROM_GBITS)


def sharp(found: Mapping[int, float]) -> bool:
    """Whether the TTFT at the lowest speed is more than twice that at 100 Gbit/s, and above two seconds."""
    lowest = found[min(found)]
    return lowest > max(BELOW_S, SHARP * found[FROM_GBITS])


def keeps(ratios: Mapping[int, float], gbits: int) -> bool:
    """Whether actual transfers take what the theory says from this speed on."""
    return all(ratio <= KEEPS for speed, ratio in ratios.items() if speed >= gbits)


def _claims(points: Points) -> Iterator[Claim]:
    ttft, ideal, actual = (_series(points, name) for name in ("ttft", "ideal", "actual"))
    yield Claim(
        "mean TTFT is below 2 s from 100 Gbit/s on",
        below(ttft),
        f"{_said(ttft)}; also at 100 Gbit/s: {_others(points, FROM_GBITS, 'ttft')}",
    )
    yield Claim(
        "it rises sharply below",
        sharp(ttft),
        f"at 24 Gbit/s {ttft[24] / ttft[FROM_GBITS]:.3g} times what it is at 100 (published: "
        f"{PUBLISHED['ttft'][0] / PUBLISHED['ttft'][3]:.1f}); also at 24 Gbit/s: {_others(points, 24, 'ttft')}",
    )
    ratios = {gbits: actual[gbits] / ideal[gbits] for gbits in GBITS}
    published = zip(GBITS, PUBLISHED["actual"], PUBLISHED["ideal"], strict=True)
    yield Claim(
        "actual transfers take what theory says on a fast network, far more on a slow one",
        keeps(ratios, FAST_GBITS) and ratios[min(ratios)] > LEAVES,
        f"actual over theory: {_times(ratios)}; published: {_times({g: a / i for g, a, i in published})}",
    )
    half = {g: points["kvcache-centric", 0.5, g] for g in (100, 160)}
    yield Claim(
        "they do so down to about 100 Gbit/s",
        keeps(ratios, FROM_GBITS),
        f"judged: at most {KEEPS:g} times the theory; at 100 Gbit/s {ratios[100]:.2f}, at half the rate "
        f"{half[100].actual / half[100].ideal:.2f}",
    )


def _said(found: Mapping[int, float]) -> str:
    return ", ".join(f"{seconds:.2f} s at {gbits}" for gbits, seconds in found.items())


def _times(ratios: Mapping[int, float]) -> str:
    return ", ".join(f"{ratio:.2f} at {gbits}" for gbits, ratio in ratios.items())


def _others(points: Points, gbits: int, name: str) -> str:
    texts = [
        f"{getattr(each, name):.1f} s with {policy}" + (f" at {speedup:g} times the rate" if speedup != 1 else "")
        for (policy, speedup, speed), each in points.items()
        if speed == gbits and (policy, speedup) != CHOSEN
    ]
    return ", ".join(texts)


def _parameters(points: Points) -> Iterator[str]:
    yield f"cluster {CLUSTER}: the paper names sixteen nodes, not how they are divided"
    yield (
        "TTFT: until the KVCache is where it decodes, for TTFT less actual transfer is 1.1 to 1.4 s in the figure at "
        "every speed; a replay's own TTFT ends with the prefill"
    )
    yield (
        "theory: all of a prompt's KVCache at the network's speed; actual: that and how much later than on an idle "
        "network it arrives"
    )
    yield (
        "routing kvcache-centric at the trace's own rate; also tried: cache-aware, round-robin, 0.5 and 1.25 times "
        "the rate"
    )


def _notes(points: Points) -> Iterator[str]:
    own, even = points[(*CHOSEN, 40)], points["round-robin", 1.0, 40]
    yield (
        f"below 80 Gbit/s transfers collapse here, further than published: routing to the cached prefix lets few nodes "
        f"send most of the KVCache. Over the whole trace the busiest prefill node has {own.busiest_gbits:.0f} Gbit/s "
        f"to send of the 40 it can, {points[(*CHOSEN, 24)].busiest_gbits:.0f} of 24"
    )
    yield (
        f"experiment, routing alone changed: round-robin, whose busiest node sends {even.busiest_gbits:.0f} Gbit/s, "
        f"has an actual transfer of {even.actual:.2f} s at 40 Gbit/s (published 1.13, kvcache-centric "
        f"{own.actual:.2f}) and of {points['round-robin', 1.0, 24].actual:.1f} s at 24 (published 3.65, "
        f"kvcache-centric {points[(*CHOSEN, 24)].actual:.1f})"
    )
    slow = points["kvcache-centric", 0.5, 40]
    yield (
        f"experiment, rate alone changed: at half the rate the actual transfer is {slow.actual:.2f} s at 40 Gbit/s, "
        f"where the theory says {slow.ideal:.2f}"
    )
    yield (
        f"without fetches (cache-aware) no prefill waits for the network: "
        f"{points['cache-aware', 1.0, 24].first_token:.1f} s to the first token at 24 Gbit/s, "
        f"{points[(*CHOSEN, 24)].first_token:.0f} s with them: Algorithm 1 counts a fetch at the network's full "
        "speed, however busy it is"
    )
    top = points[(*CHOSEN, 400)]
    yield (
        f"TTFT less actual transfer at 400 Gbit/s: {PUBLISHED['ttft'][-1] - PUBLISHED['actual'][-1]:.2f} s published, "
        f"{top.first_token:.2f} s here: prefills are shorter here, as in F25-F15 at 8P+8D"
    )


def _sheet(points: Points) -> Sheet:
    rows = []
    for name, published in PUBLISHED.items():
        rows.append((f"{WORDS[name]}, published", *map(_seconds, published)))
        rows.append((f"{WORDS[name]}, ours", *map(_seconds, _series(points, name).values())))
    rows.append(("to the first token, ours", *map(_seconds, _series(points, "first_token").values())))
    rows.append(("a fetch in theory, ours", *map(_seconds, _series(points, "fetch_ideal").values())))
    rows.append(("a fetch, actual, ours", *map(_seconds, _series(points, "fetch_actual").values())))
    rows.append(("fetched, TB, ours", *(f"{tb:.2f}" for tb in _series(points, "fetched_tb").values())))
    return Sheet("Seconds, by Gbit/s of a node's network", ("", *map(str, GBITS)), tuple(rows), ())


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def _others_sheet(points: Points) -> Sheet:
    rows = [
        (policy, f"{speedup:g}", str(gbits), _seconds(each.ttft), _seconds(each.actual), _seconds(each.ideal),
         f"{each.busiest_gbits:.0f}")
        for (policy, speedup, gbits), each in points.items() if (policy, speedup) != CHOSEN
    ]  # fmt: skip
    headers = ("routing", "rate", "Gbit/s", "TTFT, s", "actual, s", "theory, s", "busiest node, Gbit/s")
    return Sheet("Experiments: one thing changed", headers, tuple(rows), ())


# ---- the figure


def _draw(points: Points) -> Any:
    figure, panels = plots.figure(columns=2)
    for axes, names in zip(panels, (("ttft",), ("ideal", "actual")), strict=True):
        for i, name in enumerate(names):
            axes.plot(GBITS, list(_series(points, name).values()), marker=plots.marker(i), label=f"{WORDS[name]}, ours",
                      **plots.series(i))  # fmt: skip
            axes.plot(GBITS, PUBLISHED[name], color=plots.BOUND, linestyle="", marker="x+"[i], markersize=5,
                      label=f"{WORDS[name]}, published")  # fmt: skip
        axes.set_xlabel("network of a node, Gbit/s")
        axes.set_yscale("log")
        axes.set_xscale("log")
        axes.set_xticks(GBITS, list(map(str, GBITS)))
        axes.minorticks_off()
        axes.legend(loc="upper right")
    panels[0].axhline(BELOW_S, color=plots.FAINT, linestyle=":", linewidth=0.9)
    panels[0].set_ylabel("seconds")
    for axes in panels:
        plots.compact(axes.yaxis)
    return figure
