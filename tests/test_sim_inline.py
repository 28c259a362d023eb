"""Prefill inlined into a decode node's steps: counted by hand, and against a simulator that does one step at a time.

A computed token takes 1 ms; a step takes 10 ms + 1 ms a request + 1 us a context token, and what it computes of a
prompt comes on top. A block has 4 tokens. A token's KVCache is 1 byte at 1e9 bytes/s unless a case says otherwise: of 8
tokens in 4 layers, 2 ns are left to send when the prefill ends.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from client_worlds import COMPLETED, FAILED, MS, REJECTED, World
from fault_tools import Tool, latest, line, written
from reference.fast import token_times_ps
from reference.inlining import Asked, Reference

from mooncake_bench.api import Admission, Route, Router
from mooncake_bench.errors import SetupError
from mooncake_bench.hardware.analytic import AnalyticCost, Coefficients, EngineOverhead
from mooncake_bench.hardware.fake import FakeCost
from mooncake_bench.hardware.pipeline import PipelinedCost
from mooncake_bench.results.headline import headline
from mooncake_bench.results.records import Records
from mooncake_bench.results.run import Run
from mooncake_bench.results.timeline import timeline
from mooncake_bench.sim.replay import Replay, run
from mooncake_bench.sim.setup import Setup
from mooncake_bench.trace import Trace

US = 10**6  # ps
SENT = 2000  # ps: the 2 ns
LONG = list(range(100, 125))  # blocks of a prompt that keeps a prefill instance busy
NOT = -1

# Row 0 is prefilled from 0 to 8 ms on an idle cluster (its decode instance would have been done at 8 as well, which is
# not sooner) and decodes from then on: steps of 11.009 and 11.010 ms, to 19.009 and 30.019. Row 1 keeps the prefill
# instance from 9 to 109. Row 2 comes at 20, and would have its first token at 115. The step that begins at 30.019 has
# row 0 with 11 tokens in its batch: 11.011 alone, 17.011 with the 6 tokens of row 2: first token at 47.030. Then both,
# with 12 + 7 tokens: 12.019, to 59.049, when row 0 has its five tokens; then row 2 with 8: 11.008, to 70.057.
ROWS = [(0.0, 8, 5, [1, 2]), (9.0, 100, 1, LONG), (20.0, 6, 3, [50, 51])]
TIMES = {0: [19_009, 30_019, 47_030, 59_049], 2: [47_030, 59_049, 70_057]}  # us, without the 2 ns


def world(rows: Any = ROWS, cluster: str = "1P+1D", **setup: Any) -> World:
    return World(rows, cluster, **{"decode_inline": "on", "slo_tbt_ms": 50.0, **setup})


def tokens_us(replay: Replay, row: int) -> list[float]:
    """Times of a request's tokens from its second on, or of all if it was inlined, in us without row 0's 2 ns."""
    times = token_times_ps(replay)[row]
    return [(time - SENT) / US for time in (times if replay.columns["inlined"][row] else times[1:])]


def us(replay: Replay, name: str) -> list[float]:
    return [time if time < 0 else time / US for time in replay.columns[f"{name}_ps"].tolist()]


def inlined(replay: Replay) -> list[bool]:
    return replay.columns["inlined"].tolist()


def column(replay: Replay, name: str) -> list[Any]:
    return Records.of(replay).requests().column(name).to_pylist()


# where and when


def test_a_prompt_is_computed_in_a_step_of_its_decode_instance() -> None:
    replay = world().replay()
    assert inlined(replay) == [False, False, True]
    assert {row: tokens_us(replay, row) for row in (0, 2)} == TIMES
    assert column(replay, "prefill_instance") == [0, 0, 1]
    assert column(replay, "decode_instance") == [1, 1, 1]
    assert column(replay, "hit_tokens") == [0, 0, 0]
    assert column(replay, "computed_tokens") == [8, 100, 6]


def test_the_parts_of_its_ttft_add_up_and_were_known_at_routing() -> None:
    row = {name: values[2] for name, values in Records.of(world().replay()).requests().to_pydict().items()}
    assert row["queue_ms"] == pytest.approx(10.019002, abs=1e-9)  # from 20 to the step
    assert row["fetch_ms"] == 0
    assert row["prefill_ms"] == pytest.approx(17.011)
    assert row["ttft_ms"] == pytest.approx(27.030002, abs=1e-9)
    assert row["predicted_ttft_ms"] == row["ttft_ms"]
    assert (row["kv_transfer_ms"], row["decode_wait_ms"], row["stream_actual_ms"]) == (0, 0, None)
    assert row["first_gap_ms"] == pytest.approx(12.019)
    assert row["prefill_gpu_ms"] == pytest.approx(6.0)  # what the batch's step would not have taken


def test_the_mixed_step_is_a_token_gap_of_the_batch() -> None:
    # Gaps of row 0: 11.009 and the 2 ns, 11.010, 17.011, 12.019; of row 2: 12.019 and 11.008.
    replay = world().replay()
    assert column(replay, "tbt_max_ms") == pytest.approx([17.011, None, 12.019])
    assert column(replay, "slo_tbt_ok") == [True, None, True]
    gaps = [11.009002, 11.010, 17.011, 12.019, 12.019, 11.008]
    pooled = Run.from_replay(replay).metrics()
    assert pooled["mean_itl_ms"].value == pytest.approx(sum(gaps) / 6)
    assert pooled["p99_itl_ms"].value == pytest.approx(np.percentile(gaps, 99))


def test_no_pool_gets_what_is_computed_there() -> None:
    # At 200 all is idle. The prompt of row 2 once more: nothing is cached, an endless cache would have it.
    replay = world([*ROWS, (200.0, 6, 1, [50, 51])]).replay()
    assert column(replay, "hit_tokens")[3] == 0
    assert column(replay, "ceiling_tokens")[3] == 6
    assert inlined(replay)[3] is False


def test_without_a_batch_the_step_is_a_prefill_that_keeps_the_decode_instance_busy() -> None:
    # Row 1 would wait for the prefill instance until 100: 106. The decode instance is idle: 10 to 16. Row 2 has its
    # first token at 13 from another and joins after that step: two contexts of 7 and 9 tokens, 12.016, to 28.016.
    # Row 3 only ends the span, 40 ms, of which steps take 6 + 12.016.
    rows = [(0.0, 100, 1, LONG), (5.0, 8, 2, [1, 2]), (10.0, 6, 2, [50, 51]), (40.0, 4, 1, [9])]
    routes = {1: Route(1), 3: Route(1)}
    replay = world(rows, "2P+1D", routes=routes).replay()
    assert inlined(replay) == [False, False, True, False]
    assert us(replay, "first_token") == [100_000, 13_000, 16_000, 44_000]
    assert us(replay, "join")[1:3] == [16_000, 16_000]
    assert us(replay, "end")[1:3] == [28_016, 28_016]
    assert column(replay, "prefill_gpu_ms")[2] == 6.0
    metrics = Run.from_replay(replay).metrics()
    assert metrics["decode_utilisation_ratio"].value == pytest.approx(18.016 / 40)
    assert metrics["prefill_utilisation_ratio"].value == pytest.approx((40 + 8) / 80)
    sampled = timeline(Records.of(replay), 1.0)
    assert sum(sampled.column("decode_utilisation_ratio").to_pylist()) == pytest.approx(18.016)
    assert sum(sampled.column("prefill_utilisation_ratio").to_pylist()) == pytest.approx((100 + 8 + 4) / 2)


def test_a_one_token_answer_ends_with_its_step() -> None:
    replay = world([*ROWS[:2], (20.0, 6, 1, [50, 51])]).replay()
    assert inlined(replay) == [False, False, True]
    assert us(replay, "end")[2] == us(replay, "first_token")[2] == 47_030 + SENT / US
    assert tokens_us(replay, 0) == [19_009, 30_019, 47_030, 47_030 + 11_012]


def test_a_step_takes_one_prompt_and_the_next_is_settled_while_it_is_computed() -> None:
    # Row 3 comes when row 2 waits for the step of 30.019: to the prefill instance, 115. Row 4 comes in that step at 31;
    # the next has rows 0 and 2 with 12 + 7 tokens: 12.019 + 6, from 47.030 to 65.049, when row 0 is done.
    rows = [*ROWS, (21.0, 6, 1, [60, 61]), (31.0, 6, 1, [70, 71])]
    replay = world(rows).replay()
    assert inlined(replay) == [False, False, True, False, True]
    assert us(replay, "first_token")[3:] == [115_000, 65_049 + SENT / US]
    assert tokens_us(replay, 0) == [19_009, 30_019, 47_030, 65_049]


# what forbids it


@pytest.mark.parametrize(("slo_ms", "is_inlined"), [(17.011, True), (17.0109, False)])
def test_no_step_may_last_longer_than_the_tbt_slo(slo_ms: float, is_inlined: bool) -> None:
    replay = world(slo_tbt_ms=slo_ms).replay()
    assert inlined(replay)[2] is is_inlined
    assert us(replay, "first_token")[2] == (47_030 + SENT / US if is_inlined else 115_000)


@pytest.mark.parametrize(("priority", "is_inlined"), [([0, 0, 0], True), ([1, 0, 0], False), ([0, 0, 1], False)])
def test_the_tightest_slo_of_the_batch_and_the_request_counts(priority: list[int], is_inlined: bool) -> None:
    priority[1] = 1  # or the class would be nobody's; it decodes nothing
    replay = world(slo_classes="1=tbt:17ms", priority=np.array(priority)).replay()
    assert inlined(replay)[2] is is_inlined


def test_who_has_left_by_then_does_not_count() -> None:
    # Row 0, of the tight class, has all its tokens at 30.019: the step of row 2 is a prefill, to 36.019.
    rows = [(0.0, 8, 3, [1, 2]), *ROWS[1:]]
    replay = world(rows, slo_classes="1=tbt:17ms", priority=np.array([1, 0, 0])).replay()
    assert us(replay, "first_token")[2] == 36_019 + SENT / US


def test_who_is_called_off_by_then_does_not_count() -> None:
    made = world(slo_classes="1=tbt:17ms", priority=np.array([1, 0, 0])).cancel(19.5, 0)
    assert us(made.replay(), "first_token")[2] == 36_019 + SENT / US


@pytest.mark.parametrize(("vram", "is_inlined"), [(21, True), (20, False)])
def test_the_context_and_a_token_more_of_everybody_have_to_fit_after_the_step(vram: int, is_inlined: bool) -> None:
    # Row 0 has 11 tokens when the step begins, 12 when it ends; row 2 comes with 7; then each makes one: 21.
    replay = world(cost={"vram_tokens": vram}).replay()
    assert inlined(replay)[2] is is_inlined
    assert column(replay, "preemptions") == [0, 0, 0]
    assert us(replay, "first_token")[2] == (47_030 + SENT / US if is_inlined else 115_000)


def test_nobody_waits_before_it() -> None:
    # Row 3, of 12 tokens, is there at 12 ms and does not fit beside row 0: 10 + 13 + 2 > 21. Row 2 would.
    rows = [(0.0, 8, 5, [1, 2]), (0.0, 12, 2, [30, 31, 32]), *ROWS[1:]]
    replay = world(rows, "2P+1D", routes={1: Route(1)}, cost={"vram_tokens": 21}).replay()
    assert inlined(replay) == [False] * 4
    assert us(replay, "first_token")[3] == 115_000


def test_only_where_the_first_token_comes_sooner() -> None:
    # Without row 1 the prefill instance has it at 26.
    replay = world([ROWS[0], ROWS[2]]).replay()
    assert inlined(replay) == [False, False]
    assert us(replay, "first_token")[1] == 26_000


@pytest.mark.parametrize(
    ("slo_ms", "vram", "joins_us", "first_us"),
    [(18.016, 28, 30_019, 48_035), (18.0, 28, 47_030, 47_030), (18.016, 27, 47_030, 47_030)],
)
def test_who_arrives_meanwhile_joins_only_if_the_step_keeps_its_slo_and_its_memory(
    slo_ms: float, vram: int, joins_us: int, first_us: int
) -> None:
    # Row 3 has its KVCache there at 25, before the step of 30.019: rows 0 and 3 with 11 + 5 tokens, 12.016 + 6. After
    # it they have 18, row 2 comes with 7, and each makes one: 28.
    rows = [*ROWS, (21.0, 4, 2, [60])]
    cost = {"vram_tokens": vram}
    replay = world(rows, "2P+1D", routes={3: Route(1)}, slo_tbt_ms=slo_ms, cost=cost).replay()
    assert inlined(replay) == [False, False, True, False]
    assert us(replay, "join")[3] == joins_us + SENT / US
    assert us(replay, "first_token")[2] == first_us + SENT / US


def test_where_no_step_may_take_a_prompt_nothing_differs() -> None:
    rows = [
        (float(7 * i), 5 + i % 9, 1 + i % 6, [i % 5, *range(100 * i + 9, 100 * i + 9 + (4 + i % 9) // 4)])
        for i in range(40)
    ]
    cost = {"vram_tokens": 40}
    off = World(rows, "1P+1D", slo_tbt_ms=10.0, cost=cost).replay()
    on = world(rows, slo_tbt_ms=10.0, cost=cost).replay()
    assert not any(inlined(on))
    for name in off.columns:
        np.testing.assert_array_equal(off.columns[name], on.columns[name], name)
    for table in ("segments", "stays"):
        assert {name: values.tolist() for name, values in getattr(off, table).items()} == {
            name: values.tolist() for name, values in getattr(on, table).items()
        }


# the cached prefix

# Row 0 leaves blocks 1 and 2 on the prefill instance, which row 1 keeps from 8 to 108: row 2 would have its first token
# at 112. A token's KVCache is 1000 bytes, the NICs send 2e6 a second, of which the KVCache of row 1 takes 1e6 while it
# is made: the prefix of row 2, 8 tokens, takes 8 ms instead of 4. At 28 it is there: 4 tokens, to 32.
SLOW = {"kv_bytes_per_token": 1000, "nic_bytes_per_s": 2e6}
CACHED = [(0.0, 8, 1, [1, 2]), (8.0, 100, 1, LONG), (20.0, 12, 2, [1, 2, 3])]


def test_the_prefix_comes_from_the_pool_of_its_prefill_instance() -> None:
    made = world(CACHED, cost=SLOW).at(25.0, lambda cluster: {1, 2} <= set(cluster.pool.nodes[0].pinned))
    made.at(28.5, lambda cluster: {1, 2} & set(cluster.pool.nodes[0].pinned))
    replay = made.replay()
    assert made.seen == [True, set()]
    row = {name: values[2] for name, values in Records.of(replay).requests().to_pydict().items()}
    assert row["inlined"]
    assert (row["hit_tokens"], row["fetched_tokens"], row["computed_tokens"]) == (8, 8, 4)
    assert (row["queue_ms"], row["fetch_ms"], row["prefill_ms"], row["ttft_ms"]) == (0, 8, 4, 12)
    assert (row["fetch_actual_ms"], row["fetch_ideal_ms"]) == (8, 4)
    assert row["predicted_ttft_ms"] == 8  # the prefix alone takes 4 ms
    assert us(replay, "end")[2] == 32_000 + 11_013
    assert (replay.counters["fetched_bytes"], replay.counters["streamed_bytes"]) == (8000, 0)


@pytest.mark.parametrize(
    ("vram", "first_ms", "gaps_ms"), [(10**6, 69.0, [15.5, 16, 28.5]), (34, 103.5, [15.5, 16, 16.5])]
)
def test_a_prefix_that_comes_late_waits_for_memory_but_not_for_a_shorter_step(
    vram: int, first_ms: float, gaps_ms: list[float]
) -> None:
    # Half a ms a context token. Row 0 has its KVCache there at 9 (2000 of 8000 bytes are left at 8: 1 ms), would make
    # tokens at 24.5, 40.5, 57, 74 and 91.5. Sent alone, the prefix of row 2 is there at 24. The step from 24.5 has 10
    # tokens, 11 + 5, and 12 of the prompt: 28, which is the SLO; memory for 10 + 1 + 21 + 2 = 34. It is there at 28:
    # from 40.5 the step takes 28.5, and memory is for 35; where there are but 34, when row 0 has left: 12 ms from 91.5.
    rows = [(0.0, 8, 6, [1, 2]), (9.0, 100, 1, LONG), (20.0, 20, 2, [1, 2, 60, 61, 62])]
    cost = SLOW | {"step_token_ms": 0.5, "vram_tokens": vram}
    replay = world(rows, cost=cost, slo_tbt_ms=28.0).replay()
    assert inlined(replay) == [False, False, True]
    assert us(replay, "first_token")[2] == first_ms * 1000
    assert column(replay, "predicted_ttft_ms")[2] == 24.5 + 28 - 20
    times = [9 * MS, *token_times_ps(replay)[0][1:]]
    assert (np.diff(times[:4]) / MS).tolist() == gaps_ms


def test_no_prefix_is_sent_where_nobody_fetches() -> None:
    replay = world(CACHED, "2P+1D", cost=SLOW, pool_scope="local").replay()
    assert inlined(replay)[2] is True
    assert column(replay, "hit_tokens")[2] == 0
    assert us(replay, "first_token")[2] == 32_000  # all 12 tokens


def test_attention_to_the_prefix_costs_what_it_does_in_a_coupled_step() -> None:
    # E6 with b = .5, c = .1, batch 1: E(n + B) of 4 + 1 tokens is 2.5; attention of 4 tokens to 8 before them 3.2, to
    # themselves .8; f(1) = 9 is more than 2.5; contexts 11 x .1. Overheads: 1 of the step, 2 of the prompt: 17.1.
    numbers = Coefficients(
        prefill_floor_ms=0.0, prefill_token_ms=0.5, prefill_constant_ms=0.0, prefill_token2_ms=0.1,
        decode_floor_ms=9.0, decode_roof_ms=0.0, decode_sequence_ms=0.0, decode_token_ms=0.1,
    )  # fmt: skip
    cost = AnalyticCost(
        [numbers] * 2, EngineOverhead(prefill_ms=2.0, decode_ms=1.0), name="n", version="1", error="e", layers=4,
        kv_bytes_per_token=1, nic_bytes_per_s=1e9, vram_tokens=10**6,
    )  # fmt: skip
    rows = [(0.0, 8, 50, [1, 2]), (20.0, 400, 1, list(range(100, 200))), (60.0, 12, 2, [1, 2, 3])]
    setup = Setup(cluster="1P+1D", decode_inline="on", slo_tbt_ms=50.0, policy="round-robin")
    replay = run(Trace.of(rows, block_tokens=4), setup, cost=cost)
    assert inlined(replay) == [False, False, True]
    start, end = (int(replay.columns[f"{name}_ps"][2]) for name in ("start", "first_token"))
    segments = replay.segments
    (at,) = np.flatnonzero(segments["start_ps"] == start)
    assert (segments["batch"][at], segments["steps"][at]) == (1, 1)
    # without its contexts: max(2.5 + 1, 9 + 1) + 3.2 + .8 + 2 = 16
    assert end - start == 16 * MS + segments["tokens"][at] * MS // 10
    assert replay.columns["prefill_ps"][2] == 6 * MS


# requests that are called off, instances that die or change, policies


def test_a_prompt_that_waits_for_its_step_is_called_off_at_once() -> None:
    replay = world().cancel(25.0, 2).replay()
    assert (replay.columns["status"].tolist(), us(replay, "end")[2]) == ([COMPLETED, COMPLETED, FAILED], 25_000)
    assert tokens_us(replay, 0) == [19_009, 30_019, 41_030, 52_042]  # as if it had never come
    assert column(replay, "wasted_prefill_tokens") == [0, 0, 0]


def test_a_prompt_that_is_being_computed_is_called_off_with_its_step() -> None:
    replay = world().cancel(35.0, 2).replay()
    assert (replay.columns["status"].tolist()[2], us(replay, "end")[2]) == (FAILED, 47_030 + SENT / US)
    assert tokens_us(replay, 0) == [19_009, 30_019, 47_030, 58_042]
    assert column(replay, "wasted_prefill_tokens")[2] == 6
    assert column(replay, "prefill_gpu_ms")[2] == pytest.approx(6.0)
    assert column(replay, "reject_reason")[2] == "cancelled: by the test"


def test_a_prefix_on_its_way_stops_when_its_request_is_called_off() -> None:
    made = world(CACHED, cost=SLOW).cancel(25.0, 2)
    made.at(25.5, lambda cluster: (len(cluster.network.egress[0].flows), {1, 2} & set(cluster.pool.nodes[0].pinned)))
    replay = made.replay()
    assert made.seen == [True, (1, set())]  # the KVCache of row 1
    assert us(replay, "end")[2] == 25_000
    assert us(replay, "first_token")[2] == NOT


def test_who_was_kept_from_joining_joins_when_the_prompt_is_called_off() -> None:
    # The prefix of row 2 is on its way from 20 to 28. Row 3, prefilled elsewhere, has its KVCache there at 25 (1000
    # bytes are left at 24, 1 ms); with it the mixed step would take 11.005 + 4. Row 2 is called off at 26.
    rows = [*CACHED, (20.0, 4, 2, [70])]
    routes = {1: Route(0, 3), 2: Route(0, 2), 3: Route(1, 2)}
    replay = world(rows, "2P+2D", routes=routes, cost=SLOW, slo_tbt_ms=12.0).cancel(26.0, 2).replay()
    assert replay.columns["status"].tolist()[2:] == [FAILED, COMPLETED]
    assert (us(replay, "kv_arrival")[3], us(replay, "join")[3]) == (25_000, 26_000)


def test_a_dropped_context_is_computed_again_after_the_prompt() -> None:
    # Row 1 has its KVCache there at 5.905: at 4 ms 1000 bytes are left, and half the NIC, for row 2 begins. It makes a
    # step of 11.005, then row 2 is there too: 12.011, to 28.921. They have 13 tokens now, and the prefix of row 4, sent
    # alone, would be there: 13 + 4 + 13 + 1 = 31, just enough. It comes later, for the KVCache of row 3 has its share.
    # Nine steps later, of 12.013 to 12.029, they have 31 and no room: row 2 is dropped with 15. Row 1 leaves after
    # 11.016 and 11.017. Row 2 and the prompt would fit then, but 14 tokens of it are to be computed again, and the
    # prompt goes first: from 159.143 to 163.143.
    rows = [(0.0, 8, 1, [1, 2]), (0.0, 4, 14, [30]), (4.0, 4, 14, [40]), (8.0, 200, 1, list(range(100, 150)))]
    rows += [(20.0, 12, 2, [1, 2, 3])]
    routes = {0: Route(0, 3), 1: Route(1, 2), 2: Route(1, 2), 3: Route(0, 3), 4: Route(0, 2)}
    cost = {"kv_bytes_per_token": 1000, "nic_bytes_per_s": 1.05e6, "vram_tokens": 31}
    replay = world(rows, "2P+2D", routes=routes, cost=cost, decode_preemption="recompute").replay()
    assert inlined(replay) == [False] * 4 + [True]
    assert int(us(replay, "first_token")[4]) == 163_142
    assert column(replay, "preemptions") == [0, 0, 1, 0, 0]
    assert replay.counters["recomputed_tokens"] == 14


@dataclass
class Attempts(Router):
    """Routes as told, attempt by attempt; notes what it sees of the latest request's prompt."""

    name = "attempts"
    routes: dict[int, list[Route]]

    def route(self, request, cluster):
        self.cached = cluster.cached_tokens(request).tolist()
        self.batch, self.promised = cluster.decode_batch.tolist(), len(cluster.promised.tokens)
        self.queued = cluster.queue_requests.tolist()
        return self.routes.get(request.row, [Route(0)] * 9)[request.attempt]


