"""FAST'25 figures 1, 6 and 7: how many requests are effective on Mooncake and on vLLM, by TBT threshold."""

from __future__ import annotations

from functools import partial
from math import exp, log
from typing import TYPE_CHECKING, Any, NamedTuple

from mooncake_bench.errors import NothingToConclude
from mooncake_bench.report import plots
from mooncake_bench.report.sheets import Sheet
from mooncake_bench.studies.reproduce import rivals
from mooncake_bench.studies.reproduce.outcome import Claim, Result, Row
from mooncake_bench.studies.reproduce.rivals import CACHING, CHUNKED, MOONCAKE, RIVALS, THRESHOLDS_MS, TRACES, VLLM
from mooncake_bench.studies.reproduce.routers import met_at, span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from mooncake_bench.sim.setup import Setup
    from mooncake_bench.studies.reproduce.outcome import Used
    from mooncake_bench.studies.reproduce.rivals import Seen
    from mooncake_bench.studies.reproduce.sources import Traces
    from mooncake_bench.trace import Trace

ID, ALIASES = "F25-F1", ("F25-F6", "F25-F7")
TITLE = "effective requests by TBT threshold, against coupled instances"
SOURCE = "FAST'25, figures 1, 6 and 7"

NODES, PREFILL = 16, 8  # of them, where judged
# More effective requests at 100, 200 and 300 ms, and the baseline that they are more than
PUBLISHED = {
    "conversation": (4.98, 1.57, 0.59),
    "toolagent": (0.64, 0.42, 0.22),
    "synthetic": (0.62, 0.40, 0.28),
}
OVER = {"conversation": VLLM, "toolagent": CACHING, "synthetic": VLLM}
RATES = {  # of the trace's own
    "conversation": (1.0, 1.3, 1.5, 1.7),
    "toolagent": (1.0, 1.3, 1.5),
    "synthetic": (0.7, 0.85, 1.0, 1.3, 1.5),
}
DIVISIONS = (6, 10, 12)  # prefill nodes besides 8, tried at the highest rate
ROUTERS = ("load-balancing", "cache-aware")  # over coupled instances, besides the judged one
CHUNKS = (256, 2048)  # tokens, besides 512
EXPERIMENTS = ("conversation", "synthetic")  # traces on which chunks and divisions are tried


class Point(NamedTuple):
    """What is varied around the judged load, one thing at a time."""

    axis: str
    value: str
    system: str
    setup: Setup


class Load(NamedTuple):
    """One trace: every system at every rate, what was varied at the judged one, divisions at the highest."""

    by_rate: dict[float, dict[str, Seen]]
    rate: float  # judged
    varied: dict[Point, Seen]
    divisions: dict[int, Seen]

    @property
    def judged(self) -> dict[str, Seen]:
        return self.by_rate[self.rate]


Loads = dict[str, Load]


def run(traces: Traces) -> Result:
    """Four systems on three traces over request rates; the rate is judged at which the gains are nearest."""
    found = {name: traces.get(name) for name in PUBLISHED}
    loads = {name: _measure(name, trace) for name, (trace, _) in found.items() if trace is not None}
    if not loads:
        raise NothingToConclude(f"{ID}: no trace at hand")
    used = {name: each for name, (_, each) in found.items()}
    return Result(
        rows=tuple(_rows(loads, used)),
        claims=tuple(_claims(loads)),
        used=tuple(used.values()),
        parameters=tuple(_parameters(loads)),
        notes=tuple(_notes(loads, used)),
        sheets=(*(_sheet(name, load) for name, load in loads.items()), _rate_sheet(loads), _varied_sheet(loads)),
        draw=partial(_draw, loads),
        measured=tuple(_values(loads)),
    )


# ---- measuring


def _measure(name: str, trace: Trace) -> Load:
    setups = {(rate, system): _setup(system, rate) for rate in RATES[name] for system in (MOONCAKE, *RIVALS)}
    seen = dict(zip(setups, rivals.play(trace, list(setups.values())), strict=True))
    by_rate = {rate: {system: seen[rate, system] for system in (MOONCAKE, *RIVALS)} for rate in RATES[name]}
    rate = min(by_rate, key=lambda rate: distance(name, by_rate[rate]))
    points = list(_points(rate, CHUNKS if name in EXPERIMENTS else ()))
    varied = dict(zip(points, rivals.play(trace, [point.setup for point in points]), strict=True))
    highest = max(RATES[name])
    others = DIVISIONS if name in EXPERIMENTS else ()
    setups_of = [rivals.mooncake(prefill, NODES - prefill, speedup=highest) for prefill in others]
    divisions = dict(zip(others, rivals.play(trace, setups_of), strict=True))
    return Load(by_rate, rate, varied, dict(sorted({PREFILL: by_rate[highest][MOONCAKE], **divisions}.items())))


