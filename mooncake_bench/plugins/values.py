"""A parameter's value: from the text of a SPEC to what the policy's dataclass field is annotated with."""

from __future__ import annotations

import math
import re
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

_DURATION = re.compile(r"(?P<number>\d+\.?\d*|\.\d+)(?P<unit>us|ms|s|min|h)")
_MS = {"us": 0.001, "ms": 1.0, "s": 1000.0, "min": 60_000.0, "h": 3_600_000.0}
_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    NoneType: "none",
}
_DURATION_WORDS = "a number or a duration such as 12s"
_STRICTEST_FIRST = (NoneType, bool, int, float, str)


def read(text: str, annotation: Any, name: str = "") -> Any:
    """The value ``text`` stands for; durations become ms. Raises ValueError when it does not fit the annotation.

    ``name`` is the parameter's, for the message.
    """
    for choice in sorted(_choices(annotation), key=_strictness):
        try:
            return _read_one(text, choice)
        except ValueError:
            continue
    raise ValueError(f"expected {expected(annotation, name)}, found {text!r}")


def expected(annotation: Any, name: str = "") -> str:
    """What the field ``name`` takes, in words: durations are offered where it looks like a time."""
    choices = _choices(annotation)
    a_time = name == "td" or name.endswith("_ms") or any(get_origin(choice) is Literal for choice in choices)
    return " or ".join(_DURATION_WORDS if choice is float and a_time else _in_words(choice) for choice in choices)


def _in_words(choice: Any) -> str:
    if get_origin(choice) is Literal:
        return " or ".join(str(value) for value in get_args(choice))
    return _WORDS.get(choice, getattr(choice, "__name__", str(choice)))


def readable(annotation: Any) -> bool:
    """Whether a SPEC can set a field of this annotation."""
    return all(get_origin(choice) is Literal or choice in _WORDS for choice in _choices(annotation))


def _choices(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (Union, UnionType):
        return tuple(choice for member in get_args(annotation) for choice in _choices(member))
    return (NoneType if annotation is None else annotation,)


def _strictness(choice: Any) -> int:
    return _STRICTEST_FIRST.index(choice) if choice in _STRICTEST_FIRST else -1


def _read_one(text: str, choice: Any) -> Any:
    if get_origin(choice) is Literal:
        return (
            {str(value): value for value in get_args(choice)}[text] if text in map(str, get_args(choice)) else _fail()
        )
    if choice is NoneType:
        return None if text.lower() == "none" else _fail()
    if choice is bool:
        return text.lower() == "true" if text.lower() in ("true", "false") else _fail()
    if choice is int:
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else _fail()
    if choice is float:
        return _number(text)
    return text if choice is str else _fail()


def _number(text: str) -> float:
    if match := _DURATION.fullmatch(text):
        return float(match["number"]) * _MS[match["unit"]]
    value = float(text)
    return _fail() if math.isnan(value) else value


def _fail() -> Any:
    raise ValueError
