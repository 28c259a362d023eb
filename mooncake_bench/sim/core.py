"""A network whose core carries less than the NICs together: one more link, which every flow crosses (rule 11).

While all that the flows could take fits, the core is transparent and work stays local, as without one. Otherwise the
rates of all flows are worked out together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mooncake_bench.sim.network import Flow, Link, Network, fair_rates

if TYPE_CHECKING:
    from collections.abc import Callable


class CoredNetwork(Network):
    """The links of all instances, and a core that moves at most ``core`` B/s."""

    def __init__(
        self,
        capacities: list[int],
        post: Callable[[int, Flow, int], None],
        watch: Callable[[int, Flow], None],
        core: int,
    ) -> None:
        super().__init__(capacities, post, watch)
        self.core, self.core_bytes_per_s = Link(core), core
        self._wanted = 0  # B/s that all flows would take were there no core, at most

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
        """As :meth:`Network.start`."""
        flow = super().start(now, source, target, size, cap=cap, done=done, owner=owner)
        self.core.flows[flow] = None
        self._wanted += _most(flow)
        self._share(now, full=False)
        return flow

    def release_cap(self, now: int, flow: Flow, least_left: int, done: Callable[[int, Any], None], owner: Any) -> None:
        """As :meth:`Network.release_cap`."""
        full = self._wanted > self.core.capacity
        self._wanted -= _most(flow)
        super().release_cap(now, flow, least_left, done, owner)
        self._wanted += _most(flow)
        self._share(now, full=full)

    def stop(self, now: int, flow: Flow) -> None:
        """As :meth:`Network.stop`."""
        full = self._wanted > self.core.capacity
        del self.core.flows[flow]
        self._wanted -= _most(flow)
        super().stop(now, flow)
        self._share(now, full=full)

    def fastest(self, source: int, target: int) -> int:
        """B/s between two instances when nothing else is sent."""
        return min(self.core.capacity, super().fastest(source, target))

    def _share(self, now: int, *, full: bool) -> None:
        """Give all flows their fair rates, if the core is or was (``full``) the narrowest place of any."""
        is_full = self._wanted > self.core.capacity
        if not is_full and not full:
            return
        flows = list(self.core.flows)
        links = list(dict.fromkeys(link for flow in flows for link in (flow.egress, flow.ingress)))
        rates = fair_rates(flows, links, self.core if is_full else None)
        for flow in flows:
            self._set_rate(now, flow, rates[flow])
        for link in (*self.egress, *self.ingress):
            link.degraded = any(flow.cap is not None and flow.rate < flow.cap for flow in link.flows)


def _most(flow: Flow) -> int:
    """B/s that a flow takes at most."""
    out, into, cap = flow.egress.capacity, flow.ingress.capacity, flow.cap
    most = out if out < into else into
    return most if cap is None or cap > most else cap
