"""What must hold after every replay. A breach is a fault of the simulator, never of the user.

Checked in whole columns and in integer ps, so that every run can afford it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.errors import InvariantError
from mooncake_bench.results.records import COMPLETED, FAILED, REJECTED, STATUSES, UNFINISHED, routed

if TYPE_CHECKING:
    from mooncake_bench.results.records import Records
    from mooncake_bench.results.steps import Bools, Ints

# In the order in which they come; a later one that is known makes the earlier ones known.
PREFILL_CLOCK = ("arrival_ps", "head_ps", "start_ps", "first_token_ps")
DECODE_CLOCK = ("first_token_ps", "kv_arrival_ps", "join_ps", "second_token_ps")


def check(records: Records) -> None:
    """Raises InvariantError, naming the request or instance and the numbers, when the replay contradicts itself."""
    check_accounts(records)
    check_clocks(records)
    check_hits(records)
    check_prefill_overlap(records)
    check_stays(records)
    check_outputs(records)
    check_segments(records)
    check_batches(records)


def check_accounts(records: Records) -> None:
    """offered = completed + rejected + failed + unfinished, and each row looks like its status."""
    raw = records.replay.columns
    status = raw["status"]
    counts = np.bincount(status[(status >= 0) & (status < len(STATUSES))], minlength=len(STATUSES))
    if len(status) != len(records.replay.trace) or counts.sum() != len(status):
        shown = ", ".join(f"{word} {count}" for word, count in zip(STATUSES, counts.tolist(), strict=True))
        raise InvariantError(f"offered {len(records.replay.trace)} requests, but the accounts hold {shown}")
    rejected, ended = status == REJECTED, status != UNFINISHED
    _each(rejected == (raw["reject_stage"] > 0), "rejected exactly with a stage", raw, "status", "reject_stage")
    _each(rejected == (raw["reject_reason"] >= 0), "rejected exactly with a reason", raw, "status", "reject_reason")
    _each(ended == (raw["end_ps"] >= 0), "an end exactly when it has ended", raw, "status", "end_ps")
    _each((status != COMPLETED) | (raw["first_token_ps"] >= 0), "completed with a first token", raw, "first_token_ps")
    _each((status != FAILED) | routed(raw), "failed only after routing", raw, "prefill_instance")
    if not records.replay.interrupted:
        _each(ended, "every request of a replay that ran to its end has a status", raw, "status")


def check_clocks(records: Records) -> None:
    """Times in order, and ttft = queue + fetch + prefill with the prefill time that the cost model gave."""
    raw = records.replay.columns
    for clock in (PREFILL_CLOCK, DECODE_CLOCK):
        for earlier, later in pairwise(clock):
            known = raw[later] >= 0
            fine = ~known | ((raw[earlier] >= 0) & (raw[earlier] <= raw[later]))
            _each(fine, f"{earlier} comes before {later}", raw, earlier, later)
    done = raw["first_token_ps"] >= 0
    spent = raw["first_token_ps"] - raw["start_ps"]
    fine = ~done | (spent == raw["prefill_ps"])
    _each(fine, "prefill lasts as long as its cost", raw, "start_ps", "first_token_ps", "prefill_ps")
    queue, fetch = raw["head_ps"] - raw["arrival_ps"], raw["start_ps"] - raw["head_ps"]
    ttft = raw["first_token_ps"] - raw["arrival_ps"]
    _each(~done | (ttft == queue + fetch + raw["prefill_ps"]), "ttft is the sum of its parts", raw, *PREFILL_CLOCK)
    ended = raw["end_ps"] >= 0
    for name in (*PREFILL_CLOCK, *DECODE_CLOCK):
        _each(~ended | (raw[name] <= raw["end_ps"]), f"{name} is not after the end", raw, name, "end_ps")


def check_hits(records: Records) -> None:
    """Hits stay below the infinite-cache prefix, and what is not hit is computed (rule 3)."""
    raw, trace = records.replay.columns, records.replay.trace
    ran = raw["start_ps"] >= 0
    tokens, hits = trace.input_tokens, raw["hit_tokens"]
    facts = raw | {"input_tokens": tokens, "ceiling_tokens": records.ceiling_tokens}
    below = ~ran | (hits <= records.ceiling_tokens)
    _each(below, "no hit exceeds the infinite cache's", facts, "hit_tokens", "ceiling_tokens")
    exact = hits == np.minimum(raw["hit_blocks"] * trace.block_tokens, tokens)
    _each(exact, "hit_tokens = min(hit_blocks * block, input)", facts, "hit_tokens", "hit_blocks", "input_tokens")
    computed = raw["computed_tokens"] == np.maximum(1, tokens - hits)
    _each(~ran | computed, "computed = max(1, input - hit)", facts, "computed_tokens", "hit_tokens", "input_tokens")
    fine = (raw["fetched_tokens"] >= 0) & (raw["fetched_tokens"] <= hits)
    _each(fine, "fetched tokens are hits", facts, "fetched_tokens", "hit_tokens")


def check_prefill_overlap(records: Records) -> None:
    """An instance prefills one request at a time, and only a prefill instance does."""
    raw = records.replay.columns
    rows = np.flatnonzero(raw["start_ps"] >= 0)
    instance = raw["prefill_instance"][rows].astype(np.int64)
    wrong = (instance < 0) | (instance >= len(records.replay.is_prefill))
    if wrong.any() or not records.replay.is_prefill[instance].all():
        raise InvariantError("a request was prefilled on an instance that does not prefill")
    order = np.lexsort((raw["first_token_ps"][rows], raw["start_ps"][rows], instance))
    rows, instance = rows[order], instance[order]
    end = raw["start_ps"][rows] + raw["prefill_ps"][rows]
    clash = (instance[1:] == instance[:-1]) & (raw["start_ps"][rows][1:] < end[:-1])
    if clash.any():
        at = int(np.argmax(clash))
        raise InvariantError(
            f"prefill instance {instance[at]} ran two prefills at once: rows {rows[at]} (until {end[at]} ps) "
            f"and {rows[at + 1]} (from {raw['start_ps'][rows[at + 1]]} ps)"
        )


def check_stays(records: Records) -> None:
    """Stays cover whole segments, begin and end with them, and agree with the times of their requests."""
    stays, segments, raw = records.stays, records.segments, records.replay.columns
    found = (stays.first >= 0) & (stays.last >= 0)
    _stay(records, found, "its steps exist")
    if not len(stays):
        return
    _stay(records, segments.first_step[stays.first] == stays.first_step, "it begins with a segment")
    ends = segments.first_step[stays.last] + segments.steps[stays.last]
    _stay(records, ends == stays.first_step + stays.steps, "it ends with a segment")
    _stay(records, segments.start_ps[stays.first] == stays.join_ps, "its first step starts when it joins")
    _stay(records, records.gap_ps > 0, "tokens follow one another in time")
    first, last = stays.opens, np.append(stays.opens[1:], True)
    second = segments.start_ps + segments.step_ps
    agrees = raw["second_token_ps"][stays.request] == second[stays.first]
    _stay(records, ~first | agrees, "its request's second token ends its first step")
    done = raw["status"][stays.request] == COMPLETED
    agrees = raw["end_ps"][stays.request] == segments.end_ps[stays.last]
    _stay(records, ~(last & done) | agrees, "its request ends with its last step")


def check_outputs(records: Records) -> None:
    """Steps add up to what each request wanted."""
    stays, raw = records.stays, records.replay.columns
    made = np.bincount(stays.request, stays.steps, minlength=len(raw["status"])).astype(np.int64)
    wanted = records.replay.trace.output_tokens - 1
    facts = raw | {"steps_done": made, "steps_wanted": wanted}
    fine = np.where(raw["status"] == COMPLETED, made == wanted, made <= wanted)
    _each(fine, "a completed request did output_tokens - 1 steps, no other more", facts, "steps_done", "steps_wanted")


def check_segments(records: Records) -> None:
    """An instance's segments follow one another without overlap or missing step."""
    segments, replay = records.segments, records.replay
    if not len(segments):
        return
    same = segments.instance[1:] == segments.instance[:-1]
    follows = segments.first_step[1:] == (segments.first_step + segments.steps)[:-1]
    later = segments.start_ps[1:] >= segments.end_ps[:-1]
    _segment(records, np.append(~same | follows, True), "the next one continues its step numbers")
    _segment(records, np.append(~same | later, True), "the next one starts after its end")
    _segment(records, (segments.steps > 0) & (segments.batch > 0), "it has steps and a batch")
    _segment(records, replay.is_decode[segments.instance], "a decode instance ran it")
    most = segments.tokens + segments.batch * segments.steps
    _segment(records, most <= replay.vram_tokens[segments.instance], "its contexts fit in VRAM")


