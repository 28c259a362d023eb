"""Small traces made from prompts that a test can read: equal blocks of equal prefixes share an id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st

from mooncake_bench.trace import Trace
from mooncake_bench.trace.model import NO_SESSION

if TYPE_CHECKING:
    from collections.abc import Sequence

COLUMNS = (
    "arrival_ms", "input_tokens", "output_tokens", "block_offsets", "block_ids", "session_id", "priority", "delay_ms",
    "source_row",
)  # fmt: skip


def blocks_of(prompt: Sequence[int], size: int) -> list[tuple[int, ...]]:
    """What each block of a prompt stands for: all tokens up to its end."""
    return [tuple(prompt[: at + size]) for at in range(0, len(prompt), size)]


def trace_of(prompts: Sequence[Sequence[int]], at: Sequence[float], size: int = 2, **columns: Any) -> Trace:
    """A trace of prompts whose block ids are numbered by what the blocks stand for."""
    known: dict[tuple[int, ...], int] = {}
    ids = [[known.setdefault(block, len(known)) for block in blocks_of(prompt, size)] for prompt in prompts]
    plain = Trace.of(
        [(time, len(prompt), 1, row) for time, prompt, row in zip(at, prompts, ids, strict=True)], block_tokens=size
    )
    return Trace(
        name="t",
        arrival_ms=plain.arrival_ms,
        input_tokens=plain.input_tokens,
        output_tokens=columns.pop("output_tokens", plain.output_tokens),
        block_offsets=plain.block_offsets,
        block_ids=plain.block_ids,
        block_tokens=size,
        **columns,
    )


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=9)


@st.composite
def traces(draw: st.DrawFn, size: int = 2) -> Trace:
    """Any small trace of chained blocks, with optional columns or without."""
    n = draw(st.integers(1, 8))
    some = draw(st.lists(prompts, min_size=n, max_size=n))
    at = sorted(draw(st.lists(st.integers(0, 40).map(float), min_size=n, max_size=n)))
    columns: dict[str, Any] = {
        "output_tokens": np.array(draw(st.lists(st.integers(1, 99), min_size=n, max_size=n)), np.int64)
    }
    if draw(st.booleans()):
        columns["session_id"] = np.array(draw(st.lists(st.integers(NO_SESSION, 3), min_size=n, max_size=n)), np.int64)
    if draw(st.booleans()):
        columns["priority"] = np.array(draw(st.lists(st.integers(-2, 2), min_size=n, max_size=n)), np.int64)
    if draw(st.booleans()):
        columns["request_id"] = tuple(draw(st.lists(st.text(max_size=3), min_size=n, max_size=n, unique=True)))
    if draw(st.booleans()):
        delays = st.one_of(st.just(float("nan")), st.integers(0, 99).map(float))
        columns["delay_ms"] = np.array(draw(st.lists(delays, min_size=n, max_size=n)))
    return trace_of(some, [time - at[0] for time in at], size, **columns)


def frozen_copy(trace: Trace) -> dict[str, Any]:
    """All that a transform must leave as it is."""
    columns = {name: None if getattr(trace, name) is None else getattr(trace, name).copy() for name in COLUMNS}
    return columns | {"request_id": trace.request_id, "metadata": dict(trace.metadata), "notices": trace.notices}


def assert_unchanged(trace: Trace, before: dict[str, Any]) -> None:
    """The trace is as it was when ``before`` was taken."""
    after = frozen_copy(trace)
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)


def shared_blocks(trace: Trace, one: int, other: int) -> int:
    """How many leading blocks two rows share."""
    pairs = zip(trace.blocks(one).tolist(), trace.blocks(other).tolist(), strict=False)
    count = 0
    for left, right in pairs:
        if left != right:
            break
        count += 1
    return count
