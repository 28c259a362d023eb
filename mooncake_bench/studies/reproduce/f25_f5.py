"""FAST'25 figure 5: time to first token under four routers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from mooncake_bench.report import plots
from mooncake_bench.report.sheets import Sheet
from mooncake_bench.results.words import DASH
from mooncake_bench.studies.reproduce import routers
from mooncake_bench.studies.reproduce.outcome import NEAR, Claim, Result, Row
from mooncake_bench.studies.reproduce.routers import BEST, ROUTERS, Point

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mooncake_bench.studies.reproduce.outcome import Used
    from mooncake_bench.studies.reproduce.routers import Found, Times
    from mooncake_bench.studies.reproduce.sources import Traces
    from mooncake_bench.trace import Trace

ID = "F25-F5"
TITLE = "time to first token under four routers"
SOURCE = "FAST'25, figure 5"

PUBLISHED: dict[str, dict[str, float]] = {  # s; the means are printed, the others read by eye
    "random": {"mean": 19.65, "median": 13.7},
    "load-balancing": {"mean": 5.27, "median": 3.6, "upper": 7.4},
    "cache-aware": {"mean": 3.58, "median": 2.2, "upper": 5.2},
    "kvcache-centric": {"mean": 3.07, "median": 1.8, "upper": 4.2},
}
READING_ERROR_S = 0.2
WORDS = {"mean": "mean", "median": "median", "upper": "third quartile"}
GAIN = 1 - 3.07 / 3.58  # "14 % below"

CLUSTER = "8P+8D"  # the paper says 16 nodes; its figure 11 shows at most 8 replicas
SEEDS = 5
RATE, SPLIT, THRESHOLD, LOAD, ENGINE, SEED = (
    "arrival rate", "split", "threshold", "load counted by", "engine", "seed of random",
)  # fmt: skip
RATES = (0.5, 1.25, 1.5, 2.0)
BY_REQUESTS = {"load-balancing": "load-balancing:by=requests"}


def _points() -> Iterator[Point]:
    """The judged point first, then each free parameter by itself."""
    yield Point("")
    yield from (Point(SEED, str(seed), seed=seed) for seed in range(SEEDS))
    yield from (Point(RATE, f"×{rate:g}", {"speedup": rate}) for rate in sorted({1.0, *RATES}))
    yield from (Point(SPLIT, split, {"cluster": split}) for split in ("6P+10D", CLUSTER, "12P+4D"))
    yield from (Point(THRESHOLD, f"{t:g}", specs={BEST: f"{BEST}:threshold={t:g}"}) for t in (1, 16, 64, 1000))
    yield Point(LOAD, "queued time")
    yield Point(LOAD, "requests", specs=BY_REQUESTS)
    yield Point(LOAD, "requests at rate ×2", {"speedup": 2.0}, BY_REQUESTS)
    yield Point(ENGINE, "mooncake-a800")
    yield Point(ENGINE, "none", {"engine": "none"})


POINTS = tuple(_points())


class Measured(NamedTuple):
    """The trace, and what every router took at every point."""

    trace: Trace
    found: list[Found]

    @property
    def judged(self) -> Found:
        """The judged point, random as the mean over its seeds."""
        return self.found[0] | {"random": routers.average([each["random"] for each in self.along(SEED)])}

    def along(self, axis: str) -> list[Found]:
        """What was found along one free parameter."""
        return [each for point, each in zip(POINTS, self.found, strict=True) if point.axis == axis]


def run(traces: Traces) -> Result:
    """Every request served, nothing rejected, by the four routers; then each free parameter by itself."""
    trace, used = traces.need("conversation", ID)
    measured = Measured(trace, routers.play(trace, POINTS))
    return Result(
        rows=tuple(_rows(measured.judged, used)),
        claims=tuple(_claims(measured)),
        used=(used,),
        parameters=tuple(_parameters(measured)),
        notes=tuple(_notes(measured, used)),
        sheets=(_times(measured), _ratios(measured)),
        draw=partial(_draw, measured),
        measured=tuple(routers.values(POINTS, measured.found)),
    )


# ---- what to say


def _rows(judged: Found, used: Used) -> Iterator[Row]:
    """Ratios to kvcache-centric: seconds belong to the paper's machines."""
    for what, words in WORDS.items():
        for router in ROUTERS[:-1]:
            if what in PUBLISHED[router]:
                ours = routers.over_best(judged, router, what)
                published, error = _published(router, what)
                yield Row("conversation", f"{router}, {words}", published, ours, reading_error=error,
                          stand_in=used.stand_in)  # fmt: skip


