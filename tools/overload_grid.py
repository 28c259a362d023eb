"""What admission does under overload, over a grid of speedups, SLOs and decode memories, as Markdown.

    python tools/overload_grid.py TRACE --cluster 6P+4D --speedup 3 --ttft 30s --tbt 35ms --td ewma,5s,10s

For every cell of the grid: requests rejected, requests completed within their SLOs, and how the loads of both pools
move together, under accept-all, baseline, early and predictive; then the share of the grid where the published order
holds (arXiv 2407.00079, table 3: baseline rejects most, predictive least), and where goodput is ordered the other way.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mooncake_bench.errors import BenchError
from mooncake_bench.results import Run
from mooncake_bench.results.records import COMPLETED, Records
from mooncake_bench.results.timeline import timeline
from mooncake_bench.sim.replay import run as simulate
from mooncake_bench.sim.setup import Setup
from mooncake_bench.trace import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from mooncake_bench.sim.replay import Replay
    from mooncake_bench.trace import Trace

    Floats = NDArray[np.float64]

STEP = 1.02  # each policy rejects at least 2 % more than the next
RAMP = 0.1  # share of the arrival span left out of the load statistics: both pools fill up from empty
ANTI_PHASE = -0.1  # a correlation of the loads below this is more than noise
CALMER = 0.9  # predictive's prefill load varies by at most this share of early's
DAMPED = (
    f"early's loads have a correlation below {ANTI_PHASE:g}; predictive's is higher, the standard deviation of its "
    f"prefill load is at most {CALMER:g} of early's, and that of its decode load is not above early's"
)
PRESET = "preset"
# Which TBT of a request its SLO judges, and whether the first gap (transfer, wait, first step) belongs to it.
READINGS = {
    f"{metric} {word}": (metric, gap)
    for metric in ("tail10", "mean")
    for word, gap in (("with first gap", "include"), ("without", "exclude"))
}
FIRST_READING = next(iter(READINGS))


class Cell(NamedTuple):
    """One point of the grid, each value as it was written."""

    cluster: str
    vram: str  # tokens of a decode instance, or "preset"
    speedup: str
    ttft: str
    tbt: str

    def setup(self, policy: str, max_requests: int | None) -> Setup:
        """The setup of one policy here. Raises SetupError for a value that is none."""
        values: dict[str, Any] = {"speedup": self.speedup, "slo_ttft_ms": self.ttft, "slo_tbt_ms": self.tbt}
        vram: Any = None if self.vram == PRESET else self.vram
        return Setup(cluster=self.cluster, vram_tokens=vram, policy=policy, max_requests=max_requests, **values)


CELL_HEADS = ["cluster", "VRAM tokens", "speedup", "TTFT", "TBT"]


class Outcome(NamedTuple):
    """What one policy did in one cell."""

    offered: int
    fates: int  # equal for two replays in which every request met the same end
    rejected: int
    at_decode: int
    within: Mapping[str, int]  # completed within both SLOs, by reading
    correlation: float | None
    prefill_sd: float
    decode_sd: float
    decode_mean: float


class Chain(NamedTuple):
    """Three policies that table 3 orders: rejected first > second > third."""

    label: str
    specs: tuple[str, str, str]


def judged(replay: Replay, **changes: object) -> dict[str, float | int | None]:
    """Metrics of a replay whose setup is read differently (SLOs and warm-up judge a run, they do not steer it)."""
    run = Run.from_replay(replace(replay, setup=replace(replay.setup, **changes)))  # type: ignore[arg-type]
    return {name: value.value for name, value in run.metrics().items()}


def outcome(replay: Replay) -> Outcome:
    """What a table shows of one replay."""
    read = {name: judged(replay, tbt_metric=tbt, first_gap=gap) for name, (tbt, gap) in READINGS.items()}
    counts = read[FIRST_READING]
    loads = judged(replay, warmup_ms=RAMP * float(replay.columns["arrival_ps"].max()) / 1e9)
    return Outcome(
        offered=int(counts["offered_requests"] or 0),
        fates=hash(replay.columns["status"].tobytes()),
        rejected=int(counts["rejected_requests"] or 0),
        at_decode=int(counts["rejected_decode_requests"] or 0),
        within={name: int(values["good_requests"] or 0) for name, values in read.items()},
        correlation=loads["load_correlation"],
        prefill_sd=float(loads["std_prefill_load_ratio"] or 0),
        decode_sd=float(loads["std_decode_load_ratio"] or 0),
        decode_mean=float(loads["mean_decode_load_ratio"] or 0),
    )


class Player:
    """Replays policies in cells; accept-all, which no SLO steers, once for all SLOs."""

    def __init__(self, trace: Trace, max_requests: int | None, hardware: Mapping[str, str]) -> None:
        """``hardware``: the setup's node and engine."""
        self._trace = trace
        self._max_requests = max_requests
        self._hardware = hardware
        self._unsteered: tuple[Cell, Replay] | None = None

    def accept_all(self, cell: Cell) -> Outcome:
        """What happens when nothing is rejected."""
        setup = self._setup(cell, "accept-all")
        anchor = cell._replace(ttft="", tbt="")
        if self._unsteered is None or self._unsteered[0] != anchor:
            self._unsteered = anchor, simulate(self._trace, setup)
        return outcome(replace(self._unsteered[1], setup=setup))

    def replay(self, cell: Cell, policy: str) -> Replay:
        """One admission in one cell."""
        return simulate(self._trace, self._setup(cell, policy))

    def play(self, cell: Cell, policy: str) -> Outcome:
        """What one admission does."""
        return outcome(self.replay(cell, policy))

    def _setup(self, cell: Cell, policy: str) -> Setup:
        return replace(cell.setup(policy, self._max_requests), **self._hardware)


