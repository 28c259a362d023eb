"""Prefill in chunks and through pipelines of nodes: hand-counted, and against a stage-by-stage reference."""

from __future__ import annotations

from collections import deque
from fractions import Fraction
from functools import partial
from heapq import heappop, heappush
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.fast import replay_with
from reference.workloads import bundled

from mooncake_bench import replay as replay_trace
from mooncake_bench.api import Route, Router
from mooncake_bench.errors import InvariantError, SetupError
from mooncake_bench.hardware.cost import PS_PER_MS
from mooncake_bench.hardware.fake import FakeCost
from mooncake_bench.hardware.pipeline import PipelinedCost
from mooncake_bench.results.headline import headline
from mooncake_bench.results.invariants import check
from mooncake_bench.results.records import Records
from mooncake_bench.results.run import Run
from mooncake_bench.sim.costs import cost_of, pool_blocks_of
from mooncake_bench.sim.replay import Replay, run
from mooncake_bench.sim.setup import Setup
from mooncake_bench.trace import Trace

LRU = partial(bundled, "lru")
MS = 10**9  # ps
MEGA = 1_000_000  # bytes of activations a token, at the fake NIC's 1e9 bytes/s: 1 ms a token


def piped(group: int, chunk: int | None = None, hop: int = 0, instances: int = 1, **cost: Any) -> PipelinedCost:
    """Straight lines, 1 ms a computed token unless told, through ``instances`` groups and one decode node."""
    base = FakeCost(instances + 1, **cost)
    grouped = [True] * instances + [False]
    return PipelinedCost(base, group=group, chunk_tokens=chunk, hop_bytes_per_token=hop, prefill=grouped)


def replayed(rows: list[tuple[float, int, int, list[int]]], cost: PipelinedCost, **more: Any) -> Replay:
    """A replay of rows of 4-token blocks through groups, its invariants checked."""
    groups = len(cost) - 1
    setup = Setup(cluster=f"{groups * cost.group}P+1D", prefill_group=cost.group, **more)
    router = bundled("load-balancing")
    done = replay_with(Trace.of(rows, block_tokens=4), setup, router, bundled("accept-all"), LRU, cost)
    check(Records.of(done))
    return done


