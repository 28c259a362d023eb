"""What pictures of runs show, against the stored parquet files read another way."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from test_results_tiny import all_rejected, interrupted, one_request, tiny_replay, tiny_run

from mooncake_bench.errors import SetupError
from mooncake_bench.report import figures
from mooncake_bench.report.figure import Figure, Guide, Series, rows
from mooncake_bench.report.figures import _curves, _over_time, queue
from mooncake_bench.results import Run, open_run
from mooncake_bench.sim.replay import run as simulate
from mooncake_bench.sim.setup import Setup
from mooncake_bench.trace import Trace

REQUESTS = 60
RUN_KINDS = [name for name, kind in figures.kinds().items() if kind.TAKES == "runs"]


def busy_trace() -> Trace:
    """Requests that share prefixes and come faster than two prefill instances can compute."""
    draw = random.Random(3)
    made = []
    for row in range(REQUESTS):
        family, length = draw.randrange(4), draw.randrange(4, 30)
        blocks = [100 * family + i if i < 6 else 10_000 * (row + 1) + i for i in range(length)]
        made.append((row * 300 + draw.randrange(200), 512 * length, draw.randrange(1, 60), blocks))
    return Trace.of(made)


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Two small runs of an overloaded cluster, from their folders: one that rejects, one that does not."""
    folder, trace = tmp_path_factory.mktemp("runs"), busy_trace()
    setups = [
        Setup(cluster="2P+1D", slo_ttft_ms=2500, slo_tbt_ms=30, policy=policy)
        for policy in ("round-robin+early", "kvcache-centric")
    ]
    return [open_run(Run.from_replay(simulate(trace, setup)).save(folder)) for setup in setups]


def table(run: Run, name: str = "requests") -> dict[str, list[Any]]:
    """A table of a run as its file has it."""
    assert run.path is not None
    found: dict[str, list[Any]] = pq.read_table(run.path / f"{name}.parquet").to_pydict()
    return found


def each_request(run: Run) -> list[dict[str, Any]]:
    assert run.path is not None
    found: list[dict[str, Any]] = pq.read_table(run.path / "requests.parquet").to_pylist()
    return found


def series_of(figure: Figure, panel: int = 0, label: str | None = None) -> list[Series]:
    return [each for each in figure.panels[panel].series if label in (None, each.label)]


def test_the_runs_have_something_to_show(stored: list[Run]) -> None:
    statuses = [table(run)["status"] for run in stored]
    assert "rejected" in statuses[0]
    assert set(statuses[1]) == {"completed"}


# ---- counts and distributions


def test_bars_are_the_counts_of_the_file(stored: list[Run]) -> None:
    figure = figures.make("outcomes", stored)
    assert figure.runs == ("round-robin+early", "kvcache-centric")
    for run, bars, tokens in zip(stored, figure.panels[0].series, figure.panels[1].series, strict=True):
        found: dict[str, list[int]] = {name: [0, 0] for name in figure.panels[0].x.categories}
        for request in each_request(run):
            mine = ["offered"]
            if request["status"] == "completed":
                mine += ["completed", *(["within SLOs"] if request["slo_ok"] else [])]
            else:
                mine.append(f"rejected at {request['reject_stage']}")
            for name in mine:
                found[name][0] += 1
                found[name][1] += request["input_tokens"]
        assert bars.y == tuple(count for count, _ in found.values())
        assert tokens.y == tuple(size for _, size in found.values())


@pytest.mark.parametrize(("kind", "column", "ms"), [("ttft-cdf", "ttft_ms", 1000), ("tbt-cdf", "tbt_ms", 1)])
def test_a_curve_is_the_share_of_values_up_to_each_point(stored: list[Run], kind: str, column: str, ms: int) -> None:
    figure = figures.make(kind, stored)
    every = [[value / ms for value in table(run)[column] if value is not None] for run in stored]
    for values, curve in zip(every, figure.panels[0].series, strict=True):
        assert curve.y[0] == 0
        assert list(curve.x[1 : 1 + len(values)]) == sorted(values)
        for x, y in zip(curve.x[1:], curve.y[1:], strict=True):
            assert y <= sum(value <= x for value in values) / len(values)  # less where another has the same value
        assert curve.y[-1] == 1
        assert curve.x[-1] == max(2500 / ms if ms > 1 else 30, *map(max, every))  # flat up to the axis' end
    slo = {"ttft-cdf": 2.5, "tbt-cdf": 30}[kind]
    assert [(guide.at, guide.upright) for guide in figure.panels[0].guides] == [(slo, True)]


