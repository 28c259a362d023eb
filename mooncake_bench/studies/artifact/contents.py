"""``artifact.json``: what an archive holds, and the README that says it to a person."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from mooncake_bench import jsonfile
from mooncake_bench.errors import ResultError
from mooncake_bench.studies.artifact.archive import is_plain

if TYPE_CHECKING:
    from pathlib import Path

FORMAT_VERSION = 1
MANIFEST, README = "artifact.json", "README.md"
PIECE = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")  # a policy's, as in a SPEC


@dataclass(frozen=True)
class Part:
    """One policy of a run: as the SPEC has it, and its file in the archive."""

    name: str
    class_name: str
    file: str  # path in the archive
    sha256: str
    parameters: str  # as in a SPEC, without the colon; empty: none
    bundled: bool  # comes with mooncake-bench
    implied: bool  # the SPEC leaves its kind out: the default

    @property
    def packed(self) -> str:
        """As a part of a SPEC that takes its code from the archive."""
        return ":".join(filter(None, (self.file, self.class_name, self.parameters)))

    @property
    def named(self) -> str:
        """As a part of a SPEC that takes the policy of this name."""
        return ":".join(filter(None, (self.name, self.parameters)))


@dataclass(frozen=True)
class PackedRun:
    """One run, and what replays it."""

    folder: str  # path in the archive
    label: str
    spec_label: str | None  # that its SPEC starts with
    parts: tuple[Part, ...]
    trace: str  # path in the archive, whether it is there or not; or the name of a bundled trace
    trace_name: str
    trace_sha256: str  # of the requests replayed
    requests: int
    simulator_version: str


@dataclass(frozen=True)
class PackedTrace:
    """A trace's file: where it belongs in the archive, and what it must be."""

    path: str
    sha256: str  # of the file
    bytes: int
    included: bool


@dataclass(frozen=True)
class Contents:
    """Everything about an archive but the files themselves."""

    tool_version: str
    simulator_version: str
    runs: tuple[PackedRun, ...]
    traces: tuple[PackedTrace, ...]
    files: dict[str, dict[str, Any]] = field(default_factory=dict)  # path: sha256 and bytes

    def to_json(self) -> str:
        """As the archive holds it: the same content is the same text."""
        head = {"format_version": FORMAT_VERSION, "tool": "mooncake-bench"}
        return json.dumps(head | asdict(self), indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"

    @property
    def foreign(self) -> dict[str, str]:
        """Policy files that do not come with mooncake-bench: path in the archive and sha256."""
        return {part.file: part.sha256 for run in self.runs for part in run.parts if not part.bundled}


def read(folder: Path, where: str) -> Contents:
    """The contents of an unpacked archive, every file checked. Raises ResultError for what is not as it says."""
    try:
        raw = jsonfile.load(folder / MANIFEST)
        version = raw["format_version"]
    except (OSError, KeyError, TypeError):
        raise ResultError(f"{where} is no artifact: it holds no {MANIFEST} that can be read") from None
    except ValueError as error:
        raise ResultError(f"{where} is no artifact: its {MANIFEST} cannot be read ({error})") from None
    if version != FORMAT_VERSION:
        raise ResultError(
            f"{where} has artifact format {version}, and this version reads {FORMAT_VERSION}: update mooncake-bench"
        )
    try:
        contents = msgspec.convert(raw, Contents)
    except msgspec.ValidationError as error:
        raise ResultError(f"{where} is damaged: {MANIFEST}: {error}") from None
    _check_files(folder, contents, where)
    _check_names(contents, where)
    return contents


def _check_files(folder: Path, contents: Contents, where: str) -> None:
    there = {str(path.relative_to(folder).as_posix()) for path in folder.rglob("*") if path.is_file()} - {MANIFEST}
    for name in sorted(there ^ set(contents.files)):
        what = "lacks" if name in contents.files else "holds, besides what it lists,"
        raise ResultError(f"{where} is damaged: it {what} {name!r}; fetch it again")
    for name, fact in contents.files.items():
        if sha256_of(folder / name) != fact.get("sha256"):
            raise ResultError(f"{where}: {name!r} is not what {MANIFEST} says (its sha256 differs): it was changed")


def _check_names(contents: Contents, where: str) -> None:
    """Raises ResultError for a path that leads out of the archive, or to a file that it does not hold."""
    held = [(part.file, part.sha256) for run in contents.runs for part in run.parts]
    held += [(f"{run.folder}/run.json", None) for run in contents.runs]  # type: ignore[misc]
    held += [(trace.path, trace.sha256) for trace in contents.traces if trace.included]
    for name, digest in held:
        if name not in contents.files or digest not in (None, contents.files[name]["sha256"]):
            raise ResultError(f"{where} is damaged: {MANIFEST} names a file {name!r} that it does not hold")
    for trace in contents.traces:
        if not is_plain(trace.path) or not trace.path.startswith("traces/"):
            raise ResultError(f"{where}: {MANIFEST} puts a trace at {trace.path!r}, out of traces/: not to be trusted")
    for run in contents.runs:
        for part in run.parts:
            if not (_NAME.fullmatch(part.name) and part.class_name.isidentifier() and "+" not in part.parameters):
                raise ResultError(f"{where}: {MANIFEST} has a policy {part.name!r} that is none: not to be trusted")


def sha256_of(path: Path) -> str:
    """The digest of a file, read piece by piece."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()


def readme(contents: Contents) -> str:
    """What the archive holds and how to check it, in plain Markdown."""
    lines = [
        "# Runs of mooncake-bench, to be replayed again",
        "",
        f"{len(contents.runs)} runs, stored by mooncake-bench {contents.tool_version} (simulator "
        f"{contents.simulator_version}). To replay each of them and compare every number:",
        "",
        "```sh",
        "mooncake-bench artifact verify ARCHIVE --list     # what is in it; runs nothing",
        "mooncake-bench artifact verify ARCHIVE",
        "```",
        "",
        "`verify` says of each run: identical; within 1e-9; or which decisions differ. It runs the policies' code that",
        "the archive brings, with your rights: read `policies/` first.",
        "",
        "| run | policy | trace | requests |",
        "| --- | --- | --- | ---: |",
        *(
            f"| {_cell(run.folder)} | {_cell(run.label)} | {_cell(run.trace)} | {run.requests} |"
            for run in contents.runs
        ),
        "",
        "A run's folder holds `run.json` (every setting, hashes, cost model) and its tables as parquet. Paths in it",
        "are relative to this folder: in it, `mooncake-bench replay --from runs/NAME` and `compare runs/*` work too.",
        "",
        "| policy | class | file | sha256 |",
        "| --- | --- | --- | --- |",
        *_policies(contents),
        *_traces(contents),
    ]
    return "\n".join(lines) + "\n"


def _policies(contents: Contents) -> list[str]:
    parts = {(part.name, part.class_name, part.file, part.sha256) for run in contents.runs for part in run.parts}
    return [_row(*cells) for cells in sorted(parts)]


def _traces(contents: Contents) -> list[str]:
    if not contents.traces:
        return ["", "The traces come with mooncake-bench."]
    lines = ["", "| trace file | bytes | sha256 | |", "| --- | ---: | --- | --- |"]
    for trace in contents.traces:
        here = "included" if trace.included else "not included: `verify --traces DIR` finds it by its sha256"
        lines.append(f"| {_cell(trace.path)} | {trace.bytes} | {trace.sha256} | {here} |")
    return lines


def _row(*cells: str) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "|`*_[]<>\\" else letter for letter in text if letter.isprintable())
