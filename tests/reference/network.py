"""Max-min fair transfers by naive progressive filling: every flow's rate is worked out from scratch at every change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SCALE = 10**12  # a rate in whole bytes/s times a time in ps is a size in bytes x 10^12: all of it exact integers


@dataclass(eq=False)
class Flow:
    """Bytes on their way from one node's egress NIC to another's ingress NIC."""

    number: int  # creation order: breaks ties of transfer ends
    source: int
    target: int
    size: int  # to send, bytes x 10^12
    cap: int | None  # most bytes per second it asks for; None: whatever it gets
    done: Callable[[], None] | None  # called at its end; None: a stream during its prefill, which has no end yet
    sent: int = 0
    rate: int = -1  # not set yet
    since_ps: int = 0
    end_ps: int | None = None
    epoch: int = 0

    def settle(self, now: int) -> None:
        self.sent += self.rate * (now - self.since_ps)
        self.since_ps = now


@dataclass
class Network:
    """All flows of the cluster. ``post(time, flow, epoch)`` schedules a transfer end."""

    nic: Sequence[int]  # bytes per second of each node, each way
    post: Callable[[int, Flow, int], None]
    flows: list[Flow] = field(default_factory=list)
    created: int = 0
    core: int | None = None  # bytes per second that all flows together get at most

    def add(
        self, now: int, source: int, target: int, size_bytes: int, cap: int | None, done: Callable[[], None] | None
    ) -> Flow:
        flow = Flow(self.created, source, target, size_bytes * SCALE, cap, done, since_ps=now)
        self.created += 1
        self.flows.append(flow)
        self.refill(now)
        return flow

    def remove(self, now: int, flow: Flow) -> None:
        flow.epoch += 1
        self.flows.remove(flow)
        self.refill(now)

    def release(self, now: int, flow: Flow, least: int, done: Callable[[], None]) -> None:
        """The prefill of this stream ended: what is unsent, and at least ``least``, remains, uncapped."""
        flow.settle(now)
        flow.size, flow.sent = max(flow.size - flow.sent, least), 0
        flow.cap, flow.done = None, done
        flow.rate = -1  # forces a new end below
        self.refill(now)

    def refill(self, now: int) -> None:
        """Give every flow its max-min fair rate; one whose rate changed is settled and gets a new end."""
        for flow, rate in zip(self.flows, fair_rates(self.flows, self.nic, self.core), strict=True):
            if rate == flow.rate:
                continue
            if flow.rate >= 0:
                flow.settle(now)
            flow.since_ps, flow.rate = now, rate
            flow.epoch += 1
            if flow.done is not None:
                flow.end_ps = now + -(-(flow.size - flow.sent) // rate)
                self.post(flow.end_ps, flow, flow.epoch)


def fair_rates(flows: Sequence[Flow], nic: Sequence[int], core: int | None = None) -> list[int]:
    """Raise all rates together; a flow stops at its cap, or when its egress, its ingress or the core is full.

    Whole bytes/s.
    """
    rates: dict[int, int] = {}
    links = sorted({("out", f.source) for f in flows} | {("in", f.target) for f in flows})
    if core is not None:
        links.append(("core", len(nic)))
        nic = [*nic, core]

    def uses(flow: Flow, link: tuple[str, int]) -> bool:
        return link[0] == "core" or link in (("out", flow.source), ("in", flow.target))

    while len(rates) < len(flows):
        rising = [i for i in range(len(flows)) if i not in rates]
        share = {}  # level at which each link would be full, rounded down
        for link in links:
            on_link = [i for i, flow in enumerate(flows) if uses(flow, link)]
            still = [i for i in on_link if i not in rates]
            if still:
                share[link] = (nic[link[1]] - sum(rates[i] for i in on_link if i in rates)) // len(still)
        level = min([*share.values(), *(flows[i].cap for i in rising if flows[i].cap is not None)])
        full = [link for link, at in share.items() if at == level]
        capped = [i for i in rising if flows[i].cap == level]  # before the full links: what rounding leaves is shared
        for i in capped or [i for i in rising if any(uses(flows[i], link) for link in full)]:
            rates[i] = level
    return [rates[i] for i in range(len(flows))]
