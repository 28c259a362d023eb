"""A run's tables as numpy columns, restricted to the requests that count; what metrics are computed from.

The population is every request that arrived after the warm-up (and, when a table is split, belongs to the group). A
request that an interrupted replay never reached did not arrive.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mooncake_bench import spool
from mooncake_bench.results.coupled import busy_spans, is_coupled
from mooncake_bench.results.gaps import PS_PER_MS, PooledGaps
from mooncake_bench.results.inlined import latest_before
from mooncake_bench.results.spooled import numbers
from mooncake_bench.results.steps import Segments, Stays

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from mooncake_bench.results.steps import Bools, Floats, Ints

KEPT_BYTES = 2**26  # of columns, between two metrics that read the same ones
PERCENTS = (1, 5, 10, 50, 90, 95, 99)


class Tables(Protocol):
    """Whatever holds a run's four tables."""

    @property
    def requests(self) -> pa.Table: ...
    @property
    def timeline(self) -> pa.Table: ...
    @property
    def segments(self) -> pa.Table: ...
    @property
    def stays(self) -> pa.Table: ...


def arrived(manifest: Mapping[str, Any], requests: pa.Table) -> Bools:
    """Which requests the replay reached, one truth a row: all, unless it was interrupted.

    A policy decides when a request arrives, so one that arrived has a route or a status.
    """
    if manifest["status"] != "interrupted":
        return np.ones(len(requests), np.bool_)
    decided: Bools = requests.column("prefill_instance").is_valid().to_numpy()
    decided |= pc.greater(requests.column("rejections"), 0).fill_null(False).to_numpy()  # one will ask again
    return decided | ~_is(requests.column("status"), "unfinished")


def _is(column: pa.ChunkedArray, word: str) -> Bools:
    """Where a column of words has this one; null is none."""
    equal: Bools = pc.equal(column, word).fill_null(False).to_numpy()
    return equal


class Rejections(NamedTuple):
    """How many requests were turned away at one stage for one reason, and their prompts' tokens."""

    stage: str
    reason: str
    requests: int
    input_tokens: int


class Summary(NamedTuple):
    """A distribution: its size and its statistics by name (``mean``, ``p50``, …, ``max``), None when it is empty."""

    samples: int
    statistics: Mapping[str, float | None]


EMPTY = Summary(0, dict.fromkeys(["mean", "max", *(f"p{percent}" for percent in PERCENTS)]))


def summarise(values: Floats) -> Summary:
    """Mean, percentiles (numpy ``linear``) and maximum of some numbers without nan."""
    if not len(values):
        return EMPTY
    percentiles = np.percentile(values, PERCENTS).tolist()
    statistics = {f"p{percent}": value for percent, value in zip(PERCENTS, percentiles, strict=True)}
    return Summary(len(values), {"mean": float(values.mean()), "max": float(values.max()), **statistics})


