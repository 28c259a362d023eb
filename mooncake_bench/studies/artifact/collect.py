"""From stored runs to the files of an archive: each run is checked to be repeatable, and told to look beside itself."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mooncake_bench import __version__
from mooncake_bench.errors import ResultError, SetupError
from mooncake_bench.paths import bundled
from mooncake_bench.plugins import DEFAULTS, Spec, find, load_file, parse
from mooncake_bench.plugins.load import choose
from mooncake_bench.results.repeat import name_of, refuse_idle_folders, repeat_of
from mooncake_bench.results.run import Run, open_run
from mooncake_bench.results.store import MANIFEST as RUN_JSON
from mooncake_bench.results.store import TABLES
from mooncake_bench.sim.replay import SIMULATOR_VERSION
from mooncake_bench.studies.artifact.contents import (
    MANIFEST,
    README,
    Contents,
    PackedRun,
    PackedTrace,
    Part,
    readme,
    sha256_of,
)  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mooncake_bench.plugins import PolicyClass
    from mooncake_bench.sim.setup import Setup

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")
_UNSAFE_IN_RUN = re.compile(r"[^A-Za-z0-9_.+=,-]+")  # what stands in no SPEC may keep its signs
_GPU = re.compile(r"""^(\s*gpu\s*=\s*)(["'])(.+?\.toml)\2""", re.MULTILINE)


@dataclass
class Collected:
    """What an archive is to hold."""

    policy_dirs: Sequence[Path] = ()
    with_traces: bool = False
    files: dict[str, bytes | Path] = field(default_factory=dict)
    runs: dict[Path, PackedRun] = field(default_factory=dict)  # by the run's own folder
    traces: dict[str, PackedTrace] = field(default_factory=dict)  # by path in the archive
    policy_files: set[Path] = field(default_factory=set)
    notices: list[str] = field(default_factory=list)

    def finished(self) -> Contents:
        """The contents, with README and ``artifact.json`` among the files."""
        contents = Contents(__version__, SIMULATOR_VERSION, tuple(self.runs.values()), tuple(self.traces.values()))
        self.files[README] = readme(contents).encode()
        facts = {name: _fact(content) for name, content in sorted(self.files.items())}
        contents = replace(contents, files=facts)
        self.files[MANIFEST] = contents.to_json().encode()
        return contents


def collect(runs: Sequence[Run], policy_dirs: Sequence[Path] = (), *, with_traces: bool = False) -> Collected:
    """What packs these runs. Raises BenchError for one that could not be replayed again."""
    collected, named = Collected(policy_dirs, with_traces), set()
    for run in runs:
        assert run.path is not None, "stored runs"
        folder = run.path.resolve()
        if folder in named:
            raise SetupError(f"{name_of(run)} is named twice; name it once")
        named.add(folder)
        if folder not in collected.runs:  # it may have warmed the caches of another
            add_run(collected, run)
    refuse_idle_folders(policy_dirs, list(collected.policy_files))
    return collected


def add_run(collected: Collected, run: Run) -> PackedRun:
    """One run with its tables, its policies, its presets and its trace; and the run that warmed its caches."""
    where = name_of(run)
    if run.interrupted:
        raise ResultError(f"{where} was interrupted, so no replay can be as it is; pack a complete one")
    setup = repeat_of(run, collected.policy_dirs).setup
    if setup.cost == "live":
        collected.notices.append(f"{where}: live kernels are timed anew on each machine, so `verify` leaves it out")
    for name in TABLES:
        getattr(run, name)  # read, and so checked against its hash
    assert run.path is not None
    spec, parts = parse(setup.policy), tuple(_parts(collected, setup.policy))
    folder = _folder(collected, run.path)
    trace = _trace(collected, str(run.manifest["trace"]["path"]))
    manifest = _rewritten(collected, run, setup, _packed_spec(spec, parts), trace)
    for name in TABLES:
        collected.files[f"{folder}/{name}.parquet"] = run.path / f"{name}.parquet"
    text = json.dumps(manifest, indent=2, ensure_ascii=False, allow_nan=False)
    collected.files[f"{folder}/{RUN_JSON}"] = (text + "\n").encode()
    stored = run.manifest["trace"]
    packed = PackedRun(
        folder, run.label, spec.label if spec.labelled else None, parts, trace, stored["name"], stored["sha256"],
        stored["requests"], str(run.manifest["simulator_version"]),
    )  # fmt: skip
    collected.runs[run.path.resolve()] = packed
    return packed


def safe_name(name: str) -> str:
    """A name as a run's folder may have it."""
    return _UNSAFE_IN_RUN.sub("-", name).strip("-.")


def _folder(collected: Collected, path: Path) -> str:
    name = stem = f"runs/{safe_name(path.resolve().name) or 'run'}"
    taken, number = {packed.folder for packed in collected.runs.values()}, 1
    while name in taken:
        number += 1
        name = f"{stem}-{number}"
    return name


# ---- policies


def _parts(collected: Collected, text: str) -> Iterator[Part]:
    """The policies of a SPEC, and the defaults of the kinds that it leaves out; their files are packed."""
    kinds: set[str] = set()
    for each in parse(text).parts:
        path = Path(each.target)
        if each.is_file:
            policy = choose(load_file(path), each.class_name, path)
        else:
            policy = find(each.target, collected.policy_dirs)
        kinds.update(policy.kinds)
        parameters = ",".join(f"{key}={value}" for key, value in each.parameters.items())
        yield _part(collected, policy, parameters, implied=False)
    for kind, name in DEFAULTS.items():
        if kind not in kinds:
            yield _part(collected, find(name, collected.policy_dirs), "", implied=True)


def _part(collected: Collected, policy: PolicyClass, parameters: str, *, implied: bool) -> Part:
    assert policy.cls is not None
    name = _UNSAFE.sub("-", policy.file.name)
    file = f"policies/{policy.sha256[:12]}/{name}"
    collected.files[file] = policy.file
    collected.policy_files.add(policy.file)
    ours = policy.file.resolve().parent == bundled("policies").resolve()
    return Part(policy.name, policy.cls.__name__, file, policy.sha256, parameters, ours, implied)


def _packed_spec(spec: Spec, parts: Sequence[Part]) -> str:
    """The SPEC as it is to be read beside the archive's files; bundled policies go by their names."""
    text = "+".join(part.named if part.bundled else part.packed for part in parts if not part.implied)
    return f"{spec.label}={text}" if spec.labelled else text


# ---- traces


def _trace(collected: Collected, path: str) -> str:
    """A trace as a packed run names it: a bundled one by its name, a file by its place in the archive."""
    from mooncake_bench.trace import bundled_names
    from mooncake_bench.trace.loading import find as find_trace

    if path in bundled_names():
        return path
    file = find_trace(path)
    digest = sha256_of(file)
    place = f"traces/{digest[:12]}/{_UNSAFE.sub('-', file.name)}"
    collected.traces[place] = PackedTrace(place, digest, file.stat().st_size, collected.with_traces)
    if collected.with_traces:
        collected.files[place] = file
    return place


# ---- the manifest


def _rewritten(collected: Collected, run: Run, setup: Setup, spec: str, trace: str) -> dict[str, Any]:
    """A run's manifest with every path as it is in the archive."""
    manifest: dict[str, Any] = json.loads(json.dumps(run.manifest))
    old = manifest["trace"]["path"]
    manifest["trace"] |= {"path": trace, "notices": [text.replace(old, trace) for text in manifest["trace"]["notices"]]}
    manifest["notices"] = [text.replace(old, trace) for text in manifest.get("notices", [])]
    manifest["policy"]["spec"] = spec
    changed: dict[str, str | None] = {"policy": spec, **_presets(collected, setup), **_warm(collected, run, setup)}
    if "live.cache" in manifest["setup"]:
        changed["live.cache"] = None  # a folder of the machine that it ran on
    manifest["setup"] |= {key: value for key, value in changed.items() if key in manifest["setup"]}
    return manifest


def _presets(collected: Collected, setup: Setup) -> dict[str, str]:
    """The settings that name a file of the user's own, with its place in the archive."""
    changed = {
        key: _preset(collected, value)
        for key, value in (("model", setup.model), ("node", setup.node), ("engine", setup.engine))
        if value.endswith((".toml", ".json"))
    }
    cluster = setup.cluster
    for _, node in dict.fromkeys(setup.instances):
        if node.endswith(".toml") and f"@{node}" in cluster:
            cluster = re.sub(rf"@{re.escape(node)}(?=\+|\]|\s|$)", f"@{_preset(collected, node)}", cluster)
    return changed | ({"cluster": cluster} if cluster != setup.cluster else {})


def _preset(collected: Collected, given: str) -> str:
    """A preset's file, packed under its own name, by which reports call it; a datasheet that it names comes along."""
    path = Path(given)
    content = path.read_bytes()
    if path.suffix == ".toml":
        content = _with_datasheet(collected, content)
    digest = hashlib.sha256(content).hexdigest()[:12]
    folder = path.parent.name
    if path.name == "config.json" and not folder:  # called by its name alone only where it lies in no folder
        place = path.name
    else:
        inner = f"{_UNSAFE.sub('-', folder)}/" if path.name == "config.json" else ""
        place = f"presets/{digest}/{inner}{_UNSAFE.sub('-', path.name)}"
    if collected.files.setdefault(place, content) != content:
        raise SetupError(
            f"two runs use different files {given!r} without a folder; name one with its folder, and replay"
        )
    return place


def _with_datasheet(collected: Collected, content: bytes) -> bytes:
    gpu = tomllib.loads(content.decode()).get("gpu")
    if not isinstance(gpu, str) or not gpu.endswith(".toml"):
        return content
    place = _preset(collected, gpu)
    return _GPU.sub(lambda found: f"{found[1]}{found[2]}{place}{found[2]}", content.decode()).encode()


def _warm(collected: Collected, run: Run, setup: Setup) -> Mapping[str, str]:
    """What warmed its caches, packed as well: a run, or a trace."""
    if setup.warm_from is None:
        return {}
    folder = Path(setup.warm_from)
    if not (folder / RUN_JSON).is_file():
        return {"warm_from": _trace(collected, setup.warm_from)}
    known = collected.runs.get(folder.resolve())
    return {"warm_from": (known or add_run(collected, open_run(folder))).folder}


def _fact(content: bytes | Path) -> dict[str, Any]:
    if isinstance(content, bytes):
        return {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    return {"sha256": sha256_of(content), "bytes": content.stat().st_size}
