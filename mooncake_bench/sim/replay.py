"""One replay: a trace through a policy on a simulated cluster, and the raw columns that come of it."""

from __future__ import annotations

import gc
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench import plugins
from mooncake_bench.api import Request, describe
from mooncake_bench.errors import SetupError
from mooncake_bench.hardware.build import build_cost
from mooncake_bench.sim.brain import Brain
from mooncake_bench.sim.cluster import Cluster
from mooncake_bench.sim.job import AT_ARRIVAL
from mooncake_bench.sim.late import DelayedView, RouterView
from mooncake_bench.sim.pool import Pool, PrefixIndex
from mooncake_bench.sim.setup import parse_view
from mooncake_bench.sim.state import ClusterState
from mooncake_bench.sim.view import PS_PER_MS, EstimateError, View

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from mooncake_bench.hardware.cost import CostModel
    from mooncake_bench.plugins import PolicySet
    from mooncake_bench.sim.job import Job
    from mooncake_bench.sim.setup import Setup
    from mooncake_bench.trace import Trace

    Column = NDArray[Any]

SIMULATOR_VERSION = "1"
LONGEST_PS = 2**62  # about 53 days: sums of two times still fit in 64 bits

SEGMENT_COLUMNS = ("instance", "start_ps", "first_step", "steps", "step_ps", "growth_ps", "batch", "tokens")
STAY_COLUMNS = ("request", "instance", "join_ps", "first_step", "steps")


@dataclass(frozen=True)
class Replay:
    """What happened, as columns: times in integer ps, -1 where a time never came.

    ``columns`` has one entry a row of the trace; ``stays`` one a join of a decode batch, in time order of their ends;
    ``segments`` one a decode stretch at constant batch. See :func:`_job_columns` for the names.
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


def run(
    trace: Trace,
    setup: Setup,
    progress: Callable[[int, int, float], None] | None = None,
    policy_dirs: Sequence[Path] = (),
    cost: CostModel | None = None,
) -> Replay:
    """Replay ``trace`` under ``setup``; the trace is not changed.

    ``progress(done, total, simulated_ms)`` is called every few hundred arrivals. ``cost`` replaces the setup's cost
    model (tests). Raises SetupError, TraceError or PolicyError; Ctrl-C ends the replay early with ``interrupted`` set.
    """
    with no_collections():
        return _run(trace, setup, progress, policy_dirs, cost)


@contextmanager
def no_collections() -> Iterator[None]:
    """Without the cyclic garbage collector: a replay makes many objects and few cycles, collections only cost time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _run(
    trace: Trace,
    setup: Setup,
    progress: Callable[[int, int, float], None] | None,
    policy_dirs: Sequence[Path],
    cost: CostModel | None,
) -> Replay:
    selected = trace.select(setup.max_requests, setup.start_ms, setup.end_ms)
    roles = [role for role, _ in setup.instances]
    prefill = [i for i, role in enumerate(roles) if role == "P"]
    decode = [i for i, role in enumerate(roles) if role == "D"]
    if cost is None:
        nodes = [node for _, node in setup.instances]
        cost = build_cost(nodes, setup.model, setup.engine, setup.vram_tokens, setup.nic_gbytes_per_s)
    policies = plugins.build(setup.policy, policy_dirs)
    arrivals = arrival_ps(selected, setup.speedup)
    cluster = _assemble(prefill, decode, cost, policies, setup, selected.block_tokens)
    requests = _requests(selected, arrivals, policies.oracle)
    report = _reporter(progress, len(requests))
    try:
        finished = cluster.run(requests, arrivals, selected.output_tokens.tolist(), report)
        replay = _gather(selected, setup, policies, cost, cluster, arrivals, interrupted=not finished)
    except OverflowError:  # a column of 64-bit picoseconds is full
        raise SetupError(
            f"the replay runs past {2**63 / 1e12 / 86400:.0f} days of simulated time; look for a prompt or an answer "
            "of many million tokens in the trace, or give --end, more instances or faster ones"
        ) from None
    cluster.jobs.clear()  # most of the memory; the cluster itself is a cycle and goes with the next collection
    return replay


