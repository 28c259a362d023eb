"""Replay LLM request traces through scheduling policies on a simulated KVCache-centric cluster.

>>> from mooncake_bench import replay
>>> print(replay("conversation-like", policy="predictive", max_requests=500).summary())

Importing the package loads nothing heavy; each function imports what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mooncake_bench.results import Run
    from mooncake_bench.results.sweep import Sweep
    from mooncake_bench.trace import Trace

__version__ = "0.1.0"
__all__ = ["__version__", "compare", "open_run", "open_sweep", "replay"]


def replay(
    trace: str | Path | Trace,
    *,
    cluster: str = "8P+8D",
    policy: str = "kvcache-centric",
    policy_dirs: Sequence[str | Path] = (),
    **setup: Any,
) -> Run:
    """Replay ``trace`` (a path, a bundled name or a Trace) through one policy SPEC; nothing is written to disk.

    ``setup`` takes the other fields of :class:`mooncake_bench.sim.setup.Setup`, such as ``speedup=2`` or
    ``slo_ttft_ms=10_000``, and what the command line writes as ``slo="ttft:10s,tbt:50ms"``, ``pool="1TB"``,
    ``vram="64GiB"``, ``nic="800Gbps"``, ``warmup="30s"``, ``block_size=16``, ``start=`` and ``end=``.
    Raises a :class:`mooncake_bench.errors.BenchError` for wrong use or bad input.
    """
    from pathlib import Path

    from mooncake_bench.cli.sizes import check_warmup, resolve_sizes, setup_fields, without_sizes
    from mooncake_bench.errors import SetupError
    from mooncake_bench.results.run import Run
    from mooncake_bench.sim.consistency import COUPLED, UNCOUPLED
    from mooncake_bench.sim.replay import run
    from mooncake_bench.sim.setup import LIVE, READING, Setup
    from mooncake_bench.trace import Trace, load

    values = {"cluster": cluster, "policy": _spec(policy), **setup_fields(setup)}
    draft = Setup(**without_sizes(values))
    idle = [name for name in READING if name in values]
    if isinstance(trace, Trace) and idle:
        raise SetupError(f"{idle[0]}: no effect on a Trace that is loaded already; give it to load()")
    loaded = trace if isinstance(trace, Trace) else load(trace, **draft.reading)
    chosen = Setup(**resolve_sizes(values, loaded.block_tokens))
    idle = [name for name in LIVE if name in values and chosen.cost != "live"]
    if idle:
        raise SetupError(f"{idle[0]}: no effect without cost='live'; add that, or drop it")
    idle = [name for name in (UNCOUPLED if chosen.coupled else COUPLED) if name in values]
    if idle:
        raise SetupError(f"{idle[0]}: no effect on cluster {chosen.cluster}; drop it, or choose another cluster")
    if chosen.warmup_ms:
        check_warmup(chosen, loaded.select(chosen.max_requests, chosen.start_ms, chosen.end_ms))
    return Run.from_replay(run(loaded, chosen, policy_dirs=[Path(folder) for folder in policy_dirs]))


def _spec(policy: Any) -> str:
    from mooncake_bench.errors import SetupError

    if isinstance(policy, str):
        return policy
    how = 'a SPEC such as "predictive:td=12s" or "ours.py:Ours:alpha=.3": a run records the policy\'s file'
    raise SetupError(f"policy: expected {how}; got {policy!r}")


def open_run(path: str | Path) -> Run:
    """A stored run by its folder. Raises ResultError when it cannot be read."""
    from mooncake_bench.results.run import open_run as open_stored

    return open_stored(path)


def open_sweep(path: str | Path) -> Sweep:
    """A stored sweep by its folder, a row a replay. Raises ResultError when it cannot be read."""
    from mooncake_bench.results.sweep import open_sweep as open_stored

    return open_stored(path)


def compare(runs: Sequence[Run]) -> Any:
    """Runs of the same work, the first as the reference. Raises ResultError when their work differs."""
    from mooncake_bench.results.compare import compare as compare_runs

    return compare_runs(runs)
