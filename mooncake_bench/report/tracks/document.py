"""The tracks of some runs: prefill and decode instances, transfers, requests, rejections, and both pools' loads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench.report.tracks.events import Event, Slice, counter, instant, nested, process, thread, track
from mooncake_bench.results.compare import distinct_labels
from mooncake_bench.results.gaps import PS_PER_MS
from mooncake_bench.results.steps import Segments
from mooncake_bench.sim.parsing import parse_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mooncake_bench.results.run import Run

MOST = 50_000  # slices of a kind in one run; of more, every so many-th is drawn
REQUESTS = 500  # requests that get a track of their own
PREFILL, DECODE, TRANSFERS, LOADS, LIVES = range(1, 6)
PROCESSES = {
    LOADS: "pools over time",
    PREFILL: "prefill instances",
    DECODE: "decode instances",
    TRANSFERS: "KVCache to decode instances, by sender",
    LIVES: "requests",
}
APART = 10  # process numbers of a run
COUNTERS = ("prefill_load_ratio", "decode_load_ratio", "queued_requests", "waiting_requests", "decoding_requests")
PHASES = {  # a request's time, in order: name -> column
    "earlier attempts": "retry_wait_ms",
    "queue": "queue_ms",
    "fetch": "fetch_ms",
    "prefill": "prefill_ms",
    "KVCache on its way": "kv_transfer_ms",
    "wait for a batch": "decode_wait_ms",
}
FACTS = (
    "request_id", "status", "input_tokens", "output_tokens", "hit_tokens", "fetched_tokens", "ttft_ms", "tbt_ms",
    "prefill_instance", "decode_instance", "reject_stage", "reject_reason",
)  # fmt: skip


def document(runs: Sequence[Run], most: int = MOST) -> tuple[str, list[str]]:
    """The file's text, and what was left out of it, a sentence each. Strict JSON."""
    events: list[Event] = []
    notes: list[str] = []
    for number, (label, run) in enumerate(zip(distinct_labels(runs), runs, strict=True)):
        made = _Tracks(run, label if len(runs) > 1 else "", number * APART, most)
        events += made.events()
        notes += made.notes
    about = {"tool": "mooncake-bench", "notes": notes, "runs": [_about(run) for run in runs]}
    whole = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}
    return json.dumps(whole, allow_nan=False, separators=(",", ":")), notes


def _about(run: Run) -> dict[str, Any]:
    return {"policy": run.manifest["policy"]["spec"], "trace": run.manifest["trace"]["name"]}


