"""``baseline.json``: what a gate compares with, small and sorted, to be committed beside the code.

A policy's entry holds the parts of its run's manifest that say what it was, the hash of its tables, and its metrics;
with ``--jitter`` also their values over jittered replays. Reading is strict: what is not as written is an error, and
so is a file that is not what its own ``sha256`` says.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import msgspec

from mooncake_bench import jsonfile
from mooncake_bench.errors import MissingRun, ResultError
from mooncake_bench.outfile import writing
from mooncake_bench.results.gate.judge import Sample
from mooncake_bench.results.gate.sides import Jittered, Side
from mooncake_bench.results.metrics import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

FORMAT, FORMAT_VERSION = "mooncake-bench baseline", 1
WIDTH = 80
ANEW = "write it anew with: mooncake-bench gate --write-baseline FILE RUN"
# Of a manifest's parts, what a gate asks of them; of the setup, all that is set.
_KEPT = {
    "policy": ("label", "spec", "sources"),
    "trace": ("name", "path", "sha256", "requests", "block_tokens"),
    "cluster": ("prefill_instances", "decode_instances"),
    "cost": ("name", "version"),
}


class Metric(msgspec.Struct, forbid_unknown_fields=True):
    """A metric's declaration when the baseline was written."""

    unit: str
    better: str


class Replays(msgspec.Struct, forbid_unknown_fields=True):
    """A policy's metrics over jittered replays, one value a seed."""

    replays: int
    jitter_ms: float
    values: dict[str, list[int | float | None]]


class Entry(msgspec.Struct, forbid_unknown_fields=True):
    """One policy."""

    policy: dict[str, Any]
    trace: dict[str, Any]
    setup: dict[str, Any]
    cluster: dict[str, Any]
    cost: dict[str, Any]
    content_sha256: dict[str, str]
    metrics: dict[str, int | float | None]
    jittered: Replays | None = None


class Document(msgspec.Struct, forbid_unknown_fields=True):
    """The file."""

    format: str
    format_version: int
    sha256: str  # of all the rest
    simulator_version: str
    metrics: dict[str, Metric]
    policies: dict[str, Entry]


# ---- writing


def write(path: Path, sides: Sequence[Side], metrics: Collection[str], *, force: bool) -> None:
    """Write a baseline of these policies with these metrics. Raises ResultError where that cannot be."""
    content = text(sides, metrics)
    with writing(path, force=force, label=f"--write-baseline {path}", error=ResultError) as partial:
        partial.write_text(content, encoding="utf-8")


def text(sides: Sequence[Side], metrics: Collection[str]) -> str:
    """The file's content: strict JSON with sorted keys, in short lines. Raises ResultError for unfit runs."""
    versions = {str(side.manifest["simulator_version"]) for side in sides}
    if len(versions) > 1:
        raise ResultError(f"the runs come from different simulator versions: {', '.join(sorted(versions))}")
    for side in sides:
        _check_fit(side)
    document = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "simulator_version": versions.pop(),
        "metrics": {name: {"unit": BY_NAME[name].unit, "better": BY_NAME[name].better} for name in metrics},
        "policies": {side.label: _entry(side, metrics) for side in sides},
    }
    return _lines(document | {"sha256": digest(document)}) + "\n"


def digest(document: Mapping[str, Any]) -> str:
    """The sha256 of a baseline's content but for itself, however its lines are broken."""
    rest = {key: value for key, value in document.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _lines(value: Any, indent: str = "") -> str:
    """A value on one line where it fits, else a line a member: a change is then a line of a diff."""
    line = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)
    if not isinstance(value, dict) or len(indent) + len(line) <= WIDTH:
        return line
    inner = indent + " "
    members = [f"{inner}{json.dumps(key, ensure_ascii=False)}: {_lines(value[key], inner)}" for key in sorted(value)]
    return "{\n" + ",\n".join(members) + f"\n{indent}}}"


def _check_fit(side: Side) -> None:
    if side.manifest["status"] == "interrupted":
        raise ResultError(f"{side.label} was interrupted: no baseline can be made of a part of a replay")
    if side.measured:
        raise ResultError(
            f"{side.label}: its durations were measured (--cost live), and a baseline holds exact numbers; "
            "keep the runs, and name several on each side of the gate"
        )


