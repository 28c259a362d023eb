"""From what the simulator kept to one row a request, with the names, units and nulls that readers rely on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from mooncake_bench import spool
from mooncake_bench.results.gaps import PS_PER_MS, gap_stats
from mooncake_bench.results.spooled import spooled
from mooncake_bench.results.steps import SEGMENT_COLUMNS, STAY_COLUMNS, Segments, Stays
from mooncake_bench.trace.model import NO_SESSION
from mooncake_bench.trace.stats import ceiling_tokens

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mooncake_bench.results.gaps import GapStats
    from mooncake_bench.results.steps import Bools, Floats, Ints
    from mooncake_bench.sim.replay import Replay

UNFINISHED, COMPLETED, REJECTED, FAILED = range(4)
STATUSES = ("unfinished", "completed", "rejected", "failed")
STAGES = ("none", "arrival", "prefill", "decode")
AT_ARRIVAL = 1
TOO_LARGE = "larger than a decode instance's VRAM"  # the one reason to fail
TOO_LARGE_COUPLED = "larger than a coupled instance's VRAM"

# replay columns that not every run has, and what one that is not there stands for
OPTIONAL = {
    "attempts": 1,
    "rejections": 0,
    "waited_ps": 0,
    "lost_ps": 0,
    "lost_tokens": 0,
    "vram_byte_s": np.nan,
    "kv_load_ps": -1,
    "loaded_tokens": 0,
    "inlined": False,
    "lost_inlined_ps": 0,
}

REQUESTS = pa.schema(
    [
        ("request_id", pa.string()),
        ("arrival_ms", pa.float64()),
        ("input_tokens", pa.int64()),
        ("output_tokens", pa.int64()),
        ("status", pa.string()),
        ("reject_stage", pa.string()),
        ("reject_reason", pa.string()),
        ("prefill_instance", pa.int32()),
        ("decode_instance", pa.int32()),
        ("hit_tokens", pa.int64()),
        ("hit_blocks", pa.int64()),
        ("fetched_tokens", pa.int64()),
        ("queue_ms", pa.float64()),
        ("fetch_ms", pa.float64()),
        ("prefill_ms", pa.float64()),
        ("kv_transfer_ms", pa.float64()),
        ("decode_wait_ms", pa.float64()),
        ("ttft_ms", pa.float64()),
        ("first_gap_ms", pa.float64()),
        ("tpot_ms", pa.float64()),
        ("tbt_ms", pa.float64()),
        ("tbt_max_ms", pa.float64()),
        ("e2e_ms", pa.float64()),
        ("prefill_gpu_ms", pa.float64()),
        ("wasted_prefill_tokens", pa.int64()),
        ("preemptions", pa.int32()),
        ("slo_ttft_ok", pa.bool_()),
        ("slo_tbt_ok", pa.bool_()),
        ("slo_ok", pa.bool_()),
        ("predicted_ttft_ms", pa.float64()),
        ("predicted_tbt_ms", pa.float64()),
        # beyond the common columns
        ("computed_tokens", pa.int64()),
        ("ceiling_tokens", pa.int64()),
        ("end_ms", pa.float64()),
        ("session_id", pa.int64()),
        ("priority", pa.int64()),
        ("attempts", pa.int32()),
        ("rejections", pa.int32()),
        ("retry_wait_ms", pa.float64()),
        ("lost_prefill_ms", pa.float64()),
        ("fetch_actual_ms", pa.float64()),
        ("fetch_ideal_ms", pa.float64()),
        ("stream_actual_ms", pa.float64()),
        ("stream_ideal_ms", pa.float64()),
        ("vram_byte_s", pa.float64()),
        ("kv_load_ms", pa.float64()),
        ("loaded_tokens", pa.int64()),
        ("inlined", pa.bool_()),
    ]
)
# columns that runs of earlier versions lack, and what they hold there
ADDED: dict[str, float | None] = {
    "attempts": 1,
    "rejections": None,
    "retry_wait_ms": 0.0,
    "lost_prefill_ms": 0.0,
    "fetch_actual_ms": None,
    "fetch_ideal_ms": None,
    "stream_actual_ms": None,
    "stream_ideal_ms": None,
    "vram_byte_s": None,
    "kv_load_ms": None,
    "loaded_tokens": 0,
    "inlined": False,
    # of the timeline
    "pool_blocks": None,
    "pool_distinct_blocks": None,
}
SEGMENTS = pa.schema([(name, pa.int64()) for name in SEGMENT_COLUMNS])
STAYS = pa.schema([(name, pa.int64()) for name in (*STAY_COLUMNS, "gap_ps")])


class Columns(Protocol):
    """Columns by name."""

    def __getitem__(self, name: str, /) -> Any: ...


@dataclass(frozen=True)
class Records:
    """What one replay left, derived once: the geometry of its decoding, and each request's gaps and cache ceiling."""

    replay: Replay
    segments: Segments
    stays: Stays
    gap_ps: Ints  # gap that ends with the first step of each stay
    ceiling_tokens: Ints  # infinite-cache prefix; -1: the request was never routed
    lost_stays: Stays | None = None  # of attempts that came to nothing: ``request`` is an index into ``replay.lost``

    @classmethod
    def of(cls, replay: Replay) -> Records:
        """Locate the stays and compute the ceilings. Cheap next to the replay; checks nothing."""
        segments = Segments.of(replay.segments)
        kept, lost = _kept(replay.stays)
        stays = Stays.of(kept, segments)
        gap_ps = stays.gap_ps(segments, replay.columns["first_token_ps"])
        order = np.flatnonzero(routed(replay.columns)) if replay.routings is None else replay.routings
        ceiling = ceiling_tokens(replay.trace, order, replay.warm_blocks)
        return cls(replay, segments, stays, gap_ps, ceiling, None if lost is None else Stays.of(lost, segments))

    def gap_stats(self) -> GapStats:
        """Token gaps of the completed requests, as the setup's SLO wants them."""
        setup = self.replay.setup
        return gap_stats(
            self.segments, self.stays, self.gap_ps, self.replay.columns["status"] == COMPLETED,
            exclude_first=setup.first_gap == "exclude", p99=setup.tbt_metric == "p99",
        )  # fmt: skip

    def requests(self) -> pa.Table:
        """One row a request, trace order, columns as in :data:`REQUESTS`."""
        gaps = self.gap_stats()
        parts = (_Columns(self, gaps, part) for part in spool.parts(len(self.replay.trace)))
        made = (pa.table([columns.arrow(field) for field in REQUESTS], schema=REQUESTS) for columns in parts)
        return spooled(REQUESTS, made)

    def segment_table(self) -> pa.Table:
        """The decode segments, as :data:`SEGMENTS`."""
        return pa.table({name: pa.array(getattr(self.segments, name)) for name in SEGMENT_COLUMNS}, schema=SEGMENTS)

    def stay_table(self) -> pa.Table:
        """The stays of at least one step, as :data:`STAYS`."""
        stays = {name: pa.array(getattr(self.stays, name)) for name in STAY_COLUMNS}
        return pa.table(stays | {"gap_ps": pa.array(self.gap_ps)}, schema=STAYS)


