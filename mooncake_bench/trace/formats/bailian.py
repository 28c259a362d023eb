"""Qwen-Bailian JSONL: ``chat_id, parent_chat_id, timestamp, input_length, output_length, type, turn, hash_ids``.

``timestamp`` is in SECONDS from the start (float), lengths are in tokens, ``hash_ids`` name blocks of 16 tokens (texts
are numbered by first appearance). ``chat_id`` names one request and becomes the request id; ``parent_chat_id`` is the
previous turn's, -1 for a first turn: requests that lead back to the same first turn are one session, whose id is that
turn's ``chat_id``. A parent that is not in the file (the trace is a window of two hours) is counted in a notice; its
id then stands for the session. ``type`` (text, search, image, file) and ``turn`` are not kept.

The publisher's notes: a next turn's prompt lacks the special tokens of the answer before it, so that prefixes grow with
gaps, and the last block of a prompt may be padded, so that a longer prompt has another id in its place. Where one id
stands twice in a row the ids name contents, not prefixes, and the file is refused.

Published by Alibaba (qwen-bailian-usagetraces-anon) under Apache-2.0; cite Wang et al., "KVCache Cache in the Wild",
USENIX ATC'25.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from mooncake_bench.trace.formats import _jsonl
from mooncake_bench.trace.formats._jsonl import Fields, Rows
from mooncake_bench.trace.formats._rows import Gathered

if TYPE_CHECKING:
    from mooncake_bench.trace.formats import Source
    from mooncake_bench.trace.schema import RawColumns

NAME = "qwen-bailian-jsonl"
DESCRIPTION = "Qwen-Bailian JSONL: timestamps in seconds, 16-token blocks, chats as sessions"
BLOCK_TOKENS = 16
ROOT = -1

FIELDS = Fields(
    required={
        "chat_id": "an integer or a text",
        "parent_chat_id": "the chat_id of the previous turn, or -1",
        "timestamp": "a number >= 0 (seconds)",
        "input_length": "an integer >= 1 (tokens)",
        "output_length": "an integer >= 1 (tokens)",
        "hash_ids": "a list of integers from 0 to 2**63 - 1",
    },
    optional={"type": "a text", "turn": "an integer"},
    kinds={
        "chat_id": _jsonl.NAME,
        "parent_chat_id": _jsonl.NAME,
        "timestamp": _jsonl.NUMBER,
        "hash_ids": _jsonl.IDS,
        "type": _jsonl.ANY,
        "turn": _jsonl.ANY,
    },
)
COLUMNS = {
    "timestamp": "timestamp",
    "input_tokens": "input_length",
    "output_tokens": "output_length",
    "block_ids": "hash_ids",
    "request_id": "chat_id",
    "session_id": "parent_chat_id",
}


class _Row(msgspec.Struct, gc=False):
    chat_id: int | str
    parent_chat_id: int | str
    timestamp: int | float
    input_length: int
    output_length: int
    hash_ids: list[int]


class _TextRow(_Row, gc=False):
    hash_ids: list[str]  # type: ignore[assignment]


def recognises(head: bytes) -> bool:
    """A line that opens an object and links chats to their parents."""
    return head.lstrip()[:1] in (b"{", b"[") and b'"parent_chat_id"' in head


def read(source: Source) -> RawColumns:
    """All rows of the text. Raises TraceError for the first row that is not of the format."""
    texts = _jsonl.ids_are_texts(source.head, "hash_ids")
    fields = FIELDS if texts is None else _jsonl.with_text_ids(FIELDS, "hash_ids")
    decoder = msgspec.json.Decoder(_Row if texts is None else _TextRow)
    gathered = Gathered(source, NAME, COLUMNS, block_tokens=BLOCK_TOKENS, unit="s")
    chats: list[int | str] = []
    parents: list[int | str] = []
    counts: Counter[str] = Counter()
    for found in _jsonl.rows(source, decoder, fields):
        rows = found.items
        lengths, ids = _jsonl.block_ids(found, "hash_ids", [row.hash_ids for row in rows], texts)
        gathered.add(
            found.lines,
            _jsonl.numbers(found, "timestamp", [row.timestamp for row in rows]),
            _jsonl.integers(found, "input_length", [row.input_length for row in rows]),
            _jsonl.integers(found, "output_length", [row.output_length for row in rows]),
            lengths,
            ids,
        )
        _check_chats(found)
        chats += [row.chat_id for row in rows]
        parents += [row.parent_chat_id for row in rows]
        counts += _jsonl.counted_keys(found)
    if texts is not None:
        gathered.metadata["block_ids"] = f"{len(texts)} texts numbered by first appearance"
    _sessions(gathered, source.label, chats, parents)
    raw = gathered.columns()
    _jsonl.tell_unknown(raw.notices, source.label, counts, FIELDS)
    return raw


def _check_chats(found: Rows) -> None:
    for row, item in enumerate(found.items):
        if isinstance(item.chat_id, int) and not 0 <= item.chat_id < 2**63:
            raise found.error(row, "chat_id", item.chat_id, "a text, or an integer from 0 to 2**63 - 1")
        if isinstance(item.parent_chat_id, int) and not ROOT <= item.parent_chat_id < 2**63:
            raise found.error(row, "parent_chat_id", item.parent_chat_id)


def _sessions(gathered: Gathered, label: str, chats: list[int | str], parents: list[int | str]) -> None:
    """Each request's first turn as its session, and its chat as its id. Raises TraceError for a circle of parents."""
    parent_of: dict[int | str, int | str] = {}
    for chat, parent in zip(chats, parents, strict=True):
        parent_of.setdefault(chat, parent)
    absent = sum(parent not in (ROOT, "-1") and parent not in parent_of for parent in parents)
    if absent:
        gathered.notices.append(
            f"{label}: {absent:,} requests follow one that is not in the file: its chat_id stands for their session"
        )
    roots: dict[int | str, int | str] = {}
    for row, chat in enumerate(chats):
        _find_root(chat, parent_of, roots, gathered, row)
    gathered.add_names("session_id", [roots[chat] for chat in chats])
    twice = len(chats) - len(parent_of)
    if twice:
        gathered.notices.append(f"{label}: {twice:,} rows repeat a chat_id: requests keep their row numbers as ids")
    elif chats:
        gathered.add_request_ids([str(chat) for chat in chats])


def _find_root(
    chat: int | str, parent_of: dict[int | str, int | str], roots: dict[int | str, int | str], gathered: Gathered,
    row: int,
) -> None:  # fmt: skip
    """Writes into ``roots`` the first turn of a chat and of all that lie between."""
    path, at = [], chat
    while at not in roots:
        path.append(at)
        parent = parent_of.get(at, ROOT)
        if parent in (ROOT, "-1"):
            roots[at] = at
        elif len(path) > len(parent_of):
            part = gathered.part(gathered.places.line(row))
            found = f"{parent_of[chat]!r}, which leads back to itself"
            raise part.error(0, "session_id", found, FIELDS.required["parent_chat_id"])
        at = parent if at not in roots else at
    for between in path:
        roots[between] = roots[at]
