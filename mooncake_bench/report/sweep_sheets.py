"""A sweep as tables: one row a point, with what was varied and some of its metrics; and how far it has come."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from mooncake_bench.report.sheets import Report, Sheet
from mooncake_bench.results.headline import cost_line
from mooncake_bench.results.sweep import DONE, SAMPLES
from mooncake_bench.results.words import DASH, counted, csv_text, duration, integer, ms, share, significant
from mooncake_bench.sim.setup import Setup, settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mooncake_bench.results.sweep import Sweep

SHOWN = {  # metric -> its header
    "request_goodput_ratio": "in SLO",
    "rejected_ratio": "rejected",
    "mean_ttft_ms": "TTFT",
    "p99_ttft_ms": "p99",
    "p99_tbt_ms": "TBT p99",
    "hit_ratio_tokens": "hits",
}
NOTE = (
    "in SLO, rejected: of offered requests; TTFT (mean, p99) and TBT p99 in ms, of completed requests; hits: of prompt "
    "tokens whose prefill began"
)
POINTS_NAMED = 12
WORDS: dict[str, Callable[[float | None], str]] = {"ms": ms, "ratio": share, "requests": integer, "tokens": integer}
HEADERS = {"policy_label": "policy"}


def results(sweep: Sweep, metrics: Sequence[str] = ()) -> Report:
    """One row a replayed point; ``metrics`` by name or alias, else a handful. Raises ResultError for an unknown one."""
    chosen = {name: name for name in named(sweep, metrics)} if metrics else SHOWN
    first = sweep.varied or ("policy_label",)
    headers = (*_short(first, list(chosen.values())), *chosen.values())
    rows = tuple(
        (*(_setting(key, row[key]) for key in first), *_cells(sweep, row, list(chosen)))
        for row in sweep.table.to_pylist()
    )
    notes = () if metrics else (NOTE,)
    return Report(tuple(head(sweep)), (Sheet("Points", headers, rows, notes),), tuple(notices(sweep)))


def status(sweep: Sweep, *, running: bool) -> Report:
    """How far a sweep has come, and why points failed."""
    left = f"left: points {_listed(sweep.left)}" if sweep.left else "nothing is left to do"
    lines = [*head(sweep), f"{left}{'; a process is at work on it now' if running else ''}"]
    rows = tuple((why, f"{len(points)}", _listed(points)) for why, points in _faults(sweep).items())
    sheets = (Sheet("Failed", ("why", "points", "which"), rows),) if rows else ()
    return Report(tuple(lines), sheets, () if sweep.mine else tuple(notices(sweep)))


def head(sweep: Sweep) -> Iterator[str]:
    """What the sweep is, and how much of it is there."""
    for trace in sweep.manifest["traces"]:
        yield f"trace {trace['name']} (sha256 {trace['sha256'][:12]}): {counted(trace['requests'], 'request')}"
    usual = Setup().to_dict()
    common = {key: value for key, value in sweep.manifest["setup"].items() if value != usual.get(key)}
    if common:
        yield "at every point: " + ", ".join(f"{key} {_setting(key, value)}" for key, value in common.items())
    yield from (f"cost {cost_line(cost)}" for cost in sweep.manifest["costs"])
    shard = sweep.manifest["shard"]
    part = f", shard {shard[0]}/{shard[1]}" if shard else ""
    varied = ", ".join(HEADERS.get(key, key) for key in sweep.varied) or "nothing"
    total = counted(len(sweep.mine), "point")
    failed, left = len(sweep.failed), len(sweep.left)
    yield f"sweep {sweep.name}{part}: {total} over {varied}; {len(sweep.done)} done, {failed} failed, {left} left"


def notices(sweep: Sweep) -> Iterator[str]:
    """Failures by reason, that points are left, and what a person should know before believing the numbers."""
    if not sweep.mine:
        number, count = sweep.manifest["shard"]
        yield f"shard {number}/{count} has no points: the sweep has {len(sweep.manifest['points'])} in all"
    for label in sweep.manifest["oracles"]:
        yield f"{label}: an oracle, it sees the output lengths; no real scheduler could decide so"
    for points in _alike(sweep):
        yield f"points {_listed(points)} are the same run: what differs between their settings had no effect"
    for why, points in _faults(sweep).items():
        yield f"{'point' if len(points) == 1 else 'points'} {_listed(points)} failed: {why}"
    if sweep.left:
        yield f"{counted(len(sweep.left), 'point')} left; repeat the command to go on"


def named(sweep: Sweep, metrics: Sequence[str]) -> list[str]:
    """The metrics meant by names or aliases; none: all. Raises ResultError for an unknown one."""
    return [sweep.metric(name).name for name in metrics] if metrics else list(sweep.metrics)


def as_csv(sweep: Sweep, metrics: Sequence[str] = ()) -> str:
    """One line a replayed point, numbers in full, undefined ones empty."""
    fixed = [name for name in sweep.table.schema.names if name not in sweep.metrics and not name.endswith(SAMPLES)]
    columns = [*fixed, *named(sweep, metrics)]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in sweep.table.select(columns).to_pylist():
        writer.writerow([_plain(row[name]) for name in columns])
    return out.getvalue()


def as_json(sweep: Sweep, metrics: Sequence[str] = ()) -> dict[str, Any]:
    """The sweep for a program: what it is, and each replayed point with its metrics."""
    chosen = named(sweep, metrics)
    return {**progress_json(sweep), "points": [_json_point(sweep, row, chosen) for row in sweep.table.to_pylist()]}


def progress_json(sweep: Sweep) -> dict[str, Any]:
    """What a sweep is and how far it has come, for a program."""
    shard = sweep.manifest["shard"]
    return {
        "sweep": sweep.name,
        "sweep_dir": str(sweep.path),
        "shard": f"{shard[0]}/{shard[1]}" if shard else None,
        "traces": sweep.manifest["traces"],
        "setup": sweep.manifest["setup"],
        "varied": list(sweep.varied),
        "points_in_all": len(sweep.mine),
        "done": len(sweep.done),
        "failed": [{"point": row["point"], "error": row["error"]} for row in _pairs(sweep)],
        "left": list(sweep.left),
        "content_sha256": sweep.content_sha256(),
    }


def _json_point(sweep: Sweep, row: dict[str, Any], metrics: Sequence[str]) -> dict[str, Any]:
    point = {name: row[name] for name in ("point", "policy", "policy_label")}
    point |= {name: row[name] for name in sweep.manifest["varied"]}
    point |= {name: row[name] for name in ("status", "error", "content_sha256", "wall_s")}
    declared = {name: sweep.metric(name) for name in metrics}
    point["metrics"] = {
        name: {"value": row[name], "n": row[name + SAMPLES], "unit": metric.unit, "better": metric.better}
        for name, metric in declared.items()
    }
    return point


def _pairs(sweep: Sweep) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = sweep.failed.select(["point", "error"]).to_pylist()
    return rows


def _faults(sweep: Sweep) -> dict[str, list[int]]:
    """Points that failed, by reason."""
    found: dict[str, list[int]] = {}
    for row in _pairs(sweep):
        found.setdefault(row["error"], []).append(row["point"])
    return found


def _alike(sweep: Sweep) -> list[list[int]]:
    """Points whose runs are the same in every table and every metric, in groups."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for row in sweep.done.select(["point", "content_sha256", *sweep.metrics]).to_pylist():
        found.setdefault(tuple(row.values())[1:], []).append(row["point"])
    return [points for points in found.values() if len(points) > 1]


