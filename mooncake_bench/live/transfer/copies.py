"""Copies between host and device, and between two devices: what loading and storing KVCache costs.

On a CPU there is no device: a copy within its memory, by one thread, stands for both directions, and says so.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from mooncake_bench.errors import SetupError
from mooncake_bench.live.device import import_torch
from mooncake_bench.live.transfer.link import GUARD, GUARD_BYTES, Link, check, fault, machine, pieces, rounds, version

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mooncake_bench.live.device import Device
    from mooncake_bench.live.transfer.link import Tick

NEEDS_TORCH = "torch is not installed; pip install 'mooncake-bench[live]'"


@dataclass(frozen=True)
class Route:
    """From where to where bytes are copied; None is the host's memory, pinned where there is a GPU."""

    name: str
    description: str
    source: Any
    target: Any


def problem() -> str:
    """Why copies cannot be timed here, in one line with what to do; empty where they can."""
    return "" if find_spec("torch") is not None else NEEDS_TORCH


def routes(device: Device) -> list[Route]:
    """What can be copied where ``device`` is the one chosen."""
    if not device.cuda:
        words = "within the CPU's memory by one thread, which stands for host to device and back: there is no device"
        return [Route("host-host", words, None, None)]
    here = device.torch
    found = [
        Route("host-device", f"pinned host memory to {here}", None, here),
        Route("device-host", f"{here} to pinned host memory", here, None),
    ]
    other = _other(here)
    return found if other is None else [*found, Route("device-device", f"{here} to {other}", here, other)]


def measure(device: Device, sizes: Sequence[int], repeat: int, tick: Tick) -> list[Link]:
    """Every route's copies of every size [bytes], each checked byte by byte.

    Raises SetupError where memory does not suffice, NothingToConclude for wrong data.
    """
    return [_link(route, device, sizes, repeat, tick) for route in routes(device)]


def _link(route: Route, device: Device, sizes: Sequence[int], repeat: int, tick: Tick) -> Link:
    torch = import_torch()
    try:
        with nullcontext() if device.cuda else _one_thread(torch):
            timed = _timed(torch, route, device.cuda, sizes, repeat, tick)
    except (MemoryError, RuntimeError) as error:  # torch's own kinds of both are RuntimeErrors
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        raise SetupError(
            f"--sizes: not enough memory to copy {max(sizes):,} bytes ({route.name}); give smaller ones"
        ) from None
    return Link(
        name=route.name,
        kind="copy",
        description=f"torch copies, {route.description}",
        device=device.name if device.cuda else machine(),
        versions=version("torch") + (f", driver {device.driver}" if device.cuda else ""),
        nbytes=tuple(size for size, _ in timed),
        ms=tuple(ms for _, ms in timed),
    )


@contextmanager
def _one_thread(torch: Any) -> Iterator[None]:
    """Where another program has a core, two threads wait for each other much longer than a copy takes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _timed(
    torch: Any, route: Route, cuda: bool, sizes: Sequence[int], repeat: int, tick: Tick
) -> list[tuple[int, float]]:
    """(bytes, ms) of each copy that counts."""
    source, target = (_room(torch, place, cuda, max(sizes)) for place in (route.source, route.target))
    timed = []
    for size, seed, counts in rounds(sizes, repeat):
        for start, piece in pieces(seed, size):
            source[start : start + len(piece)].copy_(torch.from_numpy(piece))
        target[: size + GUARD_BYTES].fill_(GUARD)
        place = route.target if route.source is None else route.source
        ends = target[:size], source[:size]
        took_ms = _copy_on_gpu(torch, place, *ends) if cuda else _copy(*ends)
        found = fault(target[: size + GUARD_BYTES].cpu().numpy(), seed, size)
        check(found, f"copy {route.name} of {size:,} bytes")
        if counts:
            timed.append((size, took_ms))
        tick()
    return timed


def _room(torch: Any, place: Any, cuda: bool, nbytes: int) -> Any:
    if place is None:
        return torch.zeros(nbytes + GUARD_BYTES, dtype=torch.uint8, pin_memory=cuda)
    return torch.zeros(nbytes + GUARD_BYTES, dtype=torch.uint8, device=place)


def _copy(target: Any, source: Any) -> float:
    """One copy in the CPU's memory [ms]."""
    start = time.perf_counter_ns()
    target.copy_(source)
    return (time.perf_counter_ns() - start) / 1e6


def _copy_on_gpu(torch: Any, place: Any, target: Any, source: Any) -> float:
    """One copy by the GPU's own clock [ms]; a copy between GPUs runs on the stream of the one it leaves."""
    with torch.cuda.device(place):
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source, non_blocking=True)
        end.record()
        torch.cuda.synchronize()
        if target.is_cuda:
            torch.cuda.synchronize(target.device)
        return float(start.elapsed_time(end))


def _other(here: Any) -> Any:
    """A second GPU, None where there is only one."""
    torch = import_torch()
    count = torch.cuda.device_count()
    return torch.device("cuda", (here.index + 1) % count) if count > 1 else None
