"""What ``gate`` leaves for CI: JUnit, annotations, a summary, files of github-action-benchmark, other formats."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest
from fault_tools import Tool, strict
from gate_tools import HOSTILE, P99, edit, manifest
from test_results_tiny import all_rejected, tiny_run

from mooncake_bench.cli.gate_files import _append_summary
from mooncake_bench.errors import ResultError, SetupError
from mooncake_bench.results.exporters import exporter
from mooncake_bench.results.gate.outcome import Outcome
from mooncake_bench.results.run import Run


@pytest.fixture
def hostile(tool: Tool, runs: Path) -> Path:
    """Two runs whose policy has a name that tries everything."""
    for number in (1, 3):
        edit(manifest(runs, number), policy__label=HOSTILE)
    return runs


FILES = ("--junit", "gate.xml", "--summary", "summary.md", "--annotations", "--github-benchmark", ".")


def test_junit_has_a_case_a_rule_and_names_stay_text(tool: Tool, hostile: Path) -> None:
    tool("gate", "1", "3", *P99, "--fail-if", "p99_ttft_ms>1", "--junit", "gate.xml")
    root = Xml.parse("gate.xml").getroot()
    (suite,) = root
    assert (root.tag, suite.tag) == ("testsuites", "testsuite")
    assert suite.get("name") == '<b>&|*%"x"?::error::y?[31m'
    assert [suite.get(key) for key in ("tests", "failures", "errors", "skipped")] == ["2", "1", "0", "0"]
    # Ant's schema: these attributes, and children in this order.
    assert {"name", "timestamp", "hostname", "tests", "failures", "errors", "time", "package", "id"} <= set(
        suite.attrib
    )
    assert [child.tag for child in suite] == ["properties", "testcase", "testcase", "system-out", "system-err"]
    assert [case.get("name") for case in suite.iter("testcase")] == ["p99_ttft_ms:2%", "p99_ttft_ms>1"]
    (failure,) = suite.iter("failure")
    assert failure.get("type") == "fail"
    assert failure.get("message").startswith("p99_ttft_ms>1: is ")  # type: ignore[union-attr]


def test_junit_says_when_the_gate_ran_and_for_how_long(tool: Tool, runs: Path) -> None:
    began = datetime.now(UTC).replace(microsecond=0, tzinfo=None)
    tool("gate", "old", "new", *P99, "--junit", "gate.xml")
    suites = list(Xml.parse("gate.xml").getroot())
    (when,) = {suite.get("timestamp") for suite in suites}
    assert began <= datetime.fromisoformat(str(when)) <= datetime.now(UTC).replace(tzinfo=None)
    assert len(suites) == 2
    assert 0 < sum(float(str(suite.get("time"))) for suite in suites) < 60


def test_junit_counts_what_says_nothing_as_skipped_unless_it_is_to_fail(tool: Tool, runs: Path) -> None:
    tool("gate", "nosuch.json", "1", *P99, "--junit", "gate.xml")
    assert len(list(Xml.parse("gate.xml").iter("skipped"))) == 1
    tool("gate", "nosuch.json", "1", *P99, "--junit", "gate.xml", "--missing-baseline", "fail")
    assert len(list(Xml.parse("gate.xml").iter("failure"))) == 1


def test_annotations_are_one_escaped_line_each(tool: Tool, hostile: Path) -> None:
    done = tool("gate", "1", "3", *P99, "--fail-if", "p99_ttft_ms>1", "--annotations")
    assert done.code == 1
    (line,) = done.err.splitlines()
    assert line.startswith(
        '::error title=gate%3A policy <b>&|*%25"x"?%3A%3Aerror%3A%3Ay?[31m::fail: p99_ttft_ms>1: is '
    )
    assert not any(row.lstrip().startswith("::") for row in done.out.splitlines())
    done = tool("gate", "nosuch.json", "1", *P99, "--annotations")
    assert done.err.splitlines()[0].startswith("::warning title=")
    assert "%2525" not in done.err
    assert "p99_ttft_ms:2%25: not in BASE" in done.err


def test_the_summary_is_appended_as_markdown_that_keeps_names_text(tool: Tool, hostile: Path) -> None:
    Path("summary.md").write_text("before\n", encoding="utf-8")
    for _ in range(2):
        tool("gate", "1", "3", "--fail-if", "p99_ttft_ms>1", "--summary", "summary.md")
    text = Path("summary.md").read_text(encoding="utf-8")
    assert text.startswith("before\n## mooncake-bench gate\n")
    assert text.count('### policy &lt;b&gt;&amp;\\|\\*%"x"?::error::y?\\[31m: 1 of 1 rule failed') == 2
    assert "| p99\\_ttft\\_ms&gt;1 |" in text


def test_a_summary_that_does_not_fit_leaves_the_file_as_it_was(tool: Tool, runs: Path) -> None:
    resource = pytest.importorskip("resource", reason="limits of a process, which this system has not")
    Path("old.md").write_text("before\n", encoding="utf-8")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    outcome = Outcome((), "a", "b", notices=("x" * 100,))
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, limits[1]))  # a write beyond 50 bytes fails half done
    try:
        for name in ("new.md", "old.md"):
            with pytest.raises(SetupError, match=f"--summary {name}: cannot be written"):
                _append_summary(Path(name), outcome)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not Path("new.md").exists()
    assert Path("old.md").read_text(encoding="utf-8") == "before\n"


def test_files_of_github_action_benchmark_hold_the_judged_metrics(tool: Tool, hostile: Path) -> None:
    rules = ("--fail-if", "p99_ttft_ms:2%", "--fail-if", "completed_ratio:1%", "--fail-if", "mean_kv_load_ms>1")
    tool("gate", "1", "3", *rules, "--github-benchmark", ".")
    smaller, bigger = (
        strict(Path(f"{word}-is-better.json").read_text(encoding="utf-8")) for word in ("smaller", "bigger")
    )
    ((p99,), (ratio,)) = smaller, bigger  # what is undefined has no entry
    assert {key: type(value) for key, value in p99.items()} == {"name": str, "unit": str, "value": float, "extra": str}
    assert (p99["name"], p99["unit"]) == (f"{HOSTILE}: p99_ttft_ms", "ms")
    assert (ratio["value"], ratio["unit"]) == (1.0, "ratio")


def test_both_exporters_hold_every_defined_metric_of_their_direction() -> None:
    for name, better in (("github-action-benchmark", "lower"), ("github-action-benchmark-bigger", "higher")):
        entries = strict(exporter(name).export([tiny_run()]))
        found = {f"tiny: {each}" for each, value in tiny_run().metrics().items() if value.better == better}
        assert {entry["name"] for entry in entries} <= found
        assert all(set(entry) == {"name", "unit", "value", "extra"} and entry["unit"] for entry in entries)
        # the first token of a after 8 ms, of b after 6, of c after 9: 23 / 3
        means = [entry["value"] for entry in entries if entry["name"] == "tiny: mean_ttft_ms"]
        assert means == ([pytest.approx(23 / 3)] if better == "lower" else [])
        assert exporter(name).export([Run.from_replay(all_rejected())])
    with pytest.raises(ResultError, match="did you mean 'github-action-benchmark'"):
        exporter("github-action-benchmrk")


def test_other_formats_hold_every_check(tool: Tool, hostile: Path) -> None:
    rows = tool("gate", "1", "3", *P99, "--format", "csv").out.splitlines()
    assert rows[0].startswith("policy,rule,metric,unit,better,base,new,change,relative_change,p_value,verdict")
    assert len(rows) == 2
    assert r"p99\_ttft\_ms:2\%" in tool("gate", "1", "3", *P99, "--format", "latex").out
    assert "| p99\\_ttft\\_ms:2% |" in tool("gate", "1", "3", *P99, "--format", "markdown").out


def test_nothing_is_left_behind_where_the_work_differs(tool: Tool, runs: Path) -> None:
    assert tool("gate", "1", "5", *P99, *FILES).code == 2
    assert [each.name for each in Path().iterdir()] == ["results"]
