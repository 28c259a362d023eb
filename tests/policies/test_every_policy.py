"""The generic suite on every policy that ships."""

from __future__ import annotations

import pytest

from mooncake_bench.checks import check_file
from mooncake_bench.plugins import discover

POLICIES = discover()

SPECS = [
    *POLICIES,
    "load-balancing:by=requests",
    "kvcache-centric:threshold=1",
    "early:recheck=true",
    "predictive:td=12s,recheck=true",
    "length-aware:bias=keep",
    "length-aware:bias=position",
    "ttl:ttl_ms=500ms",
    "mooncake-store:lease_ms=200ms,high=0.3",
]


def test_what_ships_is_what_the_documentation_names() -> None:
    by_kind = {
        kind: {name for name, policy in POLICIES.items() if policy.kinds == (kind,)}
        for kind in ("router", "admission", "eviction")
    }
    assert by_kind == {
        "router": {
            "random", "round-robin", "load-balancing", "cache-aware", "kvcache-centric", "priority", "hot-replicas",
        },
        "admission": {
            "accept-all", "queue-cap", "deadline", "baseline", "early", "predictive", "predictive-request", "elastic",
        },
        "eviction": {
            "lru", "lfu", "fifo", "length-aware", "leaf-lru", "leaf-fifo", "leaf-slru", "clock", "sieve", "s3-fifo",
            "2q", "arc", "lru-k", "slru", "lfu-da", "gdsf", "w-tinylfu", "ttl", "mooncake-store",
        },
    }  # fmt: skip


def test_only_predictive_request_is_an_oracle() -> None:
    assert [name for name, policy in POLICIES.items() if policy.oracle] == ["predictive-request"]


@pytest.mark.parametrize("name", POLICIES)
def test_file_says_where_in_the_paper_the_policy_comes_from(name: str) -> None:
    source = POLICIES[name].source
    assert "section" in source or "figure" in source or "not in the paper" in source


@pytest.mark.parametrize("spec", SPECS)
def test_policy_passes_the_generic_suite(spec: str) -> None:
    results = check_file(spec)
    assert [check for check in results if check.status not in ("passed", "skipped")] == []
    skipped = [check.name for check in results if check.status == "skipped"]
    assert skipped == (["does not depend on output lengths before a finish"] if spec == "predictive-request" else [])
