"""The papers' results on routing and admission: what is made of the numbers, and two facts on published traces."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest

from mooncake_bench.studies import replays
from mooncake_bench.studies.reproduce import f25_f5, f25_f11, routers, v3_f8, v3_f9, v3_t3
from mooncake_bench.studies.reproduce.admissions import Fates, Loads
from mooncake_bench.studies.reproduce.routers import BEST, ROUTERS, Point, Times
from mooncake_bench.trace import load

if TYPE_CHECKING:
    from pathlib import Path


def times(mean: float, median: float = 1.0) -> Times:
    """Times to first token of which only these two matter."""
    return Times(mean, 0.1, 0.5, median, 2.0, 5.0, 0.9)


def found(*means: float) -> routers.Found:
    """Four routers with these means, in the order of the papers."""
    return dict(zip(ROUTERS, map(times, means), strict=True))


# ---- routers


def test_an_order_is_strict_and_counts_every_neighbour() -> None:
    assert routers.in_order(found(4.0, 3.0, 2.0, 1.0))
    assert not routers.in_order(found(4.0, 3.0, 2.0, 2.0))
    assert not routers.in_order(found(3.0, 4.0, 2.0, 1.0))
    assert not routers.in_order(found(4.0, 3.0, 2.0, 1.0), "median")  # all are 1


def test_ratios_are_over_kvcache_centric() -> None:
    assert routers.over_best(found(8.0, 4.0, 3.0, 2.0), "random") == 4.0
    assert routers.average([times(1.0), times(3.0)]).mean == 2.0


def test_a_range_names_what_holds_and_what_does_not() -> None:
    assert routers.span([("a", True), ("b", True)]) == "at all of a, b"
    assert routers.span([("a", False), ("b", False)]) == "at none of a, b"
    assert routers.span([("a", True), ("b", False), ("c", True)]) == "at a, c, not at b"


def test_a_range_is_taken_over_one_parameter_at_a_time() -> None:
    points = [Point(""), Point("rate", "1"), Point("rate", "2"), Point("split", "8P")]
    every = [found(4, 3, 2, 1), found(4, 3, 2, 1), found(1, 3, 2, 1), found(4, 3, 2, 1)]
    lines = list(routers.spans(points, every, routers.in_order))
    assert lines == ["rate: at 1, not at 2", "split: at all of 8P"]


def test_where_a_level_is_met_is_read_off_logarithms() -> None:
    # from (1, 10) to (4, 1000): 100 is half way in its logarithm, so at exp((ln 1 + ln 4) / 2) = 2
    assert routers.met_at([1.0, 4.0], [10.0, 1_000.0], 100.0) == pytest.approx(2.0)
    assert routers.met_at([1.0, 4.0, 9.0], [10.0, 10.0, 5.0], 7.0) == pytest.approx(
        4 * (9 / 4) ** (math.log(7 / 10) / math.log(5 / 10))
    )
    assert routers.met_at([1.0, 4.0], [10.0, 1_000.0], 5.0) is None


def test_random_alone_is_drawn_from_the_seed() -> None:
    point = Point("seed", "3", {"speedup": 2.0}, {BEST: f"{BEST}:threshold=2"}, seed=3)
    assert (point.setup("random").seed, point.setup(BEST).seed) == (3, 0)
    assert (point.setup(BEST).policy, point.setup(BEST).speedup) == ("kvcache-centric:threshold=2", 2.0)


def test_published_ratios_are_those_of_the_printed_seconds() -> None:
    ratios = [round(f25_f5._published(router, "mean")[0], 2) for router in ROUTERS[:-1]]
    assert ratios == [6.40, 1.72, 1.17]  # 19.65, 5.27, 3.58 over 3.07
    median, error = f25_f5._published("cache-aware", "median")
    assert median == pytest.approx(2.2 / 1.8)
    assert error == pytest.approx(2.2 / 1.8 * (0.2 / 2.2 + 0.2 / 1.8))  # relative errors add
    assert round(f25_f5.GAIN, 2) == 0.14


def test_levels_resemble_where_their_factors_are_smallest() -> None:
    published = found(92.07, 60.41, 14.36, 6.26)
    assert v3_f8.distance(published) == 0
    doubled = found(2 * 92.07, 60.41 / 2, 2 * 14.36, 6.26 / 2)
    assert v3_f8.distance(doubled) == pytest.approx(math.log(2))  # too high and too low count alike


# ---- admissions


def fates(*rejected: int) -> dict[str, Fates]:
    """Three admissions of 10,000 requests that reject so many."""
    return {policy: Fates(10_000, count, 0, 0, 0) for policy, count in zip(v3_t3.PUBLISHED, rejected, strict=True)}


@pytest.mark.parametrize(
    ("rejected", "holds"),
    [((1_020, 1_000, 900), True), ((1_019, 1_000, 900), False), ((900, 1_000, 800), False), ((27, 27, 27), False),
     ((5, 2, 0), True), ((0, 0, 0), False)],
)  # fmt: skip
def test_rejections_are_in_order_by_steps_of_two_per_cent(rejected: tuple[int, ...], holds: bool) -> None:
    assert v3_t3.in_order(fates(*rejected)) is holds


def test_table_3_publishes_shares_of_23_000_requests() -> None:
    assert {policy: round(count / v3_t3.REQUESTS, 3) for policy, count in v3_t3.PUBLISHED.items()} == {
        "baseline": 0.182, "early": 0.164, "predictive": 0.156
    }  # fmt: skip
    assert v3_t3.share(fates(1_820, 1_640, 1_560)["baseline"]) == 0.182
    assert list(v3_t3._steps(v3_t3.PUBLISHED)) == ["-10%", "-14%"]  # 1 - 3771/4183, 1 - 3589/4183


def loads(prefill: list[float], decode: list[float], since: int = 0) -> Loads:
    """Loads at so many seconds."""
    return Loads([float(second) for second in range(len(prefill))], prefill, decode, since, 0)


def test_opposite_loads_are_in_anti_phase_and_the_ramp_does_not_count() -> None:
    opposite = loads([9.0, 0.0, 1.0, 0.0, 1.0], [9.0, 1.0, 0.0, 1.0, 0.0], since=1)
    assert opposite.correlation == pytest.approx(-1)
    assert opposite.deviations == (0.5, 0.5)
    together = loads([0.0, 0.1, 0.0, 0.1], [0.0, 0.1, 0.0, 0.1])
    assert v3_f9.anti_phase({"early": opposite})
    assert not v3_f9.anti_phase({"early": together})
    assert v3_f9.decorrelated({"early": opposite, "predictive": together})
    assert v3_f9.damped({"early": opposite, "predictive": together})  # 0.05 against 0.5
    assert not v3_f9.damped({"early": together, "predictive": opposite})


def test_a_load_that_does_not_move_has_no_correlation() -> None:
    still = loads([0.5] * 4, [0.1, 0.2, 0.3, 0.4])
    assert still.correlation is None
    assert not v3_f9.anti_phase({"early": still})


def test_loads_swing_as_published_from_about_5_to_about_95_per_cent() -> None:
    wide = [0.05] * 50 + [0.95] * 50
    assert v3_f9.deep({"early": loads(wide, wide[::-1])})
    assert not v3_f9.deep({"early": loads(wide, [0.5] * 50 + [0.95] * 50)})


# ---- replicas


def test_a_replica_counts_where_it_is_ready() -> None:
    # key 1: on instances 0, 1, 2, and only promised on 1; key 2: nowhere
    assert f25_f11._replicas({1: 0b111}, {1: 0b010}, [1, 2]) == [2, 0]


# ---- on published traces


def test_figure_5_s_order_holds_on_the_beginning_of_the_trace(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(replays.WORKERS, "1")  # four short replays: no processes to start
    trace = load(shared / "traces" / "mooncake-fast25" / "conversation_trace.jsonl").select(max_requests=1_500)
    [judged] = routers.play(trace, [Point("")])
    assert routers.in_order(judged)
    assert routers.in_order(judged, "median")


def test_the_hottest_keys_are_those_that_most_requests_have(shared: Path) -> None:
    trace = load(shared / "traces" / "mooncake-fast25" / "synthetic_trace.jsonl")
    blocks, offsets = trace.block_ids.tolist(), trace.block_offsets.tolist()
    counted: Counter[int] = Counter()
    for row in range(len(trace)):
        counted.update(set(blocks[offsets[row] : offsets[row + 1]]))
    keys, uses = f25_f11.hottest(trace)
    assert uses == sorted(counted.values(), reverse=True)
    assert [counted[key] for key in keys[:1_000]] == uses[:1_000]


def test_answers_are_stretched_and_nothing_else(shared: Path) -> None:
    trace = load(shared / "traces" / "mooncake-fast25" / "synthetic_trace.jsonl")
    quarter = v3_f9._stretched(trace, 0.25)
    assert quarter.output_tokens.tolist() == [max(1, tokens // 4) for tokens in trace.output_tokens.tolist()]
    assert np.array_equal(quarter.input_tokens, trace.input_tokens)
    assert v3_f9._stretched(trace, 1.0) is trace
