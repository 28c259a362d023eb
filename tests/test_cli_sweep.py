"""``sweep run``, ``status`` and ``merge`` as a person uses them: the numbers are those of single replays."""

from __future__ import annotations

import csv
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fault_tools import TWENTY, Tool, written

from mooncake_bench import open_run, replay
from mooncake_bench.results.sweep import open_sweep

# Notes each try; naps where it is told to; raises or dies at a request where it is told to.
OURS = """
import os
import signal
import time
from dataclasses import dataclass
from mooncake_bench.api import Route, Router

@dataclass
class Ours(Router):
    name = "ours"
    k: int = 0
    raises: int = -1
    dies: int = -1

    def route(self, request, cluster):
        if request.row == 0:
            time.sleep(float(os.environ.get("NAP", "0")))
            with open("tries.txt", "a") as tries:
                tries.write(f"{self.k}\\n")
            print("said by a policy")
        if request.row == self.raises:
            raise ValueError("no way")
        if request.row == self.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return Route(prefill=(request.row + self.k) % 8)
"""
SMALL = ("--workers", "1", "-q")
POINTS = 12


@pytest.fixture
def trace(tool: Tool) -> str:
    Path("ours.py").write_text(OURS, encoding="utf-8")
    return written("t.jsonl", TWENTY)


def tries() -> Counter[int]:
    return Counter(map(int, Path("tries.txt").read_text(encoding="utf-8").split()))


def test_each_point_has_the_numbers_of_its_own_replay(tool: Tool, trace: str) -> None:
    axes = ("--vary", "slo.ttft_ms=100ms,10s", "--vary", "kvcache-centric.threshold=2,4", "--cluster", "2P+2D")
    found = tool.json("sweep", "run", trace, "-p", "a=random", "-p", "kvcache-centric", *axes, *SMALL)
    assert len(found["points"]) == 2 * (1 + 2)  # the threshold is one of kvcache-centric only
    for point in found["points"]:
        run = replay(trace, cluster="2P+2D", slo_ttft_ms=point["slo.ttft_ms"], policy=point["policy"])
        alone = {name: (value.value, value.n) for name, value in run.metrics().items()}
        assert {name: (each["value"], each["n"]) for name, each in point["metrics"].items()} == alone
    assert {point["policy_label"] for point in found["points"]} == {"a", "kvcache-centric"}
    assert found["varied"] == ["policy_label", "slo.ttft_ms", "kvcache-centric.threshold"]
    assert found["sweep_dir"].startswith("results/sweep-t-")
    assert [point["kvcache-centric.threshold"] for point in found["points"]] == [None, None, 2.0, 4.0, 2.0, 4.0]


def test_the_same_command_goes_on_and_replays_nothing_twice(tool: Tool, trace: str) -> None:
    command = ("sweep", "run", trace, "-p", "ours.py", "--vary", "ours.k=1..3", "--workers", "1")
    first = tool(*command)
    second = tool(*command)
    assert (first.code, second.code) == (0, 0)
    assert first.out == second.out
    assert "3 of 3 points are there already" in second.err
    assert tries() == {1: 1, 2: 1, 3: 1}
    assert "said by a policy" not in first.out
    assert "said by a policy" in first.err


def test_a_point_that_fails_is_reported_and_the_others_go_on(tool: Tool, trace: str) -> None:
    command = ("sweep", "run", trace, "-p", "ours.py", "--vary", "ours.raises=5,50,7", "--vary", "seed=0,1", "-o", "s")
    found = tool(*command, *SMALL)
    assert found.code == 1
    assert "6 points over ours.raises, seed; 2 done, 4 failed, 0 left" in " ".join(found.out.split())
    assert "! points 0-1 failed: policy 'ours', request 5: it raised ValueError: no way" in found.out
    before = tries()
    assert tool(*command, *SMALL).code == 1
    assert tries() == before
    assert tool(*command, *SMALL, "--retry-failed").code == 1
    assert sum(tries().values()) == sum(before.values()) + 4
    told = tool("sweep", "status", "s")
    assert told.code == 1
    assert "policy 'ours', request 7" in told.out


