"""The papers' results beside ours: verdicts by arithmetic, traces by content, numbers against the oracles."""

from __future__ import annotations

import gzip
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fault_tools import Tool
from once import once

from mooncake_bench.errors import NothingToConclude, SetupError
from mooncake_bench.report.tables import screen
from mooncake_bench.studies.reproduce import choose, f25_f9, f25_t2, results, show, v3_t1
from mooncake_bench.studies.reproduce.outcome import Claim, Result, Row, Used
from mooncake_bench.studies.reproduce.sources import Traces, content_sha256
from mooncake_bench.trace import Trace, load, save

IDS = list(results())
NEEDS_SYNTHETIC = ("F25-F13", "F25-F15")  # no bundled trace resembles it
NEEDS_NO_TRACE = ("v3-F2", "v3-F7", "v3-F11", "v3-F12", "F25-F12", "F25-F14")  # constructed prompts


GET = Traces.get


class Beginnings(Traces):
    """The first 100 requests of each stand-in: enough to see what is said, not what is true."""

    def get(self, key: str) -> tuple[Trace | None, Used]:
        trace, used = GET(self, key)
        return None if trace is None else trace.select(max_requests=100), used


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """Every result without a published trace at hand; those that need one, and have no stand-in, say so."""
    return once(tmp_path_factory, "stand_ins", without_published_traces)


def without_published_traces() -> dict[str, Result]:
    found = {}
    for name, one in results().items():
        with pytest.MonkeyPatch.context() as patch:
            if hasattr(one, "WORKLOAD_REQUESTS"):  # constructed: a few requests and rates will do here
                patch.setattr(one, "WORKLOAD_REQUESTS", 16)
                patch.setattr("mooncake_bench.studies.reproduce.sustained.STEP", 2.0)
            try:
                found[name] = replace(one.run(Beginnings()), draw=None)  # which no process can give to another
            except NothingToConclude as nothing:
                found[name] = Result((), (), (), (), (str(nothing),))
    return found


@pytest.fixture(scope="module")
def published(shared: Path) -> Traces:
    """The published traces that are beside the checkout."""
    return Traces(shared / "traces" / "mooncake-fast25")


@pytest.fixture(scope="module")
def figure_9(published: Traces) -> Result:
    """FAST'25 figure 9 on the published traces."""
    return f25_f9.run(published)


# ---- the protocol


def test_every_result_is_found_in_the_order_of_the_papers() -> None:
    assert [each for each in IDS if each in ("v3-T1", "F25-T2", "F25-F9")] == ["v3-T1", "F25-T2", "F25-F9"]


@pytest.mark.parametrize("name", IDS)
def test_a_result_says_what_it_is_and_is_complete_on_stand_ins(name: str, stand_ins: dict[str, Result]) -> None:
    one, result = results()[name], stand_ins[name]
    assert (one.ID, bool(one.TITLE), bool(one.SOURCE)) == (name, True, True)
    if name in NEEDS_SYNTHETIC:
        assert "no stand-in" in result.notes[0]
        return
    assert result.concluded
    assert result.rows
    assert result.claims
    assert result.parameters  # what was free to choose is named
    if name in NEEDS_NO_TRACE:
        assert not result.used
        return
    assert any(used.stand_in for used in result.used)
    assert any("stand-in" in note for note in result.notes)  # and what that means is said
    assert "on stand-in traces" in result.verdict


@pytest.mark.parametrize("name", IDS)
def test_a_result_fits_80_columns_and_ascii(name: str, stand_ins: dict[str, Result]) -> None:
    content = show.report(results()[name], stand_ins[name])
    for encoding in ("utf-8", "ascii"):
        text = screen(content, 80, encoding)
        assert max(map(len, text.splitlines())) <= 80
        assert text.isascii() is (encoding == "ascii") or encoding == "utf-8"


def test_the_summary_counts_each_result_and_fits_80_columns(stand_ins: dict[str, Result]) -> None:
    ours = (Row("t", "a", 1.0, 1.05), Row("t", "b", 1.0, 1.2), Row("t", "c", 1.0, None))
    rows = (*ours, Row("t", "d", 1.0, 2.0, stand_in=True), Row("t", "e", 0.01, 0.015, reading_error=0.01))
    mixed = Result(rows, (Claim("x", True), Claim("y", False)), (), (), ())
    nothing = Result((Row("t", "a", 1.0, None),), (Claim("x", None),), (), (), ())
    text = screen(show.summary([(f25_t2, mixed), (f25_f9, nothing)]), 80)
    cells = [line.split() for line in text.splitlines()]
    assert ["F25-T2", "3", "1", "2", "1", "2", "1"] in cells
    assert ["F25-T2", "+", "1", "0", "0", "0"] in cells
    assert ["F25-F9", "0", "–", "–", "–", "1", "0"] in cells
    whole = screen(show.summary([(results()[name], result) for name, result in stand_ins.items()]), 80)
    assert max(map(len, whole.splitlines())) <= 80


