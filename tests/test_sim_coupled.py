"""Coupled instances: counted by hand, and against a simulator that does one step at a time."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from live_fakes import NODE, FakeBench
from reference.coupled import Asked, Limits, simulate
from reference.fast import replay_with, token_times_ps
from reference.policies import LRU

from mooncake_bench import plugins
from mooncake_bench.api import Admission, Cluster, Request, Route, Router
from mooncake_bench.errors import InvariantError, SetupError
from mooncake_bench.hardware.analytic import AnalyticCost, Coefficients, EngineOverhead
from mooncake_bench.hardware.fake import FakeCost
from mooncake_bench.live.bench import LiveSettings
from mooncake_bench.live.cost import build_live_cost
from mooncake_bench.report.tables import render
from mooncake_bench.results.invariants import check
from mooncake_bench.results.records import Records
from mooncake_bench.results.run import Run
from mooncake_bench.sim.replay import run
from mooncake_bench.sim.setup import SCHEDULES, Setup
from mooncake_bench.studies.served import engine as served
from mooncake_bench.studies.served.engine import StepCost, Work, serve
from mooncake_bench.trace import Trace, load

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mooncake_bench.hardware.cost import CostModel
    from mooncake_bench.sim.replay import Replay

MS = 10**9
COMPLETED, FAILED = 1, 3


class InTurn(Router):
    """Row r goes to instance r mod M; notes what the view shows of the cache."""

    name = "in-turn"

    def __init__(self, instances: int) -> None:
        self.instances = instances
        self.shown: list[dict[str, Any]] = []
        self.seen: list[int] = []

    def route(self, request: Request, cluster: Cluster) -> Route:
        at = request.row % self.instances
        self.seen.append(int(cluster.cached_tokens(request)[at]))
        assert not cluster.fetchable_tokens(request).any()
        return Route(prefill=at, decode=self.instances - 1)


class Anyone(Admission):
    name = "anyone"

    def reject(self, request: Request, route: Route, cluster: Cluster) -> None:
        assert route.decode == route.prefill


def replayed(asked: Sequence[Asked], cost: CostModel, block: int, **setup: Any) -> tuple[Replay, InTurn]:
    """The package's replay of these requests, its invariants checked."""
    trace = Trace(
        name="rows",
        arrival_ms=np.array([one.arrival_ps / 1e9 for one in asked]),
        input_tokens=np.array([one.input_tokens for one in asked]),
        output_tokens=np.array([one.output_tokens for one in asked]),
        block_offsets=np.cumsum([0, *(len(one.blocks) for one in asked)]),
        block_ids=np.array([block for one in asked for block in one.blocks]),
        block_tokens=block,
    )
    router = InTurn(len(cost))
    made = Setup(cluster=f"{len(cost)}M", **setup)
    replay = replay_with(trace, made, router, Anyone(), LRU, cost)
    check(Records.of(replay))
    return replay, router


# counted by hand: a prefill takes 1 ms a token, a decode step 10 ms + 1 ms a request + 1 us a context token


def fake(vram: int) -> FakeCost:
    return FakeCost(1, vram_tokens=vram)


def tokens_ms(replay: Replay) -> list[list[float]]:
    return [[time / MS for time in times] for times in token_times_ps(replay)]


def table(replay: Replay, *names: str) -> list[tuple[Any, ...]]:
    rows = Records.of(replay).requests().select(names).to_pylist()
    return [tuple(row[name] for name in names) for row in rows]