def test_a_policy_that_raises_what_is_no_exception_costs_its_own_point_only(tool: Tool, trace: str) -> None:
    Path("ours.py").write_text(OURS.replace("ValueError", "GeneratorExit"), encoding="utf-8")
    found = tool("sweep", "run", trace, "-p", "ours.py", "--vary", "ours.raises=5,50", *SMALL)
    assert found.code == 1
    assert "! point 0 failed: policy 'ours', request 5: it raised GeneratorExit: no way" in found.out


def test_points_that_are_the_same_run_are_named_but_not_those_that_are_judged_otherwise(tool: Tool, trace: str) -> None:
    # the trace's requests come one by one: at either threshold nothing is fetched; the warm-up leaves requests out
    found = tool("sweep", "run", trace, "--vary", "kvcache-centric.threshold=2,4", "--vary", "warmup_ms=0,500", *SMALL)
    assert found.code == 0
    said = " ".join(found.out.split())
    assert "! points 0, 2 are the same run: what differs between their settings had no effect" in said
    assert "! points 1, 3 are the same run" in said
    assert said.count("the same run") == 2


def test_an_oracle_is_named(tool: Tool, trace: str) -> None:
    Path("seer.py").write_text(OURS.replace('"ours"', '"seer"\n    oracle = True'), encoding="utf-8")
    found = tool("sweep", "run", trace, "-p", "seer.py", "-p", "random", "--vary", "speedup=1,2", *SMALL)
    assert [line for line in found.out.splitlines() if "oracle" in line] == [
        "! seer: an oracle, it sees the output lengths; no real scheduler could decide"
    ]


def test_where_no_point_says_anything_the_exit_code_is_3(tool: Tool, trace: str) -> None:
    found = tool("sweep", "run", trace, "-p", "ours.py", "--vary", "ours.raises=0,1", *SMALL)
    assert found.code == 3
    assert "no request completed at any point" in found.err


def test_runs_are_kept_on_request(tool: Tool, trace: str) -> None:
    assert tool("sweep", "run", trace, "--vary", "speedup=1,2", "--keep-runs", "-o", "s", *SMALL).code == 0
    stored = open_sweep("s")
    for number in (0, 1):
        run = open_run(f"s/_runs/{number}")
        assert run.metrics()["mean_ttft_ms"].value == stored.column("mean_ttft_ms")[number]
    assert tool("compare", "s/_runs/0", "s/_runs/1", "--force").code == 0


def test_shards_are_told_apart_and_merge(tool: Tool, trace: str) -> None:
    command = ("sweep", "run", trace, "--vary", "speedup=1,2,3", *SMALL)
    whole = tool.json(*command)
    halves = [tool.json(*command, "--shard", f"{i}/2") for i in (1, 2)]
    assert [[point["point"] for point in half["points"]] for half in halves] == [[0, 2], [1]]
    folders = [half["sweep_dir"] for half in halves]
    assert [folder[-5:] for folder in folders] == ["-1of2", "-2of2"]
    merged = tool.json("sweep", "merge", *folders, "-o", "all", "-q")
    assert merged["content_sha256"] == whole["content_sha256"]
    assert "! shard 4/4 has no points: the sweep has 3 in all" in tool(*command, "--shard", "4/4").out
    lacking = tool("sweep", "merge", folders[0], "-o", "half")
    assert lacking.code == 2
    assert "shard 2/2 is not given" in lacking.err


