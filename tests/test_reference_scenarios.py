"""The rules, one small countable case each; any engine with the reference's signature can be added to ENGINES."""

from __future__ import annotations

import pytest
from reference import fast, simulate
from reference.cost import CountableCost
from reference.more_scenarios import MORE
from reference.policies import LRU
from reference.scenarios import SCENARIOS, Rejecting, Scripted, ShortestFirst
from reference.workloads import bundled

ENGINES = {"reference": simulate, "fast": fast.simulate}
STAMPS = ("head", "start", "first_token", "kv_arrival", "join", "second_token", "end")
SLACK_PS = 5  # transfers end on a picosecond rounded up


@pytest.fixture(params=ENGINES.values(), ids=ENGINES.keys())
def engine(request):
    return request.param


def close(found, expected):
    return abs(found - round(expected * 1e9)) <= SLACK_PS


@pytest.mark.parametrize("case", SCENARIOS + MORE, ids=lambda case: case.name)
def test_the_rules_hold_in_cases_a_person_can_count(engine, case):
    router = (ShortestFirst if case.shortest_first else Scripted)(case.routes)
    admission = bundled(case.admission) if case.admission else Rejecting(case.reject)
    result = engine(
        case.trace(), *case.cluster, CountableCost(**case.costs()), router, admission, LRU,
        pool_blocks=case.pool_blocks, touch_order=case.touch_order,
        block_tokens=4, ttft_slo_ms=case.ttft_slo_ms, tbt_slo_ms=case.tbt_slo_ms,
    )  # fmt: skip
    for row, columns in case.expected.items():
        for name, value in columns.items():
            if name in STAMPS:
                found = result.requests[row][f"{name}_ps"]
                assert found == -1 if value is None else close(found, value), f"row {row} {name}: {found} ps"
            elif isinstance(value, float):
                assert result.requests[row][name] == pytest.approx(value, rel=1e-12), f"row {row} {name}"
            else:
                assert result.requests[row][name] == value, f"row {row} {name}"
    for row, times in case.tokens.items():
        found = result.token_times_ps[row]
        assert len(found) == len(times)
        assert all(map(close, found, times)), f"row {row}: {found}, not {times} ms"
    for row, seen in case.sees.items():
        for name, array in seen.items():
            assert router.seen[row][name] == pytest.approx(array, rel=1e-9, abs=1e-9), f"row {row} sees {name}"