class _Tracks:
    """One run's."""

    def __init__(self, run: Run, label: str, first: int, most: int) -> None:
        self._run, self._label, self._first, self._most = run, label, first, most
        self._rows: list[dict[str, Any]] = run.requests.to_pylist()
        self._coupled = any(role == "M" for role, _ in parse_cluster(run.manifest["setup"]["cluster"]))
        self.notes: list[str] = []

    def events(self) -> Iterator[Event]:
        for kind, name in PROCESSES.items():
            yield from process(self._first + kind, f"{self._label}: {name}" if self._label else name)
        yield from self._loads()
        yield from self._prefill()
        yield from self._decode()
        yield from self._transfers()
        yield from self._lives()

    def _loads(self) -> Iterator[Event]:
        table = self._run.timeline
        times = table.column("time_ms").to_pylist()
        for name in COUNTERS:
            yield from counter(self._first + LOADS, name, times, table.column(name).to_pylist())

    def _prefill(self) -> Iterator[Event]:
        """When each instance computed which prompt; an inlined one is in its decode instance's steps."""
        done = [row for row in self._rows if row["prefill_ms"] is not None and not row["inlined"]]
        slices: dict[int, list[Slice]] = {}
        for row in self._some(done, "prefills"):
            end = _first_token_ms(row)
            made = Slice(f"request {row['request_id']}", end - row["prefill_ms"], end, _facts(row))
            slices.setdefault(row["prefill_instance"], []).append(made)
        role = "coupled" if self._coupled else "prefill"
        for instance in sorted(slices):
            yield from track(self._first + PREFILL, instance, f"{role} {instance}", slices[instance])

    def _decode(self) -> Iterator[Event]:
        """Stretches of decode steps at constant batch."""
        columns = {name: self._run.segments.column(name).to_numpy() for name in self._run.segments.column_names}
        segments = Segments.of(columns)
        kept = np.arange(0, len(segments), self._every(len(segments), "stretches of decode steps"))
        ends = segments.end_ps
        slices: dict[int, list[Slice]] = {}
        for at in kept.tolist():
            batch, steps = int(segments.batch[at]), int(segments.steps[at])
            facts = {"batch": batch, "steps": steps, "context_tokens": int(segments.tokens[at])}
            start_ms, end_ms = float(segments.start_ps[at]) / PS_PER_MS, float(ends[at]) / PS_PER_MS
            made = Slice(f"batch {batch}", start_ms, end_ms, facts)
            slices.setdefault(int(segments.instance[at]), []).append(made)
        role = "coupled" if self._coupled else "decode"
        for instance in sorted(slices):
            yield from track(self._first + DECODE, instance, f"{role} {instance}", slices[instance])

    def _transfers(self) -> Iterator[Event]:
        """From a prefill's beginning until all its KVCache is at the decode instance."""
        sent = [row for row in self._rows if row["stream_actual_ms"] is not None and row["kv_transfer_ms"] is not None]
        slices: dict[int, list[Slice]] = {}
        for row in self._some(sent, "transfers"):
            end = _first_token_ms(row) + row["kv_transfer_ms"]
            facts = {"request_id": row["request_id"], "tokens": row["input_tokens"], "ideal_ms": row["stream_ideal_ms"]}
            name = f"request {row['request_id']} to {row['decode_instance']}"
            made = Slice(name, end - row["stream_actual_ms"], end, facts)
            slices.setdefault(row["prefill_instance"], []).append(made)
        for instance in sorted(slices):
            yield from track(self._first + TRANSFERS, instance, f"from {instance}", slices[instance])

    def _lives(self) -> Iterator[Event]:
        """Each request's phases; and every rejection as a mark."""
        pid = self._first + LIVES
        lived = [row for row in self._rows if row["end_ms"] is not None and row["status"] != "rejected"]
        for row in self._some(lived, "requests", min(REQUESTS, self._most)):
            key = f"{pid}:{row['request_id']}"
            whole = Slice(f"request {row['request_id']}", row["arrival_ms"], row["end_ms"], _facts(row))
            yield from nested(pid, key, [whole, *_phases(row)])
        yield from thread(pid, 1, "rejected or failed")
        for row in self._rows:
            if row["status"] in ("rejected", "failed") and row["end_ms"] is not None:
                yield instant(pid, 1, row["reject_reason"] or row["status"], row["end_ms"], _facts(row))

    def _some(self, rows: list[dict[str, Any]], what: str, most: int | None = None) -> list[dict[str, Any]]:
        return rows[:: self._every(len(rows), what, most)]

    def _every(self, count: int, what: str, most: int | None = None) -> int:
        """How far apart those that are drawn lie."""
        step = max(1, -(-count // (most or self._most)))
        if step > 1:
            whose = f"{self._label}: " if self._label else ""
            self.notes.append(f"{whose}{-(-count // step):,} of {count:,} {what} are drawn")
        return step


def _phases(row: dict[str, Any]) -> Iterator[Slice]:
    """One after the other from the arrival on, as far as a request came; decoding ends it."""
    at = row["arrival_ms"]
    for name, column in PHASES.items():
        lasts = row[column]
        if lasts is None:
            if column == "kv_transfer_ms":  # nothing was sent: it decodes where it was prefilled
                continue
            return
        if lasts > 0:
            yield Slice(name, at, at + lasts, {})
        at += lasts
    if row["end_ms"] > at:
        yield Slice("decode", at, row["end_ms"], {})


def _first_token_ms(row: dict[str, Any]) -> float:
    return float(
        row["arrival_ms"] + (row["retry_wait_ms"] or 0) + row["queue_ms"] + row["fetch_ms"] + row["prefill_ms"]
    )


def _facts(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in FACTS if row[name] is not None}
