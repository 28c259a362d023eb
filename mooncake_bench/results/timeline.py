"""Both pools over time: sampled load, queues and batches, and what happened in each interval.

A row stands for the interval from ``time_ms`` to the next row. Loads, queues and batches are the state at its start
(just after everything that happened at that instant); utilisations and counts are over the interval. Integer ps until
the last division, so that two runs of one replay give the same bytes.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from mooncake_bench import spool
from mooncake_bench.results.coupled import busy_spans_ps, stalled
from mooncake_bench.results.gaps import PS_PER_MS
from mooncake_bench.results.inlined import on_prefill_instances
from mooncake_bench.results.records import COMPLETED, FAILED, REJECTED, STAGES, routed, turns_ps
from mooncake_bench.results.steps import elapsed_ps

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mooncake_bench.results.records import Records
    from mooncake_bench.results.steps import Bools, Floats, Ints, Segments
    from mooncake_bench.sim.replay import Replay

SAMPLES = 2_000
MOST_CELLS = 4_000_000  # samples x decode instances worked on at once
TIMELINE = pa.schema(
    [
        ("time_ms", pa.float64()),
        ("prefill_load_ratio", pa.float64()),
        ("decode_load_ratio", pa.float64()),
        ("prefill_utilisation_ratio", pa.float64()),
        ("decode_utilisation_ratio", pa.float64()),
        ("queued_requests", pa.int64()),
        ("prefilling_requests", pa.int64()),
        ("transferring_requests", pa.int64()),
        ("waiting_requests", pa.int64()),
        ("decoding_requests", pa.int64()),
        ("decoding_tokens", pa.int64()),
        ("arrived_requests", pa.int64()),
        ("completed_requests", pa.int64()),
        ("rejected_arrival_requests", pa.int64()),
        ("rejected_prefill_requests", pa.int64()),
        ("rejected_decode_requests", pa.int64()),
        ("failed_requests", pa.int64()),
        ("pool_blocks", pa.int64()),
        ("pool_distinct_blocks", pa.int64()),
    ]
)


def interval_ms(horizon_ms: float, instances: int = 1) -> float:
    """The shortest of 1, 2, 5, 10, … ms with at most 2,000 samples in ``horizon_ms``, or fewer for many instances."""
    samples = max(50, min(SAMPLES, MOST_CELLS // max(instances, 1)))
    steps = (digit * 10.0**power for power in range(15) for digit in (1, 2, 5))
    return next(step for step in steps if horizon_ms <= step * samples)


def timeline(records: Records, interval: float | None = None) -> pa.Table:
    """The sampled run, as :data:`TIMELINE`; ``interval`` in ms, None chooses one."""
    replay = records.replay
    chosen = interval or interval_ms(replay.horizon_ps / PS_PER_MS, int(replay.is_decode.sum()))
    clock = _Clock(round(chosen * PS_PER_MS), replay.horizon_ps)
    columns = {
        "time_ms": clock.times_ps / PS_PER_MS,
        "prefill_load_ratio": _prefill_load(records, clock),
        **_decode_state(records, clock),
        **_utilisations(records, clock),
        **_states(records, clock),
        **_counts(records, clock),
        **_occupancy(records, clock),
    }
    return pa.table([_column(columns[field.name], field.type) for field in TIMELINE], schema=TIMELINE)


def _column(values: Floats | Ints | pa.Array, kind: pa.DataType) -> pa.Array:
    """As a table has it; nan, of a pool that has no instance, is null."""
    return values if isinstance(values, pa.Array) else pa.array(values, kind, from_pandas=True)


class _Clock:
    """Sample times 0, d, 2d, … up to the horizon, and sums over what covers them."""

    def __init__(self, step_ps: int, horizon_ps: int) -> None:
        self.step_ps = step_ps
        self.samples = horizon_ps // step_ps + 1
        self.times_ps = np.arange(self.samples) * step_ps

    def from_time(self, time_ps: Ints) -> Ints:
        """Index of the first sample at or after each time."""
        return np.clip(-(-time_ps // self.step_ps), 0, self.samples)

    def interval_of(self, time_ps: Ints) -> Ints:
        """Index of the interval that holds each time."""
        return np.clip(time_ps // self.step_ps, 0, self.samples - 1)

    def stack(self, since_ps: Ints, until_ps: Ints, amount: Ints | int = 1) -> Ints:
        """At each sample, the sum of ``amount`` over the spans [since, until) that hold it."""
        change = np.zeros(self.samples + 1, np.int64)
        amounts = np.broadcast_to(np.asarray(amount, np.int64), since_ps.shape)
        np.add.at(change, self.from_time(since_ps), amounts)
        np.subtract.at(change, self.from_time(np.maximum(until_ps, since_ps)), amounts)
        return np.cumsum(change[:-1])

    def remaining(self, since_ps: Ints, until_ps: Ints) -> Ints:
        """At each sample, the sum of ``until - now`` over the spans [since, until) that hold it, ps."""
        ends = self.stack(since_ps, until_ps, until_ps)  # sums may wrap around; their difference is exact
        return ends - self.stack(since_ps, until_ps) * self.times_ps

    def melting(self, since_ps: Ints, until_ps: Ints, amount: Ints) -> Ints:
        """At each sample, the sum over the spans of ``amount`` that goes evenly from all at the start to 0."""
        rate = amount / (until_ps - since_ps)
        left = np.zeros(self.samples + 1)
        for edge, sign in ((since_ps, 1.0), (until_ps, -1.0)):
            np.add.at(left, self.from_time(edge), sign * rate * until_ps)
        slope = np.zeros(self.samples + 1)
        for edge, sign in ((since_ps, 1.0), (until_ps, -1.0)):
            np.add.at(slope, self.from_time(edge), sign * rate)
        melted = np.cumsum(left[:-1]) - np.cumsum(slope[:-1]) * self.times_ps
        whole: Ints = np.maximum(np.rint(melted), 0).astype(np.int64)
        return whole

    def busy_ratio(self, spans: Iterable[tuple[Ints, Ints]], pool: PoolSize) -> Floats:
        """Share of each interval that the pool's servers spend inside the spans, given some (start, end) at a time.

        nan where there is no server.
        """
        edges = np.append(self.times_ps, self.samples * self.step_ps)
        total = np.zeros(len(edges), np.int64)
        for since_ps, until_ps in spans:
            total += time_since(since_ps, edges) - time_since(until_ps, edges)
        if pool.changes_ps is None:
            return np.diff(total) / (self.step_ps * (pool.most or np.nan))
        capacity = np.diff(pool.capacity_ps(edges))
        return np.diff(total) / np.where(capacity > 0, capacity, np.nan)

    def count(self, time_ps: Ints) -> Ints:
        """How many of the times fall in each interval."""
        return np.bincount(self.interval_of(time_ps), minlength=self.samples).astype(np.int64)


class PoolSize:
    """How many instances prefill, or decode: always ``most``, unless some fail or change their role."""

    def __init__(self, replay: Replay, pool: str) -> None:
        column, mask = (1, replay.is_prefill) if pool == "prefill" else (2, replay.is_decode)
        self.most = int(mask.sum())
        changes = replay.pool_sizes
        self.changes_ps = None if changes is None else changes[:, 0]  # from then on there are so many
        self._size = np.zeros(0, np.int64) if changes is None else changes[:, column]

    def at(self, times_ps: Ints) -> Floats | float:
        """At each time; nan for none. One number where it never changes."""
        if self.changes_ps is None:
            return self.most or np.nan
        size = self._size[np.searchsorted(self.changes_ps, times_ps, "right") - 1]
        return np.where(size > 0, size, np.nan)

    def capacity_ps(self, edges_ps: Ints) -> Ints:
        """Instance time from the beginning to each edge."""
        assert self.changes_ps is not None
        lasts = np.diff(self.changes_ps, append=max(int(edges_ps[-1]), int(self.changes_ps[-1])))
        before = np.cumsum(self._size * lasts) - self._size * lasts
        at = np.searchsorted(self.changes_ps, edges_ps, "right") - 1
        passed: Ints = before[at] + self._size[at] * (edges_ps - self.changes_ps[at])
        return passed


def time_since(moments_ps: Ints, edges_ps: Ints) -> Ints:
    """For each edge, the sum of ``edge - moment`` over the moments before it."""
    ordered = np.sort(moments_ps)
    sums = np.concatenate(([0], np.cumsum(ordered)))
    before = np.searchsorted(ordered, edges_ps, "left")
    return before * edges_ps - sums[before]


def _prefill_load(records: Records, clock: _Clock) -> Floats:
    """Work routed to the prefill pool and not yet done, per instance, over the TTFT SLO.

    Queued prefills, the remainder of the running ones, and of the fetches that an instance idles for (rule 5); only
    prefills that really ran are known.
    """
    replay, work = records.replay, np.zeros(clock.samples, np.int64)
    for raw in _pieces(records):
        ran = on_prefill_instances(raw)
        head, start = (raw[name][ran] for name in ("head_ps", "start_ps"))
        spent = turns_ps(raw)[ran]
        work += clock.stack(raw["again_ps"][ran], start, spent)
        if replay.setup.coupled:  # its steps are shared, and it works at a rate of its own
            until = np.maximum(raw["first_token_ps"][ran], start + 1)
            work += clock.melting(start, until, spent)
            continue
        work += clock.remaining(head, start) + clock.remaining(start, start + spent)
    instances: Floats | float = PoolSize(replay, "prefill").at(clock.times_ps)
    load: Floats = work / (instances * replay.setup.slo_ttft_ms * PS_PER_MS)
    return load


def _pieces(records: Records) -> Iterator[dict[str, Ints]]:
    """The replay's columns, some rows at a time, and when the attempt came that they show."""
    for part in spool.parts(len(records.replay.trace)):
        raw = {name: column[part] for name, column in records.replay.columns.items()}
        yield raw | {"again_ps": raw["arrival_ps"] + raw.get("waited_ps", 0)}