def test_a_toml_file_says_the_same_as_flags(tool: Tool, trace: str) -> None:
    Path("sweep.toml").write_text(
        f'trace.path = "{trace}"\npolicy = ["random", "kvcache-centric"]\ncluster = "2P+2D"\nname = "mine"\n'
        '[vary]\nslo.ttft_ms = ["100ms", "10s"]\nseed = "0..1"\n"kvcache-centric.threshold" = [2, 4]\n',
        encoding="utf-8",
    )
    by_file = tool.json("sweep", "run", "--sweep", "sweep.toml", *SMALL)
    by_flags = tool.json("sweep", "run", trace, "-p", "random", "-p", "kvcache-centric", "--cluster", "2P+2D",
                         "--vary", "slo.ttft_ms=100ms,10s", "--vary", "seed=0..1", "--vary",
                         "kvcache-centric.threshold=2,4", *SMALL)  # fmt: skip
    assert by_file["sweep_dir"] == "results/sweep-mine"
    assert by_file["content_sha256"] == by_flags["content_sha256"]


def test_the_trace_itself_may_be_varied(tool: Tool, trace: str) -> None:
    other = written("u.jsonl", TWENTY[:7])
    found = tool.json("sweep", "run", "--vary", f"trace.path={trace},{other}", *SMALL)
    assert [point["metrics"]["offered_requests"]["value"] for point in found["points"]] == [20, 7]
    assert [point["trace.path"] for point in found["points"]] == [trace, other]


def test_without_a_trace_what_is_varied_is_not_what_the_first_run_chooses(tool: Tool) -> None:
    found = tool.json("sweep", "run", "--vary", "speedup=1,2", "-p", "random", "--max-requests", "30", *SMALL)
    assert [point["speedup"] for point in found["points"]] == [1.0, 2.0]
    assert found["setup"]["vram.tokens"] == 160_000


def test_the_table_shows_the_metrics_asked_for_and_csv_all_of_them(tool: Tool, trace: str) -> None:
    command = ("sweep", "run", trace, "--vary", "speedup=1,2", "-o", "s", *SMALL)
    chosen = tool(*command, "--metric", "duration_ms", "--metric", "request_goodput")
    assert "speedup  duration_ms  request_goodput_rps" in chosen.out
    assert max(map(len, tool(*command).out.splitlines())) <= 80
    rows = list(csv.DictReader(io.StringIO(tool(*command, "--format", "csv").out)))
    stored = open_sweep("s")
    assert [float(row["mean_ttft_ms"]) for row in rows] == stored.column("mean_ttft_ms")
    assert tool(*command, "--format", "markdown").out.count("| --- | ---: | ---: |") == 1
    assert r"\toprule" in tool(*command, "--format", "latex").out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "nothing to vary"),
        (["--vary", "speedup=1,x"], "speedup: expected a number, got 'x' (at speedup=x, policy kvcache-centric)"),
        (["--vary", "cluster=2P+2D,4M", "--schedule", "chunked"], "(at cluster=2P+2D, policy kvcache-centric)"),
        (["--vary", "speedup=1,2", "--speedup", "3"], "the same setting is given once more, by --speedup; drop one"),
        (["--vary", "slo.ttft_ms=1,2", "--slo", "ttft:1s"], "the same setting is given once more, by --slo; drop one"),
        (["--vary", "seed=1,2", "--set", "seed=3"], "the same setting is given once more, by --set seed; drop one"),
        (["--vary", "policy=random,lru", "-p", "random"], "the same setting is given once more, by -p; drop one"),
        (["--vary", "trace.max_requests=5,6", "--max-requests", "9"], "given once more, by --max-requests; drop one"),
        (["--vary", "trace.path=a,b"], "--vary trace.path: the same setting is given once more, by TRACE (t.jsonl)"),
        (["--vary", "speedup=1,1.0"], "points 0 and 1 are the same replay"),
        (["--vary", "kvcache-centric.threshold=2,2.0"], "points 0 and 1 are the same replay"),
        (
            ["--vary", "seed=1,2", "-p", "kvcache-centric:threshold=3.0+lru", "-p", "kvcache-centric:threshold=3+lru"],
            "points 0 and 2 are the same replay",
        ),
        (["--vary", "policy=kvcache-centric,kvcache-centric:threshold=4"], "points 0 and 1 are the same replay"),
        (["--vary", "policy=random,rondom"], "did you mean 'random'"),
        (["--vary", "speedupp=1,2"], "did you mean 'speedup'"),
        (["--vary", "speedup=1,2", "--workers", "0"], "--workers: expected at least 1"),
        (["--vary", "speedup=1,2", "--shard", "3/2"], "--shard: expected I/N"),
        (["--vary", "speedup=1,2", "--metric", "mean_tft_ms"], "did you mean 'mean_ttft_ms'"),
        (["--list", "--sweep", "no.toml"], "cannot be read"),
        (["--vary", "trace.max_requests=5,500", "--start", "99s"], "(at trace.max_requests=5"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_before_anything_is_made(
    tool: Tool, trace: str, words: list[str], said: str
) -> None:
    found = tool("sweep", "run", trace, *words)
    assert found.code == 2, found
    assert said in found.err
    assert not Path("results").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("speedup = 1", "expected a table [vary]"),
        ("[vary]\n", "expected a table [vary]"),
        ("list = 3\n[vary]\nseed = [1]", "list = true or false"),
        ("speedupp = 2\n[vary]\nseed = [1, 2]", "did you mean 'speedup'"),
        ("[vary]\nseed = [[1]]", "vary.seed: expected a list of values"),
        ("[vary", "not TOML"),
    ],
)
def test_a_toml_file_that_is_wrong_is_said_in_one_line(tool: Tool, trace: str, text: str, said: str) -> None:
    Path("sweep.toml").write_text(text, encoding="utf-8")
    found = tool("sweep", "run", trace, "--sweep", "sweep.toml")
    assert found.code == 2
    assert said in found.err


