"""arXiv 2407.00079 (v3), figure 13: a real workload on ten prefill and ten decode nodes, and on twenty coupled ones."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mooncake_bench.errors import NothingToConclude
from mooncake_bench.report import plots
from mooncake_bench.report.sheets import Sheet
from mooncake_bench.results.gaps import gap_stats
from mooncake_bench.results.invariants import check
from mooncake_bench.results.records import COMPLETED, Records
from mooncake_bench.studies import replays
from mooncake_bench.studies.reproduce import rivals
from mooncake_bench.studies.reproduce.outcome import Claim, Result, Row
from mooncake_bench.studies.reproduce.rivals import CACHING, MOONCAKE, TRACES, VLLM
from mooncake_bench.studies.reproduce.routers import met_at, span

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mooncake_bench.sim.replay import Replay
    from mooncake_bench.sim.setup import Setup
    from mooncake_bench.studies.reproduce.outcome import Used
    from mooncake_bench.studies.reproduce.sources import Traces
    from mooncake_bench.trace import Trace

ID = "v3-F13"
TITLE = "times of a real workload on [10P+10D] and on [20M]"
SOURCE = "arXiv 2407.00079v3, figure 13"

PREFILL, DECODE, COUPLED = 10, 10, 20
SLO_TTFT_MS, SLO_TBT_MS = 30_000.0, 100.0
# Shares of requests within their SLO: "almost 100 %" is 1
TTFT_WITHIN = {MOONCAKE: 1.0, VLLM: 1.0}
TBT_WITHIN = {MOONCAKE: 1.0, VLLM: 0.57}
MORE = 0.75  # requests within both
READINGS = {  # of a request's TBT, which v3 does not give
    "tail10": "the mean of its longest 10 % of gaps",
    "mean": "the mean of its gaps",
    "max": "its longest gap",
}
JUDGED = "tail10"
RATES = {"toolagent": (1.0, 1.25), "conversation": (1.0, 1.25, 1.5)}  # of the trace's own
RATE = 1.0  # judged
QUANTILES = tuple(place / 100 for place in range(101))


class Times(NamedTuple):
    """What one replay shows, shares of all requests."""

    ttft: float  # within the SLO
    tbt: dict[str, float]  # by reading
    both: dict[str, float]
    patient: float  # tbt, judged, where the gap from first to second token does not count
    ttft_ms: list[float]  # at QUANTILES
    tbt_ms: list[float]  # the same, of the judged reading


Found = dict[float, dict[str, Times]]  # by rate and system


def run(traces: Traces) -> Result:
    """Both clusters on the trace most like v3's, and on conversation, at several rates."""
    sources = {name: traces.get(name) for name in RATES}
    found = {name: _measure(trace, RATES[name]) for name, (trace, _) in sources.items() if trace is not None}
    if not found:
        raise NothingToConclude(f"{ID}: no trace at hand")
    used = {name: each for name, (_, each) in sources.items()}
    return Result(
        rows=tuple(row for name, each in found.items() for row in _rows(name, each[RATE], used[name])),
        claims=tuple(_claims(found)),
        used=tuple(used.values()),
        parameters=tuple(_parameters()),
        notes=tuple(_notes(found, used)),
        sheets=(_sheet(found),),
        draw=partial(_draw, found),
        measured=tuple(_values(found)),
    )


# ---- measuring


def _measure(trace: Trace, rates: tuple[float, ...]) -> Found:
    keys = [(rate, system) for rate in rates for system in (MOONCAKE, VLLM)] + [(RATE, CACHING)]
    times = dict(zip(keys, replays.each(trace, [_setup(*key) for key in keys], times_of), strict=True))
    return {rate: {system: each for (at, system), each in times.items() if at == rate} for rate in rates}


def _setup(rate: float, system: str) -> Setup:
    if system == MOONCAKE:
        return rivals.mooncake(PREFILL, DECODE, speedup=rate)
    return rivals.rival(system, COUPLED, speedup=rate)


