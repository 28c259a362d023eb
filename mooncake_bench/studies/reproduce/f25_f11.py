"""FAST'25 figure 11: on how many prefill nodes the hottest keys are held, over time."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mooncake_bench.report import plots
from mooncake_bench.report.sheets import Sheet
from mooncake_bench.results.words import DASH
from mooncake_bench.sim.setup import Setup
from mooncake_bench.studies import replays
from mooncake_bench.studies.reproduce.outcome import Claim, Result, Row

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mooncake_bench.sim.cluster import Cluster
    from mooncake_bench.studies.reproduce.outcome import Used
    from mooncake_bench.studies.reproduce.sources import Traces
    from mooncake_bench.trace import Trace

ID = "F25-F11"
TITLE = "replicas of the hottest keys over time"
SOURCE = "FAST'25, figure 11"

NAMES = ("conversation", "toolagent", "synthetic")
RANKS = (10, 100, 1_000, 10_000)  # of the keys, by the requests that have them
TOP = 100
PERIOD_MS = 30_000.0
NODES = 8  # prefill nodes: as many replicas as the figure shows at most
NEARLY = 7  # nearly every node: all but one
PS_PER_S = 1e12


@dataclass(frozen=True)
class Point:
    """One setting."""

    words: str
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def setup(self) -> Setup:
        return Setup(cluster="8P+8D", **self.changes)


POINTS = (
    Point("as judged"),
    Point("threshold 1", {"policy": "kvcache-centric:threshold=1"}),
    Point("pools of 20,000 blocks", {"pool_blocks": 20_000}),
    Point("pools of 50,000 blocks", {"pool_blocks": 50_000}),
)


class Watched(NamedTuple):
    """Replicas at each look at the pool, up to the last arrival; a key counts where it can be fetched from."""

    time_s: list[float]
    ranked: list[list[int]]  # of the keys of RANKS, where the trace has so many
    top: list[float]  # mean over the TOP hottest

    @property
    def last(self) -> list[int]:
        return self.ranked[-1]


class Measured(NamedTuple):
    """One trace: how many requests have each key of RANKS, and what was seen at each point."""

    trace: Trace
    uses: list[int]
    watched: list[Watched]

    @property
    def judged(self) -> Watched:
        return self.watched[0]


def hottest(trace: Trace) -> tuple[list[int], list[int]]:
    """Block ids by the number of requests that have them, the earlier first among equals; and these numbers."""
    ids, first, uses = np.unique(trace.block_ids, return_index=True, return_counts=True)
    order = np.lexsort((first, -uses))
    return ids[order].tolist(), uses[order].tolist()


def watch(trace: Trace, setup: Setup) -> Watched:
    """Replay, and count the replicas of the hottest keys every 30 s."""
    keys, _ = hottest(trace)
    ranked = [keys[rank - 1] for rank in RANKS if rank <= len(keys)]
    seen = Watched([], [], [])
    end_ps = float(trace.arrival_ms[-1]) * 1e9 / setup.speedup

    def look(cluster: Cluster, now_ps: int) -> None:
        if now_ps <= end_ps:
            index = cluster.pool.index
            counts = _replicas(index.holders, index.promised, ranked + keys[:TOP])
            seen.time_s.append(now_ps / PS_PER_S)
            seen.ranked.append(counts[: len(ranked)])
            seen.top.append(float(np.mean(counts[len(ranked) :])))

    replays.whole(trace, setup, watch=(PERIOD_MS, look))
    return seen


def _replicas(holders: Mapping[int, int], promised: Mapping[int, int], keys: list[int]) -> list[int]:
    """On how many instances each key is ready."""
    return [(holders.get(key, 0) & ~promised.get(key, 0)).bit_count() for key in keys]


def run(traces: Traces) -> Result:
    """Watch the pool under kvcache-centric routing, the one that copies, on every trace at hand."""
    found = {name: traces.get(name) for name in NAMES}
    at_hand = {name: trace for name, (trace, _) in found.items() if trace is not None}
    work = [(trace, point.setup) for trace in at_hand.values() for point in POINTS]
    seen = iter(replays.spread(watch, work))
    measured = {
        name: Measured(
            trace,
            [uses for rank, uses in enumerate(hottest(trace)[1], start=1) if rank in RANKS],
            [next(seen) for _ in POINTS],
        )
        for name, trace in at_hand.items()
    }
    return Result(
        rows=tuple(_rows(measured, found)),
        claims=tuple(_claims(measured)),
        used=tuple(used for _, used in found.values()),
        parameters=tuple(_parameters()),
        notes=tuple(_notes(measured, found)),
        sheets=(_sheet(measured),),
        draw=partial(_draw, measured) if measured else None,
        measured=tuple(_values(measured)),
    )


# ---- what to say


def _rows(measured: Mapping[str, Measured], found: Mapping[str, tuple[Trace | None, Used]]) -> Iterator[Row]:
    """What the text says of two traces, "almost every prefill node"; the curves themselves were not read."""
    for name in NAMES[:2]:
        ours = measured[name].judged.top[-1] if name in measured else None
        what = f"replicas of the top {TOP}, at the end"
        yield Row(name, what, NODES, ours, "nodes", reading_error=NODES - NEARLY, stand_in=found[name][1].stand_in)


def _claims(measured: Mapping[str, Measured]) -> Iterator[Claim]:
    for name in NAMES[:2]:
        text = f"{name}: the top {TOP} keys end on nearly every prefill node"
        if name not in measured:
            yield Claim(text, None, "no trace at hand")
            continue
        ends = [f"{each.top[-1]:.1f} {point.words}" for point, each in zip(POINTS, measured[name].watched, strict=True)]
        words = f"mean of them at the end, of {NODES}: {', '.join(ends)}; nearly every: {NEARLY} and more"
        yield Claim(text, measured[name].judged.top[-1] >= NEARLY, words)
    text = "synthetic: its top keys have fewer replicas than those of the other two"
    if len(measured) < len(NAMES):
        yield Claim(text, None, f"only {', '.join(measured) or 'no trace'} at hand")
        return
    peaks = {name: max(each.judged.top) for name, each in measured.items()}
    words = ", ".join(f"{name} {peak:.1f}" for name, peak in peaks.items())
    last = ", ".join(f"{name} {each.judged.top[-1]:.1f}" for name, each in measured.items())
    yield Claim(text, peaks["synthetic"] < min(peaks[name] for name in NAMES[:2]),
                f"most replicas at any time, mean of the top {TOP}: {words}; at the end: {last}")  # fmt: skip


def _parameters() -> Iterator[str]:
    yield "threshold of Algorithm 1, which the paper does not give: 4; also tried: 1"
    yield "pool of a prefill node: the preset's 5,859 blocks (3 M tokens); also tried: 20,000 and 50,000"
    yield (
        f"hot: by the number of requests that have the key, over the whole trace; a replica counts where it is ready; "
        f"[8P+8D], sampled every {PERIOD_MS / 1e3:g} s, up to the last arrival"
    )
    yield "keys are the traces' blocks of 512 tokens; the paper's store has blocks of 256"


def _notes(measured: Mapping[str, Measured], found: Mapping[str, tuple[Trace | None, Used]]) -> Iterator[str]:
    for name, (_, used) in found.items():
        if used.stand_in:
            yield f"{name}: a stand-in, made to resemble lengths and hit ratios, not how popular single keys are"
    yield "the curves were not read off the figure: rows are what the text says of them"
    for name, each in measured.items():
        if name != "synthetic" and each.judged.top[-1] < NEARLY and len(each.uses) > 1:
            ends = [
                f"{watched.top[-1]:.1f} ({point.words})" for point, watched in zip(POINTS, each.watched, strict=True)
            ]
            yield (
                f"{name}: experiment: its {TOP}th key is in {each.uses[1]} of {len(each.trace):,} requests, so that a "
                f"small pool evicts its copies in between; at the end the top {TOP} have a mean of {', '.join(ends)}"
            )


def _sheet(measured: Mapping[str, Measured]) -> Sheet:
    rows = []
    for name, each in measured.items():
        rows.append((f"{name}, requests", *_filled(each.uses), ""))
        for point, watched in zip(POINTS, each.watched, strict=True):
            rows.append((f"  {point.words}, at the end", *_filled(watched.last), f"{watched.top[-1]:.1f}"))
        most = [max(counts) for counts in zip(*each.judged.ranked, strict=True)]
        rows.append(("  as judged, most ever", *_filled(most), f"{max(each.judged.top):.1f}"))
    headers = ("", *(f"{rank:,}th" for rank in RANKS), f"top {TOP}")
    note = f"first line: requests that have the key; then its replicas, of {NODES}; top {TOP}: mean of the hottest"
    return Sheet("Replicas of the hottest keys", headers, tuple(rows), (note,))


def _filled(values: list[int]) -> list[str]:
    """A cell a rank; a dash where the trace has fewer keys."""
    return [f"{value:,}" for value in values] + [DASH] * (len(RANKS) - len(values))


def _values(measured: Mapping[str, Measured]) -> Iterator[dict[str, Any]]:
    for name, each in measured.items():
        for point, watched in zip(POINTS, each.watched, strict=True):
            for time_s, counts, top in zip(watched.time_s, watched.ranked, watched.top, strict=True):
                row: dict[str, Any] = {"trace": name, "setting": point.words, "time_s": time_s}
                for place, rank in enumerate(RANKS):
                    row[f"replicas_of_key_{rank}"] = counts[place] if place < len(counts) else None
                yield row | {f"mean_replicas_of_top_{TOP}": top}


# ---- the figure


def _draw(measured: Mapping[str, Measured]) -> Any:
    """A panel a trace, a line a rank, as in the paper."""
    figure, panels = plots.figure(columns=len(measured))
    for axes, (name, each) in zip(panels, measured.items(), strict=True):
        minutes = [time / 60 for time in each.judged.time_s]
        for place, counts in enumerate(zip(*each.judged.ranked, strict=True)):
            axes.plot(minutes, counts, label=f"{RANKS[place]:,}th key", drawstyle="steps-post", **plots.series(place))
        axes.plot(minutes, each.judged.top, label=f"mean of top {TOP}", color=plots.BOUND, linewidth=0.9)
        if name in NAMES[:2]:
            axes.axhspan(NEARLY, NODES, color=plots.FAINT, alpha=0.25, linewidth=0)
        axes.set_ylim(0, NODES + 0.3)
        axes.set_xlabel("minutes")
        axes.set_title(f"{name} ({each.trace.name})", fontsize="small")
    panels[0].set_ylabel("replicas")
    panels[-1].axhspan(0, 0, color=plots.FAINT, alpha=0.25, label='published: "almost every"')  # for the legend
    panels[-1].legend(loc="upper left", fontsize="x-small")
    return figure
