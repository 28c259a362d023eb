"""The scheduler's seat: asks the policies, checks every answer, and turns it into a plan for one request."""

from __future__ import annotations

import traceback
from math import isfinite
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from mooncake_bench.api import Admission, Policy, Route, Router
from mooncake_bench.errors import PolicyError, SetupError, faults
from mooncake_bench.hardware.pipeline import PipelinedCost

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.random import Generator

    from mooncake_bench.api import Bools
    from mooncake_bench.api import Cluster as Seen
    from mooncake_bench.hardware.cost import CostModel
    from mooncake_bench.sim.job import Job
    from mooncake_bench.sim.tiers import Tiers
    from mooncake_bench.sim.view import View

PS_PER_MS = 1e9


def overrides(policy: object, base: type, method: str) -> bool:
    """Whether a policy has its own version of an optional hook."""
    return getattr(type(policy), method, None) is not getattr(base, method)


class Witness(Protocol):
    """Looks on while requests are decided. What it raises ends the replay."""

    def shown(self, job: Job, view: View) -> Seen:
        """What a policy is shown: the view, or one that notes what is asked. First the router, then the admission."""

    def decided(self, job: Job, wanted: Route, reason: str | None) -> None:
        """The router wanted this, ``job`` says what came of it; and why the admission turned it away, if it did."""


