"""Random small worlds: a few requests with shared prefixes on a small, cramped, uneven cluster, under some policies."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from hypothesis import strategies as st

from mooncake_bench import plugins
from mooncake_bench.api import Admission, Route, Router
from mooncake_bench.hardware.fake import FakeCost

from .state import Req

BLOCK = 4
EVICTIONS = (
    "lru", "lfu", "fifo", "length-aware", "length-aware:bias=keep", "length-aware:bias=position",
    "leaf-lru", "ttl:ttl_ms=40ms", "mooncake-store:lease_ms=20ms,high=0.5",
)  # fmt: skip


@dataclass
class Whims(Router):
    """Any valid decision, by lot: one number a row decides all about it."""

    name = "whims"
    lots: list[int]
    fetches: bool

    def route(self, request, cluster):
        lot = np.random.default_rng([request.row, self.lots[request.row]])
        p, d = lot.choice(np.flatnonzero(cluster.is_prefill)), lot.choice(np.flatnonzero(cluster.is_decode))
        longer = np.flatnonzero(cluster.fetchable_tokens(request) > cluster.cached_tokens(request)[p])
        holder = int(lot.choice(longer)) if self.fetches and len(longer) and lot.random() < 0.8 else None
        ttft_ms = None if lot.random() < 0.5 else float(lot.integers(1, 200))
        return Route(int(p), None if lot.random() < 0.3 else int(d), holder, ttft_ms)


class OrderedWhims(Whims):
    """Queues in an order of its own: the shortest or the longest first, or any."""

    def order(self, instance, queue, cluster):
        how = self.lots[0] % 3
        if how == 2:
            return (len(queue) * 7 + int(cluster.now_ms)) % len(queue)
        lengths = [request.input_tokens for request in queue]
        return lengths.index(min(lengths) if how else max(lengths))


class LateWhims(Whims):
    """Changes its mind about the decode instance when the prefill ends."""

    def late_decode(self, request, route, cluster):
        lot = np.random.default_rng([1, request.row, self.lots[request.row]])
        return int(lot.choice(np.flatnonzero(cluster.is_decode))) if lot.random() < 0.6 else None


class OrderedLateWhims(OrderedWhims, LateWhims):
    pass


@dataclass
class Moody(Admission):
    """Turns away about one in four at each stage, by lot."""

    name = "moody"
    lots: list[int]

    def _says(self, request, stage):
        lot = np.random.default_rng([stage, request.row, self.lots[request.row]])
        return f"mood {lot.integers(2)}" if lot.random() < 0.25 else None

    def reject(self, request, route, cluster):
        return self._says(request, 2)

    def reject_prefill(self, request, route, cluster):
        return self._says(request, 3)

    def reject_decode(self, request, route, cluster):
        return self._says(request, 4)


@dataclass
class World:
    """A workload, a cluster and its policies. Every call of :meth:`policies` makes new ones."""

    requests: list[Req]
    prefill: int
    decode: int
    cost: dict[str, Any]
    router: str
    admission: str
    eviction: str
    lots: list[int]
    also: frozenset[str]  # hooks watched although the policies leave them alone
    options: dict[str, Any] = field(default_factory=dict)

    def make_cost(self) -> FakeCost:
        return FakeCost(self.prefill + self.decode, **self.cost)

    def policies(self):
        """(router, admission, eviction maker)."""
        whims = {"whims": Whims, "ordered": OrderedWhims, "late": LateWhims, "ordered late": OrderedLateWhims}
        if self.router in whims:
            router = whims[self.router](self.lots, fetches=self.lots[-1] % 4 > 0)
        else:
            router = bundled(self.router)
        admission = Moody(self.lots) if self.admission == "moody" else bundled(self.admission)
        return router, admission, lambda: bundled(self.eviction)


found = cache(plugins.discover)  # a look at every policy file takes 20 ms


def bundled(spec: str) -> Any:
    """One fresh policy of a one-part SPEC."""
    (part,) = plugins.parse(spec).parts
    return found()[part.target].make(part.parameters)


def make_requests(seed: int, count: int, chained: bool = True) -> list[Req]:
    """Rows of a few conversations: prompts that share beginnings, in bursts. The first rows of a seed are the same.

    Where ids are not ``chained``, a block may follow any other: no real trace is so, but pools then have holes.
    """
    habits = random.Random(seed)
    pace_ms = habits.choice((1, 5, 20, 60))
    longest = habits.choice((3, 8, 25))
    now, fresh, known, requests = 0, 1, [()], []
    for row in range(count):
        lot = random.Random(f"{seed} {row}")
        whole_ms = lot.choice((0, 0, 0, pace_ms, 2 * pace_ms, 11))
        now += (whole_ms * 10**9 if lot.random() < 0.7 else lot.randrange(pace_ms * 10**9)) if row else 0
        parent = lot.choice(known[-6:])
        stem = parent if lot.random() < 0.6 else parent[: lot.randint(0, len(parent))]
        new = lot.randint(0 if stem else 1, 4)
        blocks = (*stem, *range(fresh, fresh + new))
        fresh += new
        if not chained:
            blocks = tuple(lot.sample(range(12), lot.randint(1, 7)))
        known.append(blocks)
        tokens = BLOCK * len(blocks) - lot.choice((0, 0, 1, 3))
        requests.append(Req(row, now, tokens, lot.choice((1, 1, 2, lot.randint(2, longest))), blocks))
    return requests


def _column(draw, values, instances: int):
    """One value for all instances, or one each."""
    one = st.sampled_from(values)
    return draw(st.one_of(one, st.lists(one, min_size=instances, max_size=instances)))


def _cost(draw, instances: int) -> dict[str, Any]:
    return {
        "prefill_constant_ms": _column(draw, (0.0, 0.0, 0.3, 5.0), instances),
        "computed_token_ms": _column(draw, (1.0, 1.0, 0.5, 2.0, 1 / 3), instances),
        "prefix_token_ms": _column(draw, (0.0, 0.125, 0.01), instances),
        "step_constant_ms": _column(draw, (10.0, 1.0, 2.5), instances),
        "step_sequence_ms": _column(draw, (1.0, 0.0, 0.7), instances),
        "step_token_ms": _column(draw, (0.0, 0.001, 0.1, 1 / 7), instances),
        "layers": draw(st.sampled_from((1, 3, 8))),
        "kv_bytes_per_token": draw(st.sampled_from((1, 10, 997))),
        "nic_bytes_per_s": _column(draw, (1e6, 1e6, 30_000.0, 3_000.0, 200.0), instances),
        "vram_tokens": _column(draw, (10_000, 200, 60, 40, 25), instances),
    }


ROUTERS = (
    "kvcache-centric:threshold=1", "kvcache-centric:threshold=1.5", "kvcache-centric", "cache-aware", "load-balancing",
    "round-robin", "random", "whims", "whims", "whims", "ordered", "ordered", "late", "ordered late",
)  # fmt: skip
ADMISSIONS = (
    "accept-all", "accept-all", "accept-all", "moody", "moody", "deadline", "baseline", "early", "early:recheck=true",
    "predictive:td=20ms", "predictive:td=200ms,recheck=true", "predictive", "predictive-request", "queue-cap:limit=3",
)  # fmt: skip
ALSO = (
    frozenset(), frozenset(), frozenset({"on_event"}), frozenset({"reject_prefill", "reject_decode", "late_decode"}),
    frozenset({"order", "reject_prefill"}), frozenset({"order", "late_decode", "reject_decode", "on_event"}),
)  # fmt: skip


@st.composite
def worlds(draw) -> World:
    prefill, decode = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    count = draw(st.integers(3, 40))
    router = draw(st.sampled_from(ROUTERS))
    chained = "ordered" in router or draw(st.integers(0, 5)) > 0  # an order of its own relies on chained ids
    return World(
        requests=make_requests(draw(st.integers(0, 2**32)), count, chained),
        prefill=prefill,
        decode=decode,
        cost=_cost(draw, prefill + decode),
        router=router,
        admission=draw(st.sampled_from(ADMISSIONS)),
        eviction=draw(st.sampled_from(EVICTIONS)),
        lots=list(random.Random(draw(st.integers(0, 2**16))).choices(range(1000), k=count)),
        also=draw(st.sampled_from(ALSO)),
        options={
            "pool_blocks": draw(st.one_of(st.integers(1, 6), st.integers(6, 30), st.integers(10, 100))),
            "block_tokens": BLOCK,
            "ttft_slo_ms": draw(st.sampled_from((1000.0, 300.0, 100.0, 40.0))),
            "tbt_slo_ms": draw(st.sampled_from((60.0, 25.0, 15.0, 12.0))),
            "touch_order": draw(st.sampled_from(("tail-first", "tail-first", "head-first"))),
            "seed": draw(st.integers(0, 3)),
        },
    )