def times_of(replay: Replay) -> Times:
    """Judge every request. Raises InvariantError where the replay contradicts itself."""
    records = Records.of(replay)
    check(records)
    done = replay.columns["status"] == COMPLETED
    ttft_ms = (replay.columns["first_token_ps"] - replay.columns["arrival_ps"]) / rivals.PS_PER_MS
    in_time = done & (ttft_ms <= SLO_TTFT_MS)
    of, later = (
        gap_stats(records.segments, records.stays, records.gap_ps, done, exclude_first=exclude, p99=False)
        for exclude in (False, True)
    )
    tbt_ms = {name: np.nan_to_num(of.metric_ms(name)) for name in READINGS}  # without gaps: within
    within = {name: done & (each <= SLO_TBT_MS) for name, each in tbt_ms.items()}
    return Times(
        float(in_time.mean()),
        {name: float(each.mean()) for name, each in within.items()},
        {name: float((each & in_time).mean()) for name, each in within.items()},
        float((done & (np.nan_to_num(later.metric_ms(JUDGED)) <= SLO_TBT_MS)).mean()),
        np.quantile(ttft_ms[done], QUANTILES).tolist(),
        np.quantile(tbt_ms[JUDGED][done], QUANTILES).tolist(),
    )


# ---- what to say


def _rows(name: str, found: Mapping[str, Times], used: Used) -> Iterator[Row]:
    trace = TRACES[name]
    for system, value in TTFT_WITHIN.items():
        yield Row(trace, f"{system}: TTFT in time", value, found[system].ttft, stand_in=used.stand_in)
    for system, value in TBT_WITHIN.items():
        yield Row(trace, f"{system}: TBT in time", value, found[system].tbt[JUDGED], stand_in=used.stand_in)
    yield Row(trace, "more requests in time", MORE, more(found), stand_in=used.stand_in)


def more(found: Mapping[str, Times], reading: str = JUDGED) -> float | None:
    """How many more requests Mooncake serves within both SLOs: 0.75 for +75 %."""
    return rivals.gain(found[MOONCAKE].both[reading], found[VLLM].both[reading])


def _claims(found: Mapping[str, Found]) -> Iterator[Claim]:
    judged = {name: each[RATE] for name, each in found.items()}
    yield Claim(
        "both clusters answer nearly all requests in time (TTFT, 98 %)",
        all(each[system].ttft >= 0.98 for each in judged.values() for system in (MOONCAKE, VLLM)),
        "; ".join(f"{TRACES[name]} {_pair(each, 'ttft')}" for name, each in judged.items()),
    )
    yield Claim(
        "nearly all requests on [10P+10D] keep the TBT SLO (98 %), far fewer on [20M] (80 %)",
        all(_apart(each) for each in judged.values()),
        "; ".join(
            f"{TRACES[name]}: {span([(f'×{rate:g}', _apart(each)) for rate, each in by_rate.items()])}"
            for name, by_rate in found.items()
        ),
    )
    yield Claim(
        "[10P+10D] serves more requests within both SLOs",
        all((more(each) or 0) > 0 for each in judged.values()),
        "; ".join(
            f"{TRACES[name]}: {', '.join(f'×{rate:g} {rivals.percent(more(each))}' for rate, each in by_rate.items())}"
            for name, by_rate in found.items()
        ),
    )


def _apart(found: Mapping[str, Times]) -> bool:
    return found[MOONCAKE].tbt[JUDGED] >= 0.98 and found[VLLM].tbt[JUDGED] <= 0.8


def _pair(found: Mapping[str, Times], what: str) -> str:
    return ", ".join(f"{system} {getattr(found[system], what):.1%}" for system in (MOONCAKE, VLLM))


def _parameters() -> Iterator[str]:
    tried = ", ".join(f"{TRACES[name]} {', '.join(f'×{rate:g}' for rate in rates)}" for name, rates in RATES.items())
    yield f"request rate, which the paper does not give: the traces' own; also tried: {tried}"
    yield (
        f"TBT of a request: {READINGS[JUDGED]}, as FAST'25 has it; also measured: "
        + " and ".join(words for name, words in READINGS.items() if name != JUDGED)
    )
    yield f"coupled instances: no prefix caching, {rivals.ROUTING}; also tried at the judged rate: prefix caching"
    yield "more requests: those within both SLOs on [10P+10D] over those on [20M], at one rate"


