"""Why mean TTFTs differ, as small tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_bench.report.sheets import Sheet
from mooncake_bench.results.why import PARTS
from mooncake_bench.results.words import DASH, counted, integer, ms, share

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mooncake_bench.results.why import Moved, Why


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
    headers = ("policy", "both", "TTFT", *("retries" if part == "retry_wait" else part for part in parts))
    rows = [
        (each.label, integer(each.both), *(signed(each.mean_ms(part)) for part in (None, *parts))) for each in found
    ]
    notes = [
        "TTFT = " + " + ".join(headers[3:]) + ", exactly",
        *(line for each in found for line in _concentrated(each)),
    ]
    return Sheet(
        f"Why: mean TTFT against {reference}, on requests that both completed, ms", headers, tuple(rows), tuple(notes)
    )


def _concentrated(each: Why) -> Iterator[str]:
    if not each.change_ps:
        return
    both, most = each.both, each.most or 0
    counts = (
        f"{counted(each.slower[0], 'request')} slower ({signed(each.slower[1] / 1e9 / both)} ms of the mean), "
        f"{each.faster[0]:,} faster ({signed(each.faster[1] / 1e9 / both)} ms)"
    )
    yield f"{each.label}: {counts}; {share(most / both)} of the requests ({most:,}) make 80 % of the change"


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
        f"TTFT, {', '.join(changes)}: changes in ms; of all: share of the summed change; Q, P, hit: queue in ms, "
        f"prefill instance and hit tokens, under {reference} and now"
    )
    title = f"{each.label}: the requests that made most of it"
    return Sheet(title, ("request", "TTFT", "of all", *changes, *both), rows, (note,))


def _request(moved: Moved, changes: tuple[str, ...]) -> tuple[str, ...]:
    of_all = DASH if moved.share is None else f"{100 * moved.share:.1f} %"
    parts = (signed(moved.parts_ms[part]) for part in changes)
    queues, instances, hits = map(ms, moved.queue_ms), map(str, moved.prefill_instance), map(integer, moved.hit_tokens)
    return (moved.request_id, signed(moved.change_ms), of_all, *parts, *queues, *instances, *hits)
