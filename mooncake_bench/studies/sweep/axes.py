"""What is varied: ``KEY=V1,V2,…`` as a person writes it, or a list as TOML has it, to values one by one.

``;`` always separates, and where a text holds one nothing else does. Else a comma separates, but not in settings whose
values hold commas themselves, and not within the parameters of a policy: after ``:k=v``, a further ``k=v`` is one more
parameter. ``A..B`` and ``A..B..STEP`` are ranges of numbers, both ends included.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from mooncake_bench.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

POLICY, TRACE = "policy", "trace.path"
WITH_COMMAS = ("events", "slo.classes", "live.layers", "trace.columns")
MOST_VALUES = 100_000
_NUMBER = r"[+-]?\d+(?:\.\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(?:\.\.({_NUMBER}))?")
_PARAMETER = re.compile(r"\s*\w+\s*=[^:]*")


@dataclass(frozen=True)
class Axis:
    """A setting by its dotted name, ``policy``, or a policy's parameter ``LABEL.k``, and the values that it takes."""

    key: str
    values: tuple[Any, ...]


def parse_axis(text: str) -> Axis:
    """``KEY=V1,V2,…``. Raises SetupError for anything else, and for a value that is given twice."""
    key, equals, listed = text.partition("=")
    if not equals or not key.strip() or not listed.strip():
        raise SetupError(f"--vary: expected KEY=V1,V2,... such as speedup=1,2,3, got {text!r}")
    return axis_of(key.strip(), _split(key.strip(), listed), f"--vary {key.strip()}")


def axis_of(key: str, values: Any, where: str) -> Axis:
    """An axis from values one by one, or from one text that lists them. Raises SetupError."""
    parts = _split(key, values) if isinstance(values, str) else values if isinstance(values, list) else [values]
    if not parts or not all(isinstance(part, str | int | float) for part in parts):
        raise SetupError(f"{where}: expected a list of values, got {values!r}")
    found = tuple(value for part in parts for value in _expanded(part, where))
    if any(isinstance(value, str) and not value for value in found):
        raise SetupError(f"{where}: a value is missing between separators in {values!r}")
    twice = next((value for i, value in enumerate(found) if value in found[:i]), None)
    if twice is not None:
        raise SetupError(f"{where}: {twice!r} is given twice; keep one")
    return Axis(key, found)


def _split(key: str, listed: str) -> list[str]:
    if ";" in listed:
        return [part.strip() for part in listed.split(";")]
    if key in WITH_COMMAS:
        return [listed.strip()]
    parts = listed.split(",")
    return [part.strip() for part in (_specs(parts) if key == POLICY else parts)]


def _specs(parts: Iterable[str]) -> Iterator[str]:
    """Policy SPECs from what stands between commas."""
    spec = ""
    for part in parts:
        if spec and _takes_parameters(spec) and _PARAMETER.fullmatch(part):
            spec += f",{part}"
            continue
        if spec:
            yield spec
        spec = part
    yield spec


def _takes_parameters(spec: str) -> bool:
    """Whether the text ends inside the ``:k=v`` of a policy."""
    return any("=" in piece for piece in spec.split("+")[-1].split(":")[1:])


def _expanded(part: Any, where: str) -> Iterator[Any]:
    """A range as its numbers, anything else as it is."""
    match = _RANGE.fullmatch(part) if isinstance(part, str) else None
    if match is None:
        yield part
        return
    first, last, step = (Decimal(text) for text in (match[1], match[2], match[3] or "1"))
    if step <= 0 or last < first:
        raise SetupError(f"{where}: range {part!r}: expected A..B or A..B..STEP with A <= B and a step above 0")
    count = int((last - first) / step) + 1
    if count > MOST_VALUES:
        raise SetupError(f"{where}: range {part!r} has {count:,} values; at most {MOST_VALUES:,}")
    for i in range(count):
        yield str(first + i * step)
