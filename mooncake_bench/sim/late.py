"""Views that know less: the cluster of a while ago, or only what a router sees for itself (equal sight is a setting).

Both show the router its own decisions at once; what they promise and what is there may differ, so a fetch that finds
less than expected brings what is there, or nothing.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench.sim.pool import PrefixIndex
from mooncake_bench.sim.state import ClusterState
from mooncake_bench.sim.view import PS_PER_MS, View

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mooncake_bench.api import Floats, Ints, Request
    from mooncake_bench.sim.job import Job

TABLES = ("joined", "waiting", "promised")


class LateView(View):
    """What both have in common: a picture of the cluster beside the cluster itself."""

    exact = False
    follows = True

    def __init__(self, state: ClusterState, index: PrefixIndex, *rest: Any, local: bool = False) -> None:
        self._real = index
        self._picture = ClusterState(state.is_prefill, state.is_decode)
        super().__init__(self._picture, PrefixIndex(index.instances, index.block_tokens), *rest, local=local)

    def actual_lengths(self, request: Request) -> list[int]:
        """Leading blocks really cached (first N) and fetchable (last N) on each instance, at this moment."""
        return self._real.match(request.blocks).lengths


@dataclass
class _Entry:
    """What one event changed."""

    time: int
    instances: Ints
    values: Ints
    decode: list[tuple[int, tuple[int, ...]]]
    rows: dict[str, list[tuple[int, tuple[int, ...] | None]]]
    blocks: list[tuple[str, int, Sequence[int]]] = field(default_factory=list)


class DelayedView(LateView):
    """The state of ``delay`` ago, plus the router's own decisions since."""

    def __init__(self, delay_ps: int, state: ClusterState, index: PrefixIndex, *rest: Any, local: bool = False) -> None:
        super().__init__(state, index, *rest, local=local)
        self._delay = delay_ps
        self._live = state
        self._seen = state.table.copy()
        self._journal: deque[_Entry] = deque()
        # time, prefill, decode, its ps, its tokens, requests that it adds to the queue
        self._own: deque[tuple[int, int, int, int, int, int]] = deque()
        self._own_work, self._own_requests, self._own_tokens = np.zeros((3, state.instances), np.int64)
        self._own_blocks: dict[tuple[int, int], int] = {}  # (instance bit, block): when the router last sent it there
        self._index.holders.update(index.holders)  # what was there long before: nothing, unless caches start warm
        index.journal = []
        for name in TABLES:
            getattr(state, name).journal = []
        state.decode.journal = []

    def observe(self, now: int) -> None:
        """Note what an event changed."""
        live = self._live
        changed = np.flatnonzero((live.table != self._seen).any(axis=0))
        values = live.table[:, changed]
        self._seen[:, changed] = values
        rows = {name: _drain(getattr(live, name)) for name in TABLES}
        self._journal.append(_Entry(now, changed, values, _drain(live.decode), rows, _drain(self._real)))

    def routed(self, job: Job, now: int) -> None:
        """Show the router's own decision at once."""
        self._promise(job, now, job.turn_ps, 1)
        bit = 1 << job.prefill
        for block in job.new_blocks:
            self._own_blocks[bit, block] = now
        self._index.apply("stored", bit, job.new_blocks)

    def inlined(self, job: Job, now: int) -> None:
        """Likewise; no prefill instance has anything to do with it."""
        self._promise(job, now, 0, 0)

    def _promise(self, job: Job, now: int, work: int, requests: int) -> None:
        self._count(own := (now, job.prefill, job.decode, work, job.input_tokens + 1, requests), +1)
        self._own.append(own)
        ends = now + round(job.predicted_ttft_ms * PS_PER_MS)
        self._picture.promised.put(job.row, job.decode, job.input_tokens + 1, -1, ends)

    def _count(self, own: tuple[int, int, int, int, int, int], sign: int) -> None:
        _, prefill, decode, work, tokens, requests = own
        self._own_work[prefill] += sign * work
        self._own_requests[prefill] += sign * requests
        self._own_tokens[decode] += sign * tokens

    def at(self, now: int, request: Request | None = None) -> None:
        """Let everything older than the delay become known."""
        then = now - self._delay
        while self._own and self._own[0][0] <= then:
            self._count(self._own.popleft(), -1)
        while self._journal and self._journal[0].time <= then:
            self._learn(self._journal.popleft())
        super().at(now, request)
        self._now_array[()] = max(then, 0)  # before the first arrival the cluster was empty

    def _learn(self, entry: _Entry) -> None:
        picture = self._picture
        picture.table[:, entry.instances] = entry.values
        for instance, values in entry.decode:
            picture.decode.set(instance, *values)
        for name, changes in entry.rows.items():
            table = getattr(picture, name)
            for row, known in changes:
                if known is None:
                    table.remove(row)
                else:
                    table.put(row, *known)
        for what, bit, blocks in entry.blocks:
            self._index.apply(what, bit, [block for block in blocks if not self._sent_since(bit, block, entry.time)])

    def _sent_since(self, bit: int, block: int, time: int) -> bool:
        """Whether the router sent this block there after ``time``, which outdates the news."""
        sent = self._own_blocks.get((bit, block))
        if sent is not None and sent <= time:
            del self._own_blocks[bit, block]
            return False
        return sent is not None

    @property
    def queue_ms(self) -> Floats:
        own: Floats = self._own_work / self._ps_per_ms
        return super().queue_ms + own

    @property
    def queue_requests(self) -> Ints:
        return self._queue_requests + self._own_requests

    @property
    def routed_tokens(self) -> Ints:
        return self._routed_tokens + self._own_tokens

    def _refresh_decode(self) -> None:
        now = self._now
        self._now = max(now - self._delay, 0)
        super()._refresh_decode()
        self._now = now


