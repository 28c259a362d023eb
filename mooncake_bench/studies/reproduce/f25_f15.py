"""FAST'25 figure 15: how sixteen nodes are best divided between prefill and decoding."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from mooncake_bench.hardware.analytic import AnalyticCost
from mooncake_bench.report import plots
from mooncake_bench.report.sheets import Sheet
from mooncake_bench.sim.costs import cost_of
from mooncake_bench.sim.setup import Setup
from mooncake_bench.studies import replays
from mooncake_bench.studies.reproduce import f25_f14
from mooncake_bench.studies.reproduce.outcome import Claim, Result, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mooncake_bench.hardware.cost import CostModel
    from mooncake_bench.sim.replay import Replay
    from mooncake_bench.studies.reproduce.sources import Traces
    from mooncake_bench.trace import Trace

ID = "F25-F15"
TITLE = "sixteen nodes divided between prefill and decoding"
SOURCE = "FAST'25, figure 15, read by eye"

NODES = 16
PREFILL = (5, 6, 7, 8, 9, 10, 11)  # nodes; the others decode
PLATEAU = (7, 8, 9)
PUBLISHED: dict[str, tuple[float, ...]] = {
    "effective": (0.777, 0.971, 0.990, 0.989, 0.991, 0.983, 0.860),
    "ttft_ms": (5750, 1700, 1300, 1200, 1120, 1100, 1120),
    "tbt_ms": (31.5, 31.7, 33.0, 35.0, 38.3, 44.0, 58.5),
}
READING_ERROR = {"effective": 0.005, "ttft_ms": 100.0, "tbt_ms": 1.5}
WORDS = {"effective": "effective requests", "ttft_ms": "mean TTFT", "tbt_ms": "mean TBT"}
MEAN_TOKENS = 15_325  # of the trace's prompts, by table 2
SLO_TTFT_MS, SLO_TBT_MS = 10_000.0, 100.0
ENGINES = ("mooncake-a800", "none")
SPEEDUPS = (0.5, 0.9, 1.0, 1.1, 1.25)  # of the trace's own rate
NEAR_TOP = 0.975  # effective requests of a plateau "near 99 %"
FALL = 0.02  # below the best division: an end that falls
TBT_METRICS = {"tbt_ms": "mean of the longest 10 % of gaps", "tpot_ms": "mean of all gaps"}
SLOWER_MS = (1.0, 2.0, 3.0)  # further cost of each sequence in a decode step
SLOWED = (8, 11)  # prefill nodes of the divisions that are slowed


class Point(NamedTuple):
    """One division of the nodes."""

    effective: float
    ttft_ms: float
    tbt_ms: float
    tpot_ms: float
    step_ms: float  # mean gap over all tokens
    decode_batch: float  # sequences a decode node has in its batch, by Little's law
    extra_ms: float = 0.0  # what each sequence was made to cost a decode step, on top


Points = dict[tuple[str, float, int], Point]  # by engine, speedup and prefill nodes


def run(traces: Traces) -> Result:
    """The seven divisions on the synthetic trace, at several rates and under two engine overheads."""
    trace, used = traces.need("synthetic", ID)
    points = _measure(trace)
    slowed = _slowed(trace)
    [patient] = replays.each(trace, [_setup(ENGINES[0], 1.0, 8)], without_first_gap)
    return Result(
        rows=tuple(_rows(points)),
        claims=tuple(_claims(points)),
        used=(used,),
        parameters=tuple(_parameters(points)),
        notes=tuple(_notes(points, slowed, patient)),
        sheets=(_sheet(points), _slowed_sheet(points, slowed)),
        draw=lambda: _draw(points),
        measured=tuple(_values(points, slowed)),
    )


# ---- measuring


def _setup(engine: str, speedup: float, prefill: int) -> Setup:
    return Setup(
        cluster=f"{prefill}P+{NODES - prefill}D", engine=engine, speedup=speedup, slo_ttft_ms=SLO_TTFT_MS,
        slo_tbt_ms=SLO_TBT_MS,
    )  # fmt: skip


def _measure(trace: Trace) -> Points:
    """Every division at the trace's rate under both engines, and under the first at the other rates."""
    keys = [(engine, 1.0, prefill) for engine in ENGINES for prefill in PREFILL]
    keys += [(ENGINES[0], speedup, prefill) for speedup in SPEEDUPS if speedup != 1 for prefill in (5, *PLATEAU, 11)]
    return dict(zip(keys, replays.each(trace, [_setup(*key) for key in keys], point), strict=True))