def check_batches(records: Records) -> None:
    """Batch and context sum of every segment are those of the stays that cover it.

    A replay that was interrupted has members whose stays never ended: there, no segment holds fewer than seen.
    """
    stays, segments = records.stays, records.segments
    done_before = np.cumsum(stays.steps) - stays.steps
    opening = np.flatnonzero(stays.opens)
    done_before -= np.repeat(done_before[opening], np.diff(opening, append=len(stays)))
    context = records.replay.trace.input_tokens[stays.request] + 1 + done_before  # at the join
    everyone = np.ones(len(stays), np.bool_)
    members = stays.taking_part(segments, everyone)
    tokens = stays.taking_part(segments, everyone, context - stays.first_step) + members * segments.first_step
    if records.replay.interrupted:
        _segment(records, (members <= segments.batch) & (tokens <= segments.tokens), "it holds its members")
        return
    _segment(records, members == segments.batch, "its batch counts its members")
    _segment(records, tokens == segments.tokens, "its tokens are its members' contexts")


def _each(fine: Bools, rule: str, facts: dict[str, Ints], *shown: str) -> None:
    """Every row keeps ``rule``; else name the first that does not, with the columns to show."""
    if fine.all():
        return
    row = int(np.argmin(fine))
    values = ", ".join(f"{name} {facts[name][row]}" for name in shown)
    raise InvariantError(f"{int((~fine).sum())} requests break a rule ({rule}); the first is row {row}: {values}")


def _stay(records: Records, fine: Bools, rule: str) -> None:
    if fine.all():
        return
    at, stays = int(np.argmin(fine)), records.stays
    raise InvariantError(
        f"{int((~fine).sum())} stays break a rule ({rule}); the first: request row {stays.request[at]} on instance "
        f"{stays.instance[at]}, joined at {stays.join_ps[at]} ps, steps {stays.first_step[at]} + {stays.steps[at]}"
    )


def _segment(records: Records, fine: Bools, rule: str) -> None:
    if fine.all():
        return
    at, s = int(np.argmin(fine)), records.segments
    raise InvariantError(
        f"{int((~fine).sum())} decode segments break a rule ({rule}); the first: instance {s.instance[at]} at "
        f"{s.start_ps[at]} ps, steps {s.first_step[at]} + {s.steps[at]}, batch {s.batch[at]}, tokens {s.tokens[at]}"
    )