class Facts:
    """What metrics read: columns of the counted requests, sums over them, and the pools' busy time."""

    def __init__(self, manifest: Mapping[str, Any], tables: Tables, where: Bools | None = None) -> None:
        self.manifest = manifest
        self._tables = tables
        self.whole = where is None  # False: a group of the requests, for which the pools have no numbers
        self._kept: dict[tuple[str, str | None], NDArray[Any]] = {}  # columns of the counted requests, latest use last
        arrival = tables.requests.column("arrival_ms").to_numpy()
        self.counted: Bools = (arrival >= float(manifest["setup"]["warmup_ms"])) & arrived(manifest, tables.requests)
        if where is not None:
            self.counted = self.counted & where
        self._summaries: dict[str, Summary] = {}

    def all_rows(self, name: str) -> NDArray[Any]:
        """One column of numbers over every row; null is nan."""
        values: NDArray[Any] = self._tables.requests.column(name).to_numpy()
        return values

    def column(self, name: str) -> NDArray[Any]:
        """One column of numbers of the counted requests; null is nan."""
        return self._of_counted(name, None, self.all_rows)

    def _of_counted(self, name: str, word: str | None, read: Callable[[str], NDArray[Any]]) -> NDArray[Any]:
        """What ``read`` gives, of the counted requests; as much of it is kept as ``KEPT_BYTES`` hold."""
        key = (name, word)
        found = self._kept.pop(key, None)
        if found is None:
            found = read(name)[self.counted]
            spool.trim()
        self._kept[key] = found
        size = sum(column.nbytes for column in self._kept.values())
        while size > KEPT_BYTES:
            size -= self._kept.pop(next(iter(self._kept))).nbytes
        return found

    def _words(self, name: str, word: str) -> Bools:
        return self._of_counted(name, word, lambda name: _is(self._tables.requests.column(name), word))

    def begins(self, name: str, start: str) -> Bools:
        """Where a column of words begins like this; null does not."""
        column = self._tables.requests.column(name)
        begun: Bools = pc.starts_with(column, start).fill_null(False).to_numpy()[self.counted]
        return begun

    def true(self, name: str) -> Bools:
        """Where a column of truths says true; null is not."""
        column = self._tables.requests.column
        return self._of_counted(name, "true", lambda name: column(name).fill_null(False).to_numpy())

    def known(self, name: str) -> Bools:
        """Where a column has a value."""
        return self._of_counted(name, "known", lambda name: self._tables.requests.column(name).is_valid().to_numpy())

    def status(self, word: str) -> Bools:
        """Which counted requests have this status."""
        return self._words("status", word)

    def rejected_at(self, stage: str) -> Bools:
        """Which counted requests were turned away at this stage."""
        return self._words("reject_stage", stage)

    @cached_property
    def completed(self) -> Bools:
        """Which counted requests completed."""
        return self.status("completed")

    @cached_property
    def offered(self) -> int:
        """How many requests count."""
        return int(self.counted.sum())

    def sum(self, name: str, where: Bools | None = None) -> float | None:
        """Sum over the counted requests that have the number (and are in ``where``); None when none has."""
        values = self.column(name)
        values = values if where is None else values[where]
        values = values[~np.isnan(values)] if values.dtype.kind == "f" else values
        return values.sum().item() if len(values) else None

    def summary(self, name: str) -> Summary:
        """The distribution of a column, or of ``itl_ms``, over the completed requests."""
        if name not in self._summaries:
            self._summaries[name] = self._itl() if name == "itl_ms" else summarise(self._completed_values(name))
        return self._summaries[name]

    def _completed_values(self, name: str) -> Floats:
        if name == "output_speed_tokens_per_s":
            return 1000 / self._completed_values("tpot_ms")
        if name == "ttft_error_ms":
            values = np.abs(self.column("ttft_ms") - self.column("predicted_ttft_ms"))
        else:
            values = self.column(name)
        mine: Floats = values[self.completed]
        return mine[~np.isnan(mine)]

    def _itl(self) -> Summary:
        wanted = np.zeros(len(self.counted), np.bool_)
        wanted[self.counted] = self.completed
        exclude = self.manifest["setup"]["slo.first_gap"] == "exclude"
        pool = PooledGaps(self.segments, self.stays, self._gap_ps, wanted, exclude_first=exclude)
        values = zip(PERCENTS, pool.percentiles_ms(PERCENTS), strict=True)
        statistics = {f"p{percent}": value for percent, value in values}
        return Summary(pool.count, {"mean": pool.mean_ms(), "max": pool.max_ms(), **statistics})

    def rejections(self) -> list[Rejections]:
        """The rejected requests by stage and reason, most frequent first."""
        table = self._tables.requests.select(["reject_stage", "reject_reason", "input_tokens"])
        rejected = table.filter(pa.array(self.counted)).filter(pc.field("reject_stage").is_valid())
        keys = ["reject_stage", "reject_reason"]
        found = rejected.group_by(keys).aggregate([([], "count_all"), ("input_tokens", "sum")]).to_pydict()
        counts = (found[name] for name in (*keys, "count_all", "input_tokens_sum"))
        groups = [Rejections(*group) for group in zip(*counts, strict=True)]
        return sorted(groups, key=lambda group: (-group.requests, group.stage, group.reason))

    def failures(self) -> list[tuple[str, int]]:
        """Why requests failed, and how many, most frequent first."""
        table = self._tables.requests.select(["status", "reject_reason"]).filter(pa.array(self.counted))
        found = table.filter(pc.field("status") == "failed").column("reject_reason").value_counts().to_pylist()
        return sorted(((each["values"], each["counts"]) for each in found), key=lambda each: (-each[1], each[0]))

    # time

    @cached_property
    def first_arrival_ms(self) -> float | None:
        """When the first counted request arrived."""
        return float(self.column("arrival_ms").min()) if self.offered else None

    @cached_property
    def last_arrival_ms(self) -> float | None:
        """When the last counted request arrived."""
        return float(self.column("arrival_ms").max()) if self.offered else None

    @cached_property
    def duration_ms(self) -> float | None:
        """First arrival to last end (of an interrupted replay: to where it stopped); None when it is 0."""
        if self.first_arrival_ms is None:
            return None
        ends = self.column("end_ms")
        known = ends[~np.isnan(ends)]
        last = float(known.max()) if len(known) else self.first_arrival_ms
        if self.manifest["status"] == "interrupted":
            last = float(self.manifest["horizon_ms"])
        return last - self.first_arrival_ms or None

    @cached_property
    def arrival_span_ms(self) -> float | None:
        """First arrival to last arrival; None when it is 0."""
        if self.first_arrival_ms is None or self.last_arrival_ms is None:
            return None
        return self.last_arrival_ms - self.first_arrival_ms or None

    def per_second(self, amount: float | None) -> float | None:
        """An amount over the duration, per second."""
        return None if amount is None or self.duration_ms is None else amount / self.duration_ms * 1000

    # the pools

    @cached_property
    def segments(self) -> Segments:
        """The decode segments."""
        return Segments.of(_arrays(self._tables.segments))

    @cached_property
    def _stay_columns(self) -> dict[str, Ints]:
        return _arrays(self._tables.stays)

    @cached_property
    def stays(self) -> Stays:
        """The stays (stored in their own order, which is kept)."""
        return Stays.of(self._stay_columns, self.segments)

    @property
    def _gap_ps(self) -> Ints:
        return self._stay_columns["gap_ps"]

    def busy_ratio(self, pool: str) -> float | None:
        """Share of the arrival span that the instances of a pool (``prefill`` or ``decode``) spend working."""
        if self.arrival_span_ms is None or self.first_arrival_ms is None or self.last_arrival_ms is None:
            return None
        if pool == "decode":
            busy = self._inside(self._decode_spans())
        elif is_coupled(self.manifest["setup"]):
            busy = max(self._inside([self._busy_spans()]) - self._inside(self._decode_spans()), 0.0)
        else:
            busy = self._inside(self._prefill_spans())
        available = self._instance_ms(pool)
        return float(busy / available) if available else None

    def _instance_ms(self, pool: str) -> float:
        """How long its instances were there within the arrival span, all together."""
        first, last, cluster = self.first_arrival_ms or 0.0, self.last_arrival_ms or 0.0, self.manifest["cluster"]
        sizes = cluster.get("pool_sizes")  # where some failed or changed their role
        if not sizes:
            return float((last - first) * int(cluster[f"{pool}_instances"]))
        column = 1 if pool == "prefill" else 2
        until = [*(row[0] for row in sizes[1:]), last]
        spans = ((min(end, last) - max(row[0], first), row[column]) for row, end in zip(sizes, until, strict=True))
        return float(sum(max(span, 0.0) * size for span, size in spans))

    def _inside(self, spans: Iterable[tuple[Floats, Floats]]) -> float:
        """How much of some spans, some at a time, lies within the arrival span."""
        first, last = self.first_arrival_ms or 0.0, self.last_arrival_ms or 0.0
        return sum(float(np.maximum(np.minimum(end, last) - np.maximum(start, first), 0).sum()) for start, end in spans)

    def _busy_spans(self) -> tuple[Floats, Floats]:
        """When coupled instances have requests."""
        horizon_ms, table = float(self.manifest["horizon_ms"]), self._tables.requests
        arrival, waited, queue, end, attempts, instance = (
            table.column(name).to_numpy()
            for name in ("arrival_ms", "retry_wait_ms", "queue_ms", "end_ms", "attempts", "prefill_instance")
        )
        since = np.where(attempts > 1, arrival + waited + queue, arrival)
        there = ~np.isnan(instance) & ~np.isnan(since) & (arrival <= horizon_ms)
        until = np.where(np.isnan(end), horizon_ms, end)
        return busy_spans(instance[there], since[there], until[there])[1:]

    def _prefill_spans(self) -> Iterator[tuple[Floats, Floats]]:
        horizon_ms, requests = float(self.manifest["horizon_ms"]), self._tables.requests
        nodes = int(self.manifest["setup"].get("prefill.group", 1))
        for part in spool.parts(len(requests)):
            some = requests.slice(part.start, part.stop - part.start)
            arrival, waited, queue, fetch, spent = (
                some.column(f"{name}_ms").to_numpy() for name in ("arrival", "retry_wait", "queue", "fetch", "prefill")
            )
            start = arrival + np.nan_to_num(waited) + queue + fetch
            ran = ~np.isnan(start) & ~_is_inlined(some)
            if nodes > 1:  # a pipeline is as busy as one of its stages
                node_ms = some.column("prefill_gpu_ms").to_numpy() - some.column("lost_prefill_ms").to_numpy()
                spent = np.minimum(node_ms / nodes, horizon_ms - start)
            end = np.where(np.isnan(spent), horizon_ms, start + spent)
            yield start[ran], end[ran]
            yield _lost_spans(some, nodes)

    def _decode_spans(self) -> Iterator[tuple[Floats, Floats]]:
        for part in spool.parts(len(self.segments)):
            some = self.segments[part]
            yield some.start_ps / PS_PER_MS, some.end_ps / PS_PER_MS
        yield self._inlined_alone()

    def _inlined_alone(self) -> tuple[Floats, Floats]:
        """When decode instances computed prompts beside no batch, which are in no segment."""
        requests = self._tables.requests
        some = requests.filter(requests.column("inlined"))
        ends = _sum_ms(some, "arrival", "retry_wait", "queue", "fetch", "prefill")
        spent = some.column("prefill_ms").to_numpy()
        middle = np.rint((ends - spent / 2) * PS_PER_MS)
        done = ~np.isnan(middle)
        ends, spent, middle = ends[done], spent[done], middle[done].astype(np.int64)
        place = some.column("decode_instance").to_numpy()[done].astype(np.int64)
        last = latest_before(self.segments, place, middle)
        alone = last < 0
        alone[~alone] = self.segments[last[~alone]].end_ps < middle[~alone]
        return (ends - spent)[alone], ends[alone]

    def load(self, name: str) -> Floats:
        """A column of the timeline over the arrival span of the counted requests."""
        timeline = self._tables.timeline
        if self.first_arrival_ms is None or self.last_arrival_ms is None:
            return np.zeros(0)
        time = timeline.column("time_ms").to_numpy()
        inside = (time >= self.first_arrival_ms) & (time <= self.last_arrival_ms)
        values: Floats = timeline.column(name).to_numpy()[inside]
        return values

    def counter(self, name: str) -> int | float | None:
        """One of the simulator's own counters, over the whole run."""
        value: int | float | None = self.manifest["counters"].get(name)
        return value


def _is_inlined(requests: pa.Table) -> Bools:
    inlined: Bools = requests.column("inlined").to_numpy()
    return inlined


def _sum_ms(requests: pa.Table, *names: str) -> Floats:
    """Sum of some times of each request; nan where one is undefined."""
    total: Floats = sum(requests.column(f"{name}_ms").to_numpy() for name in names) + np.zeros(len(requests))
    return total


def _lost_spans(requests: pa.Table, nodes: int) -> tuple[Floats, Floats]:
    """Prefill of attempts that came to nothing, as if each request's had ended just before its last attempt began.

    That of a request that failed ended when it did, at the latest. An instance of several nodes is taken for as long as
    each of them.
    """
    lost, arrival, waited, end = (
        requests.column(f"{name}_ms").to_numpy() for name in ("lost_prefill", "arrival", "retry_wait", "end")
    )
    there = lost > 0
    until = np.where(_is(requests.column("status"), "failed"), end, arrival + waited)[there]
    return until - lost[there] / nodes, until


def _arrays(table: pa.Table) -> dict[str, Ints]:
    return {name: numbers(table.column(name)) for name in table.column_names}
