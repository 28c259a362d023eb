"""Child processes that move data: what they answer, how they fail, and that none is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mooncake_bench.errors import NothingToConclude, SetupError
from mooncake_bench.live.transfer.peers import answers_of, two_peers

TESTS = Path(__file__).resolve().parent
LABELS = ("the one", "the other")


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(TESTS))
    with two_peers(LABELS, "transfer_child", "main") as both:
        yield both


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")


def ended(*pids: int, within_s: float = 20) -> bool:
    deadline = time.monotonic() + within_s
    while any(map(running, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(running, pids))


def test_a_child_answers_whatever_its_libraries_print(pair) -> None:
    one, other = pair
    assert one.ask("echo", value=[1, "two"]) == {"value": [1, "two"]}
    other.send("echo", value=3)
    one.send("echo", value=4)
    assert answers_of(pair, 30) == [{"value": 4}, {"value": 3}]


def test_a_failure_is_told_with_the_librarys_own_error_line(pair) -> None:
    with pytest.raises(NothingToConclude) as told:
        pair[0].ask("fail")
    assert str(told.value) == (
        "the one: RuntimeError: transfer returned -1; it printed: "
        "E1201 10:00:00.000002 1 engine.cpp:2] the cable is out"
    )


def test_a_child_that_dies_is_told_at_once(pair) -> None:
    with pytest.raises(NothingToConclude, match=r"^the one: the process ended with code 7$"):
        pair[0].ask("leave")
    with pytest.raises(NothingToConclude, match=r"^the other: .* signal SIGKILL; too little memory for such --sizes"):
        pair[1].ask("killed")


def test_too_little_memory_in_a_child_is_the_users_to_mend(pair) -> None:
    with pytest.raises(SetupError, match=r"^--sizes: not enough memory for the largest; give smaller ones$"):
        pair[0].ask("exhaust")


def test_a_child_that_hangs_is_given_up(pair) -> None:
    pair[0].send("hang")
    with pytest.raises(NothingToConclude, match=r"^the one: no answer within 0 s$"):
        pair[0].answer(0.2)
    with pytest.raises(NothingToConclude, match=r"^the one: no answer within 0 s$"):
        answers_of(pair[:1], 0.1)


def test_the_failure_of_one_is_told_though_the_other_still_waits(pair) -> None:
    start = time.monotonic()
    pair[0].send("hang")
    pair[1].send("fail")
    with pytest.raises(NothingToConclude, match="the other: RuntimeError"):
        answers_of(pair, 60)
    assert time.monotonic() - start < 30


def test_what_a_child_lacks_is_told_in_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TESTS))
    with (
        pytest.raises(SetupError, match=r"^a library is not there; install it$"),
        two_peers(LABELS, "transfer_child", "cannot_start"),
    ):
        pass


@pytest.mark.parametrize("reason", [KeyboardInterrupt, ValueError])
def test_no_child_is_left_behind_whatever_ends_the_work(reason: type[BaseException], monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(TESTS))
    pids: list[int] = []
    with pytest.raises(reason), two_peers(LABELS, "transfer_child", "main") as both:  # noqa: PT012
        pids += [peer.pid for peer in both]
        both[0].send("hang")
        assert all(map(running, pids))
        raise reason
    assert len(pids) == 2
    assert not any(map(running, pids))


PARENT = """
import json, sys, time
sys.path.insert(0, {tests!r})
from mooncake_bench.live.transfer.peers import two_peers
with two_peers(("a", "b"), "transfer_child", "main") as both:
    both[0].send("hang")
    print(json.dumps([peer.pid for peer in both]), flush=True)
    time.sleep(600)
"""


def test_children_end_when_their_parent_is_killed() -> None:
    command = [sys.executable, "-c", PARENT.format(tests=str(TESTS))]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        pids = json.loads(parent.stdout.readline())
        assert all(map(running, pids))
        parent.send_signal(signal.SIGKILL)
    assert ended(*pids)