def _setup(system: str, rate: float, **changes: Any) -> Setup:
    if system == MOONCAKE:
        return rivals.mooncake(PREFILL, NODES - PREFILL, speedup=rate)
    return rivals.rival(system, NODES, speedup=rate, **changes)


def _points(rate: float, chunks: tuple[int, ...]) -> Iterator[Point]:
    yield Point("routing", ROUTERS[0], VLLM, _setup(VLLM, rate, policy=ROUTERS[0]))
    yield Point("routing", ROUTERS[1], CACHING, _setup(CACHING, rate, policy=ROUTERS[1]))
    for chunk in chunks:
        yield Point("chunk", f"{chunk:,} tokens", CHUNKED, _setup(CHUNKED, rate, step_tokens=chunk))


def distance(name: str, found: Mapping[str, Seen]) -> float:
    """How far the three gains are from the published: the mean of the factors' logarithms."""
    return _apart(zip(found[MOONCAKE].effective, found[OVER[name]].effective, PUBLISHED[name], strict=True))


def other_distance(name: str, load: Load) -> float:
    """The same if the gains were those over the three baselines at one threshold; at the nearest rate and threshold."""
    return min(
        _apart(
            (found[MOONCAKE].effective[place], found[baseline].effective[place], more)
            for baseline, more in zip(RIVALS, PUBLISHED[name], strict=True)
        )
        for found in load.by_rate.values()
        for place in range(len(THRESHOLDS_MS))
    )


def _apart(gains: Iterable[tuple[float, float, float]]) -> float:
    """Of shares of Mooncake and a baseline, and a published gain."""
    factors = [max(ours, 1e-6) / max(theirs, 1e-6) / (1 + more) for ours, theirs, more in gains]
    return sum(abs(log(factor)) for factor in factors) / len(factors)


# ---- what to say


def _rows(loads: Loads, used: Mapping[str, Used]) -> Iterator[Row]:
    for name, published in PUBLISHED.items():
        gains = _gains(loads[name].judged, name) if name in loads else (None,) * len(published)
        for limit, value, ours in zip(THRESHOLDS_MS, published, gains, strict=True):
            yield Row(TRACES[name], f"gain at {limit:g} ms", value, ours, stand_in=used[name].stand_in)


def _gains(found: Mapping[str, Seen], name: str) -> tuple[float | None, ...]:
    return rivals.gains(found[MOONCAKE], found[OVER[name]])


def ahead(found: Mapping[str, Seen], baseline: str) -> bool:
    """Whether Mooncake serves more requests well than a baseline at every threshold."""
    return all(ours > theirs for ours, theirs in zip(found[MOONCAKE].effective, found[baseline].effective, strict=True))


def _ahead(baseline: str, name: str, found: Mapping[str, Seen]) -> bool:
    return ahead(found, baseline)


def falling(gains: tuple[float | None, ...]) -> bool:
    """Whether a gain is less at each higher threshold."""
    low, middle, high = (float("inf") if value is None else value for value in gains)
    return low > middle > high


def _claims(loads: Loads) -> Iterator[Claim]:
    for baseline in RIVALS:
        words = baseline if baseline == VLLM else f"{VLLM} {baseline}"
        yield _claim(
            f"Mooncake serves more requests well than {words}, at every threshold",
            loads,
            partial(_ahead, baseline),
        )
    yield _claim(
        "its gain is less at every higher threshold",
        loads,
        lambda name, found: falling(_gains(found, name)),
    )
    yield _most(loads)


def _claim(text: str, loads: Loads, holds: Callable[[str, Mapping[str, Seen]], bool]) -> Claim:
    where = "; ".join(
        f"{TRACES[name]} {span([(f'×{rate:g}', holds(name, found)) for rate, found in load.by_rate.items()])}"
        for name, load in loads.items()
    )
    return Claim(text, all(holds(name, load.judged) for name, load in loads.items()), f"holds for {where}")


