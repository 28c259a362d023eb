"""Random small worlds whose instances fail, come back and change their roles, and what must always hold in them."""

from __future__ import annotations

import random
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from reference.fast import as_trace
from reference.workloads import (
    BLOCK,
    EVICTIONS,
    LateWhims,
    Moody,
    OrderedLateWhims,
    OrderedWhims,
    Whims,
    bundled,
    make_requests,
)

from mooncake_bench.api import Replicate, SetRole
from mooncake_bench.hardware.fake import FakeCost
from mooncake_bench.hardware.pipeline import PipelinedCost
from mooncake_bench.plugins import PolicySet
from mooncake_bench.results.invariants import check
from mooncake_bench.results.records import Records
from mooncake_bench.sim import replay as sim_replay
from mooncake_bench.sim.cluster import FAULT
from mooncake_bench.sim.job import UNFINISHED
from mooncake_bench.sim.mixed import InliningDecoder
from mooncake_bench.sim.setup import Setup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mooncake_bench.hardware.cost import CostModel
    from mooncake_bench.sim.cluster import Cluster
    from mooncake_bench.sim.replay import Replay

ROUTERS = ("whims", "whims", "ordered", "late", "ordered late", "restless", "kvcache-centric:threshold=1", "random")
ADMISSIONS = ("accept-all", "accept-all", "moody", "early:recheck=true", "predictive", "queue-cap:limit=3")
VIEWS = ("exact", "exact", "exact", "delayed:15", "router-only")


@dataclass
class Restless(Whims):
    """Gives an instance a role by lot every so often, or copies what it finds of the latest prompt."""

    name = "restless"
    tick_ms: float = 13.0
    fixed: bool = False

    def start(self, cluster, rng):
        self.rng, self.latest = rng, None

    def route(self, request, cluster):
        self.latest = request
        return super().route(request, cluster)

    def on_tick(self, cluster):
        alive = np.flatnonzero(cluster.is_prefill | cluster.is_decode)
        if not len(alive) or self.rng.random() < 0.6:
            return ()
        if self.latest is not None and self.rng.random() < 0.5:
            return self._copies(cluster)
        if (cluster.is_prefill & cluster.is_decode).any() or self.fixed:
            return ()  # coupled instances have both roles, groups one
        return [SetRole(int(self.rng.choice(alive)), str(self.rng.choice(("prefill", "decode"))))]

    def _copies(self, cluster):
        source, target = self.rng.choice(len(cluster.is_prefill), 2)
        found = int(cluster.fetchable_tokens(self.latest)[source]) // BLOCK
        if source == target or not found or not (cluster.is_prefill[source] and cluster.is_prefill[target]):
            return ()
        return [Replicate(int(source), int(target), self.latest.blocks[:found])]


WHIMS = {
    "whims": Whims, "ordered": OrderedWhims, "late": LateWhims, "ordered late": OrderedLateWhims, "restless": Restless,
}  # fmt: skip