def test_a_prefill_stalls_the_batch() -> None:
    # 0 prefills until 100, then steps 10 + 1 + .101 and 10 + 1 + .102: tokens at 111.101 and 122.203. Meanwhile, at
    # 120, 1 has come: its prefill of 50 comes first, until 172.203. Both decode: contexts 103 + 51, so 12.154.
    asked = [Asked(0, 100, 4, (1, 2)), Asked(120 * MS, 50, 2, (3,))]
    replay, _ = replayed(asked, fake(10_000), 50)
    assert tokens_ms(replay) == [[100, 111.101, 122.203, 184.357], [172.203, 184.357]]
    # the last gap of 0 is 184.357 - 122.203 = 62.154, pause and step; the mean is (184.357 - 100) / 3
    assert table(replay, "prefill_gpu_ms", "prefill_ms", "tbt_max_ms", "first_gap_ms", "decode_wait_ms") == [
        (100, 100, 62.154, 11.101, 0), (50, 50, 12.154, 12.154, 0),
    ]  # fmt: skip
    assert metrics(replay, "max_itl_ms", "mean_itl_ms") == [
        62.154,
        pytest.approx((11.101 + 11.102 + 62.154 + 12.154) / 4),
    ]
    assert table(replay, "queue_ms", "ttft_ms") == [(0, 100), (pytest.approx(2.203), pytest.approx(52.203))]


def metrics(replay: Replay, *names: str) -> list[Any]:
    found = Run.from_replay(replay).metrics()
    return [found[name].value for name in names]


def test_a_chunk_shares_its_step_with_the_batch() -> None:
    # Steps of 20 tokens. 0 computes its 20 until 20 and decodes at 10 + 1 + .021. 1, here since 25, joins the step of
    # 31.021: 1 token of 0 and 19 of 1, 11 + .022 + 19; then 1 and the last 6, 11 + .023 + 6; then it decodes alone.
    asked = [Asked(0, 20, 4, (1,)), Asked(25 * MS, 25, 2, (2, 3))]
    replay, _ = replayed(asked, fake(10_000), 20, schedule="chunked", step_tokens=20, sequences=4)
    assert tokens_ms(replay) == [[20, 31.021, 61.043, 78.066], [78.066, 89.092]]
    # its chunks made those steps 19 and 6 ms longer
    assert table(replay, "prefill_gpu_ms", "prefill_ms") == [(20, 20), (25, pytest.approx(47.045))]
    # 78.066 - 31.021 = 47.045 of the two steps were mixed; decoding in all but the first 20 ms
    assert metrics(replay, "max_itl_ms") == [pytest.approx(30.022)]


def test_requests_run_one_at_a_time() -> None:
    # 10 of prefill and one step of 10 + 1 + .011 each: 1 starts when 0 has its last token
    asked = [Asked(0, 10, 2, (1,)), Asked(0, 10, 2, (2,))]
    replay, _ = replayed(asked, fake(10_000), 10, schedule="one-at-a-time")
    assert tokens_ms(replay) == [[10, 21.011], [31.011, 42.022]]


def test_a_prompt_finds_what_an_earlier_one_left_in_vram() -> None:
    # 1 shares two blocks of 10 with 0 and computes only its third
    asked = [Asked(0, 20, 1, (1, 2)), Asked(100 * MS, 30, 1, (1, 2, 3))]
    replay, router = replayed(asked, fake(10_000), 10)
    assert tokens_ms(replay) == [[20], [110]]
    assert router.seen == [0, 20]
    assert table(replay, "hit_tokens", "fetched_tokens", "computed_tokens") == [(0, 0, 20), (20, 0, 10)]
    off, _ = replayed(asked, fake(10_000), 10, prefix_cache="off")
    assert tokens_ms(off) == [[20], [130]]


def test_two_prompts_of_one_step_end_together_and_see_nothing_of_each_other() -> None:
    # both are computed, 2 x 20 ms, although they are the same; each had half of the step
    asked = [Asked(0, 20, 1, (1, 2)), Asked(0, 20, 1, (1, 2))]
    replay, _ = replayed(asked, fake(10_000), 10)
    assert tokens_ms(replay) == [[40], [40]]
    assert table(replay, "hit_tokens", "prefill_gpu_ms", "prefill_ms") == [(0, 20, 40), (0, 20, 40)]
    # a step of 30 tokens holds one of them only; by then the second is a hit but for its last token
    small, _ = replayed(asked, fake(10_000), 10, step_tokens=30)
    assert tokens_ms(small) == [[20], [21]]


def test_a_prompt_longer_than_a_step_goes_alone() -> None:
    asked = [Asked(0, 40, 1, (1,)), Asked(0, 5, 1, (2,))]
    replay, _ = replayed(asked, fake(10_000), 40, step_tokens=30)
    assert tokens_ms(replay) == [[40], [45]]


