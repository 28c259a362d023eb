"""Ticks: policies that want to be asked every so often, and what they may do about the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from numbers import Real
from typing import TYPE_CHECKING, Any

from mooncake_bench.errors import PolicyError, faults
from mooncake_bench.sim.brain import PS_PER_MS, policy_fault
from mooncake_bench.sim.cluster import TICK

if TYPE_CHECKING:
    from mooncake_bench.api import Action, Policy
    from mooncake_bench.sim.cluster import Cluster

TICKING = "on_tick()"
LEAST_MS = 0.001


def start(cluster: Cluster, first_arrival_ps: int) -> None:
    """Ask every policy that has an ``on_tick``, every ``tick_ms`` from the first arrival on.

    Raises PolicyError for a ``tick_ms`` that is no time, or one below a microsecond.
    """
    for policy in cluster.brain.tickers:
        _Ticks(cluster, policy).after(first_arrival_ps)


class _Ticks:
    """The ticks of one policy."""

    def __init__(self, cluster: Cluster, policy: Policy) -> None:
        self._cluster = cluster
        self._policy = policy
        period: Any = policy.tick_ms
        if not isinstance(period, Real) or isinstance(period, bool) or not isfinite(period) or period < LEAST_MS:
            raise PolicyError(
                f"policy {policy.name!r}: its tick_ms is {period!r}; it must be a time of at least {LEAST_MS:g}, in ms"
            )
        self._period_ps = round(float(period) * PS_PER_MS)

    def after(self, now: int) -> None:
        """Let the next tick come a period from now."""
        self._cluster.call_at(now + self._period_ps, TICK, self._tick, weak=True)

    def _tick(self, now: int) -> None:
        for action in self._wanted(now):
            carry_out(self._cluster, self._policy, action, now)
        self.after(now)

    def _wanted(self, now: int) -> Sequence[Action]:
        view = self._cluster.brain.view
        view.at(now)
        try:
            wanted = self._policy.on_tick(view)
        except faults() as error:
            raise policy_fault(self._policy, None, error, TICKING) from error
        if not isinstance(wanted, Sequence) or isinstance(wanted, str):
            self._refuse(f"it returned {wanted!r}; return a list of actions, () for none")
        return wanted

    def _refuse(self, what: str) -> None:
        raise PolicyError(f"policy {self._policy.name!r}, {TICKING}: {what}")


def carry_out(cluster: Cluster, policy: Policy, action: Action, now: int) -> None:
    """Do what a policy wants. Raises PolicyError naming it and the reason when that cannot be done."""
    carry = cluster.actions.get(type(action))
    if carry is None:
        known = ", ".join(kind.__name__ for kind in cluster.actions) or "none"
        raise PolicyError(f"policy {policy.name!r}, {TICKING}: {action!r} is no action of this cluster; known: {known}")
    reason = carry(action, now)
    if reason is not None:
        raise PolicyError(f"policy {policy.name!r}, {TICKING}: it wants {action!r}, but {reason}")
