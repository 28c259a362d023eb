"""The Arrow store: what is saved comes back; a damaged or foreign file gets one line."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_bench import spool
from mooncake_bench.errors import TraceError
from mooncake_bench.trace import Trace, load, save, store
from mooncake_bench.trace.store import to_batch

if TYPE_CHECKING:
    from pathlib import Path

ROWS = [(0.0, 600, 5, [1, 2]), (10.5, 512, 1, [1])]


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    save(Trace.of(ROWS, name="two"), tmp_path / "two.arrow")
    return tmp_path / "two.arrow"


def write_table(path: Path, columns: dict[str, Any], changes: dict[bytes, bytes | None] | None = None) -> Path:
    """An Arrow file of a good trace with some columns and some metadata replaced (None: left out)."""
    good = to_batch(Trace.of(ROWS, name="two"))
    facts = dict(good.schema.metadata) | (changes or {})
    names = [*good.schema.names, *(name for name in columns if name not in good.schema.names)]
    arrays = {name: columns[name] if name in columns else good.column(name) for name in names}
    kept = {name: array for name, array in arrays.items() if array is not None}
    metadata = {key: value for key, value in facts.items() if value is not None}
    table = pa.table(list(kept.values()), schema=pa.schema([(k, v.type) for k, v in kept.items()], metadata))
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)
    return path


def test_a_saved_trace_comes_back_with_its_name_metadata_and_notices(tmp_path: Path) -> None:
    plain = Trace.of(ROWS, name="two")
    trace = Trace(
        "two", plain.arrival_ms, plain.input_tokens, plain.output_tokens, plain.block_offsets, plain.block_ids,
        request_id=("a", "é"), session_id=np.array([4, -1]), priority=np.array([0, -3]),
        metadata={"source": "by hand"}, notices=("a fact",),
    )  # fmt: skip
    save(trace, tmp_path / "x.arrow")
    again = load(tmp_path / "x.arrow")
    assert again == trace
    assert (again.name, dict(again.metadata), again.notices) == ("two", {"source": "by hand"}, ("a fact",))
    assert again.request_id == ("a", "é")


def test_the_schema_is_explicit_and_names_version_and_block_size(stored: Path) -> None:
    schema = pa.ipc.open_file(str(stored)).schema
    assert {field.name: str(field.type) for field in schema} == {
        "arrival_ms": "double",
        "input_tokens": "int64",
        "output_tokens": "int64",
        "block_ids": "list<item: int64 not null>",
    }
    assert not any(field.nullable for field in schema)
    assert schema.metadata[b"mooncake_bench.trace"] == b"1"
    assert schema.metadata[b"block_tokens"] == b"512"


def test_the_same_trace_is_saved_as_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save(Trace.of(ROWS), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_file_is_replaced_whole_or_not_at_all(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = stored.read_bytes()

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError("disk full")

    monkeypatch.setattr(pa.ipc.RecordBatchFileWriter, "write_batch", fail, raising=False)
    monkeypatch.setattr(pa.ipc, "new_file", fail)
    with pytest.raises(TraceError, match=r"two\.arrow' cannot be written: disk full"):
        save(Trace.of(ROWS), stored)
    assert stored.read_bytes() == before
    assert [path.name for path in stored.parent.iterdir()] == ["two.arrow"]


def test_saving_into_a_missing_folder_gets_one_line(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"none/x\.arrow': there is no folder '.*none'; make it first"):
        save(Trace.of(ROWS), tmp_path / "none" / "x.arrow")


def test_several_record_batches_read_as_one_trace(tmp_path: Path) -> None:
    batch = to_batch(Trace.of(ROWS, name="two"))
    with pa.ipc.new_file(str(tmp_path / "x"), batch.schema) as writer:
        writer.write_batch(batch.slice(0, 1))
        writer.write_batch(batch.slice(1, 1))
    assert load(tmp_path / "x") == Trace.of(ROWS)


def test_options_that_contradict_the_file_are_refused(stored: Path) -> None:
    assert load(stored, block_tokens=512, timestamp_unit="ms") == Trace.of(ROWS)
    with pytest.raises(TraceError, match="its blocks have 512 tokens; found block size 16; leave the option out"):
        load(stored, block_tokens=16)
    with pytest.raises(TraceError, match="its times are in ms; found timestamp unit 'us'"):
        load(stored, timestamp_unit="us")


@pytest.mark.parametrize(
    ("columns", "changes", "message"),
    [
        ({}, {b"mooncake_bench.trace": None}, "without 'mooncake_bench.trace' in its metadata: not a trace"),
        ({}, {b"mooncake_bench.trace": b"9"}, "found trace format version '9'; this version of the tool reads 1"),
        ({}, {b"block_tokens": b"many"}, "the Arrow metadata is damaged"),
        ({}, {b"block_tokens": b"0"}, "block size is 0 tokens"),
        ({}, {b"metadata": b"[]"}, "the Arrow metadata is damaged"),
        ({}, {b"metadata": b"{"}, "the Arrow metadata is damaged"),
        ({}, {b"notices": b"3"}, "the Arrow metadata is damaged"),
        ({}, {b"name": b"\xff"}, "the Arrow metadata is damaged"),
        ({"output_tokens": None}, {}, "field 'output_tokens': missing; found 'arrival_ms', 'input_tokens'"),
        ({"input_tokens": pa.array([1.0, 2.0])}, {}, "field 'input_tokens': found type double; expected int64"),
        ({"block_ids": pa.array([[1.5], [2.5]])}, {}, "field 'block_ids': found type list<item: double>"),
        ({"output_tokens": pa.array([1, None])}, {}, "row 1 (the first is 0), field 'output_tokens': found null"),
        ({"block_ids": pa.array([[1, 2], [None]])}, {}, "field 'block_ids': found a null id"),
        ({"arrival_ms": pa.array([0.0, float("nan")])}, {}, "row 1 (the first is 0), field 'arrival_ms': found nan"),
        ({"arrival_ms": pa.array([-1.0, 0.0])}, {}, "row 0 (the first is 0), field 'arrival_ms': found -1.0"),
        ({"output_tokens": pa.array([1, 0])}, {}, "row 1 (the first is 0), field 'output_tokens': found 0"),
        ({"block_ids": pa.array([[1, 2], [3, 4]])}, {}, "row 1 (the first is 0), field 'block_ids': found 2 ids for"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_as_it_should_be_names_the_row_and_the_field(
    tmp_path: Path, columns: dict[str, Any], changes: dict[bytes, bytes | None], message: str
) -> None:
    with pytest.raises(TraceError) as caught:
        load(write_table(tmp_path / "x.arrow", columns, changes))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_without_rows_is_an_error(tmp_path: Path) -> None:
    batch = to_batch(Trace.of(ROWS)).slice(0, 0)
    with pa.ipc.new_file(str(tmp_path / "x"), batch.schema) as writer:
        writer.write_batch(batch)
    with pytest.raises(TraceError, match="found 0 requests; expected at least one"):
        load(tmp_path / "x")


def test_unknown_columns_are_ignored_with_a_notice(tmp_path: Path) -> None:
    trace = load(write_table(tmp_path / "x.arrow", {"colour": pa.array([1, 2])}))
    assert trace == Trace.of(ROWS)
    assert trace.notices == (f"{tmp_path / 'x.arrow'}: ignored fields that mean nothing here: 'colour'",)


@given(st.integers(0, 10**6), st.integers(1, 255), st.integers(0, 10**6))
def test_a_damaged_file_is_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, at: int, flip: int, cut: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.arrow"
    save(Trace.of(ROWS), path)
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= flip
    for damaged in (bytes(data), bytes(data[: 8 + cut % len(data)])):
        path.write_bytes(damaged)
        try:
            load(path)
        except TraceError as error:
            assert "\n" not in str(error)  # noqa: PT017


# ---- large traces


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of two rows, mapped columns, parts of three."""
    monkeypatch.setattr(store, "BATCH_ROWS", 2)
    monkeypatch.setattr(spool, "LARGE_BYTES", 16)
    monkeypatch.setattr(spool, "PART_ROWS", 3)


