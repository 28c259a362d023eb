"""The eviction policy that a SPEC names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from mooncake_bench import plugins
from mooncake_bench.errors import PolicyError
from mooncake_bench.plugins.load import choose as choose_class

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.api import Eviction


@dataclass(frozen=True)
class Chosen:
    """An eviction policy and its parameters."""

    spec: str
    label: str
    policy: plugins.PolicyClass
    parameters: dict[str, str]

    def make(self) -> Eviction:
        """A fresh one for one pool. Raises PolicyError."""
        return cast("Eviction", self.policy.make(self.parameters))


def choose(spec: str, policy_dirs: Sequence[Path] = ()) -> Chosen:
    """Find the one eviction policy of ``spec``. Raises PolicyError when there is none, or more than that."""
    parsed = plugins.parse(spec)
    found = [(part, _find(part, policy_dirs)) for part in parsed.parts]
    for part, policy in found:
        if "eviction" not in policy.kinds:
            kinds = " and ".join(policy.kinds)
            raise PolicyError(
                f"policy SPEC {spec!r}: {part.target!r} is of kind {kinds}, which a cache without a cluster has no use "
                "for; name an eviction policy (`mooncake-bench policies list` shows all)"
            )
    if len(found) > 1:
        raise PolicyError(f"policy SPEC {spec!r} names {len(found)} eviction policies; keep one")
    [(part, policy)] = found
    parameters = ",".join(f"{key}={value}" for key, value in part.parameters.items())
    plain = f"{policy.name}:{parameters}" if parameters else policy.name
    return Chosen(spec, parsed.label if parsed.labelled else plain, policy, part.parameters)


def _find(part: plugins.Part, policy_dirs: Sequence[Path]) -> plugins.PolicyClass:
    if part.is_file:
        path = Path(part.target)
        return choose_class(plugins.load_file(path), part.class_name, path)
    return plugins.find(part.target, policy_dirs)