def test_a_request_whose_decode_instance_dies_in_its_step_starts_over() -> None:
    # 4.981 of the 17.011 ms are done at 35, of the 6 that are the prompt's share: 4 of its tokens. Row 0 comes first
    # and is inlined on instance 2: its 8 tokens are still cached, one is computed, to 36 (and 8 ns, beside row 1). So
    # row 2 goes to the prefill instance: 109 to 115.
    routes = {0: [Route(0, 1), Route(0, 2)], 2: [Route(0, 1), Route(0, 2)]}
    replay = world(cluster="1P+2D", router=Attempts(routes), events="35ms:fail:decode:0").replay()
    assert column(replay, "attempts") == [2, 1, 2]
    assert inlined(replay) == [True, False, False]
    assert [int(time) for time in us(replay, "first_token")] == [36_000, 109_000, 115_000]
    assert column(replay, "lost_prefill_ms") == pytest.approx([8.0, 0.0, 4.981 - SENT / MS])
    assert column(replay, "wasted_prefill_tokens") == [8, 0, 4]
    assert column(replay, "prefill_gpu_ms") == pytest.approx([9.0, 100.0, 4.981 + 6], abs=1e-5)


def test_a_request_whose_prefix_was_on_a_dead_instance_starts_over() -> None:
    # At 25 instance 0 dies: row 1 starts anew on instance 1, to 125. Nothing of row 2 is cached there: 12 tokens where
    # it decodes, to 37.
    routes = {row: [Route(0), Route(1)] for row in (1, 2)}
    made = world(CACHED, "2P+1D", router=Attempts(routes), events="25ms:fail:prefill:0", cost=SLOW)
    replay = made.replay()
    assert column(replay, "attempts") == [1, 2, 2]
    assert inlined(replay) == [False, False, True]
    assert us(replay, "first_token")[1:] == [125_000, 37_000]
    assert (column(replay, "hit_tokens")[2], column(replay, "queue_ms")[2]) == (0, 0)
    assert column(replay, "retry_wait_ms")[2] == 5.0