def _decode_state(records: Records, clock: _Clock) -> dict[str, Floats | Ints]:
    """The decode pool's batch, and its load: mean over instances of the larger of step / TBT SLO and context / VRAM."""
    replay, segments = records.replay, records.segments
    segment, sample = _covered(segments, clock)
    step = steps_done(segments, segment, clock.times_ps[sample] - segments.start_ps[segment])
    step_ms = (segments.step_ps[segment] + segments.growth_ps[segment] * step) / PS_PER_MS
    tokens = segments.tokens[segment] + segments.batch[segment] * step
    share = tokens / replay.vram_tokens[segments.instance[segment]]
    load = np.maximum(step_ms / replay.setup.slo_tbt_ms, share)
    batch = segments.batch[segment]
    if replay.setup.coupled:
        more = _stalled_state(records, clock)
        sample, load, batch, tokens = map(np.concatenate, zip((sample, load, batch, tokens), more, strict=True))
    instances = PoolSize(replay, "decode").at(clock.times_ps)
    return {
        "decode_load_ratio": np.bincount(sample, load, clock.samples) / instances,
        "decoding_requests": np.bincount(sample, batch, clock.samples).astype(np.int64),
        "decoding_tokens": np.bincount(sample, tokens, clock.samples).astype(np.int64),
    }


