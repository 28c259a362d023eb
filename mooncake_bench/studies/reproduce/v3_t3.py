"""arXiv 2407.00079 (v3), table 3: requests rejected by baseline, early and prediction-based admission."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from mooncake_bench.report import plots
from mooncake_bench.report.sheets import Sheet
from mooncake_bench.sim.setup import Setup
from mooncake_bench.studies import replays
from mooncake_bench.studies.reproduce.admissions import Fates, fates
from mooncake_bench.studies.reproduce.outcome import Claim, Result, Row
from mooncake_bench.studies.reproduce.routers import span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mooncake_bench.studies.reproduce.outcome import Used
    from mooncake_bench.studies.reproduce.sources import Traces
    from mooncake_bench.trace import Trace

ID = "v3-T3"
TITLE = "requests rejected by three admissions under overload"
SOURCE = "arXiv 2407.00079v3, table 3"

PUBLISHED = {"baseline": 4_183, "early": 3_771, "predictive": 3_589}
REQUESTS = 23_000  # "23k"
CLUSTER = "8P+8D"
STEP = 1.02  # in order: each policy rejects at least 2 % more than the next


@dataclass(frozen=True)
class Point:
    """One setting: arrival rate, decode memory, and the policies' parameters."""

    axis: str
    value: str
    rate: float
    memory: int | None  # KV tokens of a decode instance; None: the preset's
    specs: Mapping[str, str] = field(default_factory=dict)

    def setup(self, policy: str) -> Setup:
        """What is replayed for one admission here."""
        spec = self.specs.get(policy, policy)
        return Setup(cluster=CLUSTER, speedup=self.rate, vram_tokens=self.memory, policy=spec)


PRESET = 1_457_000  # tokens that a decode instance of the a800 preset holds
LITERAL = Point("memory at ×2", "the preset's", 2.0, None)
JUDGED = Point("memory at ×4", "180 k", 4.0, 180_000)
TD = "decode time that predictive assumes"


def _recheck(point: Point) -> Point:
    specs = {policy: f"{policy}:recheck=true" for policy in ("early", "predictive")}
    return Point("check at the decode instance", "kept", point.rate, point.memory, specs)


POINTS = (
    *(Point("memory at ×2", f"{size} k", 2.0, size * 1_000) for size in (130, 150, 170)),
    LITERAL,
    Point("memory at ×4", "170 k", 4.0, 170_000),
    JUDGED,
    Point("memory at ×4", "190 k", 4.0, 190_000),
    Point(TD, "learnt (ewma)", JUDGED.rate, JUDGED.memory),
    *(Point(TD, td, JUDGED.rate, JUDGED.memory, {"predictive": f"predictive:td={td}"}) for td in ("5s", "15s")),
    _recheck(JUDGED),
)


class Measured(NamedTuple):
    """The trace, and what each admission did at each point."""

    trace: Trace
    found: list[dict[str, Fates]]

    def at(self, point: Point) -> dict[str, Fates]:
        return self.found[POINTS.index(point)]


def run(traces: Traces) -> Result:
    """The three admissions at the paper's rate and at four times the trace's, over sizes of the decode memory."""
    trace, used = traces.need("conversation", ID)
    measured = Measured(trace, _play(trace))
    return Result(
        rows=tuple(_rows(measured)),
        claims=tuple(_claims(measured)),
        used=(used,),
        parameters=tuple(_parameters()),
        notes=tuple(_notes(measured, used)),
        sheets=(_sheet(measured),),
        draw=partial(_draw, measured),
        measured=tuple(_values(measured)),
    )


def _play(trace: Trace) -> list[dict[str, Fates]]:
    wanted = [{policy: point.setup(policy) for policy in PUBLISHED} for point in POINTS]
    setups = list(dict.fromkeys(setup for each in wanted for setup in each.values()))
    found = dict(zip(setups, replays.each(trace, setups, fates), strict=True))
    return [{policy: found[setup] for policy, setup in each.items()} for each in wanted]


# ---- what to say