def test_a_preempted_request_computes_its_context_anew() -> None:
    # VRAM of 26 tokens. Both prompts of 10 until 20; steps of 12.022 and 12.024: now 2 x 13 tokens, no room to grow. 1,
    # the last admitted, gives way. 0 goes on alone, 11.013 and 11.014, to its end at 66.073; then 1 computes the 12
    # tokens whose KV it had, until 78.073, and its fourth token comes with the next step, 11.013.
    asked = [Asked(0, 10, 5, (1,)), Asked(0, 10, 4, (2,))]
    replay, _ = replayed(asked, fake(26), 10, prefix_cache="off")
    assert tokens_ms(replay) == [[20, 32.022, 44.046, 55.059, 66.073], [20, 32.022, 44.046, 89.086]]
    assert table(replay, "preemptions", "prefill_gpu_ms", "prefill_ms") == [(0, 10, 20), (1, 10 + 12, 20)]
    assert replay.counters["recomputed_tokens"] == 12
    # with the cache its prompt may still be there: then only the 2 generated tokens are computed, until 68.073
    kept, _ = replayed(asked, fake(26), 10)
    assert tokens_ms(kept)[1] == [20, 32.022, 44.046, 79.086]


def test_what_does_not_fit_alone_fails_when_it_is_first_in_line() -> None:
    # 0 is there until 21.011, and 1 needs 30 + 1 + 1 tokens of 31
    asked = [Asked(0, 10, 2, (1,)), Asked(1, 30, 1, (2,)), Asked(1, 10, 1, (3,))]
    replay, _ = replayed(asked, fake(31), 10, prefix_cache="off", sequences=1)
    assert replay.columns["status"].tolist() == [COMPLETED, FAILED, COMPLETED]
    assert replay.columns["end_ps"][1] == 21_011 * MS // 1000
    assert table(replay, "reject_reason")[1] == ("larger than a coupled instance's VRAM",)


def test_the_cache_gives_way_to_generated_tokens() -> None:
    # VRAM of 40: two prompts of 10 stay in the cache; 2 has 10 + 1 and then needs a token a step: 20 + 10 + 10 are full
    # before the step of its 11th token, so the older of the blocks goes
    asked = [
        Asked(0, 10, 1, (1,)),
        Asked(MS, 10, 1, (2,)),
        Asked(100 * MS, 10, 12, (3,)),
        Asked(5000 * MS, 20, 1, (2, 4)),
    ]
    replay, router = replayed(asked, fake(40), 10)
    assert replay.counters["evictions"] == 1
    assert router.seen == [0, 0, 0, 10]


def test_one_chunked_request_at_a_time_takes_what_the_fits_of_served_logs_assume() -> None:
    """The chunked engine behind `calibrate fit --served`, in float milliseconds."""
    rng = np.random.default_rng(0)
    asked, now = [], 0
    for row in range(120):
        now += int(rng.integers(0, 900)) * MS
        asked.append(Asked(now, int(rng.integers(1, 6000)), int(rng.integers(1, 120)), (row,)))
    limits = {"step_tokens": 700, "sequences": 5}
    cost = analytic(1, 10**9)
    replay, _ = replayed(asked, cost, 10_000, schedule="chunked", prefix_cache="off", **limits)
    work = Work(
        [one.arrival_ps / MS for one in asked], [one.input_tokens for one in asked],
        [one.output_tokens for one in asked], [0] * len(asked),
    )  # fmt: skip
    steps = StepCost(cost.coefficients[0], cost.overhead, limits["sequences"])
    answers = serve(work, steps, served.Limits(limits["step_tokens"], limits["sequences"], ahead=False))
    assert replay.columns["first_token_ps"] / MS == pytest.approx(answers.first_ms(), abs=1e-6)
    assert replay.columns["end_ps"] / MS == pytest.approx(answers.last_ms(), abs=1e-6)


