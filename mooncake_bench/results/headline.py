"""What a run was, in a few lines: the head of every report."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from mooncake_bench.results.coupled import is_coupled
from mooncake_bench.results.words import counted, duration
from mooncake_bench.sim.parsing import parse_cluster
from mooncake_bench.sim.slos import parse_classes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mooncake_bench.results.run import Run

EVENTS_SHOWN = 4
_SELECTED = re.compile(r"(\d+)\.\.(\d+) of (\d+)")  # as Trace.select writes it
TBT_WORDS = {
    "tail10": "mean of a request's longest 10 % of token gaps",
    "max": "a request's longest token gap",
    "mean": "mean of a request's token gaps",
    "p99": "99th percentile of a request's token gaps",
}


def headline(run: Run) -> list[str]:
    """Trace and rate, cluster, cost and its error, SLOs and what policies see: one line each."""
    setup = run.manifest["setup"]
    return [_trace(run, setup), _cluster(run, setup), "cost " + cost_line(run.manifest["cost"]), _rules(setup)]


def _trace(run: Run, setup: Mapping[str, Any]) -> str:
    trace, requests = run.manifest["trace"], run.manifest["trace"]["requests"]
    span_ms = float(run.requests.column("arrival_ms").to_numpy().max())  # the first arrives at 0
    part = part_of(trace)
    count = counted(requests, "request") if part is None else f"{part} requests"
    text = f"trace {trace['name']} ({hash_name(trace)} {trace['sha256'][:12]}): {count}"
    if not span_ms:
        return f"{text}, speedup {setup['speedup']:g}"
    span = f"{span_ms / 1000:,.0f} s" if span_ms >= 10_000 else duration(float(f"{span_ms:.3g}"))
    return f"{text} arriving in {span}, speedup {setup['speedup']:g} = {requests / span_ms * 1000:.3g} requests/s"


def part_of(trace: Mapping[str, Any]) -> str | None:
    """Which part of a trace was replayed, such as ``first 1,000 of 12,031``; None: all of it."""
    found = _SELECTED.fullmatch(str((trace.get("metadata") or {}).get("selected_rows", "")))
    if found is None:
        return None
    first, _, whole = map(int, found.groups())
    return f"{'' if first else 'first '}{trace['requests']:,} of {whole:,}"


def hash_name(trace: Mapping[str, Any]) -> str:
    """What a run's hash of its trace is: of the requests that were replayed, as if they were a trace of their own."""
    return "sha256" if part_of(trace) is None else "sha256 of this part"


def _cluster(run: Run, setup: Mapping[str, Any]) -> str:
    cluster = run.manifest["cluster"]
    each = cluster["gpus_per_instance"]
    gpus = counted(cluster["gpus"], "GPU") + " in all" if each is None else f"{counted(each, 'GPU')} each"
    blocks = run.manifest["trace"]["block_tokens"]
    nodes = " and ".join(dict.fromkeys(node for _, node in parse_cluster(setup["cluster"], setup["node"])))
    text = f"cluster {setup['cluster']} ({gpus}): {setup['model']} on {nodes}, engine {setup['engine']}, "
    if is_coupled(setup):
        text += _schedule(run, setup, blocks)
    else:
        text += f"pool {_pool(run, setup)} blocks of {blocks} tokens a prefill {_unit(setup)}"
    if setup["vram.tokens"] is not None:
        text += f", VRAM {setup['vram.tokens']:,} tokens a {'coupled' if is_coupled(setup) else 'decode'} node"
    if setup["nic.gbytes_per_s"] is not None:
        text += f", NIC {setup['nic.gbytes_per_s']:g} GB/s"
    if "decode.load_gbytes_per_s" in setup:
        text += f", KVCache loaded to decode at {setup['decode.load_gbytes_per_s']:g} GB/s"
    if "decode.preemption" in setup:
        text += f", preemption by {setup['decode.preemption']}"
    if "decode.inline" in setup:
        text += ", prefill inlined into decode"
    return text


def _unit(setup: Mapping[str, Any]) -> str:
    """What a prefill instance is."""
    nodes = setup.get("prefill.group", 1)
    return "node" if nodes == 1 else f"group of {nodes} nodes"


