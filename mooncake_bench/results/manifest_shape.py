"""What ``run.json`` has to hold for its readers: keys by dotted path, and the type of each."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any

from mooncake_bench.errors import ResultError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TEXT, WHOLE, NUMBER, SWITCH = "a text", "a whole number", "a number", "true or false"
OBJECT, LIST = "an object", "a list"
_TYPES: dict[str, tuple[type, ...]] = {
    TEXT: (str,), WHOLE: (int,), NUMBER: (int, float), SWITCH: (bool,), OBJECT: (dict,), LIST: (list,),
}  # fmt: skip

NEEDED = {
    "status": TEXT,
    "policy": OBJECT,
    "policy.label": TEXT,
    "policy.spec": TEXT,
    "trace": OBJECT,
    "trace.name": TEXT,
    "trace.path": TEXT,
    "trace.sha256": TEXT,
    "trace.requests": WHOLE,
    "trace.block_tokens": WHOLE,
    "setup": OBJECT,
    "setup.cluster": TEXT,
    "setup.model": TEXT,
    "setup.node": TEXT,
    "setup.engine": TEXT,
    "setup.view": TEXT,
    "setup.seed": WHOLE,
    "setup.speedup": NUMBER,
    "setup.estimate_error": NUMBER,
    "setup.slo.tbt_metric": TEXT,
    "setup.slo.first_gap": TEXT,
    "setup.slo.ttft_ms": NUMBER,
    "setup.slo.tbt_ms": NUMBER,
    "setup.warmup_ms": NUMBER,
    "cluster": OBJECT,
    "cluster.prefill_instances": WHOLE,
    "cluster.decode_instances": WHOLE,
    "cost": OBJECT,
    "cost.name": TEXT,
    "cost.version": TEXT,
    "cost.error": TEXT,
    "counts": OBJECT,
    "counts.completed": WHOLE,
    "counts.rejected": WHOLE,
    "counters": OBJECT,
    "horizon_ms": NUMBER,
    "content_sha256": OBJECT,
}
WHERE_THERE = {  # not in every run: later additions, and what only some replays have
    "simulator_version": TEXT,
    "tool_version": TEXT,
    "created": TEXT,
    "policy.parts": OBJECT,
    "policy.oracle": SWITCH,
    "policy.sources": OBJECT,
    "trace.request_ids": TEXT,
    "trace.metadata": OBJECT,
    "trace.notices": LIST,
    "cluster.gpus": WHOLE,
    "cluster.events": LIST,
    "cluster.pool_sizes": LIST,
    "cost.error_short": TEXT,
    "notices": LIST,
    "policy_decision_us": OBJECT,
    "machine": OBJECT,
}
OR_NULL = {"name": TEXT, "wall_s": NUMBER, "cluster.gpus_per_instance": WHOLE, "cluster.pool_blocks": OBJECT}
THERE = ("cluster.gpus_per_instance", "cluster.pool_blocks", "setup.vram.tokens", "setup.nic.gbytes_per_s")
EACH = {  # of every value in an object
    "counts": WHOLE,
    "counters": NUMBER,
    "content_sha256": TEXT,
    "policy.sources": TEXT,
    "policy.parts": OBJECT,
    "trace.metadata": TEXT,
    "cluster.pool_blocks": WHOLE,
}
_OF_SETUP = {"str": TEXT, "int": WHOLE, "float": NUMBER, "bool": SWITCH}  # by the annotation of a field of Setup
_ABSENT = object()


def check_shape(manifest: Mapping[str, Any], where: str) -> None:
    """Raises ResultError, naming the file ``where`` and a key, for a manifest that its readers could not use."""
    for fault in _faults(manifest):
        raise ResultError(f"{where!r} is damaged: {fault}; replay the run again")


def _faults(manifest: Mapping[str, Any]) -> Iterator[str]:
    outermost = [path for path in NEEDED if "." not in path and path not in manifest]
    if outermost:
        yield f"it lacks {', '.join(outermost)}"
    for path, kind in (NEEDED | WHERE_THERE | OR_NULL).items():
        value = _at(manifest, path)
        if value is _ABSENT:
            if path in NEEDED:
                yield f"it lacks {path}"
        elif not (_is(value, kind) or (value is None and path in OR_NULL)):
            yield f"{path}: expected {kind}, got {_shown(value)}"
    yield from (f"it lacks {path}" for path in THERE if _at(manifest, path) is _ABSENT)
    yield from _faults_inside(manifest)


def _faults_inside(manifest: Mapping[str, Any]) -> Iterator[str]:
    for path, kind in EACH.items():
        held = _at(manifest, path)
        for key, value in held.items() if isinstance(held, dict) else ():
            if not _is(value, kind):
                yield f"{path}.{key}: expected {kind}, got {_shown(value)}"
    for kind, part in (manifest["policy"].get("parts") or {}).items():
        if not isinstance(part.get("name"), str):
            yield f"policy.parts.{kind}: expected a name, got {_shown(part.get('name'))}"
    kinds = _kinds_of_setup()
    for key, value in manifest["setup"].items():
        kind, may_be_null = kinds.get(key, ("", True))
        if kind and not (_is(value, kind) or (value is None and may_be_null)):
            yield f"setup.{key}: expected {kind}, got {_shown(value)}"


@cache
def _kinds_of_setup() -> dict[str, tuple[str, bool]]:
    """Dotted name to the type of a setting, and whether it may be unset."""
    from mooncake_bench.sim.setup import Setup

    found = {}
    for field in fields(Setup):
        kind, _, unset = str(field.type).partition(" | ")
        if kind in _OF_SETUP and unset in ("", "None"):
            found[field.metadata["setting"].dotted] = (_OF_SETUP[kind], bool(unset))
    return found


def _at(manifest: Mapping[str, Any], path: str) -> Any:
    """What lies at a path; the keys of ``setup`` hold dots of their own."""
    outer, _, inner = path.partition(".")
    if not inner:
        return manifest.get(outer, _ABSENT)
    held = manifest.get(outer)
    return held.get(inner, _ABSENT) if isinstance(held, dict) else _ABSENT


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, _TYPES[kind]) and (kind == SWITCH or not isinstance(value, bool))


def _shown(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
