"""SVG elements that every picture has: text, and how a coordinate is written."""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement

from mooncake_bench.results.words import clean


def number(value: float) -> str:
    """A coordinate, to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")


def text(parent: Element, words: str, left: float, top: float, kind: str = "", most: int = 200) -> Element:
    """Text at a place, cut after ``most`` letters, with the whole of it in a hint.

    ``kind``: classes, among them where it is anchored (``middle``, ``end``).
    """
    made = SubElement(parent, "text", {"x": number(left), "y": number(top), **({"class": kind} if kind else {})})
    made.text = clean(words if len(words) <= most else words[: most - 1] + "…")
    if len(words) > most:
        SubElement(made, "title").text = clean(words)
    return made
