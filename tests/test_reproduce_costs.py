"""Published results that rest on costs, links and the division of nodes: arithmetic, digitised points, cheap facts."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import pytest

from mooncake_bench.sim.costs import cost_of
from mooncake_bench.sim.replay import run as simulate
from mooncake_bench.sim.setup import Setup
from mooncake_bench.studies import replays
from mooncake_bench.studies.reproduce import (
    f25_f10,
    f25_f12,
    f25_f13,
    f25_f14,
    f25_f15,
    v3_f2,
    v3_f7,
)
from mooncake_bench.studies.reproduce.sources import Traces
from mooncake_bench.trace import Trace, load

if TYPE_CHECKING:
    from pathlib import Path

    from mooncake_bench.studies.reproduce.outcome import Result

KV_BYTES = 327_680  # a token of both 70B models


@pytest.fixture(scope="module")
def digitised(shared: Path) -> dict[tuple[str, str, str], list[float]]:
    """Digitised curves by figure, setting and series, in order of x."""
    found: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    with (shared / "measurements" / "mooncake" / "paper_figures_digitized.csv").open() as stream:
        for line in csv.DictReader(stream):
            key = (line["figure"], line["setting"], line["series"])
            found.setdefault(key, []).append((float(line["x"]), float(line["value"])))
    return {key: [value for _, value in sorted(points)] for key, points in found.items()}


@pytest.fixture(scope="module")
def synthetic(shared: Path) -> Trace:
    """The published synthetic trace."""
    return load(shared / "traces" / "mooncake-fast25" / "synthetic_trace.jsonl")


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replays stay in this process: few are faster here than processes start."""
    monkeypatch.setenv(replays.WORKERS, "1")


def ours(result: Result) -> dict[tuple[str, str], float | None]:
    return {(row.group, row.what): row.ours for row in result.rows}


# ---- what is typed in is what was digitised


def test_the_numbers_typed_in_are_the_digitised_ones(digitised: dict[tuple[str, str, str], list[float]]) -> None:
    series = {"schedule": "sched", "prefill": "prefill", "transfer": "transfer", "load": "load", "decode": "decode"}
    for percent, parts in f25_f14.PUBLISHED.items():
        for part, values in parts.items():
            assert list(values) == digitised["FAST25_fig14", str(percent), series[part]], (percent, part)
    for (nic, name), values in f25_f12.PUBLISHED.items():
        assert list(values) == digitised["FAST25_fig12", nic, name]
    named = {"ttft": "avg_ttft_s", "ideal": "transfer_theoretical_s", "actual": "transfer_real_s"}
    for key, values in f25_f13.PUBLISHED.items():
        assert list(values) == digitised["FAST25_fig13", "", named[key]]
    assert list(v3_f2.PREFILL) == digitised["arXivv3_fig2_left", "", "prefill_norm"]
    assert list(v3_f2.DECODE) == digitised["arXivv3_fig2_right", "", "decode_norm_vs_batch_seq8k"]
    for way, name in (("serialised", "store_serialized_s"), ("overlapped", "store_layerwise_s")):
        assert list(v3_f7.PUBLISHED[way]) == digitised["arXivv3_fig7", "", name]


# ---- F25-F14


def test_the_cached_part_of_figure_14_comes_out_of_the_pool() -> None:
    # 95 % of 8192 tokens are 7782.4, of 256 blocks of 32: 243 blocks, 7776 tokens
    replay = simulate(f25_f14.requests([(95, 8192), (0, 8192)]), Setup(cluster="1P+1D"))
    assert replay.columns["hit_tokens"].tolist() == [0, 7776, 0, 0]
    assert replay.columns["computed_tokens"].tolist() == [7776, 416, 8192, 8192]


def test_the_range_of_the_engine_time_of_figure_14_is_where_every_sum_is_within_10_percent() -> None:
    # 900 + o in 900 .. 1100 and 50 + o in 90 .. 110: o in 40 .. 60
    assert f25_f14.engine_range([900, 50], [1000, 100]) == pytest.approx((40, 60))
    assert f25_f14.engine_range([1000], [1000]) == pytest.approx((0, 100))  # never below 0
    assert f25_f14.engine_range([900, 50], [1000, 400]) is None  # 0 .. 200 and 310 .. 390


@pytest.mark.parametrize(
    ("cut", "says"), [(0.86, True), (0.884, True), (0.83, True), (0.913, True), (0.82, False), (0.92, False)]
)
def test_a_cut_of_figure_14_may_be_the_text_s_or_the_bars(cut: float, says: bool) -> None:
    assert f25_f14.says_so(cut, 0.86, 0.884) is says  # 0.83 .. 0.914


