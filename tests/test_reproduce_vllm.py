"""Mooncake against coupled instances: verdicts by arithmetic, the search for a rate, one fact of a real trace."""

from __future__ import annotations

from collections.abc import Callable
from math import log
from pathlib import Path

import pytest

from mooncake_bench.sim.setup import Setup
from mooncake_bench.studies.reproduce import f25_f1, f25_f8, rivals, sustained, v3_f11, v3_f12, v3_f13
from mooncake_bench.studies.reproduce.rivals import CACHING, CHUNKED, MOONCAKE, VLLM, Seen
from mooncake_bench.studies.reproduce.sustained import Field, Slo, Tails
from mooncake_bench.trace import Trace, load


def seen(*effective: float, gpu_ms: float = 1.0, steps_ms: float = 1.0) -> Seen:
    return Seen(1.0, effective, effective, 1.0, gpu_ms, steps_ms, 0.0)


# ---- gains


def test_a_gain_is_how_many_more_and_nothing_over_none() -> None:
    assert rivals.gain(0.9, 0.6) == pytest.approx(0.5)
    assert rivals.gain(0.9, 0.0) is None
    assert rivals.gains(seen(1.0, 0.9, 0.8), seen(0.5, 0.6, 0.8)) == pytest.approx((1.0, 0.5, 0.0))
    assert [rivals.percent(value) for value in (4.98, -0.1, 0.0, None)] == ["+498 %", "-10 %", "+0 %", "–"]


def test_the_three_baselines_differ_in_what_vllm_calls_them() -> None:
    setups = [rivals.rival(name, 16) for name in (VLLM, CACHING, CHUNKED)]
    assert {setup.cluster for setup in setups} == {"16M"}
    assert [setup.prefix_cache for setup in setups] == ["off", "on", "off"]
    assert [setup.schedule for setup in setups] == ["prefill-first", "prefill-first", "chunked"]
    assert rivals.rival(CACHING, 4, policy="cache-aware").policy == "cache-aware"
    assert rivals.mooncake(10, 6).cluster == "10P+6D"


def test_figure_1_is_nearest_where_the_gains_are_the_published_ones() -> None:
    # gains of 4.98, 1.57 and .59 over vLLM: shares of 1/5.98, 1/2.57, 1/1.59
    found = {MOONCAKE: seen(1.0, 1.0, 1.0), VLLM: seen(1 / 5.98, 1 / 2.57, 1 / 1.59)}
    assert f25_f1.distance("conversation", found) == pytest.approx(0.0, abs=1e-12)
    twice = {MOONCAKE: found[MOONCAKE], VLLM: seen(2 / 5.98, 2 / 2.57, 2 / 1.59)}
    assert f25_f1.distance("conversation", twice) == pytest.approx(log(2))


def test_figure_1_s_other_reading_takes_one_threshold_and_three_baselines() -> None:
    # the published three over the three baselines at 200 ms, and nothing at the other thresholds
    shares = {VLLM: 1 / 5.98, CACHING: 1 / 2.57, CHUNKED: 1 / 1.59}
    found = {MOONCAKE: seen(1.0, 1.0, 1.0)} | {name: seen(1.0, share, 1.0) for name, share in shares.items()}
    load = f25_f1.Load({1.0: found}, 1.0, {}, {})
    assert f25_f1.other_distance("conversation", load) == pytest.approx(0.0, abs=1e-12)


def test_figure_1_needs_every_threshold() -> None:
    found = {MOONCAKE: seen(0.9, 0.9, 0.9), VLLM: seen(0.5, 0.8, 0.9), CACHING: seen(0.5, 0.8, 0.89)}
    assert (f25_f1.ahead(found, VLLM), f25_f1.ahead(found, CACHING)) == (False, True)
    assert f25_f1.falling((4.98, 1.57, 0.59))
    assert f25_f1.falling((None, 1.57, 0.59))  # more than none at all: without bound
    assert not f25_f1.falling((0.6, 0.6, 0.5))


