"""A cache analysis as small tables: hit ratios, distance from the bound, and why blocks miss."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mooncake_bench.report.sheets import Report, Sheet
from mooncake_bench.results.cache_analysis import BOUND, DEFINITIONS, USUAL
from mooncake_bench.results.cache_notices import notices
from mooncake_bench.results.words import DASH, counted, csv_text, duration, integer, share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from mooncake_bench.cache import Point
    from mooncake_bench.results.cache_analysis import Analysis, Capacity, Definition, Model

ALIKE = 3  # policies that find equally much: so many are named
OFFLINE = "*"  # marks what sees the whole trace
REASONS = {  # of a missing block: a field of Misses, and the header of its column
    "first_sight": "1st sight",
    "evicted": "evicted",
    "behind_gap": "gap",
    "not_ready": "not ready",
    "elsewhere": "elsewhere",
}
REASON_WORDS = {
    "first_sight": "1st sight: no request before had it",
    "evicted": "evicted: was stored once (p50, p90: how long before it had gone)",
    "behind_gap": "gap: stored, but a block before it was missing",
    "not_ready": "not ready: stored less than --ready-after ago",
    "elsewhere": "elsewhere: in another pool",
}


def cache_report(analysis: Analysis, definitions: Sequence[Definition] = (), *, why: bool = False) -> Report:
    """Hit ratios under each of ``definitions`` (none: leading blocks), shares of the bound, and why blocks miss.

    Reasons are shown at the capacity nearest to 3 M tokens; with ``why`` at each finite one, also by requests.
    """
    chosen = tuple(definitions) or (DEFINITIONS[USUAL],)
    sheets = [sheet for each in chosen for sheet in (_ratios(analysis, each), _of_bound(analysis, each))]
    reference = analysis.reference()
    for number, capacity in enumerate(analysis.finite() if why else [reference] if reference else []):
        reasons = [_why_blocks(analysis, capacity), *([_why_requests(analysis, capacity)] if why else [])]
        sheets += [sheet if number == 0 else replace(sheet, notes=()) for sheet in reasons]  # legends once
    return Report(tuple(_head(analysis)), tuple(sheets), notices(analysis))


# ---- the head


def _head(analysis: Analysis) -> Iterator[str]:
    model, work = analysis.model, analysis.ceiling
    name = f"trace {analysis.trace_name} (content sha256 {analysis.trace_sha256[:12]})"
    yield f"{name}: {counted(analysis.trace_requests, 'request')}; {_counted(work)}"
    touched = "head first" if model.touch_order == "forward" else "tail first"
    yield f"model: each request served at once, in trace order, blocks touched {touched}; {_pools(model)}"
    if model.ready_after_ms:
        yield f"a block is found from {duration(model.ready_after_ms)} after it was stored"
    written = [capacity for capacity in analysis.finite() if not capacity.text.isdecimal()]
    if written:
        each = "" if model.pools == 1 else "each pool: "
        yield each + ", ".join(f"{size.text} = {integer(size.blocks)} blocks" for size in written)


def _counted(work: Point) -> str:
    counts = f"{integer(work.blocks)} blocks of {integer(work.block_tokens)} tokens"
    if not work.warm_requests:
        return counts
    return f"the first {integer(work.warm_requests)} only warm the cache, counted are the others' {counts}"


def _pools(model: Model) -> str:
    if model.pools == 1:
        return "one pool"
    return f"{model.pools} pools of the size shown, nothing shared, requests assigned {model.assignment}"


# ---- hit ratios


def _ratios(analysis: Analysis, definition: Definition) -> Sheet:
    rows = [_line(analysis, label, partial(_ratio, analysis, definition, label)) for label in analysis.labels]
    bounds = (share(definition.ratio(analysis.bounds[size.blocks])) for size in analysis.capacities)
    rows.append((f"{bound_name(analysis.model)} {OFFLINE}", *bounds))
    rows.append(("infinite cache", *[share(definition.ratio(analysis.ceiling))] * len(analysis.capacities)))
    whole = f"{integer(getattr(analysis.ceiling, definition.of))} {definition.whole}"
    title = f"Hit ratio ({definition.name}): {definition.found}, of {whole}"
    return Sheet(title, _headers(analysis), tuple(rows), tuple(_ratio_notes(analysis, definition)))


def _ratio(analysis: Analysis, definition: Definition, label: str, size: Capacity) -> float | None:
    return definition.ratio(_point(analysis, label, size))


def _point(analysis: Analysis, label: str, size: Capacity) -> Point:
    return analysis.points[label, size.blocks]


def _line(analysis: Analysis, label: str, value: Callable[[Capacity], float | None]) -> tuple[str, ...]:
    return (_name(analysis, label), *(share(value(size)) for size in analysis.capacities))


def _name(analysis: Analysis, label: str) -> str:
    return f"{label} {OFFLINE}" if label in analysis.offline else label


def bound_name(model: Model) -> str:
    """The bound, with what it has and the policies have not: all pools' room in one, blocks that are ready at once."""
    size = "" if model.pools == 1 else f" of {model.pools}× the size"
    return f"{BOUND}{size}{', no wait' if model.ready_after_ms else ''}"


