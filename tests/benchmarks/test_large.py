"""How much memory a large trace takes: what a request adds to the peak of converting and replaying it.

``pytest -m benchmark tests/benchmarks/test_large.py -s``; five million requests: ``tools/large_trace.py 5000000``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[2]
FEW, MANY = 50_000, 150_000
MOST_MIB = 600  # at any size so small; what five million take: tools/large_trace.py

pytestmark = pytest.mark.benchmark


def rows(printed: str) -> dict[tuple[int, str], list[float]]:
    """Wall seconds, CPU seconds, CPU µs a request and peak MiB by (requests, step)."""
    cells = [[cell.strip().replace(",", "") for cell in line.strip("|").split("|")] for line in printed.splitlines()]
    return {(int(row[0]), row[2]): [float(cell) for cell in row[3:]] for row in cells if row[0].isdecimal()}


def test_memory_stays_bounded_and_time_is_linear(benchmark: Any, tmp_path: Path) -> None:
    command = [sys.executable, str(REPO / "tools" / "large_trace.py"), str(FEW), str(MANY), "--folder", str(tmp_path)]
    found: list[str] = []

    def measure() -> None:
        done = subprocess.run(
            command, env=os.environ | {"PYTHONPATH": str(REPO)}, capture_output=True, text=True, check=True
        )
        found.append(done.stdout)

    benchmark.pedantic(measure, rounds=1)
    print("\n" + found[-1])
    measured = rows(found[-1])
    assert all(measured[MANY, step][3] <= MOST_MIB for step in ("convert", "replay"))
    assert measured[MANY, "replay"][2] <= 1.15 * measured[FEW, "replay"][2]  # CPU time a request
    assert list(tmp_path.iterdir()) == []
