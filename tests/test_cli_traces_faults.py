"""What the trace commands do with values, files and streams that cannot be: one line, exit 2, nothing written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fault_tools import Answer, Tool
from trace_making import trace_of

from mooncake_bench.errors import TraceError
from mooncake_bench.trace import Trace, export, load, save
from mooncake_bench.trace.merging import merge
from mooncake_bench.trace.scaling import scale_copies
from mooncake_bench.trace.transform import every, jitter


def refused(done: Answer) -> str:
    """The one line of a command that refused."""
    assert (done.code, done.out) == (2, "")
    (line,) = done.err.strip().splitlines()
    assert line.startswith("mooncake-bench: ")
    return line


@pytest.fixture
def four() -> Trace:
    """Four requests over 3 ms."""
    return trace_of([[1], [2], [3], [4]], [0, 1, 2, 3], size=512)


# ---- values that fit no trace are refused before it is read


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("convert absent t.csv --jitter 0", "jitter is 0 ms; expected a finite number above 0"),
        ("convert absent t.csv --jitter nan", "--jitter: expected a duration"),
        (
            "convert absent t.csv --jitter 1e300",
            "jitter is 1e+300 ms; expected one that leaves a span of at most 1e+14",
        ),
        ("convert absent t.csv --jitter=", "--jitter: expected a duration"),
        ("convert absent t.csv --spread-ticks=", "spread-ticks is ''; expected one of uniform, poisson"),
        ("convert absent t.csv --reblock 0", "--reblock"),
        ("scale absent t.csv --by sessions --factor 2 --jitter 0", "jitter is 0 ms; expected a finite number above 0"),
        ("scale absent t.csv --by time --factor 0", "factor is 0; expected a number above 0"),
        ("scale absent t.csv --by sessions --factor nan", "factor is nan; expected above 0 and at most 10,000"),
        ("scale absent t.csv --by copies --factor inf", "factor is inf; expected a whole number from 1"),
        ("scale absent t.csv --by copies --factor 2 --max-offset -1", "largest offset is -1 ms; expected"),
        ("scale absent t.csv --by copies --factor 2 --max-offset 1e16", "largest offset is 1e+16 ms; expected"),
        ("merge absent other t.csv --offset 0,1,2", "found 3 offsets for 2 traces; expected one for each"),
        ("merge absent other t.csv --offset 1", "found 1 offset for 2 traces; expected one for each"),
        ("merge absent other t.csv --offset=", "--offset: expected a duration"),
        ("merge absent other t.csv --offset 0,1e15", "an offset is 1e+15 ms; expected times from 0 to 1e+14 ms"),
        ("merge absent other t.csv --offset 0,-5", "an offset is -5 ms; expected times from 0"),
        ("synth t.csv --rate 1e-300", "--rate: expected a number from 1e-06 to 1e+06, got '1e-300'"),
    ],
)
def test_a_value_that_fits_no_trace_is_refused_before_the_trace_is_read(tool: Tool, line: str, said: str) -> None:
    assert said in refused(tool("traces", *line.split(" ")))
    assert list(Path().iterdir()) == []


def test_no_trace_gets_longer_than_the_tool_reads(four: Trace) -> None:
    # 1e14 ms fit, but not after the 3 ms that the trace has; a jitter may move the ends apart by twice itself
    for make in (
        lambda: merge([four, four], [0, 1e14]),
        lambda: scale_copies(four, 2, max_offset_ms=1e14),
        lambda: jitter(four, 5e13),
    ):
        with pytest.raises(TraceError, match=r"span of (at most )?1e\+14 ms"):
            make()
    assert merge([four, four], [1e14, 1e14]).span_ms == 3  # both late: arrivals count from the first


def test_every_with_a_huge_step_keeps_the_first_request(four: Trace) -> None:
    assert len(every(four, 10**20)) == 1
    with_sessions = trace_of([[1], [2]], [0, 1], session_id=np.array([0, 0]))
    assert every(with_sessions, 10**20).session_id.tolist() == [0]


# ---- streams


@pytest.mark.skipif(sys.platform == "win32", reason="the shell's way to close a stream is POSIX")
def test_a_closed_stdout_is_one_line(tmp_path: Path) -> None:
    command = f"{sys.executable} -m mooncake_bench traces convert conversation-like - >&-"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "mooncake-bench: the trace cannot be written: stdout is closed; redirect it to a file, or name one\n"
    )


# ---- files


def test_a_pipe_is_not_replaced_by_force(tool: Tool) -> None:
    os.mkfifo("pipe.csv")
    assert "pipe.csv' is a pipe; expected a file (- is stdout)" in refused(
        tool("traces", "convert", "conversation-like", "pipe.csv", "--force")
    )
    assert Path("pipe.csv").is_fifo()


@pytest.mark.parametrize("name", ["t.arrow", "t.parquet"])
def test_a_file_that_somebody_edited_is_not_read_as_it_was_written(tmp_path: Path, four: Trace, name: str) -> None:
    path = tmp_path / name
    export.write(four, path)
    assert load(path) == four
    if name == "t.arrow":
        with pa.ipc.open_file(str(path)) as reader:
            table = reader.read_all()
    else:
        table = pq.read_table(path)
    assert table.schema.metadata[b"sha256"].decode() == four.sha256
    edited = table.set_column(1, table.schema.field(1), pa.array([512, 512, 511, 512]))
    if name == "t.arrow":
        with pa.ipc.new_file(str(path), edited.schema) as writer:
            writer.write_table(edited)
    else:
        pq.write_table(edited, path)
    with pytest.raises(TraceError, match="the content differs from its own hash: damaged or edited; write or fetch it"):
        load(path)


def test_a_damaged_page_of_parquet_is_found(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    export.write(load("conversation-like").select(max_requests=500), path)
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(TraceError, match="damaged"):
        load(path)


def test_ids_with_blanks_come_back_from_our_own_parquet(tmp_path: Path) -> None:
    trace = trace_of([[1], [2]], [0, 1], request_id=(" a", "b\t"))
    export.write(trace, tmp_path / "t.parquet")
    assert load(tmp_path / "t.parquet").request_id == (" a", "b\t")


def test_our_own_parquet_can_be_read_with_other_columns_and_block_sizes(tmp_path: Path) -> None:
    trace = trace_of([[1], [2]], [0, 1], size=512)
    export.write(trace, tmp_path / "t.parquet")
    columns = "arrival=arrival_ms,input=output_tokens,output=input_tokens"
    assert load(tmp_path / "t.parquet", columns=columns).input_tokens.tolist() == [1, 1]


# ---- what a terminal sees


def test_a_table_shows_no_control_characters(tool: Tool) -> None:
    save(trace_of([[1], [2]], [0, 1], request_id=("\x1b[31mred", "two\nlines")), "t.arrow")
    table = tool("traces", "head", "t.arrow").out
    assert "\x1b" not in table
    assert [line.split("  ")[0] for line in table.splitlines()] == ["request id", "?[31mred", "two?lines"]
    shown = json.loads(tool("traces", "head", "t.arrow", "--format", "json").out)
    assert [item["request_id"] for item in shown] == ["\x1b[31mred", "two\nlines"]


# ---- files that cannot be read as they stand

ROW = {"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1]}
PLAIN = {"arrival_ms": 0, "input_tokens": 1, "output_tokens": 1}


def with_more(row: dict[str, object], more: str) -> str:
    """A JSON line of two rows, the second with ``more`` before its end."""
    return json.dumps(row) + "\n" + json.dumps(row)[:-1] + f", {more}}}\n"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("t.jsonl", with_more(ROW, '"input_length": 1'), "line 2, field 'input_length': given twice; expected it once"),
        ("t.jsonl", with_more(PLAIN, '"output_tokens": 2'), "line 2, field 'output_tokens': given twice; expected it"),
        (
            "t.jsonl",
            with_more(ROW, '"request_id": "\\ud800"'),
            "line 2, field 'request_id': found what is not valid Unicode text; expected a text or an integer",
        ),
        (
            "t.jsonl",
            json.dumps(ROW | {"session_id": 1}) + "\n"
            + '{"input_length": 1, "output_length": 1, "hash_ids": [1], "session_id": 1, "delay": 1e308}\n',
            "line 2, field 'delay': found 1e+308; expected one that leaves a span of at most 1e+14 ms",
        ),
        ("t.csv", 'arrival_ms,input_tokens,output_tokens,request_id\n0,1,1,a\n1,1,1,"b', "line 3: found '1,1,1,\"b'"),
        ("t.csv", 'arrival_ms,input_tokens,output_tokens,request_id\n0,1,1,"a\n1,1,1,"b\n', "line 2: found '0,1,"),
    ],
)  # fmt: skip
def test_a_file_that_says_two_things_or_none_is_refused(tool: Tool, name: str, text: str, said: str) -> None:
    Path(name).write_text(text, encoding="utf-8")
    assert said in refused(tool("traces", "check", name))


def test_a_text_that_looks_like_a_key_is_no_second_key(tool: Tool) -> None:
    Path("t.jsonl").write_text(with_more(ROW, '"session_id": "timestamp", "other": {"timestamp": 1}'))
    assert tool("traces", "check", "t.jsonl").code == 0


def test_quotes_that_end_on_their_line_are_fine(tmp_path: Path) -> None:
    text = 'arrival_ms,input_tokens,output_tokens,request_id\n0,1,1,"a""b"\n1,1,1,"c"'
    (tmp_path / "t.csv").write_text(text)
    assert load(tmp_path / "t.csv").request_id == ('a"b', "c")


def test_a_link_to_nothing_is_said_to_be_one(tool: Tool) -> None:
    Path("gone.csv").symlink_to("nowhere.csv")
    Path("round").symlink_to("round")
    assert "'gone.csv' is a symbolic link to nothing, 'nowhere.csv'" in refused(tool("traces", "check", "gone.csv"))
    assert "'round' is a symbolic link to nothing, 'round'" in refused(tool("traces", "check", "round"))


def test_the_nearest_file_is_named_with_its_folder(tool: Tool) -> None:
    Path("sub").mkdir()
    Path("sub/monday.csv").touch()
    assert f"did you mean '{Path('sub/monday.csv')}'?" in refused(tool("traces", "check", "sub/munday.csv"))


def test_an_empty_name_is_said_to_be_empty(tool: Tool) -> None:
    assert "the name of the trace is empty; expected a file or one of" in refused(tool("traces", "check", ""))
    pytest.importorskip("matplotlib", reason="pictures need the extra plots")
    said = refused(tool("traces", "info", "conversation-like", "--plot", ""))
    assert "--plot the name is empty: expected a file name that ends in .png" in said


def test_one_request_is_one_request(tool: Tool) -> None:
    done = tool("traces", "slice", "conversation-like", "one.csv", "--every", "99999999999999999999")
    assert done.out.startswith("one.csv: 1 request in 0.0 s, ")