def _most(loads: Loads) -> Claim:
    text = "conversation gains most (at 100 ms)"
    if len(loads) < len(PUBLISHED):
        return Claim(text, None, f"only {', '.join(TRACES[name] for name in loads)} at hand")
    common = sorted(set.intersection(*(set(load.by_rate) for load in loads.values())))
    most = {rate: _gains_most({name: load.by_rate[rate] for name, load in loads.items()}) for rate in common}
    held = span([(f"×{rate:g}", name == "conversation") for rate, name in most.items()])
    judged = [f"{TRACES[name]} {rivals.percent(_gains(load.judged, name)[0])}" for name, load in loads.items()]
    return Claim(
        text,
        all(name == "conversation" for name in most.values()),
        f"at one multiple of all traces' own rates: {held}; at the judged rates, a trace each: {', '.join(judged)}",
    )


def _gains_most(found: Mapping[str, Mapping[str, Seen]]) -> str:
    return max(found, key=lambda name: _gains(found[name], name)[0] or 0.0)


def _parameters(loads: Loads) -> Iterator[str]:
    yield (
        "request rate, chosen among those tried as where the three gains are nearest: "
        + "; ".join(f"{TRACES[name]} ×{load.rate:g} of {_rates(load)}" for name, load in loads.items())
    )
    yield (
        "what each printed gain is over, and at which threshold: over vLLM, on tool&agent over vLLM with prefix "
        "caching, at 100, 200 and 300 ms; the tables have the others too"
    )
    yield (
        f"how requests reach coupled instances: {rivals.ROUTING}; also tried: {', '.join(ROUTERS)}. "
        "Prefixes are cached in the VRAM that an instance has left"
    )
    yield f"tokens of a mixed step: 512; also tried: {', '.join(f'{chunk:,}' for chunk in CHUNKS)}"
    yield f"Mooncake: 8P+8D, kvcache-centric; also tried, at the highest rate: {', '.join(map(_division, DIVISIONS))}"
    yield "TBT of a request: the mean of its longest 10 % of gaps, the first one too; also measured: without that"


def _rates(load: Load) -> str:
    return ", ".join(f"{rate:g}" for rate in load.by_rate)


def _division(prefill: int) -> str:
    return f"{prefill}P+{NODES - prefill}D"


def _notes(loads: Loads, used: Mapping[str, Used]) -> Iterator[str]:
    for name, each in used.items():
        if each.stand_in:
            yield f"{TRACES[name]}: a stand-in, so its numbers say nothing about the published trace"
    factors = [
        f"{TRACES[name]} {exp(other_distance(name, load)):.2f} (as judged {exp(distance(name, load.judged)):.2f})"
        for name, load in loads.items()
    ]
    yield (
        "were the three gains of a trace those over vLLM, + prefix caching and + chunked prefill at one threshold, "
        f"shares would be off by a mean factor of: {', '.join(factors)}"
    )
    for name, load in loads.items():
        yield _met(name, load)
    for name, load in loads.items():
        yield _first_gap(name, load)
    for name, load in loads.items():
        if load.divisions.keys() - {PREFILL}:
            yield _chunks(name, load)
            yield _best_division(name, load)


def _met(name: str, load: Load) -> str:
    """At which load each gain alone would be the published one: one load for all three is what would match."""
    rates = list(load.by_rate)
    found = []
    for place, (limit, published) in enumerate(zip(THRESHOLDS_MS, PUBLISHED[name], strict=True)):
        gains = [_gains(each, name)[place] or 0.0 for each in load.by_rate.values()]
        rate = met_at(rates, gains, published)
        found.append(f"{limit:g} ms {'at none of them' if rate is None else f'×{rate:.2f}'}")
    return f"{TRACES[name]}: rate at which each gain is the published one, between those tried: {', '.join(found)}"


def _chunks(name: str, load: Load) -> str:
    """Why chunked prefill does well at the higher thresholds."""
    varied = {int(p.value.split()[0].replace(",", "")): each for p, each in load.varied.items() if p.axis == "chunk"}
    sizes = dict(sorted({512: load.judged[CHUNKED], **varied}.items()))
    return (
        f"experiment on {TRACES[name]}, effective within 100/200/300 ms with chunked prefill, by the tokens of a step: "
        + "; ".join(f"{size:,} {_shares(each)}" for size, each in sizes.items())
        + ": which threshold it keeps follows from that size, which the paper does not give"
    )


def _shares(each: Seen) -> str:
    return "/".join(f"{share:.0%}" for share in each.effective).replace("%", "") + " %"


def _first_gap(name: str, load: Load) -> str:
    ours, theirs = load.judged[MOONCAKE].patient, load.judged[OVER[name]].patient
    found = [rivals.percent(rivals.gain(*pair)) for pair in zip(ours, theirs, strict=True)]
    return f"{TRACES[name]} without the gap from first to second token, else the same: {', '.join(found)}"