class Looker(InTurn):
    """Notes what the view shows of queues and batches at each arrival."""

    name = "looker"

    def route(self, request: Request, cluster: Cluster) -> Route:
        tables = (cluster.joined, cluster.waiting, cluster.promised)
        self.shown.append(
            {
                "queue": (cluster.queue_ms[0], cluster.queue_requests[0], cluster.routed_tokens[0]),
                "batch": (cluster.decode_batch[0], cluster.decode_tokens[0]),
                "tables": tuple(sorted(zip(t.since_ms.tolist(), t.tokens.tolist(), strict=True)) for t in tables),
            }
        )
        return super().route(request, cluster)


def test_a_view_shows_lines_and_batches_of_coupled_instances() -> None:
    # 0 prefills until 100, 1 (there since 10) until 150, 2 (since 20) until 180, each step with all that wait: so 1 and
    # 2 together until 180. At 20 the view counts 80 of 0 and 50 of 1.
    asked = [Asked(t * MS, n, 50, (n,)) for t, n in ((0, 100), (10, 50), (20, 30), (120, 10), (250, 10))]
    replay, shown = looked(asked, fake(10_000), 100)
    assert tokens_ms(replay)[1][0] == tokens_ms(replay)[2][0] == 180
    assert shown[0] == {"queue": (0, 0, 0), "batch": (0, 0), "tables": ([], [], [])}
    assert shown[2] == {"queue": (130, 2, 152), "batch": (0, 0), "tables": ([], [], [(100, 101), (150, 51)])}
    # at 120: 0 has its first token and waits for the step after this one, of 80 for 1 and 2
    assert shown[3]["queue"] == (60, 2, 101 + 51 + 31)
    assert shown[3]["tables"] == ([], [(100, 101)], [(180, 31), (180, 51)])
    # from 190 on all four decode: 14 ms and 101 + 51 + 31 + 11 us, then 4 more: at 250, four steps are done
    assert shown[4]["queue"] == (0, 0, 0)
    assert shown[4]["batch"] == (4, 101 + 51 + 31 + 11 + 4 * 4)
    assert shown[4]["tables"] == ([(190, 15), (190, 35), (190, 55), (190, 105)], [], [])


def test_contexts_stand_still_while_a_prefill_stalls_the_batch() -> None:
    # two steps of 11.011 and 11.012 after the first token at 10; the prefill of 1 starts with the third, at 32.023
    asked = [Asked(0, 10, 50, (1,)), Asked(30 * MS, 500, 50, (2,)), Asked(400 * MS, 10, 50, (3,))]
    _, shown = looked(asked, fake(10_000), 1000)
    assert shown[1]["batch"] == (1, 12)
    assert shown[2]["batch"] == (1, 13)
    assert shown[2]["queue"] == (pytest.approx(532.023 - 400), 1, 501)
    assert shown[2]["tables"][:2] == ([(10, 13)], [])


def looked(asked: Sequence[Asked], cost: CostModel, block: int) -> tuple[Replay, list[dict[str, Any]]]:
    with mock.patch(f"{__name__}.InTurn", Looker):
        replay, router = replayed(asked, cost, block)
    return replay, router.shown


class ShortestFirst(InTurn):
    """An order of its own: the shortest prompt next."""

    name = "shortest-first"

    def order(self, instance: int, queue: Sequence[Request], cluster: Cluster) -> int:
        return min(range(len(queue)), key=lambda i: queue[i].input_tokens)


def test_a_router_orders_the_prompts() -> None:
    # 0 until 50; then 2 before 1, one prompt a step; 1 finds the block of 2, which came after it
    asked = [Asked(0, 50, 1, (9,)), Asked(MS, 40, 1, (1, 2)), Asked(2 * MS, 20, 1, (1,))]
    with mock.patch(f"{__name__}.InTurn", ShortestFirst):
        replay, _ = replayed(asked, fake(10_000), 20, step_tokens=20)
    assert tokens_ms(replay) == [[50], [90], [70]]
    assert table(replay, "hit_tokens", "ceiling_tokens") == [(0, 0), (20, 20), (0, 0)]


# what steps cost