class Brain:
    """Router and admission behind one door. Decisions that cannot be carried out name the policy and the reason."""

    def __init__(
        self,
        router: Router,
        admission: Admission,
        view: View,
        cost: CostModel,
    ) -> None:
        self.router = router
        self.admission = admission
        self.view = view
        self.cost = cost
        self._prefill: frozenset[int] = frozenset()
        self._decode: frozenset[int] = frozenset()
        self.roles_changed(view.is_prefill, view.is_decode)
        self.dead: frozenset[int] = frozenset()
        self.tiers: Tiers | None = None  # where prefill nodes have SSDs
        self._coupled = bool((view.is_prefill & view.is_decode).any())
        self._instances = len(cost.nic_bytes_per_s)
        self._block = view.block_tokens
        self._pipelined = cost if isinstance(cost, PipelinedCost) and cost.group > 1 else None
        self.witness: Witness | None = None
        self.reasons: dict[str, int] = {}
        self.orders = overrides(router, Router, "order")
        self.decides_late = overrides(router, Router, "late_decode")
        self._checks_prefill = overrides(admission, Admission, "reject_prefill")
        self._says_when = overrides(admission, Admission, "retry_after_ms")
        self._checks_decode = overrides(admission, Admission, "reject_decode")
        policies: list[Policy] = [router] if router is admission else [router, admission]  # type: ignore[comparison-overlap]
        self._listeners = [policy for policy in policies if overrides(policy, Policy, "on_event")]
        self.listens = bool(self._listeners) or view.follows
        self.tickers = [policy for policy in policies if overrides(policy, Policy, "on_tick")]

    @property
    def prefill_instances(self) -> frozenset[int]:
        """Those that take requests now."""
        return self._prefill

    def roles_changed(self, prefill: Bools, decode: Bools) -> None:
        """Instances have these roles from now on."""
        self._prefill = frozenset(prefill.nonzero()[0].tolist())
        self._decode = frozenset(decode.nonzero()[0].tolist())

    def start(self, router_rng: Generator, admission_rng: Generator) -> None:
        """Let both policies prepare, each with its own stream."""
        turns: list[tuple[Policy, Generator]] = [(self.router, router_rng), (self.admission, admission_rng)]
        if self.router is self.admission:  # type: ignore[comparison-overlap]
            turns.pop()
        for policy, rng in turns:
            self.start_one(policy, rng)

    def start_one(self, policy: Policy, rng: Generator) -> None:
        """Let one policy prepare."""
        try:
            policy.start(self.view, rng)
        except faults() as error:
            raise policy_fault(policy, None, error) from error

    # arrival

    def decide(self, job: Job, now: int) -> str | None:
        """Route a request; the reason when the admission turns it away."""
        request, witness = job.request, self.witness
        view: Seen = self.view
        self.view.at(now, request)
        try:
            wanted = self.router.route(request, view if witness is None else witness.shown(job, self.view))
        except faults() as error:
            raise policy_fault(self.router, job, error) from error
        route = self._apply(job, wanted)
        try:
            reason = self.admission.reject(request, route, view if witness is None else witness.shown(job, self.view))
        except faults() as error:
            raise policy_fault(self.admission, job, error) from error
        reason = None if reason is None else self._checked_reason(job, reason)
        if witness is not None:
            witness.decided(job, wanted, reason)
        return reason

    def _apply(self, job: Job, route: Route) -> Route:
        """Check a route and fill in what it left open."""
        if not isinstance(route, Route):
            self._refuse(job, f"route() returned {route!r}; return a Route")
        prefill, decode, source, ttft_ms, tbt_ms = route
        prefill = self._instance(job, prefill, self._prefill, "routed the prefill to")
        if not self._decode:
            decode = -1  # a prefill-only study
        elif self._coupled:
            decode = prefill  # whatever the router wants: the KVCache is here
        elif decode is None:
            decode = self.view.lightest_decode()
        else:
            decode = self._instance(job, decode, self._decode, "routed the decode to")
        job.prefill = prefill
        job.decode = decode
        lengths = self.view.actual_lengths(job.request)
        job.cached_blocks = hits = lengths[prefill]
        if source is not None:
            hits = self._check_fetch(job, source, lengths)
        self.set_hits(job, hits)
        if job.fetch_source is not None:
            job.fetched_tokens = job.hit_tokens - min(job.cached_blocks * self._block, job.input_tokens)
        if self.tiers is not None:
            self.tiers.plan(job)
        ttft_ms = self._estimate(job) if ttft_ms is None else self._prediction(job, ttft_ms, "TTFT")
        job.predicted_ttft_ms = ttft_ms
        job.predicted_tbt_ms = tbt_ms = None if tbt_ms is None else self._prediction(job, tbt_ms, "TBT")
        job.route = route = Route(prefill, decode, job.fetch_source, ttft_ms, tbt_ms)
        return route

    def _prediction(self, job: Job, value: Any, what: str) -> float:
        """A predicted time as a plain number."""
        if (type(value) is not float and not isinstance(value, Real)) or not isfinite(value) or value < 0:
            self._refuse(job, f"it predicted a {what} of {value!r} ms; predict a finite time of 0 or more, or None")
        return float(value)

    def _instance(self, job: Job, choice: Any, allowed: frozenset[int], what: str) -> int:
        """A chosen instance as a plain id, of the right role."""
        if type(choice) is int and choice in allowed:
            return choice
        plain = isinstance(choice, Integral) and not isinstance(choice, bool)
        if not plain or int(choice) not in allowed:
            other = plain and 0 <= int(choice) < self._instances
            reason = "has another role (see is_prefill and is_decode)" if other else "is no instance of this cluster"
            if other and int(choice) in self.dead:
                reason = "is dead (it has no role in is_prefill and is_decode, and its times are inf)"
            self._refuse(job, f"it {what} instance {choice!r}, which {reason}")
        return int(choice)

    def set_hits(self, job: Job, hits: int) -> None:
        """What so many leading cached blocks leave to compute, and what that takes (rule 3)."""
        job.hit_blocks = hits
        job.hit_tokens = min(hits * self._block, job.input_tokens)
        job.computed = max(1, job.input_tokens - job.hit_tokens)
        prefix = job.input_tokens - job.computed
        if self._pipelined is None:
            job.prefill_ps = job.turn_ps = self.cost.prefill_ps(job.prefill, job.computed, prefix)
        else:
            stages = self._pipelined.alone_ps(job.prefill, job.computed, prefix)
            job.prefill_ps, job.turn_ps = stages[-1], stages[0]

    def _check_fetch(self, job: Job, choice: Any, lengths: Sequence[int]) -> int:
        """Leading blocks cached once the fetch is done."""
        source = self._instance(job, choice, self._prefill, "fetches from")
        if self.view.local:
            self._refuse(job, f"it fetches from instance {source}, but no node fetches here (pool.scope is local)")
        if source == job.prefill:
            self._refuse(job, f"it fetches from instance {source} to itself")
        held, cached = lengths[self._instances + source], job.cached_blocks
        if held > cached:
            job.fetch_source = source
            return held
        if self.view.exact:
            self._refuse(
                job,
                f"it fetches from instance {source}, which has {held} leading blocks ready, no more than the "
                f"{cached} that instance {job.prefill} holds; fetch only where fetchable_tokens exceeds cached_tokens",
            )
        return cached  # a late view cannot know: what is no longer there is not fetched

    def _estimate(self, job: Job) -> float:
        """The harness's prediction for a route without one: queue + fetch + prefill."""
        wait = float(self.view.queue_ms[job.prefill])
        if job.load is not None:
            assert self.tiers is not None
            wait = max(wait, self.tiers.planned_ms(job.load) * self.view.load_factor(job.prefill))
        if job.fetch_source is not None:
            wait += job.fetched_tokens * self.view.fetch_ms_a_token(job.fetch_source, job.prefill)
        return wait + job.prefill_ps / PS_PER_MS * self.view.estimate_factor(job.prefill)

    # later decisions

    def reject_prefill(self, job: Job, now: int) -> str | None:
        """The admission's word when the request's turn has come."""
        return self._ask_admission(self.admission.reject_prefill, job, now) if self._checks_prefill else None

    def reject_decode(self, job: Job, now: int) -> str | None:
        """The admission's word when the KV has arrived."""
        return self._ask_admission(self.admission.reject_decode, job, now) if self._checks_decode else None

    def retry_after_ms(self, job: Job, now: int) -> float | None:
        """When the admission wants to be asked again about a request it turned away."""
        if not self._says_when:
            return None
        self.view.at(now)
        wait = self._ask(self.admission, job, self.admission.retry_after_ms, job.request, self.view)
        if wait is None:
            return None
        if isinstance(wait, bool) or not isinstance(wait, Real) or not isfinite(wait) or wait < 0:
            raise PolicyError(
                f"policy {self.admission.name!r}, request {job.row}: retry_after_ms() returned {wait!r}; "
                "return a finite time of 0 or more, in ms, or None"
            )
        return float(wait)

    def _ask_admission(self, check: Callable[..., Any], job: Job, now: int) -> str | None:
        self.view.at(now)
        return self._checked_reason(job, self._ask(self.admission, job, check, job.request, job.route, self.view))

    def late_decode(self, job: Job, now: int) -> int:
        """Where the request decodes, chosen when its prefill has ended; where it was sent, if nobody else can be."""
        if not self._decode:
            return job.decode
        self.view.at(now)
        decode = self._ask(self.router, job, self.router.late_decode, job.request, job.route, self.view)
        if decode is None:
            return job.decode
        decode = self._instance(job, decode, self._decode, "chose late to decode on")
        job.route = job.route._replace(decode=decode)
        return decode

    def order(self, instance: int, queue: Sequence[Job], now: int) -> int:
        """The policy's choice of the next prefill: an index into the queue."""
        self.view.at(now)
        jobs = list(queue)
        choice = self._ask(self.router, jobs[0], self.router.order, instance, [job.request for job in jobs], self.view)
        if not isinstance(choice, Integral) or not 0 <= int(choice) < len(jobs):
            self._refuse(jobs[0], f"order() returned {choice!r}; return an index below {len(jobs)}")
        return int(choice)

    def tell(self, kind: str, job: Job, now: int) -> None:
        """Let the policies that listen, and a view that follows, know."""
        if self.view.follows and kind != "joined":
            self.view.happened(kind, job, now)
        if self._listeners:
            self.view.at(now)
            for policy in self._listeners:
                self._ask(policy, job, policy.on_event, kind, job.row, self.view)

    def reason_id(self, reason: str) -> int:
        """A small number for a rejection reason."""
        return self.reasons.setdefault(reason, len(self.reasons))

    def _ask(self, policy: Policy, job: Job, method: Callable[..., Any], *arguments: Any) -> Any:
        """A policy's answer; what it raises is its own fault."""
        try:
            return method(*arguments)
        except faults() as error:
            raise policy_fault(policy, job, error) from error

    def _checked_reason(self, job: Job, reason: Any) -> str | None:
        if reason is None or (isinstance(reason, str) and reason):
            return reason
        raise PolicyError(
            f"policy {self.admission.name!r}, request {job.row}: a rejection is a reason in words, or None to admit; "
            f"got {reason!r}"
        )

    def _refuse(self, job: Job, what: str) -> NoReturn:
        raise PolicyError(f"policy {self.router.name!r}, request {job.row}: {what}")


def policy_fault(
    policy: Policy, job: Job | None, error: BaseException, otherwise: str = "start()"
) -> PolicyError | SetupError:
    """A policy's own exception as one line: which policy, which request, where in its file.

    A SetupError is not its own: the view that it asked could not tell a cost (live kernels without memory, say).
    """
    if isinstance(error, SetupError):
        return error
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    when = otherwise if job is None else f"request {job.row}"
    return PolicyError(f"policy {policy.name!r}, {when}: it raised {type(error).__name__}: {error}{place}")
