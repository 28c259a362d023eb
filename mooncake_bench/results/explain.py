"""One decision of a stored run: what the scheduler saw of every candidate, what it chose, and what then happened.

A run folder holds what came of each request, not what the policies saw. So the run is replayed up to that decision, and
no further; all else is read from the run.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import isclose
from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench.errors import NothingToConclude, ResultError, nearest
from mooncake_bench.results.repeat import name_of, refuse_idle_folders, repeat_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from mooncake_bench.api import Cluster, Request, Route
    from mooncake_bench.results.run import Run
    from mooncake_bench.results.steps import Floats, Ints
    from mooncake_bench.sim.job import Job
    from mooncake_bench.sim.setup import Setup
    from mooncake_bench.sim.view import View

SAME = 1e-9  # relative: two predictions are one


@dataclass(frozen=True)
class Candidate:
    """What a prefill instance promised, in the policy's view. ``estimate_ms`` is the least of its ways to a TTFT.

    Locally: queue + prefill of what it has not cached, or the same after loading more from its SSD where that takes
    less than computing; with a fetch: queue + fetch + prefill of what is not cached then.
    """

    instance: int
    queue_requests: int
    queue_ms: float
    hit_tokens: int
    load_tokens: int  # that its SSD adds
    fetch_tokens: int  # that a fetch from the holder of the longest ready prefix adds; 0 where it adds none
    fetch_ms: float
    prefill_ms: float  # of the estimate
    fetches: bool  # whether the estimate is with that fetch
    estimate_ms: float
    chosen: bool


@dataclass(frozen=True)
class DecodeCandidate:
    """A decode instance, in the policy's view."""

    instance: int
    batch: int
    context_tokens: int  # of the batch
    waiting: int  # requests whose KV has arrived
    routed_tokens: int  # context of all that is on its way to the batch
    room_tokens: int  # VRAM less both
    step_ms: float  # of the batch as it is
    load: float  # the larger of step over TBT SLO and tokens over VRAM; of batch, waiting, and this request if chosen
    asked_load: float | None  # the same for the batch that the admission asked about last; None: it did not ask
    chosen: bool


@dataclass(frozen=True)
class Decision:
    """What was seen and decided at one moment."""

    now_ms: float
    candidates: tuple[Candidate, ...]  # by estimate
    decodes: tuple[DecodeCandidate, ...]  # by instance
    holder: int | None  # the instance of the longest prefix that others may fetch (h*)
    holder_tokens: int
    prefill: int
    decode: int | None
    fetch_from: int | None
    fetch_gone: bool  # the router wanted a fetch, and nothing was there
    ttft_ms: float  # predicted
    ttft_by_policy: bool  # else by the harness: queue + fetch or load + prefill
    tbt_ms: float | None
    parts_ms: dict[str, float]  # queue, fetch, prefill of the chosen route
    waited_ms: float  # since the request first came
    reason: str | None  # why the admission turned it away
    prefill_load: float  # predicted TTFT over its SLO
    decode_load: float | None  # mean over decode instances of DecodeCandidate.load
    asked_decode_load: float | None
    ttft_slo_ms: float
    tbt_slo_ms: float


@dataclass(frozen=True)
class Explanation:
    """A decision, and what then happened: the request's row in the run."""

    run: str
    policy: str
    view: str
    estimate_error: float
    cost: str
    request_id: str
    row: int
    blocks: int
    attempt: int
    attempts: int
    decision: Decision
    happened: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """As JSON carries it."""
        return asdict(self)


def explain(
    run: Run,
    request_id: str,
    *,
    attempt: int | None = None,
    policy_dirs: Sequence[Path] = (),
    trace_path: str | None = None,
    progress: Callable[[int, int, float], None] | None = None,
) -> Explanation:
    """The decision on one request of a stored run, at its ``attempt`` (from 1; None: the last).

    Raises ResultError for a request that is not there and for a run that does not replay as it did, and
    NothingToConclude for a request that no policy decided on.
    """
    from mooncake_bench.sim.replay import run as simulate

    row = row_of(run, request_id)
    happened = run.requests.slice(row, 1).to_pylist()[0]
    wanted = _attempt(attempt, happened)
    if run.interrupted and happened["prefill_instance"] is None and happened["status"] == "unfinished" and wanted == 1:
        raise NothingToConclude(f"request {request_id!r}: the run was interrupted before it came")
    repeat = repeat_of(run, policy_dirs, trace_path)
    refuse_idle_folders(policy_dirs, repeat.policy_files)
    witness = _Witness(row, wanted)
    try:
        replay = simulate(repeat.trace, repeat.setup, progress, policy_dirs, witness=witness)
    except _Enough:
        pass
    else:
        if replay.interrupted:
            raise KeyboardInterrupt
    if witness.decision is None:
        fate = f"{happened['status']} ({happened['reject_reason']})"
        raise NothingToConclude(f"request {request_id!r}: no policy decided on it, for it {fate}")
    if wanted == happened["attempts"]:
        _check_alike(run, repeat.setup, witness.decision, happened)
    manifest = run.manifest
    return Explanation(
        run="" if run.path is None else run.path.name, policy=run.label, view=repeat.setup.view,
        estimate_error=repeat.setup.estimate_error, cost=manifest["cost"]["name"], request_id=request_id, row=row,
        blocks=witness.blocks, attempt=wanted, attempts=happened["attempts"], decision=witness.decision,
        happened=happened,
    )  # fmt: skip


