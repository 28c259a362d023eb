"""Malformed files of every format, each with the one line it gets: a table of bytes and what is said of them."""

# ruff: noqa: E501 - one case a line
from __future__ import annotations

import gzip
import os
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from trace_files import (
    AZURE_2023,
    BAILIAN,
    BURSTGPT,
    BURSTGPT_3,
    MAPPED_CSV,
    MAPPED_JSONL,
    MOONCAKE,
    MOONCAKE_SESSIONS,
    PARQUET,
    PLAIN_CSV,
    PLAIN_JSONL,
    SPLITWISE_SIM,
    VIDUR,
    Sample,
    arrow_bytes,
    parquet_bytes,
)

from mooncake_bench.errors import TraceError
from mooncake_bench.trace import load

if TYPE_CHECKING:
    from fault_tools import Tool

TOKENS = "expected an integer >= 1 (tokens)"
LENGTH = "expected a number of tokens from 1 to 1000000000"
DATE = "expected a date such as 2023-11-16 18:17:03.9799600"
SECONDS = "expected a number >= 0 (seconds)"
FINITE = "expected a finite number >= 0"
IDS = "expected a list of integers from 0 to 2**63 - 1"

# file -> rows of (what is replaced, by what, what is said after "FILE, ")
REPLACED: list[tuple[Sample, list[tuple[str, str, str]]]] = [
    (
        AZURE_2023,
        [
            ("3180", "12.0", f"line 3, field 'ContextTokens': found '12.0'; {TOKENS}"),
            ("3180", "1,024", "line 3: found 4 fields, '2023-11-16 18:17:03.9804800,1,024,8'; expected 3"),
            ("3180", '"1,024"', f"line 3, field 'ContextTokens': found '1,024'; {TOKENS}"),
            ("3180", "", f"line 3, field 'ContextTokens': found ''; {TOKENS}"),
            ("3180", "NA", f"line 3, field 'ContextTokens': found 'NA'; {TOKENS}"),
            ("3180", "nan", f"line 3, field 'ContextTokens': found 'nan'; {TOKENS}"),
            ("3180", "+5", f"line 3, field 'ContextTokens': found '+5'; {TOKENS}"),
            ("3180", "1e3", f"line 3, field 'ContextTokens': found '1e3'; {TOKENS}"),
            ("3180", "0x10", f"line 3, field 'ContextTokens': found '0x10'; {TOKENS}"),
            ("3180", "4 5", f"line 3, field 'ContextTokens': found '4 5'; {TOKENS}"),
            ("3180", "\0", f"line 3, field 'ContextTokens': found '\\x00'; {TOKENS}"),
            ("3180", "１２", f"line 3, field 'ContextTokens': found '１２'; {TOKENS}"),
            ("3180", "-5", f"line 3, field 'ContextTokens': found -5; {LENGTH}"),
            ("3180", "0", f"line 3, field 'ContextTokens': found 0; {LENGTH}"),
            ("3180", str(2**31 * 1000), f"line 3, field 'ContextTokens': found 2147483648000; {LENGTH}"),
            ("3180", str(2**63), f"line 3, field 'ContextTokens': found 9223372036854775808; {TOKENS}: 64-bit"),
            ("3180", "9" * 5000, f"line 3, field 'ContextTokens': found '{'9' * 60}…'; {TOKENS}"),
            ("110,27", "110", "line 4: found 2 fields, '2023-11-16 18:17:04.0781490,110'; expected 3"),
            ("110,27", "110,27,", "line 4: found 4 fields"),
            ("3180", '"3180', "line 3: found '2023-11-16 18:17:03.9804800,\"3180,8' (unexpected end of data); expected"),
            ("04.0781490", "04.07814901234", f"line 4, field 'TIMESTAMP': found '2023-11-16 18:17:04.07814901234'; {DATE}"),
            ("2023-11-16 18:17:04", "2023-02-30 18:17:04", "line 4, field 'TIMESTAMP': found '2023-02-30 18:17:04.078"),
            ("2023-11-16 18:17:04", "0001-11-16 18:17:04", "line 4, field 'TIMESTAMP': found '0001-11-16 18:17:04.078"),
            ("2023-11-16 18:17:04", "2023-11-16 18:17:60", "line 4, field 'TIMESTAMP': found '2023-11-16 18:17:60.078"),
            ("04.0781490", "04.0781490Z", f"line 4, field 'TIMESTAMP': found '2023-11-16 18:17:04.0781490Z'; {DATE}, without"),
            ("2023-11-16 18:17:04.0781490", "1700158624", f"line 4, field 'TIMESTAMP': found '1700158624'; {DATE}"),
            ("2023-11-16 18:17:04.0781490", "2023-11-16 18:17", f"line 4, field 'TIMESTAMP': found '2023-11-16 18:17'; {DATE}"),
            ("2023-11-16 18:17:04.0781490", "", f"line 4, field 'TIMESTAMP': found ''; {DATE}"),
            ("TIMESTAMP", "Timestamp", "line 1, field 'TIMESTAMP': missing; found the columns 'Timestamp', 'ContextTokens', "
             "'GeneratedTokens': is it 'Timestamp'?; expected a date"),
            (",GeneratedTokens", "", f"line 1, field 'GeneratedTokens': missing; found the columns 'TIMESTAMP', "
             f"'ContextTokens'; {TOKENS}"),
            ("GeneratedTokens", "GeneratedTokens,ContextTokens", "line 1, field 'ContextTokens': found the name twice"),
        ],
    ),
    (
        VIDUR,
        [
            ("0.052", "nan", f"line 3, field 'arrived_at': found nan; {FINITE}"),
            ("0.052", "-inf", f"line 3, field 'arrived_at': found -inf; {FINITE}"),
            ("0.052", "1e999", f"line 3, field 'arrived_at': found inf; {FINITE}"),
            ("0.052", "-1", f"line 3, field 'arrived_at': found -1.0; {FINITE}"),
            ("0.052", "abc", f"line 3, field 'arrived_at': found 'abc'; {SECONDS}"),
            ("0.052", "", f"line 3, field 'arrived_at': found ''; {SECONDS}"),
            ("0.052", "1_0", f"line 3, field 'arrived_at': found '1_0'; {SECONDS}"),
            ("0.052", "2023-11-16 18:17:04", f"line 3, field 'arrived_at': found '2023-11-16 18:17:04'; {SECONDS}"),
            ("0.052", "1e300", "line 3, field 'arrived_at': found 1e+300; expected a time at most 1e+14 ms after"),
        ],
    ),
    (
        BURSTGPT,
        [
            ("417", "0", f"line 4, field 'Request tokens': found 0; {LENGTH}"),
            ("276", "-1", f"line 4, field 'Response tokens': found -1; {LENGTH}"),
            ("276", "x", "line 4, field 'Response tokens': found 'x'; expected an integer >= 0 (tokens; 0: the request"),
            ("Timestamp", "Time", "line 1, field 'Timestamp': missing; found the columns 'Time', "),
        ],
    ),
    (BURSTGPT_3, [("118.0,a7", "118.0,-7", "line 4, field 'Session ID': found -7; expected a text, or an integer from 0")]),
    (
        SPLITWISE_SIM,
        [
            ("\n1,2", "\n1,1", "line 3, field 'request_type': found 1; expected 2 (GENERATIVE_LLM), the only type"),
            ("3,1,2048", "3,4,2048", "line 3, field 'batch_size': found 4; expected 1: one request a row"),
            ("\n2,2", "\n1,2", "line 4, field 'request_id': found '1', already used in line 3; expected an id of its own"),
            ("\n2,2", "\n ,2", "line 4, field 'request_id': found ''; expected an id"),
        ],
    ),
    (
        PLAIN_CSV,
        [
            ("600", "'600'", f"line 2, field 'input_tokens': found \"'600'\"; {TOKENS}"),
            ("\n10,", "\n2024-05-10 00:00:00,", "line 3, field 'arrival_ms': found '40'; expected a date such as"),
            ("40", "2024-05-10 00:00:00", "line 3, field 'arrival_ms': found '2024-05-10 00:00:00'; expected a number >= 0"),
        ],
    ),
    (
        MAPPED_CSV,
        [
            ("1;3;4", "1;3;x", "line 4, field 'hashes': found 'x'; expected a list of ids"),
            ("1;3;4", "1;3;3", "line 4, field 'hashes': found id 3 twice; expected each id at most once in a row"),
            ("1;3;4", "", "line 4, field 'hashes': found 0 ids for 1025 input tokens; expected ceil(1025 / 512) = 3 ids"),
            ("1;3;4", "1;3;-4", "line 4, field 'hashes': found -4; expected ids from 0 to 2**63 - 1"),
            ("2,1.5", "2,soon", "line 4, field 'wait': found 'soon'; expected a number >= 0 (ms after the session's"),
            ("2,1.5", "2,-2", "line 4, field 'wait': found -2.0; expected a number >= 0 (ms after the session's"),
            ("4,7,2", "4,-7,2", "line 4, field 'conv': found -7; expected a text, or an integer from 0 to 2**63 - 1"),
            ("c,41", "a,41", "line 4, field 'rid': found 'a', already used in line 2"),
            ("c,41", ",41", "line 4, field 'rid': found ''; expected a text or an integer, one in every row"),
            (",-1,,y", ",,,y", "line 3, field 'p': found ''; expected an integer"),
        ],
    ),
    (
        BAILIAN,
        [
            ('"chat_id": 11', '"chat_id": -3', "line 2, field 'chat_id': found -3; expected a text, or an integer from 0"),
            ('_id": 10, "ti', '_id": -2, "ti', "line 3, field 'parent_chat_id': found -2; expected the chat_id of the previous"),
            ('_id": 10, "ti', '_id": null, "ti', "line 3, field 'parent_chat_id': found null; expected the chat_id of the"),
            ('"parent_chat_id": 10, ', "", "line 3, field 'parent_chat_id': missing; found the fields 'chat_id', 'timestamp'"),
            ("[0, 1, 4, 5]", "[0, 1, 4]", "line 3, field 'hash_ids': found 3 ids for 49 input tokens; expected ceil(49 / 16)"),
            ("[0, 1, 4, 5]", "[0, 1, 1, 5]", "line 3, field 'hash_ids': found id 1 twice"),
            ("[0, 1, 4, 5]", '[0, 1, "a", 5]', f"line 3, field 'hash_ids': found the text 'a' in the list; {IDS}"),
            ("61.5", '"61.5"', f"line 3, field 'timestamp': found the text '61.5'; {SECONDS}"),
        ],
    ),
    (
        MOONCAKE_SESSIONS,
        [
            ('"delay": 250, ', "", "line 3, field 'timestamp': missing; found the fields 'session_id'"),
            ('250, "session_id": "a"', '250, "session_id": "c"', "line 3, field 'timestamp': found none, and a delay after "
             "no earlier turn of its session; expected a number >= 0 (ms) in the first turn of each session"),
            ('250, "session_id": "a"', "250", "line 3, field 'timestamp': found none, and a delay after no earlier turn"),
            ("250", "-1", "line 3, field 'delay': found -1; expected a number >= 0 (ms after the session's previous answer)"),
            ("250", '"x"', "line 3, field 'delay': found the text 'x'; expected a number >= 0 (ms after"),
            ("250", "1e999", "line 3, field 'delay': found Infinity; expected a number >= 0 (ms after"),
            ('["x"]', "[5]", "line 2, field 'hash_ids': found 5 in the list; expected a list of texts, as in the first row"),
            ('"z", "w"', '"z", "z"', "line 3, field 'hash_ids': found id 2 twice"),
        ],
    ),
    (
        PLAIN_JSONL,
        [
            ('"input_tokens": 512', '"input_tokens": 512.0', f"line 2, field 'input_tokens': found 512.0; {TOKENS}"),
            ("[1]", '"1"', f"line 2, field 'block_ids': found the text '1'; {IDS}"),
            ("[1]", "[9223372036854775808]", f"line 2, field 'block_ids': found 9223372036854775808; {IDS}: 64-bit signed at "
             "most; larger ids can be given as texts"),
            ("40", '"40"', "line 2, field 'arrival_ms': found the text '40'; expected a number >= 0"),
            ('"arrival_ms": 40, ', "", "line 2, field 'arrival_ms': missing; found the fields 'input_tokens'"),
            ("}\n", "}{}\n", "line 1: found '{\"arrival_ms\": 10"),
        ],
    ),
    (
        MAPPED_JSONL,
        [
            ('00:00:00.03"', '00:00:00.03Z"', f"line 2, field 'ts': found '2024-05-10 00:00:00.03Z'; {DATE}, without a zone"),
            ('"2024-05-10 00:00:00.03"', "5", f"line 2, field 'ts': found 5; {DATE}"),
            ("2024-05-10 00:00:00.03", "2024-02-31 00:00:00.03", f"line 2, field 'ts': found '2024-02-31 00:00:00.03'; {DATE}"),
            ('["p"]', "[1]", "line 2, field 'hashes': found 1 in the list; expected a list of texts, as in the first row"),
            ('"rid": 2', '"rid": ""', "line 2, field 'rid': found an empty text; expected a text or an integer, one in"),
            ('"rid": 2, ', "", "line 2, field 'rid': missing; found the fields 'ts'"),
        ],
    ),
]  # fmt: skip
CASES = [(sample, *row) for sample, rows in REPLACED for row in rows]

