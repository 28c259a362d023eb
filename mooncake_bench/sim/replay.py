"""One replay: a trace through a policy on a simulated cluster, and the raw columns that come of it."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench import plugins, spool
from mooncake_bench.api import Request, describe
from mooncake_bench.collector import no_collections
from mooncake_bench.errors import SetupError
from mooncake_bench.sim import ticking
from mooncake_bench.sim.brain import Brain
from mooncake_bench.sim.clients import make_clients
from mooncake_bench.sim.cluster import TICK, Cluster
from mooncake_bench.sim.consistency import check_scope
from mooncake_bench.sim.costs import core_of, cost_of, drive_of, pool_blocks_at, pool_blocks_of
from mooncake_bench.sim.coupling import rules_of
from mooncake_bench.sim.elastic import Elastic
from mooncake_bench.sim.events import parse_events
from mooncake_bench.sim.job import AT_ARRIVAL, Job
from mooncake_bench.sim.late import DelayedView, RouterView
from mooncake_bench.sim.mechanics import check_at_rest, decode_rules, more_columns, more_counters
from mooncake_bench.sim.parsing import parse_view
from mooncake_bench.sim.pool import Pool, PrefixIndex
from mooncake_bench.sim.recorder import Recorder
from mooncake_bench.sim.replicas import Replicas
from mooncake_bench.sim.slos import class_slos
from mooncake_bench.sim.state import ClusterState
from mooncake_bench.sim.tiers import Tiers
from mooncake_bench.sim.view import PS_PER_MS, EstimateError, View
from mooncake_bench.sim.warm import caches, check_drives, take_over

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from mooncake_bench.api import Eviction
    from mooncake_bench.hardware.cost import CostModel
    from mooncake_bench.plugins import PolicySet
    from mooncake_bench.sim.brain import Witness
    from mooncake_bench.sim.setup import Setup
    from mooncake_bench.sim.slos import Slos
    from mooncake_bench.sim.warm import Source, Warmth
    from mooncake_bench.trace import Trace

    Column = NDArray[Any]

SIMULATOR_VERSION = "1"
LONGEST_PS = 2**62  # about 53 days: sums of two times still fit in 64 bits

WINDOW = 4096  # requests made at once, ahead of their arrival
FLUSH = 25_000  # arrivals between two times that what has ended is written


@dataclass(frozen=True)
class Replay:
    """What happened, as columns: times in integer ps, -1 where a time never came.

    ``columns`` has one entry a row of the trace; ``stays`` one a join of a decode batch, in time order of their ends;
    ``segments`` one a decode stretch at constant batch, by instance and then in time order. The long ones of a large
    replay are mapped files (:mod:`mooncake_bench.spool`). See :mod:`mooncake_bench.sim.recorder` for the names.
    """

    trace: Trace
    setup: Setup
    policy_label: str
    policy_spec: str
    policy_sources: Mapping[str, str]
    admission: str
    policies: Mapping[str, Mapping[str, Any]]  # kind: its name and parameters
    oracle: bool
    cost_name: str
    cost_version: str
    cost_error: str
    cost_error_short: str
    is_prefill: NDArray[np.bool_]
    is_decode: NDArray[np.bool_]
    columns: dict[str, Column]
    reasons: tuple[str, ...]
    stays: dict[str, Column]
    segments: dict[str, Column]
    counters: dict[str, int | float]
    policy_ns: NDArray[np.int64]
    horizon_ps: int
    interrupted: bool
    vram_tokens: NDArray[np.int64]
    pool_blocks: Mapping[int, int]  # capacity of each prefill instance's pool, by instance id
    # attempts that came to nothing: request row, when it was lost, prefill instance, start of the prefill and what of
    # it was done then; see recorder.LOST_COLUMNS
    lost: dict[str, Column] = field(default_factory=dict)
    routings: Column | None = None  # rows in order of admission, attempt by attempt; None: each once, in their order
    # from which time on so many instances prefill and decode (rows of ps, P, D); None: always all of them
    pool_sizes: Column | None = None
    happened: tuple[tuple[int, str], ...] = ()  # time in ps and words of each failure, recovery and change of role
    missed: int = 0  # events of the setup that did not happen, for nothing else was left to happen
    # decode.inline: rows of instance, start and end (ps) of the steps that computed a prompt beside no batch
    inlined_alone: Column | None = None
    warm: Mapping[str, Any] | None = None  # what its caches were warm from
    warm_blocks: Column | None = None  # that were in them before it began, rising
    # what the pool's stores held after each arrival: see recorder.OCCUPANCY_COLUMNS; None: it was not looked at
    occupancy: Mapping[str, Column] | None = None


def run(
    trace: Trace,
    setup: Setup,
    progress: Callable[[int, int, float], None] | None = None,
    policy_dirs: Sequence[Path] = (),
    cost: CostModel | None = None,
    flush: int = FLUSH,
    watch: tuple[float | None, Callable[[Cluster, int], None]] | None = None,
    witness: Witness | None = None,
) -> Replay:
    """Replay ``trace`` under ``setup``; the trace is not changed.

    ``progress(done, total, simulated_ms)`` is called every few hundred arrivals. ``cost`` replaces the setup's cost
    model (tests). What has ended leaves the memory every ``flush`` arrivals; nothing else depends on it.
    ``watch=(period_ms, look)`` calls ``look(cluster, now_ps)`` every so often, after what happens then, or with a
    period of None just before each ``progress``;
    ``witness`` looks on while requests are decided. Raises SetupError, TraceError or PolicyError; Ctrl-C ends the
    replay early with ``interrupted`` set.
    """
    with no_collections():
        return _run(trace, setup, progress, policy_dirs, cost, flush, watch, witness)


def _run(
    trace: Trace,
    setup: Setup,
    progress: Callable[[int, int, float], None] | None,
    policy_dirs: Sequence[Path],
    cost: CostModel | None,
    flush: int,
    watch: tuple[float | None, Callable[[Cluster, int], None]] | None,
    witness: Witness | None,
) -> Replay:
    stage = _set_up(trace, setup, policy_dirs, cost, flush)
    stage.cluster.brain.witness = witness
    period_ms, look = watch or (None, None)
    if period_ms is not None and look is not None:
        _watch(stage.cluster, round(period_ms * PS_PER_MS), look)
        look = None
    try:
        finished = stage.cluster.run(stage.jobs, _reporter(progress, len(stage.trace), stage.cluster, look))
        return _gather(stage, interrupted=not finished)
    except OverflowError:  # a column of 64-bit picoseconds is full
        raise SetupError(
            f"the replay runs past {2**63 / 1e12 / 86400:.0f} days of simulated time; look for a prompt or an answer "
            "of many million tokens in the trace, or give --end, more instances or faster ones"
        ) from None


@dataclass
class _Stage:
    """A replay that is about to begin."""

    trace: Trace  # the requests that are replayed
    setup: Setup
    policies: PolicySet
    cost: CostModel
    cluster: Cluster
    recorder: Recorder
    arrivals: Column
    jobs: Iterator[Job]
    warm: Mapping[str, Any] | None  # what its caches are warm from
    warm_blocks: Column | None  # that are in them


def _set_up(trace: Trace, setup: Setup, policy_dirs: Sequence[Path], cost: CostModel | None, flush: int) -> _Stage:
    selected = trace.select(setup.max_requests, setup.start_ms, setup.end_ms)
    selected = as_replayed(selected, setup)
    warm = None
    if setup.warm_from is not None:
        play = partial(_play_before, policy_dirs, cost, flush)
        warm = caches(setup, selected.block_tokens, SIMULATOR_VERSION, play)
    cost = cost_of(setup) if cost is None else cost
    facts, warm_blocks = (None, None) if warm is None else (warm.facts, warm.blocks)
    policies = plugins.build(setup.policy, policy_dirs)
    arrivals = arrival_ps(selected, setup.speedup)
    cluster = _assemble(cost, policies, setup, selected.block_tokens, warm)
    check_scope(setup, elastic=bool(cluster.brain.tickers) or "switch" in (setup.events or ""))
    if setup.events or cluster.brain.tickers:
        _make_elastic(cluster, policies, setup, selected.block_tokens)
    if cluster.brain.tickers and not setup.coupled:
        Replicas(cluster)
    slos = class_slos(selected, setup)
    recorder = Recorder(cluster, len(selected))
    jobs = _jobs(selected, arrivals, recorder, flush, oracle=policies.oracle, slos=slos)
    make_job = _job_maker(selected, arrivals, recorder, flush, oracle=policies.oracle, slos=slos)
    clients = make_clients(cluster, setup, selected, arrivals, make_job)
    if clients is not None:
        jobs = clients.unprompted(jobs)
    if cluster.brain.tickers and len(arrivals):
        ticking.start(cluster, int(arrivals[0]))
    return _Stage(selected, setup, policies, cost, cluster, recorder, arrivals, jobs, facts, warm_blocks)


def _play_before(policy_dirs: Sequence[Path], cost: CostModel | None, flush: int, source: Source) -> Cluster:
    """The replay that leaves warm caches; a Ctrl-C ends everything."""
    stage = _set_up(source.trace, source.setup, policy_dirs, cost, flush)
    source.check_policies(stage.policies.sources)
    if not stage.cluster.run(stage.jobs):
        raise KeyboardInterrupt
    check_at_rest(stage.cluster)
    return stage.cluster


def arrival_ps(trace: Trace, speedup: float) -> Column:
    """Arrival times in ps: timestamp / speedup, rounded once, half to even (rule 1)."""
    arrivals = spool.empty(len(trace), np.int64)
    for part in spool.parts(len(trace)):
        exact = trace.arrival_ms[part] * PS_PER_MS / speedup
        if len(exact) and exact[-1] >= LONGEST_PS:
            raise _too_long(float(trace.arrival_ms[-1]) * PS_PER_MS / speedup, speedup)
        arrivals[part] = np.rint(exact)
    return arrivals


def _too_long(span_ps: float, speedup: float) -> SetupError:
    return SetupError(
        f"the trace spans {span_ps / 1e12 / 86400:,.0f} days at speedup {speedup:g}; a replay holds at most "
        f"{LONGEST_PS / 1e12 / 86400:.0f}: give --start/--end, a higher --speedup, or the right --timestamp-unit"
    )


def _watch(cluster: Cluster, period_ps: int, look: Callable[[Cluster, int], None]) -> None:
    """Look at the cluster now and every period from now on, as long as anything is still to happen."""

    def tick(now: int) -> None:
        look(cluster, now)
        if not cluster.idle:
            cluster.call_at(now + period_ps, TICK, tick)

    cluster.call_at(cluster.now, TICK, tick)


def as_replayed(trace: Trace, setup: Setup) -> Trace:
    """The trace that a setup replays: where nothing decodes, every answer is its first token."""
    if any(role != "P" for role, _ in setup.instances) or (trace.output_tokens == 1).all():
        return trace
    notice = f"cluster {setup.cluster}: nothing decodes, so every request ends at its first token"
    ones = np.ones(len(trace), np.int64)
    return replace(trace, output_tokens=ones, notices=(*trace.notices, notice))


def _assemble(cost: CostModel, policies: PolicySet, setup: Setup, block_tokens: int, warm: Warmth | None) -> Cluster:
    roles = np.array([role for role, _ in setup.instances])
    state = ClusterState((roles == "P") | (roles == "M"), (roles == "D") | (roles == "M"))
    rules = rules_of(setup)
    blocks = pool_blocks_of(setup, block_tokens)
    if rules is not None:  # all of the VRAM, as long as nothing is generated
        blocks = {i: int(tokens) // block_tokens * rules.prefix_cache for i, tokens in enumerate(cost.vram_tokens)}
    pool = Pool(PrefixIndex(state.instances, block_tokens), blocks, policies.evictions, setup.touch_order)
    if warm is not None:
        check_drives(warm, setup)
        take_over(warm, pool, setup)
    view = _view(setup, state, pool, cost)
    brain = Brain(policies.router, policies.admission, view, cost)
    brain.start(_stream(setup.seed, "router"), _stream(setup.seed, "admission"))
    for instance, node in pool.nodes.items() if warm is None else ():
        brain.start_one(node.eviction, _stream(setup.seed, f"eviction {instance}"))
    core = core_of(setup)
    if core is not None:
        view.through_core(core)
    cluster = Cluster(cost, pool, state, brain, rules, core, decode_rules(setup))
    drive, spare = drive_of(setup), drive_of(setup, "D")
    if drive is not None and spare is not None:
        tiers = Tiers(cluster, dict.fromkeys(pool.nodes, drive), spare)
        view.tiers = tiers if view.exact else None
        if warm is not None and warm.cluster.tiers is not None:
            tiers.take_over(warm.cluster.tiers)
    return cluster


def _make_elastic(cluster: Cluster, policies: PolicySet, setup: Setup, block_tokens: int) -> None:
    """Instances may fail, or change their role."""
    made = count(1)

    def make_eviction(instance: int) -> Eviction:
        eviction = policies.evictions()
        cluster.brain.start_one(eviction, _stream(setup.seed, f"eviction {instance}, anew {next(made)}"))
        return eviction

    roles = [role for role, _ in setup.instances]
    capacity_of = partial(pool_blocks_at, setup, block_tokens)
    retry = setup.faults_requests == "retry"
    elastic = Elastic(cluster, roles, make_eviction, capacity_of, retry=retry, grouped=setup.prefill_group > 1)
    elastic.plan(parse_events(setup.events))


def _view(setup: Setup, state: ClusterState, pool: Pool, cost: CostModel) -> View:
    """What the setup lets policies see."""
    sigma = setup.estimate_error
    error = EstimateError(sigma, setup.seed, state.instances) if sigma else None
    seen = (state, pool.index, cost, setup.slo_ttft_ms, setup.slo_tbt_ms, error)
    kind, delay_ms = parse_view(setup.view)
    local = setup.pool_scope == "local" or setup.coupled
    if kind == "delayed":
        return DelayedView(round(delay_ms * PS_PER_MS), *seen, local=local)
    return RouterView(pool.capacities(), *seen, local=local) if kind == "router-only" else View(*seen, local=local)


def _stream(seed: int, name: str) -> np.random.Generator:
    """A component's own random stream: adding a draw elsewhere changes nothing here (rule 14)."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def _jobs(
    trace: Trace, arrivals_ps: Column, recorder: Recorder, flush: int, *, oracle: bool, slos: Slos | None
) -> Iterator[Job]:
    """The requests in order of arrival, made a window at a time; what has ended is written in between."""
    step = min(WINDOW, flush)
    unwritten = 0
    for first in range(0, len(trace), step):
        if unwritten >= flush:
            recorder.flush()
            unwritten = 0
        rows = slice(first, min(first + step, len(trace)))
        requests = _requests(trace, arrivals_ps, rows, oracle, slos)
        outputs = trace.output_tokens[rows].tolist()
        for request, arrival, output in zip(requests, arrivals_ps[rows].tolist(), outputs, strict=True):
            yield Job(request.row, request, arrival, output)
        unwritten += rows.stop - first


