"""Mooncake's transfer engine between two processes: P2P handshake as metadata, TCP on the loopback interface.

One process holds a registered buffer, the other writes to it and reads from it, as a prefill and a decode node do. No
RDMA device and no metadata server is needed.
"""

from __future__ import annotations

import ctypes
import sys
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench.errors import SetupError
from mooncake_bench.live.transfer.link import (
    GUARD_BYTES,
    Link,
    check,
    fault,
    fill,
    machine,
    rounds,
    version,
    wipe,
)
from mooncake_bench.live.transfer.peers import serve, two_peers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.live.transfer.link import Tick
    from mooncake_bench.live.transfer.peers import Commands, Peer

HOST = "127.0.0.1"
KINDS = ("write", "read")
PACKAGES = ("mooncake-transfer-engine-non-cuda", "mooncake-transfer-engine")
SYSTEM_LIBRARIES = {"libibverbs.so.1": "libibverbs1", "libnuma.so.1": "libnuma1", "libcurl.so.4": "libcurl4"}
"""What the engine is linked against, and the Debian package of each."""
INSTALL = "pip install 'mooncake-bench[mooncake]'"


def problem() -> str:
    """Why the transfer engine cannot be used here, in one line with what to do; empty where it can."""
    if sys.platform != "linux":
        return f"the transfer engine runs on Linux only, and this is {sys.platform}; use --via copy or --via gloo"
    try:
        found = find_spec("mooncake.engine") is not None
    except ImportError:
        found = False
    if not found:
        return f"the transfer engine's Python package is not installed; {INSTALL}"
    lacking = [name for name in SYSTEM_LIBRARIES if not _loads(name)]
    return _lacking(lacking) if lacking else ""


def measure(sizes: Sequence[int], repeat: int, tick: Tick) -> list[Link]:
    """Writes and reads of every size [bytes], each checked byte by byte.

    Raises SetupError where the engine is not there, NothingToConclude where it fails or brings wrong data.
    """
    unusable = problem()
    if unusable:
        raise SetupError(unusable)
    labels = ("the transfer engine's holding process", "the transfer engine's moving process")
    with two_peers(labels, __name__, "main") as (holder, mover):
        theirs = holder.ask("open", capacity=max(sizes))
        mover.ask("open", capacity=max(sizes))
        mover.ask("meet", target=f"{HOST}:{theirs['port']}", address=theirs["address"])
        return [_link(kind, holder, mover, sizes, repeat, tick) for kind in KINDS]


def _link(kind: str, holder: Peer, mover: Peer, sizes: Sequence[int], repeat: int, tick: Tick) -> Link:
    """All transfers of one kind: a write goes from mover to holder, a read the other way; the mover times both."""
    source, target = (mover, holder) if kind == "write" else (holder, mover)
    timed: list[tuple[int, float]] = []
    for size, seed, counts in rounds(sizes, repeat):
        source.ask("fill", size, seed=seed, nbytes=size)
        target.ask("wipe", size, nbytes=size)
        took_ms = mover.ask("move", size, kind=kind, nbytes=size)["ms"]
        found = target.ask("check", size, seed=seed, nbytes=size)["fault"]
        check(found, f"transfer engine, {kind} of {size:,} bytes")
        if counts:
            timed.append((size, took_ms))
        tick()
    return Link(
        name=f"engine-{kind}",
        kind="loopback",
        description=f"Mooncake transfer engine, {kind}s between two processes, protocol tcp on {HOST}",
        device=machine(),
        versions=version(*PACKAGES),
        nbytes=tuple(size for size, _ in timed),
        ms=tuple(ms for _, ms in timed),
    )


class _End:
    """One process's engine and buffer."""

    def __init__(self) -> None:
        try:
            from mooncake.engine import TransferEngine
        except ImportError as error:
            raise SetupError(_unloadable(str(error))) from None
        self._engine = TransferEngine()
        self._buffer = np.empty(0, np.uint8)
        self._target = ""
        self._address = 0

    def open(self, capacity: int) -> dict[str, Any]:
        """Listen, with ``capacity`` bytes for others to write to and read from."""
        self._buffer = np.zeros(capacity + GUARD_BYTES, np.uint8)
        self._done(self._engine.initialize(HOST, "P2PHANDSHAKE", "tcp", ""), "initialize")
        self._done(self._engine.register_memory(self._buffer.ctypes.data, self._buffer.nbytes), "register_memory")
        return {"port": self._engine.get_rpc_port(), "address": self._buffer.ctypes.data}

    def meet(self, target: str, address: int) -> dict[str, Any]:
        """Whom to write to and read from, and where their buffer is."""
        self._target, self._address = target, address
        return {}

    def fill(self, seed: int, nbytes: int) -> dict[str, Any]:
        """Prepare data."""
        fill(self._buffer, seed, nbytes)
        return {}

    def wipe(self, nbytes: int) -> dict[str, Any]:
        """Prepare the place for data."""
        wipe(self._buffer, nbytes)
        return {}

    def check(self, seed: int, nbytes: int) -> dict[str, Any]:
        """Whether the data came."""
        return {"fault": fault(self._buffer, seed, nbytes)}

    def move(self, kind: str, nbytes: int) -> dict[str, Any]:
        """One transfer and how long it took [ms]."""
        call = self._engine.transfer_sync_write if kind == "write" else self._engine.transfer_sync_read
        start = time.perf_counter_ns()
        code = call(self._target, self._buffer.ctypes.data, self._address, nbytes)
        took = time.perf_counter_ns() - start
        self._done(code, f"transfer_sync_{kind}")
        return {"ms": took / 1e6}

    @staticmethod
    def _done(code: int, call: str) -> None:
        if code != 0:
            raise RuntimeError(f"{call} returned {code}")


def main() -> None:
    """A process of its own: one end of the transfers."""

    def make() -> Commands:
        end = _End()
        return {"open": end.open, "meet": end.meet, "fill": end.fill, "wipe": end.wipe, "check": end.check,
                "move": end.move}  # fmt: skip

    serve(make)


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _unloadable(reason: str) -> str:
    lacking = [name for name in SYSTEM_LIBRARIES if name in reason]
    return _lacking(lacking) if lacking else f"the transfer engine cannot be loaded: {reason}; {INSTALL}"


def _lacking(libraries: Sequence[str]) -> str:
    packages = " ".join(SYSTEM_LIBRARIES[name] for name in libraries)
    return (
        f"the transfer engine needs {' and '.join(libraries)}, which this system lacks; on Debian or Ubuntu: "
        f"apt-get install {packages}"
    )
