"""Every foreign format: what is read from small files, from the published ones, and through every command."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from fault_tools import latest
from trace_files import (
    AZURE_2023,
    AZURE_2024,
    BAILIAN,
    BURSTGPT,
    BURSTGPT_3,
    MAPPED_CSV,
    MAPPED_JSONL,
    MAPPING,
    MOONCAKE,
    MOONCAKE_SESSIONS,
    PARQUET,
    PLAIN_CSV,
    PLAIN_JSONL,
    SAMPLES,
    SPLITWISE_SIM,
    TEXTS,
    VIDUR,
    Sample,
    arrow_bytes,
    parquet_bytes,
)  # fmt: skip

from mooncake_bench import replay
from mooncake_bench.errors import SetupError, TraceError
from mooncake_bench.trace import Trace, load
from mooncake_bench.trace.export import write as export
from mooncake_bench.trace.formats import all_formats
from mooncake_bench.trace.formats.mooncake import encode, encode_rows

if TYPE_CHECKING:
    from fault_tools import Tool

every_sample = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
every_text = pytest.mark.parametrize("sample", TEXTS, ids=lambda sample: sample.name)


def put(folder: Path, sample: Sample, data: bytes | None = None, name: str | None = None) -> Path:
    path = folder / (name or sample.name)
    path.write_bytes(sample.data if data is None else data)
    return path


def read(folder: Path, sample: Sample, data: bytes | None = None, **options: Any) -> Trace:
    return load(put(folder, sample, data), **(sample.options | options))


def ids(trace: Trace) -> list[list[int]]:
    return [trace.blocks(row).tolist() for row in range(len(trace))]


# ---- what is read


@every_sample
def test_a_small_file_of_every_format_gives_the_columns_it_says(tmp_path: Path, sample: Sample) -> None:
    trace = read(tmp_path, sample)
    assert trace.arrival_ms.tolist() == sample.arrival_ms
    assert trace.input_tokens.tolist() == sample.input_tokens
    assert trace.output_tokens.tolist() == sample.output_tokens
    assert trace.has_prefix_ids == sample.prefix_ids
    assert trace.metadata["source"] == sample.name
    assert trace.name == sample.name.split(".")[0]


@pytest.mark.parametrize("sample", [sample for sample in SAMPLES if not sample.prefix_ids], ids=lambda item: item.name)
def test_a_source_without_prefix_ids_gets_one_id_a_block_and_one_notice_that_says_so(
    tmp_path: Path, sample: Sample
) -> None:
    trace = read(tmp_path, sample)
    blocks = sum(-(-tokens // 512) for tokens in sample.input_tokens)
    assert trace.block_ids.tolist() == list(range(blocks))
    assert [notice for notice in trace.notices if "no prefix ids" in notice] == [
        f"{tmp_path / sample.name}: the source has no prefix ids: each block gets an id of its own, none is shared"
    ]
    small = read(tmp_path, sample, block_tokens=16)
    assert len(small.block_ids) == sum(-(-tokens // 16) for tokens in sample.input_tokens)
    assert small.block_tokens == 16


def test_every_format_names_itself_and_says_what_it_is_where_it_comes_from_and_under_which_licence() -> None:
    formats = list(all_formats())
    assert len({kind.NAME for kind in formats}) == len(formats) == 9
    for kind in formats:
        about = " ".join((kind.__doc__ or "").split())
        assert "licence" in about or "Published" in about, kind.NAME
        assert "ms" in about or "SECONDS" in about or "ticks" in about, kind.NAME


@every_sample
def test_no_file_is_taken_for_two_formats(sample: Sample) -> None:
    taken = [kind.NAME for kind in all_formats() if kind.recognises(sample.data)]
    assert len(taken) == (0 if sample.options else 1), taken


def test_bailian_chats_become_sessions_by_their_first_turn_and_ids(tmp_path: Path) -> None:
    trace = read(tmp_path, BAILIAN)
    assert trace.block_tokens == 16
    assert trace.session_id is not None
    assert trace.session_id.tolist() == [10, 11, 10]
    assert trace.request_id == ("10", "11", "12")
    assert ids(trace) == [[0, 1, 2], [3], [0, 1, 4, 5]]
    assert trace.notices == ()


def chat(number: Any, parent: Any, at: float = 0, **more: Any) -> bytes:
    row = {"chat_id": number, "parent_chat_id": parent, "timestamp": at, "input_length": 1, "output_length": 1}
    return json.dumps(row | {"hash_ids": [0]} | more).encode() + b"\n"


def test_a_bailian_parent_that_is_not_in_the_file_is_counted_and_stands_for_the_session(tmp_path: Path) -> None:
    # 5 and 6 follow 4, which is absent; 7 follows 6; 9 stands before its parent 8
    data = chat(5, 4) + chat(6, 4) + chat(7, 6) + chat(9, 8) + chat(8, -1)
    trace = read(tmp_path, BAILIAN, data)
    assert trace.session_id is not None
    assert trace.session_id.tolist() == [4, 4, 4, 8, 8]
    assert any("2 requests follow one that is not in the file" in notice for notice in trace.notices)


def test_bailian_chats_named_twice_keep_row_numbers_as_ids(tmp_path: Path) -> None:
    trace = read(tmp_path, BAILIAN, chat("a", -1) + chat("b", "a") + chat("b", "a"))
    assert trace.session_id is not None
    assert trace.session_id.tolist() == [0, 0, 0]
    assert trace.request_id is None
    assert any("1 rows repeat a chat_id" in notice for notice in trace.notices)


def test_bailian_parents_in_a_circle_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"line 2, field 'parent_chat_id': found 3, which leads back to itself"):
        read(tmp_path, BAILIAN, chat(1, -1) + chat(2, 3) + chat(3, 2))


def test_bailian_chains_of_many_turns_lead_to_one_session(tmp_path: Path) -> None:
    data = b"".join(chat(number, number - 1) for number in range(5000))  # the first has parent -1
    trace = read(tmp_path, BAILIAN, data)
    assert trace.session_id is not None
    assert set(trace.session_id.tolist()) == {0}


def test_burstgpt_failures_are_counted_left_out_and_the_others_keep_their_row_as_id(tmp_path: Path) -> None:
    trace = read(tmp_path, BURSTGPT)
    assert trace.request_ids() == ("0", "2")
    assert any("1 of 3 requests failed (0 response tokens): left out" in notice for notice in trace.notices)
    assert trace.metadata["failures"] == "1 of 3 left out"
    with pytest.raises(TraceError, match=r"line 3, field 'Response tokens': found 0, a request that failed"):
        read(tmp_path, BURSTGPT, failures="error")


def test_burstgpt_failures_alone_are_no_trace(tmp_path: Path) -> None:
    data = BURSTGPT.data.splitlines(keepends=True)
    with pytest.raises(TraceError, match=r"found 0 requests; expected at least one \(1 of 1 requests failed"):
        read(tmp_path, BURSTGPT, data[0] + data[2])


def test_burstgpt_3_sessions_are_kept_and_api_calls_stand_alone(tmp_path: Path) -> None:
    trace = read(tmp_path, BURSTGPT_3)
    assert trace.session_id is not None
    assert trace.session_id.tolist() == [0, -1, 0]
    assert any("1 rows have no Session ID: each stands alone" in notice for notice in trace.notices)
    numbers = read(tmp_path, BURSTGPT_3, BURSTGPT_3.data.replace(b"a7", b"42").replace(b",,", b",7,"))
    assert numbers.session_id is not None
    assert numbers.session_id.tolist() == [42, 7, 42]


@pytest.mark.parametrize(
    ("digits", "ns"), [("", 0), (".5", 5 * 10**8), (".1234567", 123456700), (".123456789", 123456789)]
)
def test_dates_are_read_exactly_to_the_last_of_nine_digits(tmp_path: Path, digits: str, ns: int) -> None:
    data = f"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1,1\n2023-11-16 18:17:03{digits},1,1\n"
    assert read(tmp_path, AZURE_2023, data.encode()).arrival_ms.tolist() == [0, ns / 10**6]


def test_dates_may_have_a_t_a_z_or_an_offset_and_cross_midnight_in_a_leap_year(tmp_path: Path) -> None:
    lines = ["2024-02-28T23:59:59.5Z,1,1", "2024-02-29T00:00:00+00:00,1,1", "2024-02-29T02:00:01+02:00,1,1"]
    data = "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]).encode()
    assert read(tmp_path, AZURE_2024, data).arrival_ms.tolist() == [0, 500, 1500]


def test_mooncake_turns_with_a_delay_alone_follow_their_session_in_file_order(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 100, "session_id": 1},
        {"timestamp": 90, "session_id": 2, "delay": 3},
        {"delay": 5, "session_id": 1},  # 100 + 5
        {"delay": 1.5, "session_id": 1},  # 105 + 1.5
        {"delay": 40, "session_id": 2},  # 90 + 40
    ]
    data = b"".join(json.dumps(row | {"input_length": 1, "output_length": 1, "hash_ids": [n]}).encode() + b"\n"
                    for n, row in enumerate(rows))  # fmt: skip
    trace = read(tmp_path, MOONCAKE, data)
    assert trace.arrival_ms.tolist() == [0, 10, 15, 16.5, 40]
    assert ids(trace) == [[1], [0], [2], [3], [4]]
    assert trace.delay_ms is not None
    np.testing.assert_array_equal(trace.delay_ms, [3, np.nan, 5, 1.5, 40])
    assert trace.request_ids() == ("1", "0", "2", "3", "4")
    assert any("3 later turns have a delay and no timestamp" in notice for notice in trace.notices)
    assert any("a replay goes by the arrival times, but in a closed loop" in notice for notice in trace.notices)


def test_text_ids_are_numbered_by_first_appearance_and_the_metadata_says_so(tmp_path: Path) -> None:
    trace = read(tmp_path, MOONCAKE_SESSIONS)
    assert ids(trace) == [[0, 1], [0], [0, 2, 3]]
    assert trace.metadata["block_ids"] == "4 texts numbered by first appearance"
    bailian = BAILIAN.data.replace(b"[0, 1, 2]", b'["x", "y", "z"]').replace(b"[3]", b'["w"]')
    trace = read(tmp_path, BAILIAN, bailian.replace(b"[0, 1, 4, 5]", b'["x", "y", "v", "u"]'))
    assert ids(trace) == [[0, 1, 2], [3], [0, 1, 4, 5]]


def test_plain_files_give_every_column_that_the_mapping_names(tmp_path: Path) -> None:
    trace = read(tmp_path, MAPPED_CSV)
    assert ids(trace) == [[1, 2], [1], [1, 3, 4]]
    assert trace.request_id == ("a", "b", "c")
    assert trace.session_id is not None
    assert trace.session_id.tolist() == [7, -1, 7]
    assert trace.priority is not None
    assert trace.priority.tolist() == [0, -1, 2]
    assert trace.delay_ms is not None
    np.testing.assert_array_equal(trace.delay_ms, [np.nan, np.nan, 1.5])
    assert any(notice.endswith("ignored columns that mean nothing here: 'note'") for notice in trace.notices)
    other = read(tmp_path, MAPPED_JSONL)
    assert ids(other) == [[0, 1], [0], [0, 2, 3]]
    assert other.request_id == ("1", "2", "3")
    assert other.session_id is not None
    assert other.session_id.tolist() == [0, -1, 0]
    assert other.priority is not None
    assert other.priority.tolist() == [1, 0, 1]


@pytest.mark.parametrize("written", ["1 2", "1;2", '"1,2"', '"[1, 2]"', " 1  2 ", '"(1; 2)"'])
def test_block_lists_in_csv_may_be_written_in_several_ways(tmp_path: Path, written: str) -> None:
    data = f"arrival_ms,input_tokens,output_tokens,block_ids\n0,600,1,{written}\n".encode()
    assert ids(read(tmp_path, PLAIN_CSV, data)) == [[1, 2]]


def test_block_texts_in_csv_are_numbered_and_ids_beyond_int64_are_such_texts(tmp_path: Path) -> None:
    data = f"arrival_ms,input_tokens,output_tokens,block_ids\n0,600,1,{2**63} 5\n1,1,1,5\n2,1,1,0x5\n".encode()
    trace = read(tmp_path, PLAIN_CSV, data)
    assert ids(trace) == [[0, 1], [1], [2]]
    assert any("block ids are texts: 3 numbered by first appearance" in notice for notice in trace.notices)


def test_session_names_07_and_7_stay_two_sessions(tmp_path: Path) -> None:
    data = b"arrival_ms,input_tokens,output_tokens,session_id\n0,1,1,7\n1,1,1,07\n2,1,1,7\n"
    trace = read(tmp_path, PLAIN_CSV, data)
    assert trace.session_id is not None
    assert trace.session_id.tolist() == [0, 1, 0]


def test_a_mapping_may_hold_names_with_commas(tmp_path: Path) -> None:
    data = b'"a,b",in,out\n5,1,1\n9,1,1\n'
    assert read(tmp_path, PLAIN_CSV, data, columns="arrival=a,b,input=in,output=out").arrival_ms.tolist() == [0, 4]


@pytest.mark.parametrize("resolution", ["s", "ms", "us", "ns"])
def test_parquet_timestamps_of_any_resolution_are_exact(tmp_path: Path, resolution: str) -> None:
    stamps = pa.array([1_700_000_000, 1_700_000_007], pa.int64()).cast(pa.timestamp("s")).cast(pa.timestamp(resolution))
    data = parquet_bytes(t=stamps, i=pa.array([5, 6], pa.uint64()), o=pa.array([1, 2], pa.int8()))
    trace = read(tmp_path, PARQUET, data, columns="arrival=t,input=i,output=o")
    assert trace.arrival_ms.tolist() == [0, 7000]
    assert not trace.has_prefix_ids


def test_columns_that_are_not_read_are_said_and_block_ids_are_known_by_their_names(tmp_path: Path) -> None:
    data = parquet_bytes(arrival_ms=[0, 1], input_tokens=[6, 5], output_tokens=[1, 1], hash_ids=[[1], [2]], note=[1, 2])
    hint = "'hash_ids' looks like block ids; to read them: --column blocks=hash_ids"
    notices = read(tmp_path, PLAIN_CSV, data).notices
    assert any(one.endswith("ignored columns that mean nothing here: 'hash_ids', 'note'") for one in notices)
    assert any(one.endswith(hint) for one in notices)
    mapped = read(tmp_path, PLAIN_CSV, data, columns="blocks=hash_ids")
    assert ids(mapped) == [[1], [2]]
    assert [one.partition(": ")[2] for one in mapped.notices if "arrival" not in one] == [
        "ignored columns that mean nothing here: 'note'"
    ]
    csv = b"arrival_ms,input_tokens,output_tokens,hash_ids\n0,6,1,1\n1,5,1,2\n"
    rows = b'{"arrival_ms": 0, "input_tokens": 6, "output_tokens": 1, "hashes": [1]}\n'
    for text, name in ((csv, "hash_ids"), (rows, "hashes")):
        found = read(tmp_path, PLAIN_CSV, text).notices
        assert any(one.endswith(hint.replace("hash_ids", name)) for one in found)


def test_parquet_texts_and_lists_of_texts_are_block_ids(tmp_path: Path) -> None:
    for blocks in (pa.array(["1 2", "1"]), pa.array([[1, 2], [1]], pa.large_list(pa.uint32()))):
        data = parquet_bytes(arrival_ms=[0, 1], input_tokens=[600, 5], output_tokens=[1, 1], block_ids=blocks)
        assert ids(read(tmp_path, PARQUET, data)) == [[1, 2], [1]]
    named = parquet_bytes(arrival_ms=[0, 1], input_tokens=[600, 5], output_tokens=[1, 1], block_ids=[["k", "j"], ["j"]])
    assert ids(read(tmp_path, PARQUET, named)) == [[0, 1], [1]]


# ---- how it is packed, and how large it is


@every_text
@pytest.mark.parametrize("packing", ["gzip", "zstd", "gzip members"])
def test_every_text_is_read_the_same_when_it_is_compressed(tmp_path: Path, sample: Sample, packing: str) -> None:
    half = sample.data.index(b"\n") + 1
    packed = {
        "gzip": gzip.compress(sample.data),
        "zstd": pa.compress(sample.data, codec="zstd", asbytes=True),
        "gzip members": gzip.compress(sample.data[:half]) + gzip.compress(sample.data[half:]),
    }
    trace = load(put(tmp_path, sample, packed[packing], "packed"), **sample.options)
    assert trace == read(tmp_path, sample)


@every_text
@pytest.mark.parametrize("piece_bytes", [1, 40, 150])
def test_a_file_read_in_small_pieces_is_the_same_trace(
    tmp_path: Path, sample: Sample, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = read(tmp_path, sample)
    monkeypatch.setattr("mooncake_bench.trace.pieces.PIECE_BYTES", piece_bytes)
    pieces = read(tmp_path, sample)
    assert pieces == whole
    assert pieces.notices == whole.notices
    assert pieces.request_ids() == whole.request_ids()


@every_text
def test_blank_lines_line_ends_and_a_byte_order_mark_change_nothing(tmp_path: Path, sample: Sample) -> None:
    plain = sample.data.replace(b"\r\n", b"\n").rstrip(b"\n")
    whole = read(tmp_path, sample)
    for data in (
        plain,
        plain + b"\n\n  \n",
        plain.replace(b"\n", b"\r\n"),
        b"\n \n" + plain.replace(b"\n", b"\n\n"),
        b"\xef\xbb\xbf" + plain,
    ):
        assert read(tmp_path, sample, data) == whole


def test_large_columns_lie_in_a_file_and_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = b"".join(
        b'{"timestamp": %d, "input_length": 1500, "output_length": 1, "hash_ids": [%d, %d, %d]}\n'
        % ((row * 7919) % 2000, row % 5, 3 * row + 10, 3 * row + 9)
        for row in range(2000)
    )
    whole = read(tmp_path, MOONCAKE, rows)
    monkeypatch.setattr("mooncake_bench.spool.LARGE_BYTES", 64)
    monkeypatch.setattr("mooncake_bench.spool.PART_ROWS", 100)
    monkeypatch.setattr("mooncake_bench.trace.pieces.PIECE_BYTES", 5000)
    mapped = read(tmp_path, MOONCAKE, rows)
    assert mapped == whole
    # row by row as the file has them, sorted by time, equal times in file order
    expected = sorted(((row * 7919) % 2000, row) for row in range(2000))
    assert ids(mapped) == [[row % 5, 3 * row + 10, 3 * row + 9] for _, row in expected]


def test_a_line_of_three_megabytes_is_read(tmp_path: Path) -> None:
    blocks = 400_000
    row = {"timestamp": 0, "input_length": blocks, "output_length": 1, "hash_ids": list(range(blocks))}
    data = json.dumps(row).encode()
    assert len(data) > 3_000_000
    assert len(read(tmp_path, MOONCAKE, data, block_tokens=1).block_ids) == blocks
    text = " ".join(map(str, range(blocks)))
    csv = f"arrival_ms,input_tokens,output_tokens,block_ids\n0,{blocks},1,{text}\n 1,1,1,0x7\n".encode()
    trace = read(tmp_path, PLAIN_CSV, csv.replace(b" 1,1,1,0x7\n", b"1,1,1,7\n"), block_tokens=1)
    assert len(trace.block_ids) == blocks + 1
    assert trace.input_tokens.tolist() == [blocks, 1]


# ---- options


def test_an_option_without_effect_on_the_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.arrow").write_bytes(arrow_bytes(tmp_path))
    cases: list[tuple[Path, dict[str, Any], str]] = [
        (tmp_path / "t.arrow", {"columns": "arrival=x"}, "--column has no effect on an Arrow trace"),
        (tmp_path / "t.arrow", {"failures": "error"}, "--failures has no effect on an Arrow trace"),
        (put(tmp_path, VIDUR), {"failures": "error"}, "--failures has no effect on Vidur CSV"),
        (put(tmp_path, MOONCAKE), {"failures": "error"}, "--failures has no effect on Mooncake JSONL"),
        (put(tmp_path, AZURE_2023), {"timestamp_unit": "s"}, "its times are dates, which need no unit; found .* 's'"),
    ]
    for path, options, message in cases:
        with pytest.raises(TraceError, match=message):
            load(path, **options)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("arrival", "--column: expected NAME=COLUMN, got 'arrival'; write arrival=NAME,input=NAME"),
        ("arrival=", "--column: expected NAME=COLUMN, got 'arrival='"),
        ("arival=a", "--column: no key 'arival'; known: arrival, input, .*, delay; did you mean 'arrival'"),
        ("input=n,hash_ids=h", "--column: no key 'hash_ids'; known: arrival, input, output, blocks, session, priority"),
        ("arrival=a,arrival=b", "--column: arrival is given twice"),
        ("arrival=a,input=a", "--column: column 'a' is given twice; a column is one thing"),
        (
            "arrival=a,input=b,output=c",
            r"line 1, field 'a': missing; found 'arrival_ms', .*; expected .*--column arrival=",
        ),
        ("blocks=hashes", "field 'hashes': missing; found 'arrival_ms'"),
    ],
)
def test_a_mapping_that_cannot_be_used_gets_one_line(tmp_path: Path, columns: str, message: str) -> None:
    with pytest.raises(TraceError, match=message) as caught:
        read(tmp_path, PLAIN_CSV, columns=columns)
    assert "\n" not in str(caught.value)


def test_a_mapping_overrides_what_the_format_looks_like(tmp_path: Path) -> None:
    trace = read(tmp_path, VIDUR, columns="arrival=arrived_at,input=num_prefill_tokens,output=num_decode_tokens",
                 timestamp_unit="s")  # fmt: skip
    assert trace.arrival_ms.tolist() == VIDUR.arrival_ms
    assert trace.metadata["format"] == "plain-csv"


def test_the_mapping_and_failures_are_settings_of_a_run_and_of_the_python_interface(tmp_path: Path) -> None:
    run = replay(put(tmp_path, MAPPED_CSV), columns=MAPPING)
    assert run.manifest["setup"]["trace.columns"] == MAPPING
    assert run.manifest["setup"]["trace.failures"] == "exclude"
    assert replay(put(tmp_path, MAPPED_CSV), column=MAPPING).completed_requests == 3
    with pytest.raises(TraceError, match="a request that failed"):
        replay(put(tmp_path, BURSTGPT), failures="error")
    with pytest.raises(SetupError, match="columns: no effect on a Trace that is loaded already"):
        replay(read(tmp_path, MAPPED_CSV), columns=MAPPING)


def test_a_run_of_a_mapped_file_is_repeated_as_it_was_read(tool: Tool, tmp_path: Path) -> None:
    path = str(put(tmp_path, MAPPED_CSV))
    assert tool("replay", path, *MAPPED_CSV.flags, "--cluster", "1P+1D", "-q").code == 0
    first = latest()
    assert tool("replay", "--from", "@last", "-q").code == 0
    assert latest().manifest["setup"] == first.manifest["setup"]
    assert latest().manifest["content_sha256"] == first.manifest["content_sha256"]
    again = tool("replay", path, "--from", "@last", "--column", MAPPING.replace(",delay=wait", ""))
    assert again.code == 0, again.err  # the repeated trace is the one that run read


# ---- every format through every command


def commands(path: str, flags: tuple[str, ...], folder: Path) -> dict[str, list[str]]:
    """Command lines that take a TRACE, by name."""
    return {
        "replay": ["replay", path, *flags, "--cluster", "1P+1D", "-q"],
        "traces info": ["traces", "info", path, *flags],
        "traces check": ["traces", "check", path, *flags],
        "traces head": ["traces", "head", path, *flags],
        "traces convert": ["traces", "convert", path, str(folder / "out.arrow"), *flags],
        "traces slice": ["traces", "slice", path, str(folder / "part.arrow"), *flags, "--max-requests", "1"],
        "traces scale": ["traces", "scale", path, str(folder / "fast.arrow"), *flags, "--by", "time", "--factor", "2"],
        "cache": ["cache", path, *flags, "-p", "lru", "--capacity", "2"],
    }


@every_sample
@pytest.mark.parametrize("command", list(commands("", (), Path())))
def test_every_format_goes_through_every_command(tool: Tool, tmp_path: Path, sample: Sample, command: str) -> None:
    done = tool(*commands(str(put(tmp_path, sample)), sample.flags, tmp_path)[command])
    if command == "cache" and not sample.prefix_ids:
        assert done.code == 3
        assert "the source has no prefix ids" in done.err
        return
    assert done.code == 0, done.err
    if command == "replay":  # no request or token is lost
        assert latest().requests["input_tokens"].to_pylist() == sample.input_tokens
        assert latest().requests["output_tokens"].to_pylist() == sample.output_tokens
        assert set(latest().requests["status"].to_pylist()) == {"completed"}
    else:
        assert done.out or (tmp_path / "out.arrow").exists()


@every_sample
@pytest.mark.parametrize("ending", ["arrow", "parquet", "csv", "jsonl"])
def test_what_is_read_and_written_and_read_again_is_the_same_trace(tmp_path: Path, sample: Sample, ending: str) -> None:
    trace = read(tmp_path, sample)
    export(trace, tmp_path / f"out.{ending}")
    sizes = {} if ending in ("arrow", "parquet") else {"block_tokens": trace.block_tokens}
    again = load(tmp_path / f"out.{ending}", **sizes)
    assert again == trace
    assert again.has_prefix_ids == trace.has_prefix_ids or ending == "jsonl"
    if ending in ("arrow", "parquet"):
        assert (again.name, again.metadata, again.notices) == (trace.name, trace.metadata, trace.notices)


def test_mooncake_rows_are_encoded_piece_by_piece_as_at_once(tmp_path: Path) -> None:
    trace = read(tmp_path, MAPPED_CSV)
    assert encode(trace) == encode_rows(trace, 0, 2) + encode_rows(trace, 2, 3)
    assert read(tmp_path, MOONCAKE, encode(trace)) == trace


def test_optional_columns_that_hold_nothing_survive_mooncake_jsonl(tmp_path: Path) -> None:
    empty = Trace(
        "t", [0.0, 1.0], [1, 1], [1, 1], [0, 1, 2], [0, 1], session_id=[-1, -1], delay_ms=[np.nan, np.nan]
    )  # type: ignore[arg-type]  # fmt: skip
    assert read(tmp_path, MOONCAKE, encode(empty)) == empty


# ---- the published files

PUBLISHED = {
    "azure2023-code": "azure-llm-2023/AzureLLMInferenceTrace_code.csv",
    "azure2023-conv": "azure-llm-2023/AzureLLMInferenceTrace_conv.csv",
    "vidur-splitwise_code": "vidur/splitwise_code.csv",
    "vidur-splitwise_conv": "vidur/splitwise_conv.csv",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_files_of_lengths_have_every_number_of_the_oracle(shared: Path, name: str) -> None:
    oracle = json.loads((shared / "oracles" / "length-traces.json").read_text("utf-8"))[name]
    trace = load(shared / "traces" / PUBLISHED[name])
    assert len(trace) == oracle["rows"]
    assert trace.metadata["source_sha256"] == oracle["sha256"]
    for column, values in (("input", trace.input_tokens), ("output", trace.output_tokens)):
        expected = oracle[column]
        assert int(values.sum()) == expected["sum"]
        assert (int(values.min()), int(values.max())) == (expected["min"], expected["max"])
        assert float(values.mean()) == pytest.approx(expected["mean"], rel=1e-15)
        for q in (50, 90, 99):
            assert float(np.percentile(values, q)) == pytest.approx(expected[f"p{q}"], rel=1e-15)
    assert trace.span_ms == pytest.approx(oracle["time"]["duration_s"] * 1000, rel=1e-15)
    assert len(np.unique(trace.arrival_ms)) == oracle["time"]["distinct"]
    assert (np.diff(trace.arrival_ms) > 0).all()


def test_vidur_files_are_the_azure_files_to_the_microsecond(shared: Path) -> None:
    for kind in ("code", "conv"):
        azure, vidur = (load(shared / "traces" / PUBLISHED[f"{name}_{kind}" if name[0] == "v" else f"{name}-{kind}"])
                        for name in ("azure2023", "vidur-splitwise"))  # fmt: skip
        np.testing.assert_array_equal(azure.input_tokens, vidur.input_tokens)
        np.testing.assert_array_equal(azure.output_tokens, vidur.output_tokens)
        np.testing.assert_allclose(azure.arrival_ms, vidur.arrival_ms, rtol=0, atol=1e-3)


def test_azure_ticks_are_exact(shared: Path) -> None:
    path = shared / "traces" / PUBLISHED["azure2023-conv"]
    trace, ticks = load(path), []
    for line in path.read_text("ascii").splitlines()[1:]:  # of 100 ns since midnight, by hand
        hours, minutes, seconds = line[11:27].split(":")
        whole, digits = seconds.split(".")
        ticks.append((int(hours) * 3600 + int(minutes) * 60 + int(whole)) * 10**7 + int(digits))
    assert trace.arrival_ms.tolist() == [(tick - ticks[0]) / 10**4 for tick in ticks]


def test_lengths_without_arrivals_are_refused_with_what_to_do(shared: Path) -> None:
    (path,) = (shared / "traces" / "vidur").glob("arxiv*.csv")
    with pytest.raises(TraceError, match=r"lengths alone, .*'arrived_at': .* traces synth --lengths .*arxiv"):
        load(path)


def test_the_splitwise_sim_sample_is_read(shared: Path) -> None:
    trace = load(shared / "traces" / "splitwise-sim" / "test_trace.csv")
    assert trace.arrival_ms.tolist() == [0, 2000, 3000]
    assert trace.input_tokens.tolist() == [4096, 2048, 2048]
    assert trace.request_id == ("0", "1", "2")


def test_splitwise_sim_takes_a_request_at_time_zero_and_one_output_token(tmp_path: Path) -> None:
    trace = read(tmp_path, SPLITWISE_SIM)
    assert trace.arrival_ms[0] == 0
    assert trace.output_tokens[1] == 1
    assert ids(read(tmp_path, PLAIN_JSONL)) == [[1, 2], [1], [1, 3, 4]]
