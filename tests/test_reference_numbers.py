"""The reference reproduces the numbers that other programs of the same rules published."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from reference import Req, simulate
from reference.admissions import Baseline, Early, Predictive
from reference.cost import AnalyticCost
from reference.policies import LRU, AcceptAll, CacheAware, KVCacheCentric

TRACE = Path(__file__).parents[2] / "shared" / "traces" / "mooncake-fast25" / "conversation_trace.jsonl"

pytestmark = [
    pytest.mark.skipif(not TRACE.exists(), reason=f"{TRACE.name} is not in ../shared"),
    pytest.mark.benchmark,  # some 8 to 20 s each: a step-by-step replay
]


def conversation(limit: int | None = None, speedup: float = 1.0) -> list[Req]:
    rows = [json.loads(line) for line in TRACE.read_text().splitlines()[:limit]]
    return [
        Req(i, round(r["timestamp"] * 1e9 / speedup), r["input_length"], r["output_length"], tuple(r["hash_ids"]))
        for i, r in enumerate(rows)
    ]


# DESIGN.md, defaults: 12,031 requests, [8P+8D].
@pytest.mark.parametrize(("router", "mean_ms"), [(KVCacheCentric, 1403.53), (CacheAware, 1568.14)])
def test_mean_ttft_of_the_conversation_trace(router, mean_ms):
    result = simulate(
        conversation(), 8, 8, AnalyticCost(16), router(), AcceptAll(), LRU,
        pool_blocks=5859, block_tokens=512, ttft_slo_ms=30_000, tbt_slo_ms=100,
    )  # fmt: skip
    ttft_ps = [row["first_token_ps"] - row["arrival_ps"] for row in result.requests]
    assert round(sum(ttft_ps) / len(ttft_ps) / 1e9, 2) == mean_ms


# Rule 9: first 6,000 requests, [6P+4D], 3x, TTFT 30 s, TBT 35 ms; 963 > 784 > 758 with t_d 5-10 s, 1,201 at 15 s.
@pytest.mark.parametrize(
    ("admission", "rejected"),
    [
        (Baseline(), 963),
        (Early(), 784),
        (Predictive(td_ms=5_000.0), 758),
        (Predictive(td_ms=10_000.0), 758),
        (Predictive(td_ms=15_000.0), 1201),
    ],
    ids=["baseline", "early", "predictive 5 s", "predictive 10 s", "predictive 15 s"],
)
def test_rejections_under_overload(admission, rejected):
    result = simulate(
        conversation(6000, 3.0), 6, 4, AnalyticCost(10), KVCacheCentric(), admission, LRU,
        pool_blocks=5859, block_tokens=512, ttft_slo_ms=30_000, tbt_slo_ms=35,
    )  # fmt: skip
    assert Counter(row["status"] for row in result.requests) == {"completed": 6000 - rejected, "rejected": rejected}
