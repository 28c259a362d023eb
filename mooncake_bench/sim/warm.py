"""Caches that are warm from the start: those that the replay of another trace, or another run, left.

That replay is done again, and its pools and SSDs are taken over as they are, eviction policies with all they know.
Nothing else is. Its clock goes on for the eviction policies: what they remember of times stays true.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench import jsonfile
from mooncake_bench.api import describe
from mooncake_bench.errors import BenchError, SetupError
from mooncake_bench.hardware.cost import PS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from mooncake_bench.api import Eviction
    from mooncake_bench.sim.cluster import Cluster
    from mooncake_bench.sim.pool import Pool
    from mooncake_bench.sim.setup import Setup
    from mooncake_bench.trace import Trace

    Play = Callable[["Source"], Cluster]

MANIFEST = "run.json"
# of clients that ask once and wait
OF_CLIENTS: dict[str, Any] = {
    "client_retries": 0, "client_backoff_ms": 1000.0, "client_backoff_factor": 2.0, "client_jitter": 0.0,
    "client_loop": "open", "client_think_speedup": 1.0, "client_patience_ms": None,
}  # fmt: skip


@dataclass(frozen=True)
class Source:
    """Where warm caches come from: a trace, and the setup under which it is replayed."""

    name: str
    trace: Trace
    setup: Setup
    sources: frozenset[str] | None = None  # sha256 of the policy files of a run

    def replayed(self) -> Trace:
        """The requests of the trace that the setup replays."""
        from mooncake_bench.sim.replay import as_replayed

        setup = self.setup
        return as_replayed(self.trace.select(setup.max_requests, setup.start_ms, setup.end_ms), setup)

    def check_policies(self, found: Mapping[str, str]) -> None:
        """Raises SetupError when a run's policy files (their sha256, by name) are not what they were."""
        for file, digest in found.items():
            if self.sources is not None and digest not in self.sources:
                raise SetupError(
                    f"warm_from: {self.name!r}: policy file {file} is not what that run used (its sha256 is now "
                    f"{digest[:12]}); restore it, or give its trace instead of the run"
                )


@dataclass(frozen=True)
class Warmth:
    """What a replay left."""

    cluster: Cluster
    facts: Mapping[str, Any]  # for the manifest

    @property
    def pool(self) -> Pool:
        return self.cluster.pool

    @property
    def blocks(self) -> NDArray[np.int64]:
        """Every block that is in a pool or on an SSD, rising."""
        return np.array(sorted(set(self._blocks())), np.int64)

    def _blocks(self) -> Iterator[int]:
        yield from self.pool.index.holders
        if self.cluster.tiers is not None:
            for ssd in self.cluster.tiers.nodes.values():
                yield from ssd.blocks


def source_of(setup: Setup, block_tokens: int, simulator_version: str) -> Source:
    """The trace and the setup that ``setup.warm_from`` stands for.

    Raises SetupError or TraceError where there is none, or its caches would be of no use here.
    """
    where = str(setup.warm_from)
    folder = Path(where)
    source = _of_run(folder, simulator_version) if (folder / MANIFEST).is_file() else _of_trace(setup)
    if source.trace.block_tokens != block_tokens:
        raise SetupError(
            f"warm_from: {where!r} has blocks of {source.trace.block_tokens:,} tokens, the trace to replay of "
            f"{block_tokens:,}; give one with the same blocks (trace.block_tokens)"
        )
    if not source.trace.has_prefix_ids:
        raise SetupError(f"warm_from: {where!r} has no prefix ids, so no request could find its blocks again; drop it")
    return source


def _of_trace(setup: Setup) -> Source:
    """All of a trace, under the same setup; nothing happens to its instances, and clients ask once and wait."""
    from mooncake_bench.trace import load

    alike = replace(
        setup, warm_from=None, events=None, faults_requests="retry", max_requests=None, start_ms=None, end_ms=None,
        warmup_ms=0.0, slo_classes=None, **OF_CLIENTS,
    )  # fmt: skip
    return Source(str(setup.warm_from), load(str(setup.warm_from), **setup.reading), alike)


