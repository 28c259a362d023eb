"""The page: what it says equals the stored tables, it asks for nothing outside, and no name in it is obeyed."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from fault_tools import Tool
from html_tools import Reader, labelled, pictures, value, with_class
from test_results_compare import b_rejected
from test_results_tiny import all_rejected, interrupted, one_request, tiny_run

from mooncake_bench.cli.app import run
from mooncake_bench.report.figures import kinds
from mooncake_bench.report.html.page import of_report, render
from mooncake_bench.report.html.runs import of_runs
from mooncake_bench.report.html.tables import file_name, sort_number
from mooncake_bench.report.sheets import Report, Sheet
from mooncake_bench.results.compare import compare
from mooncake_bench.results.run import Run

pytest.importorskip("jinja2", reason="pages need the extra 'report'")

HOSTILE = "\"'><script>alert(1)</script></textarea><img src=x onerror=alert(2)>{{ 7*7 }}</style>&lt;\u2028"
POLICIES = ("random", "kvcache-centric")


def page(*runs: Run, title: str | None = None) -> str:
    return render(of_runs(compare(runs, force=True), title))


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of a few hundred requests in a tight cluster, so that some are rejected, and the page of them."""
    folder = tmp_path_factory.mktemp("stored")
    named = [word for policy in POLICIES for word in ("-p", f"{policy}+predictive")]
    words = ["--max-requests", "300", "--cluster", "2P+2D", "--out", str(folder / "results"), "-q"]
    assert run(["replay", "conversation-like", *named, *words]) == 0
    assert run(["report", "1", "2", "--results", str(folder / "results"), "-o", str(folder / "page.html")]) == 0
    return folder


