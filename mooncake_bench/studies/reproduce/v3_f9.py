"""arXiv 2407.00079 (v3), figures 9 and 10: both pools' loads under early rejection, and with prediction."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mooncake_bench.report import plots
from mooncake_bench.report.sheets import Sheet
from mooncake_bench.results.words import DASH
from mooncake_bench.sim.setup import Setup
from mooncake_bench.studies import replays
from mooncake_bench.studies.reproduce.admissions import INTERVAL_MS, RAMP, Loads, loads
from mooncake_bench.studies.reproduce.outcome import Claim, Result, Row
from mooncake_bench.studies.reproduce.routers import span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mooncake_bench.studies.reproduce.outcome import Used
    from mooncake_bench.studies.reproduce.sources import Traces
    from mooncake_bench.trace import Trace

ID = "v3-F9"
ALIASES = ("v3-F10",)
TITLE = "loads of both pools under early rejection swing in anti-phase"
SOURCE = "arXiv 2407.00079v3, figures 9 and 10"

SWING = (0.05, 0.95)  # from about, to about: read by eye
READING_ERROR = 0.03
ANTI_PHASE = -0.1  # a correlation of the loads below this is more than noise
CALMER = 0.9  # damped: the prefill load deviates by at most this share of what it did
POLICIES = ("early", "predictive")


@dataclass(frozen=True)
class Point:
    """One setting of 20 instances, and how the trace's answers are stretched."""

    words: str
    changes: Mapping[str, Any]
    answers: float = 1.0  # output tokens over the trace's
    policies: Sequence[str] = POLICIES

    def setup(self, policy: str) -> Setup:
        """What is replayed for one admission here."""
        return Setup(policy=policy, **self.changes)


JUDGED_CHANGES = {"cluster": "9P+11D", "speedup": 3.0, "vram_tokens": 120_000}
JUDGED = Point("9P+11D, ×3, 120 k", JUDGED_CHANGES)
HALF = {"max_requests": 6_000}
LARGEST = Point("16P+4D, ×10, TBT 40 ms", {"cluster": "16P+4D", "speedup": 10.0, "slo_tbt_ms": 40.0} | HALF)
SETTINGS = (
    JUDGED,
    *(Point(f"9P+11D, ×3, {size} k", JUDGED_CHANGES | {"vram_tokens": size * 1_000}) for size in (140,)),
    Point("10P+10D, ×3, 140 k", {"cluster": "10P+10D", "speedup": 3.0, "vram_tokens": 140_000}),
    Point("10P+10D, ×6, 150 k", {"cluster": "10P+10D", "speedup": 6.0, "vram_tokens": 150_000} | HALF),
    LARGEST,
)
ONLY_EARLY = POLICIES[:1]
EXPERIMENTS = (  # changes of the judged setting, under early rejection; memory follows the answers, so that it fills
    *(Point(f"TTFT SLO {s} s", JUDGED_CHANGES | {"slo_ttft_ms": s * 1e3}, policies=ONLY_EARLY) for s in (10, 60)),
    Point("answers ×1/4, memory ×1/3", JUDGED_CHANGES | {"vram_tokens": 40_000}, 0.25, ONLY_EARLY),
    Point("answers ×4, memory ×4", JUDGED_CHANGES | {"vram_tokens": 480_000}, 4.0, ONLY_EARLY),
)
POINTS = SETTINGS + EXPERIMENTS

Found = dict[str, Loads]  # by policy


class Measured(NamedTuple):
    """The trace, and the loads at each point."""

    trace: Trace
    found: list[Found]

    def at(self, point: Point) -> Found:
        return self.found[POINTS.index(point)]


def run(traces: Traces) -> Result:
    """Early and prediction-based rejection on 20 instances, in several settings; then one thing at a time."""
    trace, used = traces.need("conversation", ID)
    measured = Measured(trace, _play(trace))
    return Result(
        rows=tuple(_rows(measured.at(JUDGED)["early"])),
        claims=tuple(_claims(measured)),
        used=(used,),
        parameters=tuple(_parameters(measured)),
        notes=tuple(_notes(measured, used)),
        sheets=(_sheet(measured, SETTINGS, "Loads over time"), _sheet(measured, EXPERIMENTS, WHY)),
        draw=partial(_draw, measured),
        measured=tuple(_values(measured)),
    )


WHY = "What sets the swing: changes of 9P+11D, ×3, 120 k"