def test_figure_8_orders_the_systems() -> None:
    times = {VLLM: 1.56, CACHING: 1.43, CHUNKED: 1.90}  # the published ones
    theirs = {f25_f8.Case(name): seen(1.0, gpu_ms=value) for name, value in times.items()}
    assert f25_f8.in_order(f25_f8.Found(seen(1.0), theirs))
    theirs[f25_f8.Case(CHUNKED)] = seen(1.0, gpu_ms=1.5)  # less than vLLM's
    found = f25_f8.Found(seen(1.0, gpu_ms=2.0), theirs)
    assert not f25_f8.in_order(found)
    assert found.ratio(f25_f8.Case(VLLM)) == pytest.approx(0.78)


def test_figure_13_s_57_percent_are_75_percent_more() -> None:
    def times(share: float) -> v3_f13.Times:
        return v3_f13.Times(1.0, {"tail10": share}, {"tail10": share}, share, [], [])

    gain = v3_f13.more({MOONCAKE: times(1.0), VLLM: times(0.57)})
    assert gain == pytest.approx(v3_f13.MORE, abs=0.005)  # 1 / .57 = 1.754


# ---- the search


def solve(places: int, last: int) -> tuple[int, list[int]]:
    """The answer of a search where the first ``last + 1`` places hold, and what it asked."""
    asked: list[int] = []

    def answer(questions: list[tuple[str, int]]) -> list[bool]:
        asked.extend(place for _, place in questions)
        return [place <= last for _, place in questions]

    return sustained.together({"one": sustained.search(places)}, answer)["one"], asked


@pytest.mark.parametrize("last", range(20))
def test_a_search_finds_a_known_threshold(last: int) -> None:
    found, asked = solve(20, last)
    assert found == last
    assert len(asked) == len(set(asked))
    assert len(asked) <= 1 + 5  # the upper end, then halves of 19


def test_searches_go_round_by_round_together() -> None:
    rounds: list[int] = []

    def answer(questions: list[tuple[int, int]]) -> list[bool]:
        rounds.append(len(questions))
        return [place <= last for last, place in questions]

    found = sustained.together({last: sustained.search(64) for last in (0, 5, 40, 63)}, answer)
    assert found == {0: 0, 5: 5, 40: 40, 63: 63}
    assert rounds[:2] == [4, 3]  # the one that holds at the upper end is done


def test_a_grid_covers_both_ends_in_equal_steps() -> None:
    rates = sustained.grid(0.1, 10.0, 2.0)
    assert rates[:2] == pytest.approx([0.1, 0.2])
    assert rates[-2] < 10.0 <= rates[-1]


class Known(Field):
    """A cluster with one queue: the TTFT grows as 1 / (1 - rate), the TBT with the rate."""

    def measure(self, wanted: object) -> None:
        for cluster, place in wanted:  # type: ignore[attr-defined]
            rate = self.rates[place]
            ttft = 1.0 / (1.0 - rate) if rate < 1 else float("inf")
            self.found[cluster, place] = Tails(ttft, *(1.0 + (8 * rate if cluster == "slow" else 0.0),) * 4)


def test_a_sustained_rate_is_where_the_first_limit_is_met() -> None:
    trace = Trace.of([(0.0, 1, 1, [1])])
    field = Known(trace, {"fast": Setup(), "slow": Setup()}, sustained.grid(0.01, 2.0, 1.001))
    fast, slow, fair = Slo("fast", "mean"), Slo("slow", "mean"), Slo("slow", "mean", "fast")
    places = field.sustained([fast, slow, fair])
    # 10 / (1 - .01) = 1 / (1 - rate): rate = .901; 5 (1 + .08) = 1 + 8 rate: rate = .55; of the fast: 5 = 1 + 8 rate
    assert [field.rates[places[slo]] for slo in (fast, slow, fair)] == pytest.approx([0.901, 0.55, 0.5], rel=0.002)
    assert [field.limited_by(slo, places[slo]) for slo in (fast, slow)] == ["TTFT", "TBT"]
    assert field.limited_by(fast, len(field.rates) - 1) == "nothing tried"