def _entry(side: Side, metrics: Collection[str]) -> dict[str, Any]:
    entry = {part: _some(side.manifest[part], keys) for part, keys in _KEPT.items()}
    entry["setup"] = {key: value for key, value in side.manifest["setup"].items() if value is not None}
    entry |= {"content_sha256": side.manifest["content_sha256"]}
    entry["metrics"] = {name: side.samples[name].value for name in metrics}
    if side.jittered is not None:
        values = {name: list(side.jittered.values[name]) for name in metrics}
        entry["jittered"] = side.jittered._asdict() | {"values": values}
    return entry


def _some(part: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: part[key] for key in keys if key in part}


# ---- reading


def read(path: Path, *, force: bool = False) -> tuple[list[Side], list[str]]:
    """The policies of a baseline file, and what ``force`` accepted of it.

    Raises MissingRun where there is none, ResultError for one that is damaged, or edited and not forced.
    """
    document, edited = parse(_bytes(path), str(path))
    fault = f"{str(path)!r} was edited by hand: it is not what its sha256 says"
    if edited and not force:
        raise ResultError(f"{fault}; {ANEW} (--force takes it as it is)")
    return [_side(label, entry, document) for label, entry in document.policies.items()], [f"forced: {fault}"] * edited


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise MissingRun(f"there is no baseline {str(path)!r}; {ANEW.replace('anew ', '')}") from None
    except OSError as error:
        raise ResultError(f"{str(path)!r} cannot be read: {error.strerror}") from None


def parse(data: bytes, name: str) -> tuple[Document, bool]:
    """The content of a file called ``name``, and whether it was edited since it was written.

    Raises ResultError for anything else than a baseline.
    """
    try:
        content = jsonfile.parse(data)
    except ValueError as error:
        raise ResultError(f"{name!r} is damaged ({error}); {ANEW}") from None
    _check_head(content, name)
    try:
        document = msgspec.convert(content, Document)
    except msgspec.ValidationError as error:
        raise ResultError(f"{name!r} is damaged: {_lacking(content) or error}; {ANEW}") from None
    _check_policies(document, name)
    return document, document.sha256 != digest(content)


def _check_head(content: Any, name: str) -> None:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        what = "it lacks 'format'" if isinstance(content, dict) and "format" not in content else "its format is another"
        raise ResultError(f"{name!r} is no baseline: {what}; expected {FORMAT!r}; {ANEW}")
    version = content.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise ResultError(
            f"{name!r} has format {version}, and this version reads up to {FORMAT_VERSION}: update mooncake-bench"
        )


def _lacking(content: Mapping[str, Any]) -> str:
    """The first key that should be there and is not; empty where it is something else that is wrong."""
    policies = content.get("policies")
    held = policies.items() if isinstance(policies, dict) else ()
    places: list[tuple[str, Any, type[msgspec.Struct]]] = [("", content, Document)]
    places += [(f"policy {label!r}: ", entry, Entry) for label, entry in held]
    for where, part, kind in places:
        wanted = [field.name for field in msgspec.structs.fields(kind) if field.required]
        missing = [name for name in wanted if isinstance(part, dict) and name not in part]
        if missing:
            return f"{where}it lacks {', '.join(map(repr, missing))}"
    return ""


def _check_policies(document: Document, name: str) -> None:
    if not document.policies:
        raise ResultError(f"{name!r} is damaged: it holds no policy; {ANEW}")
    for label, entry in document.policies.items():
        _check(name, label, entry, document)


def _check(name: str, label: str, entry: Entry, document: Document) -> None:
    where = f"{name!r} is damaged: policy {label!r}"
    for part, keys in _KEPT.items():
        missing = [key for key in keys if key not in getattr(entry, part) and key != "sources"]
        if missing:
            raise ResultError(f"{where} lacks {part}.{missing[0]}; {ANEW}")
    strange = [metric for metric in entry.metrics if metric not in document.metrics]
    if strange:
        raise ResultError(f"{where} has metric {strange[0]!r} without a unit; {ANEW}")
    stored = entry.jittered
    odd = None if stored is None else next((v for v in stored.values.values() if len(v) != stored.replays), None)
    if stored is not None and odd is not None:
        raise ResultError(f"{where}: {stored.replays} jittered replays, but {len(odd)} values; {ANEW}")


def _side(label: str, entry: Entry, document: Document) -> Side:
    manifest = {
        "status": "complete",
        "simulator_version": document.simulator_version,
        **{part: getattr(entry, part) for part in (*_KEPT, "setup", "content_sha256")},
    }
    samples = {name: Sample.one(value, document.metrics[name].unit) for name, value in entry.metrics.items()}
    stored = entry.jittered
    jittered = None if stored is None else Jittered(stored.replays, stored.jitter_ms, stored.values)
    return Side(label, manifest, samples, jittered)
