"""``gate`` on the command line: runs, baselines, measured durations, jitter, and exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fault_tools import Tool, strict
from gate_tools import P99, edit, manifest

POLICY = """
from mooncake_bench.api import Route, Router

class Ours(Router):
    name = "ours"

    def route(self, request, cluster):
        return Route(prefill={choice})
"""
OTHER_TABLES: dict[str, Any] = {"policies__random__content_sha256": {"requests": "0" * 64}}

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