@pytest.fixture(scope="module")
def shown(stored: Path) -> Reader:
    return Reader((stored / "page.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def requests(stored: Path) -> list[dict[str, Any]]:
    """The columns of each run's requests.parquet."""
    tables = [pq.read_table(path) for path in sorted(stored.glob("results/*/requests.parquet"))]
    return [
        {name: table.column(name).to_numpy(zero_copy_only=False) for name in table.schema.names} for table in tables
    ]


# ---- what it says


def test_the_accounts_equal_the_parquet(shown: Reader, requests: list[dict[str, Any]]) -> None:
    for row, columns in zip(shown.rows("requests"), requests, strict=True):
        for status in ("completed", "rejected", "failed", "unfinished"):
            assert row[status] == f"{int((columns['status'] == status).sum()):,}"
        turned_away = columns["status"] == "rejected"
        share = columns["input_tokens"][turned_away].sum() / columns["input_tokens"].sum()
        assert turned_away.any()
        assert row["of tokens"] == f"{100 * share:.1f} %"


def test_the_latencies_equal_the_parquet(shown: Reader, requests: list[dict[str, Any]]) -> None:
    for row, columns in zip(shown.rows("ttft-of-completed-requests"), requests, strict=True):
        ttft_ms = columns["ttft_ms"][columns["status"] == "completed"]
        assert row["n"] == f"{len(ttft_ms):,}"
        for name, expected in (("mean", ttft_ms.mean()), ("p99", np.percentile(ttft_ms, 99))):
            assert row[name] == (f"{expected:,.0f}" if expected >= 1000 else f"{expected:.1f}")


def test_the_numbers_behind_the_bars_equal_the_parquet_and_so_do_the_bars(
    stored: Path, shown: Reader, requests: list[dict[str, Any]]
) -> None:
    panel = shown.numbers()["outcomes"]["panels"][0]
    place = panel["x"]["categories"].index("completed")
    completed = [int((columns["status"] == "completed").sum()) for columns in requests]
    assert [series["y"][series["x"].index(place)] for series in panel["series"]] == completed
    svg = pictures((stored / "page.html").read_text(encoding="utf-8"))[0]
    _, up = labelled(svg)
    tops = [value(float(with_class(group, "bar")[place].get("y", "")), up) for group in with_class(svg, "series")]
    assert tops == [pytest.approx(count, abs=300 * 0.003) for count in completed]


def test_every_point_of_a_distribution_is_the_share_of_requests_up_to_it(
    shown: Reader, requests: list[dict[str, Any]]
) -> None:
    panel = shown.numbers()["ttft-cdf"]["panels"][0]
    for series, columns in zip(panel["series"], requests, strict=True):
        ttft_s = columns["ttft_ms"][columns["status"] == "completed"] / 1000
        for x, y in list(zip(series["x"], series["y"], strict=True))[1:]:
            assert y == pytest.approx((ttft_s <= x * (1 + 1e-12)).mean(), abs=1e-12)


def test_every_figure_of_runs_is_there_with_its_numbers(shown: Reader) -> None:
    wanted = {name for name, kind in kinds().items() if kind.TAKES == "runs" and not getattr(kind, "COMBINES", ())}
    assert {"outcomes", "ttft-cdf", "tbt-cdf", "load", "queue", "cache", "goodput", "instances"} <= wanted
    drawn = {str(attrs["id"]).split("-", 2)[2] for tag, attrs in shown.elements if tag == "figure"}
    assert drawn == wanted
    assert set(shown.numbers()) <= wanted


def test_it_says_what_was_replayed_with_what_differs_first(stored: Path, shown: Reader) -> None:
    manifests = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(stored.glob("results/*/run.json"))]
    assert next(iter(shown.tables)) == "what-differs-between-the-runs"
    assert [row["setting"] for row in shown.rows("what-differs-between-the-runs")] == ["policy"]
    words = " ".join(shown.words)
    assert manifests[0]["trace"]["sha256"] in words
    assert manifests[0]["cost"]["error"] in words
    assert all(digest in words for each in manifests for digest in each["policy"]["sources"].values())
    assert "kvcache-centric (threshold=4.0)" in [row["router"] for row in shown.rows("policies")]
    setup = {row["setting"]: row["value"] for row in shown.rows("the-whole-setup")}
    assert setup["cluster"] == "2P+2D"
    assert setup["slo.ttft_ms"] == "30 s"
    assert str(stored) not in "".join(shown.words)  # folders are private


def test_a_title_names_a_few_policies_and_counts_many() -> None:
    assert "<title>tiny on tiny</title>" in page(tiny_run())
    many = [tiny_run(policy_label=f"a policy of a long name {i}") for i in range(9)]
    assert "<title>9 runs on tiny</title>" in page(*many)


def test_settings_that_differ_are_listed_with_their_values() -> None:
    a, b = tiny_run(), tiny_run()
    b.manifest["setup"] = {**b.manifest["setup"], "speedup": 2.5, "slo.ttft_ms": 1500.0}
    b.manifest["simulator_version"] = "0"
    rows = {row["setting"]: list(row.values())[1:] for row in Reader(page(a, b)).rows("what-differs-between-the-runs")}
    assert rows["speedup"][1] == "2.5×"
    assert rows["slo.ttft_ms"][1] == "1.5 s"
    assert rows["simulator version"][1] == "0"


def test_columns_are_explained_beside_the_numbers(shown: Reader) -> None:
    words = " ".join(" ".join(shown.words).split())
    assert "TTFT = first token - arrival, queueing included" in words
    assert "mean_ttft_ms" in words
    assert "request_goodput_ratio" in words


def test_every_metric_can_be_downloaded_in_full(shown: Reader, requests: list[dict[str, Any]]) -> None:
    links = {str(a["download"]): str(a["href"]) for tag, a in shown.elements if tag == "a" and "download" in a}
    kept = {name: base64.b64decode(link.split(",")[1]).decode() for name, link in links.items()}
    lines = list(csv.DictReader(io.StringIO(kept["metrics.csv"])))
    means = [float(line["value"]) for line in lines if line["metric"] == "mean_ttft_ms"]
    expected = [columns["ttft_ms"][columns["status"] == "completed"].mean() for columns in requests]
    assert means == [pytest.approx(each, rel=1e-12) for each in expected]
    assert [each["run_dir"].count("/") for each in json.loads(kept["metrics.json"])["runs"]] == [0, 0]


# ---- what it asks for


def test_the_page_needs_nothing_beside_it_and_forbids_the_rest(shown: Reader) -> None:
    assert {tag for tag, _ in shown.elements} & {"link", "iframe", "object", "embed", "base", "form", "video"} == set()
    loads = [value for _, a in shown.elements for name, value in a.items() if name in ("src", "srcset", "xlink:href")]
    assert loads == []
    links = [str(a["href"]) for tag, a in shown.elements if tag == "a"]
    assert all(link.startswith(("#", "data:text/plain;base64,")) for link in links)
    assert not re.search(r"url\(|@import", shown.raw["style"][0])
    assert [name for _, a in shown.elements for name in a if name.startswith("on") or name == "style"] == []


def test_only_the_page_s_own_script_and_style_may_run(shown: Reader) -> None:
    rule = next(str(a["content"]) for tag, a in shown.elements if tag == "meta" and "http-equiv" in a)
    for kind, text in (("script", shown.raw["script"][1]), ("style", shown.raw["style"][0])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in rule
    assert rule.startswith("default-src 'none';")
    assert "unsafe" not in rule


def test_the_same_runs_give_the_same_bytes() -> None:
    runs = tiny_run(), b_rejected()
    assert page(*runs) == page(*runs)


# ---- names


def hostile_run() -> Run:
    """A run whose names all try to be more than text."""
    made = tiny_run(policy_label=HOSTILE, reasons=(HOSTILE, "full"))
    made.manifest["trace"] = {**made.manifest["trace"], "name": HOSTILE, "metadata": {HOSTILE: HOSTILE}}
    made.manifest["policy"] = {**made.manifest["policy"], "spec": HOSTILE, "sources": {HOSTILE: "ab" * 32}}
    made.manifest["cost"] = {**made.manifest["cost"], "error": HOSTILE, "error_short": HOSTILE}
    made.manifest["setup"] = {**made.manifest["setup"], "model": HOSTILE}
    return made


def test_no_name_becomes_markup_script_or_template() -> None:
    plain, hostile = Reader(page(tiny_run(), tiny_run())), Reader(page(hostile_run(), hostile_run()))
    for tag in ("script", "img", "style", "textarea"):
        assert [t for t, _ in hostile.elements].count(tag) == [t for t, _ in plain.elements].count(tag)
    assert not any(name.startswith("on") for _, attributes in hostile.elements for name in attributes)
    words = "".join(hostile.words)
    assert HOSTILE.replace("\u2028", "?") in words  # as it was given
    assert "{{ 7*7 }}" in words
    assert hostile.raw["script"][1] == plain.raw["script"][1]
    labels = [each["label"] for each in hostile.numbers()["outcomes"]["panels"][0]["series"]]
    assert labels[0].startswith(HOSTILE)


def test_a_hostile_title_stays_text() -> None:
    assert Reader(page(tiny_run(), title="</title><script>alert(1)</script>")).elements.count(("script", {})) == 1


def test_a_spreadsheet_takes_no_name_for_a_formula() -> None:
    made = tiny_run(policy_label="=HYPERLINK(1)")
    links = [
        str(a["href"]) for tag, a in Reader(page(made)).elements if tag == "a" and a.get("download") == "metrics.csv"
    ]
    text = base64.b64decode(links[0].split(",")[1]).decode()
    assert "\n'=HYPERLINK(1)," in text


# ---- odd runs


def empty() -> Run:
    """A run whose requests all arrive within its warm-up: none is counted."""
    made = tiny_run()
    made.manifest["setup"] = {**made.manifest["setup"], "warmup_ms": 1e9}
    return made


@pytest.mark.parametrize(
    "made",
    [
        lambda: [empty()],
        lambda: [Run.from_replay(one_request(1))],
        lambda: [Run.from_replay(one_request(4))],
        lambda: [Run.from_replay(all_rejected())],
        lambda: [Run.from_replay(interrupted())],
        lambda: [tiny_run()],
        lambda: [tiny_run(), Run.from_replay(all_rejected())],
        lambda: [tiny_run()] * 9,
    ],
    ids=["empty", "one token", "one request", "all rejected", "interrupted", "one run", "some and none", "nine runs"],
)
def test_odd_runs_make_a_page(made: Any) -> None:
    runs = made()
    text = page(*runs)
    found = Reader(text)
    assert len(found.rows("requests")) == len(runs)
    assert "NaN" not in text
    assert "Infinity" not in found.raw["script"][0]
    for svg in pictures(text):
        assert "nan" not in "".join(str(each.attrib) for each in svg.iter()).lower()


def test_a_figure_without_numbers_says_why() -> None:
    words = " ".join(Reader(page(Run.from_replay(all_rejected()))).words)
    assert "Nothing to draw: no completed request has a TTFT." in words


# ---- any report


def test_any_report_makes_a_page_with_its_pictures() -> None:
    sheet = Sheet("Numbers: all", ("name", "n"), (("<b>", "1"), ("c", "–")), ("a & b",))
    found = Reader(render(of_report(Report(("head",), (sheet,), ("careful",)), "A title", {"a picture": b"\x89PNG"})))
    assert found.tables["numbers"] == [["name", "n"], ["<b>", "1"], ["c", "–"]]
    pictures = [a["src"] for tag, a in found.elements if tag == "img"]
    assert pictures == ["data:image/png;base64,iVBORw=="]
    assert {"a & b", "careful", "head"} <= set(found.words)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12,031", 12_031), ("26.5 %", 26.5), ("–", None), ("1.04×", 1.04), ("-3,728.2 to -1,410.1", -3728.2),
        ("", None), ("+0.63", 0.63), ("8.19 TB", 8.19e12), ("7.5 kB", 7500), ("12 B", 12), ("failed", None),
        ("1.2e-05", 1.2e-05),
    ],
)  # fmt: skip
def test_a_cell_is_sorted_by_the_number_that_it_shows(text: str, number: float | None) -> None:
    assert sort_number(text) == (None if number is None else pytest.approx(number))