def _notes(found: Mapping[str, Found], used: Mapping[str, Used]) -> Iterator[str]:
    bundled = ": the bundled stand-in of that is used" if used["toolagent"].stand_in else ""
    yield (
        "v3's trace of 23,000 real requests is not public; FAST'25's tool&agent trace has as many, about as "
        f"long{bundled}; conversation stands beside it"
    )
    yield "the published +75 % is what 100 % of the requests are over 57 %: 1 / 0.57 = 1.75"
    for name, by_rate in found.items():
        each = by_rate[RATE]
        readings = ", ".join(f"{words} {each[VLLM].tbt[key]:.1%}" for key, words in READINGS.items())
        yield f"{TRACES[name]}, requests of [20M] within {SLO_TBT_MS:g} ms by reading of TBT: {readings}"
        yield (
            f"{TRACES[name]}: {each[CACHING].tbt[JUDGED]:.1%} with prefix caching; {each[VLLM].patient:.1%} where the "
            f"gap from first to second token does not count{_where(by_rate)}"
        )


def _where(by_rate: Found) -> str:
    """The rate at which the published share is met."""
    shares = [each[VLLM].tbt[JUDGED] for each in by_rate.values()]
    rate = met_at(list(by_rate), shares, TBT_WITHIN[VLLM])
    return "" if rate is None else f"; the published {TBT_WITHIN[VLLM]:.0%} at ×{rate:.2f}, between the rates tried"


def _sheet(found: Mapping[str, Found]) -> Sheet:
    rows = []
    for name, by_rate in found.items():
        for rate, each in by_rate.items():
            for system, times in each.items():
                words = f"{TRACES[name]} ×{rate:g}, {system.removeprefix('+ ')}"
                gain = rivals.percent(more(each)) if system == MOONCAKE else ""
                shares = (times.ttft, *(times.tbt[reading] for reading in READINGS), times.both[JUDGED])
                rows.append((words, *(f"{share:.1%}" for share in shares), gain))
    headers = ("", "TTFT", *(f"TBT {reading}" for reading in READINGS), "both", "more")
    note = "both: TTFT, and TBT as judged (tail10); more: on Mooncake over vLLM"
    return Sheet("Requests within 30 s and 100 ms", headers, tuple(rows), (note,))


def _values(found: Mapping[str, Found]) -> Iterator[dict[str, Any]]:
    for name, by_rate in found.items():
        for rate, each in by_rate.items():
            for system, times in each.items():
                tbt = {f"tbt_{reading}_ratio": share for reading, share in times.tbt.items()}
                both = {f"both_{reading}_ratio": share for reading, share in times.both.items()}
                quantiles = {"quantiles": list(QUANTILES), "ttft_ms": times.ttft_ms, "tbt_ms": times.tbt_ms}
                yield {
                    "trace": name,
                    "speedup": rate,
                    "system": system,
                    "ttft_ratio": times.ttft,
                    **tbt,
                    "tbt_without_first_gap_ratio": times.patient,
                    **both,
                    **quantiles,
                }


# ---- the figure


def _draw(found: Mapping[str, Found]) -> Any:
    figure, panels = plots.figure(columns=2)
    place = 0
    for name, by_rate in found.items():
        for system in (MOONCAKE, VLLM):
            times = by_rate[RATE][system]
            cluster = f"{PREFILL}P+{DECODE}D" if system == MOONCAKE else f"{COUPLED}M"
            label = f"[{cluster}], {TRACES[name]}"
            panels[0].plot([value / 1e3 for value in times.ttft_ms], QUANTILES, label=label, **plots.series(place))
            panels[1].plot(times.tbt_ms, QUANTILES, label=label, **plots.series(place))
            place += 1
    for axes, limit, label in ((panels[0], SLO_TTFT_MS / 1e3, "TTFT, s"), (panels[1], SLO_TBT_MS, "TBT, ms")):
        axes.axvline(limit, color=plots.FAINT, linestyle=":", linewidth=0.9)
        axes.set_xscale("log")
        axes.set_ylim(0, 1.02)
        plots.compact(axes.xaxis)
        axes.set_xlabel(label)
    panels[0].set_xlim(0.1, 60)
    panels[1].set_xlim(20, 1e4)
    panels[0].set_ylabel("requests")
    panels[1].plot([SLO_TBT_MS] * 2, list(TBT_WITHIN.values()), color=plots.BOUND, linestyle="", marker="x",
                   markersize=6, label="published")  # fmt: skip
    panels[1].legend(loc="lower right", fontsize="x-small")
    return figure
