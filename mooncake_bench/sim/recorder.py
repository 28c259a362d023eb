"""What a replay leaves, as columns: written every so many arrivals, so that what has ended leaves the memory."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench import spool
from mooncake_bench.sim.job import AT_ARRIVAL, UNFINISHED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from mooncake_bench.sim.cluster import Cluster
    from mooncake_bench.sim.job import Job

    Column = NDArray[Any]

PS_PER_S = 1e12
SEGMENT_COLUMNS = ("instance", "start_ps", "first_step", "steps", "step_ps", "growth_ps", "batch", "tokens")
STAY_COLUMNS = ("request", "instance", "join_ps", "first_step", "steps")
OCCUPANCY_COLUMNS = ("time_ps", "blocks", "distinct_blocks")
LOST_COLUMNS = ("request", "lost_ps", "prefill_instance", "start_ps", "spent_ps")

_JOB_FIELDS: dict[str, tuple[str, type[Any], int]] = {
    # column: (Job attribute, type, value of a request that never arrived)
    "status": ("status", np.int8, UNFINISHED),
    "reject_stage": ("reject_stage", np.int8, 0),
    "reject_reason": ("reject_reason", np.int32, -1),
    "prefill_instance": ("prefill", np.int32, -1),
    "decode_instance": ("decode", np.int32, -1),
    "hit_blocks": ("hit_blocks", np.int64, 0),
    "hit_tokens": ("hit_tokens", np.int64, 0),
    "fetched_tokens": ("fetched_tokens", np.int64, 0),
    "computed_tokens": ("computed", np.int64, 0),
    "head_ps": ("head_ps", np.int64, -1),
    "start_ps": ("start_ps", np.int64, -1),
    "first_token_ps": ("first_token_ps", np.int64, -1),
    "kv_arrival_ps": ("kv_arrival_ps", np.int64, -1),
    "join_ps": ("first_join_ps", np.int64, -1),
    "end_ps": ("end_ps", np.int64, -1),
    "preemptions": ("preemptions", np.int32, 0),
    "prefill_ps": ("prefill_ps", np.int64, 0),
    "attempts": ("attempts", np.int32, 1),
    "lost_ps": ("lost_ps", np.int64, 0),
    "lost_tokens": ("lost_tokens", np.int64, 0),
    "waited_ps": ("waited_ps", np.int64, 0),
    "rejections": ("rejections", np.int32, 0),
    "fetch_start_ps": ("fetch_start_ps", np.int64, -1),
    "fetch_end_ps": ("fetch_end_ps", np.int64, -1),
    "fetch_ideal_ps": ("fetch_ideal_ps", np.int64, -1),
    "stream_start_ps": ("stream_start_ps", np.int64, -1),
}
_PREDICTIONS = ("predicted_ttft_ms", "predicted_tbt_ms")
_read_fields = attrgetter(*(attribute for attribute, _, _ in _JOB_FIELDS.values()))


class Recorder:
    """Takes what has ended out of a cluster: its jobs, decode segments, stays, and the times of its decisions."""

    def __init__(self, cluster: Cluster, rows: int) -> None:
        self._cluster = cluster
        self._columns = {name: spool.full(rows, absent, kind) for name, (_, kind, absent) in _JOB_FIELDS.items()}
        self._columns |= {name: spool.full(rows, np.nan, np.float64) for name in _PREDICTIONS}
        self._columns["stream_ideal_ps"] = spool.full(rows, -1, np.int64)
        self._segments = {name: spool.Growing(np.int64) for name in SEGMENT_COLUMNS}
        self._stays = {name: spool.Growing(np.int64) for name in STAY_COLUMNS}
        self._policy_ns = spool.Growing(np.int64)
        self._occupancy = {name: spool.Growing(np.int64) for name in OCCUPANCY_COLUMNS}

    def flush(self) -> None:
        """Write what has ended; requests under way stay with the cluster. A Ctrl-C meanwhile is heeded afterwards."""
        with _unbroken():
            jobs = self._cluster.jobs
            self._write([job for job in jobs if job.status != UNFINISHED])
            self._cluster.jobs = [job for job in jobs if job.status == UNFINISHED]
            _move(self._cluster.decoding.segments, self._segments)
            _move(self._cluster.decoding.stays, self._stays)
            _move(self._cluster.policy_ns, {"ns": self._policy_ns})
            _move(self._cluster.occupancy, self._occupancy)
            spool.trim()

    def finish(self) -> tuple[dict[str, Column], dict[str, Column], dict[str, Column], Column]:
        """Columns of the requests, the segments and the stays, and each decision's ns.

        One row a request; segments by instance and then in order of time; stays in order of the time they ended.
        """
        self.flush()
        self._write(self._cluster.jobs)
        self._cluster.jobs = []
        segments = _by_instance({name: grown.column() for name, grown in self._segments.items()})
        stays = {name: grown.column() for name, grown in self._stays.items()}
        columns = self._columns
        lost = self.lost()
        kept = stays
        if lost:
            stays["lost"] = lost_attempts(stays, lost)
            kept = {name: stays[name][stays["lost"] == 0] for name in STAY_COLUMNS}
        columns["second_token_ps"] = _second_tokens(len(columns["status"]), kept, segments)
        return columns, segments, stays, self._policy_ns.column()

    def lost(self) -> dict[str, Column]:
        """The attempts that came to nothing, in order of time: :data:`LOST_COLUMNS`. Empty when there are none."""
        if not self._cluster.lost:
            return {}
        table = np.array(self._cluster.lost, np.int64).reshape(-1, len(LOST_COLUMNS))
        found = {name: table[:, i].copy() for i, name in enumerate(LOST_COLUMNS)}
        inlining = self._cluster.inlining
        return found if inlining is None else found | {"inlined": inlining.lost_mask(len(table))}

    def occupancy(self) -> dict[str, Column]:
        """What the pool's stores held after each arrival, in order of time; once all is written."""
        return {name: grown.column() for name, grown in self._occupancy.items()}

    def _write(self, jobs: Sequence[Job]) -> None:
        if not jobs:
            return
        flat = chain.from_iterable(map(_read_fields, jobs))
        table = np.fromiter(flat, np.int64, len(jobs) * len(_JOB_FIELDS)).reshape(len(jobs), -1)
        made = {name: table[:, i] for i, name in enumerate(_JOB_FIELDS)}
        made["stream_ideal_ps"] = self._ideal_streams(made, np.array([job.input_tokens for job in jobs], np.int64))
        not_computed = made["start_ps"] < 0  # a request turned away before its prefill used nothing
        for name in ("hit_blocks", "hit_tokens", "fetched_tokens", "computed_tokens", "prefill_ps"):
            made[name][not_computed] = 0
        for name in ("prefill_instance", "decode_instance"):
            made[name][made["reject_stage"] == AT_ARRIVAL] = -1
        for name in _PREDICTIONS:
            made[name] = np.array([getattr(job, name) for job in jobs], np.float64)  # None becomes nan
        rows = np.array([job.row for job in jobs])
        for name, values in made.items():
            self._columns[name][rows] = values

    def _ideal_streams(self, made: dict[str, Column], tokens: Column) -> Column:
        """How long each stream that arrived takes when nothing else is sent: ps, -1 where there was none.

        It ends when all its bytes are through the slower NIC (and the core), and no sooner than the last layer that its
        prefill computes.
        """
        cost, core = self._cluster.cost, self._cluster.network.core_bytes_per_s
        found = np.full(len(tokens), -1, np.int64)
        there = (made["stream_start_ps"] >= 0) & (made["kv_arrival_ps"] >= 0)
        ends = [made[name][there] for name in ("prefill_instance", "decode_instance")]
        rates = np.minimum(*(cost.nic_bytes_per_s[instances] for instances in ends))
        rates = rates if core is None else np.minimum(rates, core)
        spent = tokens[there] * cost.kv_bytes_per_token * PS_PER_S / rates
        produced = made["first_token_ps"][there] - made["stream_start_ps"][there]  # 0: it started when all was there
        last = np.where(produced > 0, produced + spent / cost.layers, 0)
        found[there] = np.rint(np.maximum(spent, last)).astype(np.int64)
        return found


