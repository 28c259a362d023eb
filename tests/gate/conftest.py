"""Stored runs that a test of the gate may damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mooncake_bench.cli.app import run


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool of processes would take longer to start than all these replays."""
    monkeypatch.setenv("MOONCAKE_BENCH_WORKERS", "1")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs 1, 2: two policies; 3, 4: the same again; 5: another SLO."""
    folder = tmp_path_factory.mktemp("gate")
    words = ["replay", "conversation-like", "--max-requests", "20", "-q", "-o", str(folder)]
    for more in (["--name", "old"], ["--name", "new"]):
        assert run([*words, "-p", "random", "-p", "cache-aware", *more]) == 0
    assert run([*words, "-p", "random", "--slo", "ttft:9s"]) == 0
    return folder


@pytest.fixture
def runs(stored: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(stored, tmp_path / "results"))
