"""Clients that ask again, give up, or go on when they are answered; and requests with SLOs of their own.

Blocks hold 4 tokens. A prefill takes 1 ms a token; a token's KVCache is 1 byte and the NIC sends 1e9 bytes/s.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from client_worlds import BLOCK, COMPLETED, FAILED, MS, REJECTED, Full, Later, World
from reference.workloads import bundled

from mooncake_bench.api import Admission, Route
from mooncake_bench.errors import PolicyError, SetupError, TraceError
from mooncake_bench.results.records import Records
from mooncake_bench.results.run import Run
from mooncake_bench.results.split import split
from mooncake_bench.sim.replay import Replay
from mooncake_bench.sim.setup import Setup
from mooncake_bench.trace import Trace

ONE = [(0.0, 8, 1, [1, 2])]
TWO = [(0.0, 8, 1, [1, 2]), (0.0, 8, 1, [3, 4])]


def table(replay: Replay) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = Records.of(replay).requests().to_pydict()
    return found


# ---- retries


def test_a_client_asks_again_after_a_wait_that_doubles() -> None:
    # Turned away at 0 and 10 ms, it comes a third time at 10 + 20 = 30, and prefills until 38.
    admission = Full({0: 2})
    found = table(World(ONE, admission=admission, client_retries=3, client_backoff_ms=10.0).replay())
    assert admission.asked == [(0, 0, 0.0), (0, 1, 10.0), (0, 2, 30.0)]
    assert (found["status"], found["attempts"], found["rejections"]) == (["completed"], [3], [2])
    parts = [found[name][0] for name in ("retry_wait_ms", "queue_ms", "fetch_ms", "prefill_ms")]
    assert (parts, found["ttft_ms"]) == ([30.0, 0.0, 0.0, 8.0], [38.0])
    assert (found["arrival_ms"], found["predicted_ttft_ms"]) == ([0.0], [38.0])


def test_a_client_that_is_turned_away_too_often_is_rejected_at_its_last_attempt() -> None:
    # The first of two retries comes at 10 ms, the second 30 ms later.
    settings = {"client_retries": 2, "client_backoff_ms": 10.0, "client_backoff_factor": 3.0}
    found = table(World(ONE, admission=Full({0: 9}), **settings).replay())
    assert (found["status"], found["reject_stage"], found["reject_reason"]) == (["rejected"], ["arrival"], ["full"])
    assert (found["attempts"], found["rejections"], found["end_ms"]) == ([3], [3], [40.0])
    assert (found["retry_wait_ms"], found["ttft_ms"]) == ([40.0], [None])


def test_an_admission_says_when_to_come_back() -> None:
    admission = Later({0: 2}, after_ms=7.0)
    settings = {"client_retries": 2, "client_backoff_ms": 10.0, "client_jitter": 1.0}
    World(ONE, admission=admission, **settings).replay()
    assert [time for _, _, time in admission.asked] == [0.0, 7.0, 14.0]


@pytest.mark.parametrize("after_ms", [-1.0, float("nan"), float("inf"), True, "7"])
def test_a_time_to_come_back_that_is_none_names_the_policy(after_ms: Any) -> None:
    world = World(ONE, admission=Later({0: 2}, after_ms=after_ms), client_retries=2)
    with pytest.raises(PolicyError, match=r"'full', request 0: retry_after_ms\(\) returned"):
        world.replay()


def test_jitter_is_a_requests_own_and_reproducible() -> None:
    def waits(seed: int, times: dict[int, int]) -> dict[int, float]:
        admission = Full(times)
        settings = {"client_retries": 1, "client_backoff_ms": 10.0, "client_jitter": 0.5, "seed": seed}
        World(TWO, admission=admission, **settings).replay()
        return {row: time for row, attempt, time in admission.asked if attempt == 1}

    both = waits(1, {0: 1, 1: 1})
    assert all(5.0 <= wait <= 15.0 for wait in both.values())
    assert both[0] != both[1]
    assert waits(1, {1: 1}) == {1: both[1]}  # what happens to another request changes nothing
    assert waits(2, {0: 1, 1: 1}) != both


def test_who_comes_back_is_routed_before_who_arrives_at_the_same_time() -> None:
    admission = Full({0: 1})
    rows = [(0.0, 8, 1, [1, 2]), (10.0, 8, 1, [3, 4])]
    found = table(World(rows, admission=admission, client_retries=1, client_backoff_ms=10.0).replay())
    assert admission.asked == [(0, 0, 0.0), (0, 1, 10.0), (1, 0, 10.0)]
    assert found["ttft_ms"] == [18.0, 16.0]


class AtDecode(Admission):
    """Turns the first attempt away when its KV has arrived, or when its turn to prefill has come."""

    name = "at-decode"

    def __init__(self, stage: str) -> None:
        self.stage = stage

    def reject(self, request, route, cluster):
        return None

    def reject_prefill(self, request, route, cluster):
        return "late" if self.stage == "prefill" and not request.attempt else None

    def reject_decode(self, request, route, cluster):
        return "late" if self.stage == "decode" and not request.attempt else None


@pytest.mark.parametrize("cluster", ["1P+1D", "1M"])
def test_the_prefill_of_an_attempt_that_is_turned_away_stays_wasted(cluster: str) -> None:
    # 8 tokens are computed for nothing until 8 ms, and stay in the cache: the second attempt computes one token.
    world = World([(0.0, 8, 3, [1, 2])], cluster, admission=AtDecode("decode"), client_retries=1)
    found = table(world.replay())
    assert (found["status"], found["attempts"], found["computed_tokens"]) == (["completed"], [2], [1])
    assert (found["wasted_prefill_tokens"], found["prefill_gpu_ms"]) == ([8], [9.0])
    assert found["lost_prefill_ms"] == [8.0]
    assert found["ttft_ms"][0] == pytest.approx(8.0 + 1000.0 + 1.0, abs=0.001)


@pytest.mark.parametrize("cluster", ["1P+1D", "1M"])
def test_an_attempt_that_is_turned_away_at_its_turn_comes_back(cluster: str) -> None:
    # Row 0 is turned away at once, at 0; row 1 prefills 0 to 8; row 0 comes back at 4 and prefills 8 to 16.
    class First(AtDecode):
        def reject_prefill(self, request, route, cluster):
            return "late" if request.row == 0 and not request.attempt else None

    world = World(TWO, cluster, admission=First("prefill"), client_retries=1, client_backoff_ms=4.0)
    found = table(world.replay())
    assert (found["attempts"], found["wasted_prefill_tokens"]) == ([2, 1], [0, 0])
    assert (found["ttft_ms"], found["queue_ms"], found["retry_wait_ms"]) == ([16.0, 8.0], [4.0, 0.0], [4.0, 0.0])


def test_who_comes_back_may_wait_for_who_waited_for_it() -> None:
    # Row 0 runs until 20 ms. Row 2 would hit the block that row 1 computes. Row 1 is turned away at its turn, at 20,
    # and row 3 runs until 40. Row 1 comes back at 21; the block is now row 2's to compute, which row 1 waits for.
    rows = [(0.0, 20, 1, [1, 2, 3, 4, 5]), (1.0, 4, 1, [6]), (2.0, 8, 1, [6, 7]), (3.0, 20, 1, [8, 9, 10, 11, 12])]

    class First(AtDecode):
        def reject_prefill(self, request, route, cluster):
            return "late" if request.row == 1 and not request.attempt else None

    world = World(
        rows, router=bundled("priority"), priority=np.array([0, 5, 0, 3]), admission=First("prefill"),
        client_retries=1, client_backoff_ms=1.0,
    )  # fmt: skip
    # Row 2 computes 8 tokens until 48; row 1 hits all of its 4, and computes the last.
    assert (world.replay().columns["first_token_ps"] / MS).tolist() == [20.0, 49.0, 48.0, 40.0]


def test_the_ttft_slo_judges_the_whole_wait() -> None:
    settings = {"client_retries": 1, "client_backoff_ms": 10.0, "slo_ttft_ms": 17.0}
    assert table(World(ONE, admission=Full({0: 1}), **settings).replay())["slo_ttft_ok"] == [False]  # 10 + 8


# ---- patience


def test_a_client_whose_first_token_does_not_come_gives_up() -> None:
    # Row 0 is in time at 8 ms; the urgent row 2 is before row 1, from 8 to 16, which has waited long enough at 13.
    rows = [*TWO, (6.0, 8, 1, [5, 6])]
    world = World(rows, router=bundled("priority"), priority=np.array([0, 0, 5]), client_patience_ms=13.0)
    found = table(world.replay())
    assert (found["status"], found["end_ms"]) == (["completed", "failed", "completed"], [8.0, 13.0, 16.0])
    assert found["reject_reason"][1] == "cancelled: no first token within 13 ms, queued"
    assert (found["prefill_gpu_ms"][1], found["wasted_prefill_tokens"][1]) == (None, 0)


def test_a_client_gives_up_while_its_prompt_is_prefilled() -> None:
    # Row 1 prefills from 8 ms on; at 12.5 ms 4 of its 8 tokens are computed, and a half.
    found = table(World(TWO, client_patience_ms=12.5).replay())
    assert found["reject_reason"][1] == "cancelled: no first token within 12.5 ms, prefilling"
    assert (found["prefill_gpu_ms"], found["wasted_prefill_tokens"]) == ([8.0, 4.5], [0, 4])


def test_a_first_token_at_the_end_of_patience_is_in_time() -> None:
    found = table(World(TWO, client_patience_ms=16.0).replay())
    assert (found["status"], found["ttft_ms"]) == (["completed"] * 2, [8.0, 16.0])


def test_who_gives_up_makes_room_for_who_came_later() -> None:
    # Row 0 takes 20 ms and gives up at 10; row 1 came at 5, prefills 10 to 14.
    found = table(World([(0.0, 20, 1, [1, 2, 3, 4, 5]), (5.0, 4, 1, [6])], client_patience_ms=10.0).replay())
    assert (found["status"], found["ttft_ms"]) == (["failed", "completed"], [None, 9.0])


def test_a_client_gives_up_between_two_attempts() -> None:
    settings = {"client_retries": 1, "client_backoff_ms": 100.0, "client_patience_ms": 50.0}
    replay = World(ONE, admission=Full({0: 1}), **settings).replay()
    found = table(replay)
    assert found["reject_reason"] == ["cancelled: no first token within 50 ms, between two attempts"]
    assert (found["end_ms"], found["attempts"], found["rejections"]) == ([50.0], [1], [1])
    assert replay.horizon_ps == 50 * MS


def test_a_client_gives_up_while_its_prefix_is_fetched() -> None:
    # 1000 bytes a token at 5e5 B/s: row 1 fetches 8 tokens from 10 to 26 ms.
    rows = [(0.0, 8, 1, [1, 2]), (10.0, 12, 1, [1, 2, 3])]
    cost = {"kv_bytes_per_token": 1000, "nic_bytes_per_s": 5e5}
    routes = {1: Route(1, fetch_from=0)}
    replay = World(rows, "2P+1D", routes=routes, cost=cost, client_patience_ms=8.0).replay()
    assert table(replay)["reject_reason"][1] == "cancelled: no first token within 8 ms, fetching"


def test_patience_ends_with_the_first_token_and_prolongs_no_replay() -> None:
    # Steps of 10 + 1 ms + 9 us and 10 us: the third token comes at about 30 ms, long before 1 s.
    replay = World([(0.0, 8, 3, [1, 2])], client_patience_ms=1000.0).replay()
    assert replay.columns["status"].tolist() == [COMPLETED]
    assert replay.horizon_ps == replay.columns["end_ps"][0] < 31 * MS


def test_a_client_of_a_coupled_instance_leaves_with_the_step_that_is_under_way() -> None:
    # Both are prefilled in one step of 16 ms; their clients have left at 10, and their tokens reach nobody.
    found = table(World(TWO, "1M", client_patience_ms=10.0).replay())
    assert (found["status"], found["end_ms"]) == (["failed"] * 2, [16.0, 16.0])


# ---- closed loops

TURNS = [(0.0, 8, 1, [1, 2]), (3.0, 4, 1, [9]), (5.0, 8, 1, [3, 4])]
SESSIONS = {"session_id": np.array([7, -1, 7]), "delay_ms": np.array([np.nan, np.nan, 20.0])}


def arrivals(world: World) -> list[float]:
    return table(world.replay())["arrival_ms"]


def test_in_an_open_loop_every_turn_arrives_by_its_timestamp() -> None:
    assert arrivals(World(TURNS, **SESSIONS)) == [0.0, 3.0, 5.0]


def test_in_a_closed_loop_a_turn_arrives_its_delay_after_the_answer_before_it() -> None:
    # Row 0 ends at 8 ms, so row 2 arrives at 8 + 20; row 1 belongs to no session.
    found = table(World(TURNS, **SESSIONS, client_loop="closed").replay())
    assert (found["arrival_ms"], found["ttft_ms"]) == ([0.0, 3.0, 28.0], [8.0, 9.0, 8.0])


def test_speedup_leaves_think_times_alone_unless_told() -> None:
    # The first turns of a doubled rate come at 0 and 1.5 ms; the answer still ends at 8, and think times are 20 or 5.
    assert arrivals(World(TURNS, **SESSIONS, client_loop="closed", speedup=2.0)) == [0.0, 1.5, 28.0]
    faster = World(TURNS, **SESSIONS, client_loop="closed", speedup=2.0, client_think_speedup=4.0)
    assert arrivals(faster) == [0.0, 1.5, 13.0]


def test_a_session_goes_on_whatever_became_of_the_turn_before() -> None:
    # Rejected at 0 for good at its second attempt, at 10: the next turn comes at 30. Given up at 6: at 26.
    settings = {"client_retries": 1, "client_backoff_ms": 10.0}
    assert arrivals(World(TURNS, **SESSIONS, client_loop="closed", admission=Full({0: 9}), **settings))[2] == 30.0
    assert arrivals(World(TURNS, **SESSIONS, client_loop="closed", client_patience_ms=6.0))[2] == 26.0


def test_it_does_not_matter_how_often_what_has_ended_is_written() -> None:
    rows = [(float(i), 8, 1, [2 * i, 2 * i + 1]) for i in range(20)]
    columns = {"session_id": np.arange(20) % 3, "delay_ms": np.full(20, 5.0)}
    often, once = (World(rows, **columns, client_loop="closed", flush=flush) for flush in (2, 1000))
    assert table(often.replay()) == table(once.replay())


def test_policies_see_when_a_turn_really_arrives() -> None:
    class Notes(Full):
        def reject(self, request, route, cluster):
            self.asked.append((request.row, request.arrival_ms, cluster.now_ms))

    admission = Notes({})
    World(TURNS, **SESSIONS, client_loop="closed", admission=admission).replay()
    assert admission.asked == [(0, 0.0, 0.0), (1, 3.0, 3.0), (2, 28.0, 28.0)]


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({}, "it has no session ids"),
        ({"session_id": np.array([-1, -1, -1])}, "it has no session ids"),
        ({"session_id": np.array([1, 2, 3])}, "no session has a second turn"),
        ({"session_id": np.array([7, 7, 7])}, "2 of 2 further turns have no delay"),
        (
            {"session_id": np.array([7, 7, 7]), "delay_ms": np.array([np.nan, 1.0, np.nan])},
            "1 of 2 further turns have no delay",
        ),
    ],
)
def test_a_trace_without_sessions_or_delays_has_no_closed_loop(columns: dict[str, Any], why: str) -> None:
    with pytest.raises(TraceError, match=f"no closed loop is possible, for {why}"):
        World(TURNS, client_loop="closed", **columns).replay()


def test_rankings_flip_between_open_and_closed_loop() -> None:
    # Four users ask ten times each, 1 ms apart in all; each prefill takes 8 ms and should be there within 34.
    # Open: 40 arrivals in 40 ms bring 320 ms of work. Whoever admits all is in time for the first four only (8, 16 - 1,
    # 24 - 2, 32 - 3; the fifth comes at 4 and is done at 40, after 36). A cap of 4 keeps every wait below 32 ms, and
    # admits one each 8 ms until 40: more than four are in time.
    # Closed: never more than four wait, 32 ms at most, so all 40 are in time; a cap of 3 turns some away for nothing.
    rows = [(float(i), 8, 1, [2 * i, 2 * i + 1]) for i in range(40)]
    who = np.arange(40) % 4
    columns = {"session_id": who, "delay_ms": np.where(np.arange(40) < 4, np.nan, 1.0)}

    def good(loop: str, spec: str) -> int:
        world = World(rows, **columns, client_loop=loop, admission=bundled(spec), slo_ttft_ms=34.0)
        return sum(table(world.replay())["slo_ok"])

    assert good("open", "accept-all") == 4 < good("open", "queue-cap:limit=3")
    assert good("closed", "accept-all") == 40 > good("closed", "queue-cap:limit=3")


# ---- SLO classes

CLASSES = "1=ttft:10ms;2=ttft:20ms,tbt:5ms"


def test_each_request_is_judged_by_the_slo_of_its_class() -> None:
    # TTFTs of 8, 16, 24 and 32 ms against 10, 10, 20 and (as for all) 40.
    rows = [(0.0, 8, 1, [2 * i, 2 * i + 1]) for i in range(4)]
    replay = World(rows, priority=np.array([1, 1, 2, 0]), slo_classes=CLASSES, slo_ttft_ms=40.0).replay()
    run = Run.from_replay(replay)
    assert run.requests.column("slo_ttft_ok").to_pylist() == [True, False, False, True]
    assert run.metrics()["good_requests"].value == 2
    shown = {name: run.metrics(where)["good_requests"].value for name, where in split(run, "priority")}
    assert shown == {"priority 0": 1, "priority 1": 1, "priority 2": 0}


def test_the_tbt_slo_of_a_class_counts_too() -> None:
    # Steps of 11 ms and a little: within 100 ms as for all, not within the 5 ms of class 2.
    rows = [(0.0, 8, 3, [1, 2]), (50.0, 8, 3, [3, 4])]
    found = table(World(rows, priority=np.array([0, 2]), slo_classes="2=tbt:5ms").replay())
    assert (found["slo_tbt_ok"], found["slo_ok"]) == ([True, False], [True, False])


def test_policies_see_a_requests_own_slos() -> None:
    seen = []

    class Notes(Full):
        def reject(self, request, route, cluster):
            seen.append((request.ttft_slo_ms, request.tbt_slo_ms))

    World(TWO, admission=Notes({})).replay()
    World(TWO, admission=Notes({}), priority=np.array([2, 0]), slo_classes="2=tbt:5ms").replay()
    assert seen == [(None, None), (None, None), (30_000.0, 5.0), (30_000.0, 100.0)]


def test_slo_based_admission_goes_by_the_requests_own() -> None:
    # Predicted TTFTs of 8 and 16 ms: both within the 100 ms of all, the second not within its class's 12.
    world = World(
        TWO, admission=bundled("baseline"), priority=np.array([0, 1]), slo_classes="1=ttft:12ms", slo_ttft_ms=100.0
    )
    assert table(world.replay())["status"] == ["completed", "rejected"]


def test_decode_load_goes_by_the_requests_own() -> None:
    # Alone, each would have steps of about 11 ms: within 100 ms, not within its class's 5.
    rows = [(0.0, 8, 3, [1, 2]), (200.0, 8, 3, [3, 4])]
    world = World(rows, admission=bundled("early"), priority=np.array([0, 1]), slo_classes="1=tbt:5ms")
    found = table(world.replay())
    assert (found["status"], found["reject_reason"]) == (["completed", "rejected"], [None, "tbt"])


@pytest.mark.parametrize(
    ("priority", "has"), [(None, "it has no priorities"), (np.array([3, 4]), "its priorities are 3, 4")]
)
def test_a_class_that_no_request_has_is_an_error(priority: Any, has: str) -> None:
    columns = {} if priority is None else {"priority": priority}
    with pytest.raises(SetupError, match=f"slo.classes: no request of this trace has priority 1; {has}"):
        World(TWO, slo_classes="1=ttft:1s", **columns).replay()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ttft:1s", "expected PRIORITY=ttft"),
        ("a=ttft:1s", "expected PRIORITY=ttft"),
        ("1=", "nothing given"),
        ("1=ttft:0s", "must be at least"),
        ("1=tpot:1s", "an SLO on tpot"),
        ("1=ttft:1s;1=tbt:1s", "priority 1 has two classes"),
    ],
)
def test_a_class_that_cannot_be_read_says_why(text: str, why: str) -> None:
    with pytest.raises(SetupError, match=why):
        Setup(slo_classes=text)


# ---- priorities


@pytest.mark.parametrize(
    ("ageing", "order"),
    [("60s", [8.0, 24.0, 16.0]), ("inf", [8.0, 24.0, 16.0]), ("0.1ms", [8.0, 16.0, 24.0])],
)
def test_urgent_requests_are_prefilled_first_and_waiting_makes_urgent(ageing: str, order: list[float]) -> None:
    # Row 0 runs until 8 ms. Row 1 has waited 1 ms longer than row 2: with a priority more each 0.1 ms that is 10 more,
    # beyond the 5 that row 2 is more urgent.
    rows = [(0.0, 8, 1, [1, 2]), (1.0, 8, 1, [3, 4]), (2.0, 8, 1, [5, 6])]
    world = World(rows, router=bundled(f"priority:ageing_ms={ageing}"), priority=np.array([0, 0, 5]))
    assert [ps / MS for ps in world.replay().columns["first_token_ps"]] == order


# ---- settings


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"client_backoff_ms": 5.0}, "client.backoff_ms: no effect without client.retries"),
        ({"client_jitter": 0.5}, "client.jitter: no effect without client.retries"),
        ({"client_think_speedup": 2.0}, "client.think_speedup: no effect without client.loop = closed"),
        ({"client_jitter": 1.5, "client_retries": 1}, "client.jitter: must be at most 1"),
        # 1 + 2 + 4 + ... s: 2^21 - 1 s are 24.3 days, 2^22 - 1 s are 48.5
        ({"client_retries": 22}, "client.retries: 22 would wait 30 days in all by retry 22; .* client.backoff_factor"),
        ({"client_retries": 21, "client_jitter": 0.3}, "client.retries: 21 would wait 30 days"),  # 24.3 * 1.3 = 31.6
        ({"client_retries": 1000, "client_backoff_factor": 1e9}, "by retry 2"),  # 1 s and 1e9 s: 11,574 days
        ({"client_patience_ms": 0.0}, "client.patience_ms: must be at least"),
        ({"client_loop": "half"}, "client.loop: expected one of open, closed"),
    ],
)
def test_a_setting_that_cannot_be_or_has_no_effect_is_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(SetupError, match=why):
        Setup(**settings)


def test_waits_that_end_in_time_are_accepted() -> None:
    Setup(client_retries=21)
    Setup(client_retries=1000, client_backoff_factor=1.0)
    Setup(client_retries=1000, client_patience_ms=60_000.0)  # who gives up asks no more


def test_what_is_off_is_not_told_of() -> None:
    assert not [name for name in Setup().to_dict() if name.startswith("client.") or name == "slo.classes"]
    told = Setup(client_retries=2, slo_classes=["2=ttft:1s", "1=tbt:5ms"]).to_dict()
    assert (told["client.retries"], told["slo.classes"]) == (2, "1=tbt:5ms;2=ttft:1s")
    assert Setup.from_dict(told) == Setup(client_retries=2, slo_classes="1=tbt:5ms;2=ttft:1s")


def test_a_trace_keeps_its_arrivals() -> None:
    world = World(Trace.of(TURNS, block_tokens=BLOCK), **SESSIONS, client_loop="closed")
    assert arrivals(world)[2] == 28.0
    assert world.trace.arrival_ms.tolist() == [0.0, 3.0, 5.0]


def test_statuses_are_what_became_of_the_last_attempt() -> None:
    rows = [*TWO, (1.0, 8, 1, [5, 6])]
    settings = {"client_retries": 1, "client_backoff_ms": 1.0, "client_patience_ms": 20.0}
    replay = World(rows, admission=Full({0: 1, 1: 2}), **settings).replay()
    assert replay.columns["status"].tolist() == [COMPLETED, REJECTED, COMPLETED]
    assert FAILED not in replay.columns["status"]