def chains(tds: Sequence[str], recheck: bool) -> list[Chain]:
    """The orders to look for: one a decode time that predictive assumes, and one that keeps the decode-side check."""
    found = [Chain(f"t_d {td}", ("baseline", "early", f"predictive:td={td}")) for td in tds]
    if recheck:
        found.append(Chain("recheck", ("baseline", "early:recheck=true", "predictive:recheck=true")))
    return found


def specs_of(orders: Iterable[Chain]) -> list[str]:
    """Every policy to replay, once, in the order of the tables."""
    return list(dict.fromkeys(spec for chain in orders for spec in chain.specs))


def rejects_in_order(first: Outcome, second: Outcome, third: Outcome) -> bool:
    """Rejected: first > second > third, by steps of at least 2 %."""
    return _above(first.rejected, second.rejected) and _above(second.rejected, third.rejected)


def _above(more: int, less: int) -> bool:
    return more > less and more >= STEP * less


def completes_in_order(reading: str, *outcomes: Outcome) -> bool:
    """Completed within the SLOs: first < second < third."""
    first, second, third = (each.within[reading] for each in outcomes)
    return first < second < third


def swings(early: Outcome, predictive: Outcome) -> bool:
    """Early's loads are in anti-phase, and predictive's are damped: see :data:`DAMPED`."""
    if early.correlation is None or predictive.correlation is None:
        return False
    calmer = predictive.prefill_sd <= CALMER * early.prefill_sd and predictive.decode_sd <= early.decode_sd
    return early.correlation < ANTI_PHASE and predictive.correlation > early.correlation and calmer


Grid = dict[Cell, dict[str, Outcome]]


def play_grid(player: Player, cells: Sequence[Cell], specs: Sequence[str], told: Callable[[str], None]) -> Grid:
    """Every policy in every cell."""
    grid: Grid = {}
    for number, cell in enumerate(cells, start=1):
        told(f"cell {number} of {len(cells)}: {' '.join(cell)}")
        grid[cell] = {"accept-all": player.accept_all(cell)} | {spec: player.play(cell, spec) for spec in specs}
    return grid


