"""From policies and axes to the points of a sweep: a grid, or lists side by side."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mooncake_bench.errors import PolicyError, SetupError, nearest
from mooncake_bench.plugins import Part, build, find, load_file, parse
from mooncake_bench.plugins.load import choose
from mooncake_bench.plugins.values import read
from mooncake_bench.sim.setup import settings
from mooncake_bench.studies.sweep.axes import POLICY, TRACE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mooncake_bench.plugins import PolicyClass, Spec
    from mooncake_bench.studies.sweep.axes import Axis

MOST_POINTS = 1_000_000


@dataclass(frozen=True)
class Choice:
    """What one point chooses: a policy, and values by key; a parameter that its policy lacks is not among them."""

    spec: str
    label: str
    given: Mapping[str, Any] = field(default_factory=dict)  # setting's dotted name -> value as it was written
    parameters: Mapping[str, Any] = field(default_factory=dict)  # LABEL.k -> value as the policy takes it


class Policies:
    """The policies of a sweep, and which of them have which parameter."""

    def __init__(self, specs: Sequence[str], policy_dirs: Sequence[Path]) -> None:
        self.specs = [parse(spec) for spec in specs]
        self._classes = {
            part.text: _class(part, policy_dirs) for spec in self.specs for part in spec.parts
        }  # fmt: skip
        self._kinds = {
            (part.target, part.class_name): self._classes[part.text] for spec in self.specs for part in spec.parts
        }
        self.labels = [build(spec, policy_dirs).label for spec in specs]

    def parameters(self) -> list[str]:
        """Every ``LABEL.k`` that can be varied."""
        found = [
            f"{label}.{name}"
            for spec, label in zip(self.specs, self.labels, strict=True)
            for part in spec.parts
            for owner in dict.fromkeys((label, self._classes[part.text].name))
            for name in self._classes[part.text].parameters
        ]
        return list(dict.fromkeys(found))

    def has(self, spec: Spec, key: str) -> bool:
        """Whether a policy has the parameter that a key names."""
        return bool(self._owners(spec, key))

    def chosen(self, spec: Spec, values: Mapping[str, Any]) -> Choice:
        """A policy with some of its parameters set. Raises PolicyError for a value that one does not take."""
        label = self.labels[self.specs.index(spec)]
        parameters, changed = {}, {part.text: dict(part.parameters) for part in spec.parts}
        for key, value in values.items():
            name = key.rpartition(".")[2]
            owners = self._owners(spec, key)
            if len(owners) > 1:
                named = " or ".join(f"{self._classes[part.text].name}.{name}" for part in owners)
                raise SetupError(f"--vary {key}: two policies of {spec.text!r} have that parameter; say {named}")
            part, text = owners[0], _text(value)
            parameters[key] = _value(self._classes[part.text], name, text)
            changed[part.text][name] = text
        pieces = [_written(part, changed[part.text]) for part in spec.parts]
        return Choice((f"{spec.label}=" if spec.labelled else "") + "+".join(pieces), label, {}, parameters)

    def meaning(self, text: str) -> tuple[Any, ...]:
        """Equal for two SPECs that are the same policies with equal parameters, unless a label tells them apart."""
        spec = parse(text)
        parts = [self._kinds[part.target, part.class_name] for part in spec.parts]
        parameters = frozenset(
            (policy.file, policy.name, name, _value(policy, name, part.parameters[name]) if name in part.parameters
             else parameter.default)
            for part, policy in zip(spec.parts, parts, strict=True)
            for name, parameter in policy.parameters.items()
        )  # fmt: skip
        return (
            spec.label if spec.labelled else "",
            frozenset((policy.file, policy.name) for policy in parts),
            parameters,
        )

    def _owners(self, spec: Spec, key: str) -> list[Part]:
        """The parts of a policy that a key such as ``LABEL.k`` or ``NAME.k`` means."""
        owner, _, name = key.rpartition(".")
        label = self.labels[self.specs.index(spec)]
        return [
            part
            for part in spec.parts
            if owner in (label, spec.label, part.target, self._classes[part.text].name)
            and name in self._classes[part.text].parameters
        ]


def choices(policies: Policies, axes: Sequence[Axis], *, side_by_side: bool = False) -> list[Choice]:
    """What each point chooses. Policies change slowest, then the axes in the order given.

    ``side_by_side`` takes the first value of every axis, then the second, instead of all combinations. Raises
    SetupError for an unknown key, and for lists of different lengths.
    """
    axes = [axis for axis in axes if axis.key != POLICY]
    _check_keys(policies, axes)
    rows = list(_rows(policies, axes, side_by_side=side_by_side))
    return [_choice(policies, spec, dict(zip((axis.key for axis in axes), row, strict=True))) for spec, row in rows]


def is_parameter(key: str) -> bool:
    """Whether a key that is known names a policy's parameter, not a setting."""
    return key not in _known() and key not in (POLICY, TRACE)