def _stalled_state(records: Records, clock: _Clock) -> tuple[Ints, Floats, Ints, Ints]:
    """Samples within a prefill step that a batch waits for, and there: load, requests and tokens of the batch.

    The load is that of the step that follows, the tokens the waiting requests' share of that step's.
    """
    replay, segments = records.replay, records.segments
    at, requests = stalled(records)
    which, sample = _within(clock, segments.start_ps[at] - segments.pause_ps[at], segments.start_ps[at])
    at, requests = at[which], requests[which]
    tokens = segments.tokens[at] * requests // segments.batch[at]
    share = tokens / replay.vram_tokens[segments.instance[at]]
    return sample, np.maximum(segments.step_ps[at] / PS_PER_MS / replay.setup.slo_tbt_ms, share), requests, tokens


def _covered(segments: Segments, clock: _Clock) -> tuple[Ints, Ints]:
    """Every pair (segment, sample within it)."""
    pairs = []
    for part in spool.parts(len(segments)):
        some = segments[part]
        segment, sample = _within(clock, some.start_ps, some.end_ps)
        pairs.append((segment + part.start, sample))
    segment, sample = (np.concatenate(each) for each in zip(*pairs, strict=True))
    return segment, sample


def _within(clock: _Clock, since_ps: Ints, until_ps: Ints) -> tuple[Ints, Ints]:
    """Every pair (span, sample within it)."""
    first = clock.from_time(since_ps)
    counts = clock.from_time(until_ps) - first
    span = np.repeat(np.arange(len(since_ps)), counts)
    return span, np.arange(len(span)) - np.repeat(np.cumsum(counts) - counts, counts) + first[span]


def steps_done(segments: Segments, at: Ints, gone_ps: Ints) -> Ints:
    """Whole steps that the segments ``at`` have done so long after their start: a float root, corrected in integers."""
    step, growth = segments.step_ps[at], segments.growth_ps[at]
    half = step - 0.5 * growth
    root = 2.0 * gone_ps / (half + np.sqrt(half * half + 2.0 * growth * gone_ps))
    done: Ints = root.astype(np.int64)
    done -= elapsed_ps(done, step, growth) > gone_ps
    done += elapsed_ps(done + 1, step, growth) <= gone_ps
    return done


