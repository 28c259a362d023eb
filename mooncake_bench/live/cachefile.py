"""The file of one key's measurements: read with every field looked at, shared by processes, rewritten whole.

Under a lock a writer first takes over what others have added. The first measurement of a shape stays, so that all runs
that read the file have the same time of it. ``series`` names the measurements of one file: a copy keeps it, a new file
or one that was changed by hand has another.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from mooncake_bench.errors import SetupError
from mooncake_bench.live.lock import locked
from mooncake_bench.live.measurement import (
    LEAST_MS,
    MOST_ERROR,
    MOST_MS,
    MOST_ROUNDS,
    MOST_SIZE,
    Measurement,
    Shape,
    least_second,
)
from mooncake_bench.outfile import check_target, writing

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FORMAT = 3
HINT = "; name another folder with --live-cache DIR"

_First = Annotated[int, msgspec.Meta(ge=1, le=MOST_SIZE)]
_Second = Annotated[int, msgspec.Meta(ge=0, le=MOST_SIZE)]
_Error = Annotated[float, msgspec.Meta(ge=0, le=MOST_ERROR)]


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    """A measurement as the file has it."""

    shape: tuple[Literal["prefill", "decode"], _First, _Second]
    ms: Annotated[float, msgspec.Meta(ge=LEAST_MS, le=MOST_MS)]
    spread: _Error | None
    samples: Annotated[int, msgspec.Meta(ge=1, le=MOST_ROUNDS)]
    noisy: bool
    depth_error: _Error | None
    notice: str


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: Literal[3]
    key: dict[str, Any]
    series: str
    sum: str
    """Of the series and the measurements."""
    measurements: list[_Row]


_DECODER = msgspec.json.Decoder(_File)


@dataclass(frozen=True)
class Content:
    """What a file holds."""

    series: str
    rows: dict[Shape, Measurement]


class CacheFile:
    """The measurements of one key on the disk."""

    def __init__(self, path: Path, key: Mapping[str, Any]) -> None:
        """``key``: as JSON holds it."""
        self.path = path
        self._key = key

    def read(self) -> Content | None:
        """What is there; None where there is no file. Raises SetupError for one that cannot be used."""
        folder = self.path.parent
        try:
            if folder.exists() and not folder.is_dir():
                raise SetupError(f"live cache {folder} cannot be used: it is not a folder{HINT}")
            text = self.path.read_bytes()
        except (FileNotFoundError, IsADirectoryError) as error:
            if isinstance(error, FileNotFoundError):
                return None
            raise self._damaged("it is a folder") from None
        except (OSError, ValueError) as error:  # a name that is too long, or holds a null byte
            raise self._unusable(error) from None
        return self._content(text)

    def prepare(self) -> None:
        """Make the folder. Raises SetupError where that cannot be, or no file can be made in it."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            raise self._unusable(error) from None
        check_target(self.path, force=True, label=self._label, error=SetupError, hint=HINT)

    def merge(self, known: Mapping[Shape, Measurement], series: str) -> Content:
        """Add what the file lacks of ``known``, and give what it then holds; ``series`` is that of a new file.

        Raises SetupError where it cannot be written, or what is there cannot be used.
        """
        self.prepare()
        try:
            with locked(self.path):
                there = self.read() or Content(series, {})
                whole = Content(there.series, {**known, **there.rows})
                if whole.rows != there.rows:
                    self._write(whole)
                return whole
        except OSError as error:
            raise self._unusable(error) from None

    @property
    def _label(self) -> str:
        return f"live cache {self.path}"

    def _content(self, text: bytes) -> Content:
        try:
            found = _DECODER.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise self._damaged(_why_not(text)) from None
        if found.key != self._key:
            raise self._damaged("it is of other measurements than its name says")
        rows: dict[Shape, Measurement] = {one.shape: _measurement(one) for one in found.measurements}
        if len(rows) < len(found.measurements) or any(second < least_second(phase) for phase, _, second in rows):
            raise self._damaged("not a file of measurements")
        whole = Content(found.series, rows)
        return whole if _sum(whole) == found.sum else Content(_sum(whole), whole.rows)

    def _write(self, content: Content) -> None:
        held = {"format": FORMAT, "key": self._key, "series": content.series, "sum": _sum(content)}
        text = msgspec.json.encode({**held, "measurements": _listed(content.rows)})
        with writing(self.path, force=True, label=self._label, error=SetupError, hint=HINT) as partial:
            partial.write_bytes(msgspec.json.format(text, indent=1) + b"\n")

    def _damaged(self, reason: str) -> SetupError:
        return SetupError(f"{self._label} cannot be used: {reason}; delete it, and its times are measured again")

    def _unusable(self, error: Exception) -> SetupError:
        reason = getattr(error, "strerror", None) or str(error)
        return SetupError(f"{self._label} cannot be used: {reason}{HINT}")


def digest(value: Any) -> str:
    """The first 12 hex digits of a JSON value's hash."""
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def _why_not(text: bytes) -> str:
    """What is wrong with a file that is not what is written now."""
    try:
        head = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        head = None
    if isinstance(head, dict) and head.get("format") != FORMAT and "measurements" in head:
        return f"another version of mooncake-bench wrote it (format {str(head.get('format'))[:20]})"
    return "not a file of measurements"


def _listed(rows: Mapping[Shape, Measurement]) -> list[dict[str, Any]]:
    return [{"shape": list(shape), **vars(one)} for shape, one in sorted(rows.items())]


def _sum(content: Content) -> str:
    return digest([content.series, _listed(content.rows)])


def _measurement(row: _Row) -> Measurement:
    return Measurement(row.ms, row.spread, row.samples, row.noisy, row.depth_error, row.notice)
