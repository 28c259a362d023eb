"""From texts or token ids to a trace that shows who shares which prefix, and nothing of what was said.

A prompt's tokens are cut into blocks. A block's hash is keyed with a secret salt and covers the hash of the block
before it, so that it stands for the whole prefix: ``h[i] = BLAKE2b-256(key = BLAKE2b-256(salt), h[i-1] || tokens)``,
``h[-1]`` empty, tokens as 64-bit little-endian numbers; its id is the first 63 bits. The last block, where partial, has
an id of its own. Two prompts of one salt share as many leading ids as they share whole blocks of tokens, and all of
them when they are equal. Should two blocks get the same id, the work stops and asks for another salt.

By default ids are then numbered 0, 1, … by first appearance, so that no hash is left. Hashes are kept where traces
hashed at different times are to share ids; who has the salt can then try out texts, nobody else. What remains to be
seen is when requests arrived relative to the first, how long they and their answers are, and which blocks they share.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from array import array
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench.errors import SetupError, TraceError
from mooncake_bench.trace.model import DEFAULT_BLOCK_TOKENS, NO_SESSION
from mooncake_bench.trace.prompts import Prompts
from mooncake_bench.trace.rows import about_arrivals, numbered
from mooncake_bench.trace.schema import MAX_TOKENS, RawColumns, finish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mooncake_bench.trace.model import Ints, Trace
    from mooncake_bench.trace.prompts import Request

    Encode = Callable[[list[str]], Sequence[Sequence[int]]]

DIGEST_BYTES = 32
SALT_BYTES = 32  # of a random salt
BATCH_ROWS = 256  # texts encoded together


class BlockHasher:
    """Salted, prefix-chained ids of blocks of tokens."""

    def __init__(self, salt: bytes, block_tokens: int = DEFAULT_BLOCK_TOKENS) -> None:
        if not salt:
            raise TraceError("the salt is empty; expected a secret text, or none given for a random one")
        if not 1 <= block_tokens <= MAX_TOKENS:
            raise TraceError(f"block size is {block_tokens} tokens; expected from 1 to {MAX_TOKENS}")
        self.block_tokens = block_tokens
        self._key = hashlib.blake2b(salt, digest_size=DIGEST_BYTES).digest()
        self._seen: dict[int, bytes] = {}

    def ids(self, tokens: Sequence[int]) -> list[int]:
        """The ids of a prompt's blocks, head first. Raises TraceError when two different blocks get one id."""
        data = memoryview(np.asarray(tokens, "<i8").tobytes())
        step = 8 * self.block_tokens
        digest, found = b"", []
        for begin in range(0, len(data), step):
            hasher = hashlib.blake2b(digest, key=self._key, digest_size=DIGEST_BYTES)
            hasher.update(data[begin : begin + step])
            digest = hasher.digest()
            found.append(self._id(digest))
        return found

    def _id(self, digest: bytes) -> int:
        number = int.from_bytes(digest[:8], "big") >> 1
        if self._seen.setdefault(number, digest) != digest:
            raise TraceError("two different blocks got the same 63-bit id; hash again with another salt")
        return number


def words(texts: list[str]) -> list[list[int]]:
    """Each word a token, numbered by its hash: for trying things out without a tokenizer. White space is no word."""
    return [[_word_number(word) for word in re.findall(r"\S+", text)] for text in texts]