def test_figure_14_holds_within_10_percent_in_all_prefills() -> None:
    result = f25_f14.run(Traces())
    assert {row.verdict for row in result.rows} == {"within 10 %"}
    assert [claim.holds for claim in result.claims] == [True, True]


# ---- F25-F12


def test_a_simulated_flow_takes_bytes_over_bandwidth() -> None:
    assert f25_f12.flow_ms(87 * 10**9, 87 * 10**9) == 1000.0
    assert f25_f12.flow_ms(10**9, 4 * 10**9) == 250.0


def test_figure_12_s_text_is_met_within_10_percent() -> None:
    assert (f25_f12.near(96, 87), f25_f12.near(95, 87), f25_f12.near(78, 87)) == (False, True, False)
    # 40 GB over the link: 2.074 ms + 40 / 89.53 s = 448.9 ms, 89.1 GB/s; over TCP 44.6 ms + 40 / 38.92 s = 1072 ms
    found = ours(f25_f12.run(Traces()))
    assert found["4 x 200G", "transfer engine, 40 GB"] == pytest.approx(89.1, abs=0.1)
    assert found["4 x 200G", "transfer engine over TCP, 40 GB"] == pytest.approx(1072.4 / 448.85, rel=1e-3)


# ---- v3-F2 and v3-F7


def test_curves_of_figure_2_are_compared_over_their_largest() -> None:
    assert v3_f2.normalised([1, 2, 4]) == [0.25, 0.5, 1.0]
    assert v3_f2.furthest([0.2, 0.5, 1.0], [0.25, 0.4, 1.0]) == pytest.approx(0.1)
    assert v3_f2.grows_faster([1, 2, 4, 7])
    assert not v3_f2.grows_faster([1, 2, 3])


def test_storing_adds_the_copy_or_a_layer_of_it() -> None:
    # 8,000 tokens x 327,680 B / 49 GB/s = 53.5 ms, of 80 layers one: 0.669 ms
    found = ours(v3_f7.run(Traces()))
    assert found["serialised", "8k tokens"] == pytest.approx(8000 * KV_BYTES / 49e6, rel=1e-6)
    assert found["layer by layer", "8k tokens"] == pytest.approx(8000 * KV_BYTES / 49e6 / 80, rel=1e-6)


def test_claims_of_figure_7_follow_from_times() -> None:
    lengths = v3_f7.LENGTHS
    serialised = dict(zip(lengths, (50, 100, 200, 400, 800), strict=True))
    assert v3_f7.hides(serialised, dict.fromkeys(lengths, 100.0))  # 1/8 of 800
    assert not v3_f7.hides(serialised, dict.fromkeys(lengths, 101.0))
    assert v3_f7.flat({1: 100, 2: 120})
    assert not v3_f7.flat({1: 100, 2: 121})
    assert v3_f7.grows(serialised)  # 16 times, published .8656 / .1106 = 7.8 times
    assert not v3_f7.grows({**serialised, lengths[0]: 110})  # 7.3 times


# ---- F25-F10


def cases(local: float, aware: float, shared: float) -> dict[f25_f10.Case, f25_f10.Point]:
    """Made-up hit ratios; a prefill takes 1000 ms less 1000 ms x its hits."""
    hits = {f25_f10.SHARED: shared, f25_f10.CHOSEN: local, f25_f10.AWARE: aware, f25_f10.LARGE: local}
    return {case: f25_f10.Point(ratio, 1000 - 1000 * ratio) for case, ratio in hits.items()}


def test_claims_of_figure_10_follow_from_hits_and_times() -> None:
    # gains over load-balancing: .4 / .2 = 2, .6 / .5 = 1.2, .6 / .2 = 3; times 600/800, 400/500, 400/800
    points = {
        "conversation": cases(0.2, 0.39, 0.4), "toolagent": cases(0.5, 0.59, 0.6), "synthetic": cases(0.2, 0.61, 0.6)
    }  # fmt: skip
    more, less, order, halved = f25_f10._claims(points)
    assert (order.holds, halved.holds) == (True, True)
    assert (more.holds, less.holds) == (False, False)  # against cache-aware, synthetic finds .6 instead of .61
    assert "load-balancing" in order.detail
    del points["toolagent"]
    assert [claim.holds for claim in f25_f10._claims(points)] == [False, False, None, None]


def test_a_shared_cache_finds_what_a_local_one_has_not(one_process: None) -> None:
    # A of 51,200 tokens is on node 0, which B keeps busy for seconds when A comes again: the least loaded node, 1, has
    # nothing of it, and may fetch it all. Of three prompts one is found: 1 / 3.
    a, b = range(100), range(100, 200)
    made = f25_f10._measure(Trace.of([(0.0, 51_200, 5, a), (100_000.0, 51_200, 5, b), (101_000.0, 51_200, 5, a)]))
    assert made[f25_f10.SHARED].hit_ratio == pytest.approx(1 / 3)
    assert made[f25_f10.CHOSEN].hit_ratio == 0
    assert made[f25_f10.LARGE] == made[f25_f10.CHOSEN]  # three million tokens are enough


