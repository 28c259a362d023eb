"""From a SPEC to the policies of one run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from mooncake_bench.errors import PolicyError
from mooncake_bench.plugins.catalogue import discover, file_of, pick
from mooncake_bench.plugins.load import PolicyClass, choose, load_file
from mooncake_bench.plugins.spec import Part, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mooncake_bench.api import Admission, Eviction, Policy, Router

DEFAULTS = {"router": "kvcache-centric", "admission": "accept-all", "eviction": "lru"}


@dataclass(frozen=True)
class PolicySet:
    """The policies of one run. A class that is router and admission is one object here; evictions are one a node."""

    label: str
    spec: str
    router: Router
    admission: Admission
    evictions: Callable[[], Eviction]
    oracle: bool
    sources: dict[str, str]  # file path: sha256


@dataclass(frozen=True)
class _Chosen:
    part: Part
    policy: PolicyClass

    @property
    def label(self) -> str:
        """As in the SPEC, with the policy's name in place of a file and its folders."""
        if not self.part.is_file:
            return self.part.text
        parameters = ",".join(f"{key}={value}" for key, value in self.part.parameters.items())
        return f"{self.policy.name}:{parameters}" if parameters else self.policy.name

    def make(self) -> Policy:
        return self.policy.make(self.part.parameters)


def build(spec: str, policy_dirs: Sequence[Path] = ()) -> PolicySet:
    """Fresh policy objects for a SPEC; kinds left out take ``DEFAULTS``.

    Raises PolicyError when the SPEC, a policy file, a name or a parameter cannot be used.
    """
    parsed = parse(spec)
    shelf = _Shelf(policy_dirs)
    named = [_Chosen(part, shelf.find(part)) for part in parsed.parts]
    chosen = _by_kind(named, spec)
    for kind, name in DEFAULTS.items():
        if kind not in chosen:
            part = Part(name, name)
            chosen[kind] = _Chosen(part, shelf.find(part))
    used = list({id(one): one for one in chosen.values()}.values())
    made = {id(one): one.make() for one in used}  # an eviction too, so that its faults show now
    return PolicySet(
        label=parsed.label if parsed.labelled else "+".join(one.label for one in named),
        spec=parsed.text,
        router=cast("Router", made[id(chosen["router"])]),
        admission=cast("Admission", made[id(chosen["admission"])]),
        evictions=cast("Callable[[], Eviction]", chosen["eviction"].make),
        oracle=any(one.policy.oracle for one in used),
        sources={str(one.policy.file): one.policy.sha256 for one in used},
    )


class _Shelf:
    """The policies one SPEC may use; each file is run once, and only when needed."""

    def __init__(self, policy_dirs: Sequence[Path]) -> None:
        self._dirs = policy_dirs
        self._named = cache(partial(discover, policy_dirs))
        self._file = cache(load_file)

    def find(self, part: Part) -> PolicyClass:
        if part.is_file:
            path = Path(part.target)
            return choose(self._file(path), part.class_name, path)
        where = file_of(part.target, self._dirs)
        if where is None:
            return pick(part.target, self._named())
        return next(policy for policy in self._file(where) if policy.name == part.target)


def _by_kind(parts: list[_Chosen], spec: str) -> dict[str, _Chosen]:
    chosen: dict[str, _Chosen] = {}
    for one in parts:
        for kind in one.policy.kinds:
            if kind in chosen:
                both = f"{chosen[kind].part.target!r} and {one.part.target!r}"
                raise PolicyError(
                    f"policy SPEC {spec!r} has two policies of kind {kind}: {both}; keep one of each kind"
                )
            chosen[kind] = one
    return chosen
