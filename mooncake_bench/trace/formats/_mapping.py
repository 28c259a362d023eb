"""``--column arrival=ts,input=prompt_len,…``: what a file of no known format calls the columns of a trace."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mooncake_bench.errors import TraceError, nearest

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

OWN_NAMES = {
    "arrival": "arrival_ms",
    "input": "input_tokens",
    "output": "output_tokens",
    "blocks": "block_ids",
    "session": "session_id",
    "priority": "priority",
    "id": "request_id",
    "delay": "delay_ms",
}
REQUIRED = ("arrival", "input", "output")
EXPECTED = {
    "arrival": "a number >= 0, or a date",
    "input": "an integer >= 1 (tokens)",
    "output": "an integer >= 1 (tokens)",
    "blocks": "a list of ids",
    "session": "an integer from 0 to 2**63 - 1, or a text",
    "priority": "an integer",
    "id": "a text or an integer, one in every row",
    "delay": "a number >= 0 (ms after the session's previous answer)",
}
COLUMNS = {  # a trace's column -> what --column calls it
    "timestamp": "arrival",
    "input_tokens": "input",
    "output_tokens": "output",
    "block_ids": "blocks",
    "session_id": "session",
    "priority": "priority",
    "request_id": "id",
    "delay_ms": "delay",
}
HOW = "write arrival=NAME,input=NAME,output=NAME and, where there are some, " + ",".join(
    f"{key}=NAME" for key in OWN_NAMES if key not in REQUIRED
)
BLOCK_NAMES = ("hash_ids", "block_ids", "block_hash_ids", "hashes", "block_hashes", "blocks")
_NEXT = re.compile(r",(?=\s*\w+\s*=)")


def parse_columns(text: str) -> dict[str, str]:
    """What ``--column`` says: what a request has -> the file's name for it. Raises TraceError for a bad one."""
    found: dict[str, str] = {}
    for part in _NEXT.split(text) if text.strip() else []:
        key, equals, name = (piece.strip() for piece in part.partition("="))
        if not equals or not name:
            raise TraceError(f"--column: expected NAME=COLUMN, got {part!r}; {HOW}")
        if key not in OWN_NAMES:
            raise TraceError(f"--column: no key {key!r}; known: {', '.join(OWN_NAMES)}{nearest(key, OWN_NAMES)}")
        if key in found:
            raise TraceError(f"--column: {key} is given twice; keep one")
        if name in found.values():
            raise TraceError(f"--column: column {name!r} is given twice; a column is one thing")
        found[key] = name
    return found


def names_in(present: Collection[str], mapping: Mapping[str, str]) -> dict[str, str]:
    """The file's name for all that is asked for, needed, or there under a trace's own name."""
    names = {**OWN_NAMES, **mapping}
    wanted = [key for key in names if key in mapping or key in REQUIRED or names[key] in present]
    free = {key for key in wanted if key not in mapping and names[key] in mapping.values()}
    return {key: names[key] for key in wanted if key not in free or key in REQUIRED}


def is_own(present: Collection[str]) -> bool:
    """Whether the columns of a file have a trace's own names."""
    return all(OWN_NAMES[key] in present for key in REQUIRED)


def unread_blocks(label: str, present: Collection[str], names: Mapping[str, str]) -> list[str]:
    """A notice on a column that looks like block ids and is not read."""
    found = next((name for name in BLOCK_NAMES if name in present), None)
    if "blocks" in names or found is None:
        return []
    return [f"{label}: {found!r} looks like block ids; to read them: --column blocks={found}"]


def lacking(where: str, key: str, name: str, present: Collection[str]) -> TraceError:
    """The error line for a file without a column that it needs."""
    shown = ", ".join(map(repr, list(present)[:12])) or "none"
    hint = nearest(name, present)
    expected = f"{EXPECTED[key]}; name the column with --column {key}=NAME"
    return TraceError(f"{where}, field {name!r}: missing; found {shown}{hint}; expected {expected}")