def _play(trace: Trace) -> list[Found]:
    """The trace as it is on every core at once, then with its answers stretched."""
    found: dict[tuple[float, Setup], Loads] = {}
    for answers in dict.fromkeys(point.answers for point in POINTS):
        mine = [point for point in POINTS if point.answers == answers]
        setups = list(dict.fromkeys(point.setup(policy) for point in mine for policy in point.policies))
        played = replays.each(_stretched(trace, answers), setups, loads)
        found |= {(answers, setup): each for setup, each in zip(setups, played, strict=True)}
    return [{policy: found[point.answers, point.setup(policy)] for policy in point.policies} for point in POINTS]


def _stretched(trace: Trace, answers: float) -> Trace:
    """The same requests with every answer so many times as long, rounded down, at least one token."""
    if answers == 1:
        return trace
    tokens = np.maximum(1, np.floor(trace.output_tokens * answers)).astype(trace.output_tokens.dtype)
    tokens.flags.writeable = False
    return replace(trace, output_tokens=tokens)


# ---- what to say


def _rows(early: Loads) -> Iterator[Row]:
    for pool, (low, high) in zip(("prefill", "decode"), early.ranges, strict=True):
        for words, published, ours in (("5th percentile", SWING[0], low), ("95th percentile", SWING[1], high)):
            yield Row("early", f"{pool} load, {words}", published, ours, reading_error=READING_ERROR, stand_in=True)


def anti_phase(found: Found) -> bool:
    """Whether early rejection lets one pool's load fall where the other's rises."""
    correlation = found["early"].correlation
    return correlation is not None and correlation < ANTI_PHASE


def decorrelated(found: Found) -> bool:
    """Whether prediction takes the anti-phase away."""
    correlation = found["predictive"].correlation
    return anti_phase(found) and correlation is not None and correlation >= ANTI_PHASE


def damped(found: Found) -> bool:
    """Whether prediction calms the prefill load clearly, and the decode load not at the expense of it."""
    (prefill, decode), (calm, other) = found["early"].deviations, found["predictive"].deviations
    return calm <= CALMER * prefill and other <= decode


def deep(found: Found) -> bool:
    """Whether both loads swing about as far as in the paper."""
    return all(low <= 2 * SWING[0] and high >= 1 - 2 * SWING[0] for low, high in found["early"].ranges)


def _claims(measured: Measured) -> Iterator[Claim]:
    found = measured.at(JUDGED)
    early, predictive = (_number(found[policy].correlation) for policy in POLICIES)
    yield _claim("early: prefill and decode load are in anti-phase", measured, anti_phase, f"correlation {early}")
    yield _claim("predictive: they no longer are", measured, decorrelated, f"correlation {predictive}")
    was, now = (" / ".join(f"{each:.2f}" for each in found[policy].deviations) for policy in POLICIES)
    words = f"standard deviation of prefill / decode load {was} under early, {now} under predictive"
    yield _claim("prediction damps the swings of both", measured, damped, words)
    words = "; ".join(f"{pool} {_swing(each)}" for pool, each in zip(("prefill", "decode"), found["early"].ranges,
                      strict=True))  # fmt: skip
    yield _claim("early: both loads swing between about 5 and 95 %", measured, deep, words)


def _claim(text: str, measured: Measured, holds: Callable[[Found], bool], words: str) -> Claim:
    tried = [(point.words, holds(measured.at(point))) for point in SETTINGS]
    yes = sum(each for _, each in tried)
    where = f"holds in {yes} of {len(tried)} settings" + ("" if yes in (0, len(tried)) else f": {_semicolons(tried)}")
    return Claim(text, holds(measured.at(JUDGED)), f"{words}; {where}")


def _semicolons(tried: Sequence[tuple[str, bool]]) -> str:
    """As :func:`span`, for values with commas in them."""
    return span([(words.replace(", ", " "), holds) for words, holds in tried])


def _number(value: float | None) -> str:
    return DASH if value is None else f"{value:+.2f}"


def _swing(bounds: tuple[float, float]) -> str:
    return f"{bounds[0]:.2f} to {bounds[1]:.2f}"


