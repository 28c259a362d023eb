"""What must hold after every replay. A breach is a fault of the simulator, never of the user.

Checked in whole columns (of a large run: in long parts, and numbers in an error are of one part) and in integer ps, so
that every run can afford it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench import spool
from mooncake_bench.errors import InvariantError
from mooncake_bench.results.coupled import busy_spans_ps
from mooncake_bench.results.inlined import check_inlined, on_prefill_instances
from mooncake_bench.results.records import COMPLETED, FAILED, OPTIONAL, REJECTED, STATUSES, UNFINISHED, routed, turns_ps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mooncake_bench.results.records import Records
    from mooncake_bench.results.steps import Bools, Ints, Segments, Stays

# In the order in which they come; a later one that is known makes the earlier ones known.
PREFILL_CLOCK = ("arrival_ps", "head_ps", "start_ps", "first_token_ps")
DECODE_CLOCK = ("first_token_ps", "kv_arrival_ps", "join_ps", "second_token_ps")


def check(records: Records) -> None:
    """Raises InvariantError, naming the request or instance and the numbers, when the replay contradicts itself."""
    check_accounts(records)
    check_clocks(records)
    check_hits(records)
    check_prefill_overlap(records)
    check_pipelines(records)
    check_inlined(records)
    check_stays(records)
    check_outputs(records)
    check_segments(records)
    check_batches(records)


def check_accounts(records: Records) -> None:
    """offered = completed + rejected + failed + unfinished, and each row looks like its status."""
    status = records.replay.columns["status"]
    counts = np.bincount(status[(status >= 0) & (status < len(STATUSES))], minlength=len(STATUSES))
    if len(status) != len(records.replay.trace) or counts.sum() != len(status):
        shown = ", ".join(f"{word} {count}" for word, count in zip(STATUSES, counts.tolist(), strict=True))
        raise InvariantError(f"offered {len(records.replay.trace)} requests, but the accounts hold {shown}")
    for part in spool.parts(len(status)):
        _check_fates(_Rows(records, part), interrupted=records.replay.interrupted)


def _check_fates(raw: _Rows, *, interrupted: bool) -> None:
    status = raw["status"]
    rejected, ended = status == REJECTED, status != UNFINISHED
    _each(rejected == (raw["reject_stage"] > 0), "rejected exactly with a stage", raw, "status", "reject_stage")
    with_reason = raw["reject_reason"] >= 0
    fine = (rejected == with_reason) | (status == FAILED)
    _each(fine, "rejected exactly with a reason, or failed", raw, "status", "reject_reason")
    _each(ended == (raw["end_ps"] >= 0), "an end exactly when it has ended", raw, "status", "end_ps")
    _each((status != COMPLETED) | (raw["first_token_ps"] >= 0), "completed with a first token", raw, "first_token_ps")
    fine = (status != FAILED) | routed(raw) | with_reason
    _each(fine, "failed only after routing, or for a reason", raw, "prefill_instance")
    fine = (raw["attempts"] > 1) | (status == FAILED) | (raw["lost_ps"] == 0)
    _each(fine, "prefill is lost with an attempt", raw, "attempts", "lost_ps")
    fine = (raw["attempts"] > 1) | (raw["waited_ps"] == 0)
    _each(fine, "who waits to come back has come before", raw, "attempts", "waited_ps")
    _each(raw["rejections"] <= raw["attempts"], "an attempt is rejected once", raw, "attempts", "rejections")
    if not interrupted:
        _each(ended, "every request of a replay that ran to its end has a status", raw, "status")


def check_clocks(records: Records) -> None:
    """Times in order, and ttft = queue + fetch + prefill with the prefill time that the cost model gave."""
    for part in spool.parts(len(records.replay.trace)):
        _check_clocks(_Rows(records, part), coupled=records.replay.setup.coupled)


def _check_clocks(raw: _Rows, *, coupled: bool) -> None:
    for clock in (PREFILL_CLOCK, DECODE_CLOCK):
        for earlier, later in pairwise(clock):
            known = raw[later] >= 0
            fine = ~known | ((raw[earlier] >= 0) & (raw[earlier] <= raw[later]))
            _each(fine, f"{earlier} comes before {later}", raw, earlier, later)
    done = raw["first_token_ps"] >= 0
    spent = raw["first_token_ps"] - raw["start_ps"]
    cost = raw["prefill_ps"]
    shared: Bools = raw["inlined"].astype(np.bool_) | coupled
    if shared.any():
        fine = ~(done & shared) | (cost <= spent) | (coupled & (raw["preemptions"] > 0))
        _each(
            fine, "prefill takes no less than its share of the steps", raw, "start_ps", "first_token_ps", "prefill_ps"
        )
        cost = np.where(shared, spent, cost).astype(np.int64)
    if raw.has("turn_ps"):  # what is still in the later stages of a pipeline may hold it up
        fine = ~done | ((cost <= spent) & (raw["turn_ps"] <= cost))
        _each(fine, "a pipeline takes no less than an empty one", raw, "first_token_ps", "prefill_ps", "turn_ps")
        cost = spent
    fine = ~done | (spent == cost)
    _each(fine, "prefill lasts as long as its cost", raw, "start_ps", "first_token_ps", "prefill_ps")
    waited = raw["waited_ps"]
    queue, fetch = raw["head_ps"] - raw["arrival_ps"] - waited, raw["start_ps"] - raw["head_ps"]
    fine = (waited >= 0) & ((raw["head_ps"] < 0) | (queue >= 0))
    _each(fine, "an attempt queues after it has come", raw, "arrival_ps", "waited_ps", "head_ps")
    ttft = raw["first_token_ps"] - raw["arrival_ps"]
    fine = ~done | (ttft == waited + queue + fetch + cost)
    _each(fine, "ttft is the sum of its parts", raw, "waited_ps", *PREFILL_CLOCK)
    ended = raw["end_ps"] >= 0
    for name in (*PREFILL_CLOCK, *DECODE_CLOCK):
        _each(~ended | (raw[name] <= raw["end_ps"]), f"{name} is not after the end", raw, name, "end_ps")


def check_hits(records: Records) -> None:
    """Hits stay below the infinite-cache prefix, and what is not hit is computed (rule 3)."""
    trace = records.replay.trace
    for part in spool.parts(len(trace)):
        facts = {"input_tokens": trace.input_tokens[part], "ceiling_tokens": records.ceiling_tokens[part]}
        _check_hits(_Rows(records, part, facts), trace.block_tokens)


def _check_hits(raw: _Rows, block_tokens: int) -> None:
    ran, tokens, hits = raw["start_ps"] >= 0, raw["input_tokens"], raw["hit_tokens"]
    below = ~ran | (hits <= raw["ceiling_tokens"])
    _each(below, "no hit exceeds the infinite cache's", raw, "hit_tokens", "ceiling_tokens")
    exact = hits == np.minimum(raw["hit_blocks"] * block_tokens, tokens)
    _each(exact, "hit_tokens = min(hit_blocks * block, input)", raw, "hit_tokens", "hit_blocks", "input_tokens")
    computed = raw["computed_tokens"] == np.maximum(1, tokens - hits)
    _each(~ran | computed, "computed = max(1, input - hit)", raw, "computed_tokens", "hit_tokens", "input_tokens")
    fetched = raw["fetched_tokens"]  # of no use where what comes before was dropped with the request that promised it
    fine = (fetched >= 0) & ((fetched <= hits) | (hits + fetched <= tokens))
    _each(fine, "fetched tokens are hits", raw, "fetched_tokens", "hit_tokens")
    if raw.has("loaded_tokens"):
        loaded = raw["loaded_tokens"]
        fine = (loaded >= 0) & (loaded <= hits) & ((loaded + fetched <= hits) | (hits + fetched <= tokens))
        _each(fine, "loaded tokens are hits", raw, "loaded_tokens", "fetched_tokens", "hit_tokens")


def check_prefill_overlap(records: Records) -> None:
    """An instance prefills one request at a time, and only a prefill instance does."""
    rows, instance, start, spent = _prefills(records)
    wrong = (instance < 0) | (instance >= len(records.replay.is_prefill))
    if wrong.any() or not records.replay.is_prefill[instance].all():
        raise InvariantError("a request was prefilled on an instance that does not prefill")
    end = start + spent
    if records.replay.setup.coupled:
        _check_shares(records, instance, spent)
        return
    order = np.lexsort((end, start, instance))
    rows, instance, start, end = rows[order], instance[order], start[order], end[order]
    clash = (instance[1:] == instance[:-1]) & (start[1:] < end[:-1])
    if clash.any():
        at = int(np.argmax(clash))
        raise InvariantError(
            f"prefill instance {instance[at]} ran two prefills at once: rows {rows[at]} (until {end[at]} ps) "
            f"and {rows[at + 1]} (from {start[at + 1]} ps)"
        )


def _check_shares(records: Records, instance: Ints, spent: Ints) -> None:
    """Prefills on a coupled instance share the time in which it has requests."""
    size = len(records.replay.is_prefill)
    shares, busy = np.zeros(size, np.int64), np.zeros(size, np.int64)
    np.add.at(shares, instance, spent)
    where, since, until = busy_spans_ps(records)
    np.add.at(busy, where, until - since)
    if (shares > busy).any():
        at = int(np.argmax(shares > busy))
        raise InvariantError(
            f"coupled instance {at} spent {shares[at]} ps on prefills, and had requests for {busy[at]}"
        )


def _prefills(records: Records) -> tuple[Ints, Ints, Ints, Ints]:
    """Request row, instance, start and duration of every prefill that ran, those of lost attempts included.

    All but those in the steps of decode instances.
    """
    raw, lost = records.replay.columns, records.replay.lost
    rows = np.flatnonzero(on_prefill_instances(raw))
    found = [rows, raw["prefill_instance"][rows].astype(np.int64), raw["start_ps"][rows], turns_ps(raw)[rows]]
    if lost:
        ran = on_prefill_instances(lost)
        names = ("request", "prefill_instance", "start_ps", "spent_ps")
        found = [np.concatenate((some, lost[name][ran])) for some, name in zip(found, names, strict=True)]
    rows, instance, start, spent = found
    return rows, instance, start, spent


def check_pipelines(records: Records) -> None:
    """Where prefill instances are groups of nodes, requests leave the last stage in the order in which they entered."""
    raw = records.replay.columns
    if "turn_ps" not in raw:
        return
    rows = np.flatnonzero(on_prefill_instances(raw, "first_token_ps"))
    rows = rows[np.lexsort((raw["start_ps"][rows], raw["prefill_instance"][rows]))]
    instance, first_token = raw["prefill_instance"][rows], raw["first_token_ps"][rows]
    overtaken = (instance[1:] == instance[:-1]) & (first_token[1:] < first_token[:-1])
    if overtaken.any():
        at = int(np.argmax(overtaken))
        raise InvariantError(
            f"prefill instance {instance[at]} let row {rows[at + 1]} overtake row {rows[at]}: first tokens at "
            f"{first_token[at + 1]} and {first_token[at]} ps"
        )


def check_stays(records: Records) -> None:
    """Stays cover whole segments, begin and end with them, and agree with the times of their requests."""
    opens = np.append(records.stays.opens, True)
    for part in spool.parts(len(records.stays)):
        _check_stays(records, part, first=opens[part], last=opens[part.start + 1 : part.stop + 1])


def _check_stays(records: Records, part: slice, *, first: Bools, last: Bools) -> None:
    stays, raw = records.stays[part], records.replay.columns
    found = (stays.first >= 0) & (stays.last >= 0)
    _stay(stays, found, "its steps exist")
    if not len(stays):
        return
    opening, closing = _check_shape(stays, records.segments)
    _stay(stays, records.gap_ps[part] > 0, "tokens follow one another in time")
    agrees = raw["second_token_ps"][stays.request] == opening.start_ps + opening.step_ps
    _stay(stays, ~first | agrees, "its request's second token ends its first step")
    done = raw["status"][stays.request] == COMPLETED
    agrees = raw["end_ps"][stays.request] == closing.end_ps
    _stay(stays, ~(last & done) | agrees, "its request ends with its last step")


def _check_shape(stays: Stays, segments: Segments) -> tuple[Segments, Segments]:
    """They cover whole segments: the first of each stay, and the last."""
    opening, closing = segments[stays.first], segments[stays.last]
    _stay(stays, opening.first_step == stays.first_step, "it begins with a segment")
    _stay(stays, closing.first_step + closing.steps == stays.first_step + stays.steps, "it ends with a segment")
    _stay(stays, opening.start_ps == stays.join_ps, "its first step starts when it joins")
    return opening, closing


def check_outputs(records: Records) -> None:
    """Steps add up to what each request wanted."""
    trace, stays = records.replay.trace, records.stays
    made = np.zeros(len(trace), np.int64)
    for part in spool.parts(len(stays)):
        np.add.at(made, stays.request[part], stays.steps[part])
    for part in spool.parts(len(trace)):
        raw = _Rows(records, part, {"steps_done": made[part], "steps_wanted": trace.output_tokens[part] - 1})
        did, wanted = raw["steps_done"], raw["steps_wanted"]
        fine = np.where(raw["status"] == COMPLETED, did == wanted, did <= wanted)
        rule = "a completed request did output_tokens - 1 steps, no other more"
        _each(fine, rule, raw, "steps_done", "steps_wanted")


def check_segments(records: Records) -> None:
    """An instance's segments follow one another without overlap or missing step."""
    replay = records.replay
    for part in spool.parts(len(records.segments)):
        some = records.segments[part]
        before = records.segments[max(part.start - 1, 0) : part.stop - 1]
        now = some[len(some) - len(before) :]
        same = now.instance == before.instance
        follows = now.first_step == before.first_step + before.steps
        _segment(before, ~same | follows, "the next one continues its step numbers")
        _segment(before, ~same | (now.start_ps >= before.end_ps), "the next one starts after its end")
        _segment(some, (some.steps > 0) & (some.batch > 0), "it has steps and a batch")
        _segment(some, replay.is_decode[some.instance], "a decode instance ran it")
        if replay.setup.coupled:
            _segment(some, some.batch <= replay.setup.step_limits[1], "its batch is no more than coupled.sequences")
            if replay.setup.prefix_cache == "on":
                continue  # contexts share what they have in common; the engine checks its memory at every event
        most = some.tokens + some.batch * some.steps
        _segment(some, most <= replay.vram_tokens[some.instance], "its contexts fit in VRAM")


