"""Max-min fair transfers by naive progressive filling: every flow's rate is worked out from scratch at every change."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PS = 1e12  # picoseconds in a second


@dataclass(eq=False)
class Flow:
    """Bytes on their way from one node's egress NIC to another's ingress NIC."""

    number: int  # creation order: breaks ties of transfer ends
    source: int
    target: int
    total: float  # bytes to send
    cap: float  # most bytes per second it asks for
    done: Callable[[], None] | None  # called at its end; None: a stream during its prefill, which has no end yet
    sent: float = 0.0
    rate: float = 0.0
    since_ps: int = 0
    end_ps: int | None = None
    epoch: int = 0

    def settle(self, now: int) -> None:
        self.sent += self.rate * (now - self.since_ps) / PS
        self.since_ps = now


@dataclass
class Network:
    """All flows of the cluster. ``post(time, flow, epoch)`` schedules a transfer end."""

    nic: Sequence[float]  # bytes per second of each node, each way
    post: Callable[[int, Flow, int], None]
    flows: list[Flow] = field(default_factory=list)
    created: int = 0

    def add(
        self, now: int, source: int, target: int, total: float, cap: float, done: Callable[[], None] | None
    ) -> Flow:
        flow = Flow(self.created, source, target, total, cap, done, since_ps=now)
        self.created += 1
        self.flows.append(flow)
        self.refill(now)
        return flow

    def remove(self, now: int, flow: Flow) -> None:
        flow.settle(now)
        flow.epoch += 1
        self.flows.remove(flow)
        self.refill(now)

    def release(self, now: int, flow: Flow, floor: float, done: Callable[[], None]) -> None:
        """The prefill of this stream ended: what is unsent, and at least ``floor`` bytes, remains, uncapped."""
        flow.settle(now)
        flow.total, flow.sent = max(flow.total - flow.sent, floor), 0.0
        flow.cap, flow.done = math.inf, done
        flow.rate = -1.0  # forces a new end below
        self.refill(now)

    def refill(self, now: int) -> None:
        """Give every flow its max-min fair rate; one whose rate changed is settled and gets a new end."""
        for flow, rate in zip(self.flows, fair_rates(self.flows, self.nic), strict=True):
            if rate == flow.rate:
                continue
            if flow.rate > 0:
                flow.settle(now)
            flow.since_ps, flow.rate, flow.end_ps = now, rate, None
            flow.epoch += 1
            if flow.done is not None and rate > 0:
                flow.end_ps = now + math.ceil((flow.total - flow.sent) / rate * PS)
                self.post(flow.end_ps, flow, flow.epoch)


def fair_rates(flows: Sequence[Flow], nic: Sequence[float]) -> list[float]:
    """Raise all rates together; a flow stops at its cap or when its egress or ingress is full."""
    rates: dict[int, float] = {}
    links = sorted({("out", f.source) for f in flows} | {("in", f.target) for f in flows})

    def uses(flow: Flow, link: tuple[str, int]) -> bool:
        return link in (("out", flow.source), ("in", flow.target))

    while len(rates) < len(flows):
        rising = [i for i in range(len(flows)) if i not in rates]
        share = {}  # level at which each link would be full
        for link in links:
            on_link = [i for i, flow in enumerate(flows) if uses(flow, link)]
            still = [i for i in on_link if i not in rates]
            if still:
                share[link] = (nic[link[1]] - sum(rates[i] for i in on_link if i in rates)) / len(still)
        level = min(min(share.values()), min(flows[i].cap for i in rising))
        full = [link for link, at in share.items() if at <= level]
        for i in rising:
            if flows[i].cap <= level or any(uses(flows[i], link) for link in full):
                rates[i] = max(level, 0.0)
    return [rates[i] for i in range(len(flows))]
