"""The published traces: known by their content, with what stands in for one that is not at hand."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from mooncake_bench.errors import NothingToConclude, SetupError, TraceError, nearest
from mooncake_bench.studies.reproduce.outcome import Used
from mooncake_bench.trace import info, load
from mooncake_bench.trace.public import public_trace
from mooncake_bench.trace.published import KNOWN

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mooncake_bench.trace import Trace

MOST_FILES = 2_000  # of a folder that are looked at
MOST_BYTES = 2**28  # of one file
ARROW = ".arrow"
TEXTS = (".jsonl", ".json", ".txt", ".gz")


class Published(NamedTuple):
    """A trace that the papers measured."""

    title: str
    public: str  # its name for `traces fetch`, whose table has the hashes of its file
    known: str  # its name among those known by their content
    stand_in: str | None  # bundled trace that resembles it


PUBLISHED = {
    "conversation": Published(
        "FAST'25 conversation trace", "mooncake-conversation", "Mooncake's conversation trace", "conversation-like"
    ),
    "toolagent": Published(
        "FAST'25 tool&agent trace", "mooncake-toolagent", "Mooncake's tool & agent trace", "toolagent-like"
    ),
    "synthetic": Published("FAST'25 synthetic trace", "mooncake-synthetic", "Mooncake's synthetic trace", None),
    "arxiv": Published("arXiv trace of 31 July 2024", "mooncake-arxiv", "Mooncake's arXiv trace", "toolagent-like"),
}


def content_sha256(key: str) -> str | None:
    """``Trace.sha256`` of a published trace, where somebody has read its file."""
    return next(known.sha256 for known in KNOWN if known.name == PUBLISHED[key].known)


class Traces:
    """The published traces in ``folder`` (searched by content, whatever the files' names), and the stand-ins.

    Raises SetupError when the folder is none.
    """

    def __init__(self, folder: Path | None = None) -> None:
        if folder is not None and not folder.is_dir():
            raise SetupError(f"--traces {str(folder)!r}: is not a folder; give the one that holds the trace files")
        self.folder = folder

    def get(self, key: str) -> tuple[Trace | None, Used]:
        """The trace ``conversation``, ``toolagent``, ``synthetic`` or ``arxiv``, and what is to be said of it.

        The bundled stand-in where the published file is not at hand; None where there is no stand-in either.
        """
        if key not in PUBLISHED:
            raise SetupError(f"no published trace {key!r}{nearest(key, PUBLISHED)}; known: {', '.join(PUBLISHED)}")
        title, stand_in = PUBLISHED[key].title, PUBLISHED[key].stand_in
        if key in self.found:
            trace = load(self.found[key])
            return trace, Used(title, trace.name, trace.sha256, False, "the published file")
        absent = f"not at hand (mooncake-bench traces fetch {PUBLISHED[key].public})"
        if stand_in is None:
            return None, Used(title, None, None, False, f"{absent}, and nothing stands in for it")
        trace = load(stand_in)
        return trace, Used(title, stand_in, trace.sha256, True, f"{absent}: a bundled synthetic trace stands in")

    def need(self, key: str, result: str) -> tuple[Trace, Used]:
        """The same, for a result that is nothing without it. Raises NothingToConclude, naming ``result``."""
        trace, used = self.get(key)
        if trace is None:
            raise NothingToConclude(
                f"{result}: needs the {used.wanted}, for which there is no stand-in; get it with: "
                f"mooncake-bench traces fetch {PUBLISHED[key].public}"
            )
        return trace, used

    @cached_property
    def found(self) -> dict[str, Path]:
        """Which published traces the folder holds, and where."""
        by_blob = {public_trace(one.public).git_blob: key for key, one in PUBLISHED.items()}
        found: dict[str, Path] = {}
        for path in _files(self.folder):
            key = _stored(path) if path.suffix == ARROW else by_blob.get(_git_blob(path))
            if key is not None:
                found.setdefault(key, path)
        return found


def _files(folder: Path | None) -> Iterator[Path]:
    """Files below a folder that may be traces, in order of their names."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file()) if folder else ()
    for number, path in enumerate(paths):
        if number >= MOST_FILES:
            raise SetupError(f"--traces {str(folder)!r}: holds more than {MOST_FILES:,} files; give a smaller folder")
        if path.suffix in (*TEXTS, ARROW) and path.stat().st_size <= MOST_BYTES:
            yield path


def _git_blob(path: Path) -> str | None:
    """What ``git hash-object`` says of a file, uncompressed; None for one that cannot be read."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error):
        return None
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _stored(path: Path) -> str | None:
    """Which published trace a stored one is a copy of; None for another, or a file that is none."""
    try:
        trace = load(path)
    except TraceError:
        return None
    candidates = {known.name: known for known in KNOWN if known.requests == len(trace)}
    facts = info(trace) if candidates else {}
    is_it = (key for key, one in PUBLISHED.items() if one.known in candidates and candidates[one.known].is_it(facts))
    return next(is_it, None)