def _word_number(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big") >> 1


def tokenizer(path: str | Path) -> Encode:
    """The encoder in a local ``tokenizer.json``; nothing is cut, padded or added.

    Raises SetupError without the library ``tokenizers``, TraceError for a file that is no tokenizer.
    """
    try:
        import tokenizers
    except ImportError:
        raise SetupError(
            "a tokenizer file needs the library tokenizers: pip install 'mooncake-bench[hash]'; --tokens and --words "
            "do without"
        ) from None
    if not Path(path).is_file():
        raise TraceError(f"tokenizer {str(path)!r}: no such file; expected a tokenizer.json")
    try:
        encoder = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        reason = " ".join(str(error).split())[:120]
        raise TraceError(f"tokenizer {str(path)!r} cannot be used ({reason}); expected a tokenizer.json") from None
    encoder.no_truncation()
    encoder.no_padding()
    return lambda texts: [one.ids for one in encoder.encode_batch(texts, add_special_tokens=False)]


def read_salt(path: str | Path) -> bytes:
    """The bytes of a salt file, without a line end behind them. Raises TraceError when there are none."""
    try:
        salt = Path(path).read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise TraceError(f"salt file {str(path)!r} cannot be read: {error.strerror or error}") from None
    if not salt:
        raise TraceError(f"salt file {str(path)!r} is empty; expected a secret text")
    return salt


@dataclass
class _Columns:
    """What has been hashed so far."""

    time: list[int | float] = field(default_factory=list)
    input_tokens: array[int] = field(default_factory=lambda: array("q"))
    output_tokens: array[int] = field(default_factory=lambda: array("q"))
    counts: array[int] = field(default_factory=lambda: array("q"))
    block_ids: array[int] = field(default_factory=lambda: array("q"))
    session_id: list[int | str | None] = field(default_factory=list)
    priority: list[int | None] = field(default_factory=list)
    line: array[int] = field(default_factory=lambda: array("q"))

    def add(self, request: Request, tokens: int, answer: int, ids: list[int]) -> None:
        """One more request."""
        self.time.append(request.time)
        self.input_tokens.append(tokens)
        self.output_tokens.append(answer)
        self.counts.append(len(ids))
        self.block_ids.extend(ids)
        self.session_id.append(request.session_id)
        self.priority.append(request.priority)
        self.line.append(request.line)


def hash_file(
    path: str | Path,
    name: str,
    encode: Encode | None,
    block_tokens: int = DEFAULT_BLOCK_TOKENS,
    salt: bytes | None = None,
    keep_hashes: bool = False,
    timestamp_unit: str = "auto",
) -> tuple[Trace, list[str]]:
    """The trace of a file of prompts (see :mod:`mooncake_bench.trace.prompts`), and what a person should be told.

    ``encode`` None takes the rows' own token ids. ``salt`` None is a random one, never shown. The trace's metadata and
    notices say nothing of the file; the notices returned do, and belong on the screen only. Raises TraceError.
    """
    prompts = Prompts(path, encode is None)
    hasher = BlockHasher(secrets.token_bytes(SALT_BYTES) if salt is None else salt, block_tokens)
    columns = _Columns()
    requests = iter(prompts)
    while batch := list(islice(requests, BATCH_ROWS)):
        _add_batch(columns, batch, prompts, hasher, encode)
    raw = _raw(columns, prompts, block_tokens)
    if prompts.dated and timestamp_unit != "auto":
        raise TraceError(f"{path}: its times are dates; found timestamp unit {timestamp_unit!r}; leave the option out")
    found = finish(raw, name, block_tokens, "us" if prompts.dated else timestamp_unit)
    return _without_traces_of_the_file(found, keep_hashes), [*found.notices, *_ignored(prompts)]


def _add_batch(
    columns: _Columns, batch: list[Request], prompts: Prompts, hasher: BlockHasher, encode: Encode | None
) -> None:
    texts = [text for request in batch for text in request.texts]
    answers = [request.response for request in batch if request.response is not None]
    encoded = iter(encode([*texts, *answers]) if encode is not None else ())
    tokens = [request.tokens or _joined(islice(encoded, len(request.texts))) for request in batch]
    for request, prompt in zip(batch, tokens, strict=True):
        length = request.output_tokens if request.response is None else len(next(encoded))
        if not prompt:
            raise prompts.error(request.line, "prompt", "a text of 0 tokens", "at least one token")
        if not length:
            raise prompts.error(
                request.line, "response", "an answer of 0 tokens", "at least one token: leave failed requests out"
            )
        columns.add(request, len(prompt), length, hasher.ids(prompt))


def _joined(parts: Iterable[Sequence[int]]) -> list[int]:
    return [token for part in parts for token in part]


def _raw(columns: _Columns, prompts: Prompts, block_tokens: int) -> RawColumns:
    whole = all(isinstance(time, int) for time in columns.time)
    sessions = columns.session_id if any(one is not None for one in columns.session_id) else None
    priorities = columns.priority if any(one is not None for one in columns.priority) else None
    notices = [
        f"{prompts.label}: {values.count(None):,} rows have no {name}: {filler}"
        for name, values, filler in (("session_id", sessions, "each stands alone"), ("priority", priorities, "it is 0"))
        if values is not None and None in values
    ]
    return RawColumns(
        label=prompts.label,
        timestamp=np.array(columns.time, np.int64 if whole else np.float64),
        input_tokens=np.frombuffer(columns.input_tokens, np.int64),
        output_tokens=np.frombuffer(columns.output_tokens, np.int64),
        block_offsets=np.concatenate(([0], np.cumsum(np.frombuffer(columns.counts, np.int64)))),
        block_ids=np.frombuffer(columns.block_ids, np.int64),
        place=lambda row: f"line {columns.line[row]}",
        block_tokens=block_tokens,
        session_id=None if sessions is None else _numbers(sessions),
        priority=None if priorities is None else np.array([one or 0 for one in priorities], np.int64),
        notices=notices,
    )


def _numbers(sessions: list[Any]) -> Ints:
    """Sessions as numbers; text ``"1"`` and number 1 are two sessions."""
    known: dict[Any, int] = {}
    return np.array([NO_SESSION if one is None else known.setdefault(one, len(known)) for one in sessions], np.int64)


def _ignored(prompts: Prompts) -> list[str]:
    if not prompts.ignored:
        return []
    names = ", ".join(f"{name!r}" for name in sorted(prompts.ignored)[:8])
    more = f" and {len(prompts.ignored) - 8} more" if len(prompts.ignored) > 8 else ""
    return [f"{prompts.label}: ignored fields that mean nothing here: {names}{more}"]


def _without_traces_of_the_file(trace: Trace, keep_hashes: bool) -> Trace:
    """The trace without anything that says which file it was, or when it was recorded."""
    session_id = trace.session_id
    if session_id is not None:
        known = session_id != NO_SESSION
        session_id = session_id.copy()
        session_id[known] = numbered(session_id[known])
    kind = "salted, prefix-chained hashes (63 bits)" if keep_hashes else "numbered by first appearance"
    return replace(
        trace,
        block_ids=trace.block_ids if keep_hashes else numbered(trace.block_ids),
        session_id=session_id,
        source_row=None,
        metadata={"source": "hashed prompts", "block_ids": kind, "block_tokens": str(trace.block_tokens)},
        notices=tuple(about_arrivals(trace.arrival_ms)),
    )
