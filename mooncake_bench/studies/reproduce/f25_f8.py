"""FAST'25 figure 8: GPU time that prefills take, on coupled instances over Mooncake."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from mooncake_bench.errors import NothingToConclude
from mooncake_bench.report import plots
from mooncake_bench.report.sheets import Sheet
from mooncake_bench.results.words import DASH
from mooncake_bench.studies.reproduce import rivals
from mooncake_bench.studies.reproduce.outcome import Claim, Result, Row
from mooncake_bench.studies.reproduce.rivals import CACHING, CHUNKED, MOONCAKE, RIVALS, TRACES, VLLM

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mooncake_bench.sim.setup import Setup
    from mooncake_bench.studies.reproduce.outcome import Used
    from mooncake_bench.studies.reproduce.rivals import Seen
    from mooncake_bench.studies.reproduce.sources import Traces
    from mooncake_bench.trace import Trace

ID = "F25-F8"
TITLE = "GPU time of prefills on coupled instances, over Mooncake's"
SOURCE = "FAST'25, figure 8"

NODES, PREFILL = 16, 8
# vLLM, with prefix caching, with chunked prefill; over Mooncake
PUBLISHED = {
    "conversation": (1.56, 1.43, 1.90),
    "toolagent": (2.12, 1.40, 2.68),
    "synthetic": (2.76, 2.59, 3.33),
}
SMALL = 256  # tokens of a mixed step, in place of 512


class Case(NamedTuple):
    """One cluster, and what of it is not as judged."""

    system: str
    words: str = ""


CASES: dict[Case, dict[str, Any]] = {
    **{Case(system): {} for system in RIVALS},
    Case(CACHING, "routed by cache"): {"policy": "cache-aware"},
    Case(CHUNKED, f"{SMALL} tokens a step"): {"step_tokens": SMALL},
}
EXPERIMENTS = ("conversation", "synthetic")  # traces on which the cases that are not judged are tried


class Found(NamedTuple):
    """One trace."""

    ours: Seen
    theirs: dict[Case, Seen]

    def ratio(self, case: Case, what: str = "gpu_ms") -> float:
        """Prefill time over Mooncake's."""
        value: float = getattr(self.theirs[case], what) / self.ours.gpu_ms
        return value


def run(traces: Traces) -> Result:
    """Four systems on three traces at the traces' own rates, and what the readings and settings change."""
    sources = {name: traces.get(name) for name in PUBLISHED}
    found = {name: _measure(name, trace) for name, (trace, _) in sources.items() if trace is not None}
    if not found:
        raise NothingToConclude(f"{ID}: no trace at hand")
    used = {name: each for name, (_, each) in sources.items()}
    return Result(
        rows=tuple(_rows(found, used)),
        claims=tuple(_claims(found)),
        used=tuple(used.values()),
        parameters=tuple(_parameters()),
        notes=tuple(_notes(found, used)),
        sheets=(_sheet(found),),
        draw=partial(_draw, found),
        measured=tuple(_values(found)),
    )


def _measure(name: str, trace: Trace) -> Found:
    cases = [case for case in CASES if not case.words or name in EXPERIMENTS]
    setups = [rivals.mooncake(PREFILL, NODES - PREFILL), *map(_setup, cases)]
    ours, *theirs = rivals.play(trace, setups)
    return Found(ours, dict(zip(cases, theirs, strict=True)))


def _setup(case: Case) -> Setup:
    return rivals.rival(case.system, NODES, **CASES[case])


# ---- what to say


def _rows(found: Mapping[str, Found], used: Mapping[str, Used]) -> Iterator[Row]:
    for name, published in PUBLISHED.items():
        for system, value in zip(RIVALS, published, strict=True):
            ours = found[name].ratio(Case(system)) if name in found else None
            yield Row(TRACES[name], system, value, ours, stand_in=used[name].stand_in)


def in_order(each: Found) -> bool:
    """Mooncake least, then vLLM with prefix caching, vLLM, and chunked prefill most."""
    caching, plain, chunked = (each.ratio(Case(system)) for system in (CACHING, VLLM, CHUNKED))
    return 1 < caching < plain < chunked


def _claims(found: Mapping[str, Found]) -> Iterator[Claim]:
    yield Claim(
        "Mooncake takes least, then vLLM + prefix caching, vLLM, + chunked prefill",
        all(map(in_order, found.values())),
        "; ".join(
            f"{TRACES[name]}: {', '.join(f'{system} {each.ratio(Case(system)):.2f}' for system in RIVALS)}"
            for name, each in found.items()
        ),
    )
    ratios = {name: each.ratio(Case(VLLM)) for name, each in found.items()}
    yield Claim(
        "vLLM takes least beyond Mooncake on conversation, most on synthetic",
        sorted(ratios, key=lambda name: ratios[name]) == list(PUBLISHED) if len(ratios) == len(PUBLISHED) else None,
        ", ".join(f"{TRACES[name]} {value:.2f}" for name, value in ratios.items()),
    )
    saved = {name: 1 - each.ratio(Case(CACHING)) / each.ratio(Case(VLLM)) for name, each in found.items()}
    printed = {name: 1 - caching / plain for name, (plain, caching, _) in PUBLISHED.items()}
    yield Claim(
        "prefix caching saves vLLM most on tool&agent",
        max(saved, key=lambda name: saved[name]) == "toolagent" if len(saved) == len(PUBLISHED) else None,
        ", ".join(f"{TRACES[name]} {value:.0%} (published {printed[name]:.0%})" for name, value in saved.items()),
    )


