"""Random small worlds whose clients ask again, give up, think and cancel, on instances that may fail meanwhile."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from client_worlds import FAILED, MS, World, job_of
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.fast import as_trace
from reference.workloads import BLOCK, EVICTIONS, LateWhims, Moody, OrderedWhims, Whims, bundled, make_requests

from mooncake_bench.sim.replay import Replay
from mooncake_bench.trace.model import NO_SESSION

ADMISSIONS = ("moody", "moody", "early:recheck=true", "predictive:td=20ms", "queue-cap:limit=2", "deadline")
CLUSTERS = ("1P+1D", "2P+1D", "2P+2D", "3P+2D", "2P+0D", "1M", "2M")


def world(number: int) -> World:
    """A world by its number."""
    lot = random.Random(number)
    requests = make_requests(lot.randrange(2**32), lot.choice((5, 9, 14, 25)), lot.random() < 0.8)
    span = requests[-1].arrival_ps / MS + 60
    cluster = lot.choice(CLUSTERS)
    coupled, lots = "M" in cluster, lot.choices(range(1000), k=len(requests))
    routers = {
        "whims": Whims(lots, fetches=not coupled), "ordered": OrderedWhims(lots, fetches=not coupled),
        "late": LateWhims(lots, fetches=not coupled), "priority": bundled("priority:ageing_ms=20"),
    }  # fmt: skip
    kind = "priority" if cluster.endswith("0D") else lot.choice(tuple(routers))
    admission = lot.choice(ADMISSIONS)
    more: dict[str, Any] = {
        "router": routers[kind],
        "admission": Moody(lots) if admission == "moody" else bundled(admission),
        "eviction": lot.choice(EVICTIONS),
        "view": lot.choice(("exact", "exact", "delayed:15", "router-only")),
        "slo_ttft_ms": lot.choice((1000.0, 60.0)),
        "slo_tbt_ms": lot.choice((60.0, 15.0)),
        "priority": np.array(lot.choices((0, 1, 2), k=len(requests))),
        "cost": {
            "computed_token_ms": lot.choice((1.0, 2.0)),
            "layers": lot.choice((1, 3)),
            "kv_bytes_per_token": lot.choice((10, 100)),
            "nic_bytes_per_s": lot.choice((1e6, 30_000.0, 3_000.0)),
            "vram_tokens": lot.choice((10_000, 200, 60, 40)),
        },
    }
    if lot.random() < 0.6:
        more |= {"client_retries": lot.randint(1, 3), "client_backoff_ms": lot.uniform(1, 30), "client_jitter": 0.3}
    if lot.random() < 0.5:
        more["client_patience_ms"] = lot.choice((10.0, 30.0, 100.0))
    if lot.random() < 0.5:
        sessions = np.array(lot.choices((NO_SESSION, 1, 2, 3), k=len(requests)))
        if len(set(sessions[sessions != NO_SESSION])) < (sessions != NO_SESSION).sum():
            delays = np.array([float(lot.choice((0, 1, 5, 40))) for _ in requests])
            more |= {"client_loop": "closed", "session_id": sessions, "delay_ms": delays}
    if coupled:
        more["schedule"] = lot.choice(("prefill-first", "chunked", "one-at-a-time"))
        if more["schedule"] == "chunked":
            more |= {"step_tokens": 12, "sequences": 8}
    else:
        more["pool_blocks"] = lot.choice((2, 6, 15, 60))
    if lot.random() < 0.3 and not coupled:
        role = lot.choice(("prefill", "decode") if not cluster.endswith("0D") else ("prefill",))
        at = lot.uniform(0, span)
        more["events"] = f"{at}ms:fail:{role}:0,{at + lot.choice((5, 50))}ms:recover:{role}:0"
    made = World(as_trace(requests, BLOCK), cluster, **more)
    for _ in range(lot.randint(0, 6)):
        made.at(lot.choice((lot.uniform(0, span), lot.uniform(0, span / 3))), calling_off(lot.randrange(len(requests))))
    return made


def calling_off(row: int) -> Any:
    def call_off(cluster: Any) -> int | None:
        """The row, if it was under way."""
        came = any(job.row == row for job in cluster.jobs)
        return row if came and cluster.cancel(job_of(cluster, row), cluster.now, "by lot") else None

    return call_off


@settings(max_examples=150)
@given(st.integers(0, 2**32))
def test_every_request_ends_and_nothing_leaks(number: int) -> None:
    made = world(number)
    replay = made.replay()  # the invariants hold, nothing is left
    columns, setup = replay.columns, made.setup
    assert (columns["status"] > 0).all()
    assert (columns["end_ps"] >= columns["arrival_ps"]).all()
    cancelled = {row for row in made.seen if row is not None}
    assert (columns["status"][list(cancelled)] == FAILED).all()
    assert (columns["rejections"] <= setup.client_retries + 1).all()
    if setup.events is None:
        assert (columns["attempts"] <= setup.client_retries + 1).all()
    if setup.client_patience_ms is not None:
        first = columns["first_token_ps"]
        assert (first - columns["arrival_ps"] <= setup.client_patience_ms * MS)[first >= 0].all()
    if setup.client_loop == "closed":
        assert_turns_follow_answers(made, replay)


def assert_turns_follow_answers(made: World, replay: Replay) -> None:
    session, delay = made.trace.session_id, made.trace.delay_ms
    assert session is not None
    assert delay is not None
    last: dict[int, int] = {}
    for row, who in enumerate(session.tolist()):
        came = int(replay.columns["arrival_ps"][row])
        if who in last:
            assert came == int(replay.columns["end_ps"][last[who]]) + round(delay[row] * MS)
        else:
            assert came == round(made.trace.arrival_ms[row] * MS)
        if who != NO_SESSION:
            last[who] = row