def prompts(*tokens: int, at: float = 0.0) -> list[tuple[float, int, int, list[int]]]:
    """Prompts of one moment that share nothing and end at their first token."""
    return [(at, n, 1, [100 * row + i for i in range(-(-n // 4))]) for row, n in enumerate(tokens)]


def first_tokens_ms(replay: Replay) -> list[float]:
    return (replay.columns["first_token_ps"] / MS).tolist()


# hand-counted


def test_a_prompt_passes_all_stages_and_the_next_one_enters_when_it_has_left_the_first() -> None:
    # 8 tokens are 8 ms of work, 4 at each of two stages: 0-4, 4-8. The next: 4-8, 8-12, and so on: one every 4 ms.
    replay = replayed(prompts(8, 8, 8), piped(2))
    assert first_tokens_ms(replay) == [8.0, 12.0, 16.0]
    assert replay.columns["start_ps"].tolist() == [0, 4 * MS, 8 * MS]


def test_chunks_of_one_prompt_follow_one_another_through_the_pipeline() -> None:
    # Two chunks of 4 tokens, 2 ms a stage. First stage 0-2, 2-4; second 2-4, 4-6: the fill is one stage of one chunk.
    assert first_tokens_ms(replayed(prompts(8), piped(2, 4))) == [6.0]
    # Four stages, four chunks of 2 tokens, .5 ms a stage: (4 + 3) x .5.
    assert first_tokens_ms(replayed(prompts(8), piped(4, 2))) == [3.5]


def test_the_slowest_chunk_sets_the_pace() -> None:
    # Chunks of 4, 4 and 2 tokens: 2, 2 and 1 ms a stage. First stage ends 2, 4, 5; second 4, 6, 7 = 5 + the longest.
    assert first_tokens_ms(replayed(prompts(10), piped(2, 4))) == [7.0]


def test_a_short_prompt_waits_in_the_later_stages_for_the_long_one_before_it() -> None:
    # 8 tokens: 0-4, 4-8. 2 tokens, 1 ms a stage: first stage 4-5, second free at 8: 8-9. In an empty pipeline: 2 ms.
    replay = replayed(prompts(8, 2), piped(2))
    assert first_tokens_ms(replay) == [8.0, 9.0]
    assert replay.columns["start_ps"][1] == 4 * MS
    assert replay.columns["prefill_ps"].tolist() == [8 * MS, 2 * MS]
    assert replay.columns["turn_ps"].tolist() == [4 * MS, 1 * MS]
    requests = Run.from_replay(replay).requests
    assert requests.column("prefill_ms").to_pylist() == [8.0, 5.0]  # from its start to its first token
    assert requests.column("prefill_gpu_ms").to_pylist() == [8.0, 2.0]  # node time: 2 x 4 and 2 x 1


def test_activations_keep_a_stage_until_they_have_left() -> None:
    # Chunks of 2 tokens: 1 ms a stage, and 2 ms to send to the next. First stage 0-3, 3-6; second (the last: nothing to
    # send) 3-4, 6-7. Node time: 2 x (2 + 2).
    replay = replayed(prompts(4), piped(2, 2, MEGA))
    assert first_tokens_ms(replay) == [7.0]
    assert replay.columns["node_ps"][0] == 8 * MS


def test_the_engine_is_paid_once_a_prompt_however_many_chunks() -> None:
    # 5 ms of engine, then 2 + 2 ms. Through two stages: 5, then 1 + 1 and the fill of 1.
    engine = {"prefill_constant_ms": 5.0, "prefill_overhead_ms": 5.0}
    assert first_tokens_ms(replayed(prompts(4), piped(1, 2, **engine))) == [9.0]
    assert first_tokens_ms(replayed(prompts(4), piped(2, 2, **engine))) == [8.0]


def test_chunks_pay_for_what_is_a_prefills_own_and_attend_to_the_chunks_before_them() -> None:
    # .5 ms of kernels a prefill and .25 ms a token before it. Whole: .5 + 4. Chunks of 2: .5 + 2, then .5 + 2 + .5.
    cost = {"prefill_constant_ms": 0.5, "prefix_token_ms": 0.25}
    assert first_tokens_ms(replayed(prompts(4), piped(1, 4, **cost))) == [4.5]
    assert first_tokens_ms(replayed(prompts(4), piped(1, 2, **cost))) == [5.5]


def test_a_cached_prefix_is_attended_to_by_every_chunk() -> None:
    # The second prompt has 8 of 12 tokens in the pool: chunks of 2 behind 8 and 10 tokens: 2 + .8 and 2 + 1 = 5.8 ms.
    rows = [(0.0, 8, 1, [1, 2]), (100.0, 12, 1, [1, 2, 3])]
    replay = replayed(rows, piped(1, 2, prefix_token_ms=0.1))
    assert replay.columns["first_token_ps"][1] == 105_800_000_000


def test_a_group_streams_from_the_nics_of_all_its_nodes() -> None:
    # 4 tokens of 1000 bytes: 4 us through one NIC of 1e9 bytes/s. The decode node takes 1e9 bytes/s however many send.
    cost = piped(2)
    assert cost.nic_bytes_per_s.tolist() == [2e9, 1e9]
    # From one group to another, at 2e9 bytes/s: 8 tokens take 4 us.
    rows = [(0.0, 8, 1, [1, 2]), (50.0, 8, 1, [1, 2])]
    setup = Setup(cluster="4P+1D", prefill_group=2)
    router = Told({0: Route(0), 1: Route(1, fetch_from=0)})
    done = replay_with(Trace.of(rows, block_tokens=4), setup, router, bundled("accept-all"), LRU, piped(2, instances=2))
    assert done.columns["start_ps"][1] - done.columns["arrival_ps"][1] == 4_000_000


class Told(Router):
    """Routes as told, row by row, and keeps what it saw."""

    name = "told"

    def __init__(self, routes: dict[int, Route]) -> None:
        self.routes, self.seen = routes, []

    def route(self, request, cluster):
        self.seen.append((cluster.queue_ms.tolist(), cluster.prefill_ms(request, 0 * cluster.queue_requests).tolist()))
        return self.routes.get(request.row, Route(0))


def test_a_policy_sees_when_a_prompt_could_enter_and_its_time_in_an_empty_pipeline() -> None:
    # As above: 8 tokens at 0, whose turn ends at 4; 2 tokens at 1 wait 3 ms and would take 2; 4 tokens at 2 wait for
    # both turns, 2 + 1 ms; at 7.5 the first stage is free, though the second works until 8, 9 and 11.
    rows = [(0.0, 8, 1, [1, 2]), (1.0, 2, 1, [3]), (2.0, 4, 1, [4]), (7.5, 4, 1, [5])]
    setup, router = Setup(cluster="2P+1D", prefill_group=2), Told({})
    trace = Trace.of(rows, block_tokens=4)
    done = replay_with(trace, setup, router, bundled("accept-all"), LRU, piped(2))
    assert [queue[0] for queue, _ in router.seen] == [0.0, 3.0, 3.0, 0.0]
    assert [prefill[0] for _, prefill in router.seen] == [8.0, 2.0, 4.0, 4.0]
    # first stage: 0-4, 4-5, 5-7, 7.5-9.5; second: 4-8, 8-9, 9-11, 11-13
    assert first_tokens_ms(done) == [8.0, 9.0, 11.0, 13.0]


def test_an_instance_that_fails_loses_all_that_is_in_its_stages() -> None:
    # At 5 ms the first prompt is in the second stage and the second one in the first. Both start over on group 1:
    # 5-9, 9-13 and 9-13, 13-17.
    cost = piped(2, instances=2)
    setup = Setup(cluster="4P+1D", prefill_group=2, events="5ms:fail:prefill:0")
    trace = Trace.of(prompts(8, 8), block_tokens=4)
    first = Told({0: Route(0), 1: Route(0)})
    first.route = lambda request, cluster: Route(0 if cluster.is_prefill[0] else 1)  # type: ignore[method-assign]
    done = replay_with(trace, setup, first, bundled("accept-all"), LRU, cost)
    assert first_tokens_ms(done) == [13.0, 17.0]
    Run.from_replay(done)


def test_a_request_that_is_called_off_lets_go_what_has_entered_a_stage() -> None:
    # Clients wait for 5 ms. Chunks of 4 tokens, 2 ms a stage. The first prompt, 8 tokens, would be done at 6: at 5 its
    # second chunk is in the second stage, until 6. 2 tokens that came at 3 entered at 4: 4-5, then 6-7.
    rows = [(0.0, 8, 1, [1, 2]), (3.0, 2, 1, [3])]
    replay = replayed(rows, piped(2, 4), client_patience_ms=5.0)
    assert replay.columns["status"].tolist() == [3, 1]
    assert replay.columns["first_token_ps"].tolist() == [-1, 7 * MS]


def test_a_request_that_is_called_off_in_the_first_stage_gives_up_its_later_chunks() -> None:
    # 24 tokens, six chunks: at 5 ms the third is in the first stage, 4-6, and then in the second, 6-8. 2 tokens that
    # came at 4.5 enter at 6: 6-7, 8-9.
    rows = [(0.0, 24, 1, [1, 2, 3, 4, 5, 6]), (4.5, 2, 1, [7])]
    replay = replayed(rows, piped(2, 4), client_patience_ms=5.0)
    assert replay.columns["start_ps"][1] == 6 * MS
    assert replay.columns["first_token_ps"].tolist() == [-1, 9 * MS]


@pytest.mark.parametrize(
    ("column", "more_ps", "rule"),
    [
        ("turn_ps", 1, "ran two prefills at once: rows 0 .*until 4000000001 ps"),
        ("first_token_ps", -1, "a pipeline takes no less than an empty one"),
        ("first_token_ps", 5 * MS, "let row 1 overtake row 0"),
    ],
)
def test_a_pipeline_that_contradicts_itself_is_found_out(column: str, more_ps: int, rule: str) -> None:
    replay = replayed(prompts(8, 8), piped(2))
    replay.columns[column][0] += more_ps
    if more_ps > MS:  # it ended then, too
        replay.columns["end_ps"][0] += more_ps
    with pytest.raises(InvariantError, match=rule):
        check(Records.of(replay))


# against a reference that moves every chunk through every stage


def slow_pipeline(
    arrivals: list[int], chunks: list[list[tuple[int, int]]], stages: int, overhead: int
) -> list[tuple[int, int]]:
    """Start and first token of each prompt, first come, first served, event by event."""
    line = deque(range(len(arrivals)))
    waiting: list[deque[tuple[int, int]]] = [deque() for _ in range(stages)]  # of each stage: (prompt, chunk)
    busy: list[tuple[int, int] | None] = [None] * stages
    found = [(-1, -1)] * len(arrivals)
    inside: int | None = None  # the prompt that has the first stage
    events: list[tuple[int, int]] = [(time, -1) for time in arrivals]
    heapified: list[tuple[int, int]] = []
    for event in events:
        heappush(heapified, event)

    def lasts(stage: int, item: tuple[int, int]) -> int:
        if item[1] < 0:
            return overhead
        work, hop = chunks[item[0]][item[1]]
        upto = [int(Fraction(work * k, stages)) for k in (stage, stage + 1)]
        return upto[1] - upto[0] + (hop if stage + 1 < stages else 0)

    while heapified:
        now, stage = heappop(heapified)
        if stage >= 0:
            item = busy[stage]
            assert item is not None
            busy[stage] = None
            prompt, chunk = item
            last = chunk == len(chunks[prompt]) - 1
            if chunk >= 0 and stage + 1 < stages:
                waiting[stage + 1].append(item)
            elif chunk >= 0 and last:
                found[prompt] = (found[prompt][0], now)
            if stage == 0 and last:
                inside = None
        if heapified and heapified[0][0] == now:
            continue  # all that happens at once, before anything starts
        if inside is None and line and arrivals[line[0]] <= now:
            inside = line.popleft()
            found[inside] = (now, -1)
            waiting[0] += [(inside, chunk) for chunk in range(-1, len(chunks[inside]))]
        for free in range(stages):
            if busy[free] is None and waiting[free]:
                busy[free] = waiting[free].popleft()
                heappush(heapified, (now + lasts(free, busy[free]), free))  # type: ignore[arg-type]
    return found


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30)), min_size=1, max_size=8),
    st.integers(2, 4),
    st.one_of(st.none(), st.integers(1, 9)),
    st.sampled_from([0, 300_000, MEGA]),
    st.sampled_from([0.0, 1.7]),
)
def test_a_group_agrees_with_every_chunk_at_every_stage(
    work: list[tuple[int, int]], stages: int, chunk: int | None, hop: int, engine_ms: float
) -> None:
    work = sorted((at - min(work)[0], tokens) for at, tokens in work)  # the first arrives at 0
    rows = [(float(at), n, 1, [100 * row + i for i in range(-(-n // 4))]) for row, (at, n) in enumerate(work)]
    cost = {"prefill_constant_ms": engine_ms + 0.3, "prefill_overhead_ms": engine_ms, "prefix_token_ms": 0.013}
    done = replayed(rows, piped(stages, chunk, hop, **cost))
    chunks = []
    for _, tokens in work:
        sizes = [min(chunk or tokens, tokens - first) for first in range(0, tokens, chunk or tokens)]
        before = [sum(sizes[:j]) for j in range(len(sizes))]
        # .3 + 1 a token + .013 a token before; hop bytes at 1e9 bytes/s are 1000 ps a byte
        chunks.append(
            [(300_000_000 + n * MS + p * 13_000_000, n * hop * 1000) for n, p in zip(sizes, before, strict=True)]
        )
    expected = slow_pipeline([at * MS for at, _ in work], chunks, stages, round(engine_ms * MS))
    columns = done.columns
    assert list(zip(columns["start_ps"].tolist(), columns["first_token_ps"].tolist(), strict=True)) == expected


# what must hold in general


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(0, 50), st.one_of(st.none(), st.integers(1, 20)), st.integers(1, 6))
def test_a_larger_group_never_makes_a_single_prompt_slower_where_sending_is_free(
    tokens: int, prefix: int, chunk: int | None, group: int
) -> None:
    cost = {"prefill_constant_ms": 3.7, "prefill_overhead_ms": 1.1, "prefix_token_ms": 0.37}
    smaller, larger = (piped(size, chunk, **cost).prefill_ps(0, tokens, prefix) for size in (group, group + 1))
    chunks = -(-tokens // (chunk or tokens))
    assert larger <= smaller + chunks + group  # a picosecond of rounding a chunk and stage


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 2000)), min_size=3, max_size=3), st.integers(1, 5),
       st.one_of(st.none(), st.integers(50, 900)), st.sampled_from([0, 16_384]))  # fmt: skip
def test_policies_are_told_what_the_clock_takes(
    asked: list[tuple[int, int]], group: int, chunk: int | None, hop: int
) -> None:
    setup = Setup(cluster=f"{2 * group}P+1D")
    base = cost_of(Setup(cluster="2P+1D", node=setup.node))
    cost = PipelinedCost(base, group=group, chunk_tokens=chunk, hop_bytes_per_token=hop)
    computed, prefix = np.array(asked).T
    told = cost.prefill_ms(computed.astype(float), prefix.astype(float))
    clock = [cost.prefill_ps(i, *question) for i, question in enumerate(asked)]
    assert told * PS_PER_MS == pytest.approx(clock, rel=1e-9)


def test_an_instance_that_is_no_group_of_nodes_never_prefills() -> None:
    # 4 tokens in chunks of 2 through 2 stages: 1 ms a chunk and stage, 3 turns; the decode instance has none
    told = piped(2, chunk=2).prefill_ms(np.array([4.0, 4.0]), np.zeros(2))
    assert told.tolist() == [3.0, float("inf")]
    # without groups it might, should it change its role
    assert piped(1, chunk=2).prefill_ms(np.array([4.0, 4.0]), np.zeros(2)).tolist() == [4.0, 4.0]


def test_costs_that_answer_one_question_an_instance_at_a_time_are_asked_so() -> None:
    class OneByOne(FakeCost):
        def prefill_ms(self, computed, prefix):
            assert computed.shape == prefix.shape == (2,)
            return super().prefill_ms(computed, prefix)

    cost = PipelinedCost(OneByOne(2, prefix_token_ms=0.5), chunk_tokens=2)
    # 5 tokens: 2, 2 + 1, 1 + 2; 1 token behind 4: 1 + 2
    assert cost.prefill_ms(np.array([5.0, 1.0]), np.array([0.0, 4.0])).tolist() == [8.0, 3.0]


def test_one_chunk_on_one_node_costs_what_the_prefill_does() -> None:
    base = cost_of(Setup(cluster="1P+1D"))
    cost = PipelinedCost(base, chunk_tokens=10**6)
    shapes = [(1, 0), (1, 131_071), (8192, 0), (777, 31_000)]
    assert [cost.prefill_ps(0, *shape) for shape in shapes] == [base.prefill_ps(0, *shape) for shape in shapes]


# the setup and what is told of it


def test_the_policy_sees_groups_and_the_bill_counts_nodes() -> None:
    setup = Setup(cluster="8P+8D", prefill_group=2)
    assert [role for role, _ in setup.instances] == ["P"] * 4 + ["D"] * 8
    # 3,000,000 tokens / 512 = 5859 blocks a node; 87 GB/s a node, decode nodes as they were
    assert pool_blocks_of(setup, 512) == dict.fromkeys(range(4), 2 * 5859)
    assert cost_of(setup).nic_bytes_per_s.tolist() == [174e9] * 4 + [87e9] * 8
    done = replay_trace("conversation-like", prefill_group=2, prefill_chunk=4096, max_requests=60)
    assert done.manifest["cluster"]["gpus"] == 16 * 8
    assert done.manifest["cluster"]["prefill_instances"] == 4
    (line,) = [line for line in headline(done) if line.startswith("cluster")]
    assert "(128 GPUs in all)" in line
    assert "11,718 blocks of 512 tokens a prefill group of 2 nodes" in line
    assert "prefill groups of 2 nodes, chunks of 4096 tokens" in done.manifest["cost"]["name"]
    metrics = done.metrics()
    assert metrics["gpu_hours"].value == pytest.approx(128 * metrics["duration_ms"].value / 3_600_000)


def test_the_same_work_takes_the_same_node_time_in_groups_as_alone() -> None:
    # No hop between nodes of unknown dimensions: whole prompts, 1 ms a token, none cached: 8 + 5 + 3 tokens.
    alone = Run.from_replay(run(Trace.of(prompts(8, 5, 3), block_tokens=4), Setup(cluster="2P+1D"), cost=FakeCost(3)))
    grouped = Run.from_replay(replayed(prompts(8, 5, 3), piped(2)))
    assert [each.metrics()["prefill_gpu_ms"].value for each in (alone, grouped)] == [16.0, 16.0]


def test_the_settings_of_a_run_say_what_was_on_and_nothing_of_what_was_off() -> None:
    off = Setup().to_dict()
    assert not [name for name in off if name.startswith(("prefill.", "decode.", "dram."))]
    setup = Setup(prefill_group=2, prefill_chunk=512, decode_load_gbytes_per_s=50, decode_preemption="recompute")
    assert Setup.from_dict(setup.to_dict()) == setup


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"cluster": "3P+1D", "prefill_group": 2}, "3 prefill nodes of '3P.1D' do not make whole groups of 2"),
        ({"cluster": "1P@h800+1P@a800+1D", "prefill_group": 2}, "group 0 of .* would mix nodes h800 and a800"),
        ({"cluster": "4M", "prefill_group": 2}, "prefill.group: no effect on cluster 4M"),
        ({"cluster": "4M", "prefill_chunk": 512}, "prefill.chunk_tokens: no effect on cluster 4M"),
        ({"prefill_group": 2, "events": "1s:switch:prefill:0"}, "a prefill instance here is 2 of them"),
        ({"prefill_group": 2, "events": "1s:fail:prefill:4"}, "prefill instances 0 to 3"),
        ({"prefill_group": 0}, "must be at least 1"),
    ],
)
def test_a_group_that_cannot_be_is_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(SetupError, match=reason):
        Setup(**settings)
