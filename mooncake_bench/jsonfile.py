"""JSON files that the tool wrote, or that claim to be such: read strictly, whatever they hold."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from pathlib import Path

MOST_DIGITS = 308  # of a whole number: as many as a float of 64 bits can count


def load(path: Path) -> Any:
    """The content of a file. Raises OSError, or ValueError as :func:`parse` does."""
    return parse(path.read_bytes())


def parse(data: bytes) -> Any:
    """The content of JSON in UTF-8, with or without a byte order mark.

    Raises ValueError, with the reason on one line, for anything else: NaN and infinity, numbers that no float holds,
    half of a surrogate pair, and what is nested too deep to be read.
    """
    try:
        text = data.decode("utf-8-sig")
        content = json.loads(text, parse_int=_whole, parse_float=_float, parse_constant=_constant)
        if "\\ud" in text.lower():
            json.dumps(content, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("nested too deep") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair in a text") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    return content


def _whole(text: str) -> int:
    if len(text.lstrip("-")) > MOST_DIGITS:
        raise ValueError(f"a number of {len(text.lstrip('-')):,} digits, beyond what can be computed with")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if abs(value) == float("inf"):
        raise ValueError(f"a number beyond what can be computed with: {text[:40]}")
    return value


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text}, which is no number")
