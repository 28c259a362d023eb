"""FAST'25 figure 10: what ten prefill nodes find in their own caches, and in one that they share."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mooncake_bench.cache import lru_curve
from mooncake_bench.errors import NothingToConclude
from mooncake_bench.report import plots
from mooncake_bench.report.sheets import Sheet
from mooncake_bench.results.words import DASH
from mooncake_bench.sim.setup import Setup
from mooncake_bench.studies import replays
from mooncake_bench.studies.reproduce.outcome import Claim, Result, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from collections.abc import Set as AbstractSet

    from mooncake_bench.sim.replay import Replay
    from mooncake_bench.studies.reproduce.outcome import Used
    from mooncake_bench.studies.reproduce.sources import Traces
    from mooncake_bench.trace import Trace

ID = "F25-F10"
TITLE = "hit ratio and prefill time of local caches and of one shared cache"
SOURCE = "FAST'25, figure 10"

CLUSTER = "10P+0D"
POOL_TOKENS = 3_000_000  # of a node
HITS = {"conversation": 2.22, "toolagent": 1.38, "synthetic": 2.36}  # shared over local
TIMES = {"conversation": 0.76, "toolagent": 0.74, "synthetic": 0.52}
NAMES = {"conversation": "conversation", "toolagent": "tool&agent", "synthetic": "synthetic"}


class Case(NamedTuple):
    """One way to run the nodes."""

    scope: str
    policy: str
    pools: int = 1  # times a node's tokens

    @property
    def words(self) -> str:
        policy, _, parameter = self.policy.partition(":threshold=")
        what = f"threshold {parameter}" if parameter else policy
        if self.pools != 1:
            what = f"{self.pools} x the pool"
        return f"{'shared' if self.scope == 'global' else 'local'}: {what}"


SHARED = Case("global", "kvcache-centric")
CHOSEN = Case("local", "load-balancing")
AWARE, LARGE = Case("local", "cache-aware"), Case("local", CHOSEN.policy, 10)
LOCAL = (CHOSEN, AWARE, LARGE)
EAGER = Case("global", "kvcache-centric:threshold=1")


class Point(NamedTuple):
    """What one case gave."""

    hit_ratio: float  # prefix tokens found, fetched ones included, over prompt tokens
    gpu_ms: float  # of a prefill, mean


Points = dict[str, dict[Case, Point]]  # by trace
Whole = dict[
    str, tuple[float, float]
]  # by trace: hit ratio of one LRU cache for all requests, of a node's size and ten's


def run(traces: Traces) -> Result:
    """Three traces with answers of one token, on ten prefill nodes with pools of three million tokens."""
    found = {name: traces.get(name) for name in HITS}
    points = {name: _measure(trace) for name, (trace, _) in found.items() if trace is not None}
    if not points:
        raise NothingToConclude(f"{ID}: no trace at hand")
    whole = {name: _whole(trace) for name, (trace, _) in found.items() if trace is not None}
    used = {name: each for name, (_, each) in found.items()}
    return Result(
        rows=tuple(_rows(points, used)),
        claims=tuple(_claims(points)),
        used=tuple(used.values()),
        parameters=tuple(_parameters()),
        notes=tuple(_notes(points, whole, used)),
        sheets=(_sheet(points),),
        draw=lambda: _draw(points, {name for name, each in used.items() if each.stand_in}),
        measured=tuple(
            {"trace": name, "case": case.words, **point._asdict()}
            for name, each in points.items()
            for case, point in each.items()
        ),
    )


# ---- measuring


def _measure(trace: Trace) -> dict[Case, Point]:
    cases = (SHARED, *LOCAL, EAGER)
    short = replace(trace, output_tokens=np.ones(len(trace), np.int64))
    setups = [_setup(case, trace.block_tokens) for case in cases]
    return dict(zip(cases, replays.each(short, setups, point), strict=True))


def _whole(trace: Trace) -> tuple[float, float]:
    curve = lru_curve(trace, touch_order="reverse")
    sizes = [pools * POOL_TOKENS // trace.block_tokens for pools in (1, 10)]
    small, large = (curve.prefix_tokens[curve.capacities.searchsorted(sizes, side="right") - 1] / curve.tokens).tolist()
    return small, large


def _setup(case: Case, block_tokens: int) -> Setup:
    blocks = case.pools * POOL_TOKENS // block_tokens
    return Setup(cluster=CLUSTER, policy=case.policy, pool_scope=case.scope, pool_blocks=blocks)


def point(replay: Replay) -> Point:
    """Both numbers of the figure, over all requests."""
    hits, prompts = replay.columns["hit_tokens"].sum(), replay.trace.input_tokens.sum()
    return Point(float(hits / prompts), float(replay.columns["prefill_ps"].mean()) / 1e9)


# ---- what to say


def _gain(each: Mapping[Case, Point], local: Case, shared: Case = SHARED) -> float | None:
    return each[shared].hit_ratio / each[local].hit_ratio if each[local].hit_ratio else None


def _time(each: Mapping[Case, Point], local: Case, shared: Case = SHARED) -> float:
    return each[shared].gpu_ms / each[local].gpu_ms


def _rows(points: Points, used: Mapping[str, Used]) -> Iterator[Row]:
    for what, published, ratio in (
        ("hit ratio, shared over local", HITS, _gain),
        ("prefill time, shared over local", TIMES, _time),
    ):
        for name, value in published.items():
            ours = ratio(points[name], CHOSEN) if name in points else None
            yield Row(NAMES[name], what, value, ours, stand_in=used[name].stand_in)


def _claims(points: Points) -> Iterator[Claim]:
    least = {
        name: min(gain for case in (CHOSEN, AWARE) if (gain := _gain(each, case))) for name, each in points.items()
    }
    most = {name: max(_time(each, case) for case in (CHOSEN, AWARE)) for name, each in points.items()}
    yield Claim(
        "a shared cache finds more than local ones",
        all(gain > 1 for gain in least.values()),
        f"at least {_named(least, '{:.2f}')} times as much, whichever way local requests are routed",
    )
    yield Claim(
        "and takes less prefill time",
        all(part < 1 for part in most.values()),
        f"at most {_named(most, '{:.2f}')} of it, whichever way local requests are routed",
    )
    yield _order(points, "tool&agent gains least, synthetic most", _ranked)
    yield _order(points, "prefill time falls most, nearly by half, on synthetic", _halved)


def _named(values: Mapping[str, float], form: str) -> str:
    return ", ".join(f"{form.format(value)} ({NAMES[name]})" for name, value in values.items())


def _order(points: Points, text: str, holds: Callable[[Points, Case], bool]) -> Claim:
    if len(points) < len(HITS):
        return Claim(text, None, f"only {', '.join(NAMES[name] for name in points)} at hand")
    by_case = {case: holds(points, case) for case in LOCAL}
    held, not_held = (
        [case.words.removeprefix("local: ") for case, each in by_case.items() if each is wanted]
        for wanted in (True, False)
    )
    detail = f"holds against local caches with: {', '.join(held) or 'none'}"
    return Claim(text, by_case[CHOSEN], detail + (f"; not with: {', '.join(not_held)}" if not_held else ""))


def _ranked(points: Points, case: Case) -> bool:
    gains = {name: _gain(each, case) or 0.0 for name, each in points.items()}
    return gains["toolagent"] < gains["conversation"] < gains["synthetic"]


def _halved(points: Points, case: Case) -> bool:
    parts = {name: _time(each, case) for name, each in points.items()}
    return parts["synthetic"] == min(parts.values()) and 0.4 <= parts["synthetic"] <= 0.6


def _parameters() -> Iterator[str]:
    yield (
        "routing over local caches, which the paper does not say; judged here: load-balancing; also tried: cache-aware"
    )
    yield "routing over the shared cache: kvcache-centric with a threshold of 4; also tried: 1"
    yield (
        f"{CLUSTER}, the traces' own rate; a node's pool has {POOL_TOKENS // 10**6} M tokens; also tried: ten times "
        "that"
    )


def _notes(points: Points, whole: Whole, used: Mapping[str, Used]) -> Iterator[str]:
    for name, trace in used.items():
        if trace.stand_in:
            yield f"{NAMES[name]}: a stand-in, so its numbers say nothing about the published trace"
    for name, each in points.items():
        yield from _bracket(name, each)
    yield (
        "experiment: what local caches find is decided by routing alone (the two local rows above); a tenfold pool "
        f"adds little: {_tenfold(points)}"
    )
    gains = {name: large / small for name, (small, large) in whole.items() if small}
    if gains:
        yield (
            "another reading: one LRU cache that sees every request, as in figure 9, gains this when it grows from one "
            f"node's tokens to ten's: {_named(gains, '{:.2f}')}; the paper does not say that a local cache was "
            "measured so"
        )


def _bracket(name: str, each: Mapping[Case, Point]) -> Iterator[str]:
    """Where the published gain lies between the two ends of local routing."""
    blind, aware = _gain(each, CHOSEN), _gain(each, AWARE)
    if blind is None or aware is None:
        return
    local = each[SHARED].hit_ratio / HITS[name]
    where = "between" if aware <= HITS[name] <= blind else "outside"
    yield (
        f"{NAMES[name]}: the published gain of {HITS[name]} lies {where} what load-balancing ({blind:.2f}) and "
        f"cache-aware ({aware:.2f}) give here; it would need local hits of {local:.3f}, which are "
        f"{each[CHOSEN].hit_ratio:.3f} and {each[AWARE].hit_ratio:.3f}"
    )


def _tenfold(points: Points) -> str:
    return ", ".join(
        f"{NAMES[name]} {each[CHOSEN].hit_ratio:.3f} becomes {each[LARGE].hit_ratio:.3f}"
        for name, each in points.items()
    )


def _sheet(points: Points) -> Sheet:
    cases = (SHARED, EAGER, *LOCAL)
    rows = [(case.words, *(cell for name in HITS for cell in _cells(points.get(name), case))) for case in cases]
    headers = ("cache and routing", *(cell for name in HITS for cell in (NAMES[name], "ms")))
    return Sheet(
        "Hit ratio (tokens) and mean prefill time",
        headers,
        tuple(rows),
        ("shared: nodes fetch from each other, by kvcache-centric routing",),
    )


def _cells(each: Mapping[Case, Point] | None, case: Case) -> tuple[str, str]:
    return (DASH, DASH) if each is None else (f"{each[case].hit_ratio:.3f}", f"{each[case].gpu_ms:,.0f}")


# ---- the figure


def _draw(points: Points, stand_ins: AbstractSet[str]) -> Any:
    figure, panels = plots.figure(columns=2)
    for axes, published, ratio, label in (
        (panels[0], HITS, _gain, "hit ratio, shared / local"),
        (panels[1], TIMES, _time, "prefill time, shared / local"),
    ):
        names = list(published)
        for i, case in enumerate((CHOSEN, AWARE)):
            bars = [(place, ratio(points[name], case) or 0.0) for place, name in enumerate(names) if name in points]
            axes.bar([place + 0.3 * (i - 0.5) for place, _ in bars], [value for _, value in bars], 0.28,
                     color=plots.PALETTE[i], label=f"local: {case.policy}")  # fmt: skip
        axes.plot(range(len(names)), list(published.values()), color=plots.BOUND, linestyle="", marker="x",
                  markersize=6, label="published")  # fmt: skip
        axes.axhline(1, color=plots.FAINT, linestyle=":", linewidth=0.9)
        labels = [NAMES[name] + ("\n(stand-in)" if name in stand_ins else "") for name in names]
        axes.set_xticks(range(len(names)), labels)
        axes.grid(visible=False, axis="x")
        axes.set_ylabel(label)
    panels[0].legend(loc="upper center")
    return figure