# ---- F25-F15


def test_claims_of_figure_15_follow_from_shares_and_times() -> None:
    shares = {5: 0.78, 6: 0.97, 7: 0.98, 8: 0.99, 9: 0.98, 10: 0.98, 11: 0.96}
    assert f25_f15.plateau(shares)
    assert not f25_f15.plateau({**shares, 9: 0.97})
    assert [prefill for prefill in shares if f25_f15.falls(shares, prefill)] == [5, 6, 11]  # at most .97
    assert f25_f15.monotone([5.0, 2.0, 1.0], rising=False)
    assert not f25_f15.monotone([5.0, 1.0, 2.0], rising=False)
    assert f25_f15.monotone([5.0, 1.0, 1.01], rising=False, slack=0.02)
    assert f25_f15.monotone([30.0, 29.9, 36.0], rising=True, slack=0.01)
    assert not f25_f15.monotone([30.0, 28.0, 36.0], rising=True, slack=0.01)


def test_slower_decode_steps_cost_so_much_more_a_sequence() -> None:
    setup = Setup(cluster="1P+1D")
    before, after = cost_of(setup), f25_f15.slower(3.0, setup)
    assert after.decode_ps(1, 7) - before.decode_ps(1, 7) == pytest.approx(7 * 3e9, abs=2)
    assert after.prefill_ps(0, 1000, 0) == before.prefill_ps(0, 1000, 0)
    assert after.version != before.version


def test_the_published_tbt_lie_on_a_line_over_the_batches_they_imply() -> None:
    # 0.6 answers a ms: batches 0.6 x TBT / decode nodes are 1.718, 1.902, 2.2, 2.625, 3.283, 4.4 and 7.02
    eight = f25_f15.Point(0.98, 900, 35, 29, step_ms=30, decode_batch=0.6 * 30 / 8)
    slope, floor = f25_f15.published_slope({(f25_f15.ENGINES[0], 1.0, 8): eight})
    # their mean is 3.307, that of the TBTs 38.857; products of the distances sum to 109.4, squares to 21.17
    assert slope == pytest.approx(109.4 / 21.17, abs=0.01)
    assert floor == pytest.approx(38.857 - 3.307 * 109.4 / 21.17, abs=0.1)


# ---- F25-F13


def test_claims_of_figure_13_follow_from_times() -> None:
    times = {24: 4.0, 40: 3.0, 100: 1.9, 400: 1.0}
    assert f25_f13.below(times)
    assert not f25_f13.below({**times, 100: 2.0})
    assert f25_f13.sharp(times)  # 4 > 2 x 1.9
    assert not f25_f13.sharp({**times, 24: 3.8})
    assert f25_f13.keeps({24: 3.0, 100: 1.15, 400: 1.0}, 100)
    assert not f25_f13.keeps({24: 3.0, 100: 1.16, 400: 1.0}, 100)


def test_a_stream_on_an_idle_network_takes_what_theory_says() -> None:
    # alone: 8,000 tokens x 327,680 B at 5 GB/s
    replay = simulate(Trace.of([(0.0, 8000, 5, range(16))]), f25_f13._setup("kvcache-centric", 1.0, 40))
    found = f25_f13.point(replay)
    assert found.ideal == pytest.approx(8000 * KV_BYTES / 5e9)
    assert found.actual == pytest.approx(found.ideal, rel=1e-6)
    assert (found.fetch_actual, found.fetched_tb) == (0.0, 0.0)


# ---- cheap facts of the published trace


def test_too_few_prefill_nodes_lose_a_fifth_of_the_synthetic_trace(synthetic: Trace) -> None:
    found = f25_f15.point(simulate(synthetic, f25_f15._setup("mooncake-a800", 1.0, 5)))
    assert found.effective == pytest.approx(0.777, abs=0.02)  # read by eye
    assert found.ttft_ms == pytest.approx(5750, rel=0.1)


def test_a_fast_network_carries_the_synthetic_trace_as_theory_says(synthetic: Trace) -> None:
    found = f25_f13.point(simulate(synthetic, f25_f13._setup("kvcache-centric", 1.0, 400)))
    assert found.ideal == pytest.approx(0.0994, rel=0.05)  # digitised
    assert found.actual == pytest.approx(0.1017, rel=0.05)
    assert found.ttft < 2
