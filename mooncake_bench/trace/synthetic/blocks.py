"""Block ids of generated prompts: chained along system prompt, document and conversation, numbered by appearance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from mooncake_bench.trace.model import Ints

CHUNK_BLOCKS = 1 << 20
MOST_BLOCKS = 500_000_000  # of a trace: 4 GB of ids


@dataclass(frozen=True)
class Prompts:
    """What each prompt consists of, head first, in tokens counted from its start; row by row in trace order.

    Blocks wholly within the system prompt belong to it, further ones wholly within the document's end to the document,
    further whole ones to the conversation, and a partial last one to the request alone.
    """

    input_tokens: Ints
    system: Ints | None  # which system prompt; None: nobody has one
    system_end: Ints  # tokens
    document: Ints | None
    document_end: Ints  # tokens, the system prompt included
    conversation: Ints | None  # None: every request is its own


def block_ids(prompts: Prompts, block_tokens: int) -> tuple[Ints, Ints]:
    """Offsets (n + 1,) and ids (m,) of all prompts, ids numbered 0, 1, … by first appearance."""
    layout = _Layout(prompts, block_tokens)
    check_count(int(layout.offsets[-1]))
    ids = np.empty(int(layout.offsets[-1]), np.int64)
    number = _Numbering(layout.labels)
    for first, end in _chunks(layout.offsets):
        begin, stop = layout.offsets[first], layout.offsets[end]
        ids[begin:stop] = number(layout.of_rows(first, end))
    return layout.offsets, ids


def check_count(blocks: int) -> None:
    """Raises SetupError for more blocks than a trace in memory may have."""
    if blocks > MOST_BLOCKS:
        raise SetupError(
            f"the trace would have {blocks:,} blocks, more than {MOST_BLOCKS:,}: ask fewer or shorter requests"
        )


def _chunks(offsets: Ints) -> Iterator[tuple[int, int]]:
    """Ranges of rows of about CHUNK_BLOCKS blocks, at least one row each."""
    first, rows = 0, len(offsets) - 1
    while first < rows:
        end = int(np.searchsorted(offsets, offsets[first] + CHUNK_BLOCKS, side="right")) - 1
        end = min(max(end, first + 1), rows)
        yield first, end
        first = end


class _Layout:
    """Provisional labels: a stretch for each system prompt, each document, each conversation, each request."""

    def __init__(self, prompts: Prompts, size: int) -> None:
        rows = len(prompts.input_tokens)
        self.full = prompts.input_tokens // size
        self.offsets = np.zeros(rows + 1, np.int64)
        np.cumsum(-(-prompts.input_tokens // size), out=self.offsets[1:])
        self.system_blocks = prompts.system_end // size
        self.document_blocks = prompts.document_end // size
        self.labels = 0
        self.system_start = self._stretches(prompts.system, self.system_blocks)
        self.document_start = self._stretches(prompts.document, self.document_blocks - self.system_blocks)
        self.conversation_start = self._stretches(
            np.arange(rows) if prompts.conversation is None else prompts.conversation, self.full - self.document_blocks
        )
        self.own = self.labels
        self.labels += rows

    def _stretches(self, owner: Ints | None, blocks: Ints) -> Ints | None:
        """The first label of each row's stretch, as long as the longest row of the same owner."""
        if owner is None:
            return None
        longest = np.zeros(int(owner.max()) + 1, np.int64)
        np.maximum.at(longest, owner, blocks)
        start = np.cumsum(longest) - longest + self.labels
        self.labels += int(longest.sum())
        return start[owner]

    def of_rows(self, first: int, end: int) -> Ints:
        """Labels of the blocks of some rows, one row after the other."""
        counts = np.diff(self.offsets[first : end + 1])
        row = np.repeat(np.arange(first, end), counts)
        place = np.arange(len(row)) - np.repeat(self.offsets[first:end] - self.offsets[first], counts)
        assert self.conversation_start is not None
        label = self.conversation_start[row] + place - self.document_blocks[row]
        if self.document_start is not None:
            label = np.where(
                place < self.document_blocks[row], self.document_start[row] + place - self.system_blocks[row], label
            )
        if self.system_start is not None:
            label = np.where(place < self.system_blocks[row], self.system_start[row] + place, label)
        return np.where(place < self.full[row], label, self.own + row)


class _Numbering:
    """Numbers labels by first appearance, a chunk at a time."""

    def __init__(self, labels: int) -> None:
        self.number: NDArray[Any] = np.full(labels, -1, np.int64 if labels >= 2**31 else np.int32)
        self.next = 0

    def __call__(self, labels: Ints) -> Ints:
        new = labels[self.number[labels] < 0]
        values, first = np.unique(new, return_index=True)
        self.number[values[np.argsort(first)]] = self.next + np.arange(len(values))
        self.next += len(values)
        return self.number[labels].astype(np.int64)