def many_rows() -> Trace:
    """Seven rows of 1, 2, 3, 1, … blocks, with every optional column but a priority."""
    rows = [
        (10.0 * row, 512 * (row % 3) + 100, row + 1, [9 * row + at for at in range(row % 3 + 1)]) for row in range(7)
    ]
    extra = {"session_id": np.arange(7) // 2, "delay_ms": np.linspace(0, 3, 7), "request_id": tuple("gfedcba")}
    return replace(Trace.of(rows, name="seven"), **extra)


def test_a_trace_in_batches_and_mapped_columns_is_the_trace(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = many_rows()
    save(whole, tmp_path / "one")
    request.getfixturevalue("tiny")
    save(whole, tmp_path / "four")
    with pa.ipc.open_file(str(tmp_path / "four")) as reader:
        assert [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)] == [2, 2, 2, 1]
        offsets = [reader.get_batch(i).column("block_ids").offsets.to_pylist() for i in range(4)]
    assert offsets == [[0, 1, 3], [0, 3, 4], [0, 2, 5], [0, 1]]  # of 32 bits each: they count within a batch
    for name in ("one", "four"):
        read = load(tmp_path / name)
        assert read == whole
        assert read.sha256 == whole.sha256
        assert read.request_ids() == tuple("gfedcba")
        save(read, tmp_path / "again")
        assert (tmp_path / "again").read_bytes() == (tmp_path / "four").read_bytes()


@pytest.mark.usefixtures("tiny")
def test_a_fault_in_a_later_batch_names_the_row_of_the_file(tmp_path: Path) -> None:
    good = to_batch(many_rows())
    outputs = pa.array([1, 2, 3, None, 5, 6, 7])
    fields = [field.with_nullable(True) for field in good.schema]
    columns = [outputs if field.name == "output_tokens" else good.column(field.name) for field in fields]
    batch = pa.record_batch(columns, schema=pa.schema(fields, good.schema.metadata))
    with pa.ipc.new_file(str(tmp_path / "x"), batch.schema) as writer:
        for first in (0, 2, 4):
            writer.write_batch(batch.slice(first, 2))
    with pytest.raises(TraceError, match=r"row 3 \(the first is 0\), field 'output_tokens': found null"):
        load(tmp_path / "x")
