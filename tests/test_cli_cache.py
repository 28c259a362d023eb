"""``cache`` as a person meets it: numbers counted by hand, files, faults, and how it ends."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cache_tiny import write_tiny
from fault_tools import Tool, written

from mooncake_bench.trace import load

SLOW = """
import pathlib, time
from mooncake_bench.api import Eviction

class Slow(Eviction):
    name = "slow"

    def open(self, capacity_blocks):
        pathlib.Path("reached").touch()
        self.blocks = []

    def insert(self, blocks, positions):
        time.sleep(0.005)
        self.blocks += blocks

    def evict(self, pinned):
        return self.blocks.pop(0)
"""
BROKEN = "this is no Python\n"


@pytest.fixture
def tiny(tmp_path: Path) -> tuple[str, ...]:
    """The words that name the trace of ``cache_tiny``."""
    return write_tiny(tmp_path / "tiny.jsonl"), "--block-size", "10"


def points(answer: Any) -> dict[tuple[str, str], Any]:
    """The points of a JSON answer by policy and capacity."""
    return {(point["policy"], point["capacity"]): point for point in answer["points"]}


# ---- numbers


def test_the_small_trace_gives_what_was_counted_by_hand(tool: Tool, tiny: tuple[str, ...]) -> None:
    found = points(tool.json("cache", *tiny, "-p", "lru", "-p", "fifo", "--capacity", "3,5,inf"))
    hits = {key: (each["prefix_blocks"], each["prefix_tokens"], each["evictions"]) for key, each in found.items()}
    assert hits["lru", "3"] == hits["fifo", "3"] == (2, 20, 9)
    assert hits["lru", "5"] == (8, 75, 1)
    assert hits["fifo", "5"] == (6, 55, 3)
    assert hits["lru", "inf"] == hits["fifo", "inf"] == (8, 75, 0)
    assert hits["optimum", "3"][:2] == (7, 65)
    assert hits["optimum", "5"][:2] == hits["infinite", "inf"][:2] == (8, 75)


def test_every_ratio_of_the_small_trace_stands_beside_its_denominator(tool: Tool, tiny: tuple[str, ...]) -> None:
    point = points(tool.json("cache", *tiny, "--capacity", "3"))["lru", "3"]
    assert (point["blocks"], point["tokens"], point["full_blocks"], point["requests"]) == (14, 125, 11, 6)
    assert point["hit_ratio_blocks"] == pytest.approx(2 / 14)
    assert point["hit_ratio_tokens"] == pytest.approx(20 / 125)
    assert point["hit_ratio_full_blocks"] == pytest.approx(2 / 11)
    assert point["hit_ratio_per_block"] == pytest.approx(2 / 14)
    assert point["prefix_blocks_over_bound"] == pytest.approx(2 / 7)


def test_the_reasons_of_the_small_trace_are_those_counted_by_hand(tool: Tool, tiny: tuple[str, ...]) -> None:
    point = points(tool.json("cache", *tiny, "--capacity", "3"))["lru", "3"]
    reasons = {key.removeprefix("misses_"): count for key, count in point.items() if key.startswith("misses_")}
    assert reasons == {"first_sight": 6, "evicted": 5, "behind_gap": 1, "not_ready": 0, "elsewhere": 0}
    assert (point["requests_first_miss_first_sight"], point["requests_first_miss_evicted"]) == (3, 3)
    assert (point["evicted_ago_p50_ms"], point["evicted_ago_p90_ms"]) == (1000, 1000)


def test_blocks_that_are_not_ready_yet_and_blocks_of_another_pool_are_named(tool: Tool, tiny: tuple[str, ...]) -> None:
    waiting = points(tool.json("cache", *tiny, "--capacity", "inf", "--ready-after", "1500ms"))["lru", "inf"]
    # 1 s after they were stored 0 and 1 miss at 1 s, and so does 3 at 4 s only if it was stored less than 1.5 s ago: no
    assert waiting["misses_not_ready"] == 2
    apart = points(tool.json("cache", *tiny, "--capacity", "inf", "--local", "2:round-robin"))["lru", "inf"]
    # pool 0 serves 0 s, 2 s and 4 s, pool 1 the others: at 1 s 0 and 1 are in pool 0, the rest hits as in one pool
    assert apart["misses_elsewhere"] == 2
    assert apart["prefix_blocks"] == 0 + 0 + 0 + 3 + 1 + 2


def test_the_bound_of_local_pools_is_one_pool_of_their_total_size(tool: Tool, tiny: tuple[str, ...]) -> None:
    found = points(tool.json("cache", *tiny, "--capacity", "2", "--local", "2:round-robin"))
    alone = points(tool.json("cache", *tiny, "--capacity", "4"))
    assert found["optimum", "2"]["prefix_blocks"] == alone["optimum", "4"]["prefix_blocks"]
    assert found["optimum", "2"]["prefix_blocks"] >= found["lru", "2"]["prefix_blocks"]


MODELS = {
    "one pool": (),
    "two pools": ("--local", "2:round-robin"),
    "three pools": ("--local", "3:hashed"),
    "waiting": ("--ready-after", "1500ms"),
    "two pools, waiting": ("--local", "2:cache-aware", "--ready-after", "1500ms"),
}


@pytest.mark.parametrize("model", MODELS)
def test_no_row_holds_more_than_it_says_it_can(model: str, tool: Tool, tiny: tuple[str, ...]) -> None:
    words = ("-p", "lru", "-p", "fifo", "--capacity", "1,2,3,5,inf", *MODELS[model])
    rows = tool.json("cache", *tiny, *words)["points"]
    assert len(rows) == 3 * 5 + 1
    for row in rows:
        assert row["capacity_blocks"] is None or row["peak_blocks"] <= row["capacity_blocks"], row


def test_the_bound_of_local_pools_says_how_large_its_pool_is_and_which_size_it_bounds(
    tool: Tool, tiny: tuple[str, ...]
) -> None:
    words = ("--capacity", "2,inf", "--local", "3:round-robin", "--ready-after", "1500ms")
    found = points(tool.json("cache", *tiny, *words))

    def told(policy: str, capacity: str) -> tuple[Any, ...]:
        row = found[policy, capacity]
        names = ("studied_capacity_blocks", "capacity_blocks", "pools", "ready_after_ms")
        return tuple(row[name] for name in names)

    assert told("lru", "2") == (2, 2, 3, 1500.0)
    assert told("optimum", "2") == (2, 6, 1, 0.0)  # one pool of 3 x 2 blocks, which does not wait
    assert told("optimum", "inf") == (None, None, 1, 0.0)
    assert told("infinite", "inf") == (None, None, 1, 1500.0)


def test_the_infinite_cache_waits_for_blocks_as_the_policies_do(tool: Tool, tiny: tuple[str, ...]) -> None:
    found = points(tool.json("cache", *tiny, "--capacity", "5,inf", "--ready-after", "1500ms"))
    # of the 8 blocks that could hit, 0 and 1 at 1 s were stored only 1 s before
    assert found["infinite", "inf"]["prefix_blocks"] == found["lru", "inf"]["prefix_blocks"] == 6
    assert found["infinite", "inf"]["misses_not_ready"] == 2
    assert found["optimum", "5"]["prefix_blocks"] == 8  # served at once
    table = tool("cache", *tiny, "--capacity", "5,inf", "--ready-after", "1500ms")
    assert "optimum, no wait *" in table.out


def test_pools_that_did_not_share_the_work_are_named_everywhere(tool: Tool) -> None:
    # everybody shares block 0, so that the pool of the first request always has the longest prefix
    rows = [{"timestamp": at, "input_length": 512 * 2, "output_length": 1, "hash_ids": [0, at]} for at in range(1, 6)]
    words = ("cache", written("shared.jsonl", rows), "--local", "3:cache-aware", "--capacity", "4")
    for fmt in ("table", "csv", "json"):
        done = tool(*words, "--format", fmt)
        assert done.code == 0
        err, out = (" ".join(text.split()) for text in (done.err, done.out))
        notice = (
            "cache-aware: 2 of 3 pools served no request, so that their capacity was unused (lru at 4; requests by "
            "pool, most first: 5, 0, 0)"
        )
        assert notice in err, fmt
        assert (notice in out) is (fmt != "csv"), fmt
        if fmt == "csv":
            [row, *_] = csv.DictReader(io.StringIO(done.out))
            assert (row["most_requests_of_a_pool"], row["pools_without_requests"]) == ("5", "2")
    assert "served no request" not in tool(*words, "-q", "--format", "csv").err
    shared_out = tool("cache", "shared.jsonl", "--local", "2:round-robin", "--capacity", "4")
    assert "served" not in shared_out.err  # 3 and 2 requests


def test_gdsf_is_said_to_be_lfu_da_here(tool: Tool, tiny: tuple[str, ...]) -> None:
    words = ("cache", *tiny, "-p", "gdsf", "-p", "g=gdsf:cost=1", "-p", "lfu-da", "--capacity", "3,5")
    answer = tool.json(*words)
    told = [notice for notice in answer["notices"] if "the same blocks as lfu-da" in notice]
    assert [notice.partition(":")[0] for notice in told] == ["gdsf", "g"]
    found = points(answer)
    for size in ("3", "5"):
        for name in ("prefix_blocks", "block_hits", "evictions"):
            assert found["gdsf", size][name] == found["lfu-da", size][name]
    assert "lfu-da" not in tool("cache", *tiny, "-p", "lru", "--capacity", "3").out


def test_warm_requests_are_not_counted(tool: Tool, tiny: tuple[str, ...]) -> None:
    answer = tool.json("cache", *tiny, "--capacity", "inf", "--warm-requests", "half")
    point = points(answer)["lru", "inf"]
    # of the last three requests' 7 blocks 3 + 1 + 2 hit, of their 60 tokens 25 + 10 + 20
    assert (point["requests"], point["blocks"], point["prefix_blocks"]) == (3, 7, 6)
    assert (point["tokens"], point["prefix_tokens"]) == (60, 55)
    assert answer["model"]["warm_requests"] == 3


ORACLE = {  # the names of the oracle: ours
    "lru": "lru",
    "fifo": "fifo",
    "length_aware_keep": "length-aware:bias=keep",
    "belady": "belady",
}


@pytest.mark.parametrize(("order", "names"), [("forward", tuple(ORACLE)), ("reverse", ("lru",))])
def test_the_whole_command_gives_the_oracle_s_integers(
    order: str, names: tuple[str, ...], tool: Tool, shared: Path
) -> None:
    oracle = json.loads((shared / "oracles" / "mooncake-conversation.json").read_text())
    trace = str(shared / "traces" / "mooncake-fast25" / "conversation_trace.jsonl")
    words = [word for name in names for word in ("-p", ORACLE[name])]
    answer = tool.json("cache", trace, *words, "--capacity", "3Mtok", "--touch-order", order, "--jobs", "1")
    found = points(answer)
    assert answer["trace"]["requests"] == oracle["count"]
    for name in names:
        expected, point = oracle[order][name]["5859"], found[ORACLE[name], "3Mtok"]
        assert point["block_hits"] == expected["block_hits"], name
        assert point["prefix_blocks"] == expected["prefix_block_hits"], name
        assert point["prefix_tokens"] == expected["prefix_token_hits"], name
    assert found["optimum", "3Mtok"]["prefix_blocks"] == oracle["opt_batch"]["5859"]["prefix_block_hits"]
    assert found["infinite", "inf"]["prefix_blocks"] == oracle["forward"]["lru"]["inf"]["prefix_block_hits"]


# ---- what is asked, and how it is written


def test_a_capacity_in_tokens_is_rounded_down_to_blocks_and_shown_once(tool: Tool, tiny: tuple[str, ...]) -> None:
    done = tool("cache", *tiny, "--capacity", "39tok,3", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert [row["capacity_blocks"] for row in rows if row["policy"] == "lru"] == ["3"]  # 39 / 10 = 3.9
    assert "3 is as many blocks as 39tok: shown once" in done.err


def test_bytes_are_blocks_of_the_model_named(tool: Tool, tiny: tuple[str, ...]) -> None:
    # llama-3-70b: 327,680 bytes a token; 100 tokens of it are 32,768,000 bytes, ten blocks of ten tokens
    found = tool.json("cache", *tiny, "--capacity", "32.768MB", "--model", "llama-3-70b")
    assert found["capacities"] == [{"text": "32.768MB", "blocks": 10}]


def test_all_means_every_eviction_and_broken_files_are_named(tool: Tool, tiny: tuple[str, ...]) -> None:
    Path("more").mkdir()
    Path("more/broken.py").write_text(BROKEN, encoding="utf-8")
    done = tool("cache", *tiny, "-p", "all", "--policy-dir", "more", "--capacity", "3", "--format", "csv")
    policies = {row["policy"] for row in csv.DictReader(io.StringIO(done.out))}
    assert {"lru", "fifo", "lfu", "length-aware", "sieve", "arc", "optimum", "infinite"} <= policies
    assert "broken.py" in done.err


def test_opt_is_the_optimum_that_is_shown_anyway(tool: Tool, tiny: tuple[str, ...]) -> None:
    found = tool.json("cache", *tiny, "-p", "opt", "-p", "lru", "--capacity", "3")
    assert [point["policy"] for point in found["points"]] == ["lru", "optimum", "infinite"]


def test_bounds_are_declared_offline(tool: Tool, tiny: tuple[str, ...]) -> None:
    found = points(tool.json("cache", *tiny, "-p", "belady", "-p", "lru", "--capacity", "3"))
    assert found["belady", "3"]["role"] == "offline"
    assert found["optimum", "3"]["role"] == "bound"
    assert found["lru", "3"]["role"] == "policy"


def test_a_file_of_ones_own_is_a_policy(tool: Tool, tiny: tuple[str, ...]) -> None:
    Path("mine.py").write_text(SLOW.replace("time.sleep(0.005)", "pass"), encoding="utf-8")
    found = points(tool.json("cache", *tiny, "-p", "mine=mine.py", "-p", "fifo", "--capacity", "3"))
    assert found["mine", "3"]["prefix_blocks"] == found["fifo", "3"]["prefix_blocks"]


# ---- files


def test_parquet_has_the_same_types_whatever_the_values_and_can_be_appended_to(
    tool: Tool, tiny: tuple[str, ...]
) -> None:
    # no eviction: every evicted_ago is null in the first; infinite: every capacity_blocks is null in the second
    assert tool("cache", *tiny, "--capacity", "5", "--format", "parquet", "-o", "a.parquet").code == 0
    assert tool("cache", *tiny, "--capacity", "inf", "--format", "parquet", "-o", "b.parquet").code == 0
    first, second = pq.read_table("a.parquet"), pq.read_table("b.parquet")
    assert first.schema.equals(second.schema)
    both = pa.concat_tables([first, second])
    assert both.column("policy").to_pylist() == ["lru", "optimum", "infinite"] * 2
    assert both.column("capacity_blocks").to_pylist() == [5, 5, None, None, None, None]
    assert both.schema.field("evicted_ago_p50_ms").type == pa.float64()


def test_parquet_and_json_say_the_same(tool: Tool, tiny: tuple[str, ...]) -> None:
    answer = tool.json("cache", *tiny, "--capacity", "3,inf")
    assert tool("cache", *tiny, "--capacity", "3,inf", "--format", "parquet", "-o", "a.parquet").code == 0
    assert pq.read_table("a.parquet").to_pylist() == answer["points"]


@pytest.mark.parametrize("kind", ["parquet", "plot"])
def test_a_file_is_never_overwritten_without_force(kind: str, tool: Tool, tiny: tuple[str, ...]) -> None:
    if kind == "plot":
        pytest.importorskip("matplotlib", reason="pictures need the extra 'plots'")
    name = "a.parquet" if kind == "parquet" else "a.png"
    words = ("cache", *tiny, "--capacity", "3", *(("--format", "parquet", "-o") if kind == "parquet" else ("--plot",)))
    Path(name).write_bytes(b"mine")
    done = tool(*words, name)
    assert (done.code, done.out) == (2, "")
    assert "exists; choose another name, or --force" in done.err
    assert Path(name).read_bytes() == b"mine"
    assert tool(*words, name, "--force").code == 0
    assert Path(name).read_bytes() != b"mine"


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_a_picture_is_drawn(ending: str, tool: Tool, tiny: tuple[str, ...]) -> None:
    pytest.importorskip("matplotlib", reason="pictures need the extra 'plots'")
    assert tool("cache", *tiny, "-p", "lru", "-p", "fifo", "--capacity", "3,5,inf", "--plot", f"a.{ending}").code == 0
    assert Path(f"a.{ending}").stat().st_size > 1000
    assert [path.name for path in Path().iterdir() if path.name.startswith(".")] == []


# ---- faults: one line, exit 2, nothing written

FAULTS = {
    ("-p", "nosuch"): "unknown policy 'nosuch'",
    ("-p", "random"): "'random' is of kind router",
    ("-p", "lru+fifo"): "lru+fifo",
    ("-p", "lru", "-p", "lru"): "'lru' is given twice",
    ("-p", "lru:depth=3"): "no parameter 'depth'",
    ("--capacity", "0"): "--capacity 0: must be above 0",
    ("--capacity", "-3"): "--capacity -3: must be above 0",
    ("--capacity", "2.5"): "expected whole blocks",
    ("--capacity", "9tok"): "less than one block of 10 tokens",
    ("--capacity", ","): "expected a size",
    ("--capacity", "many"): "expected a size",
    ("--capacity", "1e300"): "more than",
    ("--local", "0"): "--local '0': expected N",
    ("--local", "2:by-colour"): "expected N or N:round-robin|hashed|cache-aware",
    ("--touch-order", "sideways"): "expected forward or reverse",
    ("--ready-after", "-1s"): "--ready-after: must be at least 0",
    ("--warm-requests", "6"): "leaves none of the trace's 6 requests",
    ("--warm-requests", "some"): "expected a number of requests, or half",
    ("--definition", "hits"): "--definition: expected one of",
    ("--model", "llama-3-70b"): "--model: no effect",
    ("--plot", "x.bmp"): "ends in .png, .svg, .pdf",
    ("--format", "parquet"): "needs the file to write",
    ("--format", "parquet", "-o", "x.csv"): "ends in .parquet",
    ("--format", "parquet", "-o", "nowhere/x.parquet"): "there is no folder 'nowhere'",
    ("-o", "x.parquet"): "--out: no effect",
    ("--force",): "--force: no effect",
    ("--why", "--format", "json"): "--why: no effect",
    ("--jobs", "0"): "--jobs: must be at least 1",
    ("-p", "belady", "--local", "2"): "belady",
}


@pytest.mark.parametrize("words", FAULTS, ids=" ".join)
def test_a_fault_is_one_line_and_nothing_is_written(words: tuple[str, ...], tool: Tool, tiny: tuple[str, ...]) -> None:
    if "--plot" in words:
        pytest.importorskip("matplotlib", reason="pictures need the extra 'plots'")
    done = tool("cache", *tiny, *words)
    assert (done.code, done.out) == (2, "")
    [line] = done.err.splitlines()
    assert line.startswith("mooncake-bench: ")
    assert FAULTS[words] in line
    assert [path.name for path in Path().iterdir()] == ["tiny.jsonl"]


def test_a_trace_without_prefix_ids_has_nothing_to_say_about_caches(tool: Tool) -> None:
    csv_file = Path("azure.csv")
    csv_file.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,374,44\n2023-11-16 18:17:04.0319600,396,109\n",
        encoding="utf-8",
    )
    try:
        assert not load(str(csv_file)).has_prefix_ids
    except Exception:  # the reader of this format is not there
        pytest.skip("needs the reader of Azure's CSV")
    done = tool("cache", str(csv_file), "--capacity", "10")
    assert (done.code, done.out) == (3, "")
    assert "the source has no prefix ids: no cache can hit" in done.err.splitlines()[-1]


def test_an_empty_hit_ratio_is_zero_and_a_missing_denominator_is_null(tool: Tool) -> None:
    # one request of 5 tokens: no full block, nothing before it
    rows = [{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [0]}]
    found = points(tool.json("cache", written("one.jsonl", rows), "--capacity", "3"))["lru", "3"]
    assert found["hit_ratio_blocks"] == 0
    assert found["hit_ratio_full_blocks"] is None
    assert found["prefix_blocks_over_bound"] is None


# ---- how it ends


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_ends_with_130_one_line_and_no_file(jobs: str, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW, encoding="utf-8")
    words = ["cache", "conversation-like", "-p", "slow.py", "--capacity", "1000,2000", "--jobs", jobs]
    files = ["--format", "parquet", "-o", "a.parquet"]
    process = subprocess.Popen(
        [sys.executable, "-m", "mooncake_bench", *words, *files], cwd=tmp_path, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env=os.environ | {"COLUMNS": "80"}, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (tmp_path / "reached").exists():
        assert time.monotonic() < deadline, process.communicate()
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process of the command
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == ""
    assert err.splitlines()[-1] == "mooncake-bench: interrupted"
    assert "Traceback" not in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["reached", "slow.py"]


def test_what_a_policy_prints_is_not_in_the_answer(tool: Tool, tiny: tuple[str, ...]) -> None:
    loud = SLOW.replace("time.sleep(0.005)", "print('loud')").replace('pathlib.Path("reached").touch()', "pass")
    Path("loud.py").write_text(loud, encoding="utf-8")
    assert tool.json("cache", *tiny, "-p", "loud.py", "--capacity", "3", "--jobs", "1")["points"]