def arrival_ps(trace: Trace, speedup: float) -> list[int]:
    """Arrival times in ps: timestamp / speedup, rounded once, half to even (rule 1)."""
    exact = trace.arrival_ms * PS_PER_MS / speedup
    if len(exact) and exact[-1] >= LONGEST_PS:
        days = LONGEST_PS / 1e12 / 86400
        raise SetupError(
            f"the trace spans {exact[-1] / 1e12 / 86400:,.0f} days at speedup {speedup:g}; a replay holds at most "
            f"{days:.0f}: give --start/--end, a higher --speedup, or the right --timestamp-unit"
        )
    rounded: list[int] = np.rint(exact).astype(np.int64).tolist()
    return rounded


def _assemble(
    prefill: list[int], decode: list[int], cost: CostModel, policies: PolicySet, setup: Setup, block_tokens: int
) -> Cluster:
    instances = len(prefill) + len(decode)
    state = ClusterState(instances)
    pool = Pool(PrefixIndex(instances, block_tokens), prefill, setup.pool_blocks, policies.evictions, setup.touch_order)
    is_prefill = np.isin(np.arange(instances), prefill)
    view = _view(setup, state, pool.index, cost, is_prefill)
    brain = Brain(policies.router, policies.admission, view, cost, prefill, decode)
    brain.start(_stream(setup.seed, "router"), _stream(setup.seed, "admission"))
    return Cluster(prefill, decode, cost, pool, state, brain)


def _view(
    setup: Setup, state: ClusterState, index: PrefixIndex, cost: CostModel, is_prefill: NDArray[np.bool_]
) -> View:
    """What the setup lets policies see."""
    sigma = setup.estimate_error
    error = EstimateError(sigma, setup.seed, state.instances) if sigma else None
    seen = (state, index, cost, is_prefill, setup.slo_ttft_ms, setup.slo_tbt_ms, error)
    kind, delay_ms = parse_view(setup.view)
    if kind == "delayed":
        return DelayedView(round(delay_ms * PS_PER_MS), *seen)
    return RouterView(setup.pool_blocks, *seen) if kind == "router-only" else View(*seen)


def _stream(seed: int, name: str) -> np.random.Generator:
    """A component's own random stream: adding a draw elsewhere changes nothing here (rule 14)."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def _requests(trace: Trace, arrivals_ps: list[int], oracle: bool) -> list[Request]:
    """What policies are shown: arrivals on the replay's clock, as ``now_ms`` is."""
    flat, offsets = trace.block_ids.tolist(), trace.block_offsets.tolist()
    none: list[None] = [None] * len(trace)
    sessions = none if trace.session_id is None else trace.session_id.tolist()
    priorities = [0] * len(trace) if trace.priority is None else trace.priority.tolist()
    outputs = trace.output_tokens.tolist() if oracle else none
    arrivals_ms = (np.array(arrivals_ps, np.int64) / PS_PER_MS).tolist()
    rows = zip(arrivals_ms, trace.input_tokens.tolist(), sessions, priorities, outputs, strict=True)
    return [
        Request(row, arrival, tokens, tuple(flat[offsets[row] : offsets[row + 1]]), session, priority, output)
        for row, (arrival, tokens, session, priority, output) in enumerate(rows)
    ]


def _reporter(progress: Callable[[int, int, float], None] | None, total: int) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    return lambda done, now: progress(done, total, now / PS_PER_MS)


def _gather(
    trace: Trace,
    setup: Setup,
    policies: PolicySet,
    cost: CostModel,
    cluster: Cluster,
    arrivals: list[int],
    *,
    interrupted: bool,
) -> Replay:
    segments = _table(SEGMENT_COLUMNS, cluster.segments)
    stays = _table(STAY_COLUMNS, cluster.stays)
    columns = _job_columns(cluster.jobs, arrivals)
    columns["second_token_ps"] = _second_tokens(len(trace), stays, segments)
    counters: dict[str, int | float] = {
        **cluster.pool.counters(),
        "fetches": cluster.fetches,
        "fetched_bytes": cluster.fetched_tokens * cost.kv_bytes_per_token,
        "streamed_bytes": int(trace.input_tokens[columns["kv_arrival_ps"] >= 0].sum()) * cost.kv_bytes_per_token,
        "events": cluster.events,
    }
    is_prefill = cluster.brain.view.is_prefill
    return Replay(
        trace=trace, setup=setup, policy_label=policies.label, policy_spec=policies.spec,
        policy_sources=policies.sources, admission=policies.admission.name, policies=_described(policies),
        oracle=policies.oracle,
        cost_name=cost.name, cost_version=cost.version, cost_error=cost.error,
        cost_error_short=cost.error_short,
        is_prefill=is_prefill, is_decode=~is_prefill, columns=columns,
        reasons=tuple(cluster.brain.reasons), stays=stays, segments=segments, counters=counters,
        policy_ns=np.array(cluster.policy_ns, np.int64), horizon_ps=cluster.now, interrupted=interrupted,
        vram_tokens=cost.vram_tokens,
    )  # fmt: skip