def test_a_long_curve_keeps_exact_points() -> None:
    values = np.random.default_rng(1).exponential(size=10_000)
    curve = _curves.cumulative(values, 10_000, "long", 0)
    assert len(curve.x) == _curves.POINTS + 1
    assert (curve.x[1], curve.x[-1]) == (values.min(), values.max())
    assert all(y == np.count_nonzero(values <= x) / 10_000 for x, y in zip(curve.x[1:], curve.y[1:], strict=True))


def test_few_values_far_out_are_beyond_the_axis_and_said() -> None:
    values = np.append(np.linspace(20, 30, 999), 5000)
    axis, words = _curves.axis("TBT, ms", [values], [])
    assert axis.high is not None
    assert 30 < axis.high < 40
    assert words == "Beyond the axis: 1 request, up to 5,000 ms (TBT)."


# gaps of the hand-counted replay, ms: a 12.009, 12.021, 12.023; b 22.030, 12.023 (tests/test_results_tiny.py)
TBT_BY_METRIC = {
    ("tail10", "include"): [12.023, 22.030],
    ("max", "include"): [12.023, 22.030],
    ("mean", "include"): [(12.009 + 12.021 + 12.023) / 3, (22.030 + 12.023) / 2],
    # 99 % of the way along a's three gaps, and along b's two
    ("p99", "include"): [12.021 + 0.98 * 0.002, 12.023 + 0.99 * 10.007],
    ("mean", "exclude"): [(12.021 + 12.023) / 2, 12.023],
}


@pytest.mark.parametrize(("metric", "first"), TBT_BY_METRIC)
def test_tbt_is_the_one_that_the_slo_judges(metric: str, first: str) -> None:
    setup = Setup(cluster="1P+1D", slo_ttft_ms=8.5, slo_tbt_ms=20.0, tbt_metric=metric, first_gap=first,
                  policy="cache-aware+queue-cap")  # fmt: skip
    figure = figures.make("tbt-cdf", [tiny_run(setup=setup)])
    assert list(figure.panels[0].series[0].x[1:3]) == pytest.approx(sorted(TBT_BY_METRIC[metric, first]))


@pytest.mark.parametrize("x", ["tbt", "ttft"])
def test_goodput_at_every_threshold_is_a_count_of_the_file(stored: list[Run], x: str) -> None:
    figure = figures.make("goodput", stored, x=x)
    for run, curve in zip(stored, figure.panels[0].series, strict=True):
        requests = each_request(run)
        for threshold, share in list(zip(curve.x, curve.y, strict=True))[1::7]:
            good = 0
            for request in requests:
                if request["status"] != "completed":
                    continue
                tbt = request["tbt_ms"] or 0.0
                if x == "tbt":
                    good += request["ttft_ms"] <= 2500 and tbt <= threshold
                else:
                    good += request["ttft_ms"] / 1000 <= threshold and tbt <= 30
            assert share == good / REQUESTS


def test_goodput_at_the_slo_is_the_metric(stored: list[Run]) -> None:
    for run, curve in zip(stored, figures.make("goodput", stored).panels[0].series, strict=True):
        at = max(i for i, x in enumerate(curve.x) if x <= 30)
        assert curve.y[at] == run.metrics()["request_goodput_ratio"].value


def test_curves_reach_an_slo_that_no_request_came_near() -> None:
    generous = Setup(cluster="1P+1D", slo_ttft_ms=1e6, slo_tbt_ms=50.0, policy="cache-aware+queue-cap")
    run = tiny_run(setup=generous)
    (curve,) = figures.make("goodput", [run]).panels[0].series
    # the longest TBT is 22.030 ms (see above), so that all the goodput is there long before 50 ms
    assert curve.x[-2:] == pytest.approx((22.030, 50))
    assert set(curve.y[-2:]) == {run.metrics()["request_goodput_ratio"].value}
    (curve,) = figures.make("ttft-cdf", [run]).panels[0].series  # 1,000 s is pointed at, not drawn to scale
    assert curve.x[-1] < 1


def test_what_a_long_curve_says_of_its_points_is_so_of_its_numbers() -> None:
    values = np.random.default_rng(1).exponential(size=1000)
    made = _curves.distribution("ttft-cdf", "TTFT", "TTFT, s", [], ["long"], [values], (Guide("SLO", 9, upright=True),))
    (curve,) = made.panels[0].series
    assert "A curve of more than 400 requests has 400 exact steps, and is flat before and after them." in made.note
    assert sum(after != before for before, after in pairwise(curve.y)) == 400


# ---- over time


