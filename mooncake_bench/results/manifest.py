"""``run.json``: everything that says what a run was, so that it can be judged, repeated and compared."""

from __future__ import annotations

import math
import os
import platform
from datetime import UTC, datetime
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench import __version__
from mooncake_bench.hardware.presets import load_node
from mooncake_bench.results.content import content_sha256
from mooncake_bench.results.gaps import PS_PER_MS
from mooncake_bench.results.records import STATUSES, UNFINISHED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from mooncake_bench.sim.replay import Replay

FORMAT_VERSION = 1


def build(
    replay: Replay,
    tables: Mapping[str, pa.Table],
    *,
    wall_s: float | None = None,
    name: str | None = None,
    trace_path: str | None = None,
) -> dict[str, Any]:
    """The manifest of one replay. ``tables`` are hashed by content; ``trace_path`` is how the user named the trace."""
    from mooncake_bench.sim.replay import SIMULATOR_VERSION

    return {
        "format_version": FORMAT_VERSION,
        "tool": "mooncake-bench",
        "tool_version": __version__,
        "simulator_version": SIMULATOR_VERSION,
        "status": "interrupted" if replay.interrupted else "complete",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "name": name,
        "policy": _policy(replay),
        "trace": _trace(replay, trace_path),
        "setup": {key: plain(value) for key, value in replay.setup.to_dict().items()},
        "cluster": {
            "prefill_instances": int(replay.is_prefill.sum()),
            "decode_instances": int(replay.is_decode.sum()),
            **_gpus([(node, replay.setup.nodes_of(role)) for role, node in replay.setup.instances]),
            **_changes(replay),
            "pool_blocks": {replay.setup.instances[i][1]: blocks for i, blocks in replay.pool_blocks.items()},
        },
        "cost": {
            "name": replay.cost_name,
            "version": replay.cost_version,
            "error": replay.cost_error,
            "error_short": replay.cost_error_short,
        },
        "counts": _counts(replay),
        "counters": {key: plain(value) for key, value in replay.counters.items()},
        **({} if replay.warm is None else {"warm": dict(replay.warm)}),
        "horizon_ms": replay.horizon_ps / PS_PER_MS,
        "percentile_method": "linear",
        "content_sha256": {key: content_sha256(table) for key, table in tables.items()},
        "wall_s": plain(wall_s),
        "policy_decision_us": _decision_us(replay),
        "machine": machine(),
    }


def _changes(replay: Replay) -> dict[str, Any]:
    """What happened to instances, and how many of them prefilled and decoded from when on; nothing if nothing did."""
    if not replay.missed and not replay.happened:
        return {}
    sizes = [] if replay.pool_sizes is None else replay.pool_sizes.tolist()
    return {
        "events_missed": replay.missed,
        "events": [[time / PS_PER_MS, words] for time, words in replay.happened],
        "pool_sizes": [[time / PS_PER_MS, prefill, decode] for time, prefill, decode in sizes],
    }


def _gpus(instances: Sequence[tuple[str, int]]) -> dict[str, int | None]:
    """GPUs of all instances, and of each where they are alike: an instance is so many nodes, with all their GPUs."""
    each = {node: load_node(node).gpus for node in {node for node, _ in instances}}
    gpus = [each[node] * nodes for node, nodes in instances]
    return {"gpus": sum(gpus), "gpus_per_instance": gpus[0] if len(set(gpus)) == 1 else None}


def _policy(replay: Replay) -> dict[str, Any]:
    """Label, SPEC, its parts with their parameters, whether it sees output lengths, and the hash of each source file.

    Files go by name: folders are private.
    """
    return {
        "label": replay.policy_label,
        "spec": replay.policy_spec,
        "admission": replay.admission,
        "parts": {kind: _part(part) for kind, part in replay.policies.items()},
        "oracle": replay.oracle,
        "sources": {_short(path): digest for path, digest in replay.policy_sources.items()},
    }


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    """A policy's name and parameters, defaults included."""
    return {"name": part["name"], "parameters": {key: plain(value) for key, value in part["parameters"].items()}}


def _short(path: str) -> str:
    return PurePath(path).name if PurePath(path).is_absolute() else path


def _trace(replay: Replay, path: str | None) -> dict[str, Any]:
    trace = replay.trace
    return {
        "name": trace.name,
        "path": path or trace.name,
        "sha256": trace.sha256,
        "requests": len(trace),
        "request_ids": "source rows" if trace.request_id is None else "given",
        "block_tokens": trace.block_tokens,
        "metadata": {key: _short(value) for key, value in trace.metadata.items()},
        "notices": list(trace.notices),
    }


def _counts(replay: Replay) -> dict[str, int]:
    """What became of the requests that arrived; ``not_arrived``: an interrupted replay never reached them."""
    status = replay.columns["status"]
    reached = (status != UNFINISHED) | (replay.columns["prefill_instance"] >= 0) | (not replay.interrupted)
    found = np.bincount(status[reached], minlength=len(STATUSES)).tolist()
    counts = dict(zip(STATUSES, found, strict=True))
    return {
        "offered": int(reached.sum()),
        **{word: counts[word] for word in sorted(counts)},
        "not_arrived": int((~reached).sum()),
    }


def _decision_us(replay: Replay) -> dict[str, Any]:
    """Wall time of a policy decision (routing and admission); None when none was made."""
    if not len(replay.policy_ns):
        return {"p50": None, "p99": None, "n": 0}
    p50, p99 = np.percentile(replay.policy_ns / 1000, (50, 99)).tolist()
    return {"p50": p50, "p99": p99, "n": len(replay.policy_ns)}


def machine() -> dict[str, Any]:
    """What this ran on: nothing that names the computer, its owner or its folders."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "platform": f"{platform.system()} {platform.machine()}".strip(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:  # noqa: PTH123 - a device file
            found = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        found = ""
    return found or platform.processor() or "unknown"


def plain(value: Any) -> Any:
    """A number as JSON can carry it: no numpy types, no nan or infinity."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