def _described(policies: PolicySet) -> dict[str, dict[str, Any]]:
    """Each kind's policy by name and parameters, defaults included."""
    kinds = {"router": policies.router, "admission": policies.admission, "eviction": policies.evictions()}
    return {kind: {"name": policy.name, "parameters": describe(policy)} for kind, policy in kinds.items()}


def _table(names: Sequence[str], flat: list[int]) -> dict[str, Column]:
    array = np.array(flat, np.int64).reshape(-1, len(names))
    return {name: np.ascontiguousarray(array[:, i]) for i, name in enumerate(names)}


_JOB_FIELDS: dict[str, tuple[str, type[Any], int]] = {
    # column: (Job attribute, type, value of a request that never arrived)
    "status": ("status", np.int8, 0),
    "reject_stage": ("reject_stage", np.int8, 0),
    "reject_reason": ("reject_reason", np.int32, -1),
    "prefill_instance": ("prefill", np.int32, -1),
    "decode_instance": ("decode", np.int32, -1),
    "hit_blocks": ("hit_blocks", np.int64, 0),
    "hit_tokens": ("hit_tokens", np.int64, 0),
    "fetched_tokens": ("fetched_tokens", np.int64, 0),
    "computed_tokens": ("computed", np.int64, 0),
    "head_ps": ("head_ps", np.int64, -1),
    "start_ps": ("start_ps", np.int64, -1),
    "first_token_ps": ("first_token_ps", np.int64, -1),
    "kv_arrival_ps": ("kv_arrival_ps", np.int64, -1),
    "join_ps": ("first_join_ps", np.int64, -1),
    "end_ps": ("end_ps", np.int64, -1),
    "preemptions": ("preemptions", np.int32, 0),
    "prefill_ps": ("prefill_ps", np.int64, 0),
}


def _job_columns(jobs: list[Job], arrivals: list[int]) -> dict[str, Column]:
    """The jobs' fields as columns over all rows of the trace; rows that never arrived (interrupted) are unfinished."""
    missing = len(arrivals) - len(jobs)
    read = attrgetter(*(attribute for attribute, _, _ in _JOB_FIELDS.values()))
    rows = [read(job) for job in jobs] + [tuple(absent for _, _, absent in _JOB_FIELDS.values())] * missing
    table = np.array(rows, np.int64).reshape(-1, len(_JOB_FIELDS))
    columns: dict[str, Column] = {"arrival_ps": np.array(arrivals, np.int64)}
    for i, (name, (_, kind, _)) in enumerate(_JOB_FIELDS.items()):
        columns[name] = table[:, i].astype(kind)
    for name in ("predicted_ttft_ms", "predicted_tbt_ms"):
        found = [getattr(job, name) for job in jobs] + [None] * missing
        columns[name] = np.array(found, np.float64)  # None becomes nan
    not_computed = columns["start_ps"] < 0  # a request turned away before its prefill used nothing
    for name in ("hit_blocks", "hit_tokens", "fetched_tokens", "computed_tokens", "prefill_ps"):
        columns[name][not_computed] = 0
    for name in ("prefill_instance", "decode_instance"):
        columns[name][columns["reject_stage"] == AT_ARRIVAL] = -1
    return columns


def _second_tokens(rows: int, stays: dict[str, Column], segments: dict[str, Column]) -> Column:
    """When each request's second token came: the end of the first step of its first stay."""
    second = np.full(rows, -1, np.int64)
    if not len(segments["start_ps"]) or not len(stays["request"]):
        return second
    key = segments["instance"] << 40 | segments["first_step"]
    order = np.argsort(key, kind="stable")
    worked = stays["steps"] > 0
    wanted = (stays["instance"] << 40 | stays["first_step"])[worked]
    at = order[np.searchsorted(key[order], wanted)]
    ends = segments["start_ps"][at] + segments["step_ps"][at]
    second[stays["request"][worked][::-1]] = ends[::-1]  # the earliest stay of a request is written last
    return second
