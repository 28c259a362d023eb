"""How fast a trace is counted: all that ``traces info`` says of the conversation trace in half a second.

Process time, so that a busy machine disturbs little. ``pytest -m benchmark tests/benchmarks/test_trace_info_speed.py``.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import pytest

from mooncake_bench.trace import info, load

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.benchmark


def test_the_facts_of_the_conversation_trace_take_half_a_second_at_most(shared: Path) -> None:
    trace = load(shared / "traces" / "mooncake-fast25" / "conversation_trace.jsonl")
    times = []
    for _ in range(5):
        began = time.process_time()
        info(trace)
        times.append(time.process_time() - began)
    print(f"\ninfo: {statistics.median(times):.3f} s")
    assert statistics.median(times) <= 0.5
