"""``capacity``: searches with answers known by arithmetic, rules counted by hand, and the command line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_bench.cli.line import run_line
from mooncake_bench.errors import SetupError
from mooncake_bench.hardware.fake import FakeCost
from mooncake_bench.sim.setup import Setup
from mooncake_bench.studies.capacity import find, split
from mooncake_bench.studies.capacity.find import Bench, Limits
from mooncake_bench.studies.capacity.rule import Kept, Rule
from mooncake_bench.studies.capacity.search import Bracket, Split, loads, splits
from mooncake_bench.studies.capacity.show import load_report
from mooncake_bench.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

REQUESTS = 100
# Requests a second apart, each computed in a second, on one prefill node. At speedup s > 1 the k-th of them (from 0)
# waits k (1 - 1/s) s and has its first token 1 s later: within 6 s while k <= 5 / (1 - 1/s). 90 of 100 keep that while
# 89 <= 5 / (1 - 1/s), so up to s = 89/84.
THRESHOLD = 89 / 84


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOONCAKE_BENCH_WORKERS", "1")


def equal_requests(gap_ms: float = 1000.0, output_tokens: int = 1) -> Trace:
    """Prompts of 1,000 tokens that share nothing, ``gap_ms`` apart."""
    return Trace(
        name="equal requests",
        arrival_ms=gap_ms * np.arange(REQUESTS),
        input_tokens=np.full(REQUESTS, 1000),
        output_tokens=np.full(REQUESTS, output_tokens),
        block_offsets=2 * np.arange(REQUESTS + 1),
        block_ids=np.arange(2 * REQUESTS),
        block_tokens=512,
    )


def fake(setup: Setup) -> FakeCost:
    """1 ms a computed token."""
    return FakeCost(len(setup.instances))


def bench(rule: Rule | None = None, **settings: object) -> Bench:
    own = {"cluster": "1P+1D", "policy": "round-robin", "slo_ttft_ms": 6000.0, **settings}
    setup = Setup(**own)  # type: ignore[arg-type]
    return Bench(equal_requests(), {"it": setup}, rule or Rule(), cost=fake)


def answers(search: Generator[float, bool, Bracket], holds: Callable[[float], bool]) -> tuple[Bracket, int]:
    """What a search of loads finds, and after how many questions."""
    at, asked = next(search), 1
    while True:
        try:
            at, asked = search.send(holds(at)), asked + 1
        except StopIteration as end:
            return end.value, asked


# ---- the search for a load


@pytest.mark.parametrize("start", [1.0, 0.1, 8.0])
def test_a_threshold_known_by_arithmetic_is_found_within_two_percent_in_twelve_replays(start: float) -> None:
    judge = bench()
    [found] = find.capacities(judge, Limits(start=start))
    assert found.speedup is not None
    assert THRESHOLD / 1.02 <= found.speedup <= THRESHOLD
    high = found.brackets[0].high
    assert high is not None
    assert THRESHOLD < high <= found.speedup * 1.02
    assert len(judge.judged) <= 12


def test_what_is_too_much_says_which_slo_and_how_many_keep_it() -> None:
    judge = bench()
    [found] = find.capacities(judge, Limits())
    kept, above = found.kept[0], found.above[0]
    assert kept is not None
    assert above is not None
    assert (kept.offered, kept.completed) == (REQUESTS, 1.0)
    assert judge.rule.broken(above) == "TTFT"
    low = found.brackets[0].low
    assert low is not None
    # of the k-th, 0 <= k <= 5 / (1 - 1/s) keep it
    assert kept.ttft == min(REQUESTS, int(5 / (1 - 1 / low)) + 1) / REQUESTS if low > 1 else kept.ttft == 1.0
    # arrivals 1 s apart at speedup 1: 100 in 99 s
    assert kept.offered_rps == pytest.approx(100 / 99 * low)


def test_seeds_move_arrivals_by_a_millisecond_and_so_the_answer_hardly() -> None:
    [found] = find.capacities(bench(), Limits(seeds=3))
    assert len(found.lows) == 3
    # 1 ms either way moves a wait of 5 s by at most 2 ms: far less than the 2 % to which each is found
    assert all(THRESHOLD / 1.021 <= low <= THRESHOLD * 1.001 for low in found.lows)


def test_a_rule_that_always_holds_has_no_upper_end_and_one_that_never_does_no_answer() -> None:
    [easy] = find.capacities(bench(slo_ttft_ms=1e9), Limits(most=4.0))
    assert (easy.brackets, easy.bounded) == ((Bracket(4.0, None),), False)
    [hard] = find.capacities(bench(slo_ttft_ms=999.0), Limits(least=0.25))
    assert (hard.brackets, hard.speedup) == ((Bracket(None, 0.25),), None)


@given(st.floats(0.02, 60.0), st.floats(0.03, 50.0), st.sampled_from([2.0, 1.03]))
def test_every_threshold_lies_between_the_two_ends(threshold: float, start: float, first: float) -> None:
    found, asked = answers(loads(start, 0.02, 1 / 64, 64.0, first), lambda at: at <= threshold)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= threshold < found.high <= found.low * 1.02
    assert asked <= 22  # at most 12 doublings from end to end, and 6 halvings of one of them, with room


# ---- the search for a cluster


def test_the_smallest_cluster_known_by_arithmetic() -> None:
    # three a second, of a second each: with round-robin three nodes just keep up, and two fall behind by 1/3 s a
    # request of theirs: the 50th waits 16 s. Answers of one token need no decoding, so one node does.
    judge = bench(cluster="8P+4D", speedup=3.0, slo_ttft_ms=2000.0)
    [found] = split.smallest(judge, split.Shape.of(judge.contenders["it"]))
    assert (found.clusters, found.gpus) == (("3P+1D",), 8 * 4)
    assert len(judge.judged) <= 12


def test_a_load_that_no_cluster_carries_has_no_answer() -> None:
    judge = bench(cluster="2P+2D", speedup=3.0, slo_ttft_ms=2000.0)
    [found] = split.smallest(judge, split.Shape.of(judge.contenders["it"]))
    assert (found.clusters, found.gpus) == ((), None)


def test_coupled_and_prefill_only_clusters_are_searched_by_one_number() -> None:
    alone = bench(cluster="8P+0D", speedup=3.0, slo_ttft_ms=2000.0)
    [found] = split.smallest(alone, split.Shape.of(alone.contenders["it"]))
    assert found.clusters == ("3P+0D",)
    coupled = bench(cluster="8M", speedup=3.0, slo_ttft_ms=2000.0)
    [both] = split.smallest(coupled, split.Shape.of(coupled.contenders["it"]))
    assert both.clusters == ("3M",)


def test_a_cluster_of_unlike_nodes_of_one_role_is_refused() -> None:
    with pytest.raises(SetupError, match="name one node a role"):
        split.Shape.of(Setup(cluster="2P@h800+2P@a800+2D"))


@given(st.lists(st.integers(1, 8), min_size=1, max_size=8), st.integers(1, 7), st.integers(1, 3), st.integers(1, 3))
def test_the_walk_finds_what_trying_every_split_finds(
    needed: list[int], most_decode: int, prefill_gpus: int, decode_gpus: int
) -> None:
    needed.sort(reverse=True)  # decode nodes that p + 1 prefill nodes need: never more than fewer nodes need
    most = Split(len(needed), most_decode)

    def holds(at: Split) -> bool:
        return at.decode >= needed[at.prefill - 1]

    def size(at: Split) -> int:
        return at.prefill * prefill_gpus + at.decode * decode_gpus

    every = [Split(p, d) for p in range(1, most.prefill + 1) for d in range(1, most_decode + 1)]
    good = [at for at in every if holds(at)]
    smallest = {at for at in good if size(at) == min(map(size, good))}
    search = splits(most, size)
    at, asked = next(search), 1
    while True:
        try:
            at, asked = search.send(holds(at)), asked + 1
        except StopIteration as end:
            found = end.value
            break
    assert set(found) == smallest
    assert asked <= most.prefill + most.decode + 4  # the walk, and a bisection at its beginning


# ---- the rule


def test_attainment_by_request_asks_for_both_and_by_slo_for_each() -> None:
    kept = Kept(offered=10, offered_rps=1.0, both=0.8, ttft=0.9, tbt=0.9, completed=1.0)
    assert not Rule(0.9, "request").holds(kept)
    assert Rule(0.9, "slo").holds(kept)
    assert Rule(0.9, "request").broken(kept) == "TTFT or TBT"


def test_turning_requests_away_gains_nothing() -> None:
    # at most one prompt at a time: whoever is let in has its first token a second later, and most are turned away
    judge = bench(Rule(0.9, "slo"), policy="round-robin+queue-cap:limit=1", speedup=4.0)
    assert judge.holds([find.Point("it", 0, 4.0, "1P+1D")]) == [False]
    [kept] = judge.judged.values()
    assert kept.completed == kept.ttft < 0.5


# ---- the command line


def test_the_command_prints_capacities_and_stores_every_replay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    points = tmp_path / "points.parquet"
    line = "capacity conversation-like --max-requests 60 --cluster 1P+1D --clusters 1P+1D,2P+2D --format json -q"
    assert run_line([*line.split(), "--points", str(points)]) == 2
    assert "--cluster: no effect beside --clusters" in capsys.readouterr().err
    assert run_line([*line.replace("--cluster 1P+1D ", "").split(), "--points", str(points)]) == 0
    found = json.loads(capsys.readouterr().out)
    stored = pq.read_table(points).to_pylist()
    assert len(stored) == found["replays"]
    for contender in found["contenders"]:
        mine = {row["speedup"]: row["holds"] for row in stored if row["contender"] == contender["contender"]}
        assert mine[contender["speedup"]]
        assert contender["speedup"] == max(at for at, holds in mine.items() if holds)
        assert not mine[contender["seeds"][0]["does_not_hold_at"]]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--attain 1.5", "--attain: expected a share"),
        ("--attain-by percentile", "--attain-by: expected one of request, slo"),
        ("--search cluster --seeds 3", "--seeds: no effect with --search cluster"),
        ("--least 4 --most 2", "expected two speedups above 0"),
        (
            "--speedup 100",
            "(--speedup): expected one between --least 0.015625 and --most 64",
        ),
        ("--most 1e30", "expected two speedups above 0 and up to 1e+09"),
        ("--clusters ,", "expected clusters between commas"),
        ("--clusters 8P+8D,8P+8D", "names one twice"),
        ("--force", "--force: no effect without --points"),
        ("--points x.csv", "expected a file name that ends in .parquet"),
    ],
)
def test_what_cannot_be_searched_is_refused(words: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_line(["capacity", "conversation-like", "--max-requests", "5", *words.split()]) == 2
    assert told in capsys.readouterr().err


def test_nothing_that_holds_is_nothing_to_conclude(capsys: pytest.CaptureFixture[str]) -> None:
    line = "capacity conversation-like --max-requests 5 --slo ttft:1ms --least 0.5"
    assert run_line(line.split()) == 3
    shown = capsys.readouterr()
    assert "holds at no load tried" in " ".join(shown.out.split())
    assert "the rule holds at nothing that was tried" in shown.err


def test_a_row_over_seeds_is_that_of_the_median_seed() -> None:
    brackets = (Bracket(2.0, 2.04), Bracket(1.0, 1.02), Bracket(3.0, 3.06), Bracket(4.0, 4.08))
    kept = tuple(Kept(10, load, 0.9, 0.9, 1.0, 1.0) for load, _ in brackets)
    found = find.Capacity("it", brackets, kept, kept)
    assert (found.speedup, found.seed) == (2.0, 0)  # of 1, 2, 3 and 4 the lower median, which was replayed
    report = load_report(bench_of(found), [found], Limits(seeds=4))
    assert report.sheets[0].rows == (("it", "2.00", "2.00", "1.00 to 4.00", "90.0 %", "2.04", "TTFT"),)


def bench_of(found: find.Capacity) -> Bench:
    made = bench(Rule(0.95))
    made.judged = {
        find.Point("it", seed, load, "1P+1D"): kept
        for seed, (bracket, kept) in enumerate(zip(found.brackets, found.kept, strict=True))
        if (load := bracket.low) and kept
    }
    return made
