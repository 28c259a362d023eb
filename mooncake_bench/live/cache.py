"""Measured times: what was run once with the same device, software and model is not run again.

One JSON file for each combination of everything that a time depends on, its ``key``, which stands in the file as well.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, Protocol

from mooncake_bench.live.cachefile import CacheFile, digest
from mooncake_bench.live.measurement import in_words, kept

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mooncake_bench.live.measurement import Measurement, Shape, Timing

MODE: Literal["layerwise"] = "layerwise"
"""How a live prefill treats its KV: each layer's is stored while the next layer computes."""


class Kernels(Protocol):
    """One rank's shard of a model on a device."""

    def prefill_ms(self, computed: int, prefix: int, mode: Literal["layerwise"]) -> Timing: ...
    def decode_ms(self, batch: int, contexts: int) -> Timing: ...


class Measured:
    """The times of one shard on one device: from the disk where they are known, else from kernels, built when needed.

    ``used`` holds what was asked for, in order: it depends on the questions, not on what the disk knew. ``ran`` is how
    many of them kernels were run for, in ``ran_s`` seconds. ``own`` are the shapes of which the disk now keeps another
    time than the one in use here, measured by another process after the file had been deleted.
    """

    def __init__(
        self,
        key: Mapping[str, Any],
        kernels: Callable[[], Kernels],
        folder: Path,
        watch: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        """``key``: all that the times depend on, as JSON holds it. ``watch`` is told what is going to be measured, and
        None once it is. Raises SetupError for a file that is damaged, and a folder that cannot be one."""
        self.key = json.loads(json.dumps(key))
        self.path = folder / file_name(self.key)
        self.used: dict[Shape, Measurement] = {}
        self.own: list[Shape] = []
        self.ran, self.ran_s = 0, 0.0
        self._watch = watch
        self._build = kernels
        self._kernels: Kernels | None = None
        self._file = CacheFile(self.path, self.key)
        found = self._file.read()
        self._known = {} if found is None else found.rows
        self._series = secrets.token_hex(6) if found is None else found.series

    @property
    def identity(self) -> str:
        """The same wherever a shape that both used has the same time: the file's series, and what differs from it."""
        own = [[*shape, self.used[shape].ms] for shape in sorted(self.own)]
        return digest([self._series, own]) if own else self._series

    def prefill(self, computed: int, prefix: int) -> Measurement:
        """A prefill of ``computed`` tokens after ``prefix`` cached ones. Raises what the kernels raise."""
        return self._of(("prefill", computed, prefix), lambda run: run.prefill_ms(computed, prefix, MODE))

    def decode(self, batch: int, context: int) -> Measurement:
        """A step of ``batch`` sequences of ``context`` tokens each. Raises what the kernels raise."""
        return self._of(("decode", batch, context), lambda run: run.decode_ms(batch, context))

    def _of(self, shape: Shape, measure: Callable[[Kernels], Timing]) -> Measurement:
        found = self.used.get(shape) or self._known.get(shape)
        if found is None:
            self._file.prepare()  # a folder that cannot be written is found out before minutes of measuring
            self._known[shape] = self._measured(shape, measure)
            self._share()
            found = self._known[shape]
        self.used[shape] = found
        return found

    def _measured(self, shape: Shape, measure: Callable[[Kernels], Timing]) -> Measurement:
        """A time by kernels, ``watch`` and the counts kept up."""
        self._watch(f"live: measuring {in_words(shape)} (shape {self.ran + 1}, {self.ran_s:.0f} s so far)…")
        start = monotonic()
        try:
            if self._kernels is None:
                self._kernels = self._build()
            found = kept(shape, measure(self._kernels))
            self.ran += 1
            return found
        finally:
            self.ran_s += monotonic() - start
            self._watch(None)

    def _share(self) -> None:
        """Write what is new, and take over what others measured first, but for times that are already in use here."""
        there = self._file.merge(self._known, self._series)
        self._series = there.series
        self.own = [shape for shape, one in self.used.items() if there.rows[shape] != one]
        self._known = {**there.rows, **{shape: self.used[shape] for shape in self.own}}


def cache_folder(given: str | None) -> Path:
    """Where measurements lie: ``given``, or ``mooncake-bench/live`` in the user's cache folder."""
    if given is not None:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME", "")  # an empty or relative one is to be ignored, says its specification
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return root / "mooncake-bench" / "live"


def file_name(key: Mapping[str, Any]) -> str:
    """A name that people can tell apart, and no two keys share."""
    model = re.sub(r"[^A-Za-z0-9.-]+", "-", Path(str(key["model"])).stem)
    return f"{model}-tp{key['tensor_parallel']}-{digest(key)}.json"