def in_order(found: Mapping[str, Fates]) -> bool:
    """Rejected: baseline > early > predictive, by steps of at least 2 %."""
    counts = [found[policy].rejected for policy in PUBLISHED]
    return all(more > less and more >= STEP * less for more, less in pairwise(counts))


def share(fate: Fates) -> float:
    """Rejected over offered."""
    return fate.rejected / fate.offered if fate.offered else 0.0


def _rows(measured: Measured) -> Iterator[Row]:
    """Shares of the requests: the paper's trace, which is not public, has twice as many."""
    for name, point in (("×2", LITERAL), (f"×4, {JUDGED.value}", JUDGED)):
        found = measured.at(point)
        for policy, rejected in PUBLISHED.items():
            yield Row(name, f"{policy}: rejected", rejected / REQUESTS, share(found[policy]), stand_in=True)
        for policy in ("early", "predictive"):
            below = 1 - PUBLISHED[policy] / PUBLISHED["baseline"]
            most = found["baseline"].rejected
            ours = 1 - found[policy].rejected / most if most else 0.0
            yield Row(name, f"{policy}: fewer than baseline", below, ours, stand_in=True)


def _claims(measured: Measured) -> Iterator[Claim]:
    where = "; ".join(_spans(measured, in_order))
    counts = " > ".join(f"{measured.at(JUDGED)[policy].rejected:,}" for policy in PUBLISHED)
    text = "baseline rejects most, early fewer, predictive fewest"
    yield Claim(text, in_order(measured.at(JUDGED)), f"at ×4 and {JUDGED.value}: {counts}; holds for {where}")
    twice = [(point, found) for point, found in zip(POINTS, measured.found, strict=True) if point.rate == LITERAL.rate]
    sizes = span([(point.value, in_order(found)) for point, found in twice])
    yield Claim(
        "the same at twice the trace's rate, as in the paper",
        any(in_order(found) for _, found in twice),
        f"with a decode memory of a size that the paper does not give: {sizes}",
    )


def _spans(measured: Measured, holds: Callable[[Mapping[str, Fates]], bool]) -> Iterator[str]:
    """For each free parameter, the values at which something holds."""
    for axis in dict.fromkeys(point.axis for point in POINTS):
        pairs = zip(POINTS, measured.found, strict=True)
        yield f"{axis}: {span([(point.value, holds(found)) for point, found in pairs if point.axis == axis])}"


def _parameters() -> Iterator[str]:
    sizes = ", ".join(dict.fromkeys(point.value for point in POINTS if point.axis.startswith("memory")))
    yield (
        f"KVCache memory of a decode instance, which the paper does not give: {JUDGED.memory:,} tokens where judged; "
        f"tried: {sizes} (the preset's: {PRESET:,})"
    )
    yield "arrival rate over the trace's: ×4 where judged, beside the paper's ×2; the cluster and the SLOs are its own"
    yield "decode time that predictive assumes: learnt from completed ones; also tried: 5 and 15 s"
    yield "early and predictive check decode once, as the mean of the pool; also tried: with baseline's check as well"
    yield "in order: each rejects at least 2 % more than the next"


def _notes(measured: Measured, used: Used) -> Iterator[str]:
    yield (
        "v3's trace of 23,000 requests is not public: FAST'25's conversation trace stands in, so that shares are "
        "compared, not counts" + ("; the bundled stand-in of that is used here" if used.stand_in else "")
    )
    literal, judged = measured.at(LITERAL), measured.at(JUDGED)
    if len({found.rejected for found in literal.values()}) == 1:
        yield (
            f"at ×2 with the preset's memory all three reject the same {literal['early'].rejected}: decode never "
            "fills, and only the TTFT check is left"
        )
    yield (
        f"why baseline rejects most: {judged['baseline'].at_decode:,} of its {judged['baseline'].rejected:,} are "
        "turned away at a full decode instance, their prefill wasted; the others let them wait for room"
    )
    yield from (f"completed within both SLOs at ×4, {words}: {_good(judged, name)}" for name, words in GOOD.items())


