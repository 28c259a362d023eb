"""Drawings of figures: coordinates in the SVG file, the script that redraws, and the command line."""

from __future__ import annotations

import ast
import csv
import io
import re
import runpy
import struct
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from fault_tools import TWENTY, Tool, written
from test_results_tiny import all_rejected, tiny_run

from mooncake_bench.report import drawing, figures, redraw
from mooncake_bench.report.figure import Axis, Figure, Guide, Heat, Panel, Series
from mooncake_bench.results import Run
from mooncake_bench.sim.setup import Setup

matplotlib = pytest.importorskip("matplotlib", reason="pictures need Matplotlib: pip install 'mooncake-bench[plots]'")

TIGHTER = Setup(cluster="1P+1D", slo_ttft_ms=7.0, slo_tbt_ms=20.0, policy="cache-aware+queue-cap")
SVG = "{http://www.w3.org/2000/svg}"


def shapes() -> Figure:
    """One figure with every shape, in three panels."""
    lines = Panel(
        "lines", Axis("x", low=0, high=10), Axis("y", low=0, high=8),
        (
            Series("a", (0, 2, 6, 10), (1, 3, None, 7), 0, "line", low=(0, 2, None, 6), high=(2, 4, None, 8)),
            Series("b", (1, 4, 9), (2, 6, 4), 1, "step"),
            Series("c", (1, 5), (7, 1), 2, "points"),
            Series("seen", (2, 7), (1, 3), None, "marks"),
        ),
        (Guide("SLO 5", 5, upright=True), Guide("full", 6)),
    )  # fmt: skip
    names = Axis("", categories=("offered", "done"))
    bars = Panel("bars", names, Axis("n", low=0), tuple(
        Series(label, (0, 1), y, run, "bars") for run, (label, y) in enumerate((("a", (8, 4)), ("b", (8, 2))))
    ))  # fmt: skip
    heat = Heat(("0", "1"), (0, 1, 2, 3), ((0, 5, 10), (10, None, 0)), "share", 10)
    return Figure("shapes", "All shapes", (lines, bars, Panel("heat", Axis("t"), Axis("instance"), heat=heat)))


@pytest.fixture(scope="module")
def svg(tmp_path_factory: pytest.TempPathFactory) -> ElementTree.Element:
    path = drawing.write(shapes(), tmp_path_factory.mktemp("svg") / "shapes.svg", 3.33)
    return ElementTree.parse(path).getroot()


