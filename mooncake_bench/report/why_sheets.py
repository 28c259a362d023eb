"""Why mean TTFTs differ, as small tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_bench.report.sheets import Sheet
from mooncake_bench.results.why import PARTS, PS_PER_MS
from mooncake_bench.results.words import DASH, counted, integer, ms, share

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mooncake_bench.results.uncertainty import Interval
    from mooncake_bench.results.why import Moved, Side, Why


def why_sheets(found: Sequence[Why], reference: str) -> list[Sheet]:
    """The split of each difference, what the completed sets do to it, and the requests that made it."""
    return [
        _split(found, reference),
        _sets(found, reference),
        *(_requests(each, reference) for each in found if each.requests),
    ]


def signed(value: float | None) -> str:
    """A change in ms."""
    return DASH if value is None else "0" if value == 0 else ("+" if value > 0 else "-") + ms(abs(value))


def _split(found: Sequence[Why], reference: str) -> Sheet:
    parts = [part for part in PARTS if part != "retry_wait" or any(each.changes_ps[part] for each in found)]
    shown = tuple("retries" if part == "retry_wait" else part for part in parts)
    rows = tuple(_changes(each, parts) for each in found)
    notes = [
        f"TTFT = {' + '.join(shown)}, exactly; 95 % interval: of TTFT, by a block bootstrap over time",
        *(line for each in found for line in _said(each, reference)),
    ]
    title = f"Why: mean TTFT against {reference}, on requests that both completed, ms"
    return Sheet(title, ("policy", "both", "TTFT", "95 % interval", *shown), rows, tuple(notes))


def _changes(each: Why, parts: Sequence[str]) -> tuple[str, ...]:
    means = (signed(each.mean_ms(part)) for part in parts)
    return (each.label, integer(each.both), signed(each.mean_ms()), _span(each.interval), *means)


def _span(found: Interval | None) -> str:
    if found is None or found.low is None or found.high is None:
        return DASH
    return f"{signed(found.low)} to {signed(found.high)}"


def _said(each: Why, reference: str) -> Iterator[str]:
    """Whether there is a difference, and how many requests made it."""
    if not each.both:
        return
    if not each.gross_ps:
        yield f"{each.label}: identical to {reference}: the same TTFT on {_all(each.both)} that both completed"
        return
    found = each.interval
    if found is not None and found.low is not None and found.sign is None:
        yield f"{each.label}: cannot tell the difference apart from 0"
    yield f"{each.label}: {_cancelling(each) if each.cancels else _concentrated(each)}"


def _all(count: int) -> str:
    return f"all {counted(count, 'request')}" if count > 1 else "the one request"


def _cancelling(each: Why) -> str:
    slower, faster = each.slower, each.faster
    return (
        f"slower by {ms(_of_mean(each, slower))} ms of the mean in {counted(slower.requests, 'request')}, faster by "
        f"{ms(-_of_mean(each, faster))} ms in {faster.requests:,}: they nearly cancel out; 80 % of the one come from "
        f"{counted(slower.most, 'request')}, of the other from {faster.most:,}"
    )


def _concentrated(each: Why) -> str:
    slower, faster, most = each.slower, each.faster, each.most or 0
    return (
        f"{counted(slower.requests, 'request')} slower ({signed(_of_mean(each, slower))} ms of the mean), "
        f"{faster.requests:,} faster ({signed(_of_mean(each, faster))} ms); {share(most / each.both)} of the requests "
        f"({most:,}) make 80 % of the change"
    )


def _of_mean(each: Why, side: Side) -> float:
    return side.change_ps / PS_PER_MS / each.both


def _sets(found: Sequence[Why], reference: str) -> Sheet:
    headers = ("policy", "all completed", "= on both", "+ sets", "only there", "TTFT", "only here", "TTFT")
    rows = []
    for each in found:
        sets = each.sets
        known = None not in (sets.all_this_ms, sets.all_reference_ms)
        change = (sets.all_this_ms or 0) - (sets.all_reference_ms or 0) if known else None
        there = integer(sets.only_reference), ms(sets.only_reference_ms)
        here = integer(sets.only_this), ms(sets.only_this_ms)
        rows.append((each.label, signed(change), signed(each.mean_ms()), signed(sets.change_ms), *there, *here))
    note = (
        f"all completed: mean TTFT of all that each completed, against {reference}; sets: what of it comes of not "
        f"completing the same requests; only there: completed under {reference} alone, with their mean TTFT"
    )
    return Sheet("What the sets completed do to it, ms", headers, tuple(rows), (note,))


def _requests(each: Why, reference: str) -> Sheet:
    fetched = any(moved.parts_ms["fetch"] for moved in each.requests)
    changes = ("fetch", "prefill") if fetched else ("prefill",)
    both = tuple(f"{what} {when}" for what in ("Q", "P", "hit") for when in ("then", "now"))
    rows = tuple(_request(moved, changes) for moved in each.requests)
    note = (
        f"TTFT, {', '.join(changes)}: changes in ms; of side: share of what all that became slower, or faster, changed "
        f"by; Q, P, hit: queue in ms, prefill instance and hit tokens, under {reference} and now"
    )
    title = f"{each.label}: the requests that {'moved most' if each.cancels else 'made most of it'}"
    return Sheet(title, ("request", "TTFT", "of side", *changes, *both), rows, (note,))


def _request(moved: Moved, changes: tuple[str, ...]) -> tuple[str, ...]:
    parts = (signed(moved.parts_ms[part]) for part in changes)
    queues, instances, hits = map(ms, moved.queue_ms), map(str, moved.prefill_instance), map(integer, moved.hit_tokens)
    return (moved.request_id, signed(moved.change_ms), share(moved.share_of_side), *parts, *queues, *instances, *hits)
