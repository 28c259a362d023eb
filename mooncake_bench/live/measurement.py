"""One shape's time: what kernels tell of it, what is kept, and what can be one at all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from mooncake_bench.errors import SetupError

LEAST_MS, MOST_MS = 1e-6, 1e9
"""A nanosecond and eleven days: no step of a model takes less or more."""
MOST_SIZE = 10**9
"""Sequences or tokens of a shape: no device holds more."""
MOST_ROUNDS = 10**6
MOST_ERROR = 1e9
"""Of a spread, or of a scaling error in %: above it there is no measurement."""

Shape = tuple[str, int, int]
"""("prefill", computed, prefix) or ("decode", batch, context of each sequence)."""


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


def kept(shape: Shape, timing: Timing) -> Measurement:
    """What is kept of a timing. Raises SetupError for a time that cannot be, as noise scaled to a depth may give."""
    ms, spread = float(timing.median_ms), float(timing.spread)
    if not LEAST_MS <= ms <= MOST_MS:
        raise SetupError(
            f"the {in_words(shape)} came out at {ms:g} ms when scaled to the whole depth: something else disturbs this "
            "device; try again, with more rounds (--live-repeat) or deeper layers (--live-layers)"
        )
    return Measurement(
        ms=ms,
        spread=spread if math.isfinite(spread) else None,
        samples=int(timing.samples),
        noisy=bool(timing.noisy),
        depth_error=None if timing.depth_error is None else float(timing.depth_error),
        notice=timing.notice,
    )


def least_second(phase: str) -> int:
    """The least second size of a shape: a prefill may have no prefix, a step reads at least its own token."""
    return 0 if phase == "prefill" else 1


def in_words(shape: Shape) -> str:
    """A shape as a person reads it."""
    phase, first, second = shape
    if phase == "decode":
        return f"decode of {first:,} x {second:,} tokens"
    return f"prefill of {first:,} + {second:,} tokens" if second else f"prefill of {first:,} tokens"
