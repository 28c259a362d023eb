"""Pictures of sweeps, from a dataset made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mooncake_bench.errors import BenchError
from mooncake_bench.report import figures
from mooncake_bench.report.figure import rows
from mooncake_bench.report.figures._points import metric_axis
from mooncake_bench.report.figures.pareto import Spot, frontier
from mooncake_bench.report.figures.sweep import _groups
from mooncake_bench.results.metrics import METRICS
from mooncake_bench.results.sweep import Sweep, schema_of

# policy, speedup, seed, TTFT, goodput; None: undefined
POINTS: list[tuple[str, float, int, float | None, float | None]] = [
    ("a", 1.0, 0, 100.0, 5.0),
    ("a", 1.0, 1, 140.0, 5.5),
    ("a", 2.0, 0, 300.0, 8.0),
    ("a", 2.0, 1, 340.0, 7.0),
    ("b", 1.0, 0, 90.0, 4.0),
    ("b", 1.0, 1, 110.0, 4.0),
    ("b", 2.0, 0, 400.0, 9.0),
    ("b", 2.0, 1, None, 0.0),
]


def sweep(points: list[tuple[Any, ...]], *, failed: int = 0, weights: list[float | None] | None = None) -> Sweep:
    """A sweep over speedup and seed; the last ``failed`` points failed. ``weights``: of policy b, varied too."""
    names = [
        {"point": i, "policy": policy, "policy_label": policy, "speedup": speedup, "seed": seed}
        | ({} if weights is None else {"b.weight": weights[i]})
        for i, (policy, speedup, seed, _, _) in enumerate(points)
    ]
    more = [] if weights is None else ["b.weight"]
    manifest = {
        "name": "hand-made",
        "points": names,
        "varied": [*(["speedup"] if more else ["speedup", "seed"]), *more],
        "types": {"speedup": "float", "seed": "int", "b.weight": "float"},
        "metrics": {"mean_ttft_ms": "ms", "request_goodput_rps": "requests/s"},
        "shard": None,
    }
    done = len(points) - failed
    rows = [
        name | {"status": "done" if i < done else "failed", "mean_ttft_ms": ttft, "request_goodput_rps": goodput}
        for i, (name, (_, _, _, ttft, goodput)) in enumerate(zip(names, points, strict=True))
    ]
    return Sweep(Path("hand-made"), manifest, pa.Table.from_pylist(rows, schema_of(manifest)))


def test_a_line_is_the_mean_over_seeds_with_their_range() -> None:
    figure = figures.make("sweep", sweep(POINTS), y="mean_ttft_ms")
    (panel,) = figure.panels
    a, b = panel.series
    assert (a.label, a.x, a.y, a.low, a.high) == ("a", (1, 2), (120, 320), (100, 300), (140, 340))
    assert (b.label, b.x, b.y, b.low, b.high) == ("b", (1, 2), (100, 400), (90, 400), (110, 400))
    assert (panel.x.label, panel.y.label) == ("speedup", "mean TTFT, ms")
    assert figure.note == "Over seeds: the mean, and the range."


def test_what_else_was_varied_makes_panels() -> None:
    figure = figures.make("sweep", sweep(POINTS), x="seed", y="mean_ttft_ms")
    assert [panel.title for panel in figure.panels] == ["speedup 1", "speedup 2"]
    assert [(each.x, each.y) for each in figure.panels[1].series] == [((0, 1), (300, 340)), ((0,), (400,))]
    assert [panel.y.low for panel in figure.panels] == [0, 0]
    assert [panel.y.high for panel in figure.panels] == pytest.approx([1.04 * 400] * 2)


def weighted() -> Sweep:
    """Policies a and b at two speedups; only b has a weight."""
    points: list[tuple[str, float, float | None, float]] = [
        ("a", speedup, None, 100 * speedup) for speedup in (1.0, 2.0)
    ]
    points += [("b", speedup, weight, speedup + weight) for speedup in (1.0, 2.0) for weight in (0.5, 4.0)]
    return sweep([(policy, speedup, 0, ttft, 1.0) for policy, speedup, _, ttft in points],
                 weights=[weight for _, _, weight, _ in points])  # fmt: skip


def test_a_policy_without_a_setting_is_in_every_panel_of_it() -> None:
    figure = figures.make("sweep", weighted(), x="speedup", y="mean_ttft_ms")
    assert [panel.title for panel in figure.panels] == ["b.weight 0.5", "b.weight 4"]
    for panel, weight in zip(figure.panels, (0.5, 4), strict=True):
        assert [(each.label, each.x, each.y) for each in panel.series] == [
            ("a", (1, 2), (100, 200)),
            ("b", (1, 2), (1 + weight, 2 + weight)),
        ]


def test_a_policy_without_the_setting_along_the_axis_is_flat_and_the_axis_stays_one_of_numbers() -> None:
    figure = figures.make("sweep", weighted(), x="b.weight", y="mean_ttft_ms")
    assert figure.panels[1].x.categories == ()
    assert [(each.x, each.y) for each in figure.panels[1].series] == [((0.5, 4), (200, 200)), ((0.5, 4), (2.5, 6))]
    assert "a has no b.weight: the same all along the axis." in figure.note


@pytest.mark.parametrize(
    ("rests", "panels"),
    [
        ([()], [()]),
        ([(None, 1), (5, None), (6, None)], [(5, 1), (6, 1)]),  # each has its own setting
        ([(1, 2), (3, 4), (None, None)], [(1, 2), (3, 4)]),  # pairs, not a grid
        ([(None,)], [(None,)]),
    ],
)
def test_panels_are_the_combinations_of_settings_that_some_policy_has(rests: list[Any], panels: list[Any]) -> None:
    assert _groups(rests) == panels


def test_seeds_that_change_nothing_are_said_beside_the_name() -> None:
    alike = [("c", speedup, seed, 50.0, 1.0) for speedup in (1.0, 2.0) for seed in (0, 1, 2)]
    figure = figures.make("sweep", sweep([*POINTS, *alike]), y="mean_ttft_ms")
    assert [each.label for each in figure.panels[0].series] == ["a", "b", "c (3 seeds, all alike)"]


@pytest.mark.parametrize("most", [1.0, 1000.0])
def test_every_metric_has_an_axis_in_words_with_its_unit(most: float) -> None:
    for metric in METRICS:
        axis, unit = metric_axis(metric, [None, most])
        assert "_" not in axis.label
        if metric.unit == "ms":
            assert (axis.label.endswith(", s"), unit) == ((True, 1000) if most == 1000 else (False, 1))
        elif metric.unit not in ("", "ratio", "byte s", "GPU h"):
            assert metric.unit in axis.label.replace(",", "").split()
    labels = [metric_axis(metric, []).axis.label for metric in METRICS]
    assert len(set(labels)) == len(labels)


def test_large_times_are_in_seconds() -> None:
    slow = [(policy, speedup, seed, ttft and 10 * ttft, good) for policy, speedup, seed, ttft, good in POINTS]
    (panel,) = figures.make("sweep", sweep(slow), y="mean_ttft_ms").panels
    assert (panel.y.label, panel.series[0].y, panel.series[0].high) == ("mean TTFT, s", (1.2, 3.2), (1.4, 3.4))
    (panel,) = figures.make("pareto", sweep(slow), x="mean_ttft_ms", y="request_goodput_rps").panels
    assert (panel.x.label, panel.series[0].x) == ("mean TTFT, s", (0.9, 1, 1.4, 3, 4))


def test_policies_lie_along_the_axis_as_names() -> None:
    figure = figures.make("sweep", sweep(POINTS), x="policy_label", y="request_goodput_rps")
    assert figure.panels[0].x.categories == ("a", "b")
    assert [(each.x, each.y) for each in figure.panels[0].series] == [((0,), (5.25,)), ((1,), (4,))]


def test_the_frontier_is_what_no_point_beats_in_both() -> None:
    figure = figures.make("pareto", sweep(POINTS), x="mean_ttft_ms", y="request_goodput_rps")
    edge, a, b = figure.panels[0].series
    # less TTFT and more goodput: 110/4 is beaten by 100/5, 340/7 by 300/8
    assert list(zip(edge.x, edge.y, strict=True)) == [(90, 4), (100, 5), (140, 5.5), (300, 8), (400, 9)]
    assert sorted([*zip(a.x, a.y, strict=True), *zip(b.x, b.y, strict=True)]) == sorted(
        (ttft, goodput) for *_, ttft, goodput in POINTS if ttft is not None
    )
    assert edge.shape == "step"  # nothing was replayed between them
    names = ["b, speedup 1, seed 0", "a, speedup 1, seed 0", "a, speedup 1, seed 1", "a, speedup 2, seed 0"]
    assert [*(edge.names or ())][:4] == names
    assert [row[-1] for row in rows(figure)][5:9] == [name.removeprefix("a, ") for name in names[1:]] + [
        "speedup 2, seed 1"
    ]
    assert "Better: lower mean TTFT; higher goodput, requests/s." in figure.note
    assert "1 point has no mean_ttft_ms or request_goodput_rps." in figure.note


def test_where_more_lies_across_the_stairs_go_down_from_the_right() -> None:
    points = [("a", 1.0, 0, 100.0, 5.0), ("a", 2.0, 0, 200.0, 8.0)]
    (edge, _) = figures.make("pareto", sweep(points), x="request_goodput_rps", y="mean_ttft_ms").panels[0].series
    # who needs a goodput of 6 has to take the TTFT of 8: the step lasts from 8 down to 5
    assert (edge.x, edge.y) == ((8, 5), (200, 100))


@pytest.mark.parametrize("higher_x", [False, True])
@pytest.mark.parametrize("higher_y", [False, True])
def test_the_frontier_in_every_direction(higher_x: bool, higher_y: bool) -> None:
    spots = [Spot("a", float(x * 7 % 11), float(x * 5 % 9)) for x in range(30)]

    def beats(one: Spot, other: Spot) -> bool:
        apart = [(one.x - other.x) * (1 if higher_x else -1), (one.y - other.y) * (1 if higher_y else -1)]
        return min(apart) >= 0 and max(apart) > 0

    best = {spot for spot in spots if not any(beats(other, spot) for other in spots)}
    assert set(frontier(spots, higher_x, higher_y)) == best


def test_failed_and_undefined_points_are_said() -> None:
    figure = figures.make("sweep", sweep(POINTS, failed=2), y="mean_ttft_ms")
    assert "Of 8 points, 2 failed." in figure.note
    nothing = [(*point[:3], None, None) for point in POINTS]
    assert figures.make("sweep", sweep(nothing), y="mean_ttft_ms").empty == "no point of the sweep has a mean_ttft_ms"
    empty = figures.make("pareto", sweep(nothing), x="mean_ttft_ms").empty
    assert empty == "no point of the sweep has both mean_ttft_ms and request_goodput_rps"


def test_one_point_and_none_are_drawn() -> None:
    assert figures.make("sweep", sweep(POINTS[:1]), y="mean_ttft_ms").panels[0].series[0].y == (100,)
    assert figures.make("pareto", sweep(POINTS[:1]), x="mean_ttft_ms").panels[0].series[0].x == (100,)
    assert figures.make("sweep", sweep([]), y="mean_ttft_ms").empty


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("sweep", {"x": "clutser"}, "--x clutser: was not varied; expected one of speedup, seed, policy_label"),
        ("sweep", {"y": "mean_tft_ms"}, "no metric 'mean_tft_ms'; did you mean"),
        ("sweep", {"y": "hit_ratio_tokens"}, "holds no hit_ratio_tokens"),
        ("pareto", {"x": "mean_ttft_ms", "y": "gpu_hour"}, "no metric 'gpu_hour'"),
    ],
)
def test_an_unknown_name_is_one_line(kind: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(BenchError, match=message):
        figures.make(kind, sweep(POINTS), **options)