def row_of(run: Run, request_id: str) -> int:
    """The row of a request. Raises ResultError with what there is instead."""
    import pyarrow.compute as pc

    ids = run.requests.column("request_id")
    row = pc.index(ids, request_id).as_py()
    if row >= 0:
        return int(row)
    known = ids.to_pylist()
    hint = nearest(request_id, known)
    if known and (not hint or all(name.isdecimal() for name in (known[0], known[-1]))):
        hint = f"; its {len(known):,} requests are {known[0]!r} to {known[-1]!r}"
    raise ResultError(f"{name_of(run)} has no request {request_id!r}{hint}")


def _attempt(given: int | None, happened: dict[str, Any]) -> int:
    attempts = int(happened["attempts"])
    if given is not None and not 1 <= given <= attempts:
        raise ResultError(
            f"--attempt {given}: request {happened['request_id']!r} came {attempts} time{'s' * (attempts > 1)}; "
            f"give a number from 1 to {attempts}"
        )
    return given or attempts


def _check_alike(run: Run, setup: Setup, decision: Decision, happened: dict[str, Any]) -> None:
    """Raises ResultError when the replay decided otherwise than the run did."""
    if setup.decode_inline == "on" and happened["prefill_instance"] == happened["decode_instance"]:
        return  # the simulator inlined its prefill: the run does not hold where the router sent it
    stored = happened["prefill_instance"], happened["predicted_ttft_ms"]
    found = decision.prefill, decision.ttft_ms + decision.waited_ms
    if (stored[0] is None or stored[0] == found[0]) and (
        stored[1] is None or isclose(stored[1], found[1], rel_tol=SAME, abs_tol=SAME)
    ):
        return
    why = "live kernels are timed anew" if setup.cost == "live" else "a policy draws from outside its own stream"
    raise ResultError(
        f"{name_of(run)}: replayed, request {happened['request_id']!r} goes to instance {found[0]} (TTFT "
        f"{found[1]:.1f} ms predicted), and in the run it went to {stored[0]} ({stored[1]} ms): it does not repeat, as "
        f"when {why}"
    )


class _Enough(Exception):  # noqa: N818 - no error: the replay has shown what was asked for
    """The decision has been seen."""


class _Witness:
    """Notes one decision, then ends the replay."""

    def __init__(self, row: int, attempt: int) -> None:
        self._what = (row, attempt)
        self._asked: _Asked | None = None
        self.decision: Decision | None = None
        self.blocks = 0

    def shown(self, job: Job, view: View) -> Cluster:
        if (job.row, job.attempts) != self._what:
            return view
        self._asked = _Asked(view)
        return self._asked  # it passes everything on

    def decided(self, job: Job, wanted: Route, reason: str | None) -> None:
        if (job.row, job.attempts) != self._what:
            return
        assert self._asked is not None
        self.blocks = len(job.request.blocks)
        self.decision = _decision(job, self._asked, wanted, reason)
        raise _Enough