def _listed(points: Sequence[int]) -> str:
    """Numbers as runs of neighbours, such as ``0-3, 7``, the first few of them."""
    runs: list[list[int]] = []
    for point in points:
        if runs and point == runs[-1][1] + 1:
            runs[-1][1] = point
        else:
            runs.append([point, point])
    shown = [f"{first}" if first == last else f"{first}-{last}" for first, last in runs[:POINTS_NAMED]]
    return ", ".join(shown) + (", ..." if len(runs) > POINTS_NAMED else "")


def _setting(key: str, value: Any) -> str:
    if value is None:
        return DASH
    if key.endswith("_ms") and isinstance(value, float):
        return duration(value)
    return (
        f"{value:,}"
        if isinstance(value, int) and not isinstance(value, bool)
        else (f"{value:g}" if isinstance(value, float) else str(value))
    )


def _short(keys: Sequence[str], others: Sequence[str]) -> list[str]:
    """A policy's parameter without its owner, where that tells all apart; the head of the table has it whole."""
    known = {declared.dotted for declared in settings().values()}
    lasts = [HEADERS.get(key, key if key in known else key.rpartition(".")[2]) for key in keys]
    taken = [*lasts, *others]
    return [last if taken.count(last) == 1 else key for key, last in zip(keys, lasts, strict=True)]


def _cells(sweep: Sweep, row: dict[str, Any], names: Sequence[str]) -> list[str]:
    if row["status"] != DONE:
        return ["failed", *[DASH] * (len(names) - 1)]
    return [WORDS.get(sweep.manifest["metrics"][name], significant)(row[name]) for name in names]


def _plain(value: Any) -> Any:
    return "" if value is None else csv_text(value) if isinstance(value, str) else value