def turns_ps(columns: Mapping[str, Any]) -> Any:
    """How long each prefill kept the next one of its instance waiting: in a pipeline, less than it took."""
    return columns.get("turn_ps", columns["prefill_ps"])


def routed(columns: Columns) -> Bools:
    """Requests that were admitted at arrival and given a prefill instance."""
    there: Bools = (columns["prefill_instance"] >= 0) & (columns["reject_stage"] != AT_ARRIVAL)
    return there


def _kept(stays: dict[str, Ints]) -> tuple[dict[str, Ints], dict[str, Ints] | None]:
    """The stays of each request's last attempt; and those of lost attempts, by attempt, if there are any."""
    if "lost" not in stays:
        return stays, None
    last = stays["lost"] == 0
    kept = {name: stays[name][last] for name in STAY_COLUMNS}
    return kept, {name: stays[name][~last] for name in STAY_COLUMNS} | {"request": stays["lost"][~last] - 1}


class _Columns:
    """The columns of a requests table, each a method or a rule; ``None`` stands for undefined. Of some rows."""

    def __init__(self, records: Records, gaps: GapStats, rows: slice) -> None:
        replay = records.replay
        self.replay, self.trace, self.place = replay, replay.trace, rows
        self.raw = {name: column[rows] for name, column in replay.columns.items()}
        for name, absent in OPTIONAL.items():
            self.raw.setdefault(name, np.full(rows.stop - rows.start, absent))
        self.ceiling = records.ceiling_tokens[rows]
        self.gaps = gaps[rows]
        self.rows = rows.stop - rows.start
        status = self.raw["status"]
        self.completed = status == COMPLETED
        self.open = self.completed | (status == UNFINISHED)  # its latencies count, or may yet
        self.routed = routed(self.raw)
        self.prefilled = self.raw["start_ps"] >= 0  # its prefill began: what it hit and computes is known

    def arrow(self, field: pa.Field) -> pa.Array:
        """One column of the table, typed as its field."""
        made = getattr(self, field.name)()
        if isinstance(made, pa.Array):
            return made
        values, valid = made
        return pa.array(values, type=field.type, mask=None if valid is None else ~valid)

    def _span(self, later: str, earlier: str, where: Bools | None = None) -> tuple[Floats, Bools]:
        """Milliseconds from one moment to another, where both came."""
        a, b = self.raw[f"{earlier}_ps"], self.raw[f"{later}_ps"]
        valid = (a >= 0) & (b >= 0)
        return (b - a) / PS_PER_MS, valid if where is None else valid & where

    # what it is

    def request_id(self) -> pa.Array:
        given, places = self.trace.request_id, self.trace.source_row
        if given is not None:
            return pa.array(given[self.place], pa.string())
        rows = np.arange(self.place.start, self.place.stop) if places is None else places[self.place]
        return pa.array(rows).cast(pa.string())

    def arrival_ms(self) -> tuple[Floats, None]:
        return self.raw["arrival_ps"] / PS_PER_MS, None

    def input_tokens(self) -> tuple[Ints, None]:
        return self.trace.input_tokens[self.place], None

    def output_tokens(self) -> tuple[Ints, None]:
        return self.trace.output_tokens[self.place], None

    def session_id(self) -> tuple[Ints, Bools]:
        if self.trace.session_id is None:
            return self._absent()
        sessions = self.trace.session_id[self.place]
        return sessions, sessions != NO_SESSION

    def priority(self) -> tuple[Ints, Bools | None]:
        return self._absent() if self.trace.priority is None else (self.trace.priority[self.place], None)

    def _absent(self) -> tuple[Ints, Bools]:
        return np.zeros(self.rows, np.int64), np.zeros(self.rows, np.bool_)

    # what became of it

    def status(self) -> pa.Array:
        return _words(self.raw["status"], STATUSES)

    def reject_stage(self) -> pa.Array:
        stage = self.raw["reject_stage"]
        return _words(stage, STAGES, stage > 0)

    def reject_reason(self) -> pa.Array:
        """Why it was turned away, or could not be served at all."""
        failed = self.raw["status"] == FAILED
        given = self.raw["reject_reason"]
        reason = np.where(failed & (given < 0), len(self.replay.reasons), given)
        too_large = TOO_LARGE_COUPLED if self.replay.setup.coupled else TOO_LARGE
        return _words(reason, (*self.replay.reasons, too_large), reason >= 0)

    def prefill_instance(self) -> tuple[Ints, Bools]:
        return self.raw["prefill_instance"], self.routed

    def decode_instance(self) -> tuple[Ints, Bools]:
        return self.raw["decode_instance"], self.routed & (self.raw["decode_instance"] >= 0)

    def end_ms(self) -> tuple[Floats, Bools]:
        return self.raw["end_ps"] / PS_PER_MS, self.raw["end_ps"] >= 0

    def preemptions(self) -> tuple[Ints, None]:
        return self.raw["preemptions"], None

    # what the cache did for it

    def hit_tokens(self) -> tuple[Ints, Bools]:
        return self.raw["hit_tokens"], self.prefilled

    def hit_blocks(self) -> tuple[Ints, Bools]:
        return self.raw["hit_blocks"], self.prefilled

    def fetched_tokens(self) -> tuple[Ints, Bools]:
        return self.raw["fetched_tokens"], self.prefilled

    def loaded_tokens(self) -> tuple[Ints, Bools]:
        """Of the hits, those that came from the SSD."""
        return self.raw["loaded_tokens"], self.prefilled

    def inlined(self) -> tuple[Bools, None]:
        """Whether its decode instance computed its prompt."""
        return self.raw["inlined"], None

    def computed_tokens(self) -> tuple[Ints, Bools]:
        return self.raw["computed_tokens"], self.prefilled

    def ceiling_tokens(self) -> tuple[Ints, Bools]:
        return self.ceiling, self.ceiling >= 0

    def prefill_gpu_ms(self) -> tuple[Floats, Bools]:
        spent = self.raw.get("node_ps", self.raw["prefill_ps"]) / PS_PER_MS
        return spent + self.lost_prefill_ms()[0], self.prefilled | (self.raw["lost_ps"] > 0)

    def lost_prefill_ms(self) -> tuple[Floats, None]:
        """Of it, what attempts took that came to nothing."""
        inlined = self.raw["lost_inlined_ps"]  # on decode nodes
        staged = (self.raw["lost_ps"] - inlined) * self.replay.setup.prefill_group  # as much at every stage
        return (staged + inlined) / PS_PER_MS, None

    def attempts(self) -> tuple[Ints, None]:
        return self.raw["attempts"], None

    def rejections(self) -> tuple[Ints, None]:
        return self.raw["rejections"], None

    def wasted_prefill_tokens(self) -> tuple[Ints, Bools]:
        lost = ~self.completed & self.prefilled
        wasted = np.where(lost, self.raw["computed_tokens"], 0) + self.raw["lost_tokens"]
        return wasted, self.raw["status"] != UNFINISHED

    # when things happened to it

    def retry_wait_ms(self) -> tuple[Floats, Bools]:
        """From its arrival to that of its last attempt."""
        return self.raw["waited_ps"] / PS_PER_MS, self.routed | (self.raw["status"] != UNFINISHED)

    def queue_ms(self) -> tuple[Floats, Bools]:
        head, came = self.raw["head_ps"], self.raw["arrival_ps"] + self.raw["waited_ps"]
        return (head - came) / PS_PER_MS, head >= 0

    def fetch_ms(self) -> tuple[Floats, Bools]:
        return self._span("start", "head")

    def prefill_ms(self) -> tuple[Floats, Bools]:
        return self._span("first_token", "start")

    def kv_transfer_ms(self) -> tuple[Floats, Bools]:
        return self._span("kv_arrival", "first_token")

    def decode_wait_ms(self) -> tuple[Floats, Bools]:
        return self._span("join", "kv_arrival")

    def kv_load_ms(self) -> tuple[Floats, Bools]:
        """Of its wait to decode, the load of its KVCache, behind others on the same link."""
        return self.raw["kv_load_ps"] / PS_PER_MS, self.raw["kv_load_ps"] >= 0

    def vram_byte_s(self) -> tuple[Floats, Bools]:
        return self.raw["vram_byte_s"], self.prefilled & np.isfinite(self.raw["vram_byte_s"])

    # its transfers: how long they took, and would have taken alone

    def fetch_actual_ms(self) -> tuple[Floats, Bools]:
        return self._span("fetch_end", "fetch_start")

    def fetch_ideal_ms(self) -> tuple[Floats, Bools]:
        return self.raw["fetch_ideal_ps"] / PS_PER_MS, self.raw["fetch_end_ps"] >= 0

    def stream_actual_ms(self) -> tuple[Floats, Bools]:
        return self._span("kv_arrival", "stream_start")

    def stream_ideal_ms(self) -> tuple[Floats, Bools]:
        return self.raw["stream_ideal_ps"] / PS_PER_MS, self.raw["stream_ideal_ps"] >= 0

    # what its user saw: nothing, when it was rejected or failed

    def ttft_ms(self) -> tuple[Floats, Bools]:
        return self._span("first_token", "arrival", self.open)

    def first_gap_ms(self) -> tuple[Floats, Bools]:
        return self._span("second_token", "first_token", self.open)

    def e2e_ms(self) -> tuple[Floats, Bools]:
        return self._span("end", "arrival", self.completed)

    def tpot_ms(self) -> tuple[Floats, Bools]:
        spent, valid = self._span("end", "first_token", self.completed)
        gaps = self.trace.output_tokens[self.place] - 1
        return spent / np.maximum(gaps, 1), valid & (gaps > 0)

    def tbt_ms(self) -> tuple[Floats, Bools]:
        return _defined(self.gaps.metric_ms("tail10"))

    def tbt_max_ms(self) -> tuple[Floats, Bools]:
        return _defined(self.gaps.metric_ms("max"))

    # against its SLOs

    def slo_ttft_ok(self) -> tuple[Bools, Bools]:
        ttft, valid = self.ttft_ms()
        return ttft <= self._slo_ms(0), valid & self.completed

    def slo_tbt_ok(self) -> tuple[Bools, Bools]:
        judged, valid = _defined(self.gaps.metric_ms(self.replay.setup.tbt_metric))
        return judged <= self._slo_ms(1), valid

    def _slo_ms(self, which: int) -> Floats | float:
        """TTFT (0) or TBT (1) SLO of each request: its class's, or that of all."""
        setup, priorities = self.replay.setup, self.trace.priority
        general: float = (setup.slo_ttft_ms, setup.slo_tbt_ms)[which]
        classes = setup.slo_by_priority
        if not classes or priorities is None:
            return general
        mine = priorities[self.place]
        limits = np.full(self.rows, general)
        for priority, slos in classes.items():
            limits[mine == priority] = slos[which]
        return limits

    def slo_ok(self) -> tuple[Bools, Bools]:
        """Completed within every SLO that could be measured; not known before it has ended."""
        (ttft, _), (tbt, measured) = self.slo_ttft_ok(), self.slo_tbt_ok()
        return self.completed & ttft & (tbt | ~measured), self.raw["status"] != UNFINISHED

    def predicted_ttft_ms(self) -> tuple[Floats, Bools]:
        """By its last attempt, from its arrival on."""
        return _defined(self.raw["predicted_ttft_ms"] + self.raw["waited_ps"] / PS_PER_MS)

    def predicted_tbt_ms(self) -> tuple[Floats, Bools]:
        return _defined(self.raw["predicted_tbt_ms"])


def _defined(values: Floats) -> tuple[Floats, Bools]:
    return values, np.isfinite(values)


def _words(codes: Ints, words: Sequence[str], valid: Bools | None = None) -> pa.Array:
    """Codes as strings, null where not valid."""
    index = pa.array(codes.astype(np.int32), mask=None if valid is None else ~valid)
    return pa.DictionaryArray.from_arrays(index, pa.array(words, pa.string())).cast(pa.string())
