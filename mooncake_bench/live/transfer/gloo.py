"""Tensors sent from one process to another over TCP by torch.distributed's gloo, on the loopback interface."""

from __future__ import annotations

import datetime
import os
import sys
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

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
from mooncake_bench.live.transfer.peers import ANSWER_S, LEAST_BYTES_PER_S, answers_of, serve, two_peers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.live.transfer.link import Tick
    from mooncake_bench.live.transfer.peers import Commands, Peer

HOST = "127.0.0.1"
SENDER, RECEIVER = 0, 1  # their ranks
NEEDS_TORCH = "torch is not installed; pip install 'mooncake-bench[live]'"
SIDES = {
    "gloo": "from the start of the send to the last byte received",
    "gloo-send": "the sender's side, until its buffer is free again",
    "gloo-receive": "the receiver's side, from asking for the data to the last byte",
}


def problem() -> str:
    """Why gloo cannot be used here, in one line with what to do; empty where it can."""
    return "" if find_spec("torch") is not None else NEEDS_TORCH


def measure(sizes: Sequence[int], repeat: int, tick: Tick) -> list[Link]:
    """Sends of every size [bytes], each checked byte by byte, seen from both sides and as a whole.

    Raises SetupError where torch or gloo is not there, NothingToConclude where a process fails or brings wrong data.
    """
    unusable = problem()
    if unusable:
        raise SetupError(unusable)
    loopback = os.environ.get("GLOO_SOCKET_IFNAME") or ("lo0" if sys.platform == "darwin" else "lo")
    labels = ("gloo's sending process", "gloo's receiving process")
    with two_peers(labels, __name__, "main", {"GLOO_SOCKET_IFNAME": loopback}) as (sender, receiver):
        port = sender.ask("listen")["port"]
        _both(sender, receiver, "join", 0, port=port, capacity=max(sizes), limit_s=ANSWER_S)
        timed: list[tuple[int, dict[str, float]]] = []
        for size, seed, counts in rounds(sizes, repeat):
            took = _transfer(sender, receiver, size, seed)
            if counts:
                timed.append((size, took))
            tick()
    return [_link(name, what, timed) for name, what in SIDES.items()]


def _transfer(sender: Peer, receiver: Peer, size: int, seed: int) -> dict[str, float]:
    """One transfer's times [ms] by side; both processes read the same clock, for they are on one machine."""
    _both(sender, receiver, "prepare", size, seed=seed, nbytes=size)
    sent, received = _both(sender, receiver, "move", size, seed=seed, nbytes=size)
    check(received["fault"], f"gloo, {size:,} bytes")
    spans = {
        "gloo": received["end_ns"] - sent["start_ns"],
        "gloo-send": sent["end_ns"] - sent["start_ns"],
        "gloo-receive": received["end_ns"] - received["start_ns"],
    }
    return {side: span / 1e6 for side, span in spans.items()}


def _both(sender: Peer, receiver: Peer, command: str, size: int, **arguments: Any) -> list[dict[str, Any]]:
    """The answers of both processes to a command that they carry out together."""
    sender.send(command, rank=SENDER, **arguments)
    receiver.send(command, rank=RECEIVER, **arguments)
    return answers_of((sender, receiver), ANSWER_S + size / LEAST_BYTES_PER_S)


def _link(name: str, what: str, timed: Sequence[tuple[int, dict[str, float]]]) -> Link:
    return Link(
        name=name,
        kind="loopback",
        description=f"torch.distributed gloo between two processes over TCP on {HOST}: {what}",
        device=machine(),
        versions=version("torch"),
        nbytes=tuple(size for size, _ in timed),
        ms=tuple(took[name] for _, took in timed),
    )


class _End:
    """One process's tensor and its place in the group of two."""

    def __init__(self) -> None:
        try:
            import torch
            import torch.distributed as dist
        except ImportError as error:
            raise SetupError(f"torch cannot be loaded: {error}; pip install 'mooncake-bench[live]'") from None
        if not (dist.is_available() and dist.is_gloo_available()):
            raise SetupError("this build of torch has no gloo; install one from PyPI, or use --via copy")
        self._torch, self._dist = torch, dist
        self._store: Any = None
        self._data: Any = None
        self._ready = torch.zeros(1, dtype=torch.uint8)

    def listen(self) -> dict[str, Any]:
        """Open the place where the two meet, on a port that is free."""
        self._store = self._dist.TCPStore(HOST, 0, 2, is_master=True, wait_for_workers=False)
        return {"port": self._store.port}

    def join(self, rank: int, port: int, capacity: int, limit_s: float) -> dict[str, Any]:
        """Become one of two, with room for ``capacity`` bytes."""
        store = self._store or self._dist.TCPStore(HOST, port, 2, is_master=False)
        limit = datetime.timedelta(seconds=limit_s)
        self._dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=limit)
        self._data = self._torch.zeros(capacity + GUARD_BYTES, dtype=self._torch.uint8)
        return {}

    def prepare(self, rank: int, seed: int, nbytes: int) -> dict[str, Any]:
        """Data on the one side, the place for it on the other."""
        if rank == SENDER:
            fill(self._data.numpy(), seed, nbytes)
        else:
            wipe(self._data.numpy(), nbytes)
        return {}

    def move(self, rank: int, seed: int, nbytes: int) -> dict[str, Any]:
        """One side of a transfer, which begins once the receiver waits for it."""
        return self._send(nbytes) if rank == SENDER else self._receive(seed, nbytes)

    def _send(self, nbytes: int) -> dict[str, Any]:
        self._dist.recv(self._ready, RECEIVER)
        start = time.perf_counter_ns()
        self._dist.send(self._data[:nbytes], RECEIVER)
        return {"start_ns": start, "end_ns": time.perf_counter_ns()}

    def _receive(self, seed: int, nbytes: int) -> dict[str, Any]:
        start = time.perf_counter_ns()
        waiting = self._dist.irecv(self._data[:nbytes], SENDER)
        self._dist.send(self._ready, SENDER)
        waiting.wait()
        end = time.perf_counter_ns()
        return {"start_ns": start, "end_ns": end, "fault": fault(self._data.numpy(), seed, nbytes)}


def main() -> None:
    """A process of its own: one end of the transfers."""

    def make() -> Commands:
        end = _End()
        return {"listen": end.listen, "join": end.join, "prepare": end.prepare, "move": end.move}

    serve(make)