def _drain(source: Any) -> Any:
    noted, source.journal = source.journal, []
    return noted


class RouterView(LateView):
    """Only the router's decisions, first tokens, finishes and rejections; each node an LRU of nominal capacity."""

    def __init__(
        self, capacities: Mapping[int, int], state: ClusterState, index: PrefixIndex, *rest: Any, local: bool = False
    ) -> None:
        super().__init__(state, index, *rest, local=local)
        self._capacities = dict(capacities)  # blocks, by instance id
        self._stores: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(state.instances)]
        self._queues: list[OrderedDict[int, int]] = [OrderedDict() for _ in range(state.instances)]  # row: prefill ps
        self._decoding: dict[int, Job] = {}
        self._inlined: set[int] = set()  # rows that are to have their first token where they decode

    def routed(self, job: Job, now: int) -> None:
        """Remember where a request was sent, and assume its blocks are kept there."""
        picture, instance = self._picture, job.prefill
        picture.work_end[instance] = max(int(picture.work_end[instance]), now) + job.turn_ps
        picture.queue_requests[instance] += 1
        self._promise(job, now)
        self._queues[instance][job.row] = job.turn_ps
        store, bit = self._stores[instance], 1 << instance
        self._index.apply("stored", bit, job.request.blocks)
        for block in reversed(job.request.blocks):
            store[block] = None
            store.move_to_end(block)
        while len(store) > self._capacities[instance]:
            self._index.apply("gone", bit, [store.popitem(last=False)[0]])

    def inlined(self, job: Job, now: int) -> None:
        """Remember where a request was sent."""
        self._promise(job, now)
        self._inlined.add(job.row)

    def _promise(self, job: Job, now: int) -> None:
        tokens, ends = job.input_tokens + 1, now + round(job.predicted_ttft_ms * PS_PER_MS)
        self._picture.routed_tokens[job.decode] += tokens
        self._picture.promised.put(job.row, job.decode, tokens, -1, ends)

    def _keep_promise(self, job: Job) -> None:
        self._picture.routed_tokens[job.decode] -= job.input_tokens + 1
        self._picture.promised.remove(job.row)

    def happened(self, kind: str, job: Job, now: int) -> None:
        """A first token shows that a prefill is over; an end shows that the request has left."""
        queue = self._queues[job.prefill]
        inlined, queued = job.row in self._inlined, job.row in queue
        if inlined:
            self._inlined.remove(job.row)
            self._keep_promise(job)
        elif queued:
            self._leave_prefill(job, queue, now)
        if (inlined or queued) and kind == "first_token":
            self._decoding[job.row] = job
            self._count(job, +1, now)
            if queued:
                self._index.apply("ready", 1 << job.prefill, job.request.blocks)
        if kind != "first_token" and self._decoding.pop(job.row, None) is not None:
            self._count(job, -1, now)

    def moved(self, job: Job, decode: int, now: int) -> None:
        """It is known to the router, which is told where its request goes instead."""
        tokens = job.input_tokens + 1
        if job.row in self._queues[job.prefill]:
            self._picture.routed_tokens[job.decode] -= tokens
            self._picture.routed_tokens[decode] += tokens
            ends = now + round(job.predicted_ttft_ms * PS_PER_MS)
            self._picture.promised.put(job.row, decode, tokens, -1, ends)
        elif job.row in self._decoding:
            self._count(job, -1, now)
            self._load(decode, +1, tokens, now)
            self._picture.joined.put(job.row, decode, now, tokens)

    def emptied(self, instance: int, capacity: int) -> None:
        """A pool that is empty holds nothing of what was sent there."""
        self._capacities[instance] = capacity
        store = self._stores[instance]
        self._index.apply("gone", 1 << instance, list(store))
        store.clear()

    def _leave_prefill(self, job: Job, queue: OrderedDict[int, int], now: int) -> None:
        """The next in the queue is taken to start now."""
        picture = self._picture
        del queue[job.row]
        picture.work_end[job.prefill] = now + sum(queue.values())
        picture.queue_requests[job.prefill] -= 1
        self._keep_promise(job)

    def _count(self, job: Job, sign: int, now: int) -> None:
        """A request decodes from its first token to its end; the tokens in between are not counted."""
        picture, instance = self._picture, job.decode
        self._load(instance, sign, job.input_tokens + 1, now)
        if sign > 0:
            picture.joined.put(job.row, instance, now, job.input_tokens + 1)
        else:
            picture.joined.remove(job.row)

    def _load(self, instance: int, sign: int, more: int, now: int) -> None:
        """One request of ``more`` tokens comes to a batch, or leaves it."""
        batch, tokens = self._picture.decode.load(instance)
        self._picture.decode.set(instance, now, 1 << 62, 0, batch + sign, tokens + sign * more, 0)
