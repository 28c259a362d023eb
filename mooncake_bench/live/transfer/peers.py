"""Processes of our own that move data between them: started, asked with a time limit, and never left behind.

A command and its answer are one line of JSON each, on the child's stdin and stdout. All else that a library prints in
the child is kept and shown only when something fails. A child ends by itself once its stdin is closed, so it does not
outlive this process, however that ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import IO, TYPE_CHECKING, Any

from mooncake_bench.errors import NothingToConclude, SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Commands = Mapping[str, Callable[..., dict[str, Any]]]

START_S = 120.0
"""For a child to start and import what it needs, on a machine that does other things too."""
ANSWER_S = 60.0
POLL_S = 0.2
LEAST_BYTES_PER_S = 10e6
"""A slower transfer is taken for one that hangs."""
TAIL_CHARS = 300
_TROUBLE = re.compile(r"^[EF]\d{4} |error|exception|fail|refused", re.IGNORECASE)  # E1201…: as glog marks an error
_START = "import sys; sys.path[:] = {path!r}; from {module} import {function}; {function}()"


class Peer:
    """One child process; ``label`` names it in messages."""

    def __init__(self, label: str, module: str, function: str, environment: Mapping[str, str]) -> None:
        """Starts it: ``function`` of ``module`` must call :func:`serve`."""
        self._label = label
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        code = _START.format(path=sys.path, module=module, function=function)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env={**os.environ, **environment},
            text=True,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C reaches this process alone, which then ends the child
        )
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def ask(self, command: str, moved: int = 0, /, **arguments: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; the bytes that are ``moved`` lengthen the limit."""
        self.send(command, **arguments)
        return self.answer(ANSWER_S + moved / LEAST_BYTES_PER_S)

    def send(self, command: str, /, **arguments: Any) -> None:
        """Send a command whose answer is asked for later."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([command, arguments]) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise self._ended() from None

    def answer(self, limit_s: float) -> dict[str, Any]:
        """The next answer. Raises SetupError for what the user can mend, else NothingToConclude."""
        answer = self.poll(limit_s)
        if answer is None:
            raise self.silent(limit_s)
        return answer

    def silent(self, limit_s: float) -> NothingToConclude:
        """The error that it said nothing for so long."""
        return NothingToConclude(f"{self._label}: no answer within {limit_s:.0f} s{self._last_words()}")

    def poll(self, wait_s: float) -> dict[str, Any] | None:
        """The next answer, None where there is none yet; raises as :meth:`answer` does."""
        try:
            line = self._answers.get(timeout=wait_s)
        except queue.Empty:
            return None
        if not line:
            raise self._ended()
        answer: dict[str, Any] = json.loads(line)
        if "missing" in answer:
            raise SetupError(answer["missing"])
        if "failed" in answer:
            raise NothingToConclude(f"{self._label}: {answer['failed']}{self._last_words()}")
        return answer

    def close(self) -> None:
        """End the process, if it still runs."""
        with contextlib.suppress(OSError):
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._said):
            with contextlib.suppress(OSError, ValueError):
                stream and stream.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(OSError, ValueError):  # closed under our hands
            for line in self._process.stdout:
                self._answers.put(line)
        self._answers.put("")

    def _ended(self) -> NothingToConclude:
        code = self._process.wait()
        how = f"ended with code {code}" if code >= 0 else f"was ended by signal {_signal(-code)}"
        hint = "; too little memory for such --sizes?" if code == -9 else ""
        return NothingToConclude(f"{self._label}: the process {how}{hint}{self._last_words()}")

    def _last_words(self) -> str:
        """What the libraries printed last: an error if there is one."""
        if not hasattr(os, "pread"):  # Windows: reading would move the place where the child writes
            return ""
        self._said.flush()
        size = os.fstat(self._said.fileno()).st_size
        text = os.pread(self._said.fileno(), 1 << 16, max(0, size - (1 << 16))).decode("utf-8", "replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        telling = [line for line in lines if _TROUBLE.search(line)] or lines
        return f"; it printed: {telling[-1][:TAIL_CHARS]}" if telling else ""


@contextlib.contextmanager
def two_peers(
    labels: Sequence[str], module: str, function: str, environment: Mapping[str, str] | None = None
) -> Iterator[tuple[Peer, Peer]]:
    """Two children that are ready for commands, ended afterwards whatever happens."""
    with contextlib.ExitStack() as stack:
        peers = []
        for label in labels:
            peers.append(Peer(label, module, function, environment or {}))
            stack.callback(peers[-1].close)
        for peer in peers:
            peer.answer(START_S)
        yield peers[0], peers[1]


def answers_of(peers: Sequence[Peer], limit_s: float) -> list[dict[str, Any]]:
    """The next answer of each, asked in turn: where one fails, the others, who wait for it, are not waited for."""
    found: dict[Peer, dict[str, Any]] = {}
    deadline = time.monotonic() + limit_s
    while len(found) < len(peers):
        for peer in (one for one in peers if one not in found):
            answer = peer.poll(POLL_S)
            if answer is not None:
                found[peer] = answer
            elif time.monotonic() > deadline:
                raise peer.silent(limit_s)
    return [found[peer] for peer in peers]


def serve(make: Callable[[], Commands]) -> None:
    """The child's side: answer commands until stdin closes. ``make`` imports what is needed and names the commands."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer
    asked: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_watch, args=(asked,), daemon=True).start()
    commands: Commands = {}
    answer = _tried(lambda: commands.update(make()) or {})  # type: ignore[attr-defined]
    while True:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        name, arguments = json.loads(asked.get())
        answer = _tried(lambda: commands[name](**arguments))  # noqa: B023 - called at once


def _watch(asked: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        asked.put(line)
    os._exit(0)  # our parent is gone, or done with us; a transfer that hangs must not keep us


def _tried(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What ``work`` answers, or why it could not."""
    try:
        return work()
    except SetupError as error:
        return {"missing": str(error)}
    except MemoryError:
        return {"missing": "--sizes: not enough memory for the largest; give smaller ones"}
    except Exception as error:
        return {"failed": " ".join(f"{type(error).__name__}: {error}".split())[:TAIL_CHARS]}


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
