"""What was measured on a link, and the data that is sent over it."""

from __future__ import annotations

import itertools
import os
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mooncake_bench.errors import NothingToConclude

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    Bytes: TypeAlias = "NDArray[np.uint8]"
    Tick: TypeAlias = "Callable[[], None]"
    """Called after each transfer, for a progress bar; may raise to stop."""

WARM_UPS = 1
"""Transfers of each size that are made and checked, but not timed."""
GUARD_BYTES = 64
"""Behind the data; they must stay as they were."""
GUARD = 0xA5
PIECE_BYTES = 1 << 20
ODD = 0x9E37_79B9_7F4A_7C15


@dataclass(frozen=True)
class Link:
    """A way that bytes take, and how long they took."""

    name: str
    kind: str
    """One of :data:`mooncake_bench.hardware.links.KINDS`."""
    description: str
    device: str
    """What it was measured on."""
    versions: str
    nbytes: tuple[int, ...]
    """Of each timed transfer."""
    ms: tuple[float, ...]
    """Of each timed transfer."""


def rounds(sizes: Sequence[int], repeat: int) -> Iterator[tuple[int, int, bool]]:
    """The transfers of one link as (bytes, seed of the data, timed or warm-up): all sizes in turn, round after round.

    What disturbs the machine for a while so meets every size, and not all samples of one.
    """
    seeds = itertools.count(1)
    for turn in range(repeat + WARM_UPS):
        for size in sizes:
            yield size, next(seeds), turn >= WARM_UPS


def transfers(sizes: Sequence[int], repeat: int) -> int:
    """How many there are in :func:`rounds`."""
    return len(sizes) * (repeat + WARM_UPS)


def pattern(seed: int, nbytes: int, start: int = 0) -> Bytes:
    """``nbytes`` bytes of the data of a seed, from byte ``start`` (a multiple of 8).

    No eight of them are those of another place, nor those that another seed has in this place: neither a piece that
    came to the wrong place nor what an earlier transfer left is taken for the data.
    """
    words = np.arange(start // 8, start // 8 - (-nbytes // 8), dtype=np.uint64)
    words *= np.uint64(ODD)  # odd: as a map of 64-bit words it is one to one
    words ^= np.random.default_rng(seed).integers(2**64, dtype=np.uint64)
    return words.view(np.uint8)[:nbytes]


def pieces(seed: int, nbytes: int) -> Iterator[tuple[int, Bytes]]:
    """The whole pattern as (place, bytes), in pieces small enough that fresh memory costs no time."""
    for start in range(0, nbytes, PIECE_BYTES):
        yield start, pattern(seed, min(PIECE_BYTES, nbytes - start), start)


def fill(buffer: Bytes, seed: int, nbytes: int) -> None:
    """Put the pattern where a transfer reads it."""
    for start, piece in pieces(seed, nbytes):
        buffer[start : start + len(piece)] = piece


def wipe(buffer: Bytes, nbytes: int) -> None:
    """Make the place of a transfer's data, and the guard behind it, hold none of it."""
    buffer[: nbytes + GUARD_BYTES] = GUARD


def fault(buffer: Bytes, seed: int, nbytes: int) -> str:
    """How the bytes differ from the pattern that was sent, guard included; empty when all is as it should be."""
    wrong, first = 0, -1
    for start, piece in pieces(seed, nbytes):
        differs = buffer[start : start + len(piece)] != piece
        if differs.any():
            first = start + int(differs.argmax()) if first < 0 else first
            wrong += int(differs.sum())
    if wrong:
        return f"{wrong:,} of {nbytes:,} bytes are wrong, the first at {first:,}"
    if (buffer[nbytes : nbytes + GUARD_BYTES] != GUARD).any():
        return f"bytes behind the {nbytes:,} that were sent were overwritten"
    return ""


def check(found: str, what: str) -> None:
    """Raises NothingToConclude where a transfer did not bring what was sent."""
    if found:
        raise NothingToConclude(f"{what}: {found}; a link that brings other data is not timed")


def machine() -> str:
    """The processor and how many cores this process may use."""
    return f"{_processor()}, {_cores()} cores, {platform.system()}"


def version(*distributions: str) -> str:
    """``name version`` of the first of these distributions that is installed."""
    for name in distributions:
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    return f"{distributions[0]} of unknown version"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return (names and names[0]) or platform.processor() or platform.machine()


def _cores() -> int:
    affinity: Any = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
