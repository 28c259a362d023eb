"""A Ctrl-C that a library swallows while it is being imported still ends the command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

SWALLOWED = """
import os, signal
from mooncake_bench.cli import interrupt
signal.signal(signal.SIGINT, signal.default_int_handler)
interrupt.install()
try:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(10**7):
        pass
except BaseException:
    pass  # what a careless import does
from mooncake_bench.cli.line import run_line
raise SystemExit(run_line(["replay", "conversation-like", "--max-requests", "3000", "-o", "out"]))
"""

BROKEN = """
import os, signal
from mooncake_bench.cli import interrupt, line
signal.signal(signal.SIGINT, signal.default_int_handler)
interrupt.install()

def half_imported():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(10**7):
            pass
    except KeyboardInterrupt:
        raise AttributeError("partially initialized module") from None

line._command = half_imported
raise SystemExit(line.run_line(["--version"]))
"""


@pytest.mark.parametrize(("script", "stored"), [(SWALLOWED, True), (BROKEN, False)], ids=["swallowed", "broken"])
def test_an_interrupt_lost_in_an_import_still_ends_with_130(script: str, stored: bool, tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        env=os.environ | {"COLUMNS": "80"},
    )  # fmt: skip
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "out").is_dir() is stored  # what was done is kept


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        from mooncake_bench.cli.interrupt import install

        install()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