A = AZURE_2023.data
WHOLE: list[tuple[str, bytes, str]] = [
    ("nothing", b"", ": found an empty file; expected at least one request"),
    ("blanks", b"\xef\xbb\xbf \r\n\n\t", ": found an empty file; expected at least one request"),
    ("a header alone", A.split(b"\r\n")[0], ": found 0 requests; expected at least one"),
    ("a header and blanks", A.split(b"\r\n")[0] + b"\r\n\r\n \n", ": found 0 requests; expected at least one"),
    ("semicolons", A.replace(b",", b";"), "; its fields are separated by semicolons where commas should be; for other"),
    ("tabs", A.replace(b",", b"\t"), "; its fields are separated by tabs where commas should be; for other"),
    ("CR alone", A.replace(b"\r\n", b"\r"), "; its lines end in CR alone where LF or CRLF should be; for other"),
    ("a CR in a row", A.replace(b",8\r\n", b",8\r"), ", line 3: found '2023-11-16 18:17:03.9804800,3180,8"),
    ("no header", b"1,2,3\n4,5,6\n", "found '1,2,3'; expected an Arrow trace of this tool, or .*; its first line must name the"),
    ("names of nobody", b"ts,in,out\n1,2,3\n", "found 'ts,in,out'; expected .*; for other column names: --column arrival=NAME,"),
    ("not UTF-8", A.replace(b"3180", b"\xff"), ", line 3: found byte 0xff, which is not UTF-8; expected UTF-8 text"),
    ("UTF-16", A.decode().encode("utf-16"), ", line 1: found byte 0xff, which is not UTF-8; expected UTF-8 text"),
    ("lengths alone", b"num_prefill_tokens,num_decode_tokens\n5,6\n", ": a Vidur file of lengths alone, .* traces synth --lengths"),
    ("zip", b"PK\x03\x04abc", ": found a zip archive; unpack it first"),
    ("xz", b"\xfd7zXZ\x00\xff", ": found an xz file; unpack it first (gzip and zstd are read as they are)"),
    ("bzip2", b"BZh91AY&SY", ": found a bzip2 file; unpack it first"),
    ("tar", b"a" * 257 + b"ustar" + b"\0" * 300, ": found a tar archive; unpack it first"),
    ("a pointer of git LFS", b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", ": found a pointer of git LFS"),
    ("a web page", b"<!DOCTYPE html><html>", ": found a web page; download the file itself"),
    ("gzip in gzip", gzip.compress(gzip.compress(A)), ": found a gzip file inside another; expand it once"),
    ("gzip cut", gzip.compress(A)[:60], ": the gzip file is truncated (60 bytes); fetch or copy it again"),
    ("gzip with a wrong sum", gzip.compress(A)[:-8] + b"\1" * 8, ": the gzip file is damaged (CRC check failed"),
    ("gzip and more", gzip.compress(A) + b"more", ": the gzip file is damaged (Not a gzipped file"),
    ("zstd cut", pa.compress(A, codec="zstd", asbytes=True)[:60], ": the zstd file is truncated (60 bytes); fetch or copy"),
    ("zstd that is none", b"\x28\xb5\x2f\xfd" + b"z" * 20, ": the zstd file is damaged (ZSTD decompress failed"),
    ("parquet in gzip", gzip.compress(PARQUET.data), ": a parquet file inside another, or in a pipe; expand it to a file"),
    ("parquet cut", PARQUET.data[:-9], ": the parquet file is damaged (Parquet magic bytes not found in footer"),
    ("parquet's first bytes", b"PAR1", ": the parquet file is damaged (Parquet file size is 4 bytes"),
    ("Arrow's first bytes", b"ARROW1\0\0", ": the Arrow file is damaged ("),
]  # fmt: skip

ROW_1 = ", row 1 (the first is 0), field "
COLUMNS: dict[str, Any] = {"arrival_ms": [0.0, 1.0], "input_tokens": [1, 2], "output_tokens": [1, 1]}
IN_PARQUET: list[tuple[dict[str, Any], str]] = [
    ({"input_tokens": [1, None]}, f"{ROW_1}'input_tokens': found null; {TOKENS}"),
    ({"input_tokens": [1, 0]}, f"{ROW_1}'input_tokens': found 0; {LENGTH}"),
    ({"input_tokens": [1.0, 2.0]}, f", field 'input_tokens': found type double; {TOKENS}"),
    ({"input_tokens": ["1", "2"]}, f", field 'input_tokens': found type string; {TOKENS}"),
    ({"input_tokens": pa.array([1, 2**63], pa.uint64())}, f"{ROW_1}'input_tokens': found 9223372036854775808; {TOKENS}"),
    ({"arrival_ms": [0.0, float("nan")]}, f"{ROW_1}'arrival_ms': found nan; {FINITE}"),
    ({"arrival_ms": [0.0, None]}, f"{ROW_1}'arrival_ms': found null; expected a number >= 0, or a date"),
    ({"arrival_ms": ["a", "b"]}, ", field 'arrival_ms': found type string; expected a number >= 0, or a date"),
    ({"output_tokens": None}, ", field 'output_tokens': missing; found 'arrival_ms', 'input_tokens'"),
    ({"block_ids": [[1], [None]]}, f"{ROW_1}'block_ids': found null in the list; expected a list of ids"),
    ({"block_ids": [[1], None]}, f"{ROW_1}'block_ids': found null; expected a list of ids"),
    ({"block_ids": [[1], []]}, f"{ROW_1}'block_ids': found 0 ids for 2 input tokens; expected ceil(2 / 512) = 1 ids"),
    ({"block_ids": pa.array([[1], [2**63]], pa.list_(pa.uint64()))}, f"{ROW_1}'block_ids': found 9223372036854775808, beyond"),
    ({"block_ids": [[1.5], [2.0]]}, ", field 'block_ids': found type list<element: double>; expected a list of ids"),
    ({"block_ids": ["1", "x"]}, f"{ROW_1}'block_ids': found 'x'; expected a list of ids"),
    ({"session_id": [4, -1]}, f"{ROW_1}'session_id': found -1; expected an integer from 0 to 2**63 - 1, or a text"),
    ({"request_id": ["a", None]}, f"{ROW_1}'request_id': found nothing; expected a text or an integer, one in every row"),
    ({"request_id": ["a", "a"]}, f"{ROW_1}'request_id': found 'a', already used in row 0 (the first is 0)"),
    ({"delay_ms": [1.0, -1.0]}, f"{ROW_1}'delay_ms': found -1.0; expected a number >= 0 (ms after the session's previous"),
    ({name: pa.array([], pa.int64()) for name in COLUMNS}, ": found 0 requests; expected at least one"),
]  # fmt: skip


def refusal(path: Path, data: bytes, **options: Any) -> str:
    """What is said of a file; its own path in it becomes FILE."""
    path.write_bytes(data)
    with pytest.raises(TraceError) as caught:
        load(path, **options)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 700
    return text.replace(str(path), "FILE")


def said(pattern: str, text: str) -> bool:
    """Whether a line says the words, ``.*`` for any between."""
    return re.search(".*".join(map(re.escape, pattern.split(".*"))), text) is not None


@pytest.mark.parametrize(("sample", "old", "new", "message"), CASES)
def test_a_bad_value_is_named_by_line_and_field_with_found_and_expected(
    tmp_path: Path, sample: Sample, old: str, new: str, message: str
) -> None:
    assert old.encode() in sample.data
    data = sample.data.replace(old.encode(), new.encode(), 1)
    text = refusal(tmp_path / sample.name, data, **sample.options)
    assert text.startswith(f"FILE, {message}"), text


@pytest.mark.parametrize(("sample", "old", "new", "message"), CASES)
def test_the_line_is_right_in_every_piece_of_a_file_and_after_blank_lines(
    tmp_path: Path, sample: Sample, old: str, new: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = sample.data.replace(old.encode(), new.encode(), 1)
    moved = re.sub(r"line (\d)", lambda found: f"line {2 * int(found[1])}", message)  # a blank line before each line
    monkeypatch.setattr("mooncake_bench.trace.pieces.PIECE_BYTES", 30)
    text = refusal(tmp_path / sample.name, b"\n" + data.replace(b"\n", b"\n\n"), **sample.options)
    assert text.startswith(f"FILE, {moved}"), text


@pytest.mark.parametrize(("what", "data", "message"), WHOLE, ids=[row[0] for row in WHOLE])
def test_a_file_that_is_no_trace_gets_one_line(tmp_path: Path, what: str, data: bytes, message: str) -> None:
    assert said(message, refusal(tmp_path / "t", data))


@pytest.mark.parametrize(("changed", "message"), IN_PARQUET)
def test_a_bad_column_of_a_parquet_file_gets_one_line(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    columns = {name: column for name, column in (COLUMNS | changed).items() if column is not None}
    assert said(f"FILE{message}", refusal(tmp_path / "t.parquet", parquet_bytes(**columns)))


def test_a_wrong_block_size_names_the_right_one(tmp_path: Path) -> None:
    text = refusal(tmp_path / "t", BAILIAN.data, block_tokens=512)
    assert text.endswith("at block size 512; every row fits block size 16: use --block-size 16")


def test_prompts_that_would_need_too_many_ids_of_their_own_are_refused_at_once(tmp_path: Path) -> None:
    rows = b"".join(b"%d,1000000000,1\n" % at for at in range(10))
    text = refusal(tmp_path / "t", b"arrival_ms,input_tokens,output_tokens\n" + rows, block_tokens=1)
    assert said("FILE: 10,000,000,000 blocks of 1 tokens need an id of their own.*use a larger --block-size", text)


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
@pytest.mark.parametrize(
    "filling", [b"\n", b"\0", MOONCAKE.data.splitlines(keepends=True)[0]], ids=["LF", "NUL", "rows"]
)
def test_a_compressed_file_that_expands_without_end_is_refused_at_a_stated_limit(
    tmp_path: Path, packing: str, filling: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mooncake_bench.trace.pieces.RATIO_FROM_BYTES", 2**22)
    monkeypatch.setattr("mooncake_bench.trace.pieces.PIECE_BYTES", 2**20)
    text = filling * (2**23 // len(filling))
    data = gzip.compress(text) if packing == "gzip" else pa.compress(text, codec="zstd", asbytes=True)
    assert len(data) * 200 < len(text) or filling != b"\n"
    refused = refusal(tmp_path / "t", data)
    limit = r"FILE: expands to more than 200 times its size \([0-9,]+ bytes gave [0-9,]+\), the limit for a compressed"
    assert re.match(limit, refused), refused


def test_a_compressed_file_beyond_the_size_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mooncake_bench.trace.pieces.MAX_EXPANDED_BYTES", 200)
    text = refusal(tmp_path / "t", gzip.compress(MOONCAKE.data))
    assert text == (
        "FILE: expands to more than 200 bytes, the limit for a compressed trace file; expand it yourself to read it"
    )
    (tmp_path / "plain").write_bytes(MOONCAKE.data)  # a file that is not compressed may be larger
    assert len(load(tmp_path / "plain")) == 3


def test_a_line_without_end_is_refused_at_a_stated_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mooncake_bench.trace.pieces.PIECE_BYTES", 1000)
    monkeypatch.setattr("mooncake_bench.trace.pieces.MAX_LINE_BYTES", 5000)
    text = refusal(tmp_path / "t", MOONCAKE.data + b'{"timestamp": [' + b"7," * 9000)
    assert text == "FILE, line 4: found a line of more than 5,000 bytes, the limit for one request"


def test_a_full_temporary_folder_gets_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: Tool) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mooncake_bench.spool.LARGE_BYTES", 8)
    monkeypatch.setattr("tempfile.TemporaryFile", full)
    (tmp_path / "t.jsonl").write_bytes(MOONCAKE.data)
    done = tool("traces", "info", "t.jsonl")
    assert done.code == 2
    assert "No space left on device" in done.err
    assert done.err.count("\n") == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes, which this system has not")
def test_a_pipe_is_read_once_from_beginning_to_end(tmp_path: Path) -> None:
    for sample in (MOONCAKE, AZURE_2023):
        pipe = tmp_path / f"pipe-{sample.name}"
        os.mkfifo(pipe)
        writer = threading.Thread(target=pipe.write_bytes, args=(sample.data,))
        writer.start()
        assert load(pipe).input_tokens.tolist() == sample.input_tokens
        writer.join()


def test_a_bad_file_leaves_nothing_behind_and_ends_with_2(tool: Tool, tmp_path: Path) -> None:
    bad = AZURE_2023.data.replace(b"3180", b"12.0")
    (tmp_path / "t.csv").write_bytes(bad)
    for words in (["replay", "t.csv"], ["traces", "info", "t.csv"]):
        done = tool(*words)
        assert (done.code, done.out) == (2, "")
        assert done.err == f"mooncake-bench: t.csv, line 3, field 'ContextTokens': found '12.0'; {TOKENS}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_damage_anywhere_in_an_arrow_file_gets_one_line(tmp_path: Path) -> None:
    whole = arrow_bytes(tmp_path)
    for size in range(6, len(whole), 97):
        refusal(tmp_path / "t", whole[:size])
