"""Notices of several runs, folded: what is true of several policies is said once."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def fold(notices: Iterable[tuple[str, str]]) -> list[str]:
    """Lines from (label, text), in order of first appearance; texts that differ in numbers only share one line.

    There, a number becomes its range over the labels: ``a, b: only 2 to 3 requests completed``.
    """
    found: dict[str, list[tuple[str, str]]] = {}
    for label, text in notices:
        found.setdefault(_NUMBER.sub("0", text), []).append((label, text))
    return [f"{', '.join(dict.fromkeys(label for label, _ in each))}: {_merged(each)}" for each in found.values()]


def _merged(notices: Sequence[tuple[str, str]]) -> str:
    texts = [text for _, text in notices]
    numbers = zip(*(_NUMBER.findall(text) for text in texts), strict=True)
    ranges = iter([_range(each) for each in numbers])
    return _NUMBER.sub(lambda _: next(ranges), texts[0])


def _range(numbers: Sequence[str]) -> str:
    low, high = (choose(numbers, key=lambda text: float(text.replace(",", ""))) for choose in (min, max))
    return low if low == high else f"{low} to {high}"
