"""Pictures of the page: what is drawn, read back from the SVG by its own ticks."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from html_tools import labelled, points, value, with_class

from mooncake_bench.report.figure import Axis, Guide, Heat, Panel, Series
from mooncake_bench.report.html import shapes
from mooncake_bench.report.html.scale import Scale, bounds, tick_text
from mooncake_bench.report.html.svg import HEIGHT, WIDTH, draw, legend_mark
from mooncake_bench.report.plot_style import LINE_STYLES, PALETTE

X, Y = Axis("time, s"), Axis("queue, requests")
NEAR = 0.003  # of an axis: a tenth of a pixel, rounded, on some 400


def drawn(*series: Series, x: Axis = X, y: Axis = Y, guides: tuple[Guide, ...] = ()) -> ET.Element:
    panel = Panel("", x, y, series, guides)
    return ET.fromstring(draw(panel, list(range(len(series))), "a picture").svg)


def read(svg: ET.Element, path: str) -> list[list[tuple[float, float]]]:
    """A path in the numbers of the axes."""
    across, up = labelled(svg)
    return [[(value(left, across), value(top, up)) for left, top in piece] for piece in points(path)]


# ---- axes


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 30, [0, 5, 10, 15, 20, 25, 30]),  # 30 / 6 = 5
        (0, 31, [0, 10, 20, 30]),  # 31 / 6 = 5.2: the next of 1, 2, 5 is 10
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),  # 1 / 6 = 0.17: 0.2
        (3, 4.1, [3, 3.2, 3.4, 3.6, 3.8, 4]),
        (-5, 5, [-4, -2, 0, 2, 4]),
        (0.9991, 0.9999, [0.9992, 0.9994, 0.9996, 0.9998]),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert Scale(low, high, 0, 100).ticks(6) == expected


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1, 100, [1, 2, 5, 10, 20, 50, 100][::2]),  # two decades: 1, 2 and 5; seven are too many, every second stays
        (30, 300, [50, 100, 200]),
        (0.1, 1e5, [0.1, 1, 10, 100, 1000, 10_000, 100_000][::2]),
    ],
)
def test_ticks_of_a_log_axis_are_powers_of_ten(low: float, high: float, expected: list[float]) -> None:
    assert Scale(low, high, 0, 100, log=True).ticks(6) == expected


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (0.25, "0.25"), (1500, "1,500"), (20_000, "20k"), (1.5e6, "1.5M"), (-3000, "-3,000"), (2e9, "2G")],
)
def test_a_tick_reads_as_people_write_it(number: float, text: str) -> None:
    assert tick_text(number) == text


@pytest.mark.parametrize("values", [[], [None], [0], [7], [-3, -3], [0, 0], [1e-9], [1e300], [float("inf")]])
@pytest.mark.parametrize("log", [False, True])
def test_an_axis_has_a_length_whatever_its_numbers(values: list[float | None], log: bool) -> None:
    low, high = bounds(Axis("", log=log), values)
    assert low < high
    assert Scale(low, high, 0, 100, log).ticks(6) is not None


# ---- shapes


def test_a_line_goes_through_its_points_and_stops_at_a_gap() -> None:
    given = ((0, 2), (10, 8), (20, None), (30, 4), (40, 0))
    svg = drawn(Series("a", tuple(x for x, _ in given), tuple(y for _, y in given), 0))
    first, second = read(svg, with_class(svg, "line")[0].get("d", ""))
    for found, expected in zip([*first, *second], [(0, 2), (10, 8), (30, 4), (40, 0)], strict=True):
        assert found == (pytest.approx(expected[0], abs=40 * NEAR), pytest.approx(expected[1], abs=8 * NEAR))


def test_a_step_holds_until_the_next_x() -> None:
    svg = drawn(Series("a", (0, 10, 30), (1, 5, 2), 0, "step"))
    (corners,) = read(svg, with_class(svg, "line")[0].get("d", ""))
    expected = [(0, 1), (10, 1), (10, 5), (30, 5), (30, 2)]
    assert [(round(x, 0), round(y, 1)) for x, y in corners] == expected


def test_bars_of_runs_stand_side_by_side_and_are_as_tall_as_their_numbers() -> None:
    names = ("offered", "completed")
    a, b = Series("a", (0, 1), (100, 40), 0, "bars"), Series("b", (0, 1), (80, 60), 1, "bars")
    svg = drawn(a, b, x=Axis("", categories=names), y=Axis("requests", low=0))
    _, up = labelled(svg)
    bars = with_class(svg, "bar")
    edges = [(float(bar.get("x", "")), float(bar.get("width", ""))) for bar in bars]
    tops = [value(float(bar.get("y", "")), up) for bar in bars]
    bottoms = [value(float(bar.get("y", "")) + float(bar.get("height", "")), up) for bar in bars]
    assert tops == [pytest.approx(each, abs=100 * NEAR) for each in (100, 40, 80, 60)]
    assert bottoms == [pytest.approx(0, abs=100 * NEAR)] * 4
    assert edges[0][0] + edges[0][1] == pytest.approx(edges[2][0], abs=0.2)  # b's first stands right of a's first


def test_points_of_runs_have_places_and_shapes_of_their_own() -> None:
    svg = drawn(Series("a", (1, 2), (3, 4), 0, "points"), Series("b", (1.5,), (5,), 1, "points"))
    across, up = labelled(svg)
    marks = with_class(svg, "point")
    places = [mark.get("transform", "").removeprefix("translate(").removesuffix(")").split() for mark in marks]
    found = [(value(float(x), across), value(float(y), up)) for x, y in places]
    assert found == [(pytest.approx(x, abs=0.01), pytest.approx(y, abs=0.03)) for x, y in ((1, 3), (2, 4), (1.5, 5))]
    assert marks[0].get("d") == marks[1].get("d") != marks[2].get("d")


def test_a_log_axis_shows_decades_at_equal_distances_and_leaves_out_0() -> None:
    svg = drawn(Series("a", (1, 10, 100, 1000), (0, 1, 2, 3), 0), x=Axis("ms", log=True))
    (corners,) = points(with_class(svg, "line")[0].get("d", ""))
    gaps = [right[0] - left[0] for left, right in pairwise(corners)]
    assert gaps == [pytest.approx(gaps[0], abs=0.2)] * 3
    assert (
        len(points(with_class(drawn(Series("a", (0, 10), (1, 2), 0), x=Axis("", log=True)), "line")[0].get("d", "")))
        == 1
    )


def test_an_interval_is_a_band_around_a_line_and_a_whisker_at_a_point() -> None:
    line = Series("a", (0, 10), (4, 6), 0, low=(3, 5), high=(5, 9))
    svg = drawn(line)
    (outline,) = read(svg, with_class(svg, "band")[0].get("d", "").removesuffix("Z"))
    assert [round(y, 1) for _, y in outline] == [5, 9, 5, 3]  # along the top, and back along the bottom
    svg = drawn(Series("a", (0, 10), (4, 6), 0, "points", low=(3, None), high=(5, None)))
    assert with_class(svg, "whisker")[0].get("d", "").count("V") == 1


def test_marks_stand_in_a_row_of_their_own_above_and_leave_out_0() -> None:
    svg = drawn(Series("load", (0, 10), (0, 1), 0), Series("rejected", (2, 5, 8), (1, 0, 4), None, "marks"))
    across, _ = labelled(svg)
    ticks = with_class(svg, "mark")[0].get("d", "")
    starts = [float(piece.split()[0]) for piece in ticks.split("M") if piece]
    assert [round(value(left, across), 1) for left in starts] == [2, 8]
    heights = [
        abs(float(y) - float(base)) for base, y in (piece.split()[1].split("V") for piece in ticks.split("M")[1:])
    ]
    assert 0 < heights[0] < heights[1]
    top_of_axes = min(y for _, y in points(with_class(svg, "line")[0].get("d", ""))[0])
    assert max(float(piece.split()[1].split("V")[0]) for piece in ticks.split("M")[1:]) < top_of_axes


def test_a_guide_is_where_it_says_or_pointed_at_where_it_is_far_away() -> None:
    svg = drawn(Series("a", (0, 10), (0, 1), 0), guides=(Guide("SLO 8 s", 8, upright=True), Guide("SLO 50", 50)))
    across, _ = labelled(svg)
    upright, far = with_class(svg, "guide")
    assert value(float(upright[0].get("d", "")[1:].split()[0]), across) == pytest.approx(8, abs=0.03)
    assert upright[1].text == "SLO 8 s"
    assert [each.tag for each in far] == ["text"]
    assert far[0].text == "SLO 50 ↑"


def test_a_heat_map_is_as_strong_as_its_values_and_its_cells_leave_no_gap() -> None:
    heat = Heat(("P0", "P1"), (0, 10, 20), ((0.5, 1.0), (None, 0.25)), "share of time", high=1)
    svg = ET.fromstring(draw(Panel("", X, Axis("instance"), heat=heat), [], "busy").svg)
    cells = list(with_class(svg, "cells")[0])
    assert [float(cell.get("fill-opacity", "")) for cell in cells] == [0.5, 1, 0.25]
    left, right = cells[0], cells[1]
    assert float(left.get("x", "")) + float(left.get("width", "")) == pytest.approx(float(right.get("x", "")), abs=1e-9)
    assert float(cells[2].get("y", "")) > float(left.get("y", ""))
    texts = [each.text for each in svg.iter("text")]
    assert {"P0", "P1", "share of time"} <= set(texts)


# ---- looks


def test_runs_differ_in_colour_and_dashes_as_in_printed_pictures() -> None:
    lines = [Series(str(run), (0, 1), (run, run + 1), run) for run in range(8)]
    classes = [group.get("class", "").split() for group in with_class(drawn(*lines), "series")]
    assert len({" ".join(each) for each in classes}) == 8
    assert [each[1] for each in classes] == [f"r{run % len(PALETTE)}" for run in range(8)]
    assert [each[2] for each in classes] == [f"d{run % len(LINE_STYLES)}" for run in range(8)]


def test_names_stay_text_and_long_ones_are_whole_in_a_hint() -> None:
    name = '"><script>alert(1)</script>\x1b[2J&' + "long " * 10
    svg = drawn(Series(name, (0, 1), (1, 2), 0, "bars"), x=Axis(name, categories=(name, "b")), y=Axis(name))
    assert {each.tag for each in svg.iter()} <= {"svg", "g", "path", "rect", "text", "title"}
    assert any(title.text == name.replace("\x1b", "?") for title in svg.iter("title"))
    panel = Panel("", Axis(name), Axis(name))
    assert "<script" not in draw(panel, [], name).svg


def test_everything_stays_inside_the_picture() -> None:
    svg = drawn(
        Series("a", (0, 1e6), (0, 12_345_678), 0), Series("b", (5,), (1,), None, "marks"),
        guides=(Guide("SLO", 1e6, upright=True),),
    )  # fmt: skip
    for text in svg.iter("text"):
        wide = 8.2 * len(text.text or "")  # at the largest size
        left = float(text.get("x", "")) - {"middle": wide / 2, "end": wide}.get(
            (text.get("class") or "").split()[-1], 0
        )
        assert left >= -3, text.text
        assert left + wide <= WIDTH + 15, text.text
        assert 0 < float(text.get("y", "")) < HEIGHT


def test_a_series_looks_the_same_in_every_panel_and_in_the_legend() -> None:
    calm = Series("decode", tuple(range(200)), tuple(map(float, range(200))), 1)
    restless = Series("decode", tuple(range(200)), (0.0, 1.0) * 100, 1)  # 199 up and down, over a range of 1
    panels = [Panel(title, X, Y, (each,)) for title, each in (("a", calm), ("b", restless))]
    manners = shapes.manners(panels, [[0], [0]])
    texts = [draw(panel, [0], panel.title, manners).svg for panel in panels] + [legend_mark(calm, manners[0])]
    classes = {" ".join((with_class(ET.fromstring(each), "series")[0].get("class") or "").split()) for each in texts}
    assert classes == {"series r1 d1 noisy"}
    assert "noisy" not in draw(panels[0], [0], "alone").svg


def test_labels_of_guides_stand_above_the_frame_and_not_on_each_other() -> None:
    near = (Guide("SLO 8 s", 8, upright=True), Guide("SLO 8.1 s", 8.1, upright=True))
    guides = (*near, Guide("SLO 30 s", 30, upright=True), Guide("", 0.5))
    svg = drawn(Series("a", (0, 10), (0, 1), 0), guides=guides)
    top = min(y for _, y in points(with_class(svg, "line")[0].get("d", ""))[0])
    words = [each for group in with_class(svg, "guide") for each in group.iter("text")]
    assert [each.text for each in words] == ["SLO 8 s", "SLO 8.1 s", "SLO 30 s →"]
    feet = [float(each.get("y", "")) for each in words]
    assert len(set(feet)) == 3  # all want the same place: a row each
    assert min(feet) > 13  # below the name of the axis
    assert max(feet) < top


def test_what_was_replayed_is_marked_and_has_the_ticks() -> None:
    a, b = Series("a", (1, 2, 3), (5, 6, 7), 0), Series("b", (1, 3), (5, 4), 1)
    svg = drawn(a, b, x=Axis("speedup"))
    across, up = labelled(svg)
    assert [text for _, text in across] == ["1", "2", "3"]
    places = [
        m.get("transform", "").removeprefix("translate(").removesuffix(")").split() for m in with_class(svg, "point")
    ]
    found = [(value(float(x), across), value(float(y), up)) for x, y in places]
    assert found == [
        (pytest.approx(x, abs=0.01), pytest.approx(y, abs=0.02)) for x, y in [(1, 5), (2, 6), (3, 7), (1, 5), (3, 4)]
    ]
    assert 'class="point"' in legend_mark(a, shapes.manners([Panel("", X, Y, (a,))], [[0]])[0])


@pytest.mark.parametrize(
    "series",
    [Series("many", tuple(range(21)), (1.0, 2.0, 3.0) * 7, 0), Series("bound", (0, 1), (0, 1)),
     Series("other", (0, 1), (0, 1), 0, dashed=True), Series("counts", (0, 1), (0, 1), 0, "step")],
)  # fmt: skip
def test_lines_of_many_points_and_bounds_have_no_markers(series: Series) -> None:
    assert not with_class(drawn(series), "point")


def test_ticks_that_would_lie_on_each_other_are_left_out() -> None:
    svg = drawn(Series("a", (1, 1.001, 2, 3), (5, 6, 7, 8), 0))
    assert [text for _, text in labelled(svg)[0]] == ["1", "2", "3"]


def test_an_axis_that_ends_just_above_1_is_ticked_by_fifths() -> None:
    svg = drawn(Series("a", (1, 2), (0.5, 1), 0), y=Axis("share", low=0, high=1.04))
    assert [text for _, text in labelled(svg)[1]] == ["0", "0.2", "0.4", "0.6", "0.8", "1"]
