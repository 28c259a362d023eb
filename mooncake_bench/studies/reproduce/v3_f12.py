"""arXiv 2407.00079 (v3), figure 12: request rates that four nodes sustain on long simulated prompts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from mooncake_bench.report import plots
from mooncake_bench.report.sheets import Sheet
from mooncake_bench.studies.reproduce import rivals, sustained
from mooncake_bench.studies.reproduce.outcome import Claim, Result, Row
from mooncake_bench.studies.reproduce.sustained import READINGS, TBT_TIMES, TTFT_TIMES, Field, Slo
from mooncake_bench.studies.reproduce.v3_f11 import field_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mooncake_bench.sim.setup import Setup
    from mooncake_bench.studies.reproduce.sources import Traces

ID = "v3-F12"
TITLE = "request rates sustained on long simulated prompts, four nodes"
SOURCE = "arXiv 2407.00079v3, figure 12"

NODES = 4
LENGTHS = (16, 32, 64, 128)  # thousand tokens of a prompt
OUTPUT_TOKENS = 512
LEAST, MOST = 0.50, 5.25  # published gains over [4M]: "50 % to 525 %"
BEST, FEW, COUPLED = "3P+1D", "2P+2D", "4M"
SEVERAL = (2, 8)  # requests that a coupled instance serves at once, in place of one
SETUPS: dict[str, Setup] = {
    BEST: rivals.mooncake(3, 1),
    FEW: rivals.mooncake(2, 2),
    COUPLED: rivals.rival(rivals.CACHING, NODES, schedule="one-at-a-time"),
    "4M uncached": rivals.rival(rivals.VLLM, NODES, schedule="one-at-a-time"),
}
TOGETHER = {f"4M, {count} at once": rivals.rival(rivals.CACHING, NODES, sequences=count) for count in SEVERAL}
JUDGED = "mean"  # of READINGS
WORKLOAD_REQUESTS = 500  # fewer in tests
LOWEST = {16: 0.02, 32: 0.015, 64: 0.01, 128: 0.005}  # requests a second, by length
HIGHEST = {16: 3.0, 32: 1.5, 64: 0.6, 128: 0.25}
LOADED = 5.0  # times the lowest rate, as the one that the SLO is taken at


class Workload(NamedTuple):
    """One length: what was replayed, and the places of the rates sustained."""

    field: Field
    places: dict[Slo, int]

    @property
    def loaded(self) -> int:
        """The place of LOADED times the lowest rate."""
        low, *_ = rates = self.field.rates
        return min(range(len(rates)), key=lambda place: abs(rates[place] / low - LOADED))

    def rate(self, cluster: str, lowest: int = 0) -> float:
        """Sustained, requests a second."""
        return self.field.rates[self.places[Slo(cluster, JUDGED, lowest=lowest)]]

    def gain(self, cluster: str, coupled: str = COUPLED, lowest: int = 0) -> float:
        """How much more a cluster sustains than a coupled one: 0.5 for +50 %."""
        return self.rate(cluster, lowest) / self.rate(coupled, lowest) - 1


def run(traces: Traces) -> Result:
    """Search the sustained rates at four lengths, and what they turn on; needs no published trace."""
    found = {length: _measure(length) for length in LENGTHS}
    gains = {length: _better(each) for length, each in found.items()}
    return Result(
        rows=(
            Row("four lengths", "least gain over [4M]", LEAST, min(gains.values())),
            Row("four lengths", "greatest gain over [4M]", MOST, max(gains.values())),
        ),
        claims=tuple(_claims(found, gains)),
        used=(),
        parameters=tuple(_parameters()),
        notes=tuple(_notes(found)),
        sheets=(_sheet(found), _experiments(found)),
        draw=partial(_draw, found),
        measured=tuple(
            row for length, each in found.items() for row in sustained.values(f"{length}k", each.field, each.places)
        ),
    )


# ---- measuring


def _measure(length: int) -> Workload:
    rates = sustained.grid(LOWEST[length], HIGHEST[length])
    field = field_of(f"simulated-{length}k", 0, SETUPS | TOGETHER, WORKLOAD_REQUESTS, rates)
    empty = Workload(field, {})
    wanted = [Slo(cluster, JUDGED) for cluster in (*SETUPS, *TOGETHER)]
    wanted += [Slo(cluster, JUDGED, lowest=empty.loaded) for cluster in (BEST, COUPLED)]
    return Workload(field, field.sustained(wanted))


# ---- what to say


def _claims(found: Mapping[int, Workload], gains: Mapping[int, float]) -> Iterator[Claim]:
    shown = "; ".join(
        f"{length}k: {', '.join(f'[{cluster}] {rivals.percent(each.gain(cluster))}' for cluster in (BEST, FEW))}"
        for length, each in found.items()
    )
    more = all(each.gain(BEST) > 0 for each in found.values())
    yield Claim("[3P+1D] sustains more than [4M] at every length", more, shown)
    yield Claim(
        "the better of [3P+1D] and [2P+2D] sustains half as much again at least",
        all(gain >= LEAST for gain in gains.values()),
        f"by length: {', '.join(f'{length}k {rivals.percent(gain)}' for length, gain in gains.items())}",
    )
    cluster_of = {length: max((BEST, FEW), key=each.gain) for length, each in found.items()}
    yield Claim(
        "and at one length several times as much (525 %)",
        max(gains.values()) >= 3,
        f"the better cluster: {', '.join(f'{length}k [{cluster}]' for length, cluster in cluster_of.items())}",
    )
    limits = {length: _limit(each, COUPLED) for length, each in found.items()}
    yield Claim(
        "[4M] keeps its TBT and is limited by TTFT alone, as it serves one request at a time",
        all(limit == "TTFT" for limit in limits.values()),
        ", ".join(f"{length}k: {limit}" for length, limit in limits.items()),
    )


def _limit(each: Workload, cluster: str) -> str:
    slo = Slo(cluster, JUDGED)
    return each.field.limited_by(slo, each.places[slo])


def _parameters() -> Iterator[str]:
    lowest = ", ".join(f"{length}k {rate:g}" for length, rate in LOWEST.items())
    yield (
        f"SLO: P90 TTFT {TTFT_TIMES:g} times, P90 TBT {TBT_TIMES:g} times what the cluster shows at the lowest rate, "
        f"which the paper does not give ({lowest} requests/s); also tried: {LOADED:g} times that rate"
    )
    yield f"TBT: {READINGS[JUDGED]} (on [4M], where nothing disturbs a batch, every reading is the same)"
    yield (
        f"[4M]: one request at a time, prefix caching, {rivals.ROUTING}; also tried: without caching, and "
        f"{', '.join(map(str, SEVERAL))} requests at once"
    )
    yield (
        f"workloads: simulated-16k to -128k of `traces synth --preset`: {WORKLOAD_REQUESTS} requests, seed 0, half of "
        f"each prompt one of 8 that are shared; rates found to {sustained.STEP - 1:.0%}"
    )
    yield f"the first {sustained.WARMUP:.0%} of the requests, which find empty caches, are not judged"


def _notes(found: Mapping[int, Workload]) -> Iterator[str]:
    yield (
        "the shorter the prompt, the more a coupled instance loses: of a request's time there, the share that a "
        "prefill node would spend on it is "
        + ", ".join(f"{length}k {_prefill_share(each):.0%}" for length, each in found.items())
        + ". Published are the ends of the range alone, not which length has which"
    )
    for count, name in zip(SEVERAL, TOGETHER, strict=True):
        yield f"experiment: against coupled instances that serve {count} requests at once: " + ", ".join(
            f"{length}k {rivals.percent(_better(each, name))}" for length, each in found.items()
        )
    yield f"experiment: [3P+1D] with the SLO taken at {LOADED:g} times the lowest rate: " + ", ".join(
        f"{length}k {rivals.percent(each.gain(BEST, lowest=each.loaded))}" for length, each in found.items()
    )


def _prefill_share(each: Workload) -> float:
    """Of the time in which a coupled instance serves a request alone."""
    base = each.field.base(Slo(BEST, JUDGED))
    steps_ms = (OUTPUT_TOKENS - 1) * each.field.base(Slo(COUPLED, JUDGED)).mean
    return base.ttft / (base.ttft + steps_ms)


def _better(each: Workload, coupled: str = COUPLED) -> float:
    return max(each.gain(cluster, coupled) for cluster in (BEST, FEW))


def _sheet(found: Mapping[int, Workload]) -> Sheet:
    rows = []
    for length, each in found.items():
        for cluster in (BEST, FEW, COUPLED):
            slo = Slo(cluster, JUDGED)
            here, limits = each.field.found[cluster, each.places[slo]], slo.limits(each.field.base(slo))
            rows.append(
                (
                    f"{length}k [{cluster}]", f"{each.rate(cluster):.3f}",
                    "" if cluster == COUPLED else rivals.percent(each.gain(cluster)), _limit(each, cluster),
                    f"{here.ttft / 1e3:.1f}", f"{limits[0] / 1e3:.1f}", f"{here.mean:.0f}", f"{limits[1]:.0f}",
                )
            )  # fmt: skip
    headers = ("", "rate/s", "gain", "limited by", "TTFT, s", "limit", "TBT, ms", "limit")
    note = f"published: gains of {LEAST:.0%} to {MOST:.0%} over the four lengths"
    return Sheet("Rate sustained, P90s there and their limits", headers, tuple(rows), (note,))


def _experiments(found: Mapping[int, Workload]) -> Sheet:
    rows = [
        (f"[{name}]", *(rivals.percent(_better(each, name)) for each in found.values()))
        for name in (COUPLED, "4M uncached", *TOGETHER)
    ]
    headers = ("over", *(f"{length}k" for length in found))
    return Sheet("Gain of the better of [3P+1D] and [2P+2D]", headers, tuple(rows))


# ---- the figure


def _draw(found: Mapping[int, Workload]) -> Any:
    """P90 TTFT over its limit against the request rate, a panel a length, as the paper draws them."""
    figure, panels = plots.figure(rows=2, columns=2)
    for axes, (length, each) in zip(panels, found.items(), strict=True):
        for i, cluster in enumerate((BEST, FEW, COUPLED)):
            slo = Slo(cluster, JUDGED)
            limit = slo.limits(each.field.base(slo))[0]
            places = sorted(place for at, place in each.field.found if at == cluster)
            axes.plot([each.field.rates[place] for place in places],
                      [each.field.found[cluster, place].ttft / limit for place in places],
                      marker=plots.marker(i), label=f"[{cluster}]", **plots.series(i))  # fmt: skip
            axes.axvline(each.rate(cluster), color=plots.PALETTE[i], linestyle=":", linewidth=0.9)
        axes.axhline(1, color=plots.BOUND, linewidth=0.9)
        axes.set_ylim(0, 1.5)
        axes.set_xscale("log")
        plots.compact(axes.xaxis)
        axes.set_title(f"{length}k in, 512 out: P90 TTFT over its SLO")
        axes.set_xlabel("requests/s")
    panels[0].legend(loc="upper left")
    return figure