def _utilisations(records: Records, clock: _Clock) -> dict[str, Floats]:
    replay, segments = records.replay, records.segments
    decoding = ((some.start_ps, some.end_ps) for part in spool.parts(len(segments)) for some in (segments[part],))
    alone = replay.inlined_alone  # a prompt without a batch keeps a decode instance busy too
    more = () if alone is None else ((alone[:, 1], alone[:, 2]),)
    decode = clock.busy_ratio(chain(decoding, more), PoolSize(replay, "decode"))
    if replay.setup.coupled:
        prefill = clock.busy_ratio([busy_spans_ps(records)[1:]], PoolSize(replay, "prefill")) - decode
    else:
        prefill = clock.busy_ratio(_busy_prefill(records), PoolSize(replay, "prefill"))
    return {"prefill_utilisation_ratio": prefill, "decode_utilisation_ratio": decode}


def _busy_prefill(records: Records) -> Iterator[tuple[Ints, Ints]]:
    """Start and end of every prefill, ps; one still running when the replay stopped ends there.

    What ran before its instance died, or its request was called off, counts.
    """
    if lost := records.replay.lost:
        ran = on_prefill_instances(lost)
        yield lost["start_ps"][ran], (lost["start_ps"] + lost["spent_ps"])[ran]
    for raw in _pieces(records):
        ran = on_prefill_instances(raw)
        first_token, horizon = raw["first_token_ps"][ran], records.replay.horizon_ps
        ends = np.where(first_token >= 0, first_token, horizon)
        if "turn_ps" in raw:  # a pipeline is as busy as its first stage: all have the same work
            ends = np.minimum(raw["start_ps"][ran] + raw["turn_ps"][ran], horizon)
        yield raw["start_ps"][ran], ends


def _states(records: Records, clock: _Clock) -> dict[str, Ints]:
    """How many requests are where at each sample."""
    stays, segments = records.stays, records.segments
    pauses = np.flatnonzero(~stays.opens)  # preempted: from the end of one stay to the next
    ends = stays[pauses - 1].end_ps(segments) if len(pauses) else pauses
    found = {name: np.zeros(clock.samples, np.int64) for name in ("queued", "prefilling", "transferring")}
    found["waiting"] = clock.stack(ends, stays.join_ps[pauses])
    for raw in _pieces(records):
        start, first_token, kv, join, end = (
            raw[f"{name}_ps"] for name in ("start", "first_token", "kv_arrival", "join", "end")
        )
        found["queued"] += _between(clock, routed(raw), raw["again_ps"], start, end)
        found["prefilling"] += _between(clock, start >= 0, start, first_token, end)
        found["transferring"] += _between(clock, first_token >= 0, first_token, kv, end)
        found["waiting"] += _between(clock, kv >= 0, kv, join, end)
    return {f"{name}_requests": counts for name, counts in found.items()}


def _between(clock: _Clock, where: Bools, since: Ints, until: Ints, end: Ints) -> Ints:
    """Requests that are past ``since`` and not yet at ``until``, nor at their end; one that reaches neither stays."""
    forever = np.int64(clock.samples * clock.step_ps + 1)
    stop = np.where(until >= 0, until, np.where(end >= 0, end, forever))
    return clock.stack(since[where], stop[where])


def _occupancy(records: Records, clock: _Clock) -> dict[str, pa.Array]:
    """What the stores of all prefill instances held after the latest arrival: slots in use, and different blocks.

    Null before the first arrival.
    """
    seen = records.replay.occupancy
    if seen is None or not len(seen["time_ps"]):
        nothing = pa.nulls(clock.samples, pa.int64())
        return {"pool_blocks": nothing, "pool_distinct_blocks": nothing}
    latest = np.searchsorted(seen["time_ps"], clock.times_ps, "right") - 1
    return {
        f"pool_{name}": pa.array(seen[name][np.maximum(latest, 0)], mask=latest < 0)
        for name in ("blocks", "distinct_blocks")
    }


def _counts(records: Records, clock: _Clock) -> dict[str, Ints]:
    """What happened in each interval."""
    words = ("arrived", "completed", "failed", *(f"rejected_{stage}" for stage in STAGES[1:]))
    counts = {word: np.zeros(clock.samples, np.int64) for word in words}
    for raw in _pieces(records):
        came = raw["arrival_ps"] <= records.replay.horizon_ps  # the others come after an interruption
        counts["arrived"] += clock.count(raw["arrival_ps"][came])
        for word, code in (("completed", COMPLETED), ("failed", FAILED)):
            counts[word] += clock.count(raw["end_ps"][raw["status"] == code])
        for code, stage in enumerate(STAGES[1:], start=1):
            dropped = (raw["status"] == REJECTED) & (raw["reject_stage"] == code)
            counts[f"rejected_{stage}"] += clock.count(raw["end_ps"][dropped])
    return {f"{word}_requests": column for word, column in counts.items()}
