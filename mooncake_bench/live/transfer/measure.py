"""Which ways there are to move bytes here, and all of their links measured in one go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mooncake_bench.errors import NothingToConclude, SetupError
from mooncake_bench.live.device import choose_device, host_free_bytes
from mooncake_bench.live.transfer import copies, engine, gloo
from mooncake_bench.live.transfer.fit import LEAST_SAMPLES, LEAST_SIZES, by_size, fit_link
from mooncake_bench.live.transfer.link import transfers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mooncake_bench.live.device import Device
    from mooncake_bench.live.transfer.fit import LinkFit, Size
    from mooncake_bench.live.transfer.link import Link, Tick

VIAS = ("copy", "gloo", "engine")
DEFAULT_SIZES = tuple(2**power for power in (16, 18, 20, 22, 24, 26))
"""64 KiB to 64 MiB."""
DEFAULT_REPEAT = 7
_PROBLEM = {"copy": copies.problem, "gloo": gloo.problem, "engine": engine.problem}
_BUFFERS = 6
"""Of the largest size that are in memory at once: two ends, the pattern on either, and its comparison."""


@dataclass(frozen=True)
class Measured:
    """A link with its fit; ``fit`` is None where none could be made, and ``why_not`` says why."""

    link: Link
    sizes: tuple[Size, ...]
    fit: LinkFit | None
    why_not: str


def usable(via: str) -> tuple[list[str], list[str]]:
    """The ways to be measured for a ``via`` of copy, gloo, engine or all, and a notice for each that cannot be.

    Raises SetupError where one that was asked for by name, or all of them, cannot be.
    """
    wanted = VIAS if via == "all" else (via,)
    faults = {name: _PROBLEM[name]() for name in wanted}
    can = [name for name in wanted if not faults[name]]
    lacking = [f"{name}: not measured: {fault}" for name, fault in faults.items() if fault]
    if not can:
        raise SetupError(f"--via {via}: " + "; ".join(dict.fromkeys(fault for fault in faults.values() if fault)))
    return can, lacking


def check_work(sizes: Sequence[int], repeat: int) -> None:
    """Raises SetupError for sizes [bytes] or a repeat that leave no fit, or that memory does not suffice for."""
    if len(set(sizes)) != len(sizes):
        raise SetupError("--sizes: a size is given twice; keep one")
    if len(sizes) < LEAST_SIZES:
        raise SetupError(f"--sizes: {len(sizes)} given; a fit that is tested on a size left out needs {LEAST_SIZES}")
    if repeat < LEAST_SAMPLES:
        raise SetupError(f"--repeat: {repeat} given; at least {LEAST_SAMPLES} are needed to tell how noisy they are")
    needed, free = _BUFFERS * max(sizes), host_free_bytes()
    if needed > free:
        raise SetupError(
            f"--sizes: {max(sizes):,} bytes need about {needed / 1e9:,.2f} GB of memory and {free / 1e9:,.2f} GB are "
            "free; give smaller ones"
        )


def measure(
    vias: Sequence[str], sizes: Sequence[int], repeat: int, device: str, progress: Callable[[int, int, float], None]
) -> list[Measured]:
    """All links of these ways, measured one after the other and fitted.

    ``progress`` is called with (transfers done, of, 0) after each. Raises SetupError for what is not there,
    NothingToConclude where a transfer fails, brings wrong data, or no link could be fitted.
    """
    chosen = _device(device) if "copy" in vias else None
    tick = _counter(_total(vias, chosen, sizes, repeat), progress)
    measured = [_fitted(link) for via in vias for link in _links(via, chosen, sizes, repeat, tick)]
    if all(one.fit is None for one in measured):
        raise NothingToConclude("; ".join(dict.fromkeys(one.why_not for one in measured)))
    return measured


def _device(name: str) -> Device:
    try:
        return choose_device(name)
    except SetupError as error:  # the option has another name in a replay
        raise SetupError(str(error).replace("--live-device", "--device")) from None


def _links(via: str, device: Device | None, sizes: Sequence[int], repeat: int, tick: Tick) -> list[Link]:
    if device is not None and via == "copy":
        return copies.measure(device, sizes, repeat, tick)
    return gloo.measure(sizes, repeat, tick) if via == "gloo" else engine.measure(sizes, repeat, tick)


def _total(vias: Sequence[str], device: Device | None, sizes: Sequence[int], repeat: int) -> int:
    ways = {"copy": len(copies.routes(device)) if device else 0, "gloo": 1, "engine": len(engine.KINDS)}
    return transfers(sizes, repeat) * sum(ways[via] for via in vias)


def _counter(total: int, progress: Callable[[int, int, float], None]) -> Tick:
    def count() -> Iterator[None]:
        for done in range(1, total + 1):
            progress(done, total, 0.0)
            yield

    steps = count()
    return lambda: next(steps)


def _fitted(link: Link) -> Measured:
    sizes = tuple(by_size(link.nbytes, link.ms))
    try:
        return Measured(link, sizes, fit_link(link.nbytes, link.ms), "")
    except NothingToConclude as reason:
        return Measured(link, sizes, None, f"{link.name}: {reason}")
