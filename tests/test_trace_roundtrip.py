"""A trace written in any of our formats and read back is the same trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_bench.trace import Trace, load, save
from mooncake_bench.trace.formats.mooncake import encode

if TYPE_CHECKING:
    from pathlib import Path

ids_of_a_row = st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=6, unique=True)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Any valid trace: odd times, ids of any size, optional columns or not."""
    block = draw(st.sampled_from([1, 16, 512]))
    n = draw(st.integers(1, 8))
    at = sorted(draw(st.lists(st.floats(0, 1e7, allow_subnormal=False), min_size=n, max_size=n)))
    blocks = draw(st.lists(ids_of_a_row, min_size=n, max_size=n))
    spare = draw(st.lists(st.integers(0, block - 1), min_size=n, max_size=n))
    plain = Trace.of(
        [
            (at[row] - at[0], len(ids) * block - spare[row], draw(st.integers(1, 10**9)), ids)
            for row, ids in enumerate(blocks)
        ],
        block_tokens=block,
    )
    optional: dict[str, Any] = {}
    if draw(st.booleans()):
        optional["session_id"] = np.array(draw(st.lists(st.integers(0, 2**63 - 1), min_size=n, max_size=n)))
    if draw(st.booleans()):
        optional["priority"] = np.array(draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=n, max_size=n)))
    if draw(st.booleans()):
        optional["request_id"] = tuple(draw(st.lists(st.text(max_size=5), min_size=n, max_size=n, unique=True)))
    return Trace(
        "t", plain.arrival_ms, plain.input_tokens, plain.output_tokens, plain.block_offsets, plain.block_ids,
        block_tokens=block, **optional,
    )  # fmt: skip


@given(traces())
def test_jsonl_to_trace_to_arrow_to_trace_keeps_every_column_and_the_hash(
    tmp_path_factory: pytest.TempPathFactory, trace: Trace
) -> None:
    folder = tmp_path_factory.getbasetemp()
    (folder / "t.jsonl").write_bytes(encode(trace))
    read = load(folder / "t.jsonl", trace.block_tokens, "ms")
    save(read, folder / "t.arrow")
    stored = load(folder / "t.arrow")
    assert trace.sha256 == read.sha256 == stored.sha256
    for name in ("arrival_ms", "input_tokens", "output_tokens", "block_offsets", "block_ids", "session_id", "priority"):
        expected = getattr(trace, name)
        for again in (read, stored):
            np.testing.assert_array_equal(getattr(again, name), expected)
    assert trace.request_id == read.request_id == stored.request_id


@pytest.mark.parametrize("name", ["conversation_trace", "synthetic_trace"])
def test_the_published_traces_survive_both_formats(shared: Path, tmp_path: Path, name: str) -> None:
    trace = load(shared / "traces" / "mooncake-fast25" / f"{name}.jsonl")
    save(trace, tmp_path / "t.arrow")
    (tmp_path / "t.jsonl").write_bytes(encode(trace))
    assert load(tmp_path / "t.arrow") == trace == load(tmp_path / "t.jsonl")
    lines = zip(
        (shared / "traces" / "mooncake-fast25" / f"{name}.jsonl").read_bytes().splitlines(),
        (tmp_path / "t.jsonl").read_bytes().splitlines(),
        strict=True,
    )
    assert all(line.replace(b" ", b"") == ours for line, ours in lines)
