"""Pictures of sweeps, from a dataset made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mooncake_bench.errors import BenchError
from mooncake_bench.report import figures
from mooncake_bench.report.figures.pareto import Spot, frontier
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


def sweep(points: list[tuple[Any, ...]], *, failed: int = 0) -> Sweep:
    """A sweep over speedup and seed; the last ``failed`` points failed."""
    names = [
        {"point": i, "policy": policy, "policy_label": policy, "speedup": speedup, "seed": seed}
        for i, (policy, speedup, seed, _, _) in enumerate(points)
    ]
    manifest = {
        "name": "hand-made",
        "points": names,
        "varied": ["speedup", "seed"],
        "types": {"speedup": "float", "seed": "int"},
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
    assert (panel.x.label, panel.y.label) == ("speedup", "mean_ttft_ms")
    assert figure.note == "Over seeds: the mean, and the range."


def test_what_else_was_varied_makes_panels() -> None:
    figure = figures.make("sweep", sweep(POINTS), x="seed", y="mean_ttft_ms")
    assert [panel.title for panel in figure.panels] == ["speedup 1.0", "speedup 2.0"]
    assert [(each.x, each.y) for each in figure.panels[1].series] == [((0, 1), (300, 340)), ((0,), (400,))]


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
    assert "1 point has no mean_ttft_ms or request_goodput_rps." in figure.note


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
