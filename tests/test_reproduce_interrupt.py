"""Ctrl-C while the processes behind a published result work: one line, and nobody left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# Started in the background, Python ignores SIGINT; a terminal's command does not
COMMAND = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from mooncake_bench.cli.app import main
main()
"""


def working(group: int) -> list[int]:
    """Processes of a group that have not ended."""
    alive = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, _, its_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
        except OSError:  # has just ended
            continue
        if int(its_group) == group and state not in "ZX":
            alive.append(int(entry.name))
    return alive


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("presses", [1, 2], ids=["once", "twice"])
def test_ctrl_c_ends_a_published_result_and_its_processes(presses: int, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "reproduce", "v3-T3"], cwd=tmp_path, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True, env=os.environ | {"MOONCAKE_BENCH_WORKERS": "2"},
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 30
        while len(working(process.pid)) < 4:  # itself, Python's tracker of resources, two that replay
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        for _ in range(presses):
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process of the command
            time.sleep(0.05)
        out, err = process.communicate(timeout=10)
        assert (process.returncode, out) == (130, ""), err
        assert err == "mooncake-bench: interrupted\n"
        while working(process.pid):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        if working(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
