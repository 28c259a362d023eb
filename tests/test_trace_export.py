"""A trace written to a file of any kind and read back is the same trace, and written again the same bytes."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_making import assert_unchanged, frozen_copy, trace_of, traces

from mooncake_bench.errors import TraceError
from mooncake_bench.trace import Trace, export, load

FILES = ("t.arrow", "t.parquet", "t.csv", "t.csv.gz", "t.jsonl", "t.jsonl.gz")
SIZED = ("t.arrow", "t.parquet")  # kinds that hold the block size
COLUMNS = (
    "arrival_ms",
    "input_tokens",
    "output_tokens",
    "block_offsets",
    "block_ids",
    "session_id",
    "priority",
    "delay_ms",
)


def read_back(trace: Trace, path: Path) -> Trace:
    """The trace in ``path``, which has the block size of ``trace``."""
    unit = "auto" if path.name.endswith(".arrow") else "ms"
    return load(path, None if path.name in SIZED else trace.block_tokens, unit)


def assert_same(read: Trace, trace: Trace) -> None:
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(read, name), getattr(trace, name), err_msg=name)
    assert read.request_id == trace.request_id
    assert read.block_tokens == trace.block_tokens
    assert read.sha256 == trace.sha256


def full() -> Trace:
    """A trace with every column, odd times and odd texts."""
    return trace_of(
        [[1, 2, 3], [1, 2], [1, 2, 3, 4]], [0, 1e-3, 7.1],
        session_id=np.array([2**62, -1, 0]), priority=np.array([-(2**63), 0, 2**63 - 1]),
        delay_ms=np.array([np.nan, 0.1, 3e9]), request_id=("Zürich, \"quoted\"", "two words", "3"),
        metadata={"source": "a test", "format": "mooncake-jsonl"}, notices=("something", "to know"),
    )  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_every_column_comes_back_and_the_bytes_are_the_same_again(tmp_path: Path, name: str) -> None:
    trace = full()
    before = frozen_copy(trace)
    export.write(trace, tmp_path / name)
    assert_unchanged(trace, before)
    read = read_back(trace, tmp_path / name)
    assert_same(read, trace)
    (tmp_path / "again").mkdir()
    export.write(read, tmp_path / "again" / name)
    if name not in SIZED:
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / name).read_bytes()
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=40)
@given(trace=traces())
def test_any_trace_comes_back(tmp_path_factory: pytest.TempPathFactory, name: str, trace: Trace) -> None:
    odd = any(name != name.strip() or not name or not name.isprintable() for name in trace.request_id or ())
    if odd and not name.startswith(("t.arrow", "t.jsonl")):
        return  # such ids are refused: see below
    if name.startswith("t.jsonl") and (
        (trace.session_id is not None and (trace.session_id < 0).all())
        or (trace.delay_ms is not None and np.isnan(trace.delay_ms).all())
    ):
        return  # a column without any value: see below
    path = tmp_path_factory.getbasetemp() / name
    export.write(trace, path, force=True)
    assert_same(read_back(trace, path), trace)


@given(st.lists(st.floats(0, 1e12, allow_subnormal=False), min_size=1, max_size=6))
def test_every_float_comes_back_from_text(tmp_path_factory: pytest.TempPathFactory, times: list[float]) -> None:
    at = sorted(times)
    trace = trace_of([[row] for row in range(len(at))], [time - at[0] for time in at])
    for name in ("f.csv", "f.jsonl"):
        path = tmp_path_factory.getbasetemp() / name
        export.write(trace, path, force=True)
        np.testing.assert_array_equal(read_back(trace, path).arrival_ms, trace.arrival_ms)


def test_csv_as_a_person_sees_it(tmp_path: Path) -> None:
    export.write(full(), tmp_path / "t.csv")
    text = (tmp_path / "t.csv").read_bytes().decode()
    header, *rows = csv.reader(io.StringIO(text, newline=""))
    assert ",".join(header) == (
        "arrival_ms,input_tokens,output_tokens,block_ids,request_id,session_id,priority,delay_ms"
    )
    assert rows == [
        ["0", "3", "1", "0 1", 'Zürich, "quoted"', str(2**62), str(-(2**63)), ""],
        ["0.001", "2", "1", "0", "two words", "", "0", "0.1"],
        ["7.1", "4", "1", "0 2", "3", "0", str(2**63 - 1), "3000000000"],
    ]
    assert "\r" not in text


def test_json_lines_as_a_person_sees_them(tmp_path: Path) -> None:
    export.write(full(), tmp_path / "t.jsonl")
    first, second, _ = (tmp_path / "t.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(first) == {
        "timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": [0, 1],
        "session_id": 2**62, "priority": -(2**63), "request_id": 'Zürich, "quoted"',
    }  # fmt: skip
    assert json.loads(second) == {
        "timestamp": 0.001, "input_length": 2, "output_length": 1, "hash_ids": [0],
        "priority": 0, "request_id": "two words", "delay": 0.1,
    }  # fmt: skip


def test_parquet_has_explicit_types_and_the_traces_facts(tmp_path: Path) -> None:
    export.write(full(), tmp_path / "t.parquet")
    schema = pq.read_schema(tmp_path / "t.parquet")
    kinds = {field.name: field.type for field in schema}
    assert kinds.pop("block_ids").value_type == pa.int64()
    assert kinds == {
        "arrival_ms": pa.float64(), "input_tokens": pa.int64(), "output_tokens": pa.int64(), "request_id": pa.string(),
        "session_id": pa.int64(), "priority": pa.int64(), "delay_ms": pa.float64(),
    }  # fmt: skip
    assert schema.metadata[b"block_tokens"] == b"2"
    assert json.loads(schema.metadata[b"notices"]) == ["something", "to know"]
    assert json.loads(schema.metadata[b"metadata"]) == {"source": "a test", "format": "mooncake-jsonl"}


def test_arrow_keeps_name_metadata_and_notices(tmp_path: Path) -> None:
    assert export.write(full(), tmp_path / "other.arrow") == []
    read = load(tmp_path / "other.arrow")
    assert (read.name, dict(read.metadata)) == ("t", dict(full().metadata))
    assert read.notices[:2] == full().notices


def test_what_a_file_cannot_hold_is_said(tmp_path: Path) -> None:
    size = "the file does not say its block size: read it with --block-size 2"
    assert export.write(full(), tmp_path / "t.csv") == [size]  # metadata and notices do not change what is read
    assert export.write(full(), tmp_path / "t.jsonl") == [size]
    bare = trace_of(
        [[1], [2]], [0, 1], size=512, session_id=np.array([-1, -1]), delay_ms=np.array([np.nan, np.nan]),
        metadata={"prefix_ids": "none"}, source_row=np.array([1, 0]),
    )  # fmt: skip
    rows = "requests had the row numbers of their source as ids: in the new file they are numbered anew"
    assert export.write(bare, tmp_path / "bare.csv") == [rows]
    assert export.write(bare, tmp_path / "bare.arrow") == [rows]
    assert export.write(bare, tmp_path / "bare.jsonl") == [
        rows,
        "the source has no prefix ids: the file's hash_ids are made up, and it does not say so",
        "left out: session_id, for no request has one",
        "left out: delay_ms, for none is known",
    ]


def test_a_trace_without_prefix_ids_is_still_one_as_csv(tmp_path: Path) -> None:
    trace = trace_of([[1], [2]], [0, 1], size=512, metadata={"prefix_ids": "none"})
    export.write(trace, tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text() == "arrival_ms,input_tokens,output_tokens\n0,1,1\n1,1,1\n"
    assert not load(tmp_path / "t.csv").has_prefix_ids


def test_rows_are_written_in_stretches_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = load("conversation-like").select(max_requests=300)
    for name in FILES:
        export.write(trace, tmp_path / name)
    monkeypatch.setattr(export, "CHUNK_ENTRIES", 50)
    monkeypatch.setattr(export, "CHUNK_ROWS", 7)
    (tmp_path / "small").mkdir()
    for name in FILES:
        export.write(trace, tmp_path / "small" / name)
        assert_same(load(tmp_path / "small" / name), trace)
        if "csv" in name or "jsonl" in name:
            assert (tmp_path / "small" / name).read_bytes() == (tmp_path / name).read_bytes()


def test_gzip_is_the_same_text_and_the_same_bytes_each_time(tmp_path: Path) -> None:
    trace = full()
    for name in ("one.csv", "one.csv.gz", "two.csv.gz"):
        export.write(trace, tmp_path / name)
    packed = (tmp_path / "one.csv.gz").read_bytes()
    assert gzip.decompress(packed) == (tmp_path / "one.csv").read_bytes()
    assert packed == (tmp_path / "two.csv.gz").read_bytes()


def test_the_published_trace_written_as_json_lines_is_the_published_file(shared: Path, tmp_path: Path) -> None:
    source = shared / "traces" / "mooncake-fast25" / "conversation_trace.jsonl"
    trace = load(source)
    export.write(trace, tmp_path / "t.jsonl")
    assert (tmp_path / "t.jsonl").read_bytes() == source.read_bytes().replace(b" ", b"").rstrip(b"\n") + b"\n"
    for name in ("t.parquet", "t.csv"):
        export.write(trace, tmp_path / name)
        assert load(tmp_path / name) == trace


@pytest.mark.parametrize("name", ["", " a", "a\t", "two\nlines", "two\rlines", "two\u2028lines", "a\0b"])
def test_request_ids_that_csv_would_change_are_refused(tmp_path: Path, name: str) -> None:
    trace = trace_of([[1], [2]], [0, 1], request_id=("fine", name))
    with pytest.raises(TraceError, match=r"row 1 \(the first is 0\), field 'request_id': found .*; CSV cannot hold"):
        export.write(trace, tmp_path / "t.csv")
    assert not list(tmp_path.iterdir())
    export.write(trace, tmp_path / "t.jsonl")
    assert_same(read_back(trace, tmp_path / "t.jsonl"), trace)


# ---- files


def test_a_file_that_exists_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("mine")
    with pytest.raises(TraceError, match=r"t\.csv' exists; choose another name, or --force to replace it"):
        export.write(full(), path)
    assert path.read_text() == "mine"
    export.write(full(), path, force=True)
    assert path.read_text().startswith("arrival_ms")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("t.zip", r"its ending is '\.zip'; expected \.arrow, \.parquet, \.csv, \.jsonl"),
        ("trace", "it has no ending; expected"),
        ("t.arrow.gz", r"arrow is compressed by itself; leave \.gz out"),
        ("absent/t.csv", "no folder '.*absent'; make it first"),
        (".", "its ending|is a directory|no ending"),
    ],
)
def test_a_name_that_says_nothing_is_refused(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        export.write(full(), tmp_path / name)


def test_a_kind_can_be_named_and_must_be_known(tmp_path: Path) -> None:
    export.write(full(), tmp_path / "plain", "csv")
    assert_same(load(tmp_path / "plain", 2, "ms"), full())
    with pytest.raises(TraceError, match="no writer for 'parket'; did you mean 'parquet'\\?; there are arrow, parquet"):
        export.write(full(), tmp_path / "t", "parket")


@pytest.mark.parametrize("name", FILES)
def test_when_writing_fails_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / name).write_text("old")

    def broken(self: Path, target: Any) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", broken)
    with pytest.raises(TraceError, match=r"cannot be written: .*No space left on device"):
        export.write(full(), tmp_path / name, force=True)
    assert [item.name for item in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "old"


def test_text_kinds_go_to_a_stream_and_others_do_not(tmp_path: Path) -> None:
    sink = io.BytesIO()
    export.write_text(full(), sink, "csv")
    export.write(full(), tmp_path / "t.csv")
    assert sink.getvalue() == (tmp_path / "t.csv").read_bytes()
    with pytest.raises(TraceError, match="arrow cannot be written to a stream; expected csv or mooncake"):
        export.write_text(full(), sink, "arrow")


def test_the_first_rows_are_plain_values() -> None:
    assert export.first_rows(full(), 2) == [
        {"request_id": 'Zürich, "quoted"', "arrival_ms": 0, "input_tokens": 3, "output_tokens": 1,
         "session_id": 2**62, "priority": -(2**63), "delay_ms": None, "block_ids": [0, 1]},
        {"request_id": "two words", "arrival_ms": 0.001, "input_tokens": 2, "output_tokens": 1,
         "session_id": None, "priority": 0, "delay_ms": 0.1, "block_ids": [0]},
    ]  # fmt: skip
    assert len(export.first_rows(full(), 99)) == 3