@pytest.mark.parametrize("name", IDS)
def test_a_result_is_strict_json_and_typed_parquet(name: str, stand_ins: dict[str, Result]) -> None:
    one, result = results()[name], stand_ins[name]
    assert json.loads(json.dumps(show.as_json(one, result), allow_nan=False))["id"] == name
    table = show.as_table(one, result)
    assert table.schema.equals(show.SCHEMA)
    assert len(table) == len(result.rows)


def test_tables_of_all_results_can_be_appended(stand_ins: dict[str, Result]) -> None:
    both = pa.concat_tables([show.as_table(results()[name], result) for name, result in stand_ins.items()])
    assert set(both.column("id").to_pylist()) == {name for name, result in stand_ins.items() if result.rows}


# ---- verdicts


@pytest.mark.parametrize(
    ("published", "ours", "reading_error", "verdict"),
    [
        (0.40, 0.44, 0.0, "within 10 %"),
        (0.40, 0.36, 0.0, "within 10 %"),
        (0.40, 0.45, 0.0, "within 25 %"),
        (0.40, 0.30, 0.0, "within 25 %"),
        (0.40, 0.29, 0.0, "off"),
        (0.40, 0.51, 0.0, "off"),
        (0.045, 0.036, 0.01, "reading error"),  # 20 % away, and 0.009 < 0.01
        (0.045, 0.026, 0.01, "off"),
        (0.002, 0.011, 0.01, "reading error"),
        (0.40, None, 0.0, "not measured"),
    ],
)
def test_a_verdict_follows_from_the_distance(
    published: float, ours: float | None, reading_error: float, verdict: str
) -> None:
    assert Row("t", "what", published, ours, reading_error=reading_error).verdict == verdict


def test_the_verdict_counts_published_traces_and_stand_ins_apart() -> None:
    ours = (Row("t", "a", 1.0, 1.05), Row("t", "b", 1.0, 1.2), Row("t", "c", 1.0, None))
    rows = (*ours, Row("t", "d", 1.0, 2.0, stand_in=True))
    claims = (Claim("x", True), Claim("y", False), Claim("z", None))
    result = Result(rows, claims, (), (), ())
    assert result.verdict == (
        "of 2 numbers 1 within 10 %, 2 within 25 %; of 1 numbers 0 within 10 %, 0 within 25 % on stand-in traces; "
        "1 of 3 claims hold"
    )


def test_nothing_measured_is_not_a_verdict() -> None:
    result = Result((Row("t", "a", 1.0, None),), (), (), (), ())
    assert (result.concluded, result.verdict) == (False, "not measured")


# ---- traces by content


def test_a_published_trace_is_known_by_its_content_whatever_its_name(shared: Path, tmp_path: Path) -> None:
    source = shared / "traces" / "mooncake-fast25" / "synthetic_trace.jsonl"
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "renamed.jsonl.gz").write_bytes(gzip.compress(source.read_bytes(), 1))
    trace, used = Traces(tmp_path).get("synthetic")
    assert trace is not None
    assert (used.stand_in, used.sha256) == (False, content_sha256("synthetic"))


def test_a_converted_copy_of_a_published_trace_is_known_too(shared: Path, tmp_path: Path) -> None:
    save(load(shared / "traces" / "mooncake-fast25" / "synthetic_trace.jsonl"), tmp_path / "copy.arrow")
    assert list(Traces(tmp_path).found) == ["synthetic"]


def test_a_changed_copy_is_not_taken_for_the_published_trace(shared: Path, tmp_path: Path) -> None:
    text = (shared / "traces" / "mooncake-fast25" / "synthetic_trace.jsonl").read_bytes()
    (tmp_path / "synthetic_trace.jsonl").write_bytes(text + text.splitlines(keepends=True)[-1])
    assert Traces(tmp_path).found == {}


def test_what_is_not_at_hand_has_a_stand_in_or_none_and_says_so() -> None:
    trace, used = Traces().get("conversation")
    assert trace is not None
    assert (trace.name, used.stand_in) == ("conversation-like", True)
    nothing, absent = Traces().get("synthetic")
    assert nothing is None
    assert (absent.name, absent.stand_in) == (None, False)
    assert "traces fetch mooncake-synthetic" in absent.words


def test_an_unknown_trace_and_a_folder_that_is_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="no published trace 'conversatio'; did you mean 'conversation'"):
        Traces().get("conversatio")
    with pytest.raises(SetupError, match="is not a folder"):
        Traces(tmp_path / "nowhere")


