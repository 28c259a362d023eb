"""Damaged files of every format: each is read as a trace that keeps the rules, or refused in one line."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_files import MAPPED_CSV, MOONCAKE, PARQUET, SAMPLES, TEXTS, Sample, arrow_bytes

from mooncake_bench.errors import BenchError
from mooncake_bench.trace import Trace, load

ODD = (
    b"", b"-1", b"0", b"1", b"007", b"12.0", b"1e3", b"1e999", b"NaN", b"nan", b"inf", b"-0.0", b"null", b"true",
    b'"5"',
    b"9223372036854775807", b"9223372036854775808", b"18446744073709551616", b"9" * 40, b"0x1F", b"1_000", b"1,000",
    b"\xef\xbb\xbf", b"\xff", b"\0", b"\r", b"\n", b"\r\n", b"\t", b" ", b'"', b"'", b",", b";", b":", b"[", b"]", b"{",
    b"}", b"[]", b"{}", b"[[", "é".encode(), "１".encode(), b"2023-02-30 00:00:00", b"2024-02-29 23:59:59.999999999Z",
    b"1700000000", b"1700000000000000", b"\x1f\x8b", b"PAR1", b"session_id", b"timestamp", b"chat_id",
)  # fmt: skip


@st.composite
def damage(draw: st.DrawFn, whole: bytes) -> bytes:
    """The file with pieces left out, doubled, moved, or something odd in the place of a number or anywhere."""
    data = whole
    for _ in range(draw(st.integers(1, 4))):
        at, end = sorted(draw(st.tuples(st.integers(0, len(data)), st.integers(0, len(data)))))
        kind = draw(st.sampled_from(["insert", "replace", "number", "number", "drop", "double", "cut", "lines"]))
        odd = draw(st.sampled_from(ODD))
        if kind == "insert":
            data = data[:at] + odd + data[at:]
        elif kind == "replace":
            data = data[:at] + odd + data[min(at + draw(st.integers(1, 9)), len(data)) :]
        elif kind == "number":
            data = _number_replaced(data, at, odd)
        elif kind == "drop":
            data = data[:at] + data[end:]
        elif kind == "double":
            data = data[:end] + data[at:]
        elif kind == "cut":
            data = data[:end]
        else:
            data = b"".join(draw(st.permutations(data.splitlines(keepends=True))))
    return data


def _number_replaced(data: bytes, at: int, odd: bytes) -> bytes:
    """The next run of digits from ``at`` on, replaced."""
    start = next((place for place in range(at, len(data)) if data[place : place + 1].isdigit()), len(data))
    end = start
    while data[end : end + 1].isdigit():
        end += 1
    return data[:start] + odd + data[end:]


def outcome(path: Path, data: bytes, options: dict[str, Any]) -> Trace | str:
    """The trace in a damaged file, which keeps the rules, or the line that it gets."""
    path.write_bytes(data)
    try:
        trace = load(path, **options)
    except BenchError as error:
        assert "\n" not in str(error)  # noqa: PT017
        assert str(error).strip()  # noqa: PT017
        return str(error)
    check(trace)
    return trace


def check(trace: Trace) -> None:
    """The rules of a trace."""
    assert len(trace) >= 1
    assert trace.arrival_ms[0] == 0
    assert np.isfinite(trace.arrival_ms).all()
    assert (np.diff(trace.arrival_ms) >= 0).all()
    for lengths in (trace.input_tokens, trace.output_tokens):
        assert ((lengths >= 1) & (lengths <= 10**9)).all()
    assert (np.diff(trace.block_offsets) == -(-trace.input_tokens // trace.block_tokens)).all()
    assert (trace.block_ids >= 0).all()
    assert not trace.block_ids.flags.writeable
    if len(trace.block_ids) < 10_000:
        assert all(len(set(ids)) == len(ids) for ids in (trace.blocks(row).tolist() for row in range(len(trace))))
    assert len(set(trace.request_ids())) == len(trace)
    for column in (trace.session_id, trace.priority, trace.delay_ms, trace.source_row):
        assert column is None or len(column) == len(trace)
    assert trace.session_id is None or (trace.session_id >= -1).all()
    assert trace.delay_ms is None or not (trace.delay_ms < 0).any()
    assert all("\n" not in notice for notice in trace.notices)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.mark.parametrize("sample", TEXTS, ids=lambda sample: sample.name)
@given(data=st.data())
@settings(max_examples=60)
def test_a_damaged_text_is_read_or_refused_in_one_line(sample: Sample, folder: Path, data: st.DataObject) -> None:
    outcome(folder / sample.name, data.draw(damage(sample.data)), sample.options)


@pytest.mark.parametrize("sample", TEXTS, ids=lambda sample: sample.name)
@given(data=st.data())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_pieces_of_any_size_give_the_same_trace_or_both_refuse(
    sample: Sample, folder: Path, data: st.DataObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged, options = data.draw(damage(sample.data)), sample.options
    whole = outcome(folder / sample.name, damaged, options)
    with monkeypatch.context() as patch:
        patch.setattr("mooncake_bench.trace.pieces.PIECE_BYTES", data.draw(st.integers(1, 200)))
        pieces = outcome(folder / sample.name, damaged, options)
    if isinstance(whole, Trace) and any("are texts" in notice for notice in whole.notices):
        return  # ids beyond 64 bits make texts of all only when they come soon enough
    assert isinstance(pieces, str) == isinstance(whole, str), (whole, pieces)
    if isinstance(whole, Trace):
        assert pieces == whole


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
@given(data=st.data())
@settings(max_examples=60)
def test_a_damaged_archive_is_read_or_refused_in_one_line(packing: str, folder: Path, data: st.DataObject) -> None:
    packed = gzip.compress(MOONCAKE.data) if packing == "gzip" else pa.compress(MOONCAKE.data, "zstd", asbytes=True)
    outcome(folder / "packed", data.draw(damage(packed)), {})


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@given(data=st.data())
@settings(max_examples=60)
def test_a_damaged_binary_file_is_read_or_refused_in_one_line(kind: str, folder: Path, data: st.DataObject) -> None:
    whole = PARQUET.data if kind == "parquet" else arrow_bytes(folder)
    outcome(folder / f"damaged.{kind}", data.draw(damage(whole)), {})


@given(columns=st.text("arivlnputosed,= _", max_size=60) | st.lists(st.sampled_from(
    ["arrival=ts", "input=prompt len", "output=gen", "blocks=hashes", "session=rid", "id=rid", "delay=p"]
)).map(",".join))  # fmt: skip
@settings(max_examples=60)
def test_any_mapping_is_used_or_refused_in_one_line(folder: Path, columns: str) -> None:
    for sample in (MAPPED_CSV, PARQUET, MOONCAKE):
        outcome(folder / "t", sample.data, {"columns": columns})


@given(
    block_tokens=st.none() | st.sampled_from([0, -5, 1, 16, 511, 512, 513, 10**9, 10**30]),
    unit=st.sampled_from(["auto", "s", "ms", "us", "ns", "", "fortnights"]),
    sample=st.sampled_from(SAMPLES),
)
@settings(max_examples=60)
def test_any_options_are_used_or_refused_in_one_line(
    folder: Path, block_tokens: int | None, unit: str, sample: Sample
) -> None:
    options = sample.options | {"block_tokens": block_tokens, "timestamp_unit": unit}
    outcome(folder / sample.name, sample.data, options)