class _Asked:
    """A view that notes which decode batches it is asked about."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.steps: list[tuple[Any, Any, Floats]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.view, name)

    def step_ms(self, batch: Any, tokens: Any) -> Floats:
        found = self.view.step_ms(batch, tokens)
        self.steps.append((np.array(batch), np.array(tokens), found.copy()))
        return found


def _decision(job: Job, asked: _Asked, wanted: Route, reason: str | None) -> Decision:
    view, request, route = asked.view, job.request, job.route
    assert route.ttft_ms is not None, "the harness fills predictions in"
    ttft_slo, tbt_slo = request.ttft_slo_ms or view.ttft_slo_ms, request.tbt_slo_ms or view.tbt_slo_ms
    candidates, holder, held = _candidates(view, request, route.prefill)
    decodes = _decodes(asked, request, route, tbt_slo)
    asked_loads = [each.asked_load for each in decodes if each.asked_load is not None]
    return Decision(
        now_ms=view.now_ms, candidates=candidates, decodes=decodes, holder=holder, holder_tokens=held,
        prefill=route.prefill, decode=None if route.decode == -1 else route.decode, fetch_from=route.fetch_from,
        fetch_gone=wanted.fetch_from is not None and route.fetch_from is None, ttft_ms=route.ttft_ms,
        ttft_by_policy=wanted.ttft_ms is not None, tbt_ms=route.tbt_ms, parts_ms=_parts(view, job),
        waited_ms=job.waited_ps / 1e9, reason=reason, prefill_load=route.ttft_ms / ttft_slo,
        decode_load=_mean([each.load for each in decodes]), asked_decode_load=_mean(asked_loads),
        ttft_slo_ms=ttft_slo, tbt_slo_ms=tbt_slo,
    )  # fmt: skip


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _candidates(view: View, request: Request, chosen: int) -> tuple[tuple[Candidate, ...], int | None, int]:
    """Every prefill instance, the least estimate first; and who holds the longest prefix that others may fetch."""
    hit, ready, queue = view.cached_tokens(request), view.fetchable_tokens(request), view.queue_ms
    holder = int(ready.argmax())
    more = np.maximum(ready[holder] - hit, 0)
    loaded, load_wait = _loads(view, request, hit)
    local = np.maximum(queue, load_wait) + view.prefill_ms(request, hit + loaded)
    fetch = view.fetch_ms(more, holder)
    fetched = np.where(more > 0, queue + fetch + view.prefill_ms(request, hit + more), np.inf)
    fetches = fetched < local
    estimate = np.where(fetches, fetched, local)
    prefill = np.where(fetches, view.prefill_ms(request, hit + more), view.prefill_ms(request, hit + loaded))
    found = [
        Candidate(
            int(i), int(view.queue_requests[i]), float(queue[i]), int(hit[i]), int(loaded[i]), int(more[i]),
            float(fetch[i]), float(prefill[i]), bool(fetches[i]), float(estimate[i]), bool(i == chosen),
        )
        for i in np.flatnonzero(view.is_prefill)
    ]  # fmt: skip
    found.sort(key=lambda each: (each.estimate_ms, not each.chosen, each.instance))
    return tuple(found), holder if ready[holder] else None, int(ready[holder])


def _loads(view: View, request: Request, hit: Ints) -> tuple[Ints, Floats]:
    """Tokens that each instance would load from its SSD, and how long that takes; none where computing is faster."""
    more = view.loadable_tokens(request) - hit
    if not more.any():
        return np.zeros_like(hit), np.zeros(len(hit))
    wait = view.load_ms(more)
    worth = wait + view.prefill_ms(request, hit + more) < view.prefill_ms(request, hit)
    return np.where(worth, more, 0), np.where(worth, wait, 0.0)


def _parts(view: View, job: Job) -> dict[str, float]:
    """Queue, fetch and prefill of the route as it will be carried out, in the policy's view."""
    p, source = job.prefill, job.fetch_source
    queue = float(view.queue_ms[p])
    fetch = 0.0 if source is None else job.fetched_tokens * view.fetch_ms_a_token(source, p)
    if job.load is not None and view.tiers is not None:  # while it queues
        fetch += max(0.0, view.tiers.planned_ms(job.load) * view.load_factor(p) - queue)
    return {"queue": queue, "fetch": fetch, "prefill": job.prefill_ps / 1e9 * view.estimate_factor(p)}


def _decodes(asked: _Asked, request: Request, route: Route, tbt_slo_ms: float) -> tuple[DecodeCandidate, ...]:
    view = asked.view
    batch, tokens, routed, vram = view.decode_batch, view.decode_tokens, view.routed_tokens, view.vram_tokens
    n = len(batch)
    waiting = np.bincount(view.waiting.instance, minlength=n)
    there = batch + waiting, tokens + np.bincount(view.waiting.instance, view.waiting.tokens, n)
    if route.decode is not None and route.decode >= 0:
        there[0][route.decode] += 1
        there[1][route.decode] += request.input_tokens + 1
    step, loads = view.step_ms(batch, tokens), _load(there, view.step_ms(*there), vram, tbt_slo_ms)
    wanted = None
    if asked.steps:
        requests, contexts, steps = asked.steps[-1]
        wanted = _load((np.broadcast_to(requests, n), np.broadcast_to(contexts, n)), steps, vram, tbt_slo_ms)
    return tuple(
        DecodeCandidate(
            int(i), int(batch[i]), int(tokens[i]), int(waiting[i]), int(routed[i]),
            int(vram[i] - tokens[i] - routed[i]), float(step[i]) if batch[i] else 0.0, float(loads[i]),
            None if wanted is None else float(wanted[i]), bool(i == route.decode),
        )
        for i in np.flatnonzero(view.is_decode)
    )  # fmt: skip


def _load(there: tuple[Any, Any], step_ms: Floats, vram: Ints, tbt_slo_ms: float) -> Floats:
    """The larger of step over SLO and tokens over VRAM; 0 where nothing decodes."""
    requests, tokens = there
    fill = tokens / np.maximum(vram, 1)
    found: Floats = np.where(requests > 0, np.maximum(step_ms / tbt_slo_ms, fill), 0.0)
    return found