def test_another_policy_file_under_the_same_name_is_another_sweep(tool: Tool, trace: str) -> None:
    command = ("sweep", "run", trace, "-p", "ours.py", "--vary", "ours.k=1,2", "-o", "s", *SMALL)
    assert tool(*command).code == 0
    Path("ours.py").write_text(OURS.replace("% 8", "% 7"), encoding="utf-8")
    found = tool(*command)
    assert found.code == 2
    assert "-o 's' holds another sweep: ours.py is" in found.err


# ---- processes


def sweep_words(trace: str, *words: str) -> list[str]:
    return ["sweep", "run", trace, "-p", "ours.py", "--vary", f"ours.k=0..{POINTS - 1}", "-o", "s", *words]


def started(trace: str) -> subprocess.Popen[str]:
    """A sweep of twelve points that nap half a second each, in two processes of its own."""
    words = sweep_words(trace, "--workers", "2")
    environment = {**os.environ, "NAP": "0.5", "COLUMNS": "80"}
    pipe: Any = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-m", "mooncake_bench", *words], env=environment, stdout=pipe, stderr=pipe,
                            text=True)  # fmt: skip


def wait_for_rows(count: int) -> set[int]:
    """Points that have a row, once there are so many."""
    for _ in range(600):
        if list(Path("s").glob("part-*")) and len(found := set(open_sweep("s").column("point"))) >= count:
            return found
        time.sleep(0.05)
    raise AssertionError("nothing was written in half a minute")