# ---- numbers


def values(result: Result) -> dict[tuple[str, str], float | None]:
    return {(row.group, row.what): row.ours for row in result.rows}


def test_table_2_has_the_numbers_of_an_independent_count(shared: Path, published: Traces) -> None:
    oracle = json.loads((shared / "oracles" / "published-comparison.json").read_text())["fast25_table2"]
    found = values(f25_t2.run(published))
    for name in ("conversation", "synthetic"):
        ours = oracle[name]["ours"]
        assert found[name, "requests"] == ours["n"]
        assert found[name, "mean input"] == pytest.approx(ours["avg_in"], rel=1e-12)
        assert found[name, "mean output"] == pytest.approx(ours["avg_out"], rel=1e-12)
        assert found[name, "cache ratio"] == pytest.approx(ours["prefix_hits_over_floor_L_512"], rel=1e-12)
        printed = oracle[name]["paper"]
        assert f25_t2.PUBLISHED[name] == (printed["n"], printed["avg_in"], printed["avg_out"], printed["ratio"])


def test_figure_9_has_the_numbers_of_an_independent_count_under_every_reading(shared: Path, figure_9: Result) -> None:
    oracle = json.loads((shared / "oracles" / "mooncake-fig9-comparison.json").read_text())
    keys = {"tokens": "prefix_tokens", "blocks": "prefix_blocks", "full blocks": "prefix_over_full"}
    by_reading = {
        (one["trace"], one["reading"], str(one["capacity_blocks"])): one["hit_ratio"] for one in figure_9.measured
    }
    compared = 0
    for (trace, reading, blocks), ratio in by_reading.items():
        if "2nd half" not in reading:
            definition, order = reading.split(", ")
            expected = oracle["ours"][trace]["lru" if order == "head first" else "lru_rev"][blocks]
            assert ratio == pytest.approx(expected[keys[definition]], rel=1e-12), (trace, reading, blocks)
            compared += 1
    assert compared == 2 * 2 * 3 * 7  # traces, orders, definitions, capacities


def test_figure_9_publishes_what_was_read_off_it(shared: Path) -> None:
    paper = json.loads((shared / "oracles" / "mooncake-fig9-comparison.json").read_text())["paper"]
    ours = {
        name: {str(round(tokens / 512)): ratio for tokens, ratio in points.items()}
        for name, points in f25_f9.POINTS.items()
    }
    assert ours == paper


def test_figure_9_s_shape_holds_on_the_published_traces(shared: Path, figure_9: Result) -> None:
    assert [claim.holds for claim in figure_9.claims] == [True, True, True, True]
    oracle = json.loads((shared / "oracles" / "mooncake-fig9-comparison.json").read_text())["ours"]
    for name in ("conversation", "synthetic"):
        small, large = (oracle[name]["lru_rev"][size]["prefix_over_full"] for size in ("5859", "97656"))
        assert values(figure_9)[name, "3 M tokens over 50 M"] == pytest.approx(small / large)


def test_the_points_of_figure_9_belong_to_their_trace_alone(shared: Path) -> None:
    trace = load(shared / "traces" / "mooncake-fast25" / "conversation_trace.jsonl")
    points = f25_f9.points_of(trace)
    assert points is not None
    assert (points[5859], points[97_656]) == (0.165, 0.40)
    assert f25_f9.points_of(trace.select(max_requests=100)) is None


def test_table_1_publishes_what_the_paper_prints(shared: Path) -> None:
    paper = json.loads((shared / "oracles" / "published-comparison.json").read_text())["arxiv_table1"]["paper"]
    sizes = ["inf" if capacity is None else str(capacity) for capacity in v3_t1.CAPACITIES]
    assert {name: dict(zip(sizes, row, strict=True)) for name, row in v3_t1.PUBLISHED.items()} == paper


def test_table_1_is_judged_by_shape_for_its_file_was_replaced(stand_ins: dict[str, Result]) -> None:
    result = stand_ins["v3-T1"]
    assert all(row.what.endswith("over infinite") for row in result.rows)
    assert any("was replaced after v3" in note for note in result.notes)
    # LRU over infinite at 10,000 blocks: the paper's .40 / .51
    row = next(row for row in result.rows if (row.group, row.what) == ("LRU", "10,000 blocks over infinite"))
    assert row.published == pytest.approx(0.40 / 0.51)


# ---- the command


