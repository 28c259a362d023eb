"""A child process as a transfer's end is one, which does what a test asks of it."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from mooncake_bench.errors import SetupError
from mooncake_bench.live.transfer.peers import serve


def echo(value: Any) -> dict[str, Any]:
    print("a library's chatter on stdout")
    return {"value": value}


def fail() -> dict[str, Any]:
    print("I1201 10:00:00.000001 1 engine.cpp:1] a line of no matter", file=sys.stderr)
    print("E1201 10:00:00.000002 1 engine.cpp:2] the cable is out", file=sys.stderr)
    print("I1201 10:00:00.000003 1 engine.cpp:3] another line", file=sys.stderr, flush=True)
    raise RuntimeError("transfer returned -1")


def leave() -> dict[str, Any]:
    os._exit(7)


def killed() -> dict[str, Any]:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def hang() -> dict[str, Any]:
    time.sleep(600)
    return {}


def exhaust() -> dict[str, Any]:
    raise MemoryError


def main() -> None:
    serve(
        lambda: {
            "echo": echo, "fail": fail, "leave": leave, "killed": killed, "hang": hang, "exhaust": exhaust,
        }
    )  # fmt: skip


def cannot_start() -> None:
    def make() -> dict[str, Any]:
        raise SetupError("a library is not there; install it")

    serve(make)