def test_an_instance_that_is_to_change_its_role_computes_what_it_was_promised() -> None:
    replay = world(cluster="1P+2D", routes={0: Route(0, 1), 2: Route(0, 1)}, events="25ms:switch:decode:0").replay()
    assert {row: tokens_us(replay, row) for row in (0, 2)} == TIMES
    assert replay.happened[-1] == (70_057 * US + SENT, "instance 1 prefills")


class Gate(Admission):
    """Turns row 2 away, when its turn has come or when its KVCache is there."""

    name = "gate"

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.asked: list[tuple[str, int, int, int]] = []
        self.batch = -1

    def reject(self, request, route, cluster):
        return None

    def _ask(self, stage, request, route, cluster):
        self.asked.append((stage, request.row, route.prefill, round(cluster.now_ms * 1000)))
        self.batch = int(cluster.decode_batch[1])
        return "no" if (request.row, self.stage) == (2, stage) else None

    def reject_prefill(self, request, route, cluster):
        return self._ask("prefill", request, route, cluster)

    def reject_decode(self, request, route, cluster):
        return self._ask("decode", request, route, cluster)


@pytest.mark.parametrize(
    ("stage", "ends_us", "wasted", "then"),
    [("prefill", 30_019, 0, [41_030, 52_042]), ("decode", 47_030, 6, [47_030, 58_042])],
)
def test_the_admission_is_asked_before_its_step_and_after(
    stage: str, ends_us: int, wasted: int, then: list[int]
) -> None:
    gate = Gate(stage)
    replay = world(admission=gate).replay()
    assert (stage, 2, 1, ends_us) in gate.asked  # its prefill is on instance 1
    assert replay.columns["status"].tolist() == [COMPLETED, COMPLETED, REJECTED]
    assert column(replay, "reject_stage")[2] == stage
    assert us(replay, "end")[2] == ends_us + SENT / US
    assert tokens_us(replay, 0)[2:] == then
    assert column(replay, "wasted_prefill_tokens")[2] == wasted