# ---- Markdown


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], words: int) -> Iterator[str]:
    """A Markdown table whose first ``words`` columns are text."""
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * words}{'---:|' * (len(heads) - words)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def short(spec: str) -> str:
    """A policy as a column head."""
    return spec.replace("predictive:td=", "pred. ").replace("predictive", "pred.").replace(":recheck=true", " +recheck")


def alike(outcomes: Mapping[str, Outcome]) -> bool:
    """True when every admission turned the same requests away."""
    return len({each.fates for spec, each in outcomes.items() if spec != "accept-all"}) == 1


def counts_table(grid: Grid, specs: Sequence[str], reading: str) -> Iterator[str]:
    """Rejected requests (of them at decode), then those completed within both SLOs, of the cells that differ."""
    shown = ["accept-all", *specs]
    yield "Rejected requests (in brackets: at decode, their prefill wasted); accept-all rejects none:"
    yield ""
    rows = ([*cell, *(_rejected(each[spec]) for spec in specs)] for cell, each in grid.items())
    yield from table([*CELL_HEADS, *map(short, specs)], rows, len(CELL_HEADS))
    yield ""
    yield f"Completed within both SLOs (TBT of a request: {reading}):"
    yield ""
    rows = ([*cell, *(str(each[spec].within[reading]) for spec in shown)] for cell, each in grid.items())
    yield from table([*CELL_HEADS, *map(short, shown)], rows, len(CELL_HEADS))


def _rejected(each: Outcome) -> str:
    return f"{each.rejected} ({each.at_decode})" if each.at_decode else str(each.rejected)


def loads_table(grid: Grid, specs: Sequence[str]) -> Iterator[str]:
    """Correlation of both pools' loads over time, and their standard deviations."""
    yield "Loads over time, as correlation; standard deviation of prefill / decode load (below 0: anti-phase):"
    yield ""
    rows = ([*cell, *(_loads(each[spec]) for spec in specs)] for cell, each in grid.items())
    yield from table([*CELL_HEADS, *map(short, specs)], rows, len(CELL_HEADS))


def _loads(each: Outcome) -> str:
    correlation = "–" if each.correlation is None else f"{each.correlation:+.2f}"
    return f"{correlation}; {each.prefill_sd:.2f} / {each.decode_sd:.2f}"


def same_table(grid: Grid, reading: str) -> Iterator[str]:
    """The cells where it made no difference which admission ran."""
    yield f"Cells where every admission turns the same requests away (TBT of a request: {reading}):"
    yield ""
    heads = [*CELL_HEADS, "rejected", "within SLOs", "accept-all within", "mean decode load"]
    yield from table(heads, ([*cell, *_same(each, reading)] for cell, each in grid.items()), len(CELL_HEADS))


def _same(outcomes: Mapping[str, Outcome], reading: str) -> Iterator[str]:
    everyone, some = outcomes["accept-all"], outcomes["baseline"]
    yield from (str(some.rejected), str(some.within[reading]), str(everyone.within[reading]), f"{some.decode_mean:.2f}")


def shares_table(grid: Grid, orders: Sequence[Chain]) -> Iterator[str]:
    """In how many cells each order holds."""
    yield "Cells where rejected(baseline) > rejected(early) > rejected(predictive) by steps of ≥ 2 %;"
    yield "of these, where requests completed within both SLOs (good) are ordered the other way, by reading of the TBT."
    yield f"Swings damped: {DAMPED}."
    yield ""
    heads = ["predictive", "rejected in order", *(f"and good, {name}" for name in READINGS), "swings damped"]
    yield from table(heads, ([chain.label, *_shares(grid, chain)] for chain in orders), 1)


def _shares(grid: Grid, chain: Chain) -> Iterator[str]:
    trios = [tuple(each[spec] for spec in chain.specs) for each in grid.values()]
    ordered = [trio for trio in trios if rejects_in_order(*trio)]
    yield _share(len(ordered), len(grid))
    for reading in READINGS:
        yield _share(sum(completes_in_order(reading, *trio) for trio in ordered), len(grid))
    yield _share(sum(swings(early, predictive) for _, early, predictive in trios), len(grid))


def _share(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.0%})"


def document(grid: Grid, orders: Sequence[Chain], reading: str) -> Iterator[str]:
    """The whole answer, line by line."""
    specs = specs_of(orders)
    same = {cell: each for cell, each in grid.items() if alike(each)}
    differ = {cell: each for cell, each in grid.items() if cell not in same}
    offered = next(iter(grid.values()))["accept-all"].offered
    yield f"Cells: {len(grid)}, of {offered:,} requests each; in {len(differ)} of them the admissions differ."
    if same:
        yield from ("", *same_table(same, reading))
    if differ:
        yield from ("", *counts_table(differ, specs, reading), "", *loads_table(differ, specs))
    yield from ("", *shares_table(grid, orders))


# ---- how the loads swing

INTERVALS_MS = (100.0, 1_000.0, 10_000.0)  # between samples of the loads; the middle one measures the lag


