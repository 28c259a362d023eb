"""Measured times on disk: what was run once with the same device, software and model is not run again.

One JSON file for each combination of everything that a time depends on, its ``key``, which stands in the file as well.
It is rewritten whole, under another name first, after each measurement.
"""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, Protocol

from mooncake_bench.errors import SetupError
from mooncake_bench.outfile import writing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FORMAT = 2
MODE: Literal["layerwise"] = "layerwise"
"""How a live prefill treats its KV: each layer's is stored while the next layer computes."""


class Timing(Protocol):
    """What kernels tell of one shape: scaled to the whole depth of the model."""

    @property
    def median_ms(self) -> float: ...
    @property
    def spread(self) -> float: ...
    @property
    def samples(self) -> int: ...
    @property
    def noisy(self) -> bool: ...
    @property
    def depth_error(self) -> float | None: ...
    @property
    def notice(self) -> str: ...


class Kernels(Protocol):
    """One rank's shard of a model on a device."""

    def prefill_ms(self, computed: int, prefix: int, mode: Literal["layerwise"]) -> Timing: ...
    def decode_ms(self, batch: int, contexts: int) -> Timing: ...


@dataclass(frozen=True)
class Measurement:
    """One shape's time, as it is kept."""

    ms: float
    """Median of the samples."""
    spread: float | None
    """Distance between the quartiles of the samples, over the median; None for fewer than three samples."""
    samples: int
    noisy: bool
    depth_error: float | None
    """How far scaling a few layers to the whole depth was off at other depths [%]; None: the whole depth was run."""
    notice: str = ""
    """What else a reader of the time must know."""


Shape = tuple[str, int, int]
"""("prefill", computed, prefix) or ("decode", batch, context of each sequence)."""


class Measured:
    """The times of one shard on one device: from the disk where they are known, else from kernels, built when needed.

    ``used`` holds what was asked for, in order: it depends on the questions, not on what the disk knew. ``ran`` is how
    many of them kernels were run for, in ``ran_s`` seconds.
    """

    def __init__(
        self,
        key: Mapping[str, Any],
        kernels: Callable[[], Kernels],
        folder: Path,
        watch: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        """``key``: all that the times depend on, as JSON holds it. ``watch`` is told what is going to be measured, and
        None once it is. Raises SetupError for a file that is damaged."""
        self.key = json.loads(json.dumps(key))
        self.path = folder / file_name(self.key)
        self.used: dict[Shape, Measurement] = {}
        self.ran, self.ran_s = 0, 0.0
        self._watch = watch
        self._build = kernels
        self._kernels: Kernels | None = None
        self._known = _read(self.path, self.key)

    def prefill(self, computed: int, prefix: int) -> Measurement:
        """A prefill of ``computed`` tokens after ``prefix`` cached ones. Raises what the kernels raise."""
        return self._of(("prefill", computed, prefix), lambda run: run.prefill_ms(computed, prefix, MODE))

    def decode(self, batch: int, context: int) -> Measurement:
        """A step of ``batch`` sequences of ``context`` tokens each. Raises what the kernels raise."""
        return self._of(("decode", batch, context), lambda run: run.decode_ms(batch, context))

    def _of(self, shape: Shape, measure: Callable[[Kernels], Timing]) -> Measurement:
        found = self.used.get(shape) or self._known.get(shape)
        if found is None:
            found = self._known[shape] = self._measured(shape, measure)
            self._write()
        self.used[shape] = found
        return found

    def _measured(self, shape: Shape, measure: Callable[[Kernels], Timing]) -> Measurement:
        """A time by kernels, ``watch`` and the counts kept up."""
        self._watch(f"live: measuring {in_words(shape)} (shape {self.ran + 1}, {self.ran_s:.0f} s so far)…")
        start = monotonic()
        try:
            if self._kernels is None:
                self._kernels = self._build()
            found = kept(measure(self._kernels))
            self.ran += 1
            return found
        finally:
            self.ran_s += monotonic() - start
            self._watch(None)

    def _write(self) -> None:
        rows = [{"shape": list(shape), **asdict(one)} for shape, one in sorted(self._known.items())]
        text = json.dumps({"format": FORMAT, "key": self.key, "measurements": rows}, indent=1)
        label = f"live cache {self.path}"
        hint = "; name another folder with --live-cache DIR"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SetupError(f"{label}: its folder cannot be made: {error.strerror}{hint}") from None
        with writing(self.path, force=True, label=label, error=SetupError, hint=hint) as partial:
            partial.write_text(text + "\n", encoding="utf-8")


def cache_folder(given: str | None) -> Path:
    """Where measurements lie: ``given``, or ``mooncake-bench/live`` in the user's cache folder."""
    if given is not None:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME", "")  # an empty or relative one is to be ignored, says its specification
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return root / "mooncake-bench" / "live"


def in_words(shape: Shape) -> str:
    """A shape as a person reads it."""
    phase, first, second = shape
    if phase == "decode":
        return f"decode of {first:,} x {second:,} tokens"
    return f"prefill of {first:,} + {second:,} tokens" if second else f"prefill of {first:,} tokens"


def digest(value: Any) -> str:
    """The first 12 hex digits of a JSON value's hash."""
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def file_name(key: Mapping[str, Any]) -> str:
    """A name that people can tell apart, and no two keys share."""
    model = re.sub(r"[^A-Za-z0-9.-]+", "-", Path(str(key["model"])).stem)
    return f"{model}-tp{key['tensor_parallel']}-{digest(key)}.json"


def kept(timing: Timing) -> Measurement:
    """What is kept of a timing."""
    spread = float(timing.spread)
    return Measurement(
        ms=float(timing.median_ms),
        spread=spread if math.isfinite(spread) else None,
        samples=int(timing.samples),
        noisy=bool(timing.noisy),
        depth_error=None if timing.depth_error is None else float(timing.depth_error),
        notice=timing.notice,
    )


def _read(path: Path, key: Mapping[str, Any]) -> dict[Shape, Measurement]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(path, getattr(error, "strerror", None) or "not text") from None
    try:
        content = json.loads(text)
        if content["format"] != FORMAT or content["key"] != key:
            raise _damaged(path, "it is of other measurements than its name says")
        return {_shape(row.pop("shape")): _measurement(row) for row in content["measurements"]}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _damaged(path, "not a file of measurements") from None


def _shape(value: Any) -> Shape:
    phase, first, second = value
    if phase not in ("prefill", "decode") or not (isinstance(first, int) and isinstance(second, int)):
        raise ValueError(value)
    return phase, first, second


def _measurement(row: dict[str, Any]) -> Measurement:
    one = Measurement(**row)
    if not (math.isfinite(one.ms) and one.ms > 0):
        raise ValueError(row)
    return one


def _damaged(path: Path, reason: str) -> SetupError:
    return SetupError(f"live cache {path} cannot be used: {reason}; delete it, and its times are measured again")
