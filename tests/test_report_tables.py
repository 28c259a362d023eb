"""Reports: what stands where, how names are escaped, and what a narrow or plain screen gets."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from test_results_compare import b_rejected
from test_results_tiny import (
    FAILED,
    all_rejected,
    interrupted,
    one_request,
    tiny_columns,
    tiny_policies,
    tiny_replay,
    tiny_run,
    tiny_trace,
)

from mooncake_bench.errors import ResultError
from mooncake_bench.report.markup import CSV_COLUMNS
from mooncake_bench.report.notices import fold
from mooncake_bench.report.tables import FORMATS, folded, render
from mooncake_bench.results.compare import compare
from mooncake_bench.results.headline import headline
from mooncake_bench.results.metrics import BY_NAME
from mooncake_bench.results.run import Run
from mooncake_bench.results.words import alike, rate
from mooncake_bench.sim.replay import Replay
from mooncake_bench.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterator

GOLDEN = Path(__file__).parent / "golden"
SUFFIX = {"table": "txt", "markdown": "md", "latex": "tex"}
NASTY = 'a|b_$%&#{}~^\\<b>[red]*`"=1+1'


def two() -> list[Run]:
    """The tiny run, and one that turned a request away at decode."""
    return [tiny_run(), b_rejected()]


@pytest.mark.parametrize("fmt", SUFFIX)
def test_the_report_of_two_runs_looks_as_agreed(fmt: str, update_golden: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    path = GOLDEN / f"report_two_runs.{SUFFIX[fmt]}"
    text = render(two(), fmt, width=80)
    if update_golden:
        path.write_text(text, encoding="utf-8", newline="\n")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "width", "lines"),
    [
        ("mine.py:Blend:weight=1", 16, ["mine.py:Blend:", "weight=1"]),
        ("kvcache-centric", 14, ["kvcache-", "centric"]),
        ("kvcache-centric", 15, ["kvcache-centric"]),
        ("own/mine.py+lru:a=1,b=2", 12, ["own/mine.py+", "lru:a=1,b=2"]),
        ("load -5 % of 12,031", 6, ["load", "-5 %", "of", "12,031"]),
        ("abcdefghij:k", 4, ["abcd", "efgh", "ij:k"]),
        ("请求请求", 4, ["请求", "请求"]),  # two columns each
        ("", 4, []),
    ],
)
def test_a_long_name_is_broken_at_a_sign_and_within_a_word_only_as_a_last(
    name: str, width: int, lines: list[str]
) -> None:
    assert folded(name, width) == lines


def test_a_narrow_screen_breaks_a_policys_name_at_its_signs() -> None:
    shown = render(tiny_run(policy_label="mine.py:Blend:weight=1"), width=60)
    assert re.search(r"^mine.py:Blend: .*\nweight=1$", shown, re.MULTILINE)


def test_accounts_come_before_any_latency_and_the_reference_first() -> None:
    text = render(two())
    assert text.index("offered") < text.index("TTFT of completed")
    assert text.index("rejected") < text.index("TTFT of completed")
    [first, second] = [line for line in text.splitlines() if "×" in line and re.search(r"7\.67|8\.50", line)]
    assert first.startswith("tiny")
    assert "1.00×" in first
    assert second.startswith("strict")
    assert "1.11×" in second  # 8.5 / 7.667


def test_a_part_of_a_trace_is_called_one_and_so_is_its_hash() -> None:
    whole, rows = tiny_trace(), [(0, 8, 4, [1, 2]), (4, 10, 3, [1, 2, 3]), (5, 4, 1, [9]), (6, 12, 2, [4, 5, 6])]
    five = Trace.of([*rows, (7, 4, 1, [10])], block_tokens=4, name="five")
    first = five.select(max_requests=4)
    later = [(at + 1, tokens, output, blocks) for at, tokens, output, blocks in rows]
    last = Trace.of([(0, 4, 1, [10]), *later], block_tokens=4, name="five").select(start_ms=1)
    heads = [headline(tiny_run(trace=trace))[0] for trace in (whole, first, last)]
    assert heads[0].startswith(f"trace tiny (sha256 {whole.sha256[:12]}): 4 requests arriving")
    assert heads[1].startswith(f"trace five (sha256 of this part {first.sha256[:12]}): first 4 of 5 requests arriving")
    assert heads[2].startswith(f"trace five (sha256 of this part {last.sha256[:12]}): 4 of 5 requests arriving")
    assert first.sha256 != five.sha256


def test_the_chosen_reference_is_printed_first() -> None:
    text = render(compare(two(), reference=1))
    [line] = [line for line in text.splitlines() if re.search(r"7\.67", line)]
    assert "0.90×" in line
    assert text.index("\nstrict ") < text.index("\ntiny ")


def test_the_head_names_trace_cluster_cost_error_slos_and_view() -> None:
    text = " ".join(render(tiny_run(), width=200).split())
    for words in (
        "trace tiny (sha256 ", "4 requests arriving in 6 ms", "speedup 1 = 667 requests/s",
        "cluster 1P+1D (8 GPUs each): llama-3-70b on a800", "cost fake v1, error: invented numbers",
        "SLO TTFT 8.5 ms, TBT 20 ms (mean of a request's longest 10 % of token gaps", "view exact", "seed 0",
    ):  # fmt: skip
        assert words in text, words


def test_rejections_are_told_by_stage_and_reason() -> None:
    text = render(two())
    assert "tiny rejected 1 at arrival (busy)" in text
    assert "strict rejected 1 at arrival (busy), 1 at decode (full)" in text


@pytest.mark.parametrize("replay", [all_rejected(), one_request(1), one_request(4), interrupted()])
@pytest.mark.parametrize("fmt", FORMATS)
def test_an_odd_run_is_reported_in_every_format(replay: Replay, fmt: str) -> None:
    text = render(Run.from_replay(replay), fmt)
    assert text.endswith("\n")
    assert not re.search(r"\b([nN]a[nN]|[iI]nf(inity)?|None)\b", text)


def test_undefined_numbers_are_dashes_and_never_zero() -> None:
    lines = render(Run.from_replay(all_rejected())).splitlines()
    row = next(line for i, line in enumerate(lines) if line.startswith("tiny") and lines[i - 3].startswith("TTFT of"))
    assert row.split() == ["tiny", "0", *["–"] * 7]


def test_a_rate_is_printed_as_zero_only_when_it_is() -> None:
    assert [rate(value) for value in (None, 0, 0.00133, 4.694)] == ["–", "0.00", "0.00133", "4.69"]


def test_what_was_not_measured_stays_apart_from_what_is_zero() -> None:
    answer = json.loads(render(Run.from_replay(all_rejected()), "json"))
    metrics = answer["runs"][0]["metrics"]
    assert metrics["mean_ttft_ms"] == {"value": None, "n": 0, "unit": "ms", "better": "lower"}
    assert metrics["completed_requests"]["value"] == 0


@pytest.mark.parametrize("width", [80, 100, 140])
def test_no_line_is_wider_than_the_screen(width: int) -> None:
    assert max(map(len, render(two(), width=width).splitlines())) <= width


def test_columns_sets_the_width_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, render(two()).splitlines())) <= 80


def test_long_labels_fold_and_numbers_stay_whole() -> None:
    label = "kvcache-centric:threshold=2+predictive:td=12s,recheck=true+lru"
    text = render([tiny_run(policy_label=label), b_rejected()], width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"^ *\S* +3 +7\.67 +1\.00× ", text, re.MULTILINE)
    assert "…" not in text


@pytest.mark.parametrize("width", [1, 20, 40, 60])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_narrow_screen_gets_longer_lines_and_never_a_part_of_a_number(width: int, encoding: str) -> None:
    rows = [*numbers(render(two(), width=200, encoding=encoding))]
    assert [*numbers(render(two(), width=width, encoding=encoding))] == rows
    assert len(rows) == 13  # two policies in six tables, one of them against the other in the seventh


def numbers(text: str) -> Iterator[list[str]]:
    """The cells of each policy's row of each table."""
    for line in text.splitlines():
        if re.match(r"(tiny|strict) +[|\d]", line) and not re.search(r"rejected|[+]0[.]00", line):
            yield line.replace("|", " ").split()


