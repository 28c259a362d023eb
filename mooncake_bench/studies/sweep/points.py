"""The points of a sweep and its manifest: all that says what a sweep is, so that another is never taken for it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from mooncake_bench import __version__
from mooncake_bench.errors import ResultError, SetupError
from mooncake_bench.results.metrics import METRICS
from mooncake_bench.results.sweep import FIXED, FORMAT_VERSION
from mooncake_bench.sim.costs import cost_of
from mooncake_bench.sim.replay import SIMULATOR_VERSION
from mooncake_bench.sim.setup import Setup, settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from mooncake_bench.trace import Trace

FREE = ("tool_version", "created", "name", "shard")  # what the same sweep may have otherwise
SHOWN = 3  # differences


@dataclass(frozen=True)
class Point:
    """One replay of a sweep."""

    number: int
    trace: str  # path or name, as the user gave it
    trace_sha256: str  # as read, before a part of it is chosen
    setup: Setup
    label: str
    varied: Mapping[str, Any]  # key -> value; a parameter that its policy lacks is None


@dataclass(frozen=True)
class Shard:
    """Every ``count``-th point, from the ``number``-th on; both from 1."""

    number: int
    count: int

    def of(self, points: Sequence[Point]) -> list[Point]:
        """The points of this shard."""
        return list(points[self.number - 1 :: self.count])


def parse_shard(text: str) -> Shard:
    """``I/N`` with 1 <= I <= N. Raises SetupError."""
    number, slash, count = text.partition("/")
    if slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count):
        return Shard(int(number), int(count))
    raise SetupError(f"--shard: expected I/N with I from 1 to N, such as 2/4, got {text!r}")


def describe(
    points: Sequence[Point],
    keys: Sequence[str],
    traces: Iterable[Trace],
    sources: Mapping[str, str],
    *,
    oracles: Sequence[str] = (),
    keep_runs: bool = False,
    meaning: Callable[[str], Any] | None = None,
) -> dict[str, Any]:
    """The manifest, still without a name and a shard.

    ``sources`` are the policies' files and their SHA-256, ``oracles`` the labels of policies that see output lengths,
    ``meaning(spec)`` is equal for SPECs that are written differently but are the same.
    Raises SetupError for two points that are the same.
    """
    _check_columns(keys)
    _check_twins(points, meaning)
    types = {key: _type_of(key, [point.varied[key] for point in points]) for key in keys}
    return {
        "format_version": FORMAT_VERSION,
        "tool": "mooncake-bench",
        "tool_version": __version__,
        "simulator_version": SIMULATOR_VERSION,
        "traces": [{"name": trace.name, "sha256": trace.sha256, "requests": len(trace)} for trace in traces],
        "setup": _shared(points, keys),
        "sources": _sources(sources),
        "oracles": list(oracles),
        "costs": _costs(points),
        "keep_runs": keep_runs,
        "varied": list(keys),
        "types": types,
        "points": [_row(point, types) for point in points],
        "metrics": {metric.name: metric.unit for metric in METRICS},
    }


def definition_sha256(manifest: Mapping[str, Any]) -> str:
    """The same for two manifests of the same sweep."""
    core = {key: value for key, value in manifest.items() if key not in FREE}
    return hashlib.sha256(json.dumps(core, sort_keys=True).encode()).hexdigest()


def check_same(there: Mapping[str, Any], here: Mapping[str, Any], where: str, how: str, free: Sequence[str]) -> None:
    """Raises ResultError, with what differs, unless two manifests are the same but for ``free``."""
    found = [text for key in here if key not in free for text in _differences(key, there.get(key), here[key])]
    if found:
        more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        raise ResultError(f"{where} holds another sweep: {'; '.join(found[:SHOWN])}{more}; {how}")


def typed(value: Any, kind: str) -> Any:
    """A varied value as its column holds it."""
    return value if value is None or kind in ("int", "bool") else float(value) if kind == "float" else str(value)


def _row(point: Point, types: Mapping[str, str]) -> dict[str, Any]:
    varied = {key: typed(value, types[key]) for key, value in point.varied.items()}
    return {"point": point.number, "policy": point.setup.policy, "policy_label": point.label, **varied}


def _type_of(key: str, values: Sequence[Any]) -> str:
    """``int``, ``float``, ``bool`` or ``str``: as the setting is declared, or as the parameter's values are."""
    declared = next((name for name, item in settings().items() if item.dotted == key), None)
    if declared is not None:
        return str(Setup.__dataclass_fields__[declared].type).split(" | ", maxsplit=1)[0]
    kinds = {type(value).__name__ for value in values if value is not None}
    return "float" if kinds == {"int", "float"} else kinds.pop() if len(kinds) == 1 else "str"


def _costs(points: Sequence[Point]) -> list[dict[str, str]]:
    """Every cost model with its version and its error in short; what kernels take is not known yet."""
    setups = {(s.cluster, s.node, s.model, s.engine): s for s in (p.setup for p in points) if s.cost != "live"}
    costs = [cost_of(setup) for setup in setups.values()]
    listed = [{"name": cost.name, "version": cost.version, "error": cost.error_short} for cost in costs]
    return [cost for i, cost in enumerate(listed) if cost not in listed[:i]]


def _sources(sources: Mapping[str, str]) -> dict[str, str]:
    """Files by name, for folders are private and differ between machines; those of one name together."""
    found: dict[str, str] = {}
    for file, digest in sorted(sources.items()):
        name = PurePath(file).name
        found[name] = f"{found[name]}+{digest}" if name in found else digest
    return found


def _shared(points: Sequence[Point], keys: Sequence[str]) -> dict[str, Any]:
    """The settings that all points have in common."""
    all_settings = [point.setup.to_dict() for point in points]
    return {
        key: value
        for key, value in all_settings[0].items()
        if key not in (*keys, "policy") and all(other.get(key, value) == value for other in all_settings)
    }


def _check_columns(keys: Sequence[str]) -> None:
    taken = FIXED | {metric.name for metric in METRICS}
    clash = next((key for key in keys if key in taken), None)
    if clash is not None:
        raise SetupError(f"--vary {clash}: the dataset has a column of that name; label the policy otherwise")


def _check_twins(points: Sequence[Point], meaning: Callable[[str], Any] | None) -> None:
    seen: dict[tuple[Any, ...], int] = {}
    for point in points:
        policy = meaning(point.setup.policy) if meaning else point.label
        what = (point.trace, replace(point.setup, policy="any") if meaning else point.setup, policy)
        if what in seen:
            raise SetupError(
                f"--vary: points {seen[what]} and {point.number} are the same replay; write each value once"
            )
        seen[what] = point.number


def _differences(key: str, there: Any, here: Any) -> list[str]:
    if there == here:
        return []
    if isinstance(there, dict) and isinstance(here, dict):
        return [
            f"{name} is {_shown(there.get(name))} there and {_shown(here.get(name))} here"
            for name in {**there, **here}
            if there.get(name) != here.get(name)
        ]
    if key == "points" and isinstance(there, list) and isinstance(here, list):
        return _different_points(there, here)
    return [f"{key.replace('_', ' ')} is {_shown(there)} there and {_shown(here)} here"]


def _different_points(there: Sequence[dict[str, Any]], here: Sequence[dict[str, Any]]) -> list[str]:
    if len(there) != len(here):
        return [f"it has {len(there)} points there and {len(here)} here"]
    number, old, new = next((i, a, b) for i, (a, b) in enumerate(zip(there, here, strict=True)) if a != b)
    return [f"at point {number}, {text}" for text in _differences("", old, new)]


def _shown(value: Any) -> str:
    text = "not there" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