def test_loads_are_the_timeline_and_ticks_its_rejections(stored: list[Run]) -> None:
    figure = figures.make("load", stored)
    for number, run in enumerate(stored):
        file = table(run, "timeline")
        for pool in ("prefill", "decode"):
            (line,) = series_of(figure, number, pool)
            known = dict(zip(file["time_ms"], file[f"{pool}_load_ratio"], strict=True))
            assert [known[round(x * 1000)] for x in line.x] == list(line.y)
            assert max(y for y in line.y if y is not None) == max(known.values())  # no peak is lost
        marks = series_of(figure, number, "rejected")
        assert sum(y or 0 for each in marks for y in each.y) == table(run)["status"].count("rejected")


def test_queues_are_the_timeline(stored: list[Run]) -> None:
    for run in stored:
        figure = figures.make("queue", [run])
        file = table(run, "timeline")
        for panel, column in zip(figure.panels, ("queued_requests", "waiting_requests"), strict=True):
            known = dict(zip(file["time_ms"], file[column], strict=True))
            assert [known[round(x * 1000)] for x in panel.series[0].x] == list(panel.series[0].y)


def test_hits_are_sums_over_the_requests_of_each_stretch(stored: list[Run]) -> None:
    figure = figures.make("cache", stored)
    for run, label in zip(stored, figure.runs, strict=True):
        (line,) = series_of(figure, 0, label)
        width = line.x[1] * 1000
        for left, share in list(zip(line.x, line.y, strict=True))[:-1]:
            there = [
                request
                for request in each_request(run)
                if left * 1000 <= request["arrival_ms"] < left * 1000 + width and request["hit_tokens"] is not None
            ]
            tokens = sum(request["input_tokens"] for request in there)
            assert share == (sum(request["hit_tokens"] for request in there) / tokens if tokens else None)


def test_every_run_has_the_ceiling_of_its_own_requests(stored: list[Run]) -> None:
    figure = figures.make("cache", stored)
    for number, (run, label) in enumerate(zip(stored, figure.runs, strict=True)):
        (hits,), (ceiling,) = series_of(figure, 0, label), series_of(figure, 0, f"infinite cache, {label}")
        assert (ceiling.run, ceiling.dashed) == (number, True)
        width = ceiling.x[1] * 1000
        for left, share, hit in list(zip(ceiling.x, ceiling.y, hits.y, strict=True))[:-1]:
            began = [
                request
                for request in each_request(run)
                if left * 1000 <= request["arrival_ms"] < left * 1000 + width and request["hit_tokens"] is not None
            ]
            tokens = sum(request["input_tokens"] for request in began)
            assert share == (sum(request["ceiling_tokens"] for request in began) / tokens if tokens else None)
            assert share is None or hit is None or hit <= share
    assert len({each.y for each in figure.panels[0].series if each.dashed}) == 2


def test_one_ceiling_where_all_runs_have_the_same(stored: list[Run]) -> None:
    figure = figures.make("cache", [stored[0], stored[0]])
    assert [(each.label, each.run) for each in figure.panels[0].series if each.dashed] == [("infinite cache", None)]


def test_replicas_are_slots_over_different_blocks(stored: list[Run]) -> None:
    figure = figures.make("cache", stored)
    for run, line in zip(stored, figure.panels[1].series, strict=True):
        file = table(run, "timeline")
        columns = zip(file["time_ms"], file["pool_blocks"], file["pool_distinct_blocks"], strict=True)
        known = {time: slots / blocks if blocks else None for time, slots, blocks in columns}
        assert [known[round(x * 1000)] for x in line.x] == list(line.y)
    assert max(y for y in figure.panels[1].series[0].y if y is not None) > 1.05  # both instances hold the prefixes
    assert figure.panels[1].y.low == 1  # a block that is there has one copy


def test_heat_maps_are_overlaps_of_spans(stored: list[Run]) -> None:
    figure = figures.make("instances", stored[:1])
    prefill, decode = (panel.heat for panel in figure.panels)
    assert prefill is not None
    assert decode is not None
    assert (prefill.rows, decode.rows) == (("0", "1"), ("2",))
    spans = [
        (request["prefill_instance"], start, start + request["prefill_ms"], 1)
        for request in each_request(stored[0])
        if request["prefill_ms"] is not None
        for start in [request["arrival_ms"] + request["queue_ms"] + request["fetch_ms"]]
    ]
    segments = table(stored[0], "segments")
    batches = []
    for i, start in enumerate(segments["start_ps"]):
        steps, step, growth = (segments[name][i] for name in ("steps", "step_ps", "growth_ps"))
        lasts = sum(step + j * growth for j in range(steps))
        batches.append((segments["instance"][i], start / 1e9, (start + lasts) / 1e9, segments["batch"][i]))
    for heat, found in ((prefill, spans), (decode, batches)):
        for name, cells in zip(heat.rows, heat.values, strict=True):
            for j, value in enumerate(cells):
                left, right = heat.x[j] * 1000, heat.x[j + 1] * 1000
                inside = sum(
                    amount * max(0, min(end, right) - max(start, left))
                    for instance, start, end, amount in found
                    if str(instance) == name
                )
                assert value == pytest.approx(inside / (right - left), abs=1e-6)


