"""TOML tables read with care: a fault names the file, the key, what was found and what was expected."""

from __future__ import annotations

import math
import tomllib
from typing import TYPE_CHECKING, Any

from mooncake_bench.errors import SetupError, nearest

if TYPE_CHECKING:
    from pathlib import Path

MOST_WHOLE = 10**15
"""Of tokens, bytes, layers…: what a replay's clock and columns hold."""


def read_toml(path: Path) -> dict[str, Any]:
    """The file's contents. Raises SetupError when it cannot be read or is not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SetupError(f"{path}: no such file; a name that ends in .toml is read as one") from None
    except OSError as error:
        raise SetupError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, thousands of digits or of brackets
        raise SetupError(f"{path}: not valid TOML: {error}") from None


class Table:
    """One table of a file; every key must be asked for before ``done``, or it is an unknown one."""

    def __init__(self, data: dict[str, Any], file: str, where: str = "") -> None:
        """``file`` and ``where`` (the dotted name of this table) are for messages."""
        self._data = data
        self._file = file
        self._where = where
        self._asked: set[str] = set()

    def has(self, key: str) -> bool:
        """Whether an optional key is there."""
        self._asked.add(key)
        return key in self._data

    def number(
        self,
        key: str,
        *,
        above: float = -math.inf,
        least: float = -math.inf,
        most: float = math.inf,
        default: float | None = None,
    ) -> float:
        """A finite number above ``above``, from ``least`` to ``most``; ``default`` makes the key optional."""
        expected = "a number" + _bounds(above, least, most)
        if default is not None and not self.has(key):
            return default
        value = self._get(key, expected)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, value, expected)
        if not (above < value <= most and value >= least and abs(value) < math.inf):
            raise self.wrong(key, value, expected)
        return float(value)

    def whole(self, key: str, *, least: int = 1) -> int:
        """A whole number from ``least`` to :data:`MOST_WHOLE`."""
        expected = "a whole number above 0" if least == 1 else f"a whole number of at least {least}"
        value = self._get(key, expected)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.wrong(key, value, expected)
        if value > MOST_WHOLE:
            raise self.wrong(key, value, f"a whole number of at most {MOST_WHOLE:g}")
        return value

    def whole_list(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers from 0, which may be empty."""
        expected = "a list of whole numbers"
        value = self._get(key, expected)
        if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
            raise self.wrong(key, value, expected)
        return tuple(value)

    def flag(self, key: str) -> bool:
        """True or false."""
        value = self._get(key, "true or false")
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def text(self, key: str, *, one_of: tuple[str, ...] = (), default: str | None = None) -> str:
        """A text that is not empty, one of ``one_of`` if given; ``default`` makes the key optional."""
        expected = f"one of {', '.join(map(repr, one_of))}" if one_of else "a text"
        if default is not None and not self.has(key):
            return default
        value = self._get(key, expected)
        if not isinstance(value, str) or not value.strip() or (one_of and value not in one_of):
            raise self.wrong(key, value, expected)
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts, which may be empty."""
        expected = "a list of texts"
        value = self._get(key, expected)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(key, value, expected)
        return tuple(value)

    def table(self, key: str) -> Table:
        """A table within this one."""
        expected = f"a table [{self._dotted(key)}]"
        value = self._get(key, expected)
        if not isinstance(value, dict):
            raise self.wrong(key, value, expected)
        return Table(value, self._file, self._dotted(key))

    def tables(self) -> dict[str, Table]:
        """All of this table's keys, each of which is a table."""
        return {key: self.table(key) for key in self._data}

    def done(self) -> None:
        """Raises SetupError if the table holds a key nobody asked for."""
        for key in self._data:
            if key not in self._asked:
                known = ", ".join(sorted(self._asked))
                raise SetupError(
                    f"{self._file}: unknown key {self._dotted(key)!r}{nearest(key, self._asked)}; expected: {known}"
                )

    def wrong(self, key: str, value: object, expected: str) -> SetupError:
        """The error that ``key`` is ``value``; for what a caller finds out itself, too."""
        return SetupError(f"{self._file}: key {self._dotted(key)!r} is {_short(value)}: expected {expected}")

    def _get(self, key: str, expected: str) -> object:
        self._asked.add(key)
        if key not in self._data:
            raise SetupError(f"{self._file}: key {self._dotted(key)!r} is missing: expected {expected}")
        return self._data[key]

    def _dotted(self, key: str) -> str:
        return f"{self._where}.{key}" if self._where else key


def _bounds(above: float, least: float, most: float) -> str:
    low = f" above {above:g}" if above > -math.inf else f" of at least {least:g}" if least > -math.inf else ""
    return low + (f" and at most {most:g}" if low else f" of at most {most:g}") * (most < math.inf)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:50]}... ({len(text)} characters)"