def _rows(policies: Policies, axes: Sequence[Axis], *, side_by_side: bool) -> Iterator[tuple[Spec, tuple[Any, ...]]]:
    if side_by_side:
        yield from _lines(policies, axes)
        return
    total = 0
    for spec in policies.specs:
        idle = [is_parameter(axis.key) and not policies.has(spec, axis.key) for axis in axes]
        columns = [(None,) if skip else axis.values for axis, skip in zip(axes, idle, strict=True)]
        for row in product(*columns):
            total += 1
            if total > MOST_POINTS:
                raise SetupError(f"--vary: more than {MOST_POINTS:,} points; vary fewer settings, or fewer values")
            yield spec, row


def _lines(policies: Policies, axes: Sequence[Axis]) -> Iterator[tuple[Spec, tuple[Any, ...]]]:
    """The values of all axes side by side; a single policy, or none, goes with each."""
    lengths = {axis.key: len(axis.values) for axis in axes}
    if len(policies.specs) > 1:
        lengths[POLICY] = len(policies.specs)
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{key} has {count}" for key, count in lengths.items())
        raise SetupError(f"--list: every list must be as long as the others; {said}")
    for i in range(next(iter(lengths.values()), 1)):
        spec = policies.specs[i if POLICY in lengths else 0]
        row = [None if is_parameter(axis.key) and not policies.has(spec, axis.key) else axis.values[i] for axis in axes]
        yield spec, tuple(row)


def _choice(policies: Policies, spec: Spec, values: Mapping[str, Any]) -> Choice:
    given = {key: value for key, value in values.items() if not is_parameter(key)}
    parameters = {key: value for key, value in values.items() if is_parameter(key) and value is not None}
    chosen = policies.chosen(spec, parameters)
    return Choice(chosen.spec, chosen.label, given, chosen.parameters)


def _check_keys(policies: Policies, axes: Sequence[Axis]) -> None:
    known = [*_known(), POLICY, TRACE]
    for i, axis in enumerate(axes):
        if axis.key in (earlier.key for earlier in axes[:i]):
            raise SetupError(f"--vary {axis.key}: is given twice; keep one")
        if axis.key in known or any(policies.has(spec, axis.key) for spec in policies.specs):
            continue
        parameters = policies.parameters()
        hint = nearest(axis.key, [*known, *parameters])
        raise SetupError(
            f"--vary {axis.key}: neither a setting nor a parameter of these policies"
            + (hint or f"; settings: as replay --dry-run prints; parameters: {', '.join(parameters) or 'none'}")
        )


def _known() -> dict[str, str]:
    """Dotted name to field."""
    return {declared.dotted: name for name, declared in settings().items()}


def _class(part: Part, policy_dirs: Sequence[Path]) -> PolicyClass:
    if not part.is_file:
        return find(part.target, policy_dirs)
    path = Path(part.target)
    return choose(load_file(path), part.class_name, path)


def _value(policy: PolicyClass, name: str, text: str) -> Any:
    try:
        return read(text, policy.parameters[name].annotation, name)
    except ValueError as error:
        raise PolicyError(f"policy {policy.name!r}: parameter {name!r}: {error}") from None


def _written(part: Part, parameters: Mapping[str, str]) -> str:
    """A part of a SPEC with these parameters."""
    head = f"{part.target}:{part.class_name}" if part.class_name else part.target
    listed = ",".join(f"{key}={value}" for key, value in parameters.items())
    return f"{head}:{listed}" if listed else head


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
