"""Each policy's smallest cluster that carries a load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mooncake_bench.errors import SetupError
from mooncake_bench.hardware.presets import load_node
from mooncake_bench.sim.parsing import parse_cluster
from mooncake_bench.studies.capacity.find import Point
from mooncake_bench.studies.capacity.search import Split, splits
from mooncake_bench.studies.rounds import together

if TYPE_CHECKING:
    from mooncake_bench.sim.setup import Setup
    from mooncake_bench.studies.capacity.find import Bench
    from mooncake_bench.studies.capacity.rule import Kept


@dataclass(frozen=True)
class Shape:
    """A kind of cluster whose numbers of nodes are looked for: of each role the node, its GPUs, and the most."""

    roles: tuple[str, ...]  # "P" and "D", or "M"
    nodes: tuple[str, ...]
    gpus_each: tuple[int, ...]
    most: Split
    step: int = 1  # prefill nodes of a group
    default: str = ""  # the node that a cluster SPEC need not name

    @classmethod
    def of(cls, setup: Setup) -> Shape:
        """The setup's own cluster as the most there may be. Raises SetupError where a role has unlike nodes."""
        instances = parse_cluster(setup.cluster, setup.node)
        roles = tuple(dict.fromkeys(role for role, _ in instances))
        nodes = tuple(_only_node(setup.cluster, role, instances) for role in roles)
        counts = [sum(each == role for each, _ in instances) for role in roles]
        most = Split(counts[0] // setup.prefill_group, sum(counts[1:]))
        gpus = tuple(load_node(node).gpus for node in nodes)
        return cls(roles, nodes, gpus, most, setup.prefill_group, setup.node)

    def gpus(self, split: Split) -> int:
        """How many GPUs a split has."""
        return sum(count * gpus for count, gpus in zip(self._counts(split), self.gpus_each, strict=True))

    def words(self, split: Split) -> str:
        """The split as a cluster SPEC."""
        parts = zip(self._counts(split), self.roles, self.nodes, strict=True)
        words = [f"{count}{role}" + (f"@{node}" if node != self.default else "") for count, role, node in parts]
        return "+".join([*words, *(["0D"] if self.roles == ("P",) else [])])

    def _counts(self, split: Split) -> tuple[int, ...]:
        counts = (split.prefill * self.step, split.decode)
        return counts[: len(self.roles)]


def _only_node(cluster: str, role: str, instances: list[tuple[str, str]]) -> str:
    nodes = list(dict.fromkeys(node for each, node in instances if each == role))
    if len(nodes) > 1:
        raise SetupError(f"--search cluster: {cluster!r} has {' and '.join(nodes)} for {role}; name one node a role")
    return nodes[0]


@dataclass(frozen=True)
class Smallest:
    """The smallest clusters of one contender that carry the load: none, one, or several of the same size."""

    contender: str
    clusters: tuple[str, ...]
    gpus: int | None
    kept: tuple[Kept, ...]


def smallest(bench: Bench, shape: Shape) -> list[Smallest]:
    """Each contender's smallest clusters within ``shape``, by GPUs. Raises what a replay raises."""
    searches = {name: splits(shape.most, shape.gpus) for name in bench.contenders}

    def point(name: str, split: Split) -> Point:
        return Point(name, 0, bench.contenders[name].speedup, shape.words(split))

    found = together(searches, lambda asked: bench.holds([point(name, split) for name, split in asked]))
    return [
        Smallest(
            name,
            tuple(map(shape.words, best)),
            shape.gpus(best[0]) if best else None,
            tuple(bench.judged[point(name, split)] for split in best),
        )
        for name, best in found.items()
    ]
