"""arXiv 2407.00079 (v3), figure 11: request rates that four nodes sustain on two public datasets."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from mooncake_bench.report import plots
from mooncake_bench.report.sheets import Sheet
from mooncake_bench.studies.reproduce import rivals, sustained
from mooncake_bench.studies.reproduce.outcome import Claim, Result, Row
from mooncake_bench.studies.reproduce.routers import span
from mooncake_bench.studies.reproduce.sustained import READINGS, TBT_TIMES, TTFT_TIMES, Field, Slo
from mooncake_bench.trace.synthetic import recipe, wording

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mooncake_bench.sim.setup import Setup
    from mooncake_bench.studies.reproduce.sources import Traces

ID = "v3-F11"
TITLE = "request rates sustained on public datasets, four nodes"
SOURCE = "arXiv 2407.00079v3, figure 11"

NODES = 4
PUBLISHED = {"arxiv-summarization-like": 0.20, "l-eval-like": 0.40}  # [3P+1D] over [4M]
NAMES = {"arxiv-summarization-like": "ArXiv Summ.", "l-eval-like": "L-Eval"}
BEST, FEW, COUPLED = "3P+1D", "2P+2D", "4M"
IN_TURN, UNCACHED = "4M in turn", "4M uncached"  # variants of the coupled cluster
SETUPS: dict[str, Setup] = {
    BEST: rivals.mooncake(3, 1),
    FEW: rivals.mooncake(2, 2),
    COUPLED: rivals.rival(rivals.CACHING, NODES, policy="cache-aware"),
    IN_TURN: rivals.rival(rivals.CACHING, NODES),
    UNCACHED: rivals.rival(rivals.VLLM, NODES),
}
COUPLED_ONES = (COUPLED, IN_TURN, UNCACHED)
JUDGED = "mean"  # of READINGS
WORKLOAD_REQUESTS = 1_000  # fewer in tests
LOWEST, HIGHEST = 0.05, 5.0  # requests a second
SEEDS = (0, 1)
# Of L-Eval, what the preset leaves open: how often a document is asked about, and within how many requests
QUESTIONS, SPREAD = 6, 100
WORDS: dict[str, dict[str, Any]] = {
    "l-eval-like": {"share": (f"documents:tokens=18900,cv=0.3,questions={QUESTIONS},spread={SPREAD}",)}
}
SCATTERED = {"share": (f"documents:tokens=18900,cv=0.3,questions={QUESTIONS}",)}  # asked anywhere in the workload


class Workload(NamedTuple):
    """One dataset: what was replayed, and the places of the rates sustained."""

    field: Field
    places: dict[Slo, int]  # by what was asked, of the first seed
    gains: list[float]  # judged, by seed
    scattered: float | None  # judged, where a document's questions are scattered over the whole workload

    def rate(self, slo: Slo) -> float:
        """Sustained, requests a second."""
        return self.field.rates[self.places[slo]]

    def gain(self, coupled: str = COUPLED, cluster: str = BEST, reading: str = JUDGED, base: str = "") -> float:
        """How much more a cluster sustains than a coupled one: 0.2 for +20 %."""
        return self.rate(Slo(cluster, reading, base)) / self.rate(Slo(coupled, reading, base)) - 1


def run(traces: Traces) -> Result:
    """Search the sustained rates of five clusters under every reading of the SLO; needs no published trace."""
    found = {name: _measure(name) for name in PUBLISHED}
    return Result(
        rows=tuple(_rows(found)),
        claims=tuple(_claims(found)),
        used=(),
        parameters=tuple(_parameters()),
        notes=tuple(_notes(found)),
        sheets=(*(_sheet(name, each) for name, each in found.items()), _readings(found)),
        draw=partial(_draw, found),
        measured=tuple(_values(found)),
    )


# ---- measuring


def _rows(found: Mapping[str, Workload]) -> Iterator[Row]:
    for name, value in PUBLISHED.items():
        yield Row(NAMES[name], "[3P+1D] over [4M]", value, found[name].gain())


def field_of(
    preset: str, seed: int, setups: Mapping[str, Setup], requests: int, rates: list[float], **words: Any
) -> Field:
    """A seeded workload of Poisson arrivals, one request a second before it is sped up; ``words`` change the preset."""
    told = {"rate": "1", "requests": str(requests), "arrivals": "poisson"} | words
    return Field(recipe.make(wording.recipe(told, preset), seed), setups, rates)


def _measure(name: str) -> Workload:
    rates = sustained.grid(LOWEST, HIGHEST)
    words = WORDS.get(name, {})
    field = field_of(name, SEEDS[0], SETUPS, WORKLOAD_REQUESTS, rates, **words)
    places = field.sustained(list(_questions()))
    gains = [rates[places[Slo(BEST, JUDGED)]] / rates[places[Slo(COUPLED, JUDGED)]] - 1]
    gains += [_gain(field_of(name, seed, SETUPS, WORKLOAD_REQUESTS, rates, **words)) for seed in SEEDS[1:]]
    other = _gain(field_of(name, SEEDS[0], SETUPS, WORKLOAD_REQUESTS, rates, **SCATTERED)) if words else None
    return Workload(field, places, gains, other)


def _gain(field: Field) -> float:
    best, coupled = field.sustained([Slo(BEST, JUDGED), Slo(COUPLED, JUDGED)]).values()
    return field.rates[best] / field.rates[coupled] - 1


def _questions() -> Iterator[Slo]:
    for cluster in SETUPS:
        for reading in READINGS if cluster != FEW else (JUDGED,):
            yield Slo(cluster, reading)
        yield Slo(cluster, JUDGED, BEST)


# ---- what to say


def _claims(found: Mapping[str, Workload]) -> Iterator[Claim]:
    yield Claim(
        "[3P+1D] sustains a higher rate than [4M] on both datasets",
        all(each.gain() > 0 for each in found.values()),
        "; ".join(
            f"{NAMES[name]}, TBT read as: {span([(reading, each.gain(reading=reading) > 0) for reading in READINGS])}"
            for name, each in found.items()
        ),
    )
    yield Claim(
        "[3P+1D] gains more on L-Eval than on ArXiv Summarization",
        found["l-eval-like"].gain() > found["arxiv-summarization-like"].gain(),
        "; ".join(f"{NAMES[name]} {_range(each.gains)} over seeds {_seeds()}" for name, each in found.items()),
    )
    slo = Slo(FEW, JUDGED)
    limits = {name: each.field.limited_by(slo, each.places[slo]) for name, each in found.items()}
    yield Claim(
        "what limits [2P+2D] is its TTFT, so that it sustains less than [3P+1D]",
        all(limits[name] == "TTFT" and each.gain(FEW) > 0 for name, each in found.items()),
        "; ".join(
            f"{NAMES[name]}: limited by {limit}, {rivals.percent(each.gain(cluster=FEW))} against [4M]"
            for (name, limit), each in zip(limits.items(), found.values(), strict=True)
        ),
    )


def _range(gains: list[float]) -> str:
    low, high = rivals.percent(min(gains)), rivals.percent(max(gains))
    return low if low == high else f"{low} to {high}"


def _seeds() -> str:
    return ", ".join(map(str, SEEDS))


def _parameters() -> Iterator[str]:
    yield (
        f"SLO: P90 TTFT {TTFT_TIMES:g} times, P90 TBT {TBT_TIMES:g} times what the same cluster shows at {LOWEST:g} "
        f"requests/s; also tried: what [{BEST}] shows there"
    )
    others = "; ".join(words for name, words in READINGS.items() if name != JUDGED)
    yield f"P90 TBT, which the paper does not define: P90 of {READINGS[JUDGED]}; also tried: of {others}"
    yield (
        "[4M]: vLLM with prefix caching, routed by cache (cache-aware), with which the gains are nearest to the "
        f"published; also tried: {rivals.ROUTING}, with caching and without"
    )
    yield (
        f"workloads: {', '.join(NAMES)} of `traces synth --preset`, {WORKLOAD_REQUESTS:,} requests, seeds {_seeds()}; "
        f"rates found to {sustained.STEP - 1:.0%}, the same requests at every rate"
    )
    yield (
        f"L-Eval: {QUESTIONS} questions about each document, within about {SPREAD} requests, which the paper does not "
        "give; also tried: scattered over the whole workload"
    )
    yield f"the first {sustained.WARMUP:.0%} of the requests, which find empty caches, are not judged"


def _notes(found: Mapping[str, Workload]) -> Iterator[str]:
    for name, each in found.items():
        spread = ", ".join(f"{words} {rivals.percent(each.gain(reading=key))}" for key, words in READINGS.items())
        yield f"{NAMES[name]}: the gain by the reading of TBT: {spread}"
        tried = ", ".join(f"[{coupled}] {rivals.percent(each.gain(coupled))}" for coupled in COUPLED_ONES)
        yield f"{NAMES[name]}, experiment: the gain over {tried} (in turn: round-robin)"
        yield from _dips(name, each)
        if each.scattered is not None:
            yield (
                f"{NAMES[name]}, experiment: with a document's questions scattered over the whole workload, so that "
                "few documents are new after its first part, and P90 TTFT at the lowest rate is a cached prompt's, "
                f"the gain is {rivals.percent(each.scattered)}"
            )


def _dips(name: str, each: Workload) -> Iterator[str]:
    """What a lower rate would be that is not sustained either, where percentiles go up and down."""
    for cluster in SETUPS:
        slo = Slo(cluster, JUDGED)
        place = each.field.broken_below(slo, each.places[slo])
        if place is not None:
            rate = each.field.rates[place]
            more = rivals.percent(each.rate(Slo(BEST, JUDGED)) / each.field.rates[place - 1] - 1)
            yield (
                f"{NAMES[name]}: [{cluster}] misses its SLO at {rate:.2f} requests/s already, and keeps it again at "
                f"{each.rate(slo):.2f}; counted from just below {rate:.2f}, [3P+1D] gains {more}"
            )


def _sheet(name: str, each: Workload) -> Sheet:
    rows = []
    for cluster in SETUPS:
        slo = Slo(cluster, JUDGED)
        place = each.places[slo]
        here, base = each.field.found[cluster, place], each.field.base(slo)
        more = "" if cluster == COUPLED else rivals.percent(each.rate(slo) / each.rate(Slo(COUPLED, JUDGED)) - 1)
        rows.append(
            (
                f"[{cluster}]", f"{each.rate(slo):.2f}", more,
                each.field.limited_by(slo, place), f"{here.ttft / 1e3:.2f}", f"{slo.limits(base)[0] / 1e3:.2f}",
                f"{here.mean:.0f}", f"{slo.limits(base)[1]:.0f}",
            )
        )  # fmt: skip
    headers = ("", "rate/s", "to [4M]", "limited by", "TTFT, s", "limit", "TBT, ms", "limit")
    return Sheet(f"{NAMES[name]}: rate sustained, P90s there and their limits", headers, tuple(rows))


def _readings(found: Mapping[str, Workload]) -> Sheet:
    tried = [(reading, "") for reading in READINGS] + [(JUDGED, BEST)]
    rows = [
        (
            f"{reading}, {f'of [{base}]' if base else 'of its own'}",
            *(
                rivals.percent(each.gain(coupled, reading=reading, base=base))
                for each in found.values()
                for coupled in COUPLED_ONES
            ),
        )
        for reading, base in tried
    ]
    headers = ("TBT, lowest-rate value", *(
        cell for name in found for cell in (NAMES[name], "in turn", "uncached")
    ))  # fmt: skip
    note = "columns: [4M] routed by cache; round-robin, with prefix caching; round-robin, without"
    return Sheet("Gain of [3P+1D] over [4M] under each reading", headers, tuple(rows), (note,))


def _values(found: Mapping[str, Workload]) -> Iterator[dict[str, Any]]:
    for name, each in found.items():
        yield from sustained.values(name, each.field, each.places)


# ---- the figure


def _draw(found: Mapping[str, Workload]) -> Any:
    """P90s over their limits against the request rate, as the paper draws them."""
    figure, panels = plots.figure(rows=len(found), columns=2)
    for row, (name, each) in enumerate(found.items()):
        for column, what in enumerate(("TTFT", "TBT")):
            axes = panels[2 * row + column]
            for i, cluster in enumerate((BEST, FEW, COUPLED)):
                slo = Slo(cluster, JUDGED)
                limit = slo.limits(each.field.base(slo))[column]
                places = sorted(place for at, place in each.field.found if at == cluster)
                shown = [each.field.found[cluster, place] for place in places]
                values = [(tails.ttft if column == 0 else getattr(tails, JUDGED)) / limit for tails in shown]
                axes.plot([each.field.rates[place] for place in places], values, marker=plots.marker(i),
                          label=f"[{cluster}]", **plots.series(i))  # fmt: skip
                axes.axvline(each.rate(slo), color=plots.PALETTE[i], linestyle=":", linewidth=0.9)
            axes.axhline(1, color=plots.BOUND, linewidth=0.9)
            axes.set_ylim(0, 1.5)
            axes.set_xlim(left=0)
            axes.set_title(f"{NAMES[name]}: P90 {what} over its SLO")
            axes.set_xlabel("requests/s")
    panels[0].legend(loc="upper left")
    return figure