def _of_run(folder: Path, simulator_version: str) -> Source:
    """What a run replayed, as its manifest tells."""
    from mooncake_bench.sim.setup import Setup
    from mooncake_bench.trace import load

    where = f"warm_from: run {str(folder)!r}"
    try:
        manifest = jsonfile.load(folder / MANIFEST)
        status, version, trace = manifest["status"], manifest["simulator_version"], manifest["trace"]
        stored, sources = dict(manifest["setup"]), dict(manifest["policy"]["sources"])
        path, sha256 = str(trace["path"]), str(trace["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        raise SetupError(f"{where} cannot be read: its {MANIFEST} is damaged; give another") from None
    if status != "complete":
        raise SetupError(f"{where} was interrupted, so what it left cannot be made again; give a complete one")
    if version != simulator_version:
        raise SetupError(
            f"{where} is of simulator version {version}, and this is {simulator_version}; replay it again, or give its "
            f"trace, {path!r}"
        )
    setup = Setup.from_dict({key: value for key, value in stored.items() if value is not None}, where)
    try:
        loaded = load(path, **setup.reading)
    except BenchError as error:
        raise SetupError(f"{where}: its trace cannot be read again: {error}") from None
    source = Source(str(folder), loaded, setup, frozenset(sources.values()))
    found = source.replayed().sha256
    if found != sha256:
        raise SetupError(
            f"{where}: {path!r} is no longer the trace that it replayed (sha256 {found[:12]}, then {sha256[:12]}); "
            "restore it"
        )
    return source


def caches(setup: Setup, block_tokens: int, simulator_version: str, play: Play) -> Warmth:
    """What the replay that a setup names leaves. Raises SetupError as :func:`source_of` does."""
    source = source_of(setup, block_tokens, simulator_version)
    replayed, cluster = source.replayed(), play(source)
    ssds = () if cluster.tiers is None else cluster.tiers.nodes.values()
    facts = {
        "trace": replayed.name,
        "sha256": replayed.sha256,
        "requests": len(replayed),
        "pool_blocks": sum(node.resident for node in cluster.pool.nodes.values()),
        "ssd_blocks": sum(len(ssd.blocks) for ssd in ssds),
    }
    return Warmth(cluster, facts)


def take_over(warm: Warmth, fresh: Pool, setup: Setup) -> None:
    """Give ``fresh``, an empty pool as this setup wants it, the nodes of the warm one.

    Raises SetupError when the two are not alike.
    """
    pool, where = warm.pool, f"warm_from: {setup.warm_from!r}"
    for instance in fresh.nodes.keys() | pool.nodes.keys():
        if instance not in fresh.nodes or instance not in pool.nodes:
            has, lacks = ("it", "this setup") if instance in pool.nodes else ("this setup", "it")
            raise SetupError(f"{where}: {has} has a pool on instance {instance}, and {lacks} has none")
    sizes = (warm.cluster.coupling or pool).capacities()
    for instance, node in fresh.nodes.items():
        if sizes[instance] != node.capacity:
            raise SetupError(
                f"{where}: its pool on instance {instance} has {sizes[instance]:,} blocks, and this setup wants "
                f"{node.capacity:,}; give the same pool.blocks, or its trace instead of the run"
            )
        _check_same_eviction(pool.nodes[instance].eviction, node.eviction, where)
    clock_ms = warm.cluster.now / PS_PER_MS
    for instance, node in pool.nodes.items():
        node.evictions = node.refused = 0
        node.capacity = fresh.nodes[instance].capacity
        node.below = None
        node.clock_ms += clock_ms
        node.index = fresh.index
    fresh.index.holders.update(pool.index.holders)
    fresh.index.slots = pool.index.slots
    fresh.nodes = pool.nodes
    fresh.expiring = [node for node in fresh.nodes.values() if node.expires]


def _check_same_eviction(left: Eviction, wanted: Eviction, where: str) -> None:
    if (left.name, describe(left)) != (wanted.name, describe(wanted)):
        raise SetupError(
            f"{where}: its pools were kept by {_told(left)}, and this setup wants {_told(wanted)}; give the same, "
            "or its trace instead of the run"
        )


def _told(eviction: Eviction) -> str:
    parameters = describe(eviction)
    return f"{eviction.name!r} {parameters}" if parameters else repr(eviction.name)


def check_drives(warm: Warmth, setup: Setup) -> None:
    """Raises SetupError where its SSDs are not as this setup wants them."""
    tiers = warm.cluster.tiers
    sizes = set() if tiers is None else {ssd.capacity for ssd in tiers.nodes.values()}
    wanted = set() if setup.ssd_blocks is None else {setup.ssd_blocks * setup.nodes_of("P")}
    if sizes != wanted:
        shown = " and ".join(f"{size:,} blocks" for size in sorted(sizes)) or "no blocks"
        raise SetupError(
            f"warm_from: {setup.warm_from!r}: its SSDs have {shown}, and this setup wants "
            f"{setup.ssd_blocks or 'none'}; give the same ssd.blocks, or its trace instead of the run"
        )
