"""Mooncake JSONL: what is read, and the one line each bad file gets."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mooncake_bench.errors import TraceError
from mooncake_bench.trace import load
from mooncake_bench.trace.formats import Source
from mooncake_bench.trace.formats.mooncake import read
from mooncake_bench.trace.schema import finish

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Write = Callable[..., Path]

GOOD = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
MISSING = object()


def line(**changes: Any) -> str:
    """A good row with some fields replaced, or left out when MISSING."""
    return json.dumps({key: value for key, value in (GOOD | changes).items() if value is not MISSING})


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to_file(*lines: str | bytes, name: str = "t.jsonl") -> Path:
        path = tmp_path / name
        raw = [text if isinstance(text, bytes) else text.encode() + b"\n" for text in lines]
        path.write_bytes(b"".join(raw))
        return path

    return to_file


def test_rows_become_columns_with_times_from_the_first_arrival(write: Write) -> None:
    trace = load(write(line(timestamp=100), line(timestamp=100.25, input_length=512, hash_ids=[1], output_length=9)))
    assert trace.name == "t"
    assert trace.arrival_ms.tolist() == [0.0, 0.25]
    assert trace.input_tokens.tolist() == [600, 512]
    assert trace.output_tokens.tolist() == [5, 9]
    assert trace.blocks(0).tolist() == [1, 2]
    assert trace.blocks(1).tolist() == [1]
    assert trace.block_tokens == 512
    assert trace.notices == ()
    assert trace.metadata["first_timestamp"] == "100.0"


def test_optional_fields_become_columns(write: Write) -> None:
    rows = [line(session_id=7, priority=-1, request_id="x"), line(session_id=9, priority=2, request_id=5)]
    trace = load(write(*rows))
    assert trace.session_id is not None
    assert trace.session_id.tolist() == [7, 9]
    assert trace.priority is not None
    assert trace.priority.tolist() == [-1, 2]
    assert trace.request_id == ("x", "5")


def test_session_names_are_numbered_by_first_appearance(write: Write) -> None:
    trace = load(write(line(session_id="b"), line(session_id="a"), line(session_id="b")))
    assert trace.session_id is not None
    assert trace.session_id.tolist() == [0, 1, 0]


def test_rows_without_a_session_or_priority_among_others_are_named_in_a_notice(write: Write) -> None:
    trace = load(write(line(session_id=4, priority=1), line()))
    assert trace.session_id is not None
    assert trace.session_id.tolist() == [4, -1]
    assert trace.priority is not None
    assert trace.priority.tolist() == [1, 0]
    assert any("1 rows have no session_id" in notice for notice in trace.notices)
    assert any("1 rows have no priority: they get 0" in notice for notice in trace.notices)


def test_a_key_that_only_looks_optional_inside_a_text_is_not_one(write: Write) -> None:
    trace = load(write(line(request_id='"priority": 4')))
    assert trace.request_id == ('"priority": 4',)
    assert trace.priority is None


def test_gzip_is_recognised_by_content_whatever_the_name(write: Write) -> None:
    packed = write(gzip.compress((line() + "\n").encode()), name="packed.jsonl")
    assert load(packed) == load(write(line()))


def test_the_name_of_a_gzip_file_loses_both_endings(write: Write) -> None:
    assert load(write(gzip.compress(line().encode()), name="a.b.jsonl.gz")).name == "a.b"


@pytest.mark.parametrize(
    "raw",
    [
        b"\xef\xbb\xbf" + line().encode(),
        b"\n\n" + line().encode() + b"\n   \n\n",
        line().encode() + b"\r\n",
        line(note="caf\u00e9").encode("utf-8"),
        json.dumps(GOOD | {"note": "café"}, ensure_ascii=False).encode("utf-8"),
    ],
    ids=["byte-order mark", "blank lines", "CRLF", "escaped", "UTF-8"],
)
def test_harmless_variations_read_the_same(write: Write, raw: bytes) -> None:
    assert load(write(raw)) == load(write(line(), name="plain.jsonl"))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (line(timestamp=MISSING), "field 'timestamp': missing; found the fields 'input_length'.*expected a number"),
        (line(output_length=MISSING, output_tokens=5),
         "field 'output_length': missing; found 'output_tokens' in its place.*rename it.*; expected an integer >= 1"),
        (line(input_length=MISSING, input_lenght=5), "field 'input_length': missing.*is it 'input_lenght'?"),
        (line(hash_ids=MISSING), "field 'hash_ids': missing.*expected a list of integers"),
        ("{}", "field 'timestamp': missing; found the fields none"),
        (line(timestamp=float("nan")), "field 'timestamp': found NaN; expected a number >= 0"),
        (line(timestamp=float("inf")), "field 'timestamp': found Infinity"),
        (line().replace('"timestamp": 0', '"timestamp": 1e999'), "field 'timestamp': found Infinity"),
        (line(timestamp=-1), "field 'timestamp': found -1; expected a finite number >= 0"),
        (line(timestamp=-0.5), "field 'timestamp': found -0.5; expected a finite number >= 0"),
        (line(timestamp=10**30), "field 'timestamp': found 10{30}; expected .*64-bit"),
        (line(timestamp="0"), "field 'timestamp': found the text '0'; expected a number"),
        (line(timestamp=True), "field 'timestamp': found true"),
        (line(timestamp=None), "field 'timestamp': found null"),
        (line(input_length="600"), "field 'input_length': found the text '600'; expected an integer"),
        (line(input_length=600.5), "field 'input_length': found 600.5; expected an integer"),
        (line(input_length=0, hash_ids=[]), "field 'input_length': found 0; expected a number of tokens from 1"),
        (line(input_length=-5), "field 'input_length': found -5; expected a number of tokens from 1"),
        (line(input_length=10**15), "field 'input_length': found 10{15}; expected a number of tokens from 1 to 10{9}"),
        (line(output_length=0), "field 'output_length': found 0; expected a number of tokens from 1"),
        (line(output_length=None), "field 'output_length': found null"),
        (line(hash_ids=[1]), r"field 'hash_ids': found 1 id for 600 input tokens; expected ceil\(600 / 512\) = 2 ids"),
        (line(hash_ids=[1, 2, 3]), "field 'hash_ids': found 3 ids for 600 input tokens"),
        (line(hash_ids=[]), "field 'hash_ids': found 0 ids for 600 input tokens"),
        (line(hash_ids=[4, 4]), "field 'hash_ids': found id 4 twice; expected each id at most once in a row"),
        (line(hash_ids=[9, 4, 9], input_length=1100), "field 'hash_ids': found id 9 twice"),
        (line(hash_ids=[1, -1]), r"field 'hash_ids': found -1; expected ids from 0 to 2\*\*63 - 1"),
        (line(hash_ids=[1, 2**63]), "field 'hash_ids': found 9223372036854775808; expected .*64-bit"),
        (line(hash_ids=[1, 2**64]), "field 'hash_ids': found 18446744073709551616; expected .*64-bit"),
        (line(hash_ids=[1, 10**60]), "field 'hash_ids': found a number of more than 40 digits"),
        (line(hash_ids=["a", "b"]), "field 'hash_ids': found the text 'a' in the list"),
        (line(hash_ids=[1, None]), "field 'hash_ids': found null in the list"),
        (line(hash_ids=[1, 2.0]), "field 'hash_ids': found 2.0 in the list"),
        (line(hash_ids=7), "field 'hash_ids': found 7; expected a list"),
        (line(hash_ids={"a": 1}), "field 'hash_ids': found an object"),
        (line(session_id=1.5), "field 'session_id': found 1.5; expected an integer or a text"),
        (line(session_id=-4), "field 'session_id': found -4; expected a text, or an integer from 0"),
        (line(session_id=2**63), "field 'session_id': found 9223372036854775808"),
        (line(priority="high"), "field 'priority': found the text 'high'; expected an integer"),
        (line(priority=2**63), "field 'priority': found 9223372036854775808; expected an integer: 64-bit"),
        (line(request_id=[1]), "field 'request_id': found a list"),
        ("[1, 2]", "found a list; expected one object a line with timestamp, input_length, output_length, hash_ids"),
        ("hello", "found 'hello', which is not JSON"),
        ('{"timestamp": 1, "inp', "which is not JSON .*truncated"),
        pytest.param("[" * 50_000, "(which is not JSON|found a list)", id="deep nesting"),
        (line() + line(), "which is not JSON .*trailing characters"),
        ("\x00\x01", "which is not JSON"),
    ],
)  # fmt: skip
def test_a_bad_row_is_named_by_line_and_field_with_found_and_expected(write: Write, bad: str, message: str) -> None:
    path = write(line(), "", bad, line(timestamp=5))  # the bad row stands on line 3; the blank line counts
    with pytest.raises(TraceError, match=r"t\.jsonl, line 3[,:] .*" + message) as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_request_ids_must_be_there_in_every_row_or_in_none(write: Write) -> None:
    with pytest.raises(TraceError, match="line 2, field 'request_id': found none; expected one in every row"):
        load(write(line(request_id="a"), line()))


def test_a_request_id_used_twice_names_both_lines(write: Write) -> None:
    with pytest.raises(TraceError, match="line 3, field 'request_id': found 'a', already used in line 1"):
        load(write(line(request_id="a"), line(request_id="b"), line(request_id="a")))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "found an empty file; expected at least one request"),
        (b" \n\n", "found an empty file"),
        (gzip.compress(b"", mtime=0), "found an empty file"),
        (line().encode() + b'\n{"a": "\xe9"}', "line 2: found byte 0xe9, which is not UTF-8"),
        (line().encode("utf-16"), "line 1: found byte 0xff, which is not UTF-8"),
        (gzip.compress(line().encode() * 999, mtime=0)[:40], r"the gzip file is truncated \(40 bytes\)"),
        (gzip.compress(line().encode() * 999, mtime=0)[:20] + b"zz" * 40, "the gzip file is (damaged|truncated)"),
        (b"time,tokens\n1,2\n", "line 1: found 'time,tokens'; expected an Arrow trace of this tool, .*Mooncake JSONL"),
        (b'{\n "timestamp": 1,\n "input_length": 5\n}', "line 1: found '{', which is not JSON .*one object a line"),
        (f"[{line()}]".encode(), "line 1: found a list; expected one object a line"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_trace_gets_one_line(write: Write, raw: bytes, message: str) -> None:
    with pytest.raises(TraceError, match=r"t\.jsonl.*" + message) as caught:
        load(write(raw))
    assert "\n" not in str(caught.value)


def test_a_compressed_file_that_expands_beyond_the_limit_is_refused(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mooncake_bench.trace.pieces.MAX_EXPANDED_BYTES", 10_000)
    with pytest.raises(TraceError, match="expands to more than 10,000 bytes, the limit"):
        load(write(gzip.compress(b"\n" * 10_001)))


def test_ids_that_differ_above_bit_31_stay_distinct(write: Write) -> None:
    ids = [5, 5 + 2**31, 5 + 2**32, 5 + 2**62, 2**63 - 1]
    trace = load(write(line(input_length=5 * 512, hash_ids=ids)))
    assert trace.block_ids.tolist() == ids


def test_rows_out_of_order_are_sorted_stably_with_a_notice(write: Write) -> None:
    rows = [(30, [1]), (10, [2]), (30, [3]), (10, [4]), (20, [5, 6])]
    text = [line(timestamp=at, input_length=512 * len(ids), hash_ids=ids, request_id=str(ids[0])) for at, ids in rows]
    trace = load(write(*text))
    assert trace.arrival_ms.tolist() == [0, 0, 10, 20, 20]
    assert [trace.blocks(row).tolist() for row in range(5)] == [[2], [4], [5, 6], [1], [3]]
    assert trace.request_id == ("2", "4", "5", "1", "3")
    assert trace.notices == (
        "rows were not in order of arrival (2 arrive before their predecessor): "
        "sorted by timestamp, equal times in file order",
    )


def test_unknown_fields_are_ignored_with_one_notice_that_counts_them(write: Write) -> None:
    trace = load(write(line(pause=5, note={"a:b": "c"}), line(pause=7)))
    (notice,) = trace.notices
    assert notice.endswith("ignored fields that mean nothing here: 'note' (1 rows), 'pause' (2 rows)")


def test_a_coarse_arrival_grid_is_reported(write: Write) -> None:
    # 30 requests, three at each of ten times 3 s apart: 20 of the 29 gaps are 0
    trace = load(write(*(line(timestamp=3000 * (row // 3)) for row in range(30))))
    assert trace.notices == ("arrivals lie on a coarse grid: 10 distinct times for 30 requests, about 3000 ms apart",)


@pytest.mark.parametrize(
    ("gap_ms", "rate"),
    [(1e6, "0.002/s"), (0.01, "2e+05/s")],  # two requests a gap apart: 2 / gap
)
def test_an_unlikely_mean_rate_is_reported(write: Write, gap_ms: float, rate: str) -> None:
    trace = load(write(line(), line(timestamp=gap_ms)))
    (notice,) = trace.notices
    assert notice.startswith(f"mean arrival rate is {rate}, outside 0.01 to 10,000/s: is the timestamp unit right?")


@pytest.mark.parametrize(
    ("stamps", "rate"),
    [
        ([0, 0.25, 0.5, 1], "4,000"),  # 4 requests in 1 ms
        ([at for at in range(30) for _ in range(4)], "4,138"),  # 120 in 29 ms, no fraction
    ],
)
def test_timestamps_that_look_like_seconds_are_noted_unless_the_unit_is_given(
    write: Write, stamps: list[float], rate: str
) -> None:
    path = write("\n".join(line(timestamp=at) for at in stamps))
    assert load(path).notices[0].startswith(f"timestamps look like seconds: read as ms they are {rate} requests/s;")
    for unit in ("s", "ms"):
        assert not any("look like seconds" in notice for notice in load(path, timestamp_unit=unit).notices)


def seeded_gaps(count: int, mean: float, digits: int) -> list[float]:
    """Times of a Poisson process of ``count`` requests, the mean gap given, rounded to so many digits."""
    at = np.cumsum(np.random.default_rng(1).exponential(mean, count)).round(digits)
    return [int(one) if digits == 0 else float(one) for one in at]


@pytest.mark.parametrize(
    ("stamps", "rate"),
    [
        ([2.5 * at for at in range(51)], "408"),  # 51 in 125
        ([1.5 * at for at in range(60)], "678"),  # 60 in 88.5
        ([2.0 * at for at in range(200)], "503"),  # 200 in 398, whole
        ([2 * at for at in range(50)], "510"),
        ([10.0 * at + 0.5 * (at % 2) for at in range(3000)], "100"),  # 3,000 in 29,990.5
    ],
)
def test_a_short_trace_that_is_busy_all_the_time_looks_like_seconds(
    write: Write, stamps: list[float], rate: str
) -> None:
    path = write("\n".join(line(timestamp=at) for at in stamps))
    assert load(path).notices[0].startswith(f"timestamps look like seconds: read as ms they are {rate} requests/s;")
    for unit in ("s", "ms"):
        assert not any("look like seconds" in notice for notice in load(path, timestamp_unit=unit).notices)


@pytest.mark.parametrize(
    "stamps",
    [
        seeded_gaps(1000, 2.5, 0),  # 400/s in whole ms
        seeded_gaps(5000, 4.0, 0),
        seeded_gaps(20_000, 10.0, 0),
        seeded_gaps(300, 4.0, 0),  # 250/s
        seeded_gaps(300, 40.0, 3),  # 25/s, fractions
        seeded_gaps(19, 2.5, 2),  # too few
        [60.5 * (at // 10) for at in range(20_000)],  # 165/s for two minutes
    ],
)
def test_busy_services_in_milliseconds_are_believed(write: Write, stamps: list[float]) -> None:
    notices = load(write("\n".join(line(timestamp=at) for at in stamps))).notices
    assert not any("look like seconds" in notice for notice in notices)


@pytest.mark.parametrize(("name", "doubted"), [("arrival_ms", False), ("ts", True)])
def test_a_column_that_is_named_ms_is_believed(tmp_path: Path, name: str, doubted: bool) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{name},input_tokens,output_tokens\n" + "".join(f"{2.5 * at},5,5\n" for at in range(51)))
    notices = load(path, columns=f"arrival={name}").notices
    assert any("look like seconds" in notice for notice in notices) == doubted


@pytest.mark.parametrize("stamps", [[0, 0, 1], [0, 1.5, 3], [0, 0.001, 2.5]])
def test_a_few_whole_or_far_enough_milliseconds_are_believed(write: Write, stamps: list[float]) -> None:
    assert not load(write("\n".join(line(timestamp=at) for at in stamps))).notices


@pytest.mark.parametrize(
    ("unit", "stamps", "expected_ms"),
    [
        ("s", [2, 2.5], [0, 500]),
        ("ms", [2, 2.5], [0, 0.5]),
        ("us", [2000, 2500], [0, 0.5]),
        ("ns", [2_000_000, 2_500_000], [0, 0.5]),
        ("auto", [2000, 2500], [0, 500]),
    ],
)
def test_timestamps_are_converted_from_the_unit_given(
    write: Write, unit: str, stamps: list[float], expected_ms: list[float]
) -> None:
    trace = load(write(*(line(timestamp=at) for at in stamps)), timestamp_unit=unit)
    assert trace.arrival_ms.tolist() == expected_ms
    assert trace.metadata["timestamp_unit_given"] == unit


@pytest.mark.parametrize(
    ("first", "unit", "per_ms"),
    [(1_700_000_000, "s", 0.001), (1_700_000_000_123, "ms", 1), (1_700_000_000_123_456, "us", 1000),
     (1_700_000_000_123_456_789, "ns", 1_000_000)],
)  # fmt: skip
def test_wall_clock_times_are_recognised_rebased_exactly_and_recorded(
    write: Write, first: int, unit: str, per_ms: float
) -> None:
    trace = load(write(line(timestamp=first), line(timestamp=first + int(5000 * per_ms))))
    assert trace.arrival_ms.tolist() == [0, 5000]
    assert trace.metadata["timestamp_unit"] == unit
    assert trace.metadata["first_timestamp"] == str(first)
    assert any(f"read as wall-clock time in {unit}" in notice for notice in trace.notices)


def test_sub_millisecond_arrivals_keep_their_exact_distance_and_order(write: Write) -> None:
    stamps = [0, 0.001, 0.0011, 0.3, 0.30000000000000004]
    assert load(write(*(line(timestamp=at) for at in stamps))).arrival_ms.tolist() == stamps


def test_an_unknown_timestamp_unit_names_the_known_ones(write: Write) -> None:
    with pytest.raises(TraceError, match="timestamp unit 'mss' is not one of auto, s, ms, us, ns; did you mean 'ms'"):
        load(write(line()), timestamp_unit="mss")


def test_another_block_size_is_honoured_and_a_wrong_one_suggests_the_right_one(write: Write) -> None:
    path = write(line(input_length=20, hash_ids=[1, 2]))  # ceil(20 / 16) = 2
    assert load(path, block_tokens=16).block_tokens == 16
    with pytest.raises(TraceError, match=r"expected ceil\(20 / 512\) = 1 .*fits block size 16: use --block-size 16"):
        load(path)
    with pytest.raises(TraceError, match="block size is 0 tokens; expected from 1 to"):
        load(path, block_tokens=0)


def test_a_missing_file_suggests_a_bundled_name_or_a_neighbour_and_how_to_list(write: Write) -> None:
    with pytest.raises(TraceError, match=r"no such file.*did you mean 'conversation-like'\?; list .* traces list"):
        load("conversation-lik")
    neighbour = write(line(), name="mine.jsonl")
    with pytest.raises(TraceError, match=r"no such file.*did you mean '.*mine.jsonl'\?"):
        load(neighbour.with_name("mien.jsonl"))


def test_a_directory_a_device_and_an_impossible_name_get_one_line(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="is a directory; expected a file or one of conversation-like"):
        load(tmp_path)
    with pytest.raises(TraceError, match=r"cannot be read: .*too long"):
        load("x" * 5000)


def test_an_unreadable_file_gets_one_line(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(line())

    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "open", refuse)
    with pytest.raises(TraceError, match=r"t\.jsonl' cannot be read: Permission denied"):
        load(path)


@given(st.binary(max_size=200))
@example(b'{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [0]}\n{')
@example(b'{"timestamp":1e400}')
def test_any_bytes_are_read_or_refused_in_one_line(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.jsonl"
    for raw in (data, b'{"timestamp": ' + data, line().encode() + b"\n" + data):
        path.write_bytes(raw)
        try:
            load(path)
        except TraceError as error:
            assert "\n" not in str(error)  # noqa: PT017


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
NAMES = [*GOOD, "session_id", "priority", "request_id", "output_tokens"]


@given(st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=4), json_values, max_size=4))
def test_any_values_in_a_row_are_read_or_refused_in_one_line(changes: dict[str, Any]) -> None:
    text = "\n".join([line(), json.dumps(GOOD | changes)]).encode()
    try:
        finish(read(Source("t", text, {})), "t")
    except TraceError as error:
        assert "\n" not in str(error)  # noqa: PT017


def test_the_published_conversation_trace_is_read_whole(shared: Path) -> None:
    trace = load(shared / "traces" / "mooncake-fast25" / "conversation_trace.jsonl")
    oracle = json.loads((shared / "oracles" / "mooncake-conversation.json").read_text("utf-8"))
    assert len(trace) == oracle["count"]
    assert int(trace.input_tokens.sum()) == oracle["input_length"]["sum"]
    assert int(trace.output_tokens.sum()) == oracle["output_length"]["sum"]
    assert len(trace.block_ids) == oracle["total_blocks"]
    assert trace.metadata["source_sha256"] == oracle["file_sha256"]
    assert trace.notices == (
        "arrivals lie on a coarse grid: 1,180 distinct times for 12,031 requests, about 3000 ms apart",
    )


@pytest.mark.parametrize("name", ["first16.jsonl", "window_1178625_93rows.jsonl"])
def test_pieces_of_the_arxiv_trace_are_read(shared: Path, name: str) -> None:
    trace = load(shared / "traces" / "mooncake-arxiv-partial" / name)
    assert len(trace) == {"first16.jsonl": 16, "window_1178625_93rows.jsonl": 93}[name]
