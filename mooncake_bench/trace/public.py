"""Public traces that can be fetched by name, where they go, and how a file is known to be one of them."""

from __future__ import annotations

import hashlib
import os
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mooncake_bench.errors import SetupError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE = Path(__file__).with_name("public.toml")
CHUNK_BYTES = 2**20
LIST_HINT = "list them with: mooncake-bench traces fetch --list"


@dataclass(frozen=True)
class PublicTrace:
    """One line of ``public.toml``, where the fields are explained."""

    name: str
    file: str
    url: str
    format: str
    licence: str
    cite: str
    about: str
    bytes: int | None = None
    sha256: str | None = None
    git_blob: str | None = None
    pinned_by: str | None = None
    requests: int | None = None

    @property
    def pinned(self) -> bool:
        """Whether a hash of the file is known, without which no download can be verified."""
        return self.sha256 is not None or self.git_blob is not None

    @property
    def expected(self) -> str:
        """What the file is known by, in words."""
        known = (("sha256", self.sha256), ("git blob", self.git_blob))
        words = [f"{kind} {value}" for kind, value in known if value is not None][:1]
        return ", ".join([*words, *([f"{self.bytes:,} bytes"] if self.bytes is not None else [])])

    def fault(self, path: Path) -> str | None:
        """What is wrong with a file that should be this trace, or None: every hash that is known is compared."""
        size = path.stat().st_size
        if self.bytes is not None and size != self.bytes:
            return f"it has {size:,} bytes; expected {self.bytes:,}"
        sha256, git_blob = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        for part in _parts(path):
            sha256.update(part)
            git_blob.update(part)
        for kind, found, expected in (
            ("sha256", sha256.hexdigest(), self.sha256),
            ("git blob", git_blob.hexdigest(), self.git_blob),
        ):
            if expected is not None and found != expected:
                return f"its {kind} is {found}; expected {expected}"
        return None


def _parts(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        while part := stream.read(CHUNK_BYTES):
            yield part


def public_traces() -> dict[str, PublicTrace]:
    """Every public trace of the table, by name."""
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return {name: PublicTrace(name=name, **fields) for name, fields in table.items()}


def public_trace(name: str) -> PublicTrace:
    """The public trace of that name. Raises SetupError, with the nearest name, when there is none."""
    known = public_traces()
    if name not in known:
        raise SetupError(f"public trace {name!r}: not known{nearest(name, known)}; {LIST_HINT}")
    return known[name]


def default_folder() -> Path:
    """Where fetched traces are kept: ``mooncake-bench/traces`` in the user's cache folder of this platform.

    That is ``$XDG_CACHE_HOME`` where it is set to an absolute path, else ``~/Library/Caches`` (macOS),
    ``%LOCALAPPDATA%`` (Windows) or ``~/.cache``. Raises SetupError where there is no home folder.
    """
    chosen = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not chosen.is_absolute():
        chosen = _platform_folder()
    return chosen / "mooncake-bench" / "traces"


def _platform_folder() -> Path:
    try:
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches"
        if sys.platform == "win32":
            return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        return Path.home() / ".cache"
    except RuntimeError:
        raise SetupError("the user's home folder is not known; name a folder with --cache-dir") from None
