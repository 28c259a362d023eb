"""Numbers as people read them, an undefined one as a dash; and names that stay text wherever they are written."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

DASH = "–"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def clean(text: str) -> str:
    """Text without control characters: no name may move the cursor, colour the terminal or break a line."""
    return _CONTROL.sub("?", text)


def csv_text(text: str | None) -> str:
    """A name that a spreadsheet does not take for a formula."""
    text = clean(text or "")
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def integer(value: float | None) -> str:
    """A count with thousands separators."""
    return DASH if value is None else f"{value:,.0f}"


def decimal(value: float | None, digits: int = 2) -> str:
    """A number with fixed decimals."""
    return DASH if value is None else f"{value:,.{digits}f}"


def ms(value: float | None) -> str:
    """Milliseconds: whole above 1,000, else so many decimals that three digits show."""
    if value is None:
        return DASH
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def share(ratio: float | None) -> str:
    """A ratio as a percentage that says 0 or 100 only when it is exactly that."""
    if ratio is None:
        return DASH
    text = f"{100 * ratio:.1f} %"
    if text == "100.0 %" and ratio < 1:
        return ">99.9 %"
    return "<0.1 %" if text == "0.0 %" and ratio > 0 else text


def factor(ratio: float | None) -> str:
    """A value over the reference's."""
    return DASH if ratio is None else f"{ratio:.2f}×" if ratio < 100 else f"{ratio:,.0f}×"


def rate(value: float | None) -> str:
    """So many a second: 0 only when it is exactly that."""
    return significant(value) if value is not None and 0 < value < 0.1 else decimal(value)


def significant(value: float | None) -> str:
    """A number with three digits that count."""
    return DASH if value is None else f"{value:,.3g}"


def alike(values: Sequence[float | None]) -> list[str]:
    """Numbers of one column with the same decimals, so many that three digits of the largest show.

    Where the least, 0 apart, would show fewer than two digits, each has its own.
    """
    sizes = [abs(value) for value in values if value]
    digits = max(0, 2 - math.floor(math.log10(max(sizes)))) if sizes else 0
    if sizes and min(sizes) < 10.0 ** (1 - digits):
        return [integer(value) if value and abs(value) >= 1000 else significant(value) for value in values]
    return [decimal(value, digits) for value in values]


def counted(count: float, what: str) -> str:
    """A count and its noun, in the plural unless it is one."""
    return f"{count:,.0f} {what}{'' if count == 1 else 's'}"


def duration(ms: float) -> str:
    """A duration in the unit a person would use."""
    return f"{ms / 1000:g} s" if ms >= 1000 else f"{ms:g} ms"


def size(count: float | None) -> str:
    """Bytes with a decimal prefix."""
    if count is None:
        return DASH
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:g} B"
