"""Several searches at once: what all of them ask in a round is answered together, on every core."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

K = TypeVar("K")
Place = TypeVar("Place")
Answer = TypeVar("Answer")


def together(
    searches: Mapping[K, Generator[Place, bool, Answer]], answer: Callable[[list[tuple[K, Place]]], Sequence[bool]]
) -> dict[K, Answer]:
    """Run searches round by round: each yields a place, is sent whether something holds there, and returns its answer.

    ``answer`` gets what all of them ask in a round, by the keys of ``searches``, which the answers are under too.
    """
    found: dict[K, Answer] = {}
    asked: list[tuple[K, Place]] = []
    for key, search in searches.items():
        try:
            asked.append((key, next(search)))
        except StopIteration as end:
            found[key] = end.value
    while asked:
        following = []
        for (key, _), holds in zip(asked, answer(asked), strict=True):
            try:
                following.append((key, searches[key].send(holds)))
            except StopIteration as end:
                found[key] = end.value
        asked = following
    return found
