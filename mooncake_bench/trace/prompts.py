"""Reading requests that still have their text: JSON lines or CSV, one request a row, never shown in any message.

A row has

* when it arrived: ``arrival_ms``, ``timestamp``, ``arrived_at`` or ``arrival_time``; a number, or a text such as
  ``2025-01-31T12:00:00.250``;
* the prompt: ``prompt`` (a text) or ``messages`` (a list of ``{"role", "content"}``, as chat servers take them), or
  ``token_ids`` (a list of numbers; in CSV with spaces between, or as JSON);
* the answer's length: ``output_tokens`` or ``output_length``, or ``response`` (a text, counted with the same
  tokenizer);
* optionally ``session_id`` (an integer or a text) and ``priority``.

A chat message is encoded apart, as ``<|role|>``, a line end, its content and a line end, so that two chats share the
tokens of the messages they share whatever follows. Of other fields only the names are noticed.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from mooncake_bench.errors import TraceError
from mooncake_bench.paths import bundled

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMES = ("arrival_ms", "timestamp", "arrived_at", "arrival_time")
TEXTS = ("prompt", "messages")
LENGTHS = ("output_tokens", "output_length")
MORE = ("token_ids", "response", "session_id", "priority")
KNOWN = (*TIMES, *TEXTS, *LENGTHS, *MORE)
NUMBERS = ("arrival_ms", "timestamp", "arrived_at", "arrival_time", "output_tokens", "output_length", "priority")
MAX_LINE_BYTES = 2**28
MAX_TOKEN_ID = 2**63 - 1
GZIP_MAGIC = b"\x1f\x8b"


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EXAMPLE = "example-prompts"


def find(path_or_name: str | Path) -> Path:
    """The file of prompts meant by a path, or by the name of the bundled example. Raises TraceError for none."""
    path = bundled("traces") / f"{EXAMPLE}.jsonl" if str(path_or_name) == EXAMPLE else Path(path_or_name)
    if not path.is_file():
        raise TraceError(f"{str(path_or_name)!r}: no such file; expected prompts as JSON lines or CSV, or {EXAMPLE}")
    return path


@dataclass
class Request:
    """One row: texts to be encoded one by one, or tokens."""

    line: int
    time: int | float  # in the file's unit; of a date: microseconds since 1970
    texts: list[str] = field(default_factory=list)  # of the prompt, in order
    tokens: list[int] = field(default_factory=list)
    output_tokens: int | None = None
    response: str | None = None  # where there is no output_tokens
    session_id: int | str | None = None
    priority: int | None = None


class Prompts:
    """The requests of a file. ``ignored`` counts fields that mean nothing here, once all have been read."""

    def __init__(self, path: str | Path, as_tokens: bool) -> None:
        self.label, self.path, self.as_tokens = str(path), Path(path), as_tokens
        self.ignored: Counter[str] = Counter()
        self.dated = False  # whether times are dates; all or none

    def __iter__(self) -> Iterator[Request]:
        """Request by request. Raises TraceError for the first row that cannot be used."""
        first = True
        for line, row in self._rows():
            request = self._request(line, row, first)
            first = False
            yield request

    def error(self, line: int, name: str, found: str, expected: str) -> TraceError:
        """The error line for one row."""
        return TraceError(f"{self.label}, line {line}, field {name!r}: found {found}; expected {expected}")

    def _rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        try:
            with self.path.open("rb") as raw:
                zipped = raw.peek(2).startswith(GZIP_MAGIC)
                stream: Any = gzip.GzipFile(fileobj=raw) if zipped else raw
                buffered = io.BufferedReader(stream)
                head = buffered.peek(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
                yield from self._json(buffered) if head.startswith(b"{") else self._csv(buffered)
        except OSError as error:
            raise TraceError(f"{self.label!r} cannot be read: {error.strerror or error}") from None
        except EOFError:
            raise TraceError(f"{self.label}: the gzip file is truncated; copy it again") from None
        except UnicodeDecodeError as error:
            raise TraceError(f"{self.label}: found bytes that are not UTF-8 ({error.reason}); expected UTF-8") from None

    def _json(self, stream: IO[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
        decoder = msgspec.json.Decoder(dict[str, Any])
        number = 0
        while line := stream.readline(MAX_LINE_BYTES):
            number += 1
            if not line.strip():
                continue
            try:
                yield number, decoder.decode(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                raise TraceError(
                    f"{self.label}, line {number}: found no whole JSON object; expected one a line"
                ) from None

    def _csv(self, stream: IO[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
        limit = csv.field_size_limit(MAX_LINE_BYTES)
        try:
            reader = csv.DictReader(io.TextIOWrapper(stream, "utf-8-sig", newline=""), strict=True)
            for row in reader:
                if None in row or None in row.values():
                    width = len(reader.fieldnames or ())
                    raise TraceError(f"{self.label}, line {reader.line_num}: expected {width} fields, as in its header")
                yield reader.line_num, {name: self._cell(name, value, reader.line_num) for name, value in row.items()}
        except csv.Error as error:
            raise TraceError(f"{self.label}: expected JSON lines or CSV; the CSV cannot be read ({error})") from None
        finally:
            csv.field_size_limit(limit)

    def _cell(self, name: str, value: str, line: int) -> Any:
        """A cell as JSON would have it; an empty one is none. What cannot be converted stays text, for the checks."""
        if value == "" and name not in (*TEXTS, "response"):
            return None
        if name == "token_ids":
            return _integers(value.strip("[]").replace(",", " ").split())
        if name == "messages":
            return _json_or_text(value)
        return _number(value) if name in NUMBERS else value

    def _request(self, line: int, row: dict[str, Any], first: bool) -> Request:
        self.ignored.update(name for name in row if name not in KNOWN)
        request = Request(line, self._time(line, row, first))
        if self.as_tokens:
            request.tokens = self._tokens(line, row)
        else:
            request.texts = self._texts(line, row)
        self._answer(request, row)
        request.session_id = self._session(line, row)
        request.priority = self._whole(line, row, "priority", -(2**63))
        return request

    def _time(self, line: int, row: dict[str, Any], first: bool) -> int | float:
        name = self._one_of(line, row, TIMES, "a time of arrival")
        value = row[name]
        dated = isinstance(value, str)
        if first:
            self.dated = dated
        if dated is not self.dated:
            raise self.error(line, name, f"{_kind(value)}, unlike in the first row", "numbers only, or dates only")
        if dated:
            try:
                at = datetime.fromisoformat(value)
            except ValueError:
                raise self.error(line, name, "a text that is no date", "a number or a date and time") from None
            return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - EPOCH) // timedelta(microseconds=1)
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) >= 2**63:
            raise self.error(line, name, _kind(value), "a number below 2**63, or a date and time")
        return value

    def _tokens(self, line: int, row: dict[str, Any]) -> list[int]:
        tokens = row.get("token_ids")
        if not isinstance(tokens, list) or not tokens:
            raise self.error(line, "token_ids", _kind(tokens), "a list of at least one token id")
        if not all(type(token) is int and 0 <= token <= MAX_TOKEN_ID for token in tokens):
            raise self.error(line, "token_ids", "something else in the list", "integers from 0 to 2**63 - 1")
        return tokens

    def _texts(self, line: int, row: dict[str, Any]) -> list[str]:
        name = self._one_of(line, row, TEXTS, "the prompt's text (for token ids say so: --tokens)")
        if name == "messages":
            return self._messages(line, row["messages"])
        if not isinstance(row[name], str) or not row[name]:
            raise self.error(line, name, _kind(row[name]), "a text that is not empty")
        return [row[name]]

    def _messages(self, line: int, messages: Any) -> list[str]:
        if not isinstance(messages, list) or not messages or not all(isinstance(one, dict) for one in messages):
            raise self.error(line, "messages", _kind(messages), "a list of objects with role and content")
        return [f"<|{message.get('role', '')}|>\n{self._content(line, message)}\n" for message in messages]

    def _content(self, line: int, message: dict[str, Any]) -> str:
        content, calls = message.get("content"), message.get("tool_calls")
        if content is None and not calls:
            lacking = "content null" if "content" in message else "a message without content"
            raise self.error(line, "messages", lacking, "a text, or tool_calls, in each message")
        parts = content if isinstance(content, list) else [content or ""]
        found = [part.get("text") if isinstance(part, dict) else part for part in parts]
        texts = [text for text in found if isinstance(text, str)]
        if len(texts) < len(found):
            raise self.error(line, "messages", "content that is not text", "a text, or parts that have a text each")
        return "".join(texts) + (json.dumps(calls, sort_keys=True) if calls else "")

    def _answer(self, request: Request, row: dict[str, Any]) -> None:
        name = next((name for name in LENGTHS if row.get(name) is not None), None)
        if name is not None:
            request.output_tokens = self._whole(request.line, row, name, 1)
        elif isinstance(row.get("response"), str) and not self.as_tokens:
            request.response = row["response"]
        else:
            hint = "" if self.as_tokens else ", or the response's text"
            found = "none" if "response" not in row else _kind(row["response"])
            raise self.error(request.line, LENGTHS[0], found, f"the answer's length in tokens{hint}")

    def _session(self, line: int, row: dict[str, Any]) -> int | str | None:
        value = row.get("session_id")
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | str)):
            raise self.error(line, "session_id", _kind(value), "an integer or a text")
        return value

    def _whole(self, line: int, row: dict[str, Any], name: str, least: int) -> int | None:
        value = row.get(name)
        if value is not None and (type(value) is not int or not least <= value < 2**63):
            raise self.error(line, name, _kind(value), f"a whole number from {least}")
        return value

    def _one_of(self, line: int, row: dict[str, Any], names: tuple[str, ...], what: str) -> str:
        """The one of ``names`` that the row has."""
        found = [name for name in names if row.get(name) is not None]
        if len(found) != 1:
            shown = " and ".join(found) or "none"
            raise self.error(line, names[0], shown, f"{what}, as one of {', '.join(names)}")
        return found[0]


def _kind(value: Any) -> str:
    """What a value is, without saying what it says."""
    if value is None:
        return "none"
    if isinstance(value, str):
        return "a text" if value else "an empty text"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    return "an object" if isinstance(value, dict) else "true or false" if isinstance(value, bool) else f"{value!r}"[:40]


def _number(value: str) -> Any:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def _integers(words: list[str]) -> Any:
    try:
        return [int(word) for word in words]
    except ValueError:
        return words


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
