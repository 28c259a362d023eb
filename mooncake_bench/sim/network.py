"""Flows over shared NICs: max-min fair, in exact integers (rule 11).

Every instance has an egress and an ingress link. A flow may be capped by what its source can produce (a prefill
streams its KV no faster than it computes it). Rates are whole bytes a second and volumes are bytes x 10^12, so a
rate times picoseconds is exact and no result depends on the order of additions.

Work stays local: while a link's capped flows leave half of it free and at most one uncapped flow uses it, that flow
simply takes what is left; otherwise the component joined by busy links is filled anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

SCALE = 10**12  # volume units a byte: rate [B/s] x time [ps] = bytes x 10^12


class Link:
    """One direction of one instance's NIC."""

    __slots__ = ("capacity", "capped", "degraded", "flows", "half", "uncapped")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.half = capacity // 2
        self.flows: dict[Flow, None] = {}  # insertion-ordered set
        self.capped = 0  # sum of the finite caps, B/s
        self.uncapped: dict[Flow, None] = {}
        self.degraded = False  # a capped flow here runs below its cap


class Flow:
    """Bytes on their way from ``source`` to ``target``."""

    __slots__ = (
        "cap",
        "done",
        "egress",
        "epoch",
        "ingress",
        "number",
        "owner",
        "rate",
        "sent",
        "since",
        "size",
        "watched",
    )

    def __init__(
        self,
        number: int,
        egress: Link,
        ingress: Link,
        size: int,
        cap: int | None,
        done: Callable[[int, Any], None] | None,
        owner: Any,
    ) -> None:
        self.number = number  # in order of creation
        self.egress = egress
        self.ingress = ingress
        self.size = size  # bytes x 10^12
        self.cap = cap  # B/s; None: only the links limit it
        self.done = done  # called as done(now, owner) when all is sent; None: it never ends by itself
        self.owner = owner
        self.sent = 0  # bytes x 10^12, as of `since`
        self.since = 0
        self.rate = 0
        self.epoch = 0
        self.watched = False  # someone shows its projected end: tell of every change of rate

    def settle(self, now: int) -> None:
        """Account for what was sent at the old rate."""
        self.sent += self.rate * (now - self.since)
        self.since = now

    def end(self) -> int:
        """When all is sent at the present rate, rounded up to a picosecond."""
        return self.since + max(0, -(-(self.size - self.sent) // self.rate))


class Network:
    """All links. ``post(time, flow, epoch)`` schedules the end of a flow; ``watch(now, flow)`` hears of a watched
    flow's new rate."""

    def __init__(
        self, capacities: list[int], post: Callable[[int, Flow, int], None], watch: Callable[[int, Flow], None]
    ) -> None:
        self.core_bytes_per_s: int | None = None  # where something narrower than all NICs lies between them
        self.egress = [Link(capacity) for capacity in capacities]
        self.ingress = [Link(capacity) for capacity in capacities]
        self._post = post
        self._watch = watch
        self.started = 0

    def start(
        self,
        now: int,
        source: int,
        target: int,
        size: int,
        *,
        cap: int | None = None,
        done: Callable[[int, Any], None] | None = None,
        owner: Any = None,
    ) -> Flow:
        """Send ``size`` (bytes x 10^12), at most at ``cap`` B/s; calls ``done(now, owner)`` at its end."""
        egress, ingress = self.egress[source], self.ingress[target]
        self.started += 1
        flow = Flow(self.started, egress, ingress, size, cap, done, owner)
        flow.since = now
        if cap is None:
            egress.uncapped[flow] = ingress.uncapped[flow] = None
        else:
            egress.capped += cap
            ingress.capped += cap
        egress.flows[flow] = ingress.flows[flow] = None
        if cap is not None and _quiet(egress) and _quiet(ingress):
            flow.rate = cap
        else:
            self._rebalance(now, flow, present=True)
        return flow

    def alone_ps(self, source: int, target: int, size: int) -> int:
        """How long ``size`` (bytes x 10^12) takes when nothing else is sent."""
        return -(-size // self.fastest(source, target))

    def fastest(self, source: int, target: int) -> int:
        """B/s between two instances when nothing else is sent."""
        return min(self.egress[source].capacity, self.ingress[target].capacity)

    def release_cap(self, now: int, flow: Flow, least_left: int, done: Callable[[int, Any], None], owner: Any) -> None:
        """The source has produced everything: send the rest, at least ``least_left``, as fast as the links allow."""
        flow.settle(now)
        flow.size = flow.sent + max(flow.size - flow.sent, least_left)
        flow.done = done
        flow.owner = owner
        egress, ingress = flow.egress, flow.ingress
        egress.capped -= flow.cap or 0
        ingress.capped -= flow.cap or 0
        flow.cap = None
        flow.rate = 0  # always a change: its end must be posted
        alone = _quiet(egress) and _quiet(ingress)
        egress.uncapped[flow] = ingress.uncapped[flow] = None
        if alone:
            self._set_rate(now, flow, min(egress.capacity - egress.capped, ingress.capacity - ingress.capped))
        else:
            self._rebalance(now, flow, present=True)

    def stop(self, now: int, flow: Flow) -> None:
        """Take a flow off its links (it ended or was cancelled)."""
        flow.settle(now)
        flow.epoch += 1
        self._detach(flow)
        if not (_quiet(flow.egress) and _quiet(flow.ingress)):
            self._rebalance(now, flow, present=False)

    def _detach(self, flow: Flow) -> None:
        for link in (flow.egress, flow.ingress):
            del link.flows[flow]
            if flow.cap is None:
                del link.uncapped[flow]
            else:
                link.capped -= flow.cap

    def _rebalance(self, now: int, flow: Flow, *, present: bool) -> None:
        """Give every flow that the change of ``flow`` may touch its fair rate."""
        egress, ingress = flow.egress, flow.ingress
        if not (_easy(egress) and _easy(ingress)):
            self._refill(now, (egress, ingress))
            return
        if present and flow.cap is not None:
            flow.settle(now)
            flow.rate = flow.cap  # nobody waits for the end of a capped flow
        if egress.uncapped or ingress.uncapped:
            for sole in {**egress.uncapped, **ingress.uncapped}:
                source, target = sole.egress, sole.ingress
                if not (_easy(source) and _easy(target)):
                    self._refill(now, (egress, ingress))
                    return
                self._set_rate(now, sole, min(source.capacity - source.capped, target.capacity - target.capped))

    def _set_rate(self, now: int, flow: Flow, rate: int) -> None:
        if rate != flow.rate:
            flow.settle(now)
            flow.rate = rate
            flow.epoch += 1
            if flow.done is not None:
                self._post(flow.end(), flow, flow.epoch)
            if flow.watched:
                self._watch(now, flow)

    def _refill(self, now: int, links: tuple[Link, Link]) -> None:
        """Progressive filling of the component that the busy links among ``links`` reach."""
        component, flows = _component(links)
        rates = fair_rates(flows, component)
        for flow in flows:
            self._set_rate(now, flow, rates[flow])
        for link in component:
            link.degraded = any(flow.cap is not None and flow.rate < flow.cap for flow in link.flows)


def _quiet(link: Link) -> bool:
    """Whether all flows here run at their caps and leave half of the link free."""
    return not link.uncapped and link.capped <= link.half and not link.degraded


def _easy(link: Link) -> bool:
    """Whether the closed form holds here: capped flows all at their caps, at most one uncapped flow for the rest."""
    return len(link.uncapped) < 2 and link.capped <= link.half and not link.degraded


def _busy(link: Link) -> bool:
    """Whether what its flows would take could exceed the link, so that they share a fate."""
    return bool(link.uncapped) or link.capped > link.capacity or link.degraded


def _component(links: tuple[Link, Link]) -> tuple[list[Link], list[Flow]]:
    """The links and flows reachable from ``links`` through busy links."""
    seen_links: dict[Link, None] = dict.fromkeys(links)
    seen_flows: dict[Flow, None] = {}
    frontier = list(links)
    while frontier:
        link = frontier.pop()
        if not _busy(link) and link not in links:
            continue
        for flow in link.flows:
            if flow not in seen_flows:
                seen_flows[flow] = None
                for other in (flow.egress, flow.ingress):
                    if other not in seen_links:
                        seen_links[other] = None
                        frontier.append(other)
    return list(seen_links), list(seen_flows)


def fair_rates(flows: list[Flow], links: list[Link], core: Link | None = None) -> dict[Flow, int]:
    """Max-min fair whole rates, B/s, of ``flows`` (progressive filling).

    ``links`` are the links of these flows; ``core`` is one that they all cross, if there is one. A link that also
    carries flows outside ``flows`` is not a bottleneck of theirs, and those run at their caps: what they take is set
    aside.
    """
    todo = dict.fromkeys(flows)
    room: dict[Link, int] = {}
    count: dict[Link, int] = {}
    links = links if core is None else [*links, core]
    for link in links:
        outside = sum(flow.rate for flow in link.flows if flow not in todo)
        room[link] = link.capacity - outside
        count[link] = sum(flow in todo for flow in link.flows)
    rates: dict[Flow, int] = {}
    while todo:
        level = min(room[link] // count[link] for link in links if count[link])
        capped = [flow for flow in todo if flow.cap is not None and flow.cap <= level]
        if capped:
            settled = {flow: flow.cap for flow in capped}
        else:
            tight = [link for link in links if count[link] and room[link] // count[link] == level]
            all_of_them = core in tight
            settled = {flow: level for flow in todo if all_of_them or flow.egress in tight or flow.ingress in tight}
        for flow, rate in settled.items():
            assert rate is not None
            rates[flow] = rate
            del todo[flow]
            for link in (flow.egress, flow.ingress) if core is None else (flow.egress, flow.ingress, core):
                room[link] -= rate
                count[link] -= 1
    return rates
