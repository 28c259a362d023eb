"""How long traces take to make, and how much memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mooncake_bench.trace import load
from mooncake_bench.trace.synthetic import redraw
from mooncake_bench.trace.synthetic.fit import specification

pytestmark = pytest.mark.benchmark

FIVE_MILLION = """
import resource
from mooncake_bench.trace.synthetic.recipe import make
from mooncake_bench.trace.synthetic.wording import recipe
share = ("system:count=8,tokens=2048,zipf=1.2",)
trace = make(recipe({"requests": "5000000", "rate": "100", "input": "lognormal:mean=1000,cv=1", "share": share}))
assert len(trace) == 5_000_000
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, resource.getrusage(resource.RUSAGE_SELF).ru_utime)
"""


def test_five_million_requests_take_under_a_minute_and_under_1_gib() -> None:
    done = subprocess.run([sys.executable, "-c", FIVE_MILLION], check=True, capture_output=True, text=True)
    mib, cpu_s = map(float, done.stdout.split())
    print(f"{mib:.0f} MiB, {cpu_s:.1f} s")
    assert mib < 1024
    assert cpu_s < 60


def test_a_trace_of_12_000_requests_is_fitted_and_drawn_in_seconds(benchmark) -> None:  # type: ignore[no-untyped-def]
    trace = load("conversation-like")
    benchmark.pedantic(lambda: redraw.draw(specification(trace)), rounds=3)
    assert benchmark.stats.stats.min < 5