def _parameters(measured: Measured) -> Iterator[str]:
    minutes = measured.at(JUDGED)["early"].time_s[-1] / 60
    yield f"the split of the 20 nodes, which the paper does not say: 9P+11D; tried: {_tried()}"
    yield f"arrival rate: ×3, at which the trace lasts {minutes:.0f} minutes; tried: ×6 and ×10 with its first half"
    yield "KVCache memory of a decode instance: 120,000 tokens; tried: up to 150,000, and a TBT SLO of 40 ms"
    yield (
        f"load: of prefill, work that is queued over the TTFT SLO; of decode, the larger of step time / TBT SLO and "
        f"context / memory; sampled every {INTERVAL_MS / 1e3:g} s, the first {RAMP:.0%} of the arrivals left out"
    )
    yield (
        f"anti-phase: a correlation below {ANTI_PHASE:g}; damped: the prefill load's deviation at most {CALMER:g} of "
        "early's, the decode load's not above it"
    )


def _tried() -> str:
    return ", ".join(dict.fromkeys(str(point.changes["cluster"]) for point in SETTINGS))


def _notes(measured: Measured, used: Used) -> Iterator[str]:
    yield (
        "v3's trace is not public: FAST'25's conversation trace stands in"
        + ("; the bundled stand-in of that is used here" if used.stand_in else "")
    )
    short, judged, slow = (measured.at(point)["early"] for point in (EXPERIMENTS[2], JUDGED, EXPERIMENTS[3]))
    yield (
        "why decode does not fall to 5 %: when rejection ends, the new prefills reach decode sooner than it empties; "
        f"with answers a quarter as long its 5th percentile falls from {judged.ranges[1][0]:.2f} to "
        f"{short.ranges[1][0]:.2f}, with four times as long it rises to {slow.ranges[1][0]:.2f}"
    )
    few, many = (measured.at(point)["early"] for point in EXPERIMENTS[:2])
    correlations = ", ".join(_number(each.correlation) for each in (few, judged, many))
    yield (
        "why there is anti-phase: what is admitted reaches decode only a queue later; a TTFT SLO of 10, 30, 60 s, "
        f"which bounds that queue, gives correlations of {correlations}"
    )


def _sheet(measured: Measured, points: Sequence[Point], title: str) -> Sheet:
    rows = []
    for point in points:
        for policy, each in measured.at(point).items():
            (prefill, decode), (one, other) = each.ranges, each.deviations
            name = point.words if policy == "early" else "  predictive"
            rows.append((name, _number(each.correlation), _swing(prefill), _swing(decode), f"{one:.2f}", f"{other:.2f}",
                         f"{each.rejected:,}"))  # fmt: skip
    headers = ("early", "corr.", "prefill", "decode", "sd P", "sd D", "rejected")
    notes = (
        "prefill, decode: load, 5th to 95th percentile; sd: standard deviation; k: thousand KV tokens of a decode "
        "instance; ×: arrival rate over the trace's",
    )
    return Sheet(f"{title} ({measured.trace.name})", headers, tuple(rows), notes)


def _values(measured: Measured) -> Iterator[dict[str, Any]]:
    for point, found in zip(POINTS, measured.found, strict=True):
        for policy, each in found.items():
            (prefill, decode), (one, other) = each.ranges, each.deviations
            yield {
                "setting": point.words,
                "policy": policy,
                "answers": point.answers,
                "correlation": each.correlation,
                "prefill_low": prefill[0],
                "prefill_high": prefill[1],
                "decode_low": decode[0],
                "decode_high": decode[1],
                "prefill_deviation": one,
                "decode_deviation": other,
                "rejected": each.rejected,
            }


# ---- the figure


def _draw(measured: Measured) -> Any:
    """Loads over time as in figure 9, with prediction below it, and beside them where early swings most."""
    figure, panels = plots.figure(rows=2, columns=2)
    for axes, (point, policy) in zip(
        panels, chain.from_iterable(((JUDGED, each), (LARGEST, each)) for each in POLICIES), strict=True
    ):
        each = measured.at(point)[policy]
        for place, (pool, load) in enumerate((("prefill", each.prefill), ("decode", each.decode))):
            axes.plot([time / 60 for time in each.time_s], load, label=f"{pool}, ours", **plots.series(place))
        for bound in SWING:
            axes.axhline(bound, color=plots.FAINT, linestyle=":", linewidth=0.9,
                         label="published swing" if bound == SWING[0] else None)  # fmt: skip
        axes.set_ylim(0, max(1.05, *each.decode))
        axes.set_title(f"{policy}: {point.words}", fontsize="small")
    for axes in panels[2:]:
        axes.set_xlabel("minutes")
    for axes in panels[::2]:
        axes.set_ylabel("load")
    panels[2].legend(loc="lower right", fontsize="x-small")
    return figure
