"""``traces info``: the same facts as table, JSON, CSV, Markdown and LaTeX, and a picture."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mooncake_bench.report.tables import screen
from mooncake_bench.report.trace_sheets import clock, trace_report
from mooncake_bench.trace import Trace, info, save

if TYPE_CHECKING:
    from fault_tools import Tool

# Blocks of 10 tokens; sessions 7 (two turns) and 8. Row 1 shares 2 of its 3 blocks, row 2 shares none.
ROWS = [(0.0, 25, 1, [1, 2, 3]), (1000.0, 30, 2, [1, 2, 4]), (2500.0, 25, 3, [5, 6, 7])]


@pytest.fixture
def small(tmp_path: Path) -> str:
    made = Trace.of(ROWS, block_tokens=10)
    columns = (made.arrival_ms, made.input_tokens, made.output_tokens, made.block_offsets, made.block_ids)
    save(Trace("small", *columns, block_tokens=10, session_id=[7, 7, 8]), tmp_path / "small.arrow")
    return str(tmp_path / "small.arrow")


def cells(text: str, start: str) -> list[str]:
    """The words of the line of a table that starts so."""
    line = next(line for line in text.splitlines() if line.startswith(start))
    return line.removeprefix(start).split()


def test_the_table_fits_80_columns_and_says_the_numbers(small: str, tool: Tool) -> None:
    shown = tool("traces", "info", small).out
    assert max(map(len, shown.splitlines())) <= 80
    assert "trace small" in shown
    # row 1 hits two blocks: 20 tokens of 25 + 30 + 25; 2 of 3 + 3 + 3 blocks; 2 of 2 + 3 + 2 full blocks
    assert cells(shown, "hit tokens of all prompt tokens") == ["20", "80", "25.0", "%"]
    assert cells(shown, "hit blocks of all blocks") == ["2", "9", "22.2", "%"]
    assert cells(shown, "hit full blocks of all full blocks") == ["2", "7", "28.6", "%"]
    assert cells(shown, "distinct blocks") == ["7", "77.8", "%", "references"]
    assert cells(shown, "the whole trace") == ["–", "7", "70", "22.2", "%"]
    # the turn comes 1 s after a request whose answer is taken to need 1000 + 1 x 30 ms: early at once
    assert cells(shown, "1×") == ["1", "100.0", "%"]
    assert "2 sessions in the trace" in shown


def test_json_and_csv_carry_the_same_facts(small: str, tool: Tool) -> None:
    facts = tool.json("traces", "info", small)
    assert facts["infinite_cache"]["hit_tokens"] == 20
    assert facts["sessions"]["sessions"] == 2
    assert "notices" not in facts
    rows = dict(csv.reader(io.StringIO(tool("traces", "info", small, "--format", "csv").out)))
    assert rows["infinite_cache.hit_tokens"] == "20"
    assert rows["working_set.5.max_blocks"] == "7"
    assert rows["published"] == ""


def test_markdown_and_latex_hold_the_tables(small: str, tool: Tool) -> None:
    text = tool("traces", "info", small, "--format", "markdown").out
    assert "### What an infinite cache would hit" in text
    assert "| hit blocks of all blocks | 2 | 9 | 22.2 % |" in text
    assert r"\begin{tabular}" in tool("traces", "info", small, "--format", "latex").out


def test_a_trace_without_prefix_ids_says_so_instead_of_hit_ratios(small: str) -> None:
    made = Trace.of(ROWS, block_tokens=10)
    columns = (made.arrival_ms, made.input_tokens, made.output_tokens, made.block_offsets, range(9))
    facts = info(Trace("t", *columns, block_tokens=10, metadata={"prefix_ids": "none"}))
    text = screen(trace_report(facts), 80)
    assert "! the source has no prefix ids" in text
    assert "infinite cache" not in text
    assert "Working set" not in text


def test_the_published_numbers_stand_beside_ours(shared: Path, tool: Tool) -> None:
    shown = tool("traces", "info", str(shared / "traces" / "mooncake-fast25" / "conversation_trace.jsonl")).out
    assert max(map(len, shown.splitlines())) <= 80
    assert "12,035 tokens in and 343 out" in " ".join(shown.split())
    # ours .3736 and .3981 of the oracle, published .40
    assert cells(shown, "hit tokens of all prompt tokens")[2:] == ["37.4", "%", "-2.6", "points"]
    assert cells(shown, "tokens, second half of requests")[2:] == ["39.8", "%", "-0.2", "points"]
    assert "nearest to the published 40%: tokens, second half of requests" in " ".join(shown.split())
    assert re.search("coarse grid: only 1,180 distinct times, about 3 s apart", " ".join(shown.split()))


def test_an_ascii_terminal_gets_plain_letters() -> None:
    text = screen(trace_report(info(Trace.of(ROWS, block_tokens=10))), 80, "ascii")
    assert text.isascii()


@pytest.mark.parametrize("ms", [1, 1000, 10_000, 60_000, 600_000, 3_600_000])
def test_windows_are_named_in_the_largest_unit_that_fits(ms: int) -> None:
    names = {1: "1 ms", 1000: "1 s", 10_000: "10 s", 60_000: "1 min", 600_000: "10 min", 3_600_000: "1 h"}
    assert clock(ms) == names[ms]


# ---- the picture


@pytest.fixture
def drawing(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The paths that a picture was drawn to, without drawing it."""
    pytest.importorskip("matplotlib", reason="pictures need Matplotlib: pip install 'mooncake-bench[plots]'")
    drawn: list[Any] = []

    def draw(trace: Trace, path: Path, *, force: bool) -> Path:
        drawn.append((trace.name, path, force))
        return path

    monkeypatch.setattr("mooncake_bench.report.trace_plot.draw", draw)
    return drawn


def test_plot_draws_beside_the_answer_and_names_the_file(small: str, tool: Tool, drawing: list[Any]) -> None:
    found = tool("traces", "info", small, "--format", "json", "--plot", "a.png")
    assert found.out.startswith("{")
    assert found.err.endswith("picture: a.png\n")
    assert drawing == [("small", Path("a.png"), False)]


def test_plot_is_refused_before_any_work(tool: Tool, drawing: list[Any], tmp_path: Path) -> None:
    (tmp_path / "there.png").write_text("")
    for name, message in (
        ("a.jpg", "ends in .png, .svg, .pdf"),
        ("there.png", "--force to replace it"),
        ("no/a.png", "no folder"),
    ):
        found = tool("traces", "info", "no-such-trace", "--plot", name)
        assert (found.code, found.out) == (2, "")
        assert message in found.err
        assert found.err.count("\n") == 1
    assert drawing == []


def test_force_without_plot_is_refused(tool: Tool) -> None:
    found = tool("traces", "info", "conversation-like", "--force")
    assert (found.code, found.err) == (2, "mooncake-bench: --force: no effect without --plot; drop it\n")