def _job_maker(
    trace: Trace, arrivals_ps: Column, recorder: Recorder, flush: int, *, oracle: bool, slos: Slos | None
) -> Callable[[int], Job]:
    """Makes single requests, of given rows; what has ended is written in between."""
    made = count(1)

    def make(row: int) -> Job:
        if not next(made) % flush:
            recorder.flush()
        request = _requests(trace, arrivals_ps, slice(row, row + 1), oracle, slos)[0]
        return Job(row, request, int(arrivals_ps[row]), int(trace.output_tokens[row]))

    return make


def _requests(trace: Trace, arrivals_ps: Column, rows: slice, oracle: bool, slos: Slos | None = None) -> list[Request]:
    """What policies are shown: arrivals on the replay's clock, as ``now_ms`` is."""
    ends = trace.block_offsets[rows.start : rows.stop + 1].tolist()
    flat = trace.block_ids[ends[0] : ends[-1]].tolist()
    offsets = [end - ends[0] for end in ends]
    none: list[None] = [None] * (rows.stop - rows.start)
    sessions = none if trace.session_id is None else trace.session_id[rows].tolist()
    priorities = [0] * len(none) if trace.priority is None else trace.priority[rows].tolist()
    outputs = trace.output_tokens[rows].tolist() if oracle else none
    arrivals_ms = (arrivals_ps[rows] / PS_PER_MS).tolist()
    facts = zip(arrivals_ms, trace.input_tokens[rows].tolist(), sessions, priorities, outputs, strict=True)
    made = [
        Request(rows.start + i, arrival, tokens, tuple(flat[offsets[i] : offsets[i + 1]]), session, priority, output)
        for i, (arrival, tokens, session, priority, output) in enumerate(facts)
    ]
    if slos is None:
        return made
    limits = zip(slos[0][rows].tolist(), slos[1][rows].tolist(), strict=True)
    return [
        request._replace(ttft_slo_ms=ttft, tbt_slo_ms=tbt) for request, (ttft, tbt) in zip(made, limits, strict=True)
    ]


