"""Mean TTFT of four routers over that of kvcache-centric, against FAST'25 figure 5, as Markdown.

    python tools/routing_ratios.py TRACE
    python tools/routing_ratios.py TRACE --what-moves

[8P+8D], the A800 preset, no admission. Each request's hit is held against its infinite-cache prefix, which is worked
out here a second time, by walking the trace. ``--what-moves`` changes one setting at a time.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mooncake_bench.errors import BenchError
from mooncake_bench.results import Run
from mooncake_bench.sim.replay import run as simulate
from mooncake_bench.sim.setup import Setup
from mooncake_bench.trace import load
from mooncake_bench.trace.grid import coarse_grid_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from mooncake_bench.trace import Trace

    Ints = NDArray[np.int64]

CENTRIC = "kvcache-centric"
PUBLISHED = {"random": 6.40, "load-balancing": 1.72, "load-balancing:by=requests": 1.72, "cache-aware": 1.17}
BAR = 0.15  # how far from the published ratio a reproduction may be
COMPARED = ("random", "load-balancing", "cache-aware", CENTRIC)  # what the second table shows


class Result(NamedTuple):
    """One replay: its mean TTFT and what its cache found."""

    mean_ttft_ms: float
    hit_tokens: int
    above_ceiling: int  # requests whose hit exceeds what an infinite cache would have found


class Study:
    """Replays of one trace, and the infinite-cache prefix of its requests in arrival order."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.ceiling = infinite_cache(trace)

    def play(self, policy: str, **settings: Any) -> Result:
        """One replay with nothing rejected: requests are processed in arrival order."""
        run = Run.from_replay(simulate(self.trace, Setup(policy=policy, **settings)))
        hits = run.requests.column("hit_tokens").to_numpy()
        mean = run.metrics()["mean_ttft_ms"].value
        assert mean is not None, "every request completes"
        return Result(float(mean), int(hits.sum()), int((hits > self.ceiling).sum()))

    def seeds(self, policy: str, count: int, **settings: Any) -> list[Result]:
        """One replay a seed; one in all of a policy that draws nothing."""
        return [self.play(policy, seed=seed, **settings) for seed in range(count if policy == "random" else 1)]


def infinite_cache(trace: Trace) -> Ints:
    """Prompt tokens of each request that earlier ones have brought, up to its first new block. Shape (n,)."""
    seen: set[int] = set()
    found = np.zeros(len(trace), np.int64)
    blocks, offsets = trace.block_ids.tolist(), trace.block_offsets.tolist()
    for row in range(len(trace)):
        mine = blocks[offsets[row] : offsets[row + 1]]
        leading = next((place for place, block in enumerate(mine) if block not in seen), len(mine))
        found[row] = min(leading * trace.block_tokens, int(trace.input_tokens[row]))
        seen.update(mine)
    return found


def mean_ttft_ms(results: Sequence[Result]) -> float:
    """Mean over replays of the mean TTFT."""
    return float(np.mean([each.mean_ttft_ms for each in results]))


# ---- the ratios


def ratios(study: Study, seeds: int) -> Iterator[str]:
    """The table against the published ratios, and the check of the hits."""
    found = {policy: study.seeds(policy, seeds) for policy in (*PUBLISHED, CENTRIC)}
    heads = ["router", "mean TTFT", "over kvcache-centric", "published", "off", f"within {BAR:.0%}", "share of ceiling"]
    yield from table(heads, [_ratio_row(study, policy, found) for policy in found])
    spread = [each.mean_ttft_ms / 1e3 for each in found["random"]]
    yield ""
    yield (
        f"random: mean of {len(spread)} seeds, {min(spread):.2f} to {max(spread):.2f} s, "
        f"standard deviation {np.std(spread):.2f} s."
    )
    prompts = int(study.trace.input_tokens.sum())
    above = sum(each.above_ceiling for results in found.values() for each in results)
    replays = sum(map(len, found.values()))
    yield f"Ceiling: an infinite cache finds {study.ceiling.sum() / prompts:.4f} of all prompt tokens."
    yield f"Requests whose hit is above their infinite-cache prefix: {above} (in {replays} replays)."


def _ratio_row(study: Study, policy: str, found: Mapping[str, Sequence[Result]]) -> list[str]:
    mean = mean_ttft_ms(found[policy])
    ratio = mean / mean_ttft_ms(found[CENTRIC])
    share = float(np.mean([each.hit_tokens for each in found[policy]])) / max(1, int(study.ceiling.sum()))
    against = _against(ratio, PUBLISHED[policy]) if policy in PUBLISHED else ["1", "", ""]
    return [policy, f"{mean / 1e3:.3f} s", f"{ratio:.2f}", *against, f"{share:.3f}"]


