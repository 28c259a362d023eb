"""How fast large text traces are read, and in how much memory."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from mooncake_bench.trace import load

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.benchmark
MIB = 2**20
READ = """
import resource, sys
from mooncake_bench.trace import load
print(len(load(sys.argv[1])), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def test_the_conversation_trace_loads_within_150_ms(shared: Path) -> None:
    path = shared / "traces" / "mooncake-fast25" / "conversation_trace.jsonl"
    times = []
    for _ in range(5):
        start = time.perf_counter()
        load(path)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.15


def test_a_million_rows_of_csv_are_read_within_four_seconds(tmp_path: Path) -> None:
    path = tmp_path / "burst.csv"
    with path.open("w", encoding="ascii") as out:
        out.write("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n")
        out.writelines(
            f"{row // 2},GPT-4,{row % 900 + 1},{row % 300},{row % 1200},API log\n" for row in range(1_000_000)
        )
    start = time.perf_counter()
    trace = load(path)
    assert time.perf_counter() - start < 4
    assert len(trace) == 1_000_000 - 3_334  # every 300th row failed


def test_a_million_rows_of_mooncake_jsonl_are_read_within_400_mib(tmp_path: Path) -> None:
    path = tmp_path / "large.jsonl"
    with path.open("w", encoding="ascii") as out:
        out.writelines(
            f'{{"timestamp": {row}, "input_length": 3000, "output_length": 9, "hash_ids": [{row % 99}, '
            + ", ".join(str(100 + 5 * row + block) for block in range(5))
            + "]}\n"
            for row in range(1_000_000)
        )
    done = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True)
    requests, peak_bytes = map(int, done.stdout.split())
    assert requests == 1_000_000
    assert peak_bytes < 400 * MIB