def test_a_step_of_prompts_costs_what_their_tokens_and_attention_do() -> None:
    cost = analytic(2, 10**6)
    assert cost.prefills_ps(0, [(700, 300)]) == cost.prefill_ps(0, 700, 300)
    # (E1) of n = 300, S = 100 * 50 + 100^2 / 2 + 200^2 / 2 = 30,000 and twice o_pre of 76
    expected = (5.5**2 + (0.1089 * 300) ** 2) ** 0.5 + 13.05 + 1.849e-6 * 30_000 + 2 * 76
    assert cost.prefills_ps(0, [(100, 50), (200, 0)]) / MS == pytest.approx(expected, abs=1e-9)


def test_a_mixed_step_reads_the_weights_once_and_is_no_shorter_than_its_decode_step() -> None:
    cost = analytic(1, 10**6)
    # 500 tokens of a chunk and 12 that decode: (E1) of 512 without attention, that of the chunk, and o_dec of 7.8
    products = (5.5**2 + (0.1089 * 512) ** 2) ** 0.5 + 13.05
    assert cost.chunks_ps(0, 12, [500], 0) / MS == pytest.approx(products + 1.849e-6 * 500**2 / 2 + 7.8, abs=1e-9)
    assert cost.chunks_ps(0, 12, [500], 1) == cost.chunks_ps(0, 12, [500], 0) + 76 * MS
    assert cost.chunks_ps(0, 1, [1], 0) >= cost.decode_ps(0, 1)
    # alone, a whole prompt costs what it does elsewhere
    assert cost.chunks_ps(0, 0, [500], 1) + cost.attend_ps(0, 500) * 100 == pytest.approx(
        cost.prefill_ps(0, 500, 100), 1e-9
    )
    assert cost.attend_ps(0, 500) == 1_849 * 500  # 1.849e-6 ms a token^2


def test_live_kernels_price_the_same_steps(tmp_path: Path) -> None:
    # prefill 10 + 0.1 n + 0.002 n p ms, decode 4 + B + 0.001 T ms; o_pre 76, o_dec 7.8
    node = tmp_path / "one.toml"
    node.write_text(NODE.format(gpus=1), encoding="utf-8")
    settings = LiveSettings(5, "auto", "auto", None, str(tmp_path / "cache"))
    cost = build_live_cost([str(node)], "llama-3-8b", "mooncake-a800", 10_000, None, settings, open_kernels=FakeBench)
    assert cost.prefills_ps(0, [(512, 0)]) == cost.prefill_ps(0, 512, 0)
    assert cost.prefills_ps(0, [(256, 0), (256, 0)]) == cost.prefill_ps(0, 512, 0) + 76 * MS
    assert cost.chunks_ps(0, 0, [512], 1) == cost.prefill_ps(0, 512, 0)
    assert cost.chunks_ps(0, 0, [512], 0) == cost.prefill_ps(0, 512, 0) - 76 * MS
    assert cost.chunks_ps(0, 256, [256], 0) == max(
        cost.prefill_ps(0, 512, 0) - 76 * MS + 7_800 * MS // 1000, cost.decode_ps(0, 256)
    )
    assert cost.attend_ps(0, 512) == pytest.approx(0.002 * 512 * MS, rel=1e-6)


# against the step-by-step simulator


COSTS: dict[str, dict[str, float]] = {
    "plain": {"prefill_constant_ms": 3.0, "computed_token_ms": 1.0, "prefix_token_ms": 0.125, "step_token_ms": 0.01},
    "odd": {"prefill_constant_ms": 0.0, "computed_token_ms": 0.37, "prefix_token_ms": 0.0, "step_token_ms": 0.0013},
}