def test_thinning_keeps_every_stretch_s_extremes() -> None:
    values = np.random.default_rng(2).normal(size=5_000)
    values[[7, 4_321]] = 99, -99
    values[100:140] = np.nan
    at = _over_time.extremes(values, 100)
    assert len(at) <= 100
    assert {7, 4_321} <= set(at.tolist())
    stretches = values.reshape(50, 100)
    assert {values[i] for i in at if not np.isnan(values[i])} == {
        extreme for stretch in stretches for extreme in (np.nanmin(stretch), np.nanmax(stretch))
    }


def test_restless_queues_are_means_in_bands_of_extremes(stored: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_over_time, "STRETCHES", 8)
    monkeypatch.setattr(queue, "restless", lambda _: True)
    figure = figures.make("queue", stored)
    for panel, column in zip(figure.panels, ("queued_requests", "waiting_requests"), strict=True):
        for run, line in zip(stored, panel.series, strict=True):
            file = table(run, "timeline")
            width = 2 * line.x[0] * 1000  # the first mean stands in the middle of its stretch
            assert line.low is not None
            assert line.high is not None
            for middle, mean, low, high in zip(line.x, line.y, line.low, line.high, strict=True):
                left = middle * 1000 - width / 2
                there = [y for t, y in zip(file["time_ms"], file[column], strict=True) if left <= t < left + width]
                assert mean == pytest.approx(sum(there) / len(there))
                assert (low, high) == (min(there), max(there))
    assert "the mean of every" in figure.note


def test_a_curve_is_restless_when_it_goes_up_and_down_all_the_time() -> None:
    assert _over_time.restless(np.tile([0.0, 1.0], 100))
    assert not _over_time.restless(np.linspace(0, 300, 1000))
    assert not _over_time.restless(np.full(1000, 2.0))
    assert not _over_time.restless(np.tile([0.0, 1.0], 20))  # few samples can be seen one by one


# ---- odd runs, names and options


@pytest.mark.parametrize("kind", RUN_KINDS)
def test_odd_runs_are_drawn_or_say_why_not(kind: str) -> None:
    replays = [all_rejected(), one_request(1), one_request(4), interrupted(), tiny_replay()]
    runs = [Run.from_replay(replay) for replay in replays]
    for some in (*([run] for run in runs), runs):
        figure = figures.make(kind, some)
        assert bool(figure.empty) != bool(list(rows(figure)))
    assert figures.make(kind, []).empty == "there are no runs to draw"


def test_what_is_left_out_is_said() -> None:
    rejected = [Run.from_replay(all_rejected())]
    assert figures.make("ttft-cdf", rejected).empty == "no completed request has a TTFT"
    assert figures.make("cache", rejected).empty == "no prefill began in these runs, so nothing was looked up"
    assert "TTFT: no completed request has a TTFT." in figures.make("overview", rejected).note
    assert "show no replicas" in figures.make("cache", [tiny_run()]).note  # nobody looked at its pool


def test_runs_of_one_policy_are_told_apart(stored: list[Run]) -> None:
    assert figures.make("outcomes", [stored[0], stored[0]]).runs == ("round-robin+early #1", "round-robin+early #2")


def test_an_unknown_kind_or_option_is_one_line(stored: list[Run]) -> None:
    with pytest.raises(SetupError, match=r"no picture 'ttft-cfd'; did you mean 'ttft-cdf'\?"):
        figures.make("ttft-cfd", stored)
    with pytest.raises(SetupError, match="--x: no effect on the picture 'load'; drop it"):
        figures.make("load", stored, x="ttft")
    with pytest.raises(SetupError, match="--x: expected one of tbt, ttft, got 'e2e'"):
        figures.make("goodput", stored, x="e2e")


def test_every_kind_is_a_module_of_its_folder() -> None:
    files = {path.stem for path in Path(figures.__file__).parent.glob("[!_]*.py")}
    assert {name.replace("-", "_") for name in figures.kinds()} == files
