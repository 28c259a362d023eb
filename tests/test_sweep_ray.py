"""The same sweep on a Ray cluster of two nodes, both on this machine; one of them dies on the way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mooncake_bench.results.sweep import open_sweep
from mooncake_bench.sim.setup import Setup
from mooncake_bench.studies.sweep.executors import Here
from mooncake_bench.studies.sweep.points import Point, describe
from mooncake_bench.studies.sweep.sweeping import sweep
from mooncake_bench.studies.sweep.work import Work
from mooncake_bench.trace import load

pytestmark = pytest.mark.ray
ray = pytest.importorskip("ray", reason="needs Ray: pip install '.[test,ray]'")

# Waits at its first request while the file nap is there: a node can be killed while its worker is in the middle of a
# point.
SLOW = """
import os
import time
from dataclasses import dataclass
from pathlib import Path
from mooncake_bench.api import Route, Router

@dataclass
class Slow(Router):
    name = "slow"
    at: int = 0

    def route(self, request, cluster):
        if request.row == 0:
            time.sleep(0.4 if Path("nap").exists() else 0)
            Path(f"tried-{self.at}-{os.getpid()}").touch()
        return Route(prefill=(request.row + self.at) % 8)
"""
POINTS = 8
NODE = {"num_cpus": 1, "object_store_memory": 100 * 2**20}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two nodes of one core each: every worker takes seconds to start."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    nodes = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    nodes.second = nodes.add_node(**NODE)
    yield nodes
    nodes.shutdown()


def points(policy: Path) -> list[Point]:
    sha256 = load("conversation-like").sha256
    return [
        Point(i, "conversation-like", sha256, Setup(policy=f"{policy}:at={i}", max_requests=30), "slow", {"slow.at": i})
        for i in range(POINTS)
    ]


def test_a_node_that_dies_on_the_way_loses_nothing_and_the_dataset_is_that_of_one_process(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mooncake_bench.studies.sweep.on_ray import connected

    monkeypatch.chdir(tmp_path)
    policy = Path("slow.py")
    policy.write_text(SLOW, encoding="utf-8")
    Path("nap").touch()
    wanted = points(policy)
    manifest = describe(wanted, ["slow.at"], [load("conversation-like")], {}, keep_runs=False)
    manifest |= {"name": "rays", "shard": None}
    counts: list[int] = []

    def kill_a_node(done: int, failed: int, total: int) -> None:
        counts.append(done)
        if done and cluster.second is not None:
            cluster.remove_node(cluster.second, allow_graceful=False)
            cluster.second = None

    found = sweep(wanted, manifest, tmp_path / "far", connected(Work(), cluster.address), report=kill_a_node)
    assert cluster.second is None
    assert counts[-1] == POINTS
    assert len(found.done) == POINTS
    tried = [path.name.split("-")[1] for path in tmp_path.glob("tried-*")]
    Path("nap").unlink()
    near = sweep(wanted, manifest, tmp_path / "near", Here(Work()))
    assert found.content_sha256() == near.content_sha256()
    assert open_sweep(tmp_path / "far").column("slow.at") == list(range(POINTS))
    assert len(tried) >= POINTS


def test_no_cluster_is_said_in_one_line() -> None:
    from mooncake_bench.errors import SetupError
    from mooncake_bench.studies.sweep.on_ray import connected

    with pytest.raises(SetupError, match="no Ray cluster answers"):
        connected(Work(), "auto")