def _published(router: str, what: str) -> tuple[float, float]:
    """A published ratio to kvcache-centric, and how far it may be misread (the means are printed)."""
    own, best = PUBLISHED[router][what], PUBLISHED[BEST][what]
    error = 0.0 if what == "mean" else own / best * READING_ERROR_S * (1 / own + 1 / best)
    return own / best, error


def _claims(measured: Measured) -> Iterator[Claim]:
    judged = measured.judged
    for what in ("mean", "median"):
        text = f"{WORDS[what]}: random > load-balancing > cache-aware > kvcache-centric"
        where = routers.spans(POINTS, measured.found, partial(routers.in_order, what=what))
        yield Claim(text, routers.in_order(judged, what), f"holds for {'; '.join(where)}")
    gain, rates = _gain(judged), measured.along(RATE)
    by_rate = [f"{_gain(each):.0%} at {rate}" for each, rate in zip(rates, _values(RATE), strict=True)]
    yield Claim(
        "kvcache-centric's mean is 14 % below cache-aware's",
        abs(gain - GAIN) <= NEAR * GAIN,
        f"{gain:.1%} below here; by arrival rate: {', '.join(by_rate)}; holds: within a quarter of 14 %",
    )


def _gain(found: Mapping[str, Times]) -> float:
    return 1 - found[BEST].mean / found["cache-aware"].mean


def _values(axis: str) -> list[str]:
    return [point.value for point in POINTS if point.axis == axis]


def _rates() -> list[float]:
    return [float(point.changes["speedup"]) for point in POINTS if point.axis == RATE]


def _parameters(measured: Measured) -> Iterator[str]:
    spread = [each["random"].mean for each in measured.along(SEED)]
    yield f"the split of the 16 nodes, which the paper does not say: {CLUSTER}; also tried: 6P+10D, 12P+4D"
    yield f"threshold of Algorithm 1, which neither paper gives: 4; also tried: {', '.join(_values(THRESHOLD))}"
    yield "the load that load-balancing balances: queued time; also tried: requests not yet prefilled"
    yield f"arrival rate: the trace's own; also tried: ×{', ×'.join(f'{rate:g}' for rate in RATES)}"
    yield "engine overhead: mooncake-a800; also tried: none"
    yield f"random: mean of {SEEDS} seeds, {min(spread):.2f} to {max(spread):.2f} s"
    yield "admission: none, nothing is rejected; pool: that of the node preset, 5,859 blocks a prefill node"


def _notes(measured: Measured, used: Used) -> Iterator[str]:
    if used.stand_in:
        yield (
            "conversation: the stand-in resembles the published trace's lengths and hit ratios, but nobody's sessions; "
            "give the published file with --traces"
        )
    rates = _rates()
    met = []
    for router in ROUTERS[:-1]:
        ratios = [routers.over_best(each, router) for each in measured.along(RATE)]
        place = routers.met_at(rates, ratios, _published(router, "mean")[0])
        met.append(f"{router} {f'×{place:.2f}' if place else 'at none tried'}")
    yield f"the published ratios of means are met at arrival rates (between those tried): {', '.join(met)}"
    ours = measured.judged
    low, high = (pick(PUBLISHED[each]["mean"] / ours[each].mean for each in ROUTERS) for pick in (min, max))
    yield f"the seconds do not reproduce: the published means are {low:.1f} to {high:.1f} times ours"


