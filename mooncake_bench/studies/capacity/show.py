"""Capacities for people and programs: a report, plain values, and a typed table of every replay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mooncake_bench.report.sheets import Report, Sheet
from mooncake_bench.results.words import DASH, counted, duration, rate, share

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mooncake_bench.sim.setup import Setup
    from mooncake_bench.studies.capacity.find import Bench, Capacity, Limits
    from mooncake_bench.studies.capacity.rule import Kept
    from mooncake_bench.studies.capacity.split import Smallest

POINTS = pa.schema(
    [
        pa.field("contender", pa.string(), nullable=False),
        pa.field("policy", pa.string(), nullable=False),
        pa.field("cluster", pa.string(), nullable=False),
        pa.field("seed", pa.int64(), nullable=False),
        pa.field("speedup", pa.float64(), nullable=False),
        pa.field("offered_rps", pa.float64()),
        pa.field("offered_requests", pa.int64(), nullable=False),
        pa.field("slo_ok_ratio", pa.float64(), nullable=False),
        pa.field("slo_ttft_ok_ratio", pa.float64(), nullable=False),
        pa.field("slo_tbt_ok_ratio", pa.float64(), nullable=False),
        pa.field("completed_ratio", pa.float64(), nullable=False),
        pa.field("holds", pa.bool_(), nullable=False),
    ]
)
"""One row a replay. Shares are of the requests offered after the warm-up."""


def points(bench: Bench) -> pa.Table:
    """Every replay that was judged, in the order of the search, as a table of :data:`POINTS`."""
    return pa.Table.from_pylist(list(_points(bench)), schema=POINTS)


def _points(bench: Bench) -> Iterator[dict[str, Any]]:
    for point, kept in bench.judged.items():
        own = {"contender": point.contender, "policy": bench.contenders[point.contender].policy}
        where = {"cluster": point.cluster, "seed": point.seed, "speedup": point.speedup}
        yield own | where | _kept(kept) | {"holds": bench.rule.holds(kept)}


def _kept(kept: Kept) -> dict[str, Any]:
    return {
        "offered_rps": kept.offered_rps,
        "offered_requests": kept.offered,
        "slo_ok_ratio": kept.both,
        "slo_ttft_ok_ratio": kept.ttft,
        "slo_tbt_ok_ratio": kept.tbt,
        "completed_ratio": kept.completed,
    }


def slo_words(setup: Setup) -> str:
    """The setup's SLOs, by class where classes have their own."""
    own = f"TTFT {duration(setup.slo_ttft_ms)}, TBT {duration(setup.slo_tbt_ms)}"
    return own + (f" (classes {setup.slo_classes})" if setup.slo_classes else "")


# ---- loads


def load_report(bench: Bench, found: Sequence[Capacity], limits: Limits) -> Report:
    """The highest load of each contender, and what stops it."""
    headers = ("contender", "speedup", "requests/s", "range", "in SLOs", "too much", "broken there")
    rows = tuple(tuple(_load_row(bench, each)) for each in found)
    notes = [
        f"speedup: the highest load that holds{'' if limits.seeds == 1 else ', of the median seed'}; too much: the "
        f"lowest tried above it{'' if limits.seeds == 1 else ' at that seed'}; found to {100 * limits.tolerance:g} %; "
        "loads between those tried are not known",
        "in SLOs: offered requests that keep all SLOs at that load (FAST'25's effective request capacity)",
        _range_words(limits),
    ]
    sheets = [Sheet("Capacity", headers, rows, tuple(notes))]
    if limits.seeds > 1 and len(found) > 1:
        sheets.append(_paired(found))
    return Report(_head(bench), tuple(sheets), tuple(_load_notices(bench, found, limits)))


def _load_row(bench: Bench, each: Capacity) -> Iterator[str]:
    kept, above = each.kept[each.seed], each.above[each.seed]
    high = each.brackets[each.seed].high
    yield each.contender
    yield ("" if each.bounded else "≥ ") + _times(each.speedup) if each.speedup is not None else DASH
    yield rate(kept.offered_rps if kept else None)
    yield f"{_times(min(each.lows))} to {_times(max(each.lows))}" if len(each.lows) > 1 else DASH
    yield share(kept.both) if kept else DASH
    yield _times(high)
    yield bench.rule.broken(above) if above else DASH


def _times(speedup: float | None) -> str:
    """Three digits that count, zeros too, so that a column lines up."""
    return DASH if speedup is None else f"{speedup:#.3g}".removesuffix(".")


def _range_words(limits: Limits) -> str:
    if limits.seeds == 1:
        return "one seed: the trace as it is; --seeds N also moves arrivals by up to 1 ms and shows the range"
    return f"range: over {limits.seeds} seeds, arrivals moved by up to 1 ms (seed 0: the trace as it is), same for all"


