"""Instances that fail, come back and change their role (rule 13).

A dead instance loses all it has: its cache, what was queued, running, waiting or decoding there, and every transfer
from or to it. A request that lost its work is routed anew, or fails; one that lost only the place where it was to
decode gets another. A change of role is slow: the instance takes nothing new, finishes what it has, and only then is
an empty instance of its new role.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench.api import SetRole
from mooncake_bench.hardware.cost import PS_PER_MS
from mooncake_bench.sim.cluster import FAULT
from mooncake_bench.sim.events import ROLES, instance_of
from mooncake_bench.sim.job import Job
from mooncake_bench.sim.pipeline import is_pipelined

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mooncake_bench.api import Eviction
    from mooncake_bench.sim.cluster import Cluster
    from mooncake_bench.sim.events import Event
    from mooncake_bench.sim.network import Flow

OTHER = {"P": "D", "D": "P"}
WORDS = {letter: word for word, letter in ROLES.items()}


class Elastic:
    """Which instances are alive, and what they do now.

    ``make_eviction(instance)`` gives a pool that is empty again an eviction policy that knows nothing;
    ``capacity_of(instance)`` the blocks of its pool, should it come to prefill.
    """

    def __init__(
        self,
        cluster: Cluster,
        roles: Sequence[str],
        make_eviction: Callable[[int], Eviction],
        capacity_of: Callable[[int], int],
        *,
        retry: bool,
        grouped: bool = False,
    ) -> None:
        """``roles``: ``P``, ``D`` or ``M`` of each instance. ``retry``: lost requests are routed anew.

        ``grouped``: a prefill instance is several nodes, and cannot decode.
        """
        self._cluster = cluster
        self._roles = list(roles)  # what each does now, or did when it died
        self._next: dict[int, str] = {}  # the role that an instance takes once it has finished its work
        self._dead: set[int] = set()
        self._nobody: str | None = None
        self._make_eviction, self._capacity_of, self._retry = make_eviction, capacity_of, retry
        self._decodes = any(role != "P" for role in roles)
        self._coupled, self._grouped = "M" in roles, grouped
        self.ever_prefilled = np.array([role in "PM" for role in roles])
        self.ever_decoded = np.array([role in "DM" for role in roles])
        self.sizes: list[tuple[int, int, int]] = []  # from this time on, so many instances prefill and decode
        self.happened: list[tuple[int, str]] = []  # time and words of every event
        self.planned = 0  # events that are still to happen
        self.lost_requests = self.redirected = self.shortened = 0
        self._note_sizes(0)
        cluster.elastic = self
        cluster.actions[SetRole] = self._set_role_wanted

    def plan(self, events: Sequence[Event]) -> None:
        """Let these events happen, if anything else is still to happen then."""
        roles = tuple(self._roles)
        for event in events:
            call = partial(self._happen, event, instance_of(event, roles))
            self._cluster.call_at(round(event.time_ms * PS_PER_MS), FAULT, call, weak=True)
        self.planned += len(events)
        if any(event.action == "fail" for event in events):
            self._cluster.routings = []

    def nobody(self) -> str | None:
        """Why no request can be routed now."""
        return self._nobody

    def counters(self) -> dict[str, int]:
        """Requests that lost their work, were sent to another decode instance, or lost what they fetched."""
        return {
            "fault_lost_requests": self.lost_requests,
            "fault_redirected_requests": self.redirected,
            "fault_lost_fetches": self.shortened,
        }

    def _happen(self, event: Event, instance: int, now: int) -> None:
        self.planned -= 1
        if event.action == "fail":
            self.fail(instance, now)
        elif event.action == "recover":
            self.recover(instance, now)
        else:
            self.set_role(instance, OTHER[self._next.get(instance, self._roles[instance])], now)

    # roles

    def _set_role_wanted(self, action: Any, now: int) -> str | None:
        """Carry out a policy's wish; or say why not."""
        instance, role = action
        known = isinstance(instance, int | np.integer) and not isinstance(instance, bool)
        if not known or not 0 <= instance < len(self._roles):
            return f"there is no instance {instance!r}"
        if role not in ("prefill", "decode"):
            return f"an instance prefills or decodes: the role is 'prefill' or 'decode', not {role!r}"
        if self._coupled or not self._decodes:
            return "only a cluster of P and D instances has two roles to choose from"
        if is_pipelined(self._cluster.cost):
            return "a prefill instance is a group of nodes here, which does not change its role"
        if self._grouped:
            return "a prefill instance is several nodes here (prefill.group): it has no other role"
        if instance in self._dead:
            return f"instance {instance} is dead"
        self.set_role(int(instance), ROLES[role], now)
        return None

    def set_role(self, instance: int, role: str, now: int) -> None:
        """Let an instance have a role as soon as it has finished the work of its present one."""
        if role == self._next.get(instance, self._roles[instance]):
            return
        self._note(now, f"{self._name(instance)} is to {'prefill' if role == 'P' else 'decode'}")
        if role == self._roles[instance]:  # it was on its way to the other, and turns back
            del self._next[instance]
        else:
            self._next[instance] = role
        self._tell_roles()
        if self._next and self._look not in self._cluster.watchers:
            self._cluster.watchers.insert(0, self._look)

    def _look(self, now: int) -> None:
        """After every event while an instance finishes its work: it may have."""
        for instance, role in tuple(self._next.items()):
            if self._is_idle(instance):
                self._take_role(instance, role, now)
        if not self._next:
            self._cluster.watchers.remove(self._look)

    def _is_idle(self, instance: int) -> bool:
        """Whether nothing is left to do in its present role, and nothing moves from or to it."""
        cluster = self._cluster
        if cluster.network.egress[instance].flows or cluster.network.ingress[instance].flows:
            return False
        if self._roles[instance] == "P":
            node = cluster.prefilling.nodes[instance]
            return node.running is None and not node.queue and not cluster.pool.nodes[instance].pinned
        return not cluster.state.routed_tokens[instance] and not cluster.decoding.decoders[instance].batch

    def _take_role(self, instance: int, role: str, now: int) -> None:
        del self._next[instance]
        self._empty(instance)
        self._roles[instance] = role
        self._furnish(instance)
        self._note(now, f"instance {instance} {'prefills' if role == 'P' else 'decodes'}")
        self._tell_roles()
        self._note_sizes(now)

    def _furnish(self, instance: int) -> None:
        """Give an instance what its role needs, empty."""
        cluster = self._cluster
        if self._roles[instance] == "D":
            self.ever_decoded[instance] = True
            if instance not in cluster.decoding.decoders:
                cluster.decoding.add(instance)
            return
        self.ever_prefilled[instance] = True
        if instance not in cluster.prefilling.nodes:
            cluster.prefilling.nodes[instance] = cluster.prefilling.make_node(instance)
            cluster.pool.add(instance, self._capacity_of(instance), self._make_eviction(instance))
            if cluster.tiers is not None:
                cluster.tiers.add(instance)
            cluster.brain.view.emptied(instance, cluster.pool.nodes[instance].capacity)

    def _empty(self, instance: int) -> None:
        """Whatever its pool holds is gone."""
        store = self._cluster.pool.nodes.get(instance)
        if store is not None and self._roles[instance] != "D":
            store.wipe(self._make_eviction(instance))
            self._cluster.brain.view.emptied(instance, store.capacity)

    def _tell_roles(self) -> None:
        """Everybody knows at once which instances take requests, and which are dead."""
        cluster, state = self._cluster, self._cluster.state
        for instance, role in enumerate(self._roles):
            takes = instance not in self._dead and instance not in self._next
            state.is_prefill[instance] = takes and role in "PM"
            state.is_decode[instance] = takes and role in "DM"
        self._nobody = None if state.is_prefill.any() else "no prefill instance takes requests"
        if self._decodes and not state.is_decode.any():
            self._nobody = "no decode instance takes requests"
        cluster.brain.dead = frozenset(self._dead)
        cluster.brain.roles_changed(state.is_prefill, state.is_decode)
        cluster.brain.view.roles_changed(state.is_prefill, state.is_decode)

    # life and death

    def recover(self, instance: int, now: int) -> None:
        """A dead instance comes back, empty and idle."""
        self._dead.remove(instance)
        self._furnish(instance)
        self._note(now, f"{self._name(instance)} recovers")
        self._tell_roles()
        self._note_sizes(now)

    def fail(self, instance: int, now: int) -> None:
        """An instance dies, with all that is on it."""
        self._dead.add(instance)
        name = self._name(instance)
        self._tell_roles()  # first: nothing is redirected to it
        cluster = self._cluster
        lost: list[Job] = []
        if instance in cluster.prefilling.nodes:
            lost += cluster.prefilling.take_out_all(instance, now)
        if instance in cluster.decoding.decoders:
            lost += cluster.decoding.take_out_all(instance, now)
        if cluster.prefilling.replicas is not None:
            cluster.prefilling.replicas.cut_off(instance, now)
        sent, waiting = self._cut_off(instance, now)
        self._empty(instance)
        stranded = self._redirect(instance, now)
        lost += sent + stranded
        self._roles[instance] = self._next.pop(instance, self._roles[instance])  # it comes back as what it was to be
        self._note(now, f"{name} fails")
        self._note_sizes(now)
        for node in dict.fromkeys(job.prefill for job in (*waiting, *stranded)):
            cluster.prefilling.go_on(node, now)
        self._after_loss(sorted(lost, key=lambda job: job.row), f"{name} failed", now)

    def _cut_off(self, instance: int, now: int) -> tuple[list[Job], list[Job]]:
        """End every transfer from a dead instance.

        Returns the requests whose KV it still had, prefilled, and those on other instances that fetched from it.
        """
        cluster = self._cluster
        lost, starved = [], []
        for flow in tuple(cluster.network.egress[instance].flows):
            job = flow.owner
            if not isinstance(job, Job):
                self._abort(flow, now)
            elif cluster.inlining is not None and cluster.inlining.fetches(flow):
                cluster.inlining.withdraw(job, now)
                lost.append(job)
            elif flow is job.fetch:
                cluster.prefilling.forgo_fetch(job, now)
                self.shortened += 1
                starved.append(job)
            else:
                cluster.network.stop(now, flow)
                flow.owner = None
                cluster.unroute(job)
                if cluster.state.tracked:
                    cluster.state.promised.remove(job.row)
                lost.append(job)
        return lost, starved

    def _abort(self, flow: Flow, now: int) -> None:
        """A transfer that is no request's own."""
        self._cluster.network.stop(now, flow)

    def _redirect(self, instance: int, now: int) -> list[Job]:
        """Requests that were to decode on a dead instance, and are not there yet, get another by rule 10.

        Returns those that have none to go to.
        """
        cluster = self._cluster
        found = [flow.owner for flow in cluster.network.ingress[instance].flows if isinstance(flow.owner, Job)]
        for node in cluster.prefilling.nodes.values():
            found += [job for job in (*node.started, *node.queue) if job.decode == instance]
        stranded = []
        for job in sorted(found, key=lambda job: job.row):
            if cluster.state.is_decode.any():
                cluster.brain.view.at(now)
                cluster.prefilling.redirect(job, cluster.brain.view.lightest_decode(), now)
                self.redirected += 1
            else:
                stranded.append(job)
        for job in stranded:
            cluster.prefilling.withdraw(job, now)
        return stranded

    def _after_loss(self, lost: Sequence[Job], reason: str, now: int) -> None:
        """Requests that are nowhere any more start over, in the order of the trace, or fail."""
        cluster = self._cluster
        self.lost_requests += len(lost)
        for job in lost:
            cluster.brain.tell("lost", job, now)
            cluster.start_over(job, now)
        for job in lost:
            if job in cluster.decoding.leaving:
                cluster.fail(job, now, cluster.decoding.leaving.pop(job))
            elif self._retry:
                cluster.try_again(job, now)
            else:
                cluster.fail(job, now, reason)

    # accounts

    def _name(self, instance: int) -> str:
        return f"{WORDS[self._roles[instance]]} instance {instance}"

    def _note(self, now: int, words: str) -> None:
        self.happened.append((now, words))

    def _note_sizes(self, now: int) -> None:
        """How many instances work in each role from now on; one that finishes its work still has it."""
        alive = [role for instance, role in enumerate(self._roles) if instance not in self._dead]
        self.sizes.append((now, sum(role in "PM" for role in alive), sum(role in "DM" for role in alive)))
