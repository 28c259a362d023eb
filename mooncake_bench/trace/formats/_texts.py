"""Arrow columns of texts, as plain CSV and parquet have them, to names, numbers and lists of block ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from mooncake_bench.errors import TraceError
    from mooncake_bench.trace.formats._csv import Part
    from mooncake_bench.trace.model import Floats, Ints

SEPARATORS = r"[\[\]();,\s]+"  # between the ids of a list; a list of another tool may stand in brackets


def names_of(part: Part, name: str, kept: NDArray[np.bool_] | None = None) -> Ints | list[int | str | None]:
    """A column of names: integers where all are, else a mixture with texts; nothing is None.

    Raises TraceError for a negative integer.
    """
    column = pc.utf8_trim_whitespace(part.values[name])
    if kept is not None:
        column = column.filter(pa.array(kept))
    whole = _as_integers(column)
    if whole is not None and not len(whole):
        return whole
    if whole is not None and whole.min() >= 0:
        return whole
    found: list[int | str | None] = [_name(text) for text in column.to_pylist()]
    for row, value in enumerate(found):
        if isinstance(value, int) and value < 0:
            at = row if kept is None else int(np.flatnonzero(kept)[row])
            raise part.error(at, name, value, "a text, or an integer from 0 to 2**63 - 1")
    return found


def _name(text: str) -> int | str | None:
    """An integer where the text is one as we would write it, so that ``07`` and ``7`` stay two names."""
    digits = text.removeprefix("-")
    whole = digits.isascii() and digits.isdigit() and (digits[0] != "0" or text == "0") and len(digits) < 20
    return int(text) if whole and int(text) < 2**63 else text or None


def _as_integers(column: Any) -> Ints | None:
    """Integers when all texts are some, written as we would."""
    try:
        whole = pc.cast(column, pa.int64())
    except pa.ArrowInvalid:
        return None
    same = pc.all(pc.equal(pc.cast(whole, pa.string()), column)).as_py()
    return np.asarray(whole.to_numpy(zero_copy_only=False), np.int64) if same is not False else None


def numbers_or_nothing(column: Any, error: Callable[[int, str], TraceError]) -> Floats:
    """A column of numbers, nan where there is nothing. Raises ``error(row, text)`` for another text."""
    texts = pc.utf8_trim_whitespace(column)
    texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
    try:
        values = pc.cast(texts, pa.float64())
    except pa.ArrowInvalid:
        for row, text in enumerate(texts.to_pylist()):
            try:
                pa.scalar(text, pa.string()).cast(pa.float64())
            except pa.ArrowInvalid:
                raise error(row, text) from None
        raise
    return np.asarray(values.to_numpy(zero_copy_only=False), np.float64)


class BlockLists:
    """Columns of block lists: integers, or texts that are numbered by first appearance, as the first rows have them."""

    def __init__(self) -> None:
        self.texts: dict[str, int] | None = None
        self._decided = False

    def split(self, column: Any, error: Callable[[int, str], TraceError]) -> tuple[Ints, Ints]:
        """How many ids each row has, and all of them, of a column of texts such as ``17 4 5`` or ``17;4;5``.

        Raises ``error(row, text)`` for a text among integers.
        """
        plain = pc.utf8_trim(pc.replace_substring_regex(column, SEPARATORS, " "), characters=" ")
        lists = pc.split_pattern(plain, " ")
        counts = np.diff(lists.offsets.to_numpy()).astype(np.int64)
        flat = lists.flatten()
        nothing = pc.equal(plain, "").to_numpy(zero_copy_only=False)
        if nothing.any():
            flat = flat.filter(pc.not_equal(flat, ""))
            counts[nothing] = 0
        return counts, self.numbers(flat, counts, error)

    def numbers(self, flat: Any, counts: Ints, error: Callable[[int, str], TraceError]) -> Ints:
        """Ids that are texts, as numbers."""
        whole = None if self.texts is not None else _as_integers(flat)
        if whole is None and not self._decided and not self._is_typo(flat, counts):
            self.texts = {}
        self._decided = True
        if whole is not None:
            return whole
        if self.texts is None:
            raise self._first_text(flat, counts, error)
        coded = flat.dictionary_encode()
        codes = [self.texts.setdefault(text, len(self.texts)) for text in coded.dictionary.to_pylist()]
        numbers: Ints = np.array(codes, np.int64)[coded.indices.to_numpy(zero_copy_only=False)]
        return numbers

    @staticmethod
    def _is_typo(flat: Any, counts: Ints) -> bool:
        """Whether the first row has integers, and another what is none; integers beyond 64 bits are texts."""
        first = next((int(count) for count in counts if count), 0)
        digits = pc.match_substring_regex(flat, "^-?[0-9]+$")
        return _as_integers(flat[:first]) is not None and not pc.all(digits).as_py()

    @staticmethod
    def _first_text(flat: Any, counts: Ints, error: Callable[[int, str], TraceError]) -> TraceError:
        ends = np.cumsum(counts)
        for at, text in enumerate(flat.to_pylist()):
            if not text.removeprefix("-").isdigit():
                return error(int(np.searchsorted(ends, at, side="right")), text)
        return error(int(np.searchsorted(ends, len(flat) - 1, side="right")), "an integer beyond 2**63 - 1")
