"""``traces synth`` and ``traces fit`` from the command line."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fault_tools import Tool
from test_trace_servegen import write_client

from mooncake_bench.paths import bundled
from mooncake_bench.trace import load
from mooncake_bench.trace.stats import infinite_cache
from mooncake_bench.trace.synthetic import presets
from mooncake_bench.trace.synthetic.recipe import make
from mooncake_bench.trace.synthetic.wording import recipe

SMALL = ("--requests", "60", "--input", "fixed:700")


def test_a_trace_is_written_and_summed_up(tool: Tool) -> None:
    answer = tool("traces", "synth", "mine.arrow", *SMALL, "--output", "9", "--rate", "3")
    assert answer.code == 0
    assert answer.out.startswith("mine.arrow: 60 requests in ")
    assert "42,000 input and 540 output tokens" in answer.out  # 60 * 700, 60 * 9
    trace = load("mine.arrow")
    assert len(trace) == 60
    assert trace.metadata["seed"] == "0"
    assert "fixed:700" in trace.metadata["about"]


def test_the_same_command_makes_the_same_file_in_another_process(tool: Tool) -> None:
    words = ["traces", "synth", "a.arrow", "--preset", "l-eval-like", "--requests", "200", "--arrivals", "gamma:cv=2"]
    assert tool(*words).code == 0
    words[2] = "b.arrow"
    subprocess.run([sys.executable, "-m", "mooncake_bench", *words], check=True, capture_output=True)
    assert Path("a.arrow").read_bytes() == Path("b.arrow").read_bytes()
    words[2] = "c.arrow"
    assert tool(*words, "--seed", "1").code == 0
    assert load("c.arrow") != load("a.arrow")


@pytest.mark.parametrize("name", ["mine.jsonl", "mine.csv", "mine.parquet", "mine.jsonl.gz"])
def test_other_kinds_of_files_hold_the_same_requests(tool: Tool, name: str) -> None:
    words = ("--requests", "50", "--share", "sessions:turns=3,think=5s", "--share", "system:tokens=1024")
    assert tool("traces", "synth", "mine.arrow", *words).code == 0
    assert tool("traces", "synth", name, *words).code == 0
    assert load(name) == load("mine.arrow")


def test_a_made_trace_replays(tool: Tool) -> None:
    assert tool("traces", "synth", "mine.arrow", "--preset", "simulated-16k", "--requests", "30").code == 0
    assert tool.json("replay", "mine.arrow", "-p", "round-robin")


def test_a_preset_is_the_bundled_trace_where_it_has_its_name(tool: Tool) -> None:
    assert tool("traces", "synth", "chat.arrow", "--preset", "conversation-like").code == 0
    assert load("chat.arrow") == load("conversation-like")


def test_the_presets_are_listed_in_every_format(tool: Tool) -> None:
    names = [item["name"] for item in tool.json("traces", "synth", "--preset", "list")]
    assert names[:2] == ["arxiv-summarization-like", "l-eval-like"]
    assert "real-like" in names
    shown = tool("traces", "synth", "--preset", "list").out
    assert all(name in shown for name in names)


def test_the_help_names_every_preset(tool: Tool) -> None:
    text = " ".join(tool("traces", "synth", "--help").out.split())
    assert all(name.replace("simulated", "") in text for name in presets.names())


def test_clients_of_servegen_are_sampled(tool: Tool) -> None:
    Path("clients").mkdir()
    write_client(Path("clients"), 0, {6: 2.0})
    write_client(Path("clients"), 1, {6: 2.0})
    words = ("--servegen", "clients", "--start", "1h", "--duration", "10min")
    assert tool("traces", "synth", "both.arrow", *words).code == 0
    assert tool("traces", "synth", "one.arrow", *words, "--clients", "1", "--rate", "4").code == 0
    # 2 * 2 * 600 = 2,400 requests, or 4 * 600; Poisson
    assert len(load("both.arrow")) == pytest.approx(2400, abs=5 * 49)
    assert len(load("one.arrow")) == pytest.approx(2400, abs=5 * 49)
    assert not load("both.arrow").has_prefix_ids


def test_vidurs_lengths_can_be_drawn(tool: Tool, shared: Path) -> None:
    path = shared / "traces/vidur/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv"
    assert tool("traces", "synth", "mine.arrow", "--lengths", str(path), "--requests", "300").code == 0
    pairs = {tuple(map(int, line.split(",")[:2])) for line in path.read_text().split()[1:]}
    trace = load("mine.arrow")
    assert set(zip(trace.input_tokens.tolist(), trace.output_tokens.tolist(), strict=True)) <= pairs


CHAT = ("--requests", "1500", "--share", "sessions:turns=3,think=20s", "--input", "lognormal:mean=1k,cv=1")


def test_a_fit_is_written_compared_and_made_a_trace_again(tool: Tool) -> None:
    assert tool("traces", "synth", "chat.arrow", *CHAT).code == 0
    found = tool.json("traces", "fit", "chat.arrow", "chat.toml")
    assert found["out"] == "chat.toml"
    rows = {row["statistic"]: row for row in found["closeness"]}
    assert rows["requests"]["ratio"] == 1
    original = infinite_cache(load("chat.arrow"))["hit_ratio_tokens"]
    assert rows["infinite cache, hits of tokens"]["original"] == original
    assert rows["infinite cache, hits of tokens"]["copy"] == pytest.approx(original, abs=0.03)
    assert tool("traces", "synth", "copy.arrow", "--from", "chat.toml").code == 0
    assert float(np.mean(load("copy.arrow").input_tokens)) == rows["input tokens, mean"]["copy"]


def test_a_fit_in_a_table_has_a_line_a_statistic_and_says_where_it_is(tool: Tool) -> None:
    assert tool("traces", "synth", "chat.arrow", *CHAT).code == 0
    answer = tool("traces", "fit", "chat.arrow", "chat.toml", "--seed", "2")
    assert answer.code == 0
    assert "wrote chat.toml" in answer.err
    lines = answer.out.splitlines()
    assert lines[0].split() == ["statistic", "original", "copy", "ratio"]
    assert sum("LRU of" in line for line in lines) == 3
    assert all(len(line) <= 80 for line in lines)


def test_the_commands_of_the_traces_readme_work_as_printed(tool: Tool) -> None:
    readme = (bundled("traces") / "README.md").read_text("utf-8")
    lines = re.findall(r"^mooncake-bench (traces (?:synth|fit) .+)$", readme, re.MULTILINE)
    assert len(lines) == 8
    for line in lines:
        answer = tool(*shlex.split(line))
        assert answer.code == 0, answer.err
    assert len(load("leval.arrow")) == 800


def test_the_traces_readme_says_what_the_presets_are() -> None:
    readme = (bundled("traces") / "README.md").read_text("utf-8")
    for preset in presets.PRESETS:
        trace = make(recipe({}, preset.name))
        ratio = infinite_cache(trace)["hit_ratio_tokens"]
        found = f"{trace.input_tokens.mean():,.0f}, {trace.output_tokens.mean():,.0f}, {ratio:.3f}"
        assert f"| `{preset.name}` | {preset.about.split(': ')[1]} | {found} |" in readme


def refused(tool: Tool, *words: str) -> str:
    before = sorted(item.name for item in Path().iterdir())
    answer = tool("traces", *words)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.count("\n") == 1
    assert "Traceback" not in answer.err
    assert sorted(item.name for item in Path().iterdir()) == before
    return answer.err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("synth",), "OUT is missing"),
        (("synth", "mine.txt"), "its ending is '.txt'"),
        (("synth", "mine.arrow", "--preset", "leval-like"), "did you mean 'l-eval-like'"),
        (("synth", "mine.arrow", "--preset", "list", "--from", "x.toml", "--format", "csv"), "--format"),
        (("synth", "mine.arrow", "--preset", "l-eval-like", "--from", "x.toml"), "give one of them"),
        (("synth", "mine.arrow", "--clients", "1"), "--clients goes with --servegen"),
        (("synth", "mine.arrow", "--start", "1h"), "--start goes with --servegen"),
        (("synth", "mine.arrow", "--servegen", ".", "--input", "5"), "--input has no effect with --servegen"),
        (("synth", "mine.arrow", "--servegen", ".", "--requests", "5"), "--requests has no effect with --servegen"),
        (("synth", "mine.arrow", "--servegen", "."), "found no chunk-I-trace.csv"),
        (("synth", "mine.arrow", "--from", "x.toml", "--rate", "5"), "--rate has no effect with --from"),
        (("synth", "mine.arrow", "--from", "x.toml", "--share", "none"), "--share has no effect with --from"),
        (("synth", "mine.arrow", "--from", "absent.toml"), "cannot be read"),
        (("synth", "mine.arrow", "--preset", "real-like", "--rate", "5"), "no effect with --preset real-like"),
        (("synth", "mine.arrow", "--arrivals", "fractal"), "no kind 'fractal'"),
        (("synth", "mine.arrow", "--arrivals", "replay:absent.arrow"), "no such file"),
        (("synth", "mine.arrow", "--lengths", "absent.csv"), "no such file"),
        (("synth", "mine.arrow", "--seed", "-1"), "seed"),
        (("fit", "conversation-like", "chat.txt"), "ends in .toml"),
        (("fit", "absent", "chat.toml"), "no such file"),
        (("fit", "conversation-like", "chat.toml", "--format", "csv"), "--format"),
    ],
)
def test_wrong_use_gets_one_line_and_leaves_no_file(tool: Tool, words: tuple[str, ...], reason: str) -> None:
    assert reason in refused(tool, *words)


def test_existing_files_are_left_alone_unless_forced(tool: Tool) -> None:
    Path("mine.arrow").write_text("mine")
    Path("mine.toml").write_text("mine")
    assert "--force" in refused(tool, "synth", "mine.arrow", *SMALL)
    assert "--force" in refused(tool, "fit", "conversation-like", "mine.toml")
    assert Path("mine.arrow").read_text() == Path("mine.toml").read_text() == "mine"
    assert tool("traces", "synth", "mine.arrow", *SMALL, "--force").code == 0
    assert tool("traces", "fit", "mine.arrow", "mine.toml", "--force").code == 0
    assert len(load("mine.arrow")) == 60


def test_the_trace_can_go_to_stdout() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mooncake_bench", "traces", "synth", "-", *SMALL], check=True, capture_output=True
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 60
    assert {row["input_length"] for row in rows} == {700}
    assert all(len(row["hash_ids"]) == 2 for row in rows)