def _best_division(name: str, load: Load) -> str:
    best = max(load.divisions, key=lambda prefill: load.divisions[prefill].effective[0])
    worst = min(load.divisions, key=lambda prefill: load.divisions[prefill].effective[0])
    named = [f"{_division(p)} {load.divisions[p].effective[0]:.1%}" for p in dict.fromkeys((best, PREFILL, worst))]
    return f"{TRACES[name]} at ×{max(load.by_rate):g}, effective within 100 ms by division: {', '.join(named)}"


def _sheet(name: str, load: Load) -> Sheet:
    rows = []
    for system, each in load.judged.items():
        more = rivals.gains(load.judged[MOONCAKE], each)
        words = [
            cell
            for share, gain in zip(each.effective, more, strict=True)
            for cell in (f"{share:.1%}", "" if system == MOONCAKE else rivals.percent(gain))
        ]
        rows.append((f"{system}{' *' if system == OVER[name] else ''}", *words))
    cells = [cell for value in PUBLISHED[name] for cell in ("", rivals.percent(value))]
    rows.append(("published, over *", *cells))
    headers = ("", *(cell for limit in THRESHOLDS_MS for cell in (f"{limit:g} ms", "gain")))
    return Sheet(f"{TRACES[name]} at ×{load.rate:g}: effective requests, and Mooncake's gain", headers, tuple(rows))


def _rate_sheet(loads: Loads) -> Sheet:
    rows = []
    for name, load in loads.items():
        rows += [
            (f"{TRACES[name]} ×{rate:g}", *(cell for system in RIVALS for cell in _cells(found, system)))
            for rate, found in load.by_rate.items()
        ]
    headers = ("gain, %, over", *(cell for word in ("vLLM", "caching", "chunked") for cell in (word, "", "")))
    return Sheet("Mooncake's gain at 100, 200 and 300 ms by request rate", headers, tuple(rows))


def _cells(found: Mapping[str, Seen], system: str) -> Iterator[str]:
    for gain in rivals.gains(found[MOONCAKE], found[system]):
        yield "–" if gain is None else f"{100 * gain:+.0f}"


def _varied_sheet(loads: Loads) -> Sheet:
    rows = []
    for name, load in loads.items():
        for point, each in load.varied.items():
            gains = rivals.gains(load.judged[MOONCAKE], each)
            words = f"{TRACES[name]}, {point.system.removeprefix('+ ')}, {point.value}"
            rows.append((words, *(f"{share:.1%}" for share in each.effective), *map(rivals.percent, gains[:1])))
    headers = ("", *(f"{limit:g} ms" for limit in THRESHOLDS_MS), "gain, 100")
    return Sheet("Experiments at the judged rates: effective requests", headers, tuple(rows))


def _values(loads: Loads) -> Iterator[dict[str, Any]]:
    for name, load in loads.items():
        for rate, found in load.by_rate.items():
            yield from (each | {"varied": ""} for each in rivals.values(name, rate, found))
        for point, each in load.varied.items():
            words = f"{point.axis}: {point.value}"
            yield {"trace": name, "speedup": load.rate, "system": point.system, **rivals.plain(each), "varied": words}
        for prefill, each in load.divisions.items():
            rate, words = max(load.by_rate), f"division: {_division(prefill)}"
            yield {"trace": name, "speedup": rate, "system": MOONCAKE, **rivals.plain(each), "varied": words}


# ---- the figure


def _draw(loads: Loads) -> Any:
    figure, panels = plots.figure(columns=len(loads))
    for axes, (name, load) in zip(panels, loads.items(), strict=True):
        for i, (system, each) in enumerate(load.judged.items()):
            label = system if system in (MOONCAKE, VLLM) else f"{VLLM} {system}"
            axes.plot(THRESHOLDS_MS, each.effective, marker=plots.marker(i), label=label, **plots.series(i))
        ours = load.judged[MOONCAKE].effective
        implied = [share / (1 + more) for share, more in zip(ours, PUBLISHED[name], strict=True)]
        label = "vLLM (tool&agent: with caching),\nby the published gain"
        axes.plot(THRESHOLDS_MS, implied, color=plots.BOUND, linestyle="", marker="x", markersize=6, label=label)
        axes.set_ylim(0, 1.05)
        axes.set_xticks(THRESHOLDS_MS)
        axes.set_xlabel("TBT threshold, ms")
        axes.set_title(f"{TRACES[name]}, ×{load.rate:g}")
    panels[0].set_ylabel("effective requests")
    panels[-1].legend(loc="lower right", fontsize="x-small")
    return figure
