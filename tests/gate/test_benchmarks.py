"""``gate`` over files of pytest-benchmark: a factor and a rank test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fault_tools import Tool
from gate_tools import FAST, P99, SLOW, benchmark_file


def test_files_of_pytest_benchmark_are_gated_by_factor_and_rank_test(tool: Tool) -> None:
    old = benchmark_file("old.json", a=FAST, b=FAST)
    new = benchmark_file("new.json", a=SLOW, b=FAST)
    answer = tool.json("gate", old, new, "--fail-if", "mean:5%", "--fail-if", "ops:5%", code=1)
    assert [(check["policy"][-1], check["verdict"]) for check in answer["checks"]] == [
        ("a", "fail"), ("a", "fail"), ("b", "pass"), ("b", "pass"),
    ]  # fmt: skip
    assert answer["checks"][0]["p_value"] == pytest.approx(1 / 252)  # 5 above 5: 1 / C(10, 5)
    assert "benchmark tests/test_speed.py::a: 1 of 1 rule failed" in tool("gate", old, new, "--fail-if", "mean:5%").out


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1" + "0" * 400])
def test_a_benchmark_that_holds_no_number_is_said_to(tool: Tool, number: str) -> None:
    old, new = benchmark_file("old.json", a=FAST), benchmark_file("new.json", a=FAST)
    text = Path(new).read_text(encoding="utf-8")
    Path(new).write_text(text.replace('"mean": 1.02', f'"mean": {number}'), encoding="utf-8")
    for words in ([old, new], [new, old]):
        done = tool("gate", *words, "--fail-if", "mean:5%")
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert "'new.json' cannot be judged: it holds what is no strict JSON" in done.err
        assert number in done.err or "401 digits" in done.err


def test_noise_is_nothing_to_conclude(tool: Tool) -> None:
    old, new = benchmark_file("old.json", a=FAST[:3]), benchmark_file("new.json", a=SLOW[:3])
    assert tool("gate", old, new, "--fail-if", "mean:5%").code == 3  # 3 against 3: p = 0.05 at best
    assert tool("gate", old, new, "--fail-if", "mean:25%").code == 0
    assert tool("gate", "none.json", new, "--fail-if", "mean:5%").code == 3
    assert tool("gate", "none.json", new, "--fail-if", "mean:5%", "--missing-baseline", "pass").code == 0


def test_benchmarks_of_another_machine_or_without_timings_conclude_nothing(tool: Tool) -> None:
    old, new = benchmark_file("old.json", a=FAST), benchmark_file("new.json", cpu="slow", a=SLOW)
    assert "different machines (fast x86_64 and slow x86_64)" in tool("gate", old, new, "--fail-if", "mean:5%").err
    assert tool("gate", old, new, "--fail-if", "mean:5%", "--force").code == 1
    content = json.loads(Path(new).read_text(encoding="utf-8"))
    del content["benchmarks"][0]["stats"]["data"]
    Path(new).write_text(json.dumps(content), encoding="utf-8")
    done = tool("gate", old, new, "--fail-if", "mean:5%", "--force")
    assert done.code == 3
    assert "new.json: no raw timings" in done.out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--fail-if", "p99_ttft_ms:5%"], "known: min, max, mean, median, q1, q3, ops"),
        (["--fail-if", "mean:5%", "--jitter", "3"], "--jitter: no effect on files of pytest-benchmark"),
        (["--fail-if", "mean:-5%"], "only when mean gets better"),
    ],
)
def test_what_does_not_fit_benchmarks_is_refused(tool: Tool, more: list[str], said: str) -> None:
    done = tool("gate", benchmark_file("old.json", a=FAST), benchmark_file("new.json", a=FAST), *more)
    assert done.code == 2
    assert said in done.err


def test_benchmarks_and_runs_do_not_mix(tool: Tool, runs: Path) -> None:
    file = benchmark_file("new.json", a=FAST)
    assert "expected two files of pytest-benchmark" in tool("gate", "1", file, "--fail-if", "mean:5%").err
    assert "NEW is 'nosuch.json'" in tool("gate", "1", "nosuch.json", *P99).err
    assert "is no baseline" in tool("gate", file, "1", *P99).err


def test_a_benchmark_that_is_gone_fails(tool: Tool) -> None:
    old, new = benchmark_file("old.json", a=FAST, b=FAST), benchmark_file("new.json", a=FAST)
    done = tool("gate", old, new, "--fail-if", "mean:5%")
    assert done.code == 1
    assert "not in NEW" in done.out
