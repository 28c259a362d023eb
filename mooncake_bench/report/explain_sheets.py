"""One decision as small tables: candidates, admission, decode instances, and what then happened."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from mooncake_bench.report.sheets import Report, Sheet
from mooncake_bench.results.words import DASH, counted, decimal, integer, ms

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mooncake_bench.results.explain import Candidate, Decision, DecodeCandidate, Explanation

SHOWN = 16  # candidates
Row = tuple[str, ...]
Each = TypeVar("Each", "Candidate", "DecodeCandidate")


def explain_report(found: Explanation, *, whole: bool = False) -> Report:
    """The report of a decision; ``whole`` shows every candidate of a large cluster."""
    decision = found.decision
    sheets = [_candidates(decision, whole), _admission(found)]
    if decision.decodes:
        sheets.append(_decodes(decision, whole))
    if found.attempt == found.attempts:
        sheets.append(_happened(found))
    return Report(tuple(_head(found)), tuple(sheets), tuple(_notices(found)))


def _head(found: Explanation) -> Iterator[str]:
    row, decision = found.happened, found.decision
    error = f" with estimate error {found.estimate_error:g}" if found.estimate_error else ""
    yield f"run {found.run or 'not stored'}: {found.policy}; view {found.view}{error}; cost {found.cost}"
    came = f", attempt {found.attempt} of {found.attempts}" if found.attempts > 1 else ""
    yield (
        f"request {found.request_id}{came}: came at {decision.now_ms / 1000:,.3f} s with "
        f"{counted(row['input_tokens'], 'prompt token')} ({counted(found.blocks, 'block')}); its answer has "
        f"{counted(row['output_tokens'], 'token')}"
    )
    where = f"prefill on instance {decision.prefill}"
    where += "" if decision.decode is None else f", decode on instance {decision.decode}"
    where += "" if decision.fetch_from is None else f", prefix fetched from instance {decision.fetch_from}"
    whose = "the policy's own estimate" if decision.ttft_by_policy else "the harness's, for the policy gave none"
    yield f"decided: {where}; TTFT {ms(decision.ttft_ms)} ms ({whose})"
    yield "answer: " + ("admitted" if decision.reason is None else f"rejected at arrival ({decision.reason})")


# candidates


def _candidates(decision: Decision, whole: bool) -> Sheet:
    shown, rest = _first(decision.candidates, whole)
    loads = any(each.load_tokens for each in decision.candidates)
    headers = (
        "instance",
        "queued",
        "queue",
        "hit",
        *(("SSD",) if loads else ()),
        "fetch",
        "fetch ms",
        "prefill",
        "TTFT",
    )
    rows = [_candidate(each, decision.holder, loads) for each in shown]
    notes = [
        "queued: requests; hit: prompt tokens cached or promised there" + ("; SSD: loaded as well" if loads else "")
    ]
    if decision.holder is None:
        notes.append("nobody has a prefix of it that is ready to be fetched")
    else:
        notes.append(
            f"h* (instance {decision.holder}) has the longest prefix ready to be fetched, "
            f"{counted(decision.holder_tokens, 'token')}; fetch: tokens it adds; in brackets where that does not pay"
        )
    notes.append("TTFT: queue + fetch (where it pays) + prefill, by the cost model in the policy's view")
    if rest:
        notes.append(f"and {rest[0].estimate_ms:,.0f} to {rest[-1].estimate_ms:,.0f} ms on {len(rest)} more: --all")
    return Sheet("Prefill candidates as the policy saw them, ms", headers, tuple(rows), tuple(notes))


def _first(candidates: Sequence[Each], whole: bool) -> tuple[list[Each], list[Each]]:
    """Those that are shown, the chosen one among them, and the others."""
    shown = [each for i, each in enumerate(candidates) if whole or i < SHOWN or each.chosen]
    return shown, [each for each in candidates if each not in shown]


def _named(each: Candidate | DecodeCandidate, holder: int | None = None) -> str:
    return f"{each.instance}{' chosen' if each.chosen else ''}{' h*' if each.instance == holder else ''}"


def _candidate(each: Candidate, holder: int | None, loads: bool) -> Row:
    fetch = (DASH, DASH)
    if each.fetch_tokens:
        fetch = (integer(each.fetch_tokens), ms(each.fetch_ms) if each.fetches else f"({ms(each.fetch_ms)})")
    ssd = (integer(each.load_tokens),) if loads else ()
    head = (_named(each, holder), integer(each.queue_requests), ms(each.queue_ms), integer(each.hit_tokens))
    return (*head, *ssd, *fetch, ms(each.prefill_ms), ms(each.estimate_ms))


def _decodes(decision: Decision, whole: bool) -> Sheet:
    order = sorted(decision.decodes, key=lambda each: (each.context_tokens + each.routed_tokens, each.instance))
    shown, rest = _first(order, whole)
    asked = any(each.asked_load is not None for each in order)
    headers = (
        "instance",
        "batch",
        "context",
        "waiting",
        "routed",
        "room",
        "step ms",
        "load",
        *(("asked",) if asked else ()),
    )
    rows = tuple(_decode(each, asked) for each in shown)
    notes = [
        "least context + routed first; routed: tokens on their way into the batch; room: VRAM less both; load: the "
        "larger of step / TBT SLO and tokens / VRAM, of batch, waiting and, where chosen, this request"
    ]
    if asked:
        notes.append("asked: that load of the batch for which the admission last asked the step time")
    if rest:
        notes.append(f"{len(rest)} more: --all")
    return Sheet("Decode candidates as the policy saw them", headers, rows, tuple(notes))


def _decode(each: DecodeCandidate, asked: bool) -> Row:
    counts = (each.batch, each.context_tokens, each.waiting, each.routed_tokens, each.room_tokens)
    loads = (each.load, each.asked_load) if asked else (each.load,)
    return (_named(each), *map(integer, counts), ms(each.step_ms), *map(decimal, loads))


# admission


def _admission(found: Explanation) -> Sheet:
    decision = found.decision
    rows: list[Row] = [
        ("prefill: predicted TTFT / its SLO", decimal(decision.prefill_load, 3)),
        ("decode: mean load of the pool now", decimal(decision.decode_load, 3)),
    ]
    if decision.asked_decode_load is not None:
        rows.append(("decode: mean load that the admission asked about", decimal(decision.asked_decode_load, 3)))
    slos = f"TTFT {ms(decision.ttft_slo_ms)} ms, TBT {ms(decision.tbt_slo_ms)} ms"
    note = f"SLOs of this request: {slos}; above 1 is too much"
    return Sheet("Loads at the admission", ("stage", "load"), tuple(rows), (note,))


# what happened

TIMES = (
    ("queue", "queue_ms"),
    ("fetch", "fetch_ms"),
    ("prefill", "prefill_ms"),
    ("TTFT", "ttft_ms"),
    ("KV transfer", "kv_transfer_ms"),
    ("wait to decode", "decode_wait_ms"),
    ("first gap", "first_gap_ms"),
    ("TBT", "tbt_ms"),
    ("end to end", "e2e_ms"),
)


def _happened(found: Explanation) -> Sheet:
    row, decision = found.happened, found.decision
    predicted: dict[str, float | None] = {
        **decision.parts_ms, "TTFT": decision.ttft_ms + decision.waited_ms, "TBT": decision.tbt_ms,
    }  # fmt: skip
    rows = [_time(word, predicted.get(word), row[column]) for word, column in TIMES]
    if row["retry_wait_ms"]:
        rows.insert(0, _time("waited to retry", decision.waited_ms, row["retry_wait_ms"]))
    shown = tuple(cells for cells in rows if cells[1:] != (DASH,) * 3)
    notes = [_fate(row)]
    if row["fetched_tokens"] or row["loaded_tokens"]:
        notes.append("fetch: what was left to wait for when its turn had come; until then it goes on beside the queue")
    return Sheet("What then happened, ms", ("part", "predicted", "happened", "change"), shown, tuple(notes))


def _time(word: str, predicted: float | None, happened: float | None) -> Row:
    change = DASH
    if predicted is not None and happened is not None:
        less = happened - predicted
        change = "0" if abs(less) < 5e-7 else ("+" if less > 0 else "-") + ms(abs(less))
    return (word, ms(predicted), ms(happened), change)


def _fate(row: dict[str, Any]) -> str:
    status = row["status"]
    if status == "rejected":
        status = f"rejected at {row['reject_stage']} ({row['reject_reason']})"
    elif status == "failed":
        status = f"failed ({row['reject_reason']})"
    words = [status]
    if row["prefill_instance"] is not None:
        where = "inlined" if row["inlined"] else f"on instance {row['prefill_instance']}"
        words.append(f"prefill {where}")
    if row["decode_instance"] is not None:
        words.append(f"decode on instance {row['decode_instance']}")
    if row["hit_tokens"] is not None:
        parts = [(row["fetched_tokens"], "fetched"), (row["loaded_tokens"], "loaded from SSD")]
        more = "".join(f", {count:,} of them {what}" for count, what in parts if count)
        words.append(f"{counted(row['hit_tokens'], 'token')} hit{more}")
    for column, one in (("preemptions", "preemption"), ("rejections", "rejection")):
        if row[column] and not (column == "rejections" and row["attempts"] == 1):
            words.append(counted(row[column], one))
    if row["status"] == "completed":
        words.append("within its SLOs" if row["slo_ok"] else _missed(row))
    return "; ".join(words)


def _missed(row: dict[str, Any]) -> str:
    missed = [word for word, column in (("TTFT", "slo_ttft_ok"), ("TBT", "slo_tbt_ok")) if row[column] is False]
    return f"{' and '.join(missed)} SLO missed"


def _notices(found: Explanation) -> Iterator[str]:
    decision, row = found.decision, found.happened
    best = decision.candidates[0]
    if not best.chosen:
        chosen = next(each for each in decision.candidates if each.chosen)
        yield (
            f"instance {chosen.instance} is not the least estimate: instance {best.instance} by "
            f"{ms(chosen.estimate_ms - best.estimate_ms)} ms"
        )
    if decision.fetch_gone:
        yield "the router wanted a fetch that its view promised, and nothing was there to be fetched"
    whole = sum(decision.parts_ms.values())
    if decision.ttft_by_policy and abs(whole - decision.ttft_ms) > 1e-6 * max(1.0, whole):
        yield f"the parts of this route come to {ms(whole)} ms; the policy's own formula said {ms(decision.ttft_ms)}"
    if found.attempt < found.attempts:
        yield (
            f"this is attempt {found.attempt}; the request came {found.attempts} times, and the run tells what became "
            "of the last"
        )
    elif row["decode_instance"] is not None and decision.decode not in (None, row["decode_instance"]):
        yield f"the decode instance was chosen anew later: {row['decode_instance']} instead of {decision.decode}"


def explain_rows(found: Explanation) -> list[dict[str, Any]]:
    """Every candidate as one line of a CSV file; what a kind does not have is None."""
    decision = found.decision
    rows = [{"role": "prefill"} | asdict(each) for each in decision.candidates]
    rows += [{"role": "decode"} | asdict(each) for each in decision.decodes]
    keys = dict.fromkeys(key for row in rows for key in row)
    return [{key: row.get(key) for key in keys} for row in rows]
