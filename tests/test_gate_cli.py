"""``gate`` on the command line: runs, baselines, benchmark files, jitter, what it leaves for CI, and exit codes."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest
from fault_tools import Tool, strict
from test_results_tiny import all_rejected, tiny_run

from mooncake_bench.cli.app import run
from mooncake_bench.cli.gate_files import _append_summary
from mooncake_bench.errors import ResultError, SetupError
from mooncake_bench.results.exporters import exporter
from mooncake_bench.results.gate.baseline import digest
from mooncake_bench.results.gate.outcome import Outcome
from mooncake_bench.results.run import Run

HOSTILE = '<b>&|*%"x"\n::error::y\x1b[31m'
POLICY = """
from mooncake_bench.api import Route, Router

class Ours(Router):
    name = "ours"

    def route(self, request, cluster):
        return Route(prefill={choice})
"""
OTHER_TABLES: dict[str, Any] = {"policies__random__content_sha256": {"requests": "0" * 64}}
P99 = ("--fail-if", "p99_ttft_ms:2%")


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool of processes would take longer to start than all these replays."""
    monkeypatch.setenv("MOONCAKE_BENCH_WORKERS", "1")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs 1, 2: two policies; 3, 4: the same again; 5: another SLO."""
    folder = tmp_path_factory.mktemp("gate")
    words = ["replay", "conversation-like", "--max-requests", "20", "-q", "-o", str(folder)]
    for more in (["--name", "old"], ["--name", "new"]):
        assert run([*words, "-p", "random", "-p", "cache-aware", *more]) == 0
    assert run([*words, "-p", "random", "--slo", "ttft:9s"]) == 0
    return folder


@pytest.fixture
def runs(stored: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(stored, tmp_path / "results"))


def edit(path: Path, *, signed: bool = True, **changes: Any) -> None:
    """Change parts of a JSON file, named by keys joined with two underscores; a baseline is signed anew."""
    content = json.loads(path.read_text(encoding="utf-8-sig"))
    for name, value in changes.items():
        *outer, last = name.split("__")
        place = content
        for key in outer:
            place = place[key]
        place[last] = value
    if "sha256" in content and signed:
        content["sha256"] = digest(content)
    path.write_text(json.dumps(content), encoding="utf-8")


def manifest(runs: Path, number: int) -> Path:
    (found,) = runs.glob(f"{number}_*/run.json")
    return found


# ---- runs


def test_the_same_replays_pass_and_say_that_they_are_the_same(tool: Tool, runs: Path) -> None:
    done = tool("gate", "old", "new", *P99, "--fail-if", "computed_tokens:+-0%")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("gate passed: 4 checks, 4 passed\n")
    assert "random, cache-aware: BASE and NEW are the same replay to the last bit" in " ".join(done.out.split())
    assert max(map(len, done.out.splitlines())) <= 80


def test_one_run_on_each_side_is_gated_whatever_its_label(tool: Tool, runs: Path) -> None:
    answer = tool.json("gate", "2", "1", "--fail-if", "hit_ratio_tokens:0%", "--fail-if", "p99_ttft_ms>1", code=1)
    assert [check["policy"] for check in answer["checks"]] == ["random", "random"]
    assert answer["notices"][0] == "different policies: random is gated against cache-aware"


def test_every_breach_is_in_the_answer(tool: Tool, runs: Path) -> None:
    answer = tool.json("gate", "old", "new", "--fail-if", "p99_ttft_ms>1", "--fail-if", "computed_tokens>1", code=1)
    assert [check["verdict"] for check in answer["checks"]] == ["fail"] * 4
    assert (answer["exit_code"], answer["verdict"]) == (1, "failed")


def test_what_nobody_measured_fails_and_is_null(tool: Tool, runs: Path) -> None:
    # a cluster whose instances all have their KVCache to load has this one; the others have not
    answer = tool.json("gate", "1", "3", "--fail-if", "mean_kv_load_ms:100%", code=1)
    (check,) = answer["checks"]
    assert (check["base"], check["new"], check["verdict"]) == (None, None, "fail")
    assert "undefined" in check["reason"]


def test_a_policy_that_is_no_longer_replayed_fails_unless_left_out_on_purpose(tool: Tool, runs: Path) -> None:
    done = tool("gate", "old", "3", *P99)
    assert done.code == 1
    assert "FAIL: p99_ttft_ms:2%: not in NEW" in done.out
    assert tool("gate", "old", "3", *P99, "--only", "random").code == 0
    assert "known: random, cache-aware" in tool("gate", "old", "3", *P99, "--only", "randon").err


def test_a_new_policy_has_no_baseline_yet(tool: Tool, runs: Path) -> None:
    done = tool("gate", "1", "new", *P99)
    assert done.code == 3
    assert "no baseline: p99_ttft_ms:2%: not in BASE" in done.out
    assert tool("gate", "1", "new", *P99, "--missing-baseline", "pass").code == 0
    assert tool("gate", "1", "new", *P99, "--missing-baseline", "fail").code == 1


@pytest.mark.parametrize(
    ("base", "words"), [("nosuch.json", "write it with"), ("99", "no run 99"), ("nosuch", "no run")]
)
def test_a_missing_baseline_is_nothing_to_conclude_unless_told(tool: Tool, runs: Path, base: str, words: str) -> None:
    done = tool("gate", base, "1", *P99)
    assert done.code == 3
    assert words in done.out
    done = tool("gate", base, "1", *P99, "--missing-baseline", "pass")
    assert done.code == 0
    assert "is the name right?" in " ".join(done.out.split())  # a name mistyped would pass for ever
    assert tool("gate", base, "1", *P99, "--missing-baseline", "fail").code == 1
    assert tool("gate", base, "1", *P99, "--fail-if", "p99_ttft_ms>1", "--missing-baseline", "pass").code == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"setup__slo.ttft_ms": 9000}, "TTFT SLO differs"),
        ({"trace__sha256": "0" * 64}, "trace differs"),
        ({"trace__block_tokens": 16}, "block size differs"),
        ({"simulator_version": "0"}, "simulator version differs (0 and 1): write the baseline anew"),
        ({"status": "interrupted"}, "interrupted in BASE"),
    ],
)
def test_other_work_is_refused_unless_forced_and_then_told_of(
    tool: Tool, runs: Path, changes: dict[str, Any], words: str
) -> None:
    edit(manifest(runs, 1), **changes)
    done = tool("gate", "1", "3", *P99)
    assert done.code == 2
    assert words in done.err
    assert "--force" in done.err
    done = tool("gate", "1", "3", *P99, "--force")
    assert done.code == 0
    assert f"forced: {words}"[:20] in done.out or "forced: random was interrupted" in done.out


def test_other_settings_and_costs_are_told_of(tool: Tool, runs: Path) -> None:
    edit(manifest(runs, 1), setup__speedup=3.0, cost__version="9")
    out = tool("gate", "1", "3", *P99).out
    assert "speedup differs between the runs: 3, 1" in out
    assert "the cost model differs between BASE and NEW" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["1", "3"], "no rule, so it could never fail"),
        (["1", *P99], "expected BASE and NEW"),
        (["1", "3", "--fail-if", "p99_tftt_ms:2%"], "did you mean 'p99_ttft_ms'"),
        (["1", "3", *P99, "--missing-baseline", "maybe"], "expected pass or fail"),
        (["1", "3", *P99, "--jitter", "0"], "expected 1 to 1000"),
        (["1", "3", *P99, "--policy-dir", "."], "no effect without --jitter"),
        (["1", "--suggest", *P99], "--fail-if: no effect with --suggest"),
        (["1", "--suggest", "--junit", "x.xml"], "--junit: no effect with --suggest"),
        (["1", "--write-baseline", "b.json", "--format", "json"], "--format: no effect with --write-baseline"),
        (["1", "99", *P99], "no run 99"),
        (["1", "baseline.json", *P99], "NEW is 'baseline.json', a file; expected runs"),
        ([".", "1", *P99], "is no run folder"),
        (["1", "3", *P99, "--junit", "nosuch/x.xml"], "there is no folder 'nosuch'"),
        (["1", "3", *P99, "--summary", "."], "is a folder"),
        (["1", "3", *P99, "--github-benchmark", "nosuch"], "there is no such folder"),
    ],
)
def test_wrong_use_is_one_line_and_exit_2(tool: Tool, runs: Path, words: list[str], said: str) -> None:
    done = tool("gate", *words)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert done.err.count("\n") == 1


def test_who_completes_less_is_told_of_when_rules_look_at_latencies_alone(tool: Tool, runs: Path) -> None:
    edit(write_baseline(tool, "1"), policies__random__metrics__completed_ratio=1.25, **OTHER_TABLES)
    done = tool("gate", "baseline.json", "1", *P99)
    assert done.code == 0
    assert "random completes 100 % of the requests, and 125 % in BASE" in " ".join(done.out.split())
    assert "completes" not in tool("gate", "baseline.json", "1", *P99, "--fail-if", "rejected_ratio>0.5").out


# ---- baselines


def write_baseline(tool: Tool, *more: str) -> Path:
    done = tool("gate", "--write-baseline", "baseline.json", *more)
    assert done.code == 0, done.err
    return Path("baseline.json")


def test_a_baseline_passes_against_its_own_runs_and_a_tenth_of_a_percent_is_seen(tool: Tool, runs: Path) -> None:
    path = write_baseline(tool, "old")
    assert tool("gate", "baseline.json", "new", "--fail-if", "p99_ttft_ms:+0%").code == 0
    value = strict(path.read_text(encoding="utf-8"))["policies"]["random"]["metrics"]["p99_ttft_ms"]
    edit(path, policies__random__metrics__p99_ttft_ms=value / 1.001, **OTHER_TABLES)
    answer = tool.json("gate", "baseline.json", "new", "--fail-if", "p99_ttft_ms:0%", code=1)
    assert [check["verdict"] for check in answer["checks"]] == ["pass", "fail"]  # cache-aware, random
    assert answer["checks"][1]["relative_change"] == pytest.approx(0.001)
    assert tool("gate", "baseline.json", "new", "--fail-if", "p99_ttft_ms:0.2%").code == 0


def test_a_baseline_is_sorted_strict_and_holds_what_was_asked_for(tool: Tool, runs: Path) -> None:
    rules = [*P99, "--fail-if", "request_goodput:1%"]
    content = write_baseline(tool, "new", *rules).read_text(encoding="utf-8")
    found = strict(content)
    assert list(found["policies"]) == ["cache-aware", "random"]
    assert found["metrics"] == {
        "completed_ratio": {"unit": "ratio", "better": "higher"},  # always: whoever drops work looks fast
        "p99_ttft_ms": {"unit": "ms", "better": "lower"},
        "request_goodput_rps": {"unit": "requests/s", "better": "higher"},
    }
    assert list(found["policies"]["random"]["metrics"]) == ["completed_ratio", "p99_ttft_ms", "request_goodput_rps"]
    assert len(content) < 6000
    assert str(runs.parent) not in content  # no folder of this machine
    done = tool("gate", "baseline.json", "new", "--fail-if", "hit_ratio_tokens:1%")
    assert done.code == 1
    assert "hit_ratio_tokens:1%: missing in BASE" in done.out
    assert write_baseline(tool, "old", *rules, "--force").read_text(encoding="utf-8") == content


def test_a_baseline_is_not_replaced_by_accident(tool: Tool, runs: Path) -> None:
    before = write_baseline(tool, "old").read_bytes()
    done = tool("gate", "--write-baseline", "baseline.json", "1")
    assert done.code == 2
    assert "--force to replace it" in done.err
    assert Path("baseline.json").read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "other"}, "is no baseline"),
        ({"format_version": 2}, "update mooncake-bench"),
        ({"policies": {}}, "holds no policy"),
        ({"policies__random__metrics__p99_ttft_ms": "12"}, "is damaged"),
        ({"policies__random__trace__sha256": 5, "more": 1}, "is damaged"),
        ({"policies__random__cost": {}}, "lacks cost.name"),
        ({"metrics": {}}, "without a unit"),
    ],
)
def test_a_damaged_baseline_is_an_error_not_a_missing_one(
    tool: Tool, runs: Path, changes: dict[str, Any], words: str
) -> None:
    edit(write_baseline(tool, "1"), **changes)
    done = tool("gate", "baseline.json", "1", *P99, "--missing-baseline", "pass")
    assert done.code == 2
    assert words in done.err


def test_a_baseline_that_lacks_a_part_says_which(tool: Tool, runs: Path) -> None:
    whole = strict(write_baseline(tool, "1").read_text(encoding="utf-8"))
    for key in whole:
        Path("less.json").write_text(json.dumps({k: v for k, v in whole.items() if k != key}), encoding="utf-8")
        done = tool("gate", "less.json", "1", *P99)
        assert done.code == 2
        assert f"it lacks {key!r}" in done.err
    del whole["policies"]["random"]["trace"]
    Path("less.json").write_text(json.dumps(whole), encoding="utf-8")
    assert "policy 'random': it lacks 'trace'" in tool("gate", "less.json", "1", *P99).err


def test_a_baseline_edited_by_hand_is_refused_unless_forced(tool: Tool, runs: Path) -> None:
    path = write_baseline(tool, "1")
    rounded = path.read_text(encoding="utf-8").replace("\n", "\r\n")
    path.write_text("\ufeff" + rounded, encoding="utf-8")  # lines and a mark are no content
    assert tool("gate", "baseline.json", "1", *P99).code == 0
    edit(path, signed=False, policies__random__metrics__p99_ttft_ms=1e9, **OTHER_TABLES)
    done = tool("gate", "baseline.json", "1", *P99)
    assert (done.code, done.out) == (2, "")
    assert "was edited by hand" in done.err
    assert "gate --write-baseline" in done.err
    done = tool("gate", "baseline.json", "1", *P99, "--force")
    assert done.code == 0
    assert "forced: 'baseline.json' was edited by hand" in done.out


def test_numbers_that_contradict_their_tables_are_refused_unless_forced(tool: Tool, runs: Path) -> None:
    path = write_baseline(tool, "1")
    value = strict(path.read_text(encoding="utf-8"))["policies"]["random"]["metrics"]["p99_ttft_ms"]
    edit(path, policies__random__metrics__p99_ttft_ms=value * (1 + 1e-12))  # a sum in another order
    assert tool("gate", "baseline.json", "1", *P99).code == 0
    edit(path, policies__random__metrics__p99_ttft_ms=value * 2)
    done = tool("gate", "baseline.json", "1", *P99)
    assert done.code == 2
    assert "random: p99_ttft_ms is" in done.err
    assert "edited by hand" in done.err
    done = tool("gate", "baseline.json", "1", *P99, "--force")
    assert done.code == 0
    assert "to the last bit" not in done.out


def test_a_run_named_twice_is_refused(tool: Tool, runs: Path) -> None:
    folder = manifest(runs, 1).parent
    for words in (["1", "1"], ["old", str(folder)]):
        done = tool("gate", "--write-baseline", "twice.json", *words)
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert f"run {folder.name} is named twice" in done.err
    assert not Path("twice.json").exists()
    assert "is named twice" in tool("gate", "3", "1", "1", *P99).err


def test_a_huge_or_deep_baseline_is_damaged(tool: Tool, runs: Path) -> None:
    path = write_baseline(tool, "1")
    edit(path, policies__random__metrics__p99_ttft_ms=10**400)
    assert "a number of 401 digits" in tool("gate", "baseline.json", "1", *P99).err
    path.write_bytes(b"[" * 100_000)
    done = tool("gate", "baseline.json", "1", *P99)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "nested too deep" in done.err


@pytest.mark.parametrize("content", [b"", b"{", b"NaN", b'{"format": NaN}', b"\xff\xfe", b"[]"])
def test_what_is_not_json_is_no_baseline(tool: Tool, runs: Path, content: bytes) -> None:
    Path("baseline.json").write_bytes(content)
    done = tool("gate", "baseline.json", "1", *P99)
    assert done.code == 2
    assert done.err.count("\n") == 1


def test_a_unit_that_changed_since_the_baseline_fails(tool: Tool, runs: Path) -> None:
    edit(write_baseline(tool, "1"), metrics__p99_ttft_ms={"unit": "s", "better": "lower"})
    done = tool("gate", "baseline.json", "1", *P99)
    assert done.code == 1
    assert "in s in BASE, and in ms here" in done.out


def test_no_baseline_is_made_of_a_part_of_a_replay_or_of_measured_durations(tool: Tool, runs: Path) -> None:
    edit(manifest(runs, 1), status="interrupted")
    edit(manifest(runs, 3), setup__cost="live")
    assert "was interrupted" in tool("gate", "--write-baseline", "b.json", "1").err
    assert "were measured" in tool("gate", "--write-baseline", "b.json", "3").err
    assert not Path("b.json").exists()


# ---- measured durations: runs that repeat one another


def test_runs_of_measured_durations_are_repeats_and_need_a_rank_test(tool: Tool, runs: Path) -> None:
    for number, version in ((1, "a"), (3, "b")):
        edit(manifest(runs, number), setup__cost="live", cost__version=version)
    answer = tool.json("gate", "1", "3", "--fail-if", "p99_ttft_ms:0%")
    assert answer["checks"][0]["verdict"] == "pass"
    # A run against two repeats of another policy: one measurement is no evidence, however far off.
    edit(manifest(runs, 2), setup__cost="live", setup__policy="random", policy__label="random", cost__version="c")
    answer = tool.json("gate", "2", "3", "1", "--fail-if", "p99_ttft_ms:+-0%", code=3)
    (check,) = answer["checks"]  # one policy, its two runs of NEW taken together
    assert check["verdict"] == "inconclusive"
    assert "1 and 2 measurements are too few" in check["reason"]


# ---- jitter


def test_both_sides_are_replayed_under_the_same_jitter(tool: Tool, runs: Path) -> None:
    answer = tool.json("gate", "1", "3", "--jitter", "3", "--fail-if", "p99_ttft_ms:+-0%")
    (check,) = answer["checks"]
    assert (check["change"], answer["jittered_replays"]) == (0, 3)
    unjittered = tool.json("gate", "1", "3", "--fail-if", "p99_ttft_ms:+-0%")["checks"][0]
    assert check["base"] != unjittered["base"]


def test_a_baseline_keeps_what_old_code_did_under_jitter(tool: Tool, runs: Path) -> None:
    for choice in (0, 1):
        Path("ours.py").write_text(POLICY.format(choice=choice), encoding="utf-8")
        words = ["replay", "conversation-like", "--max-requests", "20", "-q", "-p", "ours.py", "--name", f"v{choice}"]
        assert tool(*words).code == 0
        if choice == 0:
            write_baseline(tool, "v0", "--jitter", "2", *P99)
    assert tool("gate", "baseline.json", "v1", "--jitter", "2", *P99).code == 0  # one instance is as good as another
    done = tool("gate", "v0", "v1", "--jitter", "2", *P99)
    assert done.code == 2
    assert "ours.py is not what ours used" in done.err
    assert "--write-baseline" in done.err
    assert tool("gate", "baseline.json", "v1", "--jitter", "3", *P99).code == 2  # three are more than it keeps


def test_a_side_that_cannot_be_replayed_as_it_was_is_refused(tool: Tool, runs: Path) -> None:
    edit(manifest(runs, 1), simulator_version="0")
    assert "from simulator version 0" in tool("gate", "1", "3", "--jitter", "1", "--force", *P99).err
    edit(manifest(runs, 2), trace__sha256="0" * 64)
    assert "is not what cache-aware replayed" in tool("gate", "--suggest", "2").err
    edit(manifest(runs, 3), setup__cost="live")
    assert "were measured" in tool("gate", "--suggest", "3").err


def test_suggested_rules_allow_for_chance_and_can_be_pasted(tool: Tool, runs: Path) -> None:
    answer = tool.json("gate", "--suggest", "1", "--jitter", "4")
    ranges = {each["metric"]: each for each in answer["metrics"]}
    p99 = ranges["p99_ttft_ms"]
    assert all(each["low"] <= each["unjittered"] <= each["high"] for each in ranges.values() if each["low"] is not None)
    assert p99["relative_range"] == pytest.approx((p99["high"] - p99["low"]) / p99["median"])
    (rule,) = (rule for rule in answer["suggested"] if rule.startswith("p99_ttft_ms:"))
    assert float(rule.split(":")[1].rstrip("%")) >= 100 * p99["relative_range"]
    shown = tool("gate", "--suggest", "1", "--jitter", "4").out
    assert max(map(len, shown.splitlines())) <= 80
    pasted = shown.split("mooncake-bench gate BASE NEW ")[1].replace("\\\n", " ").split()
    assert pasted[1::2] == answer["suggested"]
    assert tool("gate", "1", "3", *pasted).code == 0


# ---- pytest-benchmark


def benchmark_file(name: str, cpu: str = "fast", **times: list[float]) -> str:
    """A file as pytest-benchmark writes it (its keys that matter)."""
    content = {
        "machine_info": {"machine": "x86_64", "python_version": "3.12.1", "cpu": {"brand_raw": cpu, "count": 2}},
        "commit_info": {"id": "0"},
        "benchmarks": [
            {
                "fullname": f"tests/test_speed.py::{test}",
                "stats": {"mean": sum(data) / len(data), "min": min(data), "ops": len(data) / sum(data), "data": data},
            }
            for test, data in times.items()
        ],
        "datetime": "2026-01-02T03:04:05.678+00:00",
        "version": "5.1.0",
    }
    Path(name).write_text(json.dumps(content), encoding="utf-8")
    return name


FAST = [1.00, 1.01, 1.02, 1.03, 1.04]
SLOW = [1.20, 1.21, 1.22, 1.23, 1.24]


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


# ---- what it leaves for CI


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