@dataclass
class World:
    """A workload, a cluster, its policies and what happens to its instances: all by one number."""

    number: int
    prefill: int = 0
    decode: int = 0
    cost: dict[str, Any] = field(default_factory=dict)
    setup: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lot = self.lot = random.Random(self.number)
        self.prefill, self.decode = lot.randint(1, 3), lot.randint(1, 3)
        self.coupled = lot.random() < 0.2
        self.group, self.chunk = 1, lot.choice((None, 8))
        router = lot.choice(ROUTERS)
        if self.coupled:
            router = router.replace("ordered late", "late").replace("ordered", "whims")
        chained = "ordered" in router or lot.random() < 0.8
        self.requests = make_requests(lot.randrange(2**32), lot.choice((5, 6, 8, 10, 30)), chained)
        self.span_ms = self.requests[-1].arrival_ps / 1e9 * 1.5 + 60
        lots = lot.choices(range(1000), k=len(self.requests))
        fetches = lot.random() < 0.8
        self.router = WHIMS[router](lots, fetches=fetches) if router in WHIMS else bundled(router)
        if router == "restless":
            self.router.tick_ms = self.span_ms / 15
        admission = lot.choice(ADMISSIONS)
        self.admission = Moody(lots) if admission == "moody" else bundled(admission)
        self.eviction = lot.choice(EVICTIONS)
        self.cost = {
            "computed_token_ms": lot.choice((1.0, 0.5, 2.0)),
            "step_token_ms": lot.choice((0.0, 0.001, 1 / 7)),
            "layers": lot.choice((1, 3)),
            "kv_bytes_per_token": lot.choice((10, 100)),
            "nic_bytes_per_s": lot.choice((1e6, 30_000.0, 3_000.0)),
            "vram_tokens": lot.choice((10_000, 200, 60, 40)),
        }
        self.setup = {
            **(self._coupled() if self.coupled else self._pools()),
            "view": lot.choice(VIEWS),
            "slo_ttft_ms": lot.choice((1000.0, 100.0)),
            "slo_tbt_ms": lot.choice((60.0, 15.0)),
        }
        if router == "restless":
            self.router.fixed = self.group > 1
        self.setup["events"] = self._events() or None
        if "fail" in (self.setup["events"] or "") and lot.random() < 0.3:
            self.setup["faults_requests"] = "fail"

        if lot.random() < 0.3:
            self.setup |= {"client_retries": lot.randint(1, 2), "client_backoff_ms": lot.choice((5.0, 40.0))}
        if lot.random() < 0.2:
            self.setup["client_patience_ms"] = lot.choice((10.0, 60.0))
        times = sorted(lot.uniform(0, self.span_ms) for _ in range(lot.choice((0, 0, 1, 4))))
        self.cancels = [(round(time * 1e9), lot.random()) for time in times]

    def _pools(self) -> dict[str, Any]:
        """Prefill and decode instances, and some mechanics that most clusters do without."""
        lot = self.lot
        setup: dict[str, Any] = {
            "cluster": f"{self.prefill}P+{self.decode}D",
            "pool_blocks": lot.choice((2, 6, 15, 60)),
        }
        if lot.random() < 0.2:
            rates = {f"ssd_{way}_gbytes_per_s": lot.choice((0.001, 0.01)) for way in ("read", "write")}
            setup |= {"ssd_blocks": lot.choice((2, 8, 30)), **rates}
        if lot.random() < 0.1:
            setup["nic_core_gbytes_per_s"] = 0.001
        if lot.random() < 0.15:
            setup["decode_load_gbytes_per_s"] = lot.choice((1e-5, 1e-3))
        if lot.random() < 0.15:
            setup["decode_preemption"] = "recompute"
        if lot.random() < 0.15:
            self.group = setup["prefill_group"] = 2
            setup["cluster"] = f"{2 * self.prefill}P+{self.decode}D"
        if random.Random(-1 - self.number).random() < 0.4:  # a lot of its own: other worlds stay as they were
            setup["decode_inline"] = "on"
        return setup

    def _coupled(self) -> dict[str, Any]:
        """Instances that do both."""
        lot = self.lot
        self.decode = 0
        schedule = lot.choice(("prefill-first", "chunked", "one-at-a-time"))
        limits = {"step_tokens": lot.choice((8, 40)), "sequences": lot.choice((2, 6))}
        cache = lot.choice(("on", "on", "off"))
        return {"cluster": f"{self.prefill}M", "schedule": schedule, "prefix_cache": cache} | (
            {} if schedule == "one-at-a-time" else limits
        )

    def _events(self) -> str:
        """Failures, recoveries and changes of role while requests arrive, and for a while after."""
        lot = self.lot
        arrivals = [req.arrival_ps / 1e9 for req in self.requests]
        times = sorted(self._time(arrivals) for _ in range(lot.randint(1, 8)))
        fixed = self.coupled or self.group > 1  # they keep their role
        dead: set[tuple[str, int]] = set()
        events = []
        for time in times:
            role = "coupled" if self.coupled else lot.choice(("prefill", "decode"))
            who = (role, lot.randrange(self.decode if role == "decode" else self.prefill))
            who = lot.choice(sorted(dead)) if dead and lot.random() < 0.5 else who
            action = "recover" if who in dead else lot.choice(("fail", "fail", "fail" if fixed else "switch"))
            dead.add(who) if action == "fail" else dead.discard(who)
            events.append(f"{time!r}ms:{action}:{who[0]}:{who[1]}")
        return ",".join(events)

    def _time(self, arrivals: list[float]) -> float:
        """At an arrival, soon after one, or any."""
        lot = self.lot
        return lot.choice(
            (lot.choice(arrivals), lot.choice(arrivals) + lot.uniform(0, 15), lot.uniform(0, self.span_ms))
        )

    def replay(self) -> tuple[Replay, Cluster]:
        """Replay it with every event looked at. Raises AssertionError or InvariantError for what must not be."""
        policies = PolicySet(
            label="test", spec="test", router=self.router, admission=self.admission,
            evictions=lambda: bundled(self.eviction), oracle=False, sources={},
        )  # fmt: skip
        seen: list[Cluster] = []
        make = sim_replay._make_elastic

        def make_and_watch(cluster, *rest):
            make(cluster, *rest)
            seen.append(cluster)
            cluster.routings = []  # a request that is called off leaves its blocks to others
            cluster.watchers.append(lambda now: look(cluster, now))
            for time, share in self.cancels:
                cluster.call_at(time, FAULT, lambda now, share=share: cancel(cluster, share, now), weak=True)

        trace = as_trace(self.requests, BLOCK)
        cost: CostModel = FakeCost(self.prefill + self.decode, **self.cost)
        if self.group > 1:
            pipelines = [instance < self.prefill for instance in range(self.prefill + self.decode)]
            cost = PipelinedCost(cost, group=2, chunk_tokens=self.chunk, hop_bytes_per_token=0, prefill=pipelines)
        with (
            swapped(sim_replay.plugins, "build", lambda *_: policies),
            swapped(sim_replay, "_make_elastic", make_and_watch),
        ):
            replay = sim_replay.run(trace, Setup(**self.setup), cost=cost)
        check(Records.of(replay))
        look_at_the_end(seen[0])
        return replay, seen[0]


