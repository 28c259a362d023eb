"""The spelling of a generator's parts: ``KIND``, ``KIND:VALUE`` or ``KIND:key=value,key=value``; lists as ``1/10``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mooncake_bench.errors import SetupError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable

_NUMBER = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµ]*)")
_MS = {"": 1.0, "ms": 1.0, "us": 1e-3, "µs": 1e-3, "s": 1e3, "min": 6e4, "h": 3.6e6, "d": 8.64e7}
_TOKENS = {"": 1, "tok": 1, "k": 1000, "ki": 1024, "m": 10**6, "ktok": 1000, "mtok": 10**6}
LONGEST_MS = 1e13  # over 300 years
MOST_TOKENS = 1_000_000_000


def duration_ms(text: str, what: str) -> float:
    """A duration such as ``100ms``, ``60s``, ``5min`` or ``24h`` (bare: ms), in ms.

    Raises SetupError when it is not one, is negative or longer than 300 years.
    """
    parts = _NUMBER.fullmatch(text.strip())
    value = float(parts[1]) * _MS[parts[2].lower()] if parts and parts[2].lower() in _MS else -1.0
    if not 0 <= value <= LONGEST_MS:
        raise SetupError(f"{what}: expected a duration such as 100ms, 60s, 5min or 24h (bare: ms), got {text!r}")
    return value


def token_count(text: str, what: str) -> int:
    """A number of tokens such as ``8192``, ``32k`` (32,000) or ``32Ki`` (32,768).

    Raises SetupError when it is not a whole number from 1 to 10^9.
    """
    parts = _NUMBER.fullmatch(text.strip())
    value = float(parts[1]) * _TOKENS[parts[2].lower()] if parts and parts[2].lower() in _TOKENS else 0.0
    if not 1 <= value <= MOST_TOKENS or value != int(value):
        expected = "a whole number of tokens from 1, such as 8192, 32k (32,000) or 32Ki (32,768)"
        raise SetupError(f"{what}: expected {expected}, got {text!r}")
    return int(value)


def number(text: str, what: str, low: float, high: float, above: bool = False) -> float:
    """A number from ``low`` (or above it) to ``high``. Raises SetupError when it is not one."""
    parts = _NUMBER.fullmatch(text.strip())
    value = float(parts[1]) if parts and not parts[2] else float("nan")
    if not (low < value if above else low <= value) or not value <= high:
        raise SetupError(f"{what}: expected a number {'above' if above else 'from'} {low:g} to {high:g}, got {text!r}")
    return value


def whole(text: str, what: str, low: int = 1, high: int = 10**9) -> int:
    """A whole number from ``low`` to ``high``; underscores and commas are not taken. Raises SetupError."""
    value = number(text, what, low, high)
    if value != int(value):
        raise SetupError(f"{what}: expected a whole number, got {text!r}")
    return int(value)


class Spelled:
    """One part as written, its values still text; each value is taken once, :meth:`done` refuses what is left."""

    def __init__(self, text: str, what: str) -> None:
        """Raises SetupError for a text that does not follow the spelling."""
        self.text, self.what = text.strip(), what
        self.kind, colon, rest = self.text.partition(":")
        self.plain: list[str] = []
        self.values: dict[str, str] = {}
        for item in rest.split(",") if colon else ():
            key, equals, value = (word.strip() for word in item.partition("="))
            if not key or (equals and not value) or key in self.values:
                raise self.error(f"found {item!r}" + (" twice" if key in self.values else ""))
            if equals:
                self.values[key] = value
            else:
                self.plain.append(key)
        if not self.kind:
            raise self.error("nothing given")

    def error(self, why: str) -> SetupError:
        """The error line for this part."""
        return SetupError(f"{self.what} {self.text!r}: {why}; expected KIND, KIND:VALUE or KIND:key=value,key=value")

    def name(self, key: str) -> str:
        """How an error names one value."""
        return f"{self.what} {self.text!r}, {key}"

    def has(self, key: str) -> bool:
        """Whether the value was given."""
        return key in self.values

    def take(self, key: str, default: str | None = None) -> str:
        """The text of a value. Raises SetupError where it is missing and has no default."""
        value = self.values.pop(key, default)
        if value is None:
            raise self.error(f"{key}= is missing")
        return value

    def first(self, meaning: str) -> str:
        """The value without a key. Raises SetupError where it is missing."""
        if not self.plain:
            raise self.error(f"{meaning} is missing after the colon")
        return self.plain.pop(0)

    def done(self, known: Iterable[str]) -> None:
        """Raises SetupError for a value that nothing asked for."""
        for left in (*self.values, *self.plain):
            listed = ", ".join(known)
            takes = f"{self.kind} takes {listed}" if listed else f"{self.kind} takes nothing"
            raise SetupError(f"{self.what} {self.text!r}: unknown value {left!r}{nearest(left, known)}; {takes}")


def unknown_kind(part: Spelled, known: Iterable[str]) -> SetupError:
    """The error line for a kind that does not exist."""
    names = list(known)
    return SetupError(f"{part.what}: no kind {part.kind!r}{nearest(part.kind, names)}; known: {', '.join(names)}")