def _paired(found: Sequence[Capacity]) -> Sheet:
    """Each contender's capacity over the first one's, seed by seed."""
    base, rows = found[0], []
    for each in found[1:]:
        pairs = zip(each.brackets, base.brackets, strict=True)
        ratios = sorted(ours.low / theirs.low for ours, theirs in pairs if ours.low and theirs.low)
        if len(ratios) < len(base.brackets):
            rows.append((each.contender, DASH, DASH, "no load holds at some seed"))
            continue
        verdict = "more" if ratios[0] > 1 else "less" if ratios[-1] < 1 else "cannot tell apart"
        rows.append((each.contender, f"{ratios[0]:.3f}×", f"{ratios[-1]:.3f}×", verdict))
    note = f"capacity over that of {base.contender}, seed by seed: the least, the most, and whether all agree"
    return Sheet("Paired", ("contender", "least", "most", "verdict"), tuple(rows), (note,))


def _load_notices(bench: Bench, found: Sequence[Capacity], limits: Limits) -> Iterator[str]:
    for each in found:
        if each.speedup is None:
            yield f"{each.contender}: the rule holds at no load tried, down to speedup {limits.least:g} (--least)"
        elif not each.bounded:
            yield f"{each.contender}: the rule holds at every load tried, up to speedup {limits.most:g} (--most)"
    yield f"{counted(len(bench.judged), 'replay')}"


def load_values(bench: Bench, found: Sequence[Capacity], limits: Limits) -> dict[str, Any]:
    """The same as plain values."""
    return _values(bench) | {
        "tolerance_ratio": limits.tolerance,
        "contenders": [
            {
                "contender": each.contender,
                "policy": bench.contenders[each.contender].policy,
                "cluster": bench.contenders[each.contender].cluster,
                "speedup": each.speedup,
                "median_seed": each.seed,
                "bounded": each.bounded,
                "seeds": [
                    {
                        "seed": seed,
                        "holds_at": bracket.low,
                        "does_not_hold_at": bracket.high,
                        "kept": _kept(kept) if kept else None,
                        "kept_above": _kept(above) if above else None,
                    }
                    for seed, (bracket, kept, above) in enumerate(
                        zip(each.brackets, each.kept, each.above, strict=True)
                    )
                ],
            }
            for each in found
        ],
    }


# ---- clusters


def cluster_report(bench: Bench, found: Sequence[Smallest]) -> Report:
    """The smallest clusters that carry the load."""
    headers = ("contender", "cluster", "GPUs", "in SLOs", "TTFT kept", "TBT kept", "replays")
    rows = tuple(row for each in found for row in _cluster_rows(bench, each))
    note = "every cluster of the fewest GPUs that was found; sound where fewer nodes of a role never serve better"
    notices = tuple(_missing(bench, each.contender) for each in found if not each.clusters)
    return Report(_head(bench, load=True), (Sheet("Smallest clusters", headers, rows, (note,)),), notices)


def _missing(bench: Bench, contender: str) -> str:
    """Why a contender has no cluster: what the largest one it was tried on kept."""
    point, kept = max(
        ((p, k) for p, k in bench.judged.items() if p.contender == contender), key=lambda pair: pair[1].both
    )
    return (
        f"{contender}: no cluster up to {bench.contenders[contender].cluster} carries this load: on {point.cluster} "
        f"{share(kept.both)} keep their SLOs ({bench.rule.broken(kept)} is missed)"
    )


def _cluster_rows(bench: Bench, each: Smallest) -> Iterator[tuple[str, ...]]:
    replays = str(sum(point.contender == each.contender for point in bench.judged))
    if not each.clusters:
        yield (each.contender, *[DASH] * 5, replays)
    for cluster, kept in zip(each.clusters, each.kept, strict=True):
        shares = (share(kept.both), share(kept.ttft), share(kept.tbt))
        yield (each.contender, cluster, f"{each.gpus:,}", *shares, replays)


def cluster_values(bench: Bench, found: Sequence[Smallest]) -> dict[str, Any]:
    """The same as plain values."""
    return _values(bench) | {
        "contenders": [
            {
                "contender": each.contender,
                "policy": bench.contenders[each.contender].policy,
                "speedup": bench.contenders[each.contender].speedup,
                "gpus": each.gpus,
                "clusters": [
                    {"cluster": cluster, "kept": _kept(kept)}
                    for cluster, kept in zip(each.clusters, each.kept, strict=True)
                ],
            }
            for each in found
        ],
    }


def _head(bench: Bench, *, load: bool = False) -> tuple[str, ...]:
    setup = next(iter(bench.contenders.values()))
    rule = f"holds where {bench.rule.words(slo_words(setup))}"
    kept = next(iter(bench.judged.values()))
    at = f", speedup {setup.speedup:g} = {rate(kept.offered_rps)} requests/s" if load else ""
    return (f"trace {bench.trace.name}: {counted(kept.offered, 'request')}{at}", rule)


def _values(bench: Bench) -> dict[str, Any]:
    setup = next(iter(bench.contenders.values()))
    return {
        "trace": bench.trace.name,
        "attain_ratio": bench.rule.attain,
        "by": bench.rule.by,
        "slo_ttft_ms": setup.slo_ttft_ms,
        "slo_tbt_ms": setup.slo_tbt_ms,
        "replays": len(bench.judged),
    }