def analytic(instances: int, vram: int) -> AnalyticCost:
    """The A800 numbers of COST_MODEL.md."""
    a800 = Coefficients(5.50, 0.1089, 13.05, 1.849e-6, 18.82, 0.112, 0.0449, 2.688e-5)
    return AnalyticCost(
        [a800] * instances, EngineOverhead(76.0, 7.8), name="a800", version="1", error="none", layers=80,
        kv_bytes_per_token=327_680, nic_bytes_per_s=87e9, vram_tokens=vram,
    )  # fmt: skip


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Asked], Limits, int, str]:
    """Requests of a few families of prompts, on instances of hardly any memory."""
    block = draw(st.sampled_from([1, 2, 4, 8]))
    vram = draw(st.integers(8, 120))
    chunked = draw(st.booleans())
    sequences = draw(st.integers(1, 6))
    step_tokens = draw(st.integers(sequences if chunked else 1, 40))
    instances = draw(st.integers(1, 2))
    grid = draw(st.sampled_from([1, 10 * MS, 4_000_000_007]))
    rows, now = [], 0
    for _ in range(draw(st.integers(1, 14))):
        now += grid * draw(st.integers(0, 12))
        tokens = draw(st.integers(1, 40))
        family, forks = draw(st.integers(0, 2)), draw(st.integers(0, 10))
        full = tokens // block
        # below the fork a family shares its blocks; above it, those with the same fork; a part of a block is its own
        ids = [family * 10_000 + i * 100 + (forks if i >= forks else 99) for i in range(full)]
        ids += [family * 10_000 + 5_000 + full * 100 + forks * 10 + tokens % block] if tokens % block else []
        rows.append(Asked(now, tokens, draw(st.integers(1, 30)), tuple(ids)))
    limits = Limits(chunked, step_tokens, sequences, draw(st.booleans()), vram, block)
    return rows, limits, instances, draw(st.sampled_from([*COSTS, "analytic"]))


@settings(max_examples=60)
@given(worlds())
def test_every_token_comes_when_the_step_by_step_simulator_says(world: tuple[list[Asked], Limits, int, str]) -> None:
    asked, limits, instances, kind = world
    cost = analytic(instances, limits.vram) if kind == "analytic" else FakeCost(
        instances, vram_tokens=limits.vram, **COSTS[kind]
    )  # fmt: skip
    replay, router = replayed(
        asked, cost, limits.block,
        schedule="chunked" if limits.chunked else "prefill-first", step_tokens=limits.step_tokens,
        sequences=limits.sequences, prefix_cache="on" if limits.cache else "off",
    )  # fmt: skip
    ends = [simulate(asked[i::instances], limits, cost) for i in range(instances)]
    columns = replay.columns
    for row, (one, times) in enumerate(zip(asked, token_times_ps(replay), strict=True)):
        assert times == one.tokens_ps, row
        assert columns["status"][row] == (FAILED if one.failed_ps >= 0 else COMPLETED)
        assert columns["end_ps"][row] == (one.failed_ps if one.failed_ps >= 0 else one.tokens_ps[-1])
        assert columns["start_ps"][row] == one.start_ps
        assert columns["hit_blocks"][row] == one.hit_blocks
        assert columns["preemptions"][row] == one.preemptions
        if one.tokens_ps:
            assert abs(columns["prefill_ps"][row] - one.prefill_share) <= 50  # rounded once a run of steps
        if limits.cache:
            assert router.seen[row] == min(one.held_blocks * limits.block, one.input_tokens)
    assert replay.counters["evictions"] == sum(end.evictions for end in ends)


class Picky(Admission):
    """Turns every fifth request away at its turn, and the next one when it has its first token."""

    name = "picky"

    def reject(self, request: Request, route: Route, cluster: Cluster) -> None:
        return None

    def reject_prefill(self, request: Request, route: Route, cluster: Cluster) -> str | None:
        return "at its turn" if request.row % 5 == 1 else None

    def reject_decode(self, request: Request, route: Route, cluster: Cluster) -> str | None:
        return "with its first token" if request.row % 5 == 2 else None


class Alive(InTurn):
    """Instances that live in turn; looks at single requests, so that the tables are kept."""

    name = "alive"

    def route(self, request: Request, cluster: Cluster) -> Route:
        assert len(cluster.joined.tokens) >= 0
        alive = np.flatnonzero(cluster.is_prefill)
        return Route(prefill=int(alive[request.row % len(alive)]))