def _slowed(trace: Trace) -> dict[tuple[float, int], Point]:
    """Divisions with decode steps in which each sequence costs more, by what it costs more and prefill nodes."""
    found: dict[tuple[float, int], Point] = {}
    for extra in SLOWER_MS:
        setups = [_setup(ENGINES[0], 1.0, prefill) for prefill in SLOWED]
        made = replays.each(trace, setups, point, partial(slower, extra))
        found |= {(extra, p): each._replace(extra_ms=extra) for p, each in zip(SLOWED, made, strict=True)}
    return found


def slower(extra_ms: float, setup: Setup) -> CostModel:
    """The setup's costs with ``extra_ms`` more for every sequence of a decode step."""
    cost = cost_of(setup)
    assert isinstance(cost, AnalyticCost)
    coefficients = [replace(c, decode_sequence_ms=c.decode_sequence_ms + extra_ms) for c in cost.coefficients]
    return AnalyticCost(
        coefficients, cost.overhead, name=cost.name, version=f"{cost.version}+{extra_ms:g}", error=cost.error,
        layers=cost.layers, kv_bytes_per_token=cost.kv_bytes_per_token,
        nic_bytes_per_s=cost.nic_bytes_per_s.tolist(), vram_tokens=cost.vram_tokens.tolist(),
    )  # fmt: skip


def point(replay: Replay) -> Point:
    """What the figure shows of one replay."""
    found = replays.metrics(replay)
    decoding = int(replay.is_decode.sum())
    tokens_per_ms = float(replay.trace.output_tokens.sum()) / (float(replay.columns["arrival_ps"][-1]) / 1e9 or 1.0)
    step_ms = float(found["mean_itl_ms"] or 0.0)
    return Point(
        float(found["request_goodput_ratio"] or 0.0), float(found["mean_ttft_ms"] or 0.0),
        float(found["mean_tbt_ms"] or 0.0), float(found["mean_tpot_ms"] or 0.0), step_ms,
        tokens_per_ms * step_ms / decoding,
    )  # fmt: skip


def without_first_gap(replay: Replay) -> float:
    """Effective requests where the gap from first to second token does not count."""
    return float(replays.judged(replay, first_gap="exclude")["request_goodput_ratio"] or 0.0)


# ---- what to say


def _rows(points: Points) -> Iterator[Row]:
    for name, published in PUBLISHED.items():
        for prefill, value in zip(PREFILL, published, strict=True):
            ours = getattr(points[ENGINES[0], 1.0, prefill], name)
            unit = "ratio" if name == "effective" else "ms"
            yield Row(WORDS[name], _division(prefill), value, ours, unit, reading_error=READING_ERROR[name])


def _division(prefill: int) -> str:
    return f"{prefill}P+{NODES - prefill}D"


def _series(points: Points, engine: str, speedup: float, name: str) -> dict[int, float]:
    return {p: getattr(points[engine, speedup, p], name) for p in PREFILL if (engine, speedup, p) in points}


def plateau(effective: Mapping[int, float]) -> bool:
    """Whether 7 to 9 prefill nodes all serve nearly every request."""
    return all(effective[prefill] >= NEAR_TOP for prefill in PLATEAU)


def falls(effective: Mapping[int, float], prefill: int) -> bool:
    """Whether a division serves fewer than the best one does."""
    return effective[prefill] <= max(effective.values()) - FALL


def monotone(values: Sequence[float], *, rising: bool, slack: float = 0.0) -> bool:
    """Whether values rise, or fall, from each to the next; ``slack`` is a part of a value that is no step back."""
    signed = values if rising else [-value for value in values]
    return all(high >= low - slack * abs(low) for low, high in pairwise(signed)) and signed[-1] > signed[0]