@contextmanager
def _unbroken() -> Iterator[None]:
    """Ctrl-C waits until the block is done."""
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield  # nobody is told of a Ctrl-C here
        return
    pressed: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        before(pressed[0], None)


def _move(flat: list[int], columns: dict[str, spool.Growing]) -> None:
    """Empty a flat list, so many numbers a row, into its columns."""
    table = np.fromiter(flat, np.int64, len(flat)).reshape(-1, len(columns)).T.copy()
    for grown, values in zip(columns.values(), table, strict=True):
        grown.append(values)
    flat.clear()


def lost_attempts(stays: dict[str, Column], lost: dict[str, Column]) -> Column:
    """Of each stay, 1 + the index in ``lost`` of the attempt it was part of; 0: of its request's last attempt."""
    found = spool.full(len(stays["request"]), 0, np.int64)
    order = np.lexsort((lost["lost_ps"], lost["request"]))
    request, when = lost["request"][order], lost["lost_ps"][order]
    for part in spool.parts(len(found)):
        first = np.searchsorted(request, stays["request"][part])
        after = np.searchsorted(request, stays["request"][part], "right")
        for at in np.flatnonzero(first < after).tolist():
            place = first[at] + np.searchsorted(when[first[at] : after[at]], stays["join_ps"][part][at], "right")
            if place < after[at]:
                found[part.start + at] = 1 + order[place]
    return found


def _by_instance(table: dict[str, Column]) -> dict[str, Column]:
    """The rows of each instance together, in the order they had: a counting sort, in parts."""
    instance = table["instance"]
    rows, instances = len(instance), int(instance.max(initial=-1)) + 1
    sizes = np.zeros(instances, np.int64)
    for part in spool.parts(rows):
        sizes += np.bincount(instance[part], minlength=instances)
    begin = np.cumsum(sizes) - sizes
    made = {name: spool.empty(rows, np.int64) for name in table}
    for part in spool.parts(rows):
        order = np.argsort(instance[part], kind="stable")
        ordered = instance[part][order]
        here = np.bincount(ordered, minlength=instances)
        place = np.arange(len(order)) + (begin - np.cumsum(here) + here)[ordered]
        begin += here
        for name, column in made.items():
            column[place] = table[name][part][order]
    return made


def _second_tokens(rows: int, stays: dict[str, Column], segments: dict[str, Column]) -> Column:
    """When each request's second token came: the end of the first step of its first stay."""
    second = spool.full(rows, -1, np.int64)
    key = spool.empty(len(segments["instance"]), np.int64)
    for part in spool.parts(len(key)):
        key[part] = segments["instance"][part] << 40 | segments["first_step"][part]
    for part in spool.parts(len(stays["request"])):
        worked = stays["steps"][part] > 0
        request = stays["request"][part][worked]
        at = np.searchsorted(key, (stays["instance"][part] << 40 | stays["first_step"][part])[worked])
        ends = segments["start_ps"][at] + segments["step_ps"][at]
        new = second[request] < 0  # a later part holds later stays
        second[request[new][::-1]] = ends[new][::-1]  # the earliest stay of a request is written last
    return second