@settings(max_examples=40)
@given(
    worlds(),
    st.lists(st.tuples(st.integers(1, 99), st.integers(0, 1)), max_size=4),
    st.sampled_from([None, 5.0, 40.0]),
    st.sampled_from([0, 2]),
)
def test_nothing_is_left_behind_whatever_happens(
    world: tuple[list[Asked], Limits, int, str], blows: list[tuple[int, int]], patience_ms: float | None, retries: int
) -> None:
    """Instances die and recover, clients leave and come back, an admission has its say at every stage."""
    asked, limits, _, _ = world
    now, dead, events = 0, set[int](), []
    for later, instance in blows:
        now += later
        events.append(f"{now}ms:{'recover' if instance in dead else 'fail'}:coupled:{instance}")
        dead ^= {instance}
    with mock.patch(f"{__name__}.InTurn", Alive), mock.patch(f"{__name__}.Anyone", Picky):
        replay, _ = replayed(  # checks its invariants, and that nothing is held at the end
            asked, FakeCost(2, vram_tokens=limits.vram, **COSTS["odd"]), limits.block,
            schedule="chunked" if limits.chunked else "prefill-first", step_tokens=limits.step_tokens,
            sequences=limits.sequences, prefix_cache="on" if limits.cache else "off", events=",".join(events) or None,
            client_patience_ms=patience_ms, client_retries=retries,
        )  # fmt: skip
    assert (replay.columns["status"] > 0).all()


# every policy, view and accident


SPECS = [name for name in plugins.discover() if name != "elastic"]  # which moves instances between two roles
SMALL = {"vram_tokens": 120_000, "max_requests": 80, "speedup": 2.0}


def small(cluster: str = "4M", **setup: Any) -> Run:
    """A hundred-odd real prompts on two crowded instances; a run checks its invariants and accounts."""
    return Run.from_replay(run(load("conversation-like"), Setup(cluster=cluster, **SMALL | setup)))


@pytest.mark.parametrize("schedule", ["prefill-first", "chunked"])
@pytest.mark.parametrize("spec", SPECS)
def test_every_policy_runs_unchanged(spec: str, schedule: str) -> None:
    counts = small(policy=spec, schedule=schedule).manifest["counts"]
    assert counts["offered"] == 80 == counts["completed"] + counts["rejected"] + counts["failed"]
    assert counts["completed"] > 0


@pytest.mark.parametrize("view", ["delayed:500ms", "router-only"])
@pytest.mark.parametrize("policy", ["kvcache-centric", "predictive:td=12s", "load-balancing"])
def test_every_view_shows_coupled_instances(view: str, policy: str) -> None:
    assert small(policy=policy, view=view).manifest["counts"]["completed"] > 0
    assert small(policy=policy, view=view, schedule="chunked").manifest["counts"]["completed"] > 0


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_run_reads_sensibly(schedule: str) -> None:
    found = small(schedule=schedule, policy="round-robin")
    text = render(found, width=140)
    assert f"cluster 4M (8 GPUs each): llama-3-70b on a800, engine mooncake-a800, {schedule}" in text
    assert "prefill node" not in text
    assert "decode node" not in text
    values = {name: value.value for name, value in found.metrics().items()}
    busy = values["prefill_utilisation_ratio"] + values["decode_utilisation_ratio"]
    assert 0 < values["prefill_utilisation_ratio"] < busy <= 1
    assert values["streamed_bytes"] == values["fetches"] == 0
    timeline = found.timeline
    both = timeline["prefill_utilisation_ratio"].to_numpy() + timeline["decode_utilisation_ratio"].to_numpy()
    assert both.max() <= 1 + 1e-12
    assert both.mean() > 0.5