@pytest.fixture(autouse=True)
def _nothing_fetched(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traces that this machine's user has fetched do not count."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def test_what_was_fetched_is_found_without_being_named(tool: Tool, shared: Path) -> None:
    from mooncake_bench.trace.public import default_folder

    default_folder().mkdir(parents=True)
    source = shared / "traces" / "mooncake-fast25" / "synthetic_trace.jsonl"
    (default_folder() / source.name).write_bytes(source.read_bytes())
    assert tool.json("reproduce", "F25-T2")[0]["traces"][2]["stand_in"] is False


def test_the_command_lists_what_there_is(tool: Tool) -> None:
    done = tool("reproduce", "--list")
    assert done.code == 0
    assert all(name in done.out for name in IDS)


def test_ids_may_be_written_in_any_case_and_twice() -> None:
    assert [one.ID for one in choose(["f25-t2", "F25-T2", "V3-T1"])] == ["F25-T2", "v3-T1"]


def test_numbers_and_figure_are_kept_and_never_overwritten(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="pictures need the extra 'plots'")
    monkeypatch.setattr("mooncake_bench.studies.reproduce.sources.Traces.get", Beginnings.get)
    done = tool("reproduce", "F25-F9", "-o", "kept")
    assert done.code == 0, done.err
    results, summary = ["F25-F9.measured.parquet", "F25-F9.parquet", "F25-F9.png"], ["summary.html", "summary.md"]
    assert sorted(path.name for path in Path("kept").iterdir()) == [*results, *summary, "summary.tex"]
    assert pq.read_table("kept/F25-F9.measured.parquet").num_rows > 0
    for name, begins in (
        ("html", "<!doctype html>"),
        ("md", "\n### Numbers"),
        ("tex", "% needs \\usepackage{booktabs}"),
    ):
        text = Path(f"kept/summary.{name}").read_text(encoding="utf-8")
        assert text.startswith(begins)
        assert "does not hold" in text or "holds" in text
    assert pq.read_table("kept/F25-F9.parquet").schema.equals(show.SCHEMA)
    assert 'src="data:image/png;base64,' in Path("kept/summary.html").read_text(encoding="utf-8")  # needs no other file
    again = tool("reproduce", "F25-F9", "-o", "kept")
    assert (again.code, again.out) == (2, "")
    assert "exists; choose another name, or --force" in again.err
    assert tool("reproduce", "F25-F9", "-o", "kept", "--force", "-q").err == ""


@pytest.mark.parametrize("fmt", ["json", "markdown", "latex"])
def test_every_format_prints_the_verdict(fmt: str, tool: Tool) -> None:
    done = tool("reproduce", "F25-T2", "--format", fmt)
    assert done.code == 0
    assert "claims hold" in done.out


def test_a_result_that_needs_a_trace_nobody_has_is_not_measured_and_the_others_are(
    tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(traces: Traces) -> Result:
        raise NothingToConclude("v3-T1: not at hand")

    monkeypatch.setattr(v3_t1, "run", nothing)
    done = tool("reproduce", "F25-T2", "v3-T1")
    assert done.code == 0
    assert "! v3-T1: not at hand" in done.out
    cells = [line.split() for line in done.out.splitlines()]
    assert ["v3-T1", "0", "–", "–", "–", "0", "0"] in cells
    assert tool("reproduce", "v3-T1").code == 3


def test_without_jinja2_the_summary_has_no_page_and_that_is_told(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    done = tool("reproduce", "F25-T2", "-o", "kept")
    assert done.code == 0
    assert "no summary.html: pages need Jinja2, which is not installed: pip install" in done.err
    assert sorted(path.name for path in Path("kept").glob("summary*")) == ["summary.md", "summary.tex"]


def test_json_is_a_list_of_results(tool: Tool) -> None:
    answer: Any = tool.json("reproduce", "F25-T2")
    assert [each["id"] for each in answer] == ["F25-T2"]
    assert answer[0]["rows"][0]["published"] == 12_031


FAULTS = {
    ("F25-F99",): "no published result 'F25-F99'; did you mean 'F25-F9'",
    (): "no published result named; give IDs such as F25-F9, or --all",
    ("F25-T2", "--all"): "--all: no effect beside IDs",
    ("--all", "--traces", "nowhere"): "--traces 'nowhere': is not a folder",
    ("F25-T2", "--force"): "--force: no effect without -o",
    ("--list", "-o", "x"): "--out: no effect with --list",
    ("--format", "csv"): "--format: expected one of",
}


@pytest.mark.parametrize("words", FAULTS, ids=" ".join)
def test_a_fault_is_one_line(words: tuple[str, ...], tool: Tool) -> None:
    done = tool("reproduce", *words)
    assert (done.code, done.out) == (2, "")
    [line] = done.err.splitlines()
    assert FAULTS[words] in line
    assert list(Path().iterdir()) == []


def test_a_folder_without_published_traces_is_named(tool: Tool) -> None:
    Path("empty").mkdir()
    done = tool("reproduce", "F25-T2", "--traces", "empty")
    assert done.code == 0
    assert "holds none of the published trace files" in done.err
