"""Requests that are called off, wherever they are: one case a state, countable by hand.

Blocks hold 4 tokens. A prefill takes 1 ms a token, a step 10 ms whatever is in it; a token's KVCache is 1 byte and the
NIC sends 1e9 bytes/s, so that 8 tokens in 4 layers leave 2 bytes, 2 ns, to send when the prefill ends.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from client_worlds import COMPLETED, FAILED, MS, Full, World, job_of

from mooncake_bench.api import Route
from mooncake_bench.results.records import Records
from mooncake_bench.sim.replay import Replay

STEPS = {"step_sequence_ms": 0.0, "step_token_ms": 0.0}
SENT = 2000  # ps: the 2 bytes
SHARED = 2001  # ps: beside the stream of another prefill, which takes 1000 of the 1e9 bytes/s


def fates(replay: Replay) -> list[int]:
    return replay.columns["status"].tolist()


def ms(replay: Replay, name: str) -> list[float]:
    return (replay.columns[f"{name}_ps"] / MS).tolist()


def column(replay: Replay, name: str) -> list[Any]:
    return Records.of(replay).requests().column(name).to_pylist()


def test_a_queued_request_leaves_the_queue_and_those_behind_it_move_up() -> None:
    # Row 0 prefills 0 to 8 ms, row 1 would to 16, row 2 to 24. Without row 1 the work of row 2 ends at 16.
    rows = [(0.0, 8, 1, [1, 2]), (1.0, 8, 1, [3, 4]), (2.0, 8, 1, [5, 6])]
    world = World(rows).cancel(5.0, 1).at(6.0, lambda cluster: int(cluster.state.work_end[0]))
    replay = world.replay()
    assert world.seen == [True, 16 * MS]
    assert fates(replay) == [COMPLETED, FAILED, COMPLETED]
    assert ms(replay, "first_token")[::2] == [8.0, 16.0]
    assert ms(replay, "end")[1] == 5.0
    assert column(replay, "reject_reason")[1] == "cancelled: by the test"
    assert column(replay, "wasted_prefill_tokens") == [0, 0, 0]  # it never began
    assert world.cluster.pool.nodes[0].resident == 4  # the blocks that it was promised are gone


def test_a_running_prefill_is_aborted_and_frees_its_instance() -> None:
    # Row 0 is aborted at 5 of its 8 ms, with 5 of 8 tokens computed; row 1 prefills 5 to 13.
    world = World([(0.0, 8, 3, [1, 2]), (1.0, 8, 1, [3, 4])]).cancel(5.0, 0)
    replay = world.replay()
    assert fates(replay) == [FAILED, COMPLETED]
    assert ms(replay, "first_token") == [-1e-9, 13.0]
    assert column(replay, "wasted_prefill_tokens") == [5, 0]
    assert column(replay, "prefill_gpu_ms") == [5.0, 8.0]
    assert sorted(world.cluster.pool.index.holders) == [3, 4]


def test_who_counted_on_the_blocks_of_an_aborted_prefill_computes_them_itself() -> None:
    # Row 1 would hit 8 of its 12 tokens. Row 0 is gone at 5 ms, so it computes all 12 and is done at 17.
    world = World([(0.0, 8, 1, [1, 2]), (1.0, 12, 1, [1, 2, 3])]).cancel(5.0, 0)
    replay = world.replay()
    assert ms(replay, "first_token")[1] == 17.0
    assert replay.columns["computed_tokens"].tolist() == [0, 12]
    assert sorted(world.cluster.pool.index.holders) == [1, 2, 3]


def test_a_fetching_request_stops_its_flow_and_unpins_the_source() -> None:
    # 1000 bytes a token at 1e6 B/s: row 1 fetches 8 tokens from 10 to 18 ms. Row 2 waits for it, and at 14 starts: 18.
    rows = [(0.0, 8, 1, [1, 2]), (10.0, 12, 1, [1, 2, 3]), (11.0, 4, 1, [9])]
    routes = {0: Route(0), 1: Route(1, fetch_from=0), 2: Route(1)}
    cost = {"kv_bytes_per_token": 1000, "nic_bytes_per_s": 1e6}
    world = World(rows, "2P+1D", routes=routes, cost=cost).cancel(14.0, 1)
    world.at(14.5, lambda cluster: (len(cluster.pool.nodes[0].pinned), len(cluster.network.egress[0].flows)))
    replay = world.replay()
    assert world.seen == [True, (0, 0)]
    assert fates(replay) == [COMPLETED, FAILED, COMPLETED]
    assert ms(replay, "first_token")[2] == 18.0


def test_a_streaming_request_stops_its_flow_and_its_blocks_stay() -> None:
    # 1000 bytes a token at 1e6 B/s: 2000 of 8000 bytes are left at 8 ms, and would take until 10 ms.
    cost = {"kv_bytes_per_token": 1000, "nic_bytes_per_s": 1e6}
    world = World([(0.0, 8, 3, [1, 2]), (20.0, 12, 1, [1, 2, 3])], cost=cost).cancel(9.0, 0)
    world.at(9.5, lambda cluster: (len(cluster.network.ingress[1].flows), int(cluster.state.routed_tokens[1])))
    replay = world.replay()
    assert world.seen == [True, (0, 0)]
    assert (fates(replay)[0], ms(replay, "end")[0]) == (FAILED, 9.0)
    assert column(replay, "wasted_prefill_tokens") == [8, 0]
    assert replay.columns["hit_tokens"].tolist() == [0, 8]


def waiting_world(**more: Any) -> World:
    """Rows 0, 1 and 2 arrive at the decode instance at 8, 16 (+ 2 ns) and 20 ms (+ 1 ns).

    Row 0 decodes alone from 8 ms on, with a context of 9. VRAM of 19 has no room for row 1: 9 + 9 + 2 = 20.
    """
    rows = [(0.0, 8, 10, [1, 2]), (0.0, 8, 3, [3, 4]), (0.0, 4, 2, [5])]
    return World(rows, cost=STEPS | {"vram_tokens": 19}, **more)


def test_a_request_that_waits_to_decode_leaves_and_the_next_joins_at_the_next_step_boundary() -> None:
    # Row 2 may not overtake row 1. At 25 ms row 1 is gone; at the boundary of 28 ms row 0 has 9 + 2 tokens, and
    # 11 + 5 + 2 = 18 fits.
    replay = waiting_world().cancel(25.0, 1).replay()
    assert fates(replay) == [COMPLETED, FAILED, COMPLETED]
    assert replay.columns["join_ps"].tolist() == [8 * MS + SHARED, -1, 28 * MS + SHARED]
    assert ms(replay, "end")[1] == 25.0


def test_a_member_leaves_its_batch_at_the_next_step_boundary() -> None:
    # Row 0 decodes from 8 ms + 2 ns; at 25 ms it is in its second step, which ends at 28. Row 1 joins then.
    replay = waiting_world().cancel(25.0, 0).replay()
    assert fates(replay) == [FAILED, COMPLETED, COMPLETED]
    assert replay.columns["end_ps"].tolist()[0] == replay.columns["join_ps"].tolist()[1] == 28 * MS + SHARED
    lost = replay.stays["lost"] > 0
    assert replay.stays["steps"][lost].tolist() == [2]
    assert column(replay, "wasted_prefill_tokens") == [8, 0, 0]


def test_a_member_cancelled_in_its_last_step_fails_all_the_same() -> None:
    # Row 0 makes its two further tokens from 8 to 28 ms (+ 2 ns). Its client is gone at 25.
    replay = World([(0.0, 8, 3, [1, 2])], cost=STEPS).cancel(25.0, 0).replay()
    assert (fates(replay), replay.columns["end_ps"].tolist()) == ([FAILED], [28 * MS + SENT])


def test_the_others_of_a_batch_go_on_without_the_cancelled_one() -> None:
    # Both join: row 0 at 8 ms + 2 ns, row 1 (at its node from 16 ms + 2 ns) at 18. Row 0 leaves at 28, row 1 ends after
    # three steps at 48.
    replay = World([(0.0, 8, 9, [1, 2]), (0.0, 8, 4, [3, 4])], cost=STEPS).cancel(20.0, 0).replay()
    assert replay.segments["batch"].tolist() == [1, 2, 1]
    assert replay.segments["steps"].tolist() == [1, 1, 2]
    assert replay.columns["end_ps"].tolist() == [28 * MS + SHARED, 48 * MS + SHARED]


def test_a_preempted_request_leaves_and_does_not_come_back() -> None:
    # VRAM 24. Row 0 joins at 8 ms (9), row 1 at 18 ms: 10 + 9 + 2 = 21 fits. After a step the two have 21, then 23; the
    # next would need 25: row 1, the last joined, is preempted at 38. Cancelled at 40, it never decodes again.
    rows = [(0.0, 8, 10, [1, 2]), (0.0, 8, 9, [3, 4])]
    world = World(rows, cost=STEPS | {"vram_tokens": 24})
    world.at(40.0, lambda cluster: job_of(cluster, 1) in cluster.decoding.decoders[1].preempted).cancel(40.0, 1)
    replay = world.replay()
    assert world.seen == [True, True]
    assert (fates(replay), ms(replay, "end")[1]) == ([COMPLETED, FAILED], 40.0)
    assert replay.stays["request"][replay.stays["lost"] > 0].tolist() == [1]


def test_who_waits_to_ask_again_does_not() -> None:
    # Turned away at 0 ms, it would ask again at 10.
    admission = Full({0: 1})
    world = World([(0.0, 8, 1, [1, 2])], admission=admission, client_retries=1, client_backoff_ms=10.0).cancel(5.0, 0)
    replay = world.replay()
    assert (fates(replay), ms(replay, "end")) == ([FAILED], [5.0])
    assert admission.asked == [(0, 0, 0.0)]
    assert replay.columns["reject_stage"].tolist() == [0]


def test_who_has_ended_or_is_cancelled_already_is_left_alone() -> None:
    world = World([(0.0, 8, 1, [1, 2]), (10.0, 8, 3, [3, 4])], cost=STEPS)
    world.cancel(9.0, 0).cancel(25.0, 1).cancel(26.0, 1)
    assert fates(world.replay()) == [COMPLETED, FAILED]
    assert world.seen == [False, True, False]


def test_a_cancelled_request_holds_nothing_that_policies_can_see() -> None:
    # One request in each state, seen by a policy that looks at every table, cancelled one after the other.
    seen = []

    class Looks(Full):
        def reject(self, request, route, cluster):
            seen.append([len(table.instance) for table in (cluster.joined, cluster.waiting, cluster.promised)])
            return super().reject(request, route, cluster)

    # At 22 ms: row 0 decodes, row 1 waits, row 2 is done; row 3 is prefilled (20 to 28), row 4 is queued, row 5 looks.
    rows = [(0.0, 8, 10, [1, 2]), (0.0, 8, 3, [3, 4]), (0.0, 4, 1, [5]), (19.0, 8, 2, [6, 7]), (20.5, 8, 2, [8, 9])]
    world = World(
        [*rows, (22.0, 4, 1, [10]), (40.0, 4, 1, [11])], admission=Looks({}), cost=STEPS | {"vram_tokens": 19}
    )
    for row in (0, 1, 3, 4, 5):
        world.cancel(23.0, row)
    replay = world.replay()
    assert seen[5] == [1, 1, 2]
    assert seen[6] == [0, 0, 0]
    assert world.seen == [True] * 5
    assert np.isin(replay.columns["status"], (COMPLETED, FAILED)).all()


@pytest.mark.parametrize("at_ms", [0.5, 5.0, 8.0, 8.000001, 18.000002, 25.0])
def test_the_tokens_routed_to_an_instance_go_with_the_request(at_ms: float) -> None:
    world = World([(0.0, 8, 6, [1, 2])], cost=STEPS).cancel(at_ms, 0)
    world.at(60.0, lambda cluster: cluster.state.routed_tokens.tolist())
    assert (fates(world.replay()), world.seen) == ([FAILED], [True, [0, 0]])
