"""Instances that die, come back and change their role: hand-counted cases, and a thousand random worlds.

A computed token takes 1 ms, a token's KVCache 1 us on the network unless a case says otherwise, of which a quarter is
sent after the prefill (4 layers). A decode step takes 10 ms + 1 ms a request + 1 us a context token. A block has 4
tokens.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fault_tools import TWENTY, Tool, latest, written
from fault_worlds import World
from reference.fast import replay_with
from reference.workloads import bundled

from mooncake_bench.api import Route, Router, SetRole
from mooncake_bench.errors import PolicyError, SetupError
from mooncake_bench.hardware.fake import FakeCost
from mooncake_bench.results.invariants import check
from mooncake_bench.results.records import Records
from mooncake_bench.results.run import Run
from mooncake_bench.sim.replay import Replay
from mooncake_bench.sim.setup import Setup
from mooncake_bench.trace import Trace

WORLDS = int(os.environ.get("MOONCAKE_BENCH_WORLDS", "1000"))
MS, US = 10**9, 10**6  # ps
COMPLETED, REJECTED, FAILED = 1, 2, 3
SLOW = {"nic_bytes_per_s": 1e6}  # 1 ms a token


@dataclass
class Script(Router):
    """Routes as told, attempt by attempt, and keeps what it saw; ``roles``: at a tick, by its time in ms."""

    name = "script"
    routes: dict[int, list[Route]]
    seen: dict[int, dict[str, list[float]]] = field(default_factory=dict)

    def route(self, request, cluster):
        shown = {
            "queue": cluster.queue_ms, "prefill": cluster.prefill_ms(request, np.zeros(len(cluster.is_prefill))),
            "cached": cluster.cached_tokens(request), "fetchable": cluster.fetchable_tokens(request),
            "step": cluster.step_ms(np.ones(len(cluster.is_decode)), np.ones(len(cluster.is_decode))),
            "is_prefill": cluster.is_prefill, "is_decode": cluster.is_decode, "vram": cluster.vram_tokens,
        }  # fmt: skip
        self.seen[request.row] = {name: values.tolist() for name, values in shown.items()}
        return self.routes[request.row].pop(0)


def replayed(rows: list[Any], cluster: str, events: str, routes: dict[int, list[Route]], **more: Any) -> Replay:
    """A checked replay of (arrival ms, input tokens, output tokens, blocks) rows."""
    cost = FakeCost(sum(int(group[:-1]) for group in cluster.split("+")), **more.pop("cost", {}))
    router = more.pop("router", None) or Script(routes)
    setup = Setup(cluster=more.pop("cluster_as_set_up", cluster), events=events or None, **more)
    trace = Trace.of(rows, block_tokens=4)
    replay = replay_with(trace, setup, router, bundled("accept-all"), lambda: bundled("lru"), cost)
    check(Records.of(replay))
    return replay


def column(replay: Replay, name: str, unit: int = 1) -> list[float]:
    return [value if value < 0 else value / unit for value in replay.columns[name].tolist()]


# death of a prefill instance

TWO = [(0.0, 8, 2, [1, 2]), (1.0, 4, 1, [3])]


def moved() -> dict[int, list[Route]]:
    """Both go to instance 0 first, then to 1."""
    return {row: [Route(0), Route(1)] for row in range(2)}


def test_a_prefill_that_its_instance_did_not_survive_starts_anew_elsewhere_and_the_queue_behind_it_too() -> None:
    # Instance 0 dies at 5 ms, 5 of row 0's 8 ms done. On instance 1 row 0 runs from 5 to 13, row 1 from 13 to 17.
    # KV at 13 + 8/4 us (and the thousandth part that row 1's KV takes), one step of 10 + 1 + .009.
    replay = replayed(TWO, "2P+1D", "5ms:fail:prefill:0", moved())
    assert column(replay, "status") == [COMPLETED, COMPLETED]
    assert column(replay, "prefill_instance") == [1, 1]
    assert column(replay, "attempts") == [2, 2]
    assert column(replay, "first_token_ps", MS) == [13, 17]
    assert [int(us) for us in column(replay, "end_ps", US)] == [13_002 + 11_009, 17_000]
    assert column(replay, "lost_ps", MS) == [5, 0]
    table = Records.of(replay).requests().to_pydict()
    assert table["ttft_ms"] == [13.0, 16.0]  # from the first arrival
    assert table["retry_wait_ms"] == [5.0, 4.0]  # until its last attempt began
    assert table["queue_ms"] == [0.0, 8.0]
    assert table["wasted_prefill_tokens"] == [5, 0]
    assert table["prefill_gpu_ms"] == [13.0, 4.0]


def test_requests_of_a_dead_instance_fail_when_they_are_not_to_be_retried() -> None:
    replay = replayed(TWO, "2P+1D", "5ms:fail:prefill:0", moved(), faults_requests="fail")
    assert column(replay, "status") == [FAILED, FAILED]
    assert column(replay, "end_ps", MS) == [5, 5]
    table = Records.of(replay).requests().to_pydict()
    assert table["reject_reason"] == ["prefill instance 0 failed"] * 2
    assert table["prefill_gpu_ms"] == [5.0, None]
    assert table["wasted_prefill_tokens"] == [5, 0]


def test_a_fetch_from_an_instance_that_dies_is_given_up_for_what_is_there() -> None:
    # Row 0 leaves blocks 1 and 2 on instance 0, row 1 block 1 on instance 1. Row 2 fetches block 2 from 10 ms on,
    # 4 tokens at 1 ms each; at 12 its source dies. It then computes 16 - 4 tokens: 12 to 24.
    rows = [(0.0, 8, 1, [1, 2]), (0.0, 4, 1, [1]), (10.0, 16, 1, [1, 2, 3, 4])]
    routes = {0: [Route(0)], 1: [Route(1)], 2: [Route(1, fetch_from=0)]}
    replay = replayed(rows, "2P+1D", "12ms:fail:prefill:0", routes, cost=SLOW)
    assert column(replay, "attempts") == [1, 1, 1]
    assert column(replay, "hit_tokens") == [0, 0, 4]
    assert column(replay, "fetched_tokens") == [0, 0, 0]
    assert column(replay, "start_ps", MS) == [0, 0, 12]
    assert column(replay, "first_token_ps", MS) == [8, 4, 24]


def test_a_prefilled_request_whose_kv_had_not_left_starts_over() -> None:
    # Prefilled at 8 ms; of its 8 ms of KV a quarter is still to come when instance 0 dies at 9. Instance 1: 9 to 17.
    replay = replayed(TWO[:1], "2P+1D", "9ms:fail:prefill:0", {0: [Route(0), Route(1)]}, cost=SLOW)
    assert column(replay, "first_token_ps", MS) == [17]
    assert column(replay, "kv_arrival_ps", MS) == [19]
    assert column(replay, "lost_ps", MS) == [8]


# death of a decode instance


def test_a_request_whose_decode_instance_dies_is_prefilled_from_its_cached_blocks_and_decodes_anew() -> None:
    # Prefill 0 to 8, joins instance 1 at 8.002; its first step ends at 19.011, the second would at 30.021. At 25 the
    # instance dies. All 8 tokens are cached, so one is computed: 25 to 26, KV at 26.002, steps of 11.009 to 11.012.
    rows = [(0.0, 8, 5, [1, 2])]
    replay = replayed(rows, "1P+2D", "25ms:fail:decode:0", {0: [Route(0, 1), Route(0, 2)]})
    assert column(replay, "attempts") == [2]
    assert column(replay, "first_token_ps", MS) == [26]
    assert column(replay, "join_ps", US) == [26_002]
    assert column(replay, "second_token_ps", US) == [26_002 + 11_009]
    assert column(replay, "end_ps", US) == [26_002 + 11_009 + 11_010 + 11_011 + 11_012]
    assert replay.segments["instance"].tolist() == [1, 2]
    assert replay.segments["steps"].tolist() == [1, 4]
    records = Records.of(replay)
    assert records.stays.instance.tolist() == [2]
    table = records.requests().to_pydict()
    assert table["prefill_gpu_ms"] == [9.0]
    assert table["wasted_prefill_tokens"] == [8]
    assert table["hit_tokens"] == [8]


def test_a_request_that_has_not_arrived_at_a_dead_decode_instance_goes_to_another() -> None:
    # 1 ms a token. At 9 ms row 0 is prefilled; its KV would be there at 10, and is sent anew: 8 ms, until 17. Row 2
    # waits for row 1, of one token, until 20: prefilled at 24, there at 25. By rule 10, in turn: row 0 goes to instance
    # 3 (loads 0 and 0), row 1 to 4 (9 and 0), row 2 to 3 (9 and 21).
    rows = [(0.0, 8, 2, [1, 2]), (0.0, 20, 1, [4, 5, 6, 7, 8]), (1.0, 4, 2, [3])]
    routes = {0: [Route(0, 2)], 1: [Route(1, 2)], 2: [Route(1, 2)]}
    replay = replayed(rows, "2P+3D", "9ms:fail:decode:0", routes, cost=SLOW)
    assert column(replay, "attempts") == [1, 1, 1]
    assert column(replay, "first_token_ps", MS) == [8, 20, 24]
    assert column(replay, "decode_instance") == [3, 4, 3]
    assert column(replay, "kv_arrival_ps", MS) == [17, -1, 25]


def test_a_prefill_whose_kv_was_on_its_way_to_a_dead_instance_sends_it_anew() -> None:
    # At 4 ms half of the prefill is done. What is sent from then on to 8: 4 of 8 tokens; the other 4 until 12.
    replay = replayed(TWO[:1], "1P+2D", "4ms:fail:decode:0", {0: [Route(0, 1)]}, cost=SLOW)
    assert column(replay, "first_token_ps", MS) == [8]
    assert column(replay, "kv_arrival_ps", MS) == [12]


def test_nothing_hangs_when_nobody_is_left() -> None:
    # Row 0 is being prefilled when the only decode instance dies; row 1 comes while there is none, row 2 after it is
    # back.
    rows = [(0.0, 8, 2, [1, 2]), (6.0, 4, 1, [3]), (9.0, 4, 1, [4])]
    replay = replayed(rows, "1P+1D", "5ms:fail:decode:0,8ms:recover:decode:0", {0: [Route(0)], 2: [Route(0)]})
    assert column(replay, "status") == [FAILED, FAILED, COMPLETED]
    assert column(replay, "first_token_ps", MS) == [-1, -1, 13]
    assert [replay.reasons[i] for i in replay.columns["reject_reason"][:2]] == ["no decode instance takes requests"] * 2
    assert column(replay, "lost_ps", MS) == [5, 0, 0]


# recovery, and what policies see


def test_an_instance_comes_back_empty_and_reads_as_dead_until_then() -> None:
    # Row 0 leaves block 1 on instance 0, which is dead from 5 to 20 ms: row 1 sees that. Row 2 finds nothing there.
    rows = [(0.0, 4, 1, [1]), (10.0, 4, 1, [1]), (25.0, 4, 1, [1])]
    router = Script({0: [Route(0)], 1: [Route(1)], 2: [Route(0)]})
    replay = replayed(rows, "2P+1D", "5ms:fail:prefill:0,20ms:recover:prefill:0", {}, router=router)
    seen = router.seen[1]
    assert seen["queue"] == [np.inf, 0.0, np.inf]
    assert seen["prefill"][0] == np.inf
    assert seen["cached"] == seen["fetchable"] == [0, 0, 0]
    assert seen["is_prefill"] == [False, True, False]
    assert router.seen[2]["cached"] == [0, 4, 0]
    assert router.seen[2]["is_prefill"] == [True, True, False]
    assert column(replay, "first_token_ps", MS) == [4, 14, 29]
    assert [(time / MS, words) for time, words in replay.happened] == [
        (5, "prefill instance 0 fails"), (20, "prefill instance 0 recovers")
    ]  # fmt: skip


@pytest.mark.parametrize("view", ["exact", "delayed:1000", "router-only"])
def test_a_dead_instance_has_no_hits_in_any_view(view: str) -> None:
    rows = [(0.0, 4, 1, [1]), (10.0, 4, 1, [1])]
    router = Script({0: [Route(0)], 1: [Route(1)]})
    replayed(rows, "2P+2D", "5ms:fail:prefill:0,5ms:fail:decode:0", {}, router=router, view=view)
    assert router.seen[1]["cached"] == router.seen[1]["fetchable"] == [0, 0, 0, 0]
    assert router.seen[1]["queue"][0] == np.inf
    assert router.seen[1]["step"][2] == np.inf
    assert router.seen[1]["vram"][2] == 0


def test_a_router_that_chooses_a_dead_instance_is_named() -> None:
    with pytest.raises(PolicyError, match=r"'script', request 1: it routed the prefill to instance 0, which is dead"):
        replayed(TWO, "2P+1D", "0.5ms:fail:prefill:0", {0: [Route(0), Route(1)], 1: [Route(0)]})


# roles


def test_an_instance_finishes_its_prefills_before_it_decodes() -> None:
    # Instance 1 prefills row 0 until 8 and row 1 until 12; the last of its KV has left at 12.001. It was told at 3: row
    # 2 does not see it any more, row 3 sees it decode, without the cache that it had, and is sent there (lowest id).
    rows = [(0.0, 8, 2, [1, 2]), (1.0, 4, 2, [3]), (5.0, 4, 2, [4]), (20.0, 8, 2, [1, 2])]
    router = Script({0: [Route(1)], 1: [Route(1)], 2: [Route(0)], 3: [Route(0)]})
    replay = replayed(rows, "2P+1D", "3ms:switch:prefill:1", {}, router=router)
    assert column(replay, "prefill_instance") == [1, 1, 0, 0]
    assert column(replay, "first_token_ps", MS) == [8, 12, 9, 28]
    assert router.seen[2]["is_prefill"] == [True, False, False]
    assert router.seen[2]["is_decode"] == [False, False, True]
    assert router.seen[3]["is_decode"] == [False, True, True]
    assert router.seen[3]["cached"] == [0, 0, 0]
    assert column(replay, "decode_instance") == [2, 2, 2, 1]
    assert [(time / US, words) for time, words in replay.happened] == [
        (3_000, "prefill instance 1 is to decode"), (12_001, "instance 1 decodes")
    ]  # fmt: skip
    assert replay.pool_sizes.tolist() == [[0, 2, 1], [12_001 * US, 1, 2]]


def test_an_instance_finishes_its_batch_and_what_was_promised_to_it_before_it_prefills() -> None:
    # Row 0 joins instance 1 at 4.001 for two steps; row 1 is promised to it when it is told to prefill at 6. The first
    # step, 10 + 1 + .005, ends at 15.006: row 1, whose KV came after 9, joins. The second takes 10 + 2 + .011: 27.017.
    rows = [(0.0, 4, 3, [1]), (5.0, 4, 2, [2]), (7.0, 4, 2, [3]), (30.0, 4, 2, [1])]
    router = Script({0: [Route(0, 1)], 1: [Route(0, 1)], 2: [Route(0)], 3: [Route(1)]})
    replay = replayed(rows, "1P+2D", "6ms:switch:decode:0", {}, router=router, pool_blocks=7)
    assert column(replay, "decode_instance") == [1, 1, 2, 2]
    assert column(replay, "end_ps", US)[:2] == [27_017, 27_017]
    assert column(replay, "first_token_ps", MS)[3] == 34
    assert router.seen[3]["is_prefill"] == [True, True, False]
    assert replay.happened[1] == (27_017 * US, "instance 1 prefills")
    assert replay.pool_blocks == {0: 7, 1: 7}
    assert replay.is_prefill.tolist() == [True, True, False]
    assert replay.is_decode.tolist() == [False, True, True]


def test_pools_are_judged_by_the_instances_they_had() -> None:
    # Arrivals at 0, 4 and 20 ms; two prefill instances until one dies at 10: 10 * 2 + 10 * 1 ms of instance time in the
    # arrival span. Prefills: 0 to 4 and 4 to 8 on instance 0: 8 of 30.
    rows = [(0.0, 4, 1, [1]), (4.0, 4, 1, [2]), (20.0, 4, 1, [3])]
    replay = replayed(rows, "2P+1D", "10ms:fail:prefill:1", {row: [Route(0)] for row in range(3)})
    run = Run.from_replay(replay)
    assert run.metrics()["prefill_utilisation_ratio"].value == pytest.approx(8 / 30)
    busy = dict(
        zip(run.timeline["time_ms"].to_pylist(), run.timeline["prefill_utilisation_ratio"].to_pylist(), strict=True)
    )
    assert busy[2.0] == 0.5
    assert busy[22.0] == 1.0
    assert run.manifest["cluster"]["events"] == [[10.0, "prefill instance 1 fails"]]


# ticks


@dataclass
class Clockwork(Script):
    """Does what it is told at its ticks, by their number."""

    name = "clockwork"
    tick_ms: float = 4.0
    does: dict[int, Any] = field(default_factory=dict)
    ticks: list[float] = field(default_factory=list)

    def on_tick(self, cluster):
        self.ticks.append(cluster.now_ms)
        return self.does.get(len(self.ticks), ())


def test_ticks_come_at_their_period_after_the_first_arrival_as_long_as_anything_happens() -> None:
    # Arrivals at 0 and 12 ms, the last prefill ends at 16, and with it everything: ticks at 4, 8 and 12.
    router = Clockwork({0: [Route(0)], 1: [Route(0)]})
    replayed([(0.0, 4, 1, [1]), (12.0, 4, 1, [2])], "1P+1D", "", {}, router=router)
    assert router.ticks == [4.0, 8.0, 12.0]


def test_a_policy_changes_a_role_at_a_tick() -> None:
    router = Clockwork({0: [Route(0)], 1: [Route(0)]}, does={1: [SetRole(1, "decode")], 2: [SetRole(1, "decode")]})
    replay = replayed([(0.0, 4, 1, [1]), (12.0, 4, 1, [2])], "2P+1D", "", {}, router=router)
    # idle, so at once; asking again for what it has changes nothing
    assert replay.happened == ((4 * MS, "prefill instance 1 is to decode"), (4 * MS, "instance 1 decodes"))


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ([SetRole(7, "decode")], r"there is no instance 7"),
        ([SetRole(True, "decode")], r"there is no instance True"),
        ([SetRole(0, "both")], r"'prefill' or 'decode', not 'both'"),
        ([SetRole(1, "decode")], r"instance 1 is dead"),
        ([("decode", 0)], r"is no action of this cluster; known: .*SetRole"),
        (None, r"it returned None; return a list of actions"),
        (3, r"it returned 3"),
    ],
)
def test_an_action_that_cannot_be_carried_out_names_the_policy_and_the_reason(wanted: Any, words: str) -> None:
    router = Clockwork({0: [Route(0)], 1: [Route(0)]}, does={1: wanted})
    with pytest.raises(PolicyError, match=r"policy 'clockwork', on_tick\(\): .*" + words):
        replayed([(0.0, 4, 1, [1]), (12.0, 4, 1, [2])], "2P+1D", "1ms:fail:prefill:1", {}, router=router)


@pytest.mark.parametrize("tick_ms", [0.0, -1.0, 0.0009, float("nan"), "often"])
def test_a_period_that_is_no_time_names_the_policy(tick_ms: Any) -> None:
    with pytest.raises(PolicyError, match=r"policy 'clockwork': its tick_ms is"):
        replayed([(0.0, 4, 1, [1])], "1P+1D", "", {}, router=Clockwork({0: [Route(0)]}, tick_ms=tick_ms))


# events in a setup


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ("5s:die:prefill:0", r"'5s:die:prefill:0' has an unknown action 'die'; known: fail, recover, switch"),
        ("5s:fail:worker:0", r"unknown role 'worker'; known: prefill, decode, coupled"),
        ("5s:fail:prefill", r"expected TIME:ACTION:ROLE:N such as 600s:fail:prefill:3, got '5s:fail:prefill'"),
        ("5s:fail:prefill:x", r"expected TIME:ACTION:ROLE:N"),
        ("5s:fail:prefill:2", r"fail prefill 2: the cluster has prefill instances 0 to 1"),
        ("5s:fail:coupled:0", r"fail coupled 0: the cluster has no coupled instance"),
        ("soon:fail:prefill:0", r"expected a duration such as 30s"),
        ("-1s:fail:prefill:0", r"'-1s:fail:prefill:0' would happen before the replay starts"),
        ("5s:recover:prefill:0", r"recover prefill 0 at 5000 ms: it has not failed before"),
        ("9s:fail:decode:0,5s:recover:decode:0", r"recover decode 0 at 5000 ms: it has not failed before"),
        ("1s:fail:decode:0,5s:switch:decode:0", r"switch decode 0 at 5000 ms: it has failed before"),
        (["1s:fail:decode:0", 5], r"expected TIME:ACTION:ROLE:N"),
    ],
)
def test_an_event_that_cannot_happen_is_refused_before_the_replay(events: Any, words: str) -> None:
    with pytest.raises(SetupError, match=words):
        Setup(cluster="2P+1D", events=events)


def test_events_are_kept_in_order_of_time_and_read_back() -> None:
    setup = Setup(cluster="2P+1D", events=["9s:recover:prefill:1", "5s:fail:prefill:1"])
    assert setup.to_dict()["events"] == "5s:fail:prefill:1,9s:recover:prefill:1"
    assert Setup.from_dict(setup.to_dict()) == setup
    assert "events" not in Setup().to_dict()


@pytest.mark.parametrize("cluster", ["2P+0D", "2M"])
def test_a_cluster_without_two_roles_has_nothing_to_switch(cluster: str) -> None:
    role = "coupled" if cluster == "2M" else "prefill"
    with pytest.raises(SetupError, match="two roles to switch between"):
        Setup(cluster=cluster, events=f"5s:switch:{role}:0")


def test_what_becomes_of_requests_needs_a_failure() -> None:
    with pytest.raises(SetupError, match=r"faults.requests: no effect without a fail event"):
        Setup(cluster="2P+1D", events="5s:switch:prefill:0", faults_requests="fail")


# anything


@pytest.mark.parametrize("part", range(10))
def test_no_world_of_failures_breaks_the_accounts(part: int) -> None:
    """Every event keeps capacities and leaves dead instances empty; every end leaves nothing pinned or promised."""
    for number in range(part * WORLDS // 10, (part + 1) * WORLDS // 10):
        try:
            World(number).replay()
        except Exception as error:
            raise AssertionError(f"world {number}") from error


# on the command line


def test_a_command_line_and_a_file_ask_for_events_and_the_run_tells_of_them(tool: Tool, tmp_path: Path) -> None:
    # Rows come every 100 ms. Row 5 is being prefilled on instance 1 when that dies.
    trace = written("trace.jsonl", TWENTY)
    events = ["550ms:fail:decode:0", "510ms:fail:prefill:1", "900ms:recover:prefill:1", "9000s:recover:decode:0"]
    words = [word for event in events for word in ("--event", event)]
    answer = tool("replay", trace, "--cluster", "2P+2D", "-p", "round-robin", *words)
    assert answer.code == 0, answer.err
    run = latest()
    assert run.manifest["setup"]["events"] == ",".join((events[1], events[0], *events[2:]))
    assert run.manifest["cluster"]["events"] == [
        [510.0, "prefill instance 1 fails"], [550.0, "decode instance 2 fails"], [900.0, "prefill instance 1 recovers"]
    ]  # fmt: skip
    assert run.manifest["cluster"]["pool_sizes"] == [[0.0, 2, 2], [510.0, 1, 2], [550.0, 1, 1], [900.0, 2, 1]]
    told = " ".join(answer.out.split())
    assert "events 510ms:fail:prefill:1 550ms:fail:decode:0 900ms:recover:prefill:1 9000s:recover:decode:0" in told
    assert "at 510 ms prefill instance 1 fails; at 550 ms decode instance 2 fails" in told
    assert "1 event did not happen: nothing else was left to happen by then" in told
    config = tmp_path / "again.toml"
    config.write_text(f'events = {json.dumps(events)}\ncluster = "2P+2D"\npolicy = "round-robin"\n')
    assert tool("replay", trace, "--config", str(config)).code == 0
    assert latest().manifest["content_sha256"] == run.manifest["content_sha256"]


def test_a_fate_of_requests_without_a_failure_is_refused(tool: Tool) -> None:
    answer = tool("replay", written("trace.jsonl", TWENTY), "--fault-requests", "retry")
    assert answer.code == 2
    assert "--fault-requests: no effect without a fail event" in answer.err


def test_a_group_of_nodes_has_one_role() -> None:
    router = Clockwork({0: [Route(0)], 1: [Route(0)]}, does={1: [SetRole(1, "decode")]})
    with pytest.raises(PolicyError, match=r"a prefill instance is several nodes here \(prefill.group\)"):
        replayed(
            [(0.0, 4, 1, [1]), (12.0, 4, 1, [2])], "2P+1D", "", {}, router=router, prefill_group=2,
            cluster_as_set_up="4P+1D",
        )  # fmt: skip
