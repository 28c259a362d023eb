"""A replay small enough to be counted by hand, which the other tests of results and report start from.

One prefill instance (0), one decode instance (1), blocks of 4 tokens, SLO TTFT 8.5 ms, TBT 20 ms. A computed token
takes 1 ms; a step takes 10 ms + 1 ms a request + 1 us a context token.

    row  arrival  input           output  prefill            KV arrives
    a    0 ms     8 (1, 2)        4       0 to 8, no hit     9
    b    4 ms     10 (1, 2, 3)    3       8 to 10, hit 8     12
    c    5 ms     4 (9)           1       10 to 14, no hit   never: one token needs no decode
    d    6 ms     12 (4, 5, 6)    2       rejected at arrival, "busy"

    9       a joins with context 9: one step of 10 + 1 + .009 = 11.009 ms, until b, waiting since 12, can join
    20.009  b joins with context 11: contexts 10 + 11 = 21, steps of 12.021 and 12.023 ms
    44.053  a has its 3 steps, b its 2: both end
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from mooncake_bench.results.invariants import check
from mooncake_bench.results.records import Records
from mooncake_bench.results.run import Run
from mooncake_bench.sim.replay import Replay
from mooncake_bench.sim.setup import Setup
from mooncake_bench.trace import Trace

US, MS = 10**6, 10**9  # ps
UNFINISHED, COMPLETED, REJECTED, FAILED = range(4)


def tiny_trace() -> Trace:
    """The four requests above."""
    rows = [(0, 8, 4, [1, 2]), (4, 10, 3, [1, 2, 3]), (5, 4, 1, [9]), (6, 12, 2, [4, 5, 6])]
    return replace(Trace.of(rows, block_tokens=4, name="tiny"), request_id=("a", "b", "c", "d"))


def tiny_columns() -> dict[str, Any]:
    """What the simulator would keep of them."""
    at = {
        #                 a        b      c       d
        "arrival_ps": (0, 4_000, 5_000, 6_000),
        "head_ps": (0, 8_000, 10_000, None),
        "start_ps": (0, 8_000, 10_000, None),
        "first_token_ps": (8_000, 10_000, 14_000, None),
        "kv_arrival_ps": (9_000, 12_000, None, None),
        "join_ps": (9_000, 20_009, None, None),
        "second_token_ps": (20_009, 32_030, None, None),
        # no fetch; the streams of a and b start with their prefills and take 9 and 4 ms (alone: 9 and 2.5)
        "fetch_start_ps": (None,) * 4,
        "fetch_end_ps": (None,) * 4,
        "fetch_ideal_ps": (None,) * 4,
        "stream_start_ps": (0, 8_000, 10_000, None),
        "stream_ideal_ps": (9_000, 2_500, None, None),
        "end_ps": (44_053, 44_053, 14_000, 6_000),
    }
    columns: dict[str, Any] = {
        name: np.array([-1 if us is None else us * US for us in times], np.int64) for name, times in at.items()
    }
    whole = {
        "hit_blocks": (0, 2, 0, 0),
        "hit_tokens": (0, 8, 0, 0),
        "fetched_tokens": (0, 0, 0, 0),
        "computed_tokens": (8, 2, 4, 0),
        "prefill_ps": (8 * MS, 2 * MS, 4 * MS, 0),
        "lost_ps": (0,) * 4,
        "lost_tokens": (0,) * 4,
        "attempts": (1,) * 4,
    }
    columns |= {name: np.array(values, np.int64) for name, values in whole.items()}
    columns |= {
        "status": np.array([COMPLETED, COMPLETED, COMPLETED, REJECTED], np.int8),
        "reject_stage": np.array([0, 0, 0, 1], np.int8),
        "reject_reason": np.array([-1, -1, -1, 0], np.int32),
        "prefill_instance": np.zeros(4, np.int32),  # a route was chosen for d too, before it was turned away
        "decode_instance": np.ones(4, np.int32),
        "preemptions": np.zeros(4, np.int32),
        "predicted_ttft_ms": np.array([8.0, 5.0, np.nan, 20.0]),
        "predicted_tbt_ms": np.array([np.nan, 15.0, np.nan, np.nan]),
    }
    return columns


def table(names: str, *rows: tuple[int, ...]) -> dict[str, Any]:
    """Integer columns from rows."""
    keys = names.split()
    array = np.array(rows, np.int64).reshape(-1, len(keys))
    return {key: array[:, i].copy() for i, key in enumerate(keys)}


SEGMENT_NAMES = "instance start_ps first_step steps step_ps growth_ps batch tokens"
STAY_NAMES = "request instance join_ps first_step steps"


def tiny_policies() -> dict[str, Any]:
    """Router, admission and eviction with their parameters, as a replay names them."""
    return {
        "router": {"name": "cache-aware", "parameters": {}},
        "admission": {"name": "queue-cap", "parameters": {"limit": 8}},
        "eviction": {"name": "lru", "parameters": {}},
    }


def tiny_replay(**changes: Any) -> Replay:
    """The replay above; any field can be replaced."""
    fields: dict[str, Any] = {
        "trace": tiny_trace(),
        "setup": Setup(cluster="1P+1D", slo_ttft_ms=8.5, slo_tbt_ms=20.0, policy="cache-aware+queue-cap"),
        "policy_label": "tiny",
        "policy_spec": "tiny=cache-aware+queue-cap",
        "policy_sources": {"cache_aware.py": "ab" * 32},
        "admission": "queue-cap",
        "policies": tiny_policies(),
        "oracle": False,
        "cost_name": "fake",
        "cost_version": "1",
        "cost_error": "invented numbers, for tests of results and reports",
        "cost_error_short": "invented numbers",
        "is_prefill": np.array([True, False]),
        "is_decode": np.array([False, True]),
        "columns": tiny_columns(),
        "reasons": ("busy", "full"),
        "segments": table(
            SEGMENT_NAMES,
            (1, 9_000 * US, 0, 1, 11_009 * US, US, 1, 9),
            (1, 20_009 * US, 1, 2, 12_021 * US, 2 * US, 2, 21),
        ),
        "stays": table(STAY_NAMES, (0, 1, 9_000 * US, 0, 3), (1, 1, 20_009 * US, 1, 2)),
        "counters": {"fetches": 0, "fetched_bytes": 0, "streamed_bytes": 18_000, "evictions": 0},
        "policy_ns": np.array([1000, 2000, 3000, 4000]),
        "horizon_ps": 44_053 * US,
        "interrupted": False,
        "vram_tokens": np.array([0, 1000]),
        "pool_blocks": {0: 5859},
    }
    return Replay(**(fields | changes))


def tiny_run(**changes: Any) -> Run:
    """The replay above as a run, not stored."""
    return Run.from_replay(tiny_replay(**changes))


def changed(name: str, row: int, value: float) -> dict[str, Any]:
    """The columns with one value replaced."""
    columns = tiny_columns()
    columns[name][row] = value
    return columns


def all_rejected() -> Replay:
    """Every request is turned away when it arrives."""
    columns = tiny_columns()
    for name in ("head", "start", "first_token", "kv_arrival", "join", "second_token"):
        columns[f"{name}_ps"][:] = -1
    for name in ("hit_blocks", "hit_tokens", "computed_tokens", "prefill_ps"):
        columns[name][:] = 0
    columns["end_ps"] = columns["arrival_ps"].copy()
    columns["status"][:] = REJECTED
    columns["reject_stage"][:] = 1
    columns["reject_reason"][:] = 1
    nothing = {"segments": table(SEGMENT_NAMES), "stays": table(STAY_NAMES), "horizon_ps": 6 * MS}
    return tiny_replay(columns=columns, **nothing)


def one_request(output_tokens: int) -> Replay:
    """Only request a, with one token or with its four."""
    trace = tiny_trace().select(max_requests=1)
    trace = replace(trace, output_tokens=np.array([output_tokens]))
    columns = {name: column[:1].copy() for name, column in tiny_columns().items()}
    nothing: dict[str, Any] = {}
    if output_tokens == 1:
        for name in ("kv_arrival", "join", "second_token"):
            columns[f"{name}_ps"][:] = -1
        columns["end_ps"] = columns["first_token_ps"].copy()
        nothing = {"segments": table(SEGMENT_NAMES), "stays": table(STAY_NAMES), "horizon_ps": 8 * MS}
    else:  # alone: steps of 11.009, 11.010, 11.011 ms
        columns["end_ps"][:] = 42_030 * US
        nothing = {
            "segments": table(SEGMENT_NAMES, (1, 9_000 * US, 0, 3, 11_009 * US, US, 1, 9)),
            "stays": table(STAY_NAMES, (0, 1, 9_000 * US, 0, 3)),
            "horizon_ps": 42_030 * US,
        }
    return tiny_replay(trace=trace, columns=columns, **nothing)


def interrupted() -> Replay:
    """Stopped at 21 ms: the second stretch and the stays had not been closed, and d was never reached."""
    columns = tiny_columns()
    columns["status"][:] = [UNFINISHED, UNFINISHED, COMPLETED, UNFINISHED]
    for name in ("reject_stage", "hit_blocks", "hit_tokens", "computed_tokens"):
        columns[name][3] = 0
    columns["reject_reason"][3] = columns["prefill_instance"][3] = columns["decode_instance"][3] = -1
    columns["end_ps"][[0, 1, 3]] = -1
    columns["second_token_ps"][:] = -1
    return tiny_replay(
        columns=columns,
        segments=table(SEGMENT_NAMES, (1, 9_000 * US, 0, 1, 11_009 * US, US, 1, 9)),
        stays=table(STAY_NAMES),
        horizon_ps=21 * MS,
        interrupted=True,
    )


def test_the_hand_counted_replay_keeps_every_invariant() -> None:
    check(Records.of(tiny_replay()))


def test_the_odd_replays_keep_every_invariant() -> None:
    for replay in (all_rejected(), one_request(1), one_request(4), interrupted()):
        check(Records.of(replay))