def _headers(analysis: Analysis) -> tuple[str, ...]:
    return ("policy", *(size.name for size in analysis.capacities))


def _ratio_notes(analysis: Analysis, definition: Definition) -> Iterator[str]:
    online = [label for label in analysis.labels if label not in analysis.offline]
    if len(online) > 1:
        yield f"best: {'; '.join(_best(analysis, definition, online))}"
    yield f"{OFFLINE} sees the whole trace, as no scheduler does; {BOUND}: no policy finds more blocks"
    pools, wait_ms = analysis.model.pools, analysis.model.ready_after_ms
    if pools > 1:
        yield f"{BOUND}: that of one pool of {pools} times the size, in which everything is shared"
    if wait_ms:
        yield (
            f"{BOUND}: served at once, its blocks are found without the {duration(wait_ms)}: still a bound, but looser "
            "than the infinite cache, which waits too, where that is lower"
        )


def _best(analysis: Analysis, definition: Definition, online: Sequence[str]) -> Iterator[str]:
    """Which policies find most at which finite sizes."""
    sizes: dict[tuple[str, ...], list[str]] = {}
    for size in analysis.finite():
        hits = {label: getattr(_point(analysis, label, size), definition.hits) for label in online}
        names = tuple(label for label in online if hits[label] == max(hits.values()))
        sizes.setdefault(names, []).append(size.name)
    for names, at in sizes.items():
        yield f"{', '.join(names) if len(names) <= ALIKE else f'{len(names)} alike'} at {', '.join(at)}"


def _of_bound(analysis: Analysis, definition: Definition) -> Sheet:
    rows = [
        _line(analysis, label, partial(analysis.of_bound, label, definition=definition)) for label in analysis.labels
    ]
    model = analysis.model
    wait = ", which does not wait" if model.ready_after_ms else ""
    whole = (
        f"the {BOUND}'s at the same size"
        if model.pools == 1
        else f"those of the {BOUND} of one pool of {model.pools}× the size"
    )
    title = f"Share of the bound ({definition.name}): hits over {whole}{wait}"
    return Sheet(title, _headers(analysis), tuple(rows))


# ---- why not more


def _why_blocks(analysis: Analysis, size: Capacity) -> Sheet:
    reasons = [name for name in REASONS if _possible(analysis, name)]
    headers = ["policy", "hit"]
    for name in reasons:
        headers += [REASONS[name], "p50", "p90"] if name == "evicted" else [REASONS[name]]
    rows = [tuple(_why_line(analysis, label, size, reasons)) for label in analysis.labels]
    title = f"Why blocks miss at {_sized(size)}, of {integer(analysis.ceiling.blocks)} blocks"
    return Sheet(title, tuple(headers), tuple(rows), ("; ".join(REASON_WORDS[name] for name in reasons),))


def _possible(analysis: Analysis, reason: str) -> bool:
    """Whether the model has this reason at all."""
    model = analysis.model
    return {"not_ready": model.ready_after_ms > 0, "elsewhere": model.pools > 1}.get(reason, True)


def _why_line(analysis: Analysis, label: str, size: Capacity, reasons: Sequence[str]) -> Iterator[str]:
    point = _point(analysis, label, size)
    yield _name(analysis, label)
    yield share(_of(point.prefix_blocks, point.blocks))
    for name in reasons:
        yield share(_of(getattr(point.misses, name), point.blocks))
        if name == "evicted":
            yield from (_ago(point, q) for q in ("p50", "p90"))


def _ago(point: Point, q: str) -> str:
    if point.evicted_ago_ms is None:
        return DASH
    seconds = point.evicted_ago_ms[q] / 1000
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def _of(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _sized(size: Capacity) -> str:
    return f"{size.name} blocks" if size.text.isdecimal() else f"{size.text} ({integer(size.blocks)} blocks)"


def _why_requests(analysis: Analysis, size: Capacity) -> Sheet:
    reasons = [name for name in REASONS if name != "behind_gap" and _possible(analysis, name)]
    rows = []
    for label in analysis.labels:
        point = _point(analysis, label, size)
        by = point.requests_by_first_miss
        counts = [point.requests_with_hit, by.none, *(getattr(by, name) for name in reasons)]
        rows.append((_name(analysis, label), *(share(_of(count, point.requests)) for count in counts)))
    title = f"Why requests miss at {_sized(size)}, of {counted(analysis.ceiling.requests, 'request')}"
    headers = ("policy", "any hit", "all hit", *(REASONS[name] for name in reasons))
    note = "all hit: no block was missing; the rest by the reason of the first missing block"
    return Sheet(title, headers, tuple(rows), (note,))


def as_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """One line a policy and capacity, numbers in full; what is not defined, or infinite, is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for number, row in enumerate(rows):
        if number == 0:
            writer.writerow(row)
        writer.writerow(csv_text(value) if isinstance(value, str) else value for value in row.values())
    return out.getvalue()