GOOD = {"good": "first gap not counted", "good_first_gap": "first gap counted in the TBT"}


def _good(found: Mapping[str, Fates], name: str) -> str:
    return ", ".join(f"{policy} {getattr(found[policy], name):,}" for policy in PUBLISHED)


def _sheet(measured: Measured) -> Sheet:
    rows = [("published, ×2", *(f"{rejected:,}" for rejected in PUBLISHED.values()), *_steps(PUBLISHED), "yes")]
    for point, found in zip(POINTS, measured.found, strict=True):
        counts = {policy: found[policy].rejected for policy in PUBLISHED}
        rows.append((_name(point), *(_count(found[policy]) for policy in PUBLISHED), *_steps(counts),
                     "yes" if in_order(found) else "no"))  # fmt: skip
    headers = ("rejected", *PUBLISHED, "early", "pred.", "in order")
    notes = (
        "in brackets: at decode, their prefill wasted; last columns: against baseline",
        f"k: thousand KV tokens of a decode instance; published: of {REQUESTS:,}, ours of {len(measured.trace):,}",
    )
    return Sheet(f"Rejected requests ({measured.trace.name})", headers, tuple(rows), notes)


def _name(point: Point) -> str:
    """A setting in a few words."""
    if point.axis.startswith("memory"):
        return f"×{point.rate:g}, {point.value}"
    return f"×{point.rate:g}, td {point.value}" if point.axis == TD else f"×{point.rate:g}, decode check kept"


def _count(fate: Fates) -> str:
    return f"{fate.rejected:,}" + (f" ({fate.at_decode:,})" if fate.at_decode else "")


def _steps(counts: Mapping[str, int]) -> Sequence[str]:
    most = counts["baseline"]
    return [f"{counts[policy] / most - 1:+.0%}" if most else "" for policy in ("early", "predictive")]


def _values(measured: Measured) -> Iterator[dict[str, Any]]:
    for point, found in zip(POINTS, measured.found, strict=True):
        for policy, fate in found.items():
            yield {
                "parameter": point.axis,
                "value": point.value,
                "speedup": point.rate,
                "vram_tokens": point.memory,
                "policy": point.specs.get(policy, policy),
                **fate._asdict(),
            }


# ---- the figure


def _draw(measured: Measured) -> Any:
    """The table as bars: shares rejected, published and ours, and over the sizes of decode memory."""
    figure, panels = plots.figure(columns=3, height_in=2.6)
    bars = panels[0]
    places = range(len(PUBLISHED))
    bars.bar([place - 0.2 for place in places], [count / REQUESTS for count in PUBLISHED.values()], 0.4,
             color=plots.FAINT, label="published, ×2")  # fmt: skip
    own = [share(measured.at(JUDGED)[policy]) for policy in PUBLISHED]
    bars.bar([place + 0.2 for place in places], own, 0.4, color=plots.PALETTE[0], label=f"ours, ×4, {JUDGED.value}")
    bars.set_xticks(list(places), ["baseline", "early", "predictive"], fontsize="small")
    bars.set_ylim(top=1.5 * max(0.01, *own, PUBLISHED["baseline"] / REQUESTS))
    bars.set_ylabel("rejected requests")
    bars.legend(fontsize="x-small")
    for axes, rate in zip(panels[1:], (2.0, 4.0), strict=True):
        _lines(axes, measured, rate)
    return figure


def _lines(axes: Any, measured: Measured, rate: float) -> None:
    pairs = [
        (point, found)
        for point, found in zip(POINTS, measured.found, strict=True)
        if point.axis == f"memory at ×{rate:g}" and point.memory is not None
    ]
    for place, policy in enumerate(PUBLISHED):
        shares = [share(found[policy]) for _, found in pairs]
        axes.plot([(point.memory or 0) / 1e3 for point, _ in pairs], shares, label=policy, marker="o", markersize=3,
                  **plots.series(place))  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.set_xlabel("decode memory, k tokens")
    axes.set_title(f"arrival rate ×{rate:g}")
    axes.legend(fontsize="x-small")