def test_the_text_of_a_narrow_screen_is_wrapped_to_it() -> None:
    lines = render(two(), width=40).splitlines()
    assert max(len(line) for line in lines if line.startswith(("cluster", "!", "  "))) <= 40


def test_what_is_true_of_several_policies_is_said_once_with_the_range_of_its_numbers() -> None:
    notices = [("a", "12 of 1,300 late"), ("b", "early"), ("c", "9.5 of 1,300 late"), ("a", "late")]
    assert fold(notices) == ["a, c: 9.5 to 12 of 1,300 late", "b: early", "a: late"]
    text = render(two(), width=200)
    assert "! tiny, strict: only 2 to 3 requests completed; a p99 is then one request" in text.splitlines()


def test_what_a_comparison_says_of_two_policies_is_not_said_again_of_one() -> None:
    columns = {name: column[:3] for name, column in tiny_columns().items()}  # a, b and c: nothing is rejected
    part = {"trace": tiny_trace().select(max_requests=3), "columns": columns}
    other = tiny_policies() | {"router": {"name": "random", "parameters": {}}}
    lines = render([tiny_run(**part), tiny_run(**part, policy_label="twin", policies=other)], width=400).splitlines()
    assert "! tiny, twin: its admission never turned a request away" in lines
    assert sum("pool 100.0 % busy" in line for line in lines) == 1