def _times(measured: Measured) -> Sheet:
    rows = [(f"{router}, published", *(routers.seconds(published.get(what)) for what in WORDS), DASH)
            for router, published in PUBLISHED.items()]  # fmt: skip
    rows += [
        (f"{router}, ours", *(routers.seconds(getattr(measured.judged[router], what)) for what in WORDS),
         f"{measured.judged[router].within:.3f}")
        for router in ROUTERS
    ]  # fmt: skip
    headers = ("s", *WORDS.values(), "in 30 s")
    note = "published medians and quartiles: by eye, ±0.2 s"
    return Sheet(f"Time to first token ({measured.trace.name})", headers, tuple(rows), (note,))


def _ratios(measured: Measured) -> Sheet:
    rows = [("published", *(f"{_published(router, 'mean')[0]:.2f}" for router in ROUTERS[:-1]), "3.07", "yes")]
    for point, each in zip(POINTS, measured.found, strict=True):
        if point.axis != SEED:
            name = f"{point.axis} {point.value}" if point.axis else "as judged"
            shown = measured.judged if not point.axis else each
            rows.append((name, *(f"{routers.over_best(shown, router):.2f}" for router in ROUTERS[:-1]),
                         routers.seconds(each[BEST].mean), "yes" if routers.in_order(each) else "no"))  # fmt: skip
    headers = ("", "random", "load-b.", "cache-a.", "kv, s", "in order")
    note = "mean over that of kvcache-centric, whose seconds are beside; random: seed 0, as judged the mean of seeds"
    return Sheet("One free parameter at a time", headers, tuple(rows), (note,))


# ---- the figure


def _draw(measured: Measured) -> Any:
    figure, (boxes, lines) = plots.figure(columns=2, height_in=3.0)
    _boxes(boxes, measured)
    _lines(lines, measured)
    return figure


def _boxes(axes: Any, measured: Measured) -> None:
    """Boxes as the paper has them: quartiles, median, mean; whiskers at 5 and 95 %."""
    stats = [
        {"med": t.median, "q1": t.lower, "q3": t.upper, "whislo": t.low, "whishi": t.high, "mean": t.mean, "fliers": []}
        for t in (measured.judged[router] for router in ROUTERS)
    ]
    places = list(range(len(ROUTERS)))
    axes.bxp(stats, positions=places, showmeans=True, showfliers=False, widths=0.4,
             meanprops={"marker": "o", "markerfacecolor": plots.PALETTE[0], "markeredgecolor": plots.PALETTE[0]},
             medianprops={"color": plots.PALETTE[0]})  # fmt: skip
    for what, marker in (("mean", "x"), ("median", "_"), ("upper", "^")):
        known = [place for place in places if what in PUBLISHED[ROUTERS[place]]]
        axes.plot([place + 0.35 for place in known], [PUBLISHED[ROUTERS[place]][what] for place in known],
                  linestyle="", marker=marker, color=plots.BOUND, label=f"{WORDS[what]}, published")  # fmt: skip
    axes.plot([], [], linestyle="", marker="o", color=plots.PALETTE[0], label="mean, ours")
    axes.set_yscale("log")
    plots.compact(axes.yaxis)
    axes.set_xticks(places, ["random", "load-bal.", "local", "global"])
    axes.set_ylabel("time to first token, s")
    axes.set_title(f"{measured.trace.name}: boxes and whiskers ours")
    axes.set_ylim(top=100)
    axes.legend(loc="upper right", fontsize="x-small")


def _lines(axes: Any, measured: Measured) -> None:
    """How each mean over kvcache-centric's moves with the arrival rate, beside what is published."""
    rates = _rates()
    for place, router in enumerate(ROUTERS[:-1]):
        ratios = [routers.over_best(each, router) for each in measured.along(RATE)]
        axes.plot(rates, ratios, label=f"{router}, ours", **plots.series(place))
    points = [_published(router, "mean")[0] for router in ROUTERS[:-1]]
    axes.plot([1.0] * len(points), points, linestyle="", marker="x", color=plots.BOUND, label="published")
    axes.set_yscale("log")
    plots.compact(axes.yaxis)
    axes.set_xlabel("arrival rate over the trace's")
    axes.set_ylabel("mean over kvcache-centric's")
    axes.set_title("by arrival rate")
    axes.legend(loc="upper left", fontsize="x-small")
