"""Small worlds whose clients ask again, give up, think and cancel, and what must be left of them at the end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from unittest import mock

from reference.workloads import bundled

from mooncake_bench.api import Admission, Route, Router
from mooncake_bench.hardware.fake import FakeCost
from mooncake_bench.plugins import PolicySet
from mooncake_bench.results.invariants import check
from mooncake_bench.results.records import Records
from mooncake_bench.sim import replay as sim_replay
from mooncake_bench.sim.cluster import FAULT
from mooncake_bench.sim.setup import Setup
from mooncake_bench.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mooncake_bench.sim.cluster import Cluster
    from mooncake_bench.sim.job import Job
    from mooncake_bench.sim.replay import Replay

MS = 10**9  # ps
BLOCK = 4  # tokens
COMPLETED, REJECTED, FAILED = 1, 2, 3

Row = tuple[float, int, int, list[int]]  # arrival in ms, tokens in and out, blocks


@dataclass
class Told(Router):
    """Routes as told, row by row."""

    name = "told"
    routes: Mapping[int, Route]

    def route(self, request, cluster):
        return self.routes.get(request.row, Route(0))


class Full(Admission):
    """Turns the first ``times[row]`` attempts of a request away, and notes who asks when."""

    name = "full"

    def __init__(self, times: Mapping[int, int], after_ms: float | None = None) -> None:
        self.times, self.after_ms = times, after_ms
        self.asked: list[tuple[int, int, float]] = []  # row, attempt, time

    def reject(self, request, route, cluster):
        self.asked.append((request.row, request.attempt, cluster.now_ms))
        return "full" if request.attempt < self.times.get(request.row, 0) else None


class Later(Full):
    """Says when to come back."""

    def retry_after_ms(self, request, cluster):
        return self.after_ms


class World:
    """One replay, looked at from inside: ``at(ms, look)`` calls ``look(cluster)`` before all else of that time."""

    def __init__(self, rows: Sequence[Row] | Trace, cluster: str = "1P+1D", **setup: Any) -> None:
        """``setup`` may hold ``routes`` by row, an ``admission``, ``cost`` parameters and columns of the trace."""
        trace = rows if isinstance(rows, Trace) else Trace.of(list(rows), block_tokens=BLOCK)
        columns = {name: setup.pop(name) for name in ("session_id", "delay_ms", "priority") if name in setup}
        self.trace = replace(trace, **columns)
        self.router = setup.pop("router", None) or Told(setup.pop("routes", {}))
        self.admission = setup.pop("admission", None) or bundled("accept-all")
        self.eviction = setup.pop("eviction", "lru")
        self.flush = setup.pop("flush", sim_replay.FLUSH)
        instances = sum(int(group[:-1]) for group in cluster.split("+"))
        self.cost = FakeCost(instances, **{"kv_bytes_per_token": 1, **setup.pop("cost", {})})
        self.setup = Setup(cluster=cluster, **setup)
        self._looks: list[tuple[float, Callable[[Cluster], Any]]] = []
        self.seen: list[Any] = []  # what each look gave, in order of time

    def at(self, ms: float, look: Callable[[Cluster], Any]) -> World:
        self._looks.append((ms, look))
        return self

    def cancel(self, ms: float, row: int) -> World:
        return self.at(ms, lambda cluster: cancel(cluster, row))

    def replay(self) -> Replay:
        """Replay it, check the invariants, and that nothing is left in the cluster."""
        policies = PolicySet(
            label="test", spec="test", router=self.router, admission=self.admission,
            evictions=lambda: bundled(self.eviction), oracle=False, sources={},
        )  # fmt: skip
        assemble = sim_replay._assemble

        def assemble_and_look(*parts):
            self.cluster = cluster = assemble(*parts)
            cluster.routings = []
            for ms, look in self._looks:
                cluster.call_at(round(ms * MS), FAULT, self._looking(look))
            return cluster

        with (
            mock.patch.object(sim_replay.plugins, "build", return_value=policies),
            mock.patch.object(sim_replay, "_assemble", assemble_and_look),
        ):
            made = sim_replay.run(self.trace, self.setup, cost=self.cost, flush=self.flush)
        check(Records.of(made))
        nothing_is_left(self.cluster)
        return made

    def _looking(self, look: Callable[[Cluster], Any]) -> Callable[[int], None]:
        return lambda now: self.seen.append(look(self.cluster))


def job_of(cluster: Cluster, row: int) -> Job:
    return next(job for job in cluster.jobs if job.row == row)


def cancel(cluster: Cluster, row: int) -> bool:
    """Whether a request that has come was still under way."""
    return cluster.cancel(job_of(cluster, row), cluster.now, "by the test")


def nothing_is_left(cluster: Cluster) -> None:
    """Nothing is pinned, promised, routed, queued or moving any more."""
    state, network = cluster.state, cluster.network
    assert not cluster.pool.index.promised
    for store in cluster.pool.nodes.values():
        assert not store.pinned
        assert not store.extra_pins
        assert sum(bool(bits & store.held) for bits in cluster.pool.index.holders.values()) == store.resident
        assert store.resident <= store.capacity
    assert not state.routed_tokens.any()
    assert not state.queue_requests.any()
    assert not any(link.flows for links in (network.egress, network.ingress) for link in links)
    assert not any(node.queue or node.started or node.queued_ps for node in cluster.prefilling.nodes.values())
    for decoder in cluster.decoding.decoders.values():
        assert (decoder.batch, decoder.tokens) == (0, 0)
        assert not any((decoder.members, decoder.in_line, decoder.leaving))
    assert not cluster.decoding.leaving
    if state.tracked:
        assert [len(table) for table in (state.joined, state.waiting, state.promised)] == [0, 0, 0]