def test_killed_then_interrupted_then_resumed_it_is_the_same_dataset_and_no_point_was_done_twice(
    tool: Tool, trace: str
) -> None:
    process = started(trace)
    wait_for_rows(1)
    process.kill()
    process.communicate()
    kept, before = wait_for_rows(1), tries()
    assert len(kept) < POINTS
    assert tool("sweep", "status", "s").code == 3
    process = started(trace)
    wait_for_rows(len(kept) + 1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "points are kept in s; repeat the command to go on" in err
    assert "Traceback" not in err
    later, meanwhile = wait_for_rows(len(kept) + 1), tries()
    assert kept < later
    assert tool(*sweep_words(trace, *SMALL)).code == 0
    assert [tries()[number] for number in kept] == [before[number] for number in kept]
    assert [tries()[number] for number in later] == [meanwhile[number] for number in later]
    resumed = open_sweep("s")
    assert resumed.column("ours.k") == list(range(POINTS))
    Path("s").rename("resumed")
    assert tool(*sweep_words(trace, *SMALL)).code == 0
    assert open_sweep("s").content_sha256() == resumed.content_sha256()


def test_sigterm_keeps_what_is_done_and_ends_without_a_warning(tool: Tool, trace: str) -> None:
    process = started(trace)
    wait_for_rows(1)
    process.terminate()
    _, err = process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGTERM
    assert "points are kept in s; repeat the command to go on" in err
    assert "leaked" not in err
    assert "Traceback" not in err


def test_a_process_started_deaf_blocks_ctrl_c_from_its_first_instruction_on() -> None:
    code = (
        "import signal\n"
        "from concurrent.futures import ProcessPoolExecutor\n"
        "from multiprocessing import get_context\n"
        "from mooncake_bench.cache.study import deaf_children\n"
        "with deaf_children():\n"
        "    pool = ProcessPoolExecutor(1, get_context('spawn'))\n"
        "    found = pool.submit(signal.pthread_sigmask, signal.SIG_BLOCK, [])\n"
        "assert signal.SIGINT in found.result()\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert found.returncode == 0, found.stderr


def test_a_process_that_dies_costs_its_own_point_only(tool: Tool, trace: str) -> None:
    found = tool("sweep", "run", trace, "-p", "ours.py", "--vary", "ours.dies=-1,3,50", "-o", "s", "--workers", "2",
                 "-q")  # fmt: skip
    assert found.code == 1
    stored = open_sweep("s")
    assert stored.table.column("status").to_pylist() == ["done", "failed", "done"]
    assert "ended by itself, 3 times, without saying why" in str(stored.failed.column("error")[0])


# ---- the page

PAGE = Path(__file__).resolve().parent.parent / "docs" / "sweep.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_command_of_the_page_works_in_order_and_prints_what_it_shows(
    tool: Tool, monkeypatch: pytest.MonkeyPatch, update_golden: bool
) -> None:
    monkeypatch.setenv("MOONCAKE_BENCH_WORKERS", "1")
    text = PAGE.read_text(encoding="utf-8")
    blocks: dict[str, list[str]] = {}
    for language, block in BLOCK.findall(text):
        blocks.setdefault(language, []).append(block)
    outputs = []
    for line in "".join(blocks["sh"]).splitlines():
        found = tool(*shlex.split(line.removeprefix("mooncake-bench ")))
        assert found.code == 0, found.err
        outputs.append(found.out)
    if update_golden:
        PAGE.write_text(text.replace(blocks["text"][0], outputs[0]), encoding="utf-8")
    else:
        assert blocks["text"] == [outputs[0]]
    for code in blocks["python"]:
        exec(compile(code, str(PAGE), "exec"), {})
    tool.capsys.readouterr()
    Path("page.toml").write_text(blocks["toml"][0], encoding="utf-8")
    assert len(tool.json("sweep", "run", "--sweep", "page.toml")["points"]) == 2 * 2 * (2 + 1)


def test_a_varied_seed_that_changes_nothing_is_said_before_the_start(tool: Tool, trace: str) -> None:
    def said(*words: str) -> list[str]:
        err = tool("sweep", "run", trace, *words, "--workers", "1", "-o", f"s{len(list(Path().iterdir()))}").err
        before = err[: err.index("sweep folder")]
        return [line for line in before.splitlines() if "seed" in line]

    idle, drawing, seeds = ("-p", "load-balancing"), ("-p", "random"), ("--vary", "seed=0,1")
    none = "seed is varied, but has no effect here: none of these policies draws random numbers"
    assert said(*idle, *seeds) == [none]
    assert said(*idle, *drawing, *seeds) == [
        "seed is varied, but has no effect on policies that draw no random numbers: load-balancing"
    ]
    assert said(*drawing, *seeds) == []
    assert said(*idle, *seeds, "--estimate-error", "0.1") == []  # the views' errors are drawn
    speeds = ("--vary", "speedup=1,2", "--seed", "3")
    assert said(*idle, *drawing, *speeds) == []
    assert said(*idle, *speeds) == ["--seed has no effect here: none of these policies draws random numbers"]
