"""The page itself: sections with tables and figures, put into a template by Jinja2 (the extra ``report``).

A page is the same bytes for the same runs. Names are escaped by the template (autoescape) and, in pictures, by
:mod:`xml.etree`; a content security policy forbids every request and every script but the page's own.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from mooncake_bench.errors import SetupError
from mooncake_bench.report.html import shapes, svg
from mooncake_bench.report.html.payload import payload
from mooncake_bench.report.html.tables import Table, file_name, tables
from mooncake_bench.results.words import clean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mooncake_bench.report.figure import Figure, Series
    from mooncake_bench.report.sheets import Report

MISSING = "pages need Jinja2, which is not installed: pip install 'mooncake-bench[report]'"


class Illustration(NamedTuple):
    """A figure, and a sentence that says what is drawn."""

    figure: Figure
    description: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the page under its own heading: text, tables, then what is folded away, then pictures."""

    title: str
    paragraphs: Sequence[str] = ()
    tables: Sequence[Table] = ()
    notices: Sequence[str] = ()
    folded: Sequence[Table] = ()
    figures: Sequence[Illustration] = ()
    pictures: Mapping[str, bytes] = field(default_factory=dict)  # PNG by caption


@dataclass(frozen=True)
class Page:
    """What a page says. ``files``: texts to download, by name; ``about``: the last line."""

    title: str
    head: Sequence[str]
    sections: Sequence[Section]
    files: Mapping[str, str] = field(default_factory=dict)
    about: str = ""


def of_report(report: Report, title: str, pictures: Mapping[str, bytes] | None = None) -> Page:
    """The page of any report: its tables and notices, and PNG pictures by caption."""
    sections = [Section("Results", tables=tables(report.sheets))]
    if report.notices:
        sections.append(Section("Notices", notices=report.notices))
    if pictures:
        sections.append(Section("Figures", pictures=pictures))
    return Page(title, report.head, sections)


def render(page: Page) -> str:
    """The page as one HTML document. Raises SetupError without Jinja2."""
    environment = _environment()
    style, script = (files(__package__).joinpath("templates", name).read_text("utf-8") for name in _PARTS)
    from markupsafe import Markup

    shown = [_Shown(section) for section in page.sections]
    text: str = environment.get_template("page.html").render(
        page=page,
        sections=shown,
        data=[figure.data for section in shown for figure in section.figures if figure.data],
        style=Markup(style),
        script=Markup(script),
        policy=_policy(style, script),
    )
    return text


_PARTS = ("page.css", "page.js")


def check_jinja() -> None:
    """Raises SetupError where Jinja2 is missing: to be known before any work is done."""
    _environment()


def _environment() -> Any:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise SetupError(MISSING) from None
    environment = Environment(
        loader=PackageLoader(__package__ or "", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_finalize,
    )
    environment.filters["png"] = lambda data: base64.b64encode(data).decode()
    environment.filters["base64"] = lambda text: base64.b64encode(text.encode("utf-8", "replace")).decode()
    environment.filters["slug"] = lambda title: file_name(title, ())
    environment.filters["json"] = _json
    return environment


def _finalize(value: Any) -> Any:
    """Names without control characters; what is markup already stays."""
    return clean(value) if type(value) is str else value


def _json(value: Any) -> Any:
    """JSON that may stand in a script element: no ``<`` that could end it."""
    from markupsafe import Markup

    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)


def _policy(style: str, script: str) -> str:
    """A content security policy: no request at all, and only this style and this script."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    return (
        f"default-src 'none'; img-src data:; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )


# ---- figures


@dataclass(frozen=True)
class Entry:
    """A line of a legend."""

    key: int
    label: str
    mark: Any


class _Figure:
    """A figure with its panels drawn and its legend."""

    def __init__(self, drawing: Illustration, number: int) -> None:
        from markupsafe import Markup

        figure, self.description = drawing
        self.figure, self.id = figure, f"figure-{number}-{file_name(figure.kind, ())}"
        looks = _looks(figure)
        keys = [[looks.index(_look(series)) for series in panel.series] for panel in figure.panels]
        first = {_look(each): each for panel in reversed(figure.panels) for each in reversed(panel.series)}
        manners = shapes.manners(figure.panels, keys)
        marks = [Markup(svg.legend_mark(first[look], manners[i])) for i, look in enumerate(looks)]
        self.legend = [Entry(i, look[0], mark) for i, (look, mark) in enumerate(zip(looks, marks, strict=True))]
        drawn = [
            svg.draw(panel, key, f"{figure.title}: {panel.title or panel.y.label}", manners)
            for panel, key in zip(figure.panels, keys, strict=True)
        ]
        self.panels = [(panel.title, Markup(each.svg)) for panel, each in zip(figure.panels, drawn, strict=True)]
        self.data = None if figure.empty else {"id": self.id, **payload(figure, drawn, keys)}


class _Shown:
    """A section as the template wants it."""

    def __init__(self, section: Section) -> None:
        self.section = section
        self.figures = [_Figure(each, i) for i, each in enumerate(section.figures, 1)]


def _look(series: Series) -> tuple[Any, ...]:
    """What makes two series one line of the legend."""
    return series.label, series.run, series.dashed, "line" if series.shape == "step" else series.shape


def _looks(figure: Figure) -> list[tuple[Any, ...]]:
    return list(dict.fromkeys(_look(series) for panel in figure.panels for series in panel.series))
