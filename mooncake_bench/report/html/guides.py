"""Guides, such as SLOs: lines through the frame, with their labels in rows above it, where no curve is."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from xml.etree.ElementTree import Element, SubElement

from mooncake_bench.report.html.elements import number, text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mooncake_bench.report.figure import Guide
    from mooncake_bench.report.html.scale import Scale

LETTER = 8.2  # pixels that a letter takes, at the largest size that the style sheet has
ROW = 14  # pixels of a row of labels
BASE = 3  # pixels from a row's top to the foot of its letters, which stand in the row above


class Label(NamedTuple):
    """Words above the frame, in a row from the top, which are ``middle``, ``end`` or else begin at ``left``."""

    words: str
    left: float
    anchor: str
    row: int


def labels(guides: Sequence[Guide], x: Scale, y: Scale) -> dict[int, Label]:
    """The label of each guide, by its place among ``guides``, that belongs above the frame; none lies on another."""
    ends: list[float] = []  # of each row, what is written up to there
    found: dict[int, Label] = {}
    for (left, right), i, words, place, anchor in sorted(_wanted(guides, x, y)):
        row = next((row for row, end in enumerate(ends) if end < left), len(ends))
        ends[row : row + 1] = [right]
        found[i] = Label(words, place, anchor, row)
    return found


def _wanted(guides: Sequence[Guide], x: Scale, y: Scale) -> Iterator[tuple[tuple[float, float], int, str, float, str]]:
    """Of each labelled guide above the frame: from where to where its label reaches, and what it is."""
    for i, guide in enumerate(guides):
        place = _inside(guide, x, y)
        if not guide.label or (place is not None and not guide.upright):
            continue
        words = guide.label if place is not None else f"{guide.label} {'→' if guide.upright else '↑'}"
        wide = LETTER * len(words)
        if place is None or place + wide / 2 > x.end:
            yield (x.end - wide, x.end), i, words, x.end, "end"
        elif place - wide / 2 < x.start:
            yield (x.start, x.start + wide), i, words, x.start, ""
        else:
            yield (place - wide / 2, place + wide / 2), i, words, place, "middle"


def _inside(guide: Guide, x: Scale, y: Scale) -> float | None:
    """Where a guide lies, in pixels; None where the axis does not reach it."""
    scale = x if guide.upright else y
    low, high = sorted((scale.low, scale.high))
    return scale.at(guide.at) if low <= guide.at <= high else None


def draw(svg: Element, guides: Sequence[Guide], x: Scale, y: Scale, above: dict[int, Label], top: float) -> None:
    """Add lines and labels; ``top``: of the rows of labels."""
    for i, guide in enumerate(guides):
        group, place = SubElement(svg, "g", {"class": "guide"}), _inside(guide, x, y)
        label = above.get(i)
        foot = y.end if label is None else top + ROW * label.row + BASE
        if place is not None and guide.upright:
            high = min(y.end, foot + 3)  # up to its label
            SubElement(group, "path", {"d": f"M{number(place)} {number(y.start)}V{number(high)}"})
        elif place is not None:
            SubElement(group, "path", {"d": f"M{number(x.start)} {number(place)}H{number(x.end)}"})
        if label is not None:
            text(group, label.words, label.left, foot, label.anchor)
        elif place is not None and guide.label:  # across: beside its line
            text(group, guide.label, x.end, place - 5 if place > y.end + 16 else place + 14, "end")