def _claims(points: Points) -> Iterator[Claim]:
    checks: dict[str, tuple[str, Callable[[dict[int, float]], bool]]] = {
        "from 7P+9D to 9P+7D nearly all requests are effective (99 %)": ("effective", plateau),
        "fewer are with too few prefill nodes (5P+11D)": ("effective", lambda found: falls(found, 5)),
        "fewer are with too few decode nodes (11P+5D)": ("effective", lambda found: falls(found, 11)),
        "mean TTFT falls as prefill nodes are added": (
            "ttft_ms",
            lambda found: monotone(list(found.values()), rising=False, slack=0.02),
        ),
        "mean TBT rises as decode nodes are taken away": (
            "tbt_ms",
            lambda found: monotone(list(found.values()), rising=True, slack=0.01),
        ),
    }
    for text, (name, holds) in checks.items():
        ours = _series(points, ENGINES[0], 1.0, name)
        by_rate = {speedup: holds(_series(points, ENGINES[0], speedup, name)) for speedup in SPEEDUPS}
        bare = "holds" if holds(_series(points, ENGINES[1], 1.0, name)) else "does not hold"
        detail = f"{_values_of(ours, name)}; {_rates(by_rate)}; with engine {ENGINES[1]} it {bare}"
        yield Claim(text, holds(ours), detail)


def _values_of(found: Mapping[int, float], name: str) -> str:
    places = (5, 8, 11)
    texts = [f"{found[p]:.1%}" if name == "effective" else f"{found[p]:,.1f} ms" for p in places]
    return f"{', '.join(map(_division, places))}: {', '.join(texts)}"


def _rates(by_rate: Mapping[float, bool]) -> str:
    held, not_held = ([f"{rate:g}" for rate, holds in by_rate.items() if holds is wanted] for wanted in (True, False))
    if not held:
        return f"at none of {', '.join(not_held)} times the trace's rate"
    return f"holds at {', '.join(held)} times the trace's rate" + (
        f", not at {', '.join(not_held)}" if not_held else ""
    )


def _parameters(points: Points) -> Iterator[str]:
    own = points[ENGINES[0], 1.0, 8]
    yield (
        f"request rate: the trace's own, at which 8P+8D serves {own.effective:.1%}; also tried: "
        f"{', '.join(f'{speedup:g}' for speedup in SPEEDUPS if speedup != 1)} times it"
    )
    yield f"engine: {ENGINES[0]}; also tried: {ENGINES[1]}"
    yield f"TBT of a request: {TBT_METRICS['tbt_ms']}, which its SLO judges too; routing: kvcache-centric"


def _notes(points: Points, slowed: Mapping[tuple[float, int], Point], patient: float) -> Iterator[str]:
    first, middle, last = (points[ENGINES[0], 1.0, prefill] for prefill in (5, 8, 11))
    yield (
        f"mean TBT rises from {first.tbt_ms:.1f} to {last.tbt_ms:.1f} ms here, from 31.5 to 58.5 ms there: at this "
        f"rate five decode nodes hold {last.decode_batch:.1f} sequences each, and a step of so few costs the A800 "
        "preset little more than a step of one"
    )
    slope, floor = published_slope(points)
    yield (
        f"the seven published TBTs lie near {floor:.1f} ms + {slope:.1f} ms for each sequence in a node's batch (the "
        f"trace's answers a second x TBT / decode nodes). Figure 14 of the same paper has {_figure_14_slope():.2f} ms "
        f"for a sequence of this trace's {MEAN_TOKENS:,} tokens, so something other than decode steps takes that time "
        "there"
    )
    enough = [extra for extra in SLOWER_MS if _slowed_falls(slowed, extra)]
    if enough:
        yield (
            f"experiment, nothing else changed: with {enough[0]:g} ms more a sequence 11P+5D falls too, to "
            f"{slowed[enough[0], 11].effective:.1%}, its mean TBT {slowed[enough[0], 11].tbt_ms:.1f} ms"
        )
    yield (
        f"the plateau is {middle.effective:.1%} high, and {patient:.1%} if the gap from first to second token is not "
        "counted (--first-gap exclude): what is lost there are very short answers after that gap"
    )
    yield (
        "TTFT there has scheduling, transfer and load in it (figures 13 and 14), which for this trace's mean prompt "
        f"are about {_besides_prefill_s():.2f} s; ours ends with the prefill, beside which the KVCache is sent"
    )


def _figure_14_slope() -> float:
    """What a sequence of the trace's mean prompt adds to a decode step in figure 14 [ms]."""
    decode = f25_f14.PUBLISHED[0]["decode"]
    tokens = f25_f14.LENGTHS[-1] - f25_f14.LENGTHS[0]
    return 1e3 * (decode[-1] - decode[0]) / f25_f14.STEPS / tokens * MEAN_TOKENS