def group(svg: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    """Every element under this id: a bar has its series' too."""
    return [each for each in svg.iter() if each.get("id") == name]


def points(data: str) -> list[tuple[float, float]]:
    """Corners of an SVG path."""
    numbers = [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", data)]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def path_of(svg: ElementTree.Element, name: str) -> list[tuple[float, float]]:
    (found,) = group(svg, name)
    (path,) = [each for each in found.iter(f"{SVG}path") if each.get("clip-path")]
    return points(path.get("d", ""))


def ruler(svg: ElementTree.Element) -> tuple[float, float, float, float]:
    """Pixels at x = 0 and of one x, at y = 0 and of one y, of the first panel: from the frame of its axes."""
    frame = next(each for each in svg.iter() if each.get("id") == "patch_2")
    corners = points(next(frame.iter(f"{SVG}path")).get("d", ""))
    left, right = min(x for x, _ in corners), max(x for x, _ in corners)
    top, bottom = min(y for _, y in corners), max(y for _, y in corners)
    return left, (right - left) / 10, bottom, (top - bottom) / 8


def test_lines_steps_points_and_ticks_lie_where_their_numbers_say(svg: ElementTree.Element) -> None:
    left, per_x, bottom, per_y = ruler(svg)

    def at(x: float, y: float) -> Any:
        return pytest.approx((left + per_x * x, bottom + per_y * y), abs=0.01)

    assert path_of(svg, "panel0-series0") == [at(0, 1), at(2, 3), at(10, 7)]  # a gap at 6: see the next test
    stairs = [at(1, 2), at(4, 2), at(4, 6), at(9, 6), at(9, 4)]
    assert path_of(svg, "panel0-series1") == stairs
    (scattered,) = group(svg, "panel0-series2")
    marks = [(float(use.get("x", "")), float(use.get("y", ""))) for use in scattered.iter(f"{SVG}use")]
    assert marks == [at(1, 7), at(5, 1)]
    (seen,) = group(svg, "panel0-series3")
    ticks = [points(path.get("d", "")) for path in seen.iter(f"{SVG}path")]
    assert [tick[0] for tick in ticks] == [at(2, 0.94 * 8), at(7, 0.94 * 8)]
    assert [tick[1] for tick in ticks] == [at(2, 8), at(7, 8)]


def test_a_gap_is_not_joined(svg: ElementTree.Element) -> None:
    (line,) = group(svg, "panel0-series0")
    data = next(each.get("d", "") for each in line.iter(f"{SVG}path") if each.get("clip-path"))
    assert re.findall("[ML]", data) == ["M", "L", "M"]


def test_bars_are_as_high_as_their_numbers_and_stand_side_by_side(svg: ElementTree.Element) -> None:
    found = []
    for series in (0, 1):
        for bar in group(svg, f"panel1-series{series}"):
            corners = points(next(bar.iter(f"{SVG}path")).get("d", ""))
            xs, ys = [x for x, _ in corners], [y for _, y in corners]
            found.append((min(xs), max(xs), max(ys) - min(ys)))
    heights = [height for _, _, height in found]
    assert [height / heights[0] for height in heights] == pytest.approx([1, 4 / 8, 1, 2 / 8], abs=1e-3)
    ordered = sorted(found)
    assert all(right <= left + 0.01 for (_, right, _), (left, _, _) in pairwise(ordered))
    assert [found.index(bar) for bar in ordered] == [0, 2, 1, 3]  # a and b of the first category, then of the second


def test_cells_are_darker_where_there_is_more(svg: ElementTree.Element) -> None:
    (heat,) = group(svg, "heat")
    cells = [path for path in heat.iter(f"{SVG}path") if "fill" in (path.get("style") or "")]
    bright = []
    for cell in cells:
        fill = re.search(r"fill: #(\w{6})", cell.get("style") or "")
        bright.append(sum(bytes.fromhex(fill[1])) if fill else None)
    shown = [value for value in bright if value is not None]
    assert len(shown) == 5  # one is not known
    assert shown[0] == shown[4] > shown[1] > shown[2] == shown[3]  # 0, 5, 10 above; 10, nothing, 0 below


def test_the_script_redraws_the_same_shapes_with_matplotlib_alone(
    tmp_path: Path, svg: ElementTree.Element, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = redraw.script(shapes(), "fig", 3.33)
    (tmp_path / "fig.py").write_text(source, encoding="utf-8")
    (tmp_path / "fig.csv").write_text(redraw.numbers(shapes()), encoding="utf-8")
    monkeypatch.chdir(tmp_path.parent)  # its numbers are beside it, wherever it is called
    monkeypatch.setattr(sys, "argv", ["fig.py", str(tmp_path / "fig.svg")])
    with matplotlib.rc_context():
        runpy.run_path(str(tmp_path / "fig.py"))
    nodes = list(ast.walk(ast.parse(source)))
    needed = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    needed |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in needed} == {"csv", "sys", "pathlib", "matplotlib"}
    again = ElementTree.parse(tmp_path / "fig.svg").getroot()
    drawn = [[path.get("d") for path in each.iter(f"{SVG}path")] for each in (svg, again)]
    assert drawn[0] == drawn[1]


def test_an_empty_figure_is_words_in_the_picture_and_in_the_script(tmp_path: Path) -> None:
    figure = figures.make("ttft-cdf", [Run.from_replay(all_rejected())])
    picture = drawing.write(figure, tmp_path / "a.svg", 3.33)
    lines = re.findall("<!-- (.*?) -->", picture.read_text("utf-8"))  # letters are outlines, beside their text
    assert " ".join(lines) == "TTFT of completed requests: no completed request has a TTFT"
    compile(redraw.script(figure, "a"), "a.py", "exec")
    assert "no completed request" in redraw.script(figure, "a")


def test_a_name_may_hold_anything(tmp_path: Path) -> None:
    label = "_$\\frac{x$\"'''\n</svg>"
    figure = figures.make("outcomes", [tiny_run(policy_label=label)] * 2)
    picture = ElementTree.parse(drawing.write(figure, tmp_path / "a.svg", 3.33)).getroot()
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    code = ast.parse(redraw.script(figure, "a"))  # the label is a string of it, whatever letters it has
    words = [node.value for node in ast.walk(code) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    assert any("frac{x" in word for word in words)


def test_a_size_on_paper_is_kept(tmp_path: Path) -> None:
    figure = figures.make("ttft-cdf", [Run.from_replay(all_rejected())])
    picture = ElementTree.parse(drawing.write(figure, tmp_path / "a.svg", 3.33, 5)).getroot()
    assert (picture.get("width"), picture.get("height")) == ("239.76pt", "360pt")  # of 72 points an inch


def test_what_a_picture_means_is_kept_in_its_file(tmp_path: Path) -> None:
    path = drawing.write(replace(shapes(), panels=shapes().panels[1:2], note="Two bars."), tmp_path / "a.svg", 3.33)
    assert "<dc:title>All shapes</dc:title>" in path.read_text("utf-8")
    assert "<dc:description>Two bars.</dc:description>" in path.read_text("utf-8")


# ---- the command line


@pytest.fixture
def with_runs(tool: Tool) -> Tool:
    for _ in range(2):
        tiny_run().save("results")
    return tool


def test_plot_writes_the_picture_the_numbers_and_the_script(with_runs: Tool) -> None:
    done = with_runs("plot", "outcomes", "@last:2", "-o", "a.png", "--width", "84mm", "--csv", "-", "--script", "b.py")
    assert done.code == 0
    found = list(csv.DictReader(io.StringIO(done.out)))
    assert [(row["series"], row["x"], row["y"]) for row in found[:2]] == [
        ("tiny #1", "offered", "4.0"),
        ("tiny #1", "completed", "3.0"),
    ]
    assert all(Path(name).stat().st_size for name in ("a.png", "b.py", "b.csv"))
    assert "outcomes: No request was" in done.err


def test_runs_of_different_work_are_drawn_together_only_when_told(with_runs: Tool) -> None:
    tiny_run(setup=TIGHTER).save("results")
    refused = with_runs("plot", "outcomes", "@last:2", "-o", "a.svg")
    assert (refused.code, Path("a.svg").exists()) == (2, False)
    assert refused.err.strip().splitlines() == [
        "mooncake-bench: the runs are not comparable: TTFT SLO differs (8.5 and 7) (--force-compare draws them anyway)"
    ]
    done = with_runs("plot", "outcomes", "@last:2", "-o", "a.svg", "--force-compare")
    assert done.code == 0
    assert "Runs of different work: TTFT SLO differs (8.5 and 7)." in done.err
    assert "Runs of different work" in Path("a.svg").read_text("utf-8")


@pytest.mark.parametrize(("more", "dots"), [((), 300), (("--dpi", "100"), 100)])
def test_a_png_has_so_many_dots_an_inch(with_runs: Tool, more: tuple[str, ...], dots: int) -> None:
    assert with_runs("plot", "outcomes", "@last", "-o", "a.png", "--width", "3in", "--height", "2in", *more).code == 0
    width, height = struct.unpack(">II", Path("a.png").read_bytes()[16:24])  # of the header, IHDR
    assert (width, height) == (3 * dots, 2 * dots)


def test_the_list_says_what_each_kind_shows(tool: Tool) -> None:
    done = tool("plot", "--list")
    assert done.code == 0
    assert all(name in done.out for name in figures.kinds())
    assert max(map(len, done.out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("plot", "no kind of picture named"),
        ("plot ttft", "no picture 'ttft'"),
        ("plot load @last", "nothing to write: give -o FILE.pdf"),
        ("plot load -o a.pdf", "no run named"),
        ("plot load @last -o a.jpg", "expected a file name that ends in .png, .svg, .pdf"),
        ("plot load @last -o a.pdf --width 3.33", "--width '3.33': expected a number and one of in, cm, mm, pt"),
        ("plot load @last -o a.pdf --width 0in", "--width '0in': expected 1in to 40in"),
        ("plot load @last --csv a.csv --width 3in", "--width: no effect without a picture or a script"),
        ("plot load @last --csv - --force", "--force: no effect where no file is written"),
        ("plot load @last -o a.pdf --dpi 600", "--dpi: no effect without a .png"),
        ("plot load @last -o a.png --dpi 9999", "--dpi 9999: expected 30 to 1200"),
        ("plot sweep grid -o a.pdf --force-compare", "--force-compare: no effect on plot sweep"),
        ("plot load @last --script a.txt", "expected a file name that ends in .py"),
        ("plot load @last --script a.py --csv a.csv", "is what --script writes already"),
        ("plot load @last -o a.pdf --x ttft", "--x: no effect on the picture 'load'"),
        ("plot pareto @last @last -o a.pdf", "expected the folder of one sweep, got 2"),
        ("plot --list load", "KIND: no effect with --list"),
        ("compare @last:2 --plot outcome=a.png", "no picture 'outcome'; did you mean 'outcomes'?"),
        ("compare @last:2 --plot pareto=a.png", "'pareto' is a picture of a sweep"),
        ("compare @last:2 --plot a.png --plot load=a.png", "'a.png' is named twice"),
        ("replay --dry-run --plot a.png", "--plot: no effect with --dry-run"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(with_runs: Tool, line: str, message: str) -> None:
    done = with_runs(*line.split())
    assert done.code == 2
    assert message in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert [path.name for path in Path().iterdir()] == ["results"]


def test_compare_and_replay_draw_what_they_show(with_runs: Tool) -> None:
    done = with_runs("compare", "@last:2", "--plot", "ttft-cdf=a.svg")
    assert done.code == 0
    assert "written: a.svg" in done.err
    assert "tiny #2" in Path("a.svg").read_text("utf-8")
    written("trace.jsonl", TWENTY[:5])
    done = with_runs("replay", "trace.jsonl", "-p", "random", "--plot", "outcomes=a.svg", "-q")
    assert done.code == 0
    assert "tiny" not in Path("a.svg").read_text("utf-8")  # replaced


def test_the_page_names_every_kind() -> None:
    page = (Path(__file__).resolve().parent.parent / "docs" / "plots.md").read_text(encoding="utf-8")
    table = "\n".join(line.split("|")[1] for line in page.splitlines() if line.startswith("|"))
    assert set(re.findall("`([a-z-]+)`", table)) == set(figures.kinds())