def test_the_admission_sees_the_batch_of_the_step() -> None:
    gate = Gate("prefill")
    world([(0.0, 8, 3, [1, 2]), *ROWS[1:]], admission=gate).replay()  # row 0 has its tokens at 30.019
    assert gate.asked[-1] == ("prefill", 2, 1, 30_019)
    assert gate.batch == 0


@pytest.mark.parametrize("view", ["exact", "delayed:5", "router-only"])
def test_policies_see_it_where_it_is(view: str) -> None:
    # Row 3 has the prompt of row 2, which no prefill instance has; at 66, and 5 ms before, row 2 decodes alone.
    router = Attempts({})
    rows = [*ROWS, (66.0, 6, 1, [50, 51])]
    world(rows, router=router, view=view).replay()
    assert router.cached == [0, 0]
    assert router.batch[1] == 1
    assert router.promised == 1  # row 1, which is not sent anywhere, is still to be prefilled
    assert router.queued == [1, 0]


@pytest.mark.parametrize("view", ["exact", "delayed:5", "router-only"])
def test_policies_see_it_promised_to_its_decode_instance(view: str) -> None:
    router = Attempts({})
    world([*ROWS, (22.0, 6, 1, [50, 51])], router=router, view=view).replay()
    assert router.promised == 2  # rows 1 and 2
    assert router.queued == [1, 0]