def _reporter(
    progress: Callable[[int, int, float], None] | None,
    total: int,
    cluster: Cluster,
    look: Callable[[Cluster, int], None] | None,
) -> Callable[[int, int], None] | None:
    if progress is None:
        return None

    def report(done: int, now: int) -> None:
        if look is not None:
            look(cluster, now)
        progress(done, total, now / PS_PER_MS)

    return report


def _gather(stage: _Stage, *, interrupted: bool) -> Replay:
    trace, setup, policies, cost, cluster = stage.trace, stage.setup, stage.policies, stage.cost, stage.cluster
    recorder, arrivals = stage.recorder, stage.arrivals
    columns, segments, stays, policy_ns = recorder.finish()
    columns = {"arrival_ps": arrivals} | columns
    columns |= more_columns(cluster, columns | {"input_tokens": trace.input_tokens})
    if not interrupted:
        check_at_rest(cluster)
    counters: dict[str, int | float] = {
        **cluster.pool.counters(),
        "fetches": cluster.prefilling.fetches,
        "fetched_bytes": cluster.prefilling.fetched_tokens * cost.kv_bytes_per_token,
        "streamed_bytes": 0 if setup.coupled else _streamed_tokens(trace, columns) * cost.kv_bytes_per_token,
        "events": cluster.events + (0 if cluster.clients is None else cluster.clients.passed_over()),
        **more_counters(cluster),
        **(cluster.elastic.counters() if cluster.elastic is not None and cluster.elastic.happened else {}),
    }
    view, elastic = cluster.brain.view, cluster.elastic
    moves = elastic is not None and bool(elastic.happened)
    return Replay(
        trace=trace, setup=setup, policy_label=policies.label, policy_spec=policies.spec,
        policy_sources=policies.sources, admission=policies.admission.name, policies=_described(policies),
        oracle=policies.oracle,
        cost_name=cost.name, cost_version=cost.version, cost_error=cost.error,
        cost_error_short=cost.error_short,
        is_prefill=view.is_prefill if elastic is None else elastic.ever_prefilled,
        is_decode=view.is_decode if elastic is None else elastic.ever_decoded, columns=columns,
        reasons=tuple(cluster.brain.reasons), stays=stays, segments=segments, counters=counters,
        policy_ns=policy_ns, horizon_ps=cluster.now, interrupted=interrupted,
        vram_tokens=cost.vram_tokens,
        pool_blocks=(cluster.coupling or cluster.pool).capacities(), lost=recorder.lost(),
        routings=_routings(cluster, columns),
        pool_sizes=np.array(elastic.sizes, np.int64) if elastic is not None and moves else None,
        happened=() if elastic is None else tuple(elastic.happened), missed=0 if elastic is None else elastic.planned,
        inlined_alone=None if cluster.inlining is None else cluster.inlining.steps_alone(),
        warm=stage.warm, warm_blocks=stage.warm_blocks, occupancy=recorder.occupancy(),
    )  # fmt: skip


def _routings(cluster: Cluster, columns: Mapping[str, Column]) -> Column | None:
    """The order in which requests looked into the cache, if that may not be the order of the trace."""
    if cluster.routings is None and cluster.coupling is not None and cluster.brain.orders:  # when they start
        rows = np.flatnonzero((columns["prefill_instance"] >= 0) & (columns["reject_stage"] != AT_ARRIVAL))
        start, arrival = columns["start_ps"][rows], columns["arrival_ps"][rows]
        order: Column = rows[np.argsort(np.where(start >= 0, start, arrival), kind="stable")]
        return order
    return None if cluster.routings is None else np.array(cluster.routings, np.int64)


def _streamed_tokens(trace: Trace, columns: Mapping[str, Column]) -> int:
    sent = (columns["kv_arrival_ps"] >= 0) & ~columns.get("inlined", np.False_)
    return int(trace.input_tokens[sent].sum())


def _described(policies: PolicySet) -> dict[str, dict[str, Any]]:
    """Each kind's policy by name and parameters, defaults included."""
    kinds = {"router": policies.router, "admission": policies.admission, "eviction": policies.evictions()}
    return {kind: {"name": policy.name, "parameters": describe(policy)} for kind, policy in kinds.items()}
