"""The highest request rate that a cluster sustains within SLOs: a bisection, with the same requests at every rate.

The arrival times of one seeded trace of one request a second are scaled, so that two rates, and two clusters, differ in
nothing else. SLOs are relative, as v3 has them: so many times what a cluster shows at the lowest rate.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil, log
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mooncake_bench.results.gaps import PooledGaps, gap_stats
from mooncake_bench.results.invariants import check
from mooncake_bench.results.records import COMPLETED, Records
from mooncake_bench.studies import replays
from mooncake_bench.studies.rounds import together

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence

    from mooncake_bench.sim.replay import Replay
    from mooncake_bench.sim.setup import Setup
    from mooncake_bench.trace import Trace

TTFT_TIMES, TBT_TIMES = 10.0, 5.0  # of the lowest-rate value
WARMUP = 0.25  # of the requests: the first ones, which find empty caches, are not judged
STEP = 1.04  # from each rate of the grid to the next: how exactly a rate is found
PS_PER_MS = 1e9
READINGS = {  # of "TBT P90", which v3 does not give
    "mean": "the mean of a request's gaps",
    "tail10": "the mean of a request's longest 10 % of gaps",
    "max": "a request's longest gap",
    "gaps": "a gap, all requests' gaps pooled",
}


class Tails(NamedTuple):
    """90th percentiles of one replay [ms]: TTFT, and TBT by each reading."""

    ttft: float
    mean: float
    tail10: float
    max: float
    gaps: float


def tails(replay: Replay) -> Tails:
    """Those of the completed requests after the warm-up. Raises InvariantError where the replay contradicts itself."""
    records = Records.of(replay)
    check(records)
    done = replay.columns["status"] == COMPLETED
    done[: int(WARMUP * len(done))] = False
    ttft_ms = (replay.columns["first_token_ps"] - replay.columns["arrival_ps"])[done] / PS_PER_MS
    gaps = gap_stats(records.segments, records.stays, records.gap_ps, done, exclude_first=False, p99=False)
    mean, tail10, longest = (
        float(np.nanquantile(gaps.metric_ms(name)[done], 0.9)) for name in ("mean", "tail10", "max")
    )
    [pooled] = PooledGaps(records.segments, records.stays, records.gap_ps, done).percentiles_ms([90])
    return Tails(float(np.quantile(ttft_ms, 0.9)), mean, tail10, longest, pooled or 0.0)


def grid(low: float, high: float, step: float | None = None) -> list[float]:
    """Rates from ``low`` to at least ``high``, each ``step`` (else STEP) times the one before."""
    step = step or STEP
    return [low * step**place for place in range(ceil(log(high / low) / log(step)) + 1)]


def search(places: int) -> Generator[int, bool, int]:
    """The last of so many places at which something holds, which it does at the first.

    It yields places, is sent whether it holds there, and returns the answer: the last place of all where it holds there
    too. Where it holds again behind a place at which it does not, one of its ends is found.
    """
    low, high = 0, places - 1
    if (yield high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if (yield middle):
            low = middle
        else:
            high = middle
    return low


class Slo(NamedTuple):
    """What a cluster has to keep."""

    cluster: str
    reading: str  # one of READINGS
    base: str = ""  # the cluster whose lowest-rate value counts; empty: its own
    lowest: int = 0  # the place of the lowest rate

    def limits(self, base: Tails) -> tuple[float, float]:
        """Of TTFT and TBT [ms]."""
        return TTFT_TIMES * base.ttft, TBT_TIMES * float(getattr(base, self.reading))

    def broken(self, here: Tails, base: Tails) -> list[str]:
        """What is not kept: ``TTFT``, ``TBT``, both or nothing."""
        shown = here.ttft, getattr(here, self.reading)
        pairs = zip(("TTFT", "TBT"), shown, self.limits(base), strict=True)
        return [name for name, value, limit in pairs if value > limit]


@dataclass
class Field:
    """One workload on several clusters over a grid of rates; each replay is made once."""

    trace: Trace
    setups: Mapping[str, Setup]
    rates: Sequence[float]
    found: dict[tuple[str, int], Tails] = field(default_factory=dict)

    def measure(self, wanted: Iterable[tuple[str, int]]) -> None:
        """Replay clusters at places of the grid, those that are not known yet."""
        missing = [each for each in dict.fromkeys(wanted) if each not in self.found]
        setups = [replace(self.setups[cluster], speedup=self.rates[place]) for cluster, place in missing]
        if missing:
            self.found |= dict(zip(missing, replays.each(self.trace, setups, tails), strict=True))

    def base(self, slo: Slo) -> Tails:
        """What the lowest rate shows."""
        return self.found[slo.base or slo.cluster, slo.lowest]

    def sustained(self, slos: Iterable[Slo]) -> dict[Slo, int]:
        """The place of the highest rate at which each is kept."""
        chosen = list(slos)
        self.measure((slo.base or slo.cluster, slo.lowest) for slo in chosen)
        return together({slo: search(len(self.rates)) for slo in chosen}, self._answer)

    def _answer(self, asked: list[tuple[Slo, int]]) -> list[bool]:
        self.measure((slo.cluster, place) for slo, place in asked)
        return [not slo.broken(self.found[slo.cluster, place], self.base(slo)) for slo, place in asked]

    def broken_below(self, slo: Slo, place: int) -> int | None:
        """The lowest place tried below ``place`` at which it is not kept: a curve that goes up and down has those."""
        tried = (at for cluster, at in self.found if cluster == slo.cluster and at < place)
        return min((at for at in tried if slo.broken(self.found[slo.cluster, at], self.base(slo))), default=None)

    def limited_by(self, slo: Slo, place: int) -> str:
        """What is not kept at the next rate of the grid."""
        if place + 1 == len(self.rates):
            return "nothing tried"
        return " and ".join(slo.broken(self.found[slo.cluster, place + 1], self.base(slo)))


def values(workload: str, field: Field, places: Mapping[Slo, int]) -> Iterator[dict[str, Any]]:
    """Every replay's percentiles, then every rate that was found, as plain values."""
    for (cluster, place), each in sorted(field.found.items()):
        measured = {f"p90_{name}_ms": value for name, value in each._asdict().items()}
        yield _row(workload, cluster, field.rates[place]) | measured
    for slo, place in places.items():
        words = f"TBT {slo.reading}, {field.rates[slo.lowest]:g} requests/s of {slo.base or slo.cluster}"
        yield _row(workload, slo.cluster, field.rates[place]) | {"sustained_within": words}


def _row(workload: str, cluster: str, rate: float) -> dict[str, Any]:
    nothing = dict.fromkeys((f"p90_{name}_ms" for name in Tails._fields), None)
    return {"workload": workload, "cluster": cluster, "rate_rps": rate, **nothing, "sustained_within": ""}