def test_almost_all_lies_between_its_neighbours() -> None:
    order = ["0.0 %", "<0.1 %", "0.1 %", "99.9 %", ">99.9 %", "100.0 %"]
    numbers = [sort_number(text) or 0 for text in order]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) == len(order)


def test_tables_of_the_same_title_have_names_of_their_own() -> None:
    assert file_name("Goodput: completed within the SLOs", ()) == "goodput"
    assert file_name("Goodput, again", ("goodput",)) == "goodput-2"
    assert file_name("<b>", ()) == "b"
    assert file_name("×", ()) == "table"


# ---- the command


def test_the_command_writes_one_file_and_says_so(stored: Path, tool: Tool) -> None:
    folder = next(stored.glob("results/1_*"))
    done = tool("report", str(folder), "--title", "Mine & yours")
    assert (done.code, done.err) == (0, "")
    text = Path("report.html").read_text(encoding="utf-8")
    assert done.out == f"report.html: {len(text.encode()):,} bytes\n"
    assert "<title>Mine &amp; yours</title>" in text
    assert text.endswith("</html>\n")
    assert [path.name for path in Path().iterdir()] == ["report.html"]


def test_a_page_is_replaced_only_when_that_was_asked_for(stored: Path, tool: Tool) -> None:
    Path("report.html").write_text("mine", encoding="utf-8")
    words = ("report", "1", "--results", str(stored / "results"))
    done = tool(*words)
    assert (done.code, done.out) == (2, "")
    assert "-o 'report.html' exists; choose another name, or --force" in done.err
    assert Path("report.html").read_text(encoding="utf-8") == "mine"
    assert tool(*words, "--force").code == 0
    assert Path("report.html").stat().st_size > 10_000