# accounts


def test_the_command_line_tells_of_it(tool: Tool) -> None:
    # The prefill instance has 8,000 tokens to do, a second; 300 take a tenth of it where they decode, and nobody does.
    trace = written("t.jsonl", [line(0.0, 8000, 3), line(100.0, 300, 3)])
    told = tool("replay", trace, "--cluster", "1P+1D", "--slo", "tbt:1s", "--decode-inline", "on", "-v")
    assert told.code == 0
    assert "request 1: prefill inlined into decode 1 (0 of 300 tokens hit)" in " ".join((told.out + told.err).split())
    assert latest().metrics()["inlined_requests"].value == 1
    explained = tool("explain", "@last", "1")
    assert explained.code == 0
    assert "decided: prefill on instance 0" in explained.out
    assert "prefill inlined; decode on instance 1" in explained.out


def test_a_group_of_nodes_pays_for_its_own_prefill_only() -> None:
    # A prompt takes both nodes half its time each, one after the other: the queue ends at 9 + 50, row 2 would be there
    # at 65. Called off in its step it has spent the 6 ms of one decode node, not of two. Row 3 has its 6 in the next.
    made = world([*ROWS, (36.0, 6, 1, [60, 61])], "2P+1D", prefill_group=2).cancel(35.0, 2)
    made.cost = PipelinedCost(
        FakeCost(2, kv_bytes_per_token=1), group=2, chunk_tokens=None, hop_bytes_per_token=0, prefill=[True, False]
    )
    replay = made.replay()
    assert inlined(replay) == [False, False, False, True]
    assert column(replay, "prefill_gpu_ms") == pytest.approx([8.0, 100.0, 6.0, 6.0])


