"""How tests read a page: its tables, numbers and names from the document alone, and its pictures back into numbers."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree as ET


class Reader(HTMLParser):
    """Every element's tag and attributes, the texts of scripts and styles, and the cells of each table by its id."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self.tables: dict[str, list[list[str]]] = {}
        self.words: list[str] = []
        self._open: str | None = None
        self._table = ""
        self._cell = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.elements.append((tag, found))
        if tag in self.raw:
            self._open = tag
            self.raw[tag].append("")
        if tag == "div" and (found.get("id") or "").startswith("table-"):
            self._table = str(found["id"]).removeprefix("table-")
        if tag == "tr":
            self.tables.setdefault(self._table, []).append([])
        if tag in ("td", "th"):
            self.tables[self._table][-1].append("")
            self._cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag in self.raw:
            self._open = None
        if tag in ("td", "th"):
            self._cell = False

    def handle_data(self, data: str) -> None:
        if self._open:
            self.raw[self._open][-1] += data
            return
        self.words.append(data)
        if self._cell:
            self.tables[self._table][-1][-1] += data

    def rows(self, table: str) -> list[dict[str, str]]:
        """The rows of a table by the names of its columns; a name that comes again is counted up."""
        head, *body = self.tables[table]
        names = [name if name not in head[:i] else f"{name} {head[:i].count(name) + 1}" for i, name in enumerate(head)]
        return [dict(zip(names, row, strict=True)) for row in body]

    def numbers(self) -> dict[str, Any]:
        """What the page keeps of each figure, by its kind."""
        found = json.loads(self.raw["script"][0])
        return {each["name"]: each for each in found}


def pictures(text: str) -> list[ET.Element]:
    """Every panel of a page, read by an XML parser."""
    return [ET.fromstring(svg) for svg in re.findall(r'<svg viewBox="[^"]*" role="img".*?</svg>(?=</div>)', text, re.S)]


def with_class(svg: ET.Element, name: str) -> list[ET.Element]:
    """Elements of a class, in the order in which they are drawn."""
    return [each for each in svg.iter() if name in (each.get("class") or "").split()]


def points(path: str) -> list[list[tuple[float, float]]]:
    """The corners of each piece of a path of lines."""
    pieces = [piece for piece in path.split("M") if piece]
    return [[(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", piece)] for piece in pieces]


def labelled(svg: ET.Element) -> tuple[list[tuple[float, str]], list[tuple[float, str]]]:
    """Ticks of x and of y as (pixel, text): what a reader would read the picture by."""
    words = [each for each in with_class(svg, "axis")[0].iter("text") if "label" not in (each.get("class") or "")]
    across = [(float(each.get("x", "")), each.text or "") for each in words if each.get("class") == "middle"]
    up = [(float(each.get("y", "")) - 4, each.text or "") for each in words if each.get("class") == "end"]
    return across, up


def value(pixel: float, ticks: list[tuple[float, str]]) -> float:
    """What lies at a pixel, between the first and the last tick of a linear axis."""
    (first, low), (last, high) = ticks[0], ticks[-1]
    start, end = (float(text.replace(",", "").replace("k", "e3")) for text in (low, high))
    return start + (pixel - first) / (last - first) * (end - start)