def test_a_page_may_go_to_stdout(stored: Path, tool: Tool) -> None:
    done = tool("report", "1", "--results", str(stored / "results"), "-o", "-")
    assert done.code == 0
    assert done.out.startswith("<!doctype html>")
    assert list(Path().iterdir()) == []


def test_runs_of_other_work_are_refused_unless_forced_and_then_it_is_said(stored: Path, tool: Tool) -> None:
    assert tool("replay", "conversation-like", "--max-requests", "50", "-p", "random", "-q").code == 0
    other = str(next(Path("results").iterdir()))
    words = ("report", str(next(stored.glob("results/1_*"))), other)
    refused = tool(*words)
    assert refused.code == 2
    assert "the runs are not comparable: trace differs" in refused.err
    assert "--force-compare" in refused.err
    assert not Path("report.html").exists()
    assert tool(*words, "--force-compare").code == 0
    assert "forced: trace differs" in Path("report.html").read_text(encoding="utf-8")


FAULTS = {
    ("report", "nowhere"): "no run 'nowhere'",
    ("report", "1", "-o", "none/page.html"): "there is no folder 'none'",
    ("report", "1", "-o", "."): "is a folder; expected a file",
    ("report", "1", "-o", ""): "the name is empty",
    ("report", "1", "-o", "-", "--force"): "--force: no effect where the page goes to stdout",
    ("report", "1", "--title", " "): "--title: expected some text",
    ("report",): "Missing argument 'RUN'",
}


