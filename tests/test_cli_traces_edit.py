"""The commands that read a trace and write another: what they print, where they write, what they refuse."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fault_tools import Tool

from mooncake_bench.trace import Trace, load, save
from mooncake_bench.trace.export import write
from mooncake_bench.trace.scaling import scale_sessions
from mooncake_bench.trace.transform import reblock, spread_ticks

CONVERSATION = "conversation-like"


@pytest.fixture
def few(tool: Tool) -> Trace:
    """The first 400 requests of the bundled trace, as the file few.arrow."""
    trace = load(CONVERSATION).select(max_requests=400)
    save(trace, "few.arrow")
    return trace


# ---- convert


@pytest.mark.parametrize("name", ["t.arrow", "t.parquet", "t.csv", "t.jsonl", "t.csv.gz", "t.jsonl.gz"])
def test_convert_writes_each_kind_and_reads_it_again(tool: Tool, name: str) -> None:
    done = tool("traces", "convert", CONVERSATION, name)
    assert done.code == 0
    # the trace's own totals: 12,031 requests, see traces/README.md
    assert done.out.startswith(f"{name}: 12,031 requests in 3,537.0 s, 144,761,979 input and 4,099,515 output tokens")
    assert load(name) == load(CONVERSATION)
    assert sorted(path.name for path in Path().iterdir()) == [name]


def test_convert_says_what_was_left_out(tool: Tool) -> None:
    done = tool("traces", "convert", CONVERSATION, "t.jsonl", "--reblock", "1024")
    assert "the file does not say its block size: read it with --block-size 1024" in done.err.splitlines()
    assert "metadata" not in done.err
    words = ("traces", "convert", CONVERSATION, "u.jsonl", "--format", "json", "--reblock", "1024")
    shown = json.loads(tool(*words).out)
    assert shown["out"] == "u.jsonl"
    assert shown["requests"] == 12_031
    assert shown["bytes"] == Path("u.jsonl").stat().st_size
    assert len(shown["left_out"]) == 1


def test_a_notice_is_printed_once(tool: Tool) -> None:
    for words in (
        ("convert", CONVERSATION, "a.jsonl"),
        ("slice", CONVERSATION, "a.csv", "--end", "20min"),
        ("scale", CONVERSATION, "a.arrow", "--by", "sessions", "--factor", "2"),
        ("scale", CONVERSATION, "b.arrow", "--by", "copies", "--factor", "2"),
        ("merge", CONVERSATION, CONVERSATION, "c.arrow", "--offset", "0,9min"),
    ):
        done = tool("traces", *words)
        assert done.code == 0
        assert done.err.count("coarse grid") == (2 if words[0] == "merge" else 1)  # of merged traces, one each


def test_quiet_leaves_the_answer_alone(tool: Tool) -> None:
    done = tool("traces", "convert", CONVERSATION, "t.jsonl", "--reblock", "1024", "-q")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("t.jsonl: 12,031 requests")
    assert tool("traces", "scale", CONVERSATION, "s.arrow", "--by", "time", "--factor", "2", "--quiet").err == ""
    assert tool("traces", "synth", "y.arrow", "--requests", "20", "-q").err == ""


def test_a_slice_says_all_that_was_taken(tool: Tool) -> None:
    # 12,031 requests, every tenth: 1,204; of these 50
    done = tool("traces", "slice", CONVERSATION, "t.arrow", "--every", "10", "--max-requests", "50")
    assert load("t.arrow").metadata["transform"] == "one request in 10 of 12031; the first 50 of 1,204"
    assert "one request in 10 of 12031; the first 50 of 1,204" in done.out
    tool("traces", "slice", CONVERSATION, "u.arrow", "--start", "10min", "--end", "20min")
    assert load("u.arrow").metadata["transform"] == "arrivals from 600,000 ms to 1,200,000 ms"
    tool("traces", "slice", CONVERSATION, "v.arrow", "--start", "10min", "--max-requests", "5")
    assert load("v.arrow").metadata["transform"].startswith("arrivals from 600,000 ms to the end; the first 5 of ")


def test_copies_of_a_grid_are_spread_over_its_whole_ticks(tool: Tool) -> None:
    tool("traces", "scale", CONVERSATION, "c.jsonl", "--by", "copies", "--factor", "2")
    done = tool("traces", "convert", "c.jsonl", "d.arrow", "--spread-ticks", "uniform")
    assert "1,180 distinct times for 24,062 requests, about 3000 ms apart" in done.err
    places = load("d.arrow").arrival_ms % 3000
    assert np.histogram(places, 6, (0, 3000))[0] == pytest.approx(24_062 / 6, rel=0.1)
    tool("traces", "scale", CONVERSATION, "e.jsonl", "--by", "copies", "--factor", "2", "--max-offset", "1s")
    refused = tool("traces", "convert", "e.jsonl", "f.arrow", "--spread-ticks", "uniform")
    assert refused.code == 2
    assert "its arrivals lie on no one regular grid: the 2,360 distinct times of 24,062 requests" in refused.err


def test_convert_leaves_an_existing_file_alone_unless_forced(tool: Tool) -> None:
    Path("t.csv").write_text("mine")
    done = tool("traces", "convert", CONVERSATION, "t.csv")
    assert (done.code, done.out) == (2, "")
    assert "'t.csv' exists; choose another name, or --force to replace it" in done.err
    assert Path("t.csv").read_text() == "mine"
    assert tool("traces", "convert", CONVERSATION, "t.csv", "--force").code == 0
    assert load("t.csv") == load(CONVERSATION)


def test_convert_to_stdout_gives_the_bytes_of_the_file(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mooncake_bench", "traces", "convert", CONVERSATION]
    for kind, name in (("csv", "t.csv"), ("mooncake", "t.jsonl")):
        piped = subprocess.run([*command, "-", "--to", kind], capture_output=True, check=True, cwd=tmp_path)
        write(load(CONVERSATION), tmp_path / name)
        assert piped.stdout == (tmp_path / name).read_bytes()
        assert b"stdout: 12,031 requests" in piped.stderr


def test_convert_to_a_closed_pipe_ends_quietly(tmp_path: Path) -> None:
    line = f"'{sys.executable}' -m mooncake_bench traces convert {CONVERSATION} - 2>err | head -n 1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.startswith('{"timestamp":0,')
    assert "Traceback" not in (tmp_path / "err").read_text()


def test_convert_reblocks_spreads_and_jitters(tool: Tool, few: Trace) -> None:
    tool("traces", "convert", "few.arrow", "r.arrow", "--reblock", "1024")
    assert load("r.arrow") == reblock(few, 1024)
    done = tool("traces", "convert", "few.arrow", "s.arrow", "--spread-ticks", "poisson", "--seed", "3")
    assert load("s.arrow") == spread_ticks(few, "poisson", 3)
    assert "ticks of 3000 ms spread (poisson), seed 3" in done.out
    tool("traces", "convert", "few.arrow", "j.arrow", "--jitter", "1s", "--seed", "3")
    moved = load("j.arrow")
    assert moved.metadata["transform"] == "jitter ±1000 ms, seed 3"
    assert moved.input_tokens.sum() == few.input_tokens.sum()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("convert conversation-like t.txt", "its ending is '.txt'; expected .arrow, .parquet, .csv, .jsonl"),
        ("convert conversation-like t --to parket", "no writer for 'parket'; did you mean 'parquet'?"),
        ("convert conversation-like nowhere/t.csv", "no folder 'nowhere'; make it first"),
        ("convert conversation-like t.arrow.gz", "arrow is compressed by itself; leave .gz out"),
        ("convert conversation-like - --to arrow", "--to arrow: cannot go to stdout; expected csv or mooncake"),
        ("convert conversation-like - --format json", "no effect where the trace itself goes to stdout"),
        (
            "convert conversation-like t.csv --seed 3",
            "--seed: nothing is random here without --jitter or --spread-ticks",
        ),
        ("convert conversation-like t.csv --jitter soon", "--jitter: expected a duration such as 30s"),
        ("convert conversation-like t.csv --jitter 0", "jitter is 0 ms; expected a finite number above 0"),
        (
            "convert conversation-like t.csv --spread-ticks even",
            "spread-ticks is 'even'; expected one of uniform, poisson",
        ),
        ("convert conversation-like t.csv --reblock 700", "expected a multiple of its block size, 512"),
        ("convert conversation-like t.csv --format yaml", "--format: expected one of table, json"),
        ("convert conversaton-like t.csv", "no such file, and no bundled trace of that name; did you mean"),
        ("check absent.csv", "no such file"),
        ("head conversation-like -n 0", "-n"),
        ("slice conversation-like t.csv --start 2x", "--start: expected a duration such as 30s"),
        ("slice conversation-like t.csv --start 30min --end 10min", "0 requests after selecting arrivals"),
        ("slice conversation-like t.csv --every 0", "--every"),
        ("merge conversation-like t.csv", "merge: found 1 trace; expected at least two"),
        ("merge conversation-like toolagent-like t.csv --offset 0,1,2", "found 3 offsets for 2 traces"),
        ("merge conversation-like toolagent-like t.csv --offset 0,-5", "an offset is -5 ms|expected a duration"),
        ("scale conversation-like t.csv --factor 2", "--by"),
        ("scale conversation-like t.csv --by time", "--factor"),
        (
            "scale conversation-like t.csv --by users --factor 2",
            "--by: expected one of time, copies, sessions, got 'users'",
        ),
        ("scale conversation-like t.csv --by copies --factor 2.5", "expected a whole number from 1"),
        ("scale conversation-like t.csv --by time --factor 2 --shared none", "--shared: no effect by time"),
        ("scale conversation-like t.csv --by time --factor 2 --seed 1", "--seed: nothing is random here"),
        (
            "scale conversation-like t.csv --by sessions --factor 2 --max-offset 1s",
            "--max-offset: no effect by sessions",
        ),
        ("scale conversation-like t.csv --by sessions --factor 2 --shared root", "did you mean 'roots'"),
        ("scale conversation-like t.csv --by time --factor 0", "factor is 0; expected a number above 0"),
        ("hash example-prompts t.csv", "expected one of --tokenizer FILE, --tokens, --words; got none"),
        ("hash example-prompts t.csv --words --tokens", "got --tokens and --words"),
        ("hash example-prompts t.csv --words --salt x", "--salt: no effect on dense ids"),
        ("hash example-prompts t.csv --words --ids short", "--ids: expected one of dense, hashes, got 'short'"),
        ("hash example-prompts t.csv --words --ids hashes --salt x --salt-file y", "two secrets; keep one"),
        ("hash example-prompts t.csv --words --ids hashes --salt-file y", "salt file 'y' cannot be read"),
        ("hash example-prompts t.csv --words --ids hashes --salt=", "the salt is empty"),
        ("hash absent.jsonl t.csv --words", "'absent.jsonl': no such file"),
        ("hash example-prompts t.csv --tokenizer absent.json", "absent.json': no such file; expected a tokenizer.json"),
    ],
)
def test_wrong_use_gives_one_line_exit_2_and_no_file(tool: Tool, line: str, said: str) -> None:
    done = tool("traces", *line.split(" "))
    assert done.code == 2
    assert done.out == ""
    last = done.err.strip().splitlines()[-1]
    assert last.startswith("mooncake-bench: ")
    assert any(part in last for part in said.split("|")), last
    assert list(Path().iterdir()) == []


# ---- check and head


def test_check_says_ok_and_what_it_is(tool: Tool) -> None:
    done = tool("traces", "check", CONVERSATION)
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0] == "OK"
    facts = dict(line.strip().split("  ", 1) for line in lines[1:])
    assert {key: value.strip() for key, value in facts.items()}["requests"] == "12,031"
    assert "arrivals lie on a coarse grid" in done.err
    shown = json.loads(tool("traces", "check", CONVERSATION, "--format", "json").out)
    assert shown["ok"] is True
    assert (shown["requests"], shown["block_tokens"], shown["prefix_ids"]) == (12_031, 512, True)
    assert shown["optional_columns"] == ["session_id"]
    assert len(shown["notices"]) == 1


def test_check_of_a_bad_file_is_one_line_and_exit_2(tool: Tool) -> None:
    row = {"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [1]}
    Path("bad.jsonl").write_text(json.dumps(row) + "\n")
    done = tool("traces", "check", "bad.jsonl")
    assert (done.code, done.out) == (2, "")
    assert len(done.err.strip().splitlines()) == 1
    assert "bad.jsonl, line 1, field 'hash_ids'" in done.err


def test_head_shows_the_first_requests_and_shortens_ids_in_tables_only(tool: Tool) -> None:
    rows = tool("traces", "head", CONVERSATION, "-n", "2").out.splitlines()
    assert rows[0].split("  ")[0] == "request id"
    assert len(rows) == 3
    assert "0 6 7 … 21 (17)" in rows[2]
    found = json.loads(tool("traces", "head", CONVERSATION, "-n", "2", "--format", "json").out)
    trace = load(CONVERSATION)
    assert [item["block_ids"] for item in found] == [trace.blocks(row).tolist() for row in range(2)]
    assert [item["input_tokens"] for item in found] == trace.input_tokens[:2].tolist()
    csv = tool("traces", "head", CONVERSATION, "--format", "csv").out.splitlines()
    assert csv[0] == "request_id,arrival_ms,input_tokens,output_tokens,session_id,block_ids"
    assert len(csv) == 6
    assert csv[1] == "0,0,3060,419,0,0 1 2 3 4 5"


# ---- slice, merge, scale


def test_slice_takes_times_as_replay_does(tool: Tool) -> None:
    done = tool("traces", "slice", CONVERSATION, "t.arrow", "--start", "10min", "--end", "1200s", "--max-requests", "7")
    assert done.code == 0
    part = load("t.arrow")
    assert part.sha256 == load(CONVERSATION).select(7, 600_000, 1_200_000).sha256
    assert "requests had the row numbers of their source as ids" in done.err


def test_merge_takes_many_and_begins_each_when_told(tool: Tool) -> None:
    for name in ("a.csv", "b.csv"):
        Path(name).write_text("arrival_ms,input_tokens,output_tokens,block_ids\n0,3,1,7\n10,3,1,7\n")
    done = tool("traces", "merge", "a.csv", "b.csv", "a.csv", "t.csv", "--offset", "0,1s,5ms")
    assert done.code == 0, done.err
    both = load("t.csv", timestamp_unit="ms")
    assert both.arrival_ms.tolist() == [0, 5, 10, 15, 1000, 1010]
    assert both.block_ids.tolist() == [0, 2, 0, 2, 1, 1]  # numbered trace by trace: a 0, b 1, a again 2
    tool("traces", "merge", "a.csv", "b.csv", "u.csv", "--share-blocks")
    assert load("u.csv", timestamp_unit="ms").block_ids.tolist() == [7, 7, 7, 7]


def test_scale_by_sessions_is_the_library_function(tool: Tool, few: Trace) -> None:
    done = tool("traces", "scale", "few.arrow", "t.arrow", "--by", "sessions", "--factor", "1.5", "--seed", "2")
    assert done.code == 0
    assert load("t.arrow") == scale_sessions(few, 1.5, 2)
    assert "sessions scaled by 1.5: " in done.out
    assert "shared blocks: openings, seed 2" in done.out


def test_scale_says_when_sessions_are_inferred(tool: Tool) -> None:
    tool("traces", "slice", CONVERSATION, "s.jsonl", "--max-requests", "500")
    lines = Path("s.jsonl").read_text().splitlines()
    bare = [{key: value for key, value in json.loads(line).items() if key != "session_id"} for line in lines]
    Path("bare.jsonl").write_text("".join(json.dumps(row) + "\n" for row in bare))
    done = tool("traces", "scale", "bare.jsonl", "t.arrow", "--by", "sessions", "--factor", "2")
    assert "sessions were inferred from prefix growth" in done.err
    assert len(load("t.arrow")) == 1000


def test_scale_by_time_then_spread_and_jitter(tool: Tool, few: Trace) -> None:
    line = "--by time --factor 2 --spread-ticks uniform --jitter 1ms --seed 4"
    assert tool("traces", "scale", "few.arrow", "t.arrow", *line.split()).code == 0
    done = load("t.arrow").metadata["transform"]
    assert done == "time scaled by 2; ticks of 1500 ms spread (uniform), seed 4; jitter ±1 ms, seed 4"


# ---- hash


def test_hash_writes_a_trace_without_the_text(tool: Tool) -> None:
    done = tool("traces", "hash", "example-prompts", "t.jsonl", "--words", "--block-size", "16")
    assert done.code == 0
    text = Path("t.jsonl").read_text()
    assert "library" not in text
    assert "reader" not in text
    trace = load("t.jsonl", 16)
    assert len(trace) == 9
    assert trace.session_id is not None


def test_two_hashed_files_of_one_salt_share_ids_and_others_do_not(tool: Tool) -> None:
    Path("salt").write_text("a secret\n")
    line = ("traces", "hash", "example-prompts")
    how = ("--words", "--block-size", "16", "--ids", "hashes")
    tool(*line, "a.arrow", *how, "--salt", "a secret")
    tool(*line, "b.arrow", *how, "--salt-file", "salt")
    tool(*line, "c.arrow", *how)
    one, same, other = (set(load(f"{name}.arrow").block_ids.tolist()) for name in "abc")
    assert one == same
    assert not one & other
    tool("traces", "merge", "a.arrow", "b.arrow", "m.arrow", "--share-blocks")
    assert len(np.unique(load("m.arrow").block_ids)) == len(one)