def swing_tables(player: Player, cells: Sequence[Cell], specs: Sequence[str]) -> Iterator[str]:
    """Per cell, how far and how the loads swing, whatever the sampling interval, and how the lag compares."""
    heads = ["policy", "prefill load", "decode load", "mean TTFT", "mean decode time"]
    heads += [f"corr. at {interval / 1e3:g} s" for interval in INTERVALS_MS]
    heads += ["corr. with decode load a mean TTFT later"]
    for cell in cells:
        yield from ("", f"Swings in {' '.join(cell)} (from a tenth of the arrival span on):", "")
        yield from table(heads, ([short(spec), *_swing(player.replay(cell, spec))] for spec in specs), 1)


def _swing(replay: Replay) -> Iterator[str]:
    records, raw = Records.of(replay), replay.columns
    done = raw["status"] == COMPLETED
    ttft_ms = float((raw["first_token_ps"] - raw["arrival_ps"])[done].mean()) / 1e9
    decode_ms = float((raw["end_ps"] - raw["join_ps"])[done & (raw["join_ps"] >= 0)].mean()) / 1e9
    loads = [_loads_at(records, interval) for interval in INTERVALS_MS]
    lag = round(ttft_ms / INTERVALS_MS[1])
    prefill, decode = loads[1]
    yield from (f"{load.min():.2f} to {load.max():.2f}" for load in (prefill, decode))
    yield from (f"{ms / 1e3:.1f} s" for ms in (ttft_ms, decode_ms))
    yield from (_correlation(*pair) for pair in loads)
    yield _correlation(prefill[: max(0, len(prefill) - lag)], decode[lag:])


def _correlation(one: Floats, other: Floats) -> str:
    if len(one) < 3 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return "–"
    return f"{np.corrcoef(one, other)[0, 1]:+.2f}"


def _loads_at(records: Records, interval_ms: float) -> tuple[Floats, Floats]:
    """Prefill and decode load, sampled this often between the ramp and the last arrival."""
    sampled = timeline(records, interval_ms)
    time = sampled.column("time_ms").to_numpy()
    last = float(records.replay.columns["arrival_ps"].max()) / 1e9
    inside = (time >= RAMP * last) & (time <= last)
    prefill, decode = (sampled.column(f"{pool}_load_ratio").to_numpy()[inside] for pool in ("prefill", "decode"))
    return prefill, decode


# ---- the command


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", help="trace file, or the name of a bundled trace")
    lists = {
        "cluster": ("8P+8D", "clusters"),
        "vram": (PRESET, "KV capacities of a decode instance in tokens, or 'preset'"),
        "speedup": ("3", "arrival rates over the trace's own"),
        "ttft": ("30s", "TTFT SLOs"),
        "tbt": ("100ms", "TBT SLOs"),
        "td": ("ewma,5s,10s,15s", "decode times that predictive assumes"),
    }
    for name, (default, words) in lists.items():
        parser.add_argument(f"--{name}", default=default, help=f"{words}, separated by commas [default: {default}]")
    parser.add_argument("--recheck", action="store_true", help="also early and predictive with the decode-side check")
    parser.add_argument("--swings", action="store_true", help="instead, how the loads of early and predictive swing")
    parser.add_argument("--max-requests", type=int, default=None, help="replay only the first requests [default: all]")
    parser.add_argument("--node", default="a800", help="node preset or .toml file [default: a800]")
    parser.add_argument("--engine", default="mooncake-a800", help="engine, likewise [default: mooncake-a800]")
    parser.add_argument("--reading", choices=list(READINGS), default=FIRST_READING, help="TBT that is shown")
    return parser.parse_args(given)


def cells_of(given: argparse.Namespace) -> list[Cell]:
    """The grid, SLOs varying fastest."""
    axes = (given.cluster, given.vram, given.speedup, given.ttft, given.tbt)
    points = product(*(text.split(",") for text in axes))
    return [Cell(*point) for point in points]


def _player(options: argparse.Namespace) -> Player:
    return Player(load(options.trace), options.max_requests, {"node": options.node, "engine": options.engine})


def answer(options: argparse.Namespace) -> Iterator[str]:
    """The lines to print. Raises BenchError for bad input."""
    player, cells = _player(options), cells_of(options)
    orders = chains(options.td.split(","), options.recheck)
    if options.swings:
        yield from swing_tables(player, cells, specs_of(orders)[1:])
        return
    grid = play_grid(player, cells, specs_of(orders), lambda line: print(line, file=sys.stderr))
    yield from document(grid, orders, options.reading)


def main(given: Sequence[str] | None = None) -> int:
    """Print the grid. Returns the exit code."""
    try:
        print("\n".join(answer(arguments(given))).strip())
    except BenchError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