def _besides_prefill_s() -> float:
    """What figure 14 shows beside the prefill of a prompt of 16k tokens [s]."""
    parts = f25_f14.PUBLISHED[0]
    return sum(parts[part][1] for part in ("schedule", "transfer", "load"))


def published_slope(points: Points) -> tuple[float, float]:
    """[ms a sequence] and [ms] of a line through the published TBTs over the batch that each implies."""
    import numpy as np

    ours = points[ENGINES[0], 1.0, 8]
    tokens_per_ms = ours.decode_batch * (NODES - 8) / ours.step_ms
    batch = [tokens_per_ms * tbt / (NODES - prefill) for prefill, tbt in zip(PREFILL, PUBLISHED["tbt_ms"], strict=True)]
    slope, floor = np.polyfit(batch, PUBLISHED["tbt_ms"], 1)
    return float(slope), float(floor)


def _slowed_falls(slowed: Mapping[tuple[float, int], Point], extra: float) -> bool:
    return falls({p: slowed[extra, p].effective for p in SLOWED}, 11)


def _sheet(points: Points) -> Sheet:
    rows = []
    for name, published in PUBLISHED.items():
        show = (lambda value: f"{value:.1%}") if name == "effective" else _ms
        rows.append((f"{WORDS[name]}, published", *map(show, published)))
        rows += [
            (f"{WORDS[name]}, {engine}", *map(show, _series(points, engine, 1.0, name).values())) for engine in ENGINES
        ]
    rows.append(("mean of all gaps, mooncake-a800", *map(_ms, _series(points, ENGINES[0], 1.0, "tpot_ms").values())))
    return Sheet("By division of the nodes, times in ms", ("", *map(_division, PREFILL)), tuple(rows), ())


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _slowed_sheet(points: Points, slowed: Mapping[tuple[float, int], Point]) -> Sheet:
    places = SLOWED
    rows = [("0 ms", *(cell for p in places for cell in _cells(points[ENGINES[0], 1.0, p])))]
    rows += [(f"{extra:g} ms", *(cell for p in places for cell in _cells(slowed[extra, p]))) for extra in SLOWER_MS]
    headers = ("more a sequence", *(cell for p in places for cell in (_division(p), "TBT, ms")))
    return Sheet("Experiment: effective requests and mean TBT with dearer decode steps", headers, tuple(rows), ())


def _cells(each: Point) -> tuple[str, str]:
    return f"{each.effective:.1%}", f"{each.tbt_ms:.1f}"


def _values(points: Points, slowed: Mapping[tuple[float, int], Point]) -> Iterator[dict[str, Any]]:
    for (engine, speedup, prefill), each in points.items():
        yield {"engine": engine, "speedup": speedup, "prefill_nodes": prefill, **each._asdict()}
    for (_, prefill), each in slowed.items():
        yield {"engine": ENGINES[0], "speedup": 1.0, "prefill_nodes": prefill, **each._asdict()}


# ---- the figure


def _draw(points: Points) -> Any:
    figure, panels = plots.figure(columns=3)
    labels = {"effective": "effective requests, %", "ttft_ms": "mean TTFT, s", "tbt_ms": "mean TBT, ms"}
    scale = {"effective": 100.0, "ttft_ms": 1e-3, "tbt_ms": 1.0}
    for axes, (name, published) in zip(panels, PUBLISHED.items(), strict=True):
        axes.errorbar(
            PREFILL, [scale[name] * value for value in published], yerr=scale[name] * READING_ERROR[name],
            color=plots.BOUND, linestyle="", marker="x", capsize=2, linewidth=0.8, label="published (by eye)",
        )  # fmt: skip
        for i, engine in enumerate(ENGINES):
            values = [scale[name] * value for value in _series(points, engine, 1.0, name).values()]
            axes.plot(PREFILL, values, marker=plots.marker(i), label=f"ours, engine {engine}", **plots.series(i))
        axes.set_xlabel(f"prefill nodes of {NODES}")
        axes.set_ylabel(labels[name])
        axes.set_ylim(bottom=0)
    panels[0].legend(loc="lower center")
    return figure