def _against(ratio: float, published: float) -> list[str]:
    off = ratio / published - 1
    return [f"{published:.2f}", f"{off:+.1%}", "yes" if abs(off) <= BAR else "no"]


# ---- what moves them


@dataclass(frozen=True)
class Change:
    """One setting away from the defaults."""

    words: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    centric: str = CENTRIC  # the SPEC of kvcache-centric
    spread: bool = False  # arrivals of one tick of the clock spread over it


def changes() -> Iterator[Change]:
    """What the second table tries, the defaults first."""
    yield Change("none")
    yield from (Change(f"threshold {t}", centric=f"{CENTRIC}:threshold={t}") for t in (1, 2, 8, 16))
    yield from (Change(f"pool of {n:,} blocks a node", {"pool_blocks": n}) for n in (1_000, 2_930, 11_718, 50_000))
    yield Change("blocks touched head first", {"touch_order": "head-first"})
    yield from (Change(f"speedup {s:g}", {"speedup": s}) for s in (0.8, 0.9, 1.1, 1.2))
    yield Change("arrivals spread over the trace's 3 s ticks", spread=True)
    yield from (Change(f"estimate error {e:g}", {"estimate_error": e}) for e in (0.1, 0.3))
    yield from (Change(f"view {view}", {"view": view}) for view in ("delayed:100ms", "delayed:1s", "router-only"))
    yield from (Change(cluster, {"cluster": cluster}) for cluster in ("8P+4D", "8P+16D", "7P+9D", "9P+7D"))
    yield Change("NIC 10 GB/s", {"nic_gbytes_per_s": 10.0})
    yield Change("no engine overhead", {"engine": "none"})


def spread_ticks(trace: Trace) -> Trace:
    """The same requests in the same order, those of one tick at seeded uniform times within it."""
    tick_ms = coarse_grid_ms(trace.arrival_ms)
    if not tick_ms:
        return trace
    offset = np.random.default_rng(0).uniform(0, tick_ms, len(trace))
    arrival = trace.arrival_ms + offset[np.lexsort((offset, trace.arrival_ms))]
    arrival -= arrival[0]
    arrival.flags.writeable = False
    return replace(trace, arrival_ms=arrival)


def what_moves(study: Study, seeds: int) -> Iterator[str]:
    """One row a change: mean TTFTs and ratios."""
    spread = Study(spread_ticks(study.trace))
    rows: list[list[str]] = []
    known: dict[object, float] = {}
    for change in changes():
        print(change.words, file=sys.stderr)
        means = [_mean(spread if change.spread else study, policy, change, seeds, known) for policy in COMPARED]
        rows.append([change.words, *(f"{mean / 1e3:.2f} s" for mean in means),
                     *(f"{mean / means[-1]:.2f}" for mean in means[:-1])])  # fmt: skip
    heads = ["changed", *COMPARED, *(f"{policy} ÷" for policy in COMPARED[:-1])]
    yield f"One setting changed at a time; random: mean of {seeds} seeds; ÷: over kvcache-centric."
    yield ""
    yield from table(heads, rows)


def _mean(study: Study, policy: str, change: Change, seeds: int, known: dict[object, float]) -> float:
    """Mean TTFT of a policy under a change; what the change does not touch is replayed once."""
    spec = change.centric if policy == CENTRIC else policy
    key = (spec, change.spread, tuple(change.settings.items()))
    if key not in known:
        known[key] = mean_ttft_ms(study.seeds(spec, seeds, **change.settings))
    return known[key]


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A Markdown table whose first column is text."""
    yield f"| {' | '.join(heads)} |"
    yield f"|---|{'---:|' * (len(heads) - 1)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def main(given: Sequence[str] | None = None) -> int:
    """Print the tables. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", help="trace file, or the name of a bundled trace")
    parser.add_argument("--seeds", type=int, default=10, help="replays of random [default: 10]")
    parser.add_argument("--what-moves", action="store_true", help="change one setting at a time instead")
    parser.add_argument("--max-requests", type=int, default=None, help="replay only the first requests [default: all]")
    options = parser.parse_args(given)
    try:
        study = Study(load(options.trace).select(options.max_requests))
        print("\n".join((what_moves if options.what_moves else ratios)(study, options.seeds)))
    except BenchError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
