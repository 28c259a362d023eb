"""Pictures: files that appear whole or not at all, the same bytes each time, and what a trace's picture shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mooncake_bench.errors import SetupError
from mooncake_bench.report import plot_style, plots
from mooncake_bench.trace import Trace, load

pytest.importorskip("matplotlib", reason="pictures need Matplotlib: pip install 'mooncake-bench[plots]'")

MAGIC = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
ENDINGS = sorted(MAGIC)


def curve() -> Any:
    with plots.style():
        figure, (left, right) = plots.figure(columns=2)
        left.plot([1, 2, 3], [1, 4, 9], label="µ $x", marker=plots.marker(0), **plots.series(0))
        right.plot([1, 10_000], [0, 1], **plots.series(1))
        right.set_xscale("log")
        plots.compact(right.xaxis)
    return figure


@pytest.mark.parametrize("ending", [*ENDINGS, ".PNG"])
def test_the_ending_chooses_the_kind_of_file(ending: str, tmp_path: Path) -> None:
    path = plots.save(curve(), tmp_path / f"curve{ending}")
    assert path.read_bytes().startswith(MAGIC[ending.lower()])
    assert [item.name for item in tmp_path.iterdir()] == [f"curve{ending}"]


DRAW = """
import sys
sys.path.insert(0, {tests!r})
from test_report_plots import curve
from mooncake_bench.report import plots
for path in sys.argv[1:]:
    plots.save(curve(), path)
"""


def test_the_bytes_are_the_same_in_two_processes_at_two_times(tmp_path: Path) -> None:
    code = DRAW.format(tests=str(Path(__file__).parent))
    environment = os.environ | {"PYTHONHASHSEED": "1", "SOURCE_DATE_EPOCH": str(10**9)}
    there = [str(tmp_path / f"b{ending}") for ending in ENDINGS]
    subprocess.run([sys.executable, "-c", code, *there], check=True, env=environment)
    for ending in ENDINGS:
        plots.save(curve(), tmp_path / f"a{ending}")
    for ending in ENDINGS:
        content = (tmp_path / f"a{ending}").read_bytes()
        assert content == (tmp_path / f"b{ending}").read_bytes()
        assert b"CreationDate" not in content
        assert b"dc:date" not in content


def test_letters_are_in_the_file(tmp_path: Path) -> None:
    pdf = plots.save(curve(), tmp_path / "a.pdf").read_bytes()
    assert b"/FontFile2" in pdf  # a TrueType font, embedded
    svg = plots.save(curve(), tmp_path / "a.svg").read_text("utf-8")
    assert "<text" not in svg  # letters are outlines: no font is needed


@pytest.mark.parametrize("name", ["curve", "curve.jpg", "curve.png.txt", "-", ""])
def test_another_ending_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"expected a file name that ends in \.png, \.svg, \.pdf"):
        plots.save(curve(), tmp_path / name if name else name)


def test_an_existing_file_is_kept_unless_forced(tmp_path: Path) -> None:
    target = tmp_path / "curve.png"
    target.write_text("mine")
    with pytest.raises(SetupError, match=r"exists; choose another name, or --force to replace it"):
        plots.save(curve(), target)
    assert target.read_text() == "mine"
    plots.save(curve(), target, force=True)
    assert target.read_bytes().startswith(MAGIC[".png"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing/a.png", "there is no folder"),
        ("folder.png", "is a folder"),
        ("\0.png", "null"),
        ("x" * 300 + ".png", "too long"),
    ],
)
def test_a_place_that_cannot_be_written_is_said_in_one_line(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(SetupError, match=message) as found:
        plots.check_target(tmp_path / name)
    assert "\n" not in str(found.value)


def test_a_failure_while_drawing_leaves_nothing(tmp_path: Path) -> None:
    class Broken:
        def savefig(self, path: Path, **more: Any) -> None:
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")

    with pytest.raises(SetupError, match="cannot be written: No space left on device"):
        plots.save(Broken(), tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_the_extra_to_install_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SetupError, match=r"pip install 'mooncake-bench\[plots\]'"):
        plots.check_target(tmp_path / "a.png")
    with pytest.raises(SetupError, match=r"pip install 'mooncake-bench\[plots\]'"), plots.style():
        pass


def test_the_style_ends_where_it_began() -> None:
    import matplotlib

    before = matplotlib.rcParams.copy()
    with plots.style():
        assert matplotlib.rcParams["pdf.fonttype"] == 42
        plots.figure()
    assert matplotlib.rcParams.copy() == before


def luminance(colour: str) -> float:
    """Relative luminance of sRGB, as WCAG defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_colour_stands_out_from_white_paper_and_no_two_lines_look_alike() -> None:
    for colour in plot_style.PALETTE:
        assert (1 + 0.05) / (luminance(colour) + 0.05) >= 2  # contrast with white
    lines = [str(plots.series(i)) for i in range(35)]
    assert len(set(lines)) == 35  # 7 colours and 5 styles share no factor
    assert len({str(plots.series(i)["linestyle"]) for i in range(5)}) == 5  # told apart without colour


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.5, "0.5"), (999, "999"), (2000, "2k"), (1_500_000, "1.5M"), (3e9, "3G"), (4e12, "4T")],
)
def test_ticks_are_short(value: float, text: str) -> None:
    assert plots.short(value) == text