def test_token_gaps_are_those_of_the_tokens() -> None:
    for schedule in ("prefill-first", "chunked"):
        replay = run(load("conversation-like"), Setup(cluster="4M", schedule=schedule, **SMALL))
        found = Run.from_replay(replay)
        gaps = [np.diff(times) / 1e9 for times in token_times_ps(replay)]
        rows = found.requests.select(["tbt_ms", "tbt_max_ms", "status"]).to_pylist()
        for mine, row in zip(gaps, rows, strict=True):
            if row["status"] != "completed" or not len(mine):
                continue
            assert row["tbt_max_ms"] == mine.max()
            assert row["tbt_ms"] == pytest.approx(np.sort(mine)[len(mine) - (len(mine) + 9) // 10 :].mean())
        pooled = np.concatenate([mine for mine, row in zip(gaps, rows, strict=True) if row["status"] == "completed"])
        assert found.metrics()["max_itl_ms"].value == pooled.max()
        assert found.metrics()["mean_itl_ms"].value == pytest.approx(pooled.mean())
        assert found.metrics()["p99_itl_ms"].value == pytest.approx(np.percentile(pooled, 99))
        assert replay.columns["preemptions"].sum() > 0


def test_a_run_that_contradicts_itself_is_refused() -> None:
    replay = run(load("conversation-like"), Setup(cluster="4M", **SMALL))
    more = replay.columns | {"prefill_ps": replay.columns["prefill_ps"] * 2}
    with pytest.raises(InvariantError, match="prefill takes no less than its share of the steps"):
        check(Records.of(dataclasses.replace(replay, columns=more)))
    shifted = replay.columns | {"prefill_ps": np.where(replay.columns["preemptions"] > 0, 10**15, 0)}
    with pytest.raises(InvariantError, match=r"coupled instance . spent .* ps on prefills"):
        check(Records.of(dataclasses.replace(replay, columns=shifted)))
    few = dataclasses.replace(replay.setup, sequences=1)
    with pytest.raises(InvariantError, match=r"its batch is no more than coupled\.sequences"):
        check(Records.of(dataclasses.replace(replay, setup=few)))


def test_instances_die_and_clients_leave_without_a_trace() -> None:
    events = "3s:fail:coupled:0,9s:recover:coupled:0,20s:fail:coupled:1,21s:recover:coupled:1"
    for schedule in SCHEDULES:
        found = small(schedule=schedule, events=events, client_patience_ms=4000.0, policy="predictive:td=12s")
        counts = found.manifest["counts"]
        assert counts["offered"] == 80 == counts["completed"] + counts["rejected"] + counts["failed"]
        assert counts["failed"] > 0


def test_a_crowded_run_does_not_depend_on_when_records_are_written() -> None:
    trace, setup = load("conversation-like"), Setup(cluster="4M", **SMALL)
    one, other = run(trace, setup), run(trace, setup, flush=10)
    assert all(np.array_equal(one.columns[name], other.columns[name], equal_nan=True) for name in one.columns)


@pytest.mark.parametrize(
    ("setup", "words"),
    [
        ({"schedule": "chunked"}, "coupled.schedule: no effect on cluster 8P\\+8D"),
        ({"cluster": "2M", "pool_blocks": 5}, "pool.blocks: no effect on cluster 2M"),
        ({"cluster": "2M", "nic_gbytes_per_s": 5.0}, "nic.gbytes_per_s: no effect"),
        ({"cluster": "2M", "schedule": "one-at-a-time", "sequences": 4}, "no effect where requests run one at a time"),
        ({"cluster": "2M", "schedule": "chunked", "step_tokens": 100}, "100 tokens cannot decode 256 requests"),
    ],
)
def test_settings_that_mean_nothing_are_refused(setup: dict[str, Any], words: str) -> None:
    with pytest.raises(SetupError, match=words):
        Setup(**setup)


def test_settings_are_told_of_where_they_have_an_effect() -> None:
    assert not [name for name in Setup().to_dict() if name.startswith("coupled.")]
    told = {name: value for name, value in Setup(cluster="16M").to_dict().items() if name.startswith("coupled.")}
    assert list(told.values()) == ["prefill-first", None, None, "on"]


# another simulator


def test_round_robin_reuses_what_another_replayer_reports(shared: Path) -> None:
    """Dynamo's replayer: .1010 of prompt tokens reused, with 8.4 M tokens of local cache on each of 16 workers."""
    trace = load(shared / "traces" / "mooncake-fast25" / "conversation_trace.jsonl")
    replay = run(trace, Setup(cluster="16M", policy="round-robin", vram_tokens=8_400_000))
    assert replay.columns["hit_tokens"].sum() / trace.input_tokens.sum() == pytest.approx(0.1010, abs=0.001)