def check_batches(records: Records) -> None:
    """Batch and context sum of every segment are those of the stays that cover it.

    A replay that was interrupted has members whose stays never ended: there, no segment holds fewer than seen.
    """
    stays, segments = records.stays, records.segments
    everyone = np.ones(len(stays), np.bool_)
    members = stays.taking_part(segments, everyone)
    contexts = stays.taking_part(segments, everyone, _contexts(stays, records.replay.trace.input_tokens))
    if records.lost_stays is not None and len(records.lost_stays):
        lost, all_lost = records.lost_stays, np.ones(len(records.lost_stays), np.bool_)
        _check_shape(lost, segments)
        members += lost.taking_part(segments, all_lost)
        tokens = records.replay.trace.input_tokens[records.replay.lost["request"]]
        contexts += lost.taking_part(segments, all_lost, _contexts(lost, tokens))
    for part in spool.parts(len(segments)):
        some, count = segments[part], members[part]
        tokens = contexts[part] + count * some.first_step
        if records.replay.interrupted:
            _segment(some, (count <= some.batch) & (tokens <= some.tokens), "it holds its members")
            continue
        _segment(some, count == some.batch, "its batch counts its members")
        _segment(some, tokens == some.tokens, "its tokens are its members' contexts")


def _contexts(stays: Stays, input_tokens: Ints) -> Ints:
    """Context of each stay's request at its join, less the number of the step that it joined with."""
    opens = stays.opens
    before = np.cumsum(stays.steps)
    before -= stays.steps
    before -= np.repeat(before[opens], np.diff(np.flatnonzero(opens), append=len(stays)))
    for part in spool.parts(len(stays)):
        before[part] += input_tokens[stays.request[part]] + 1 - stays.first_step[part]
    return before