# ---- the picture of a trace


def drawn(trace: Trace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The figure that would be saved."""
    from mooncake_bench.report import trace_plot

    kept: list[Any] = []
    save = plots.save

    def keep(made: Any, path: Any, **more: Any) -> Path:
        kept.append(made)
        return save(made, path, **more)

    monkeypatch.setattr(plots, "save", keep)
    trace_plot.draw(trace, tmp_path / "trace.png")
    return kept[0]


def lines(panel: Any) -> dict[str, tuple[Any, Any]]:
    return {
        line.get_label(): (np.asarray(line.get_xdata()), np.asarray(line.get_ydata())) for line in panel.get_lines()
    }


def test_the_picture_of_a_trace_shows_its_numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # blocks of 10 tokens; block 1 is used at 0, 1, 2 and 100 s; 2 at 0 and 100 s; 3 at 2 s: 7 references, 4 reused
    rows = [(0.0, 20, 1, [1, 2]), (1000.0, 10, 2, [1]), (2000.0, 20, 3, [1, 3]), (100_000.0, 20, 4, [1, 2])]
    figure = drawn(Trace.of(rows, block_tokens=10, name="four $ or more"), monkeypatch, tmp_path)
    arrivals, lengths, reuse, working_set = figure.axes
    assert figure._suptitle.get_text() == "four $ or more: 4 requests in 100 s"
    assert sum(patch.get_data().values.sum() for patch in arrivals.patches) / 2 == 4  # the area and its outline
    x, y = lines(lengths)["output: median 2"]
    assert (x.tolist(), y.tolist()) == ([1, 1, 2, 3, 4], [0, 0.25, 0.5, 0.75, 1])
    x, y = lines(reuse)["last use at most t ago"]
    assert y[x < 0.99].max() == 0
    assert y[(x > 1.01) & (x < 90)].tolist() == [2 / 7] * len(y[(x > 1.01) & (x < 90)])
    assert y[-1] == pytest.approx(4 / 7)
    x, y = lines(working_set)["most at any time"]
    assert (y[0], y[-1]) == (2, 3)
    assert reuse.get_xlim() == working_set.get_xlim()  # they are read together


def test_the_picture_of_a_trace_without_prefix_ids_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    base = Trace.of([(0.0, 20, 1, [1, 2]), (9.0, 10, 2, [3])], block_tokens=10)
    columns = (base.arrival_ms, base.input_tokens, base.output_tokens, base.block_offsets, base.block_ids)
    figure = drawn(Trace("t", *columns, block_tokens=10, metadata={"prefix_ids": "none"}), monkeypatch, tmp_path)
    assert "no prefix ids" in figure.axes[2].texts[0].get_text()
    assert "no prefix ids" in figure.axes[3].texts[0].get_text()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_smallest_traces_can_be_drawn(count: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = [(0.0, 5, 1, [row]) for row in range(count)]
    assert len(drawn(Trace.of(rows), monkeypatch, tmp_path).axes) == 4


def test_a_bundled_trace_is_drawn(tmp_path: Path) -> None:
    from mooncake_bench.report.trace_plot import draw

    trace = load("conversation-like").select(max_requests=2000)
    assert draw(trace, tmp_path / "trace.pdf").stat().st_size > 5000