def _schedule(run: Run, setup: Mapping[str, Any], blocks: int) -> str:
    """What the steps of coupled instances hold, and what they keep."""
    schedule, tokens, sequences = (setup[f"coupled.{name}"] for name in ("schedule", "step_tokens", "sequences"))
    text = str(schedule)
    if schedule != "one-at-a-time":
        tokens = tokens or (512 if schedule == "chunked" else 131_072)
        text += f" in steps of up to {tokens:,} tokens and {sequences or 256:,} requests"
    if setup["coupled.prefix_cache"] == "off":
        return f"{text}, no prefix cache"
    return f"{text}, prefix cache in VRAM of up to {_pool(run, setup)} blocks of {blocks} tokens"


def _pool(run: Run, setup: Mapping[str, Any]) -> str:
    """Blocks of a prefill node's pool, by node where they differ; old runs have them in the setup only."""
    pools: dict[str, int] = run.manifest["cluster"].get("pool_blocks") or {"": setup["pool.blocks"]}
    if len(set(pools.values())) == 1:
        return f"{next(iter(pools.values())):,}"
    return " and ".join(f"{blocks:,} ({node})" for node, blocks in pools.items())


def cost_line(cost: Mapping[str, Any]) -> str:
    """A run's cost model and its error, as the manifest has them."""
    version, error = str(cost["version"]), cost.get("error_short", cost["error"])  # an old run has the long form only
    return f"{cost['name']} {'' if version.startswith('v') else 'v'}{version}, error: {error}"


def _classes(setup: Mapping[str, Any]) -> list[str]:
    """The SLOs of priorities that have their own."""
    classes = parse_classes(setup.get("slo.classes"))
    return [
        f"of priority {priority} "
        + ", ".join(f"{name.split('_')[1].upper()} {duration(limit)}" for name, limit in slos.items())
        for priority, slos in classes.items()
    ]


def _events(setup: Mapping[str, Any]) -> list[str]:
    """Failures and changes of role that were asked for, as they were written."""
    if not setup.get("events"):
        return []
    events = str(setup["events"]).split(",")
    more = f" and {len(events) - EVENTS_SHOWN} more" if len(events) > EVENTS_SHOWN else ""
    fate = ", lost requests fail" if setup.get("faults.requests") == "fail" else ""
    return [f"events {' '.join(events[:EVENTS_SHOWN])}{more}{fate}"]


def _clients(setup: Mapping[str, Any]) -> list[str]:
    """What clients do beyond asking once and waiting."""
    parts = []
    if retries := setup.get("client.retries"):
        first, factor = setup.get("client.backoff_ms", 1000.0), setup.get("client.backoff_factor", 2.0)
        jitter = f", ±{100 * setup['client.jitter']:g} %" if setup.get("client.jitter") else ""
        parts.append(f"clients ask again up to {retries}× after {duration(first)}, ×{factor:g} each time{jitter}")
    if setup.get("client.loop") == "closed":
        think = setup.get("client.think_speedup", 1.0)
        parts.append("closed loop" + (f", thinking {think:g}× as fast" if think != 1 else ""))
    if setup.get("client.patience_ms") is not None:
        parts.append(f"patience {duration(setup['client.patience_ms'])}")
    return parts


def _rules(setup: Mapping[str, Any]) -> str:
    first = "first gap included" if setup["slo.first_gap"] == "include" else "first gap left out"
    parts = [
        f"SLO TTFT {duration(setup['slo.ttft_ms'])}, TBT {duration(setup['slo.tbt_ms'])} "
        f"({TBT_WORDS[setup['slo.tbt_metric']]}, {first})",
        *_classes(setup),
        f"view {setup['view']}",
        f"seed {setup['seed']}",
        *_clients(setup),
        *_events(setup),
    ]
    if setup["estimate_error"]:
        parts.append(f"estimate error {setup['estimate_error']:g}")
    if setup["warmup_ms"]:
        parts.append(f"warm-up {duration(setup['warmup_ms'])}")
    return "; ".join(parts)