def test_a_rate_below_the_one_found_that_is_not_kept_is_told() -> None:
    trace = Trace.of([(0.0, 1, 1, [1])])
    field = Field(trace, {"one": Setup()}, [1.0, 2.0, 3.0, 4.0])
    for place, tbt in enumerate((1.0, 6.0, 4.0, 9.0)):  # the limit is 5
        field.found["one", place] = Tails(1.0, tbt, tbt, tbt, tbt)
    slo = Slo("one", "mean")
    assert field.sustained([slo]) == {slo: 0}  # 3 fails, 1 fails
    assert (field.broken_below(slo, 2), field.broken_below(slo, 1)) == (1, None)


def test_two_requests_show_their_percentiles_after_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from mooncake_bench.sim.replay import run

    trace = Trace.of([(0.0, 512, 3, [1]), (60_000.0, 512, 3, [2])])
    replay = run(trace, rivals.rival(VLLM, 1))
    found = sustained.tails(replay)
    alone = float(replay.columns["prefill_ps"][0]) / 1e9
    assert found.ttft == pytest.approx(alone)  # both alone: the prefill and nothing else
    assert found.mean < found.max < 2 * found.mean  # steps of 513 and 514 tokens
    monkeypatch.setattr(sustained, "WARMUP", 0.5)
    assert sustained.tails(replay).ttft == pytest.approx(alone)


# ---- the workloads


@pytest.mark.parametrize(
    ("preset", "input_tokens", "output_tokens"),
    [("arxiv-summarization-like", 8_088, 229), ("l-eval-like", 19_019, 72), ("simulated-64k", 65_536, 512)],
)
def test_a_workload_has_the_published_lengths(preset: str, input_tokens: int, output_tokens: int) -> None:
    trace = v3_f11.field_of(preset, 0, {}, 1_000, [1.0]).trace
    assert len(trace) == 1_000
    assert trace.input_tokens.mean() == pytest.approx(input_tokens, rel=0.06)
    assert trace.output_tokens.mean() == pytest.approx(output_tokens, rel=0.06)
    assert trace.span_ms / 999 == pytest.approx(1_000, rel=0.1)  # one a second


def test_what_is_published_is_what_the_papers_print() -> None:
    assert [value[0] for value in f25_f1.PUBLISHED.values()] == [4.98, 0.64, 0.62]
    assert f25_f8.PUBLISHED["synthetic"] == (2.76, 2.59, 3.33)
    assert v3_f11.PUBLISHED == {"arxiv-summarization-like": 0.2, "l-eval-like": 0.4}
    assert (v3_f12.LEAST, v3_f12.MOST) == (0.5, 5.25)
    assert v3_f12.SETUPS["4M"].schedule == "one-at-a-time"
    assert v3_f13.TBT_WITHIN == {MOONCAKE: 1.0, VLLM: 0.57}


# ---- the published trace


@pytest.fixture(scope="module")
def on_synthetic(shared: Path) -> Callable[[Setup], Seen]:
    """Replays the synthetic trace."""
    trace = load(shared / "traces" / "mooncake-fast25" / "synthetic_trace.jsonl")
    return lambda setup: rivals.play(trace, [setup])[0]


def test_on_the_synthetic_trace_vllm_prefills_take_two_to_three_times_mooncake_s(
    on_synthetic: Callable[[Setup], Seen],
) -> None:
    """Figure 8 has 2.76; and at most two of three requests keep 100 ms there, nearly all on Mooncake (figure 7)."""
    ours, theirs = on_synthetic(rivals.mooncake(8, 8)), on_synthetic(rivals.rival(VLLM, 16))
    assert theirs.gpu_ms / ours.gpu_ms == pytest.approx(2.76, rel=0.10)
    assert theirs.effective[0] < 0.67 < 0.97 < ours.effective[0]