def _parameters() -> Iterator[str]:
    yield "request rate: the traces' own; 8P+8D against 16 coupled instances"
    yield ("prefill time in a step that decodes too: what it takes beyond its decoding alone; also measured: all of it")
    yield f"routing of coupled instances: {rivals.ROUTING}; also tried, with prefix caching: cache-aware"
    yield f"tokens of a mixed step: 512; also tried: {SMALL}"
    yield "prefixes are cached in the VRAM that an instance has left; vLLM and + chunked prefill cache none"


def _notes(found: Mapping[str, Found], used: Mapping[str, Used]) -> Iterator[str]:
    for name, source in used.items():
        if source.stand_in:
            yield f"{TRACES[name]}: a stand-in, so its numbers say nothing about the published trace"
    for name, each in found.items():
        yield (
            f"{TRACES[name]}: prefix tokens found: Mooncake {each.ours.hit_ratio:.1%}, + prefix caching "
            f"{each.theirs[Case(CACHING)].hit_ratio:.1%}" + _routed(each)
        )
    yield (
        "experiment, chunked prefill: the published ratios lie between the two ways to count a step that decodes too, "
        "what it takes beyond its decoding and all of it: "
        + ", ".join(
            f"{TRACES[name]} {each.ratio(Case(CHUNKED)):.2f} < {PUBLISHED[name][2]:.2f} < "
            f"{each.ratio(Case(CHUNKED), 'steps_ms'):.2f}"
            for name, each in found.items()
            if each.ratio(Case(CHUNKED)) < PUBLISHED[name][2] < each.ratio(Case(CHUNKED), "steps_ms")
        )
    )
    small = Case(CHUNKED, f"{SMALL} tokens a step")
    tried = [f"{TRACES[name]} {each.ratio(small):.2f}" for name, each in found.items() if small in each.theirs]
    if tried:
        yield f"experiment, chunked prefill in steps of {SMALL} tokens, counted as judged: {', '.join(tried)}"


def _routed(each: Found) -> str:
    case = Case(CACHING, "routed by cache")
    return f", {each.theirs[case].hit_ratio:.1%} if routed by cache" if case in each.theirs else ""


def _sheet(found: Mapping[str, Found]) -> Sheet:
    rows = [("Mooncake", *(cell for name in PUBLISHED for cell in (_ms(found, name), "1")))]
    for case in CASES:
        cells = []
        for name in PUBLISHED:
            known = name in found and case in found[name].theirs
            cells += [_ms(found, name, case), f"{found[name].ratio(case):.2f}"] if known else [DASH, DASH]
        rows.append((case.words or case.system, *cells))
        if not case.words:
            at = list(RIVALS).index(case.system)
            rows.append(("  published", *(cell for name in PUBLISHED for cell in ("", f"{PUBLISHED[name][at]:.2f}"))))
    headers = ("", *(cell for name in PUBLISHED for cell in (TRACES[name], "ratio")))
    note = "routed by cache: prefix caching, cache-aware routing; tokens a step: chunked prefill"
    return Sheet("Mean GPU time of a prefill, ms, and over Mooncake's", headers, tuple(rows), (note,))


def _ms(found: Mapping[str, Found], name: str, case: Case | None = None) -> str:
    if name not in found:
        return DASH
    return f"{(found[name].ours if case is None else found[name].theirs[case]).gpu_ms:,.0f}"


def _values(found: Mapping[str, Found]) -> Iterator[dict[str, Any]]:
    for name, each in found.items():
        yield {"trace": name, "system": MOONCAKE, "varied": "", "over_mooncake": 1.0, **rivals.plain(each.ours)}
        for case, theirs in each.theirs.items():
            ratio = each.ratio(case)
            yield {"trace": name, "system": case.system, "varied": case.words, "over_mooncake": ratio} | rivals.plain(
                theirs
            )


# ---- the figure


def _draw(found: Mapping[str, Found]) -> Any:
    figure, (axes, *_) = plots.figure()
    width = 0.26
    for i, system in enumerate(RIVALS):
        label = system if system == VLLM else f"{VLLM} {system}"
        places = [place + (i - 1) * width for place in range(len(found))]
        axes.bar(places, [each.ratio(Case(system)) for each in found.values()], 0.9 * width, color=plots.PALETTE[i + 1],
                 label=f"{label}, ours")  # fmt: skip
        axes.plot(places, [PUBLISHED[name][i] for name in found], color=plots.BOUND, linestyle="", marker="x",
                  markersize=6, label="published" if i == 2 else None)  # fmt: skip
    axes.axhline(1, color=plots.PALETTE[0], linewidth=0.9, label=MOONCAKE)
    axes.set_xticks(range(len(found)), [TRACES[name] for name in found])
    axes.grid(visible=False, axis="x")
    axes.set_ylabel("prefill GPU time over Mooncake's")
    axes.legend(loc="upper left")
    return figure