@contextmanager
def swapped(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Another value for a while; a thousand mocks would take seconds."""
    kept = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, kept)


def cancel(cluster: Cluster, share: float, now: int) -> None:
    """Call off one of the requests that are under way."""
    jobs = [job for job in cluster.jobs if job.status == UNFINISHED]
    if jobs:
        cluster.cancel(jobs[int(share * len(jobs))], now, "called off by the test")


def look(cluster: Cluster, now: int) -> None:
    """No capacity is exceeded, and nothing is on, or moves from or to, a dead instance."""
    state, network = cluster.state, cluster.network
    dead = cluster.elastic._dead
    for instance, store in cluster.pool.nodes.items():
        assert len(store.pinned) <= store.resident <= store.capacity
        assert not (store.resident and instance in dead)
        assert not (state.queue_requests[instance] and instance in dead)
    for instance, node in cluster.prefilling.nodes.items() if cluster.coupling is None else ():
        assert state.queue_requests[instance] == len(node.queue) + len(node.started)
        assert node.queued_ps == (sum(job.turn_ps for job in node.queue) if node.queue else 0)
        assert not (cluster.tiers and instance in dead and cluster.tiers.nodes[instance].blocks)
    for instance, decoder in cluster.decoding.decoders.items():
        assert decoder.batch == len(decoder.members)
        assert cluster.coupling is not None or decoder.tokens + decoder.batch * decoder.plan <= decoder.vram
        if isinstance(decoder, InliningDecoder):
            look_at_inlined(cluster, decoder)
        if instance in dead:
            assert not decoder.batch
            assert not decoder.in_line
            assert not state.routed_tokens[instance]
    for links in (network.egress, network.ingress):
        for instance, link in enumerate(links):
            if link.flows:
                assert sum(flow.rate for flow in link.flows) <= link.capacity
                assert instance not in dead
    assert min(state.routed_tokens.tolist()) >= 0


def look_at_inlined(cluster: Cluster, decoder: InliningDecoder) -> None:
    """What is computed there has its memory, and keeps the SLOs of all in the step."""
    prompts = [job for job in (decoder.computing, decoder.pending) if job is not None]
    assert all(job.row in cluster.inlining.rows and job in decoder.held for job in prompts)
    assert not (prompts and decoder.instance in cluster.elastic._dead)
    if decoder.computing is not None:
        assert decoder.tokens + decoder.batch + decoder.computing.context <= decoder.vram
        assert decoder.step <= min(map(cluster.inlining.limit_ps, (*decoder.members, decoder.computing)))


def look_at_the_end(cluster: Cluster) -> None:
    """Nothing is pinned, promised, routed, queued or moving any more, and dead instances hold nothing."""
    index, state = cluster.pool.index, cluster.state
    assert not index.promised
    for instance, store in cluster.pool.nodes.items():
        assert not store.pinned
        assert not store.extra_pins
        held = sum(bool(bits & store.held) for bits in index.holders.values())
        assert held == store.resident
        assert not (held and instance in cluster.elastic._dead)
    assert index.slots == sum(store.resident for store in cluster.pool.nodes.values())
    assert not state.routed_tokens.any()
    assert not state.queue_requests.any()
    if cluster.tiers is not None:
        cluster.tiers.check_at_rest()
    assert not any(link.flows for links in (cluster.network.egress, cluster.network.ingress) for link in links)
    if state.tracked:
        assert [len(table) for table in (state.joined, state.waiting, state.promised)] == [0, 0, 0]