def test_runs_with_one_label_are_told_apart_in_their_notices() -> None:
    assert "! tiny #1, tiny #2: only 3 requests completed" in render([tiny_run(), tiny_run()], width=200)


def test_the_warm_up_notice_says_what_is_of_the_whole_run() -> None:
    setup = replace(tiny_replay().setup, warmup_ms=5.0)  # a and b arrive before
    assert (
        "! tiny: 2 requests of the warm-up left out; only fetches, bytes fetched and streamed, and evictions are of "
        "the whole run"
    ) in render(tiny_run(setup=setup), width=200).splitlines()


def test_a_run_interrupted_within_its_warm_up_says_only_that() -> None:
    early = replace(interrupted(), setup=replace(interrupted().setup, warmup_ms=30.0))  # stopped at 21 ms
    lines = render(Run.from_replay(early), width=200).splitlines()
    assert [line for line in lines if line.startswith("!")] == [
        "! tiny: interrupted within the warm-up: nothing is measured"
    ]


def test_the_legends_say_which_tokens_and_which_gaps() -> None:
    without = replace(tiny_replay().setup, first_gap="exclude")
    plain, left_out = (render(run, width=200) for run in (tiny_run(), tiny_run(setup=without)))
    assert "requests, tokens: of all offered requests and prompt tokens;" in plain
    assert "; ITL = all gaps\n" in plain
    assert "leave out" not in plain
    assert ("; ITL = all counted gaps; TBT and ITL leave out each request's first gap, TPOT does not") in " ".join(
        left_out.split()
    )
    mixed = render([tiny_run(), tiny_run(policy_label="other", setup=without)], width=200, force=True)
    assert "; of other, TBT and ITL leave out each request's first gap" in " ".join(mixed.split())


def test_latex_tables_have_labels_of_their_own_and_name_their_package() -> None:
    text = render(two(), "latex", by="input_tokens")
    labels = re.findall(r"^\\label\{(.*)\}$", text, re.MULTILINE)
    assert labels[:2] == ["tab:requests", "tab:goodput"]
    assert len(set(labels)) == len(labels) == text.count(r"\begin{table}") == 10
    assert text.startswith("% needs \\usepackage{booktabs}\n")
    assert not re.search(r"\s\}$", text, re.MULTILINE)


def test_a_screen_that_knows_ascii_only_gets_ascii() -> None:
    text = render([tiny_run(policy_label="naïve→"), b_rejected()], encoding="ascii", width=80)
    assert text.isascii()
    assert "1.00x" in text
    assert "+--" in text
    assert render(two(), encoding=None).isascii()


