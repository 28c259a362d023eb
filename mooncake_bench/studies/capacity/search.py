"""Searches that ask whether a rule holds at a place, and return what they found."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

FASTEST = 2.0  # from one load to the next while a search looks for one that is too much


class Bracket(NamedTuple):
    """The highest load at which the rule held, and the lowest above it at which it did not; None: none was found."""

    low: float | None
    high: float | None


def loads(
    start: float, tolerance: float, least: float, most: float, first: float = FASTEST
) -> Generator[float, bool, Bracket]:
    """Bracket from ``start``, then bisect until the load above is at most ``1 + tolerance`` times the one below.

    ``first``: the factor of the first step; each next one is its square, up to 2. Loads stay in ``[least, most]``.
    """
    holds = yield start
    low, high = (start, None) if holds else (None, start)
    factor = first
    while low is None or high is None:
        at = low * factor if low is not None else (high or start) / factor
        at = min(max(at, least), most)
        if at in (low, high):  # the end of what may be tried
            return Bracket(low, high)
        if (yield at):
            low = at
        else:
            high = at
        factor = min(factor * factor, FASTEST)
    while high > low * (1 + tolerance):
        middle = sqrt(low * high)
        if (yield middle):
            low = middle
        else:
            high = middle
    return Bracket(low, high)


class Split(NamedTuple):
    """How many prefill and how many decode nodes (of coupled ones: the former)."""

    prefill: int
    decode: int


def splits(most: Split, size: Callable[[Split], float]) -> Generator[Split, bool, list[Split]]:
    """The smallest splits at which the rule holds, all of the same ``size``; empty where it holds at none up to most.

    Where fewer nodes never do better, the least number of decode nodes does not fall when prefill nodes are taken away:
    so one walk along that edge, at most ``most.prefill + most.decode`` places, finds every smallest split. Needs
    ``size`` to grow with both.
    """
    if most.decode == 0:
        fewest = yield from _fewest(most.prefill, lambda nodes: Split(nodes, 0))
        return [Split(fewest, 0)] if fewest <= most.prefill else []
    at = Split(most.prefill, (yield from _fewest(most.decode, lambda nodes: Split(most.prefill, nodes))))
    best: list[Split] = []
    while at.prefill >= 1 and at.decode <= most.decode:
        if best and size(at) > size(best[-1]):
            at = Split(at.prefill - 1, at.decode)
        elif (yield at):
            best = [each for each in best if size(each) <= size(at)] + [at]
            at = Split(at.prefill - 1, at.decode)
        else:
            at = Split(at.prefill, at.decode + 1)
    return best


def _fewest(most: int, split: Callable[[int], Split]) -> Generator[Split, bool, int]:
    """The fewest nodes of one role that suffice; one more than there are, where none do."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        if (yield split(middle)):
            high = middle
        else:
            low = middle
    return high