@pytest.mark.parametrize("words", FAULTS, ids=" ".join)
def test_wrong_use_is_one_line_and_writes_nothing(words: tuple[str, ...], tool: Tool) -> None:
    done = tool(*words)
    assert (done.code, done.out) == (2, "")
    assert FAULTS[words] in done.err
    assert done.err.count("\n") == 1
    assert list(Path().iterdir()) == []


def test_the_program_in_the_documentation_reads_a_page(
    stored: Path, tool: Tool, capsys: pytest.CaptureFixture[str], requests: list[dict[str, Any]]
) -> None:
    Path("report.html").write_bytes((stored / "page.html").read_bytes())
    text = (Path(__file__).parent.parent / "docs/report.md").read_text(encoding="utf-8")
    exec(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0], {})
    counts = [int((columns["status"] == "completed").sum()) for columns in requests]
    assert re.findall(r"'completed': (\d+)", capsys.readouterr().out) == [str(count) for count in counts]


def test_without_jinja2_one_line_says_how_to_get_it(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    done = tool("report", "1")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "mooncake-bench: pages need Jinja2, which is not installed: pip install 'mooncake-bench[report]'\n"
    )


def test_a_sweep_has_a_page_of_its_own(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOONCAKE_BENCH_WORKERS", "1")
    words = ("--vary", "speedup=1,2", "-p", "random", "--max-requests", "60", "-o", "s", "-q")
    made = tool("sweep", "run", "conversation-like", *words)
    assert made.code == 0, made.err
    assert tool("report", "s").code == 0
    found = Reader(Path("report.html").read_text(encoding="utf-8"))
    points = pq.ParquetDataset("s").read().sort_by("point").to_pylist()
    assert [row["speedup"] for row in found.rows("points")] == ["1", "2"]
    assert [row["TTFT"] for row in found.rows("points")] == [
        f"{point['mean_ttft_ms']:,.0f}" if point["mean_ttft_ms"] >= 1000 else f"{point['mean_ttft_ms']:.1f}"
        for point in points
    ]
    assert found.rows("policies") == [{"policy": "random", "SPEC": "random"}]
    assert {len(row["sha256"]) for row in found.rows("policy-files")} == {64}
    spots = next(each for each in found.numbers()["pareto"]["panels"][0]["series"] if each["shape"] == "points")
    expected = sorted((point["p90_ttft_ms"] / 1000, point["request_goodput_rps"]) for point in points)  # large: in s
    assert list(zip(spots["x"], spots["y"], strict=True)) == [pytest.approx(each) for each in expected]
    assert "'s' is a sweep, which has a page of its own" in tool("report", "s", "1", "--force").err
    assert "--force-compare: no effect" in tool("report", "s", "--force-compare", "--force").err


def test_captions_of_figures_say_ttft_and_tbt_as_the_readme_defines_them() -> None:
    assert "first token came within x of their arrival" in kinds()["ttft-cdf"].DESCRIPTION
    assert "with a token gap whose TBT is at most x" in kinds()["tbt-cdf"].DESCRIPTION
    text = render(of_runs(compare([tiny_run()])))
    assert "TBT: mean of a request&#39;s longest 10 % of token gaps" in text  # the run's --tbt-metric