class _Rows:
    """Columns of some requests: the replay's, and some of one's own."""

    def __init__(self, records: Records, part: slice, own: Mapping[str, Ints] | None = None) -> None:
        self.first = part.start
        self._columns, self._part, self._own = records.replay.columns, part, own or {}

    def has(self, name: str) -> bool:
        """Whether the replay kept such a column."""
        return name in self._columns

    def __getitem__(self, name: str) -> Ints:
        if name in OPTIONAL and name not in self._columns:
            return np.full(self._part.stop - self._part.start, OPTIONAL[name])
        return self._own[name] if name in self._own else self._columns[name][self._part]


def _each(fine: Bools, rule: str, facts: _Rows, *shown: str) -> None:
    """Every row keeps ``rule``; else name the first that does not, with the columns to show."""
    if fine.all():
        return
    row = int(np.argmin(fine))
    values = ", ".join(f"{name} {facts[name][row]}" for name in shown)
    raise InvariantError(
        f"{int((~fine).sum())} requests break a rule ({rule}); the first is row {facts.first + row}: {values}"
    )


def _stay(stays: Stays, fine: Bools, rule: str) -> None:
    if fine.all():
        return
    at = int(np.argmin(fine))
    raise InvariantError(
        f"{int((~fine).sum())} stays break a rule ({rule}); the first: request row {stays.request[at]} on instance "
        f"{stays.instance[at]}, joined at {stays.join_ps[at]} ps, steps {stays.first_step[at]} + {stays.steps[at]}"
    )


def _segment(s: Segments, fine: Bools, rule: str) -> None:
    if fine.all():
        return
    at = int(np.argmin(fine))
    raise InvariantError(
        f"{int((~fine).sum())} decode segments break a rule ({rule}); the first: instance {s.instance[at]} at "
        f"{s.start_ps[at]} ps, steps {s.first_step[at]} + {s.steps[at]}, batch {s.batch[at]}, tokens {s.tokens[at]}"
    )