def test_the_head_of_a_report_says_so() -> None:
    (words,) = [words for words in headline(Run.from_replay(world().replay())) if words.startswith("cluster")]
    assert words.endswith(", prefill inlined into decode")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"cluster": "2P+0D", "decode_inline": "on"}, "decode.inline: .* nothing decodes"),
        ({"cluster": "2M", "decode_inline": "on"}, "decode.inline: no effect on cluster 2M"),
        ({"decode_inline": "maybe"}, "expected one of off, on"),
    ],
)
def test_settings_without_effect_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(SetupError, match=reason):
        Setup(**settings)


# against a simulator that does one step at a time


def lots(seed: int) -> tuple[list[tuple[float, int, int, list[int]]], float, int]:
    """Requests whose prompts share their beginnings, a TBT SLO and a VRAM."""
    lot = random.Random(seed)
    at, rows = 0, []
    for row in range(lot.choice((6, 12, 25))):
        at += lot.choice((0, 1, 3, 10, 25)) if row else 0
        tokens, shared = lot.randint(1, 30), lot.randint(0, 5)
        family = 1000 * lot.randrange(3)
        blocks = [family + i if i < shared else 10_000 + 100 * row + i for i in range(-(-tokens // 4))]
        rows.append((float(at), tokens, lot.choice((1, 2, 5, 15)), blocks))
    return rows, lot.choice((14.0, 20.0, 30.0, 60.0)), lot.choice((10**6, 150, 90))


def test_it_agrees_with_a_simulator_that_does_one_step_at_a_time() -> None:
    seen = {"inlined": 0, "hits": 0, "worlds": 0}
    for seed in range(100):
        rows, slo_ms, vram = lots(seed)
        asked = [Asked(round(at * MS), tokens, answer, tuple(blocks)) for at, tokens, answer, blocks in rows]
        try:
            Reference(asked, round(slo_ms * MS), vram, 4)
        except NotImplementedError:
            continue
        cost = {"vram_tokens": vram, "nic_bytes_per_s": 1e18}
        replay = world(rows, slo_tbt_ms=slo_ms, cost=cost, pool_blocks=10_000).replay()
        assert inlined(replay) == [one.inlined for one in asked], seed
        assert token_times_ps(replay) == [one.times for one in asked], seed
        assert replay.columns["hit_tokens"].tolist() == [one.hit for one in asked], seed
        seen["inlined"] += sum(one.inlined for one in asked)
        seen["hits"] += sum(one.inlined and one.hit > 0 for one in asked)
        seen["worlds"] += 1
    assert min(seen["inlined"] / 100, seen["hits"] / 10, seen["worlds"] / 50) > 1, seen