def test_colour_is_given_only_where_asked_and_never_under_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[" not in render(two())
    assert "\x1b[" in render(two(), color=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[0-9;]*3\dm", render(two(), color=True))


# ---- names come from users


@pytest.fixture
def nasty() -> Run:
    trace = replace(tiny_trace(), name="\x1b[31mred\nname")
    return tiny_run(trace=trace, policy_label=NASTY, reasons=("[bold]no[/bold]\x1b[2J", "full"))


def test_a_screen_shows_names_as_they_are_but_obeys_none(nasty: Run) -> None:
    text = render(nasty, width=160)
    assert NASTY in text
    assert "[bold]no[/bold]?[2J" in text
    assert "\x1b" not in text
    assert "?[31mred?name" in text


def test_markdown_escapes_names(nasty: Run) -> None:
    text = render(nasty, "markdown")
    rows = [line for line in text.splitlines() if line.startswith("| a")]
    assert rows
    for row in rows:
        assert row.startswith(r"| a\|b\_$%&amp;\#{}\~^\\&lt;b&gt;\[red\]\*\`")
    lines = text.splitlines()
    for i, line in enumerate(lines):
        if line.startswith("| a"):  # as many cells as the rule above it
            assert len(re.split(r"(?<!\\)\|", line)) == lines[i - 1].count("|") + 1


def test_latex_escapes_names_and_uses_booktabs(nasty: Run) -> None:
    text = render(nasty, "latex")
    escaped = r"a\textbar{}b\_\$\%\&\#\{\}\textasciitilde{}\textasciicircum{}\textbackslash{}$<$b$>$[red]*`''=1+1"
    assert escaped in text
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == text.count(r"\end{table}")


def test_csv_is_quoted_and_no_formula() -> None:
    run = tiny_run(policy_label='=HYPERLINK("x"),a\nb')
    rows = list(csv.reader(io.StringIO(render(run, "csv"))))
    assert tuple(rows[0]) == CSV_COLUMNS
    assert [row[2] for row in rows[1:]] == list(BY_NAME)
    assert {row[0] for row in rows[1:]} == {'\'=HYPERLINK("x"),a?b'}
    values = {row[2]: row[3] for row in rows[1:]}
    assert values["mean_queue_ms"] == "3.0"
    assert values["mean_fetch_ms"] == "0.0"
    empty = list(csv.reader(io.StringIO(render(Run.from_replay(all_rejected()), "csv"))))
    assert {row[2]: row[3] for row in empty}["mean_ttft_ms"] == ""


def test_json_is_strict_and_has_everything(tmp_path: Path) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    runs = two()
    folder = runs[0].save(tmp_path)
    answer = json.loads(render(runs, "json"), parse_constant=refuse)
    assert answer["reference"] == "tiny"
    assert [run["run_dir"] for run in answer["runs"]] == [str(folder), None]
    assert list(answer["runs"][0]["metrics"]) == list(BY_NAME)
    assert answer["runs"][1]["ratios_to_reference"]["completed_requests"] == pytest.approx(2 / 3)
    assert answer["runs"][1]["rejections"][1] == {
        "stage": "decode", "reason": "full", "requests": 1, "input_tokens": 10
    }  # fmt: skip
    [paired] = answer["paired"]
    assert (paired["label"], paired["both"], paired["only_reference"]) == ("strict", 2, 1)
    assert answer["notices"]


# ---- options


def test_a_split_adds_a_table_a_run() -> None:
    trace = replace(tiny_trace(), priority=np.array([0, 1, 0, 2]))
    run = tiny_run(trace=trace)
    text = render(run, by="priority")
    assert "tiny by priority" in text
    assert "priority 2" in text
    groups = json.loads(render(run, "json", by="priority"))["groups"]
    assert [(group["priority"], group["metrics"]["offered_requests"]["value"]) for group in groups] == [
        ("priority 0", 2), ("priority 1", 1), ("priority 2", 1)
    ]  # fmt: skip


def test_a_split_shows_failed_and_unfinished_where_there_are_some() -> None:
    assert split_header(tiny_run())[:4] == ["input_tokens", "offered", "rejected", "in"]
    stopped = Run.from_replay(interrupted())  # a and b had not ended
    assert split_header(stopped)[:4] == ["input_tokens", "offered", "rejected", "unfinished"]
    columns = tiny_columns()
    columns["status"][3], columns["reject_stage"][3], columns["reject_reason"][3] = FAILED, 0, -1
    failed = tiny_run(columns=columns)
    assert split_header(failed)[:4] == ["input_tokens", "offered", "rejected", "failed"]
    row = render(failed, width=80, by="input_tokens").split("below 1,000")[1].split()
    assert row[:3] == ["4", "0", "1"]


def split_header(run: Run) -> list[str]:
    """The header of its table by prompt length, on 80 columns."""
    [line] = [each for each in render(run, width=80, by="input_tokens").splitlines() if each.startswith("input_tokens")]
    assert len(line) <= 80
    return line.split()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fmt": "tabel"}, "did you mean 'table'"),
        ({"by": "session"}, "have none"),
        ({"by": "input_tokens", "fmt": "csv"}, "no effect with --format csv"),
    ],
)
def test_an_option_that_means_nothing_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ResultError, match=words):
        render(tiny_run(), **options)


def test_runs_that_are_not_comparable_are_refused_unless_forced() -> None:
    runs = [tiny_run(), tiny_run(setup=replace(tiny_replay().setup, slo_tbt_ms=30.0))]
    with pytest.raises(ResultError, match="TBT SLO differs"):
        render(runs)
    assert "forced: TBT SLO differs" in render(runs, force=True)


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([7.53, 7.8, 7.79, 9.7], ["7.53", "7.80", "7.79", "9.70"]),
        ([0.058, 0.0585, 0.0603], ["0.0580", "0.0585", "0.0603"]),
        ([52.5, None, 9.0], ["52.5", "–", "9.0"]),
        ([1234.5, 0], ["1,234", "0"]),  # half to even, as Python rounds
        ([1234.5, 1.2], ["1,234", "1.2"]),
        ([10.0, 0.004], ["10", "0.004"]),  # 1 decimal would show nothing of the second
        ([None], ["–"]),
        ([0.0], ["0"]),
        ([], []),
    ],
)
def test_numbers_of_a_column_have_the_same_decimals(values: list[float | None], shown: list[str]) -> None:
    assert alike(values) == shown
