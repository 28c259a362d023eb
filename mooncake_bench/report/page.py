"""A report as one HTML page that needs nothing else: no script, no network, light and dark."""

from __future__ import annotations

from base64 import b64encode
from html import escape
from typing import TYPE_CHECKING

from mooncake_bench.report.markup import clean, text_columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mooncake_bench.report.sheets import Report, Sheet

STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --faint: #666; --line: #ccc; --paper: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --faint: #aaa; --line: #444; --paper: #151515; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 75rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top; }
th.text, td.text { text-align: left; }
p.note, li, figcaption { color: var(--faint); }
figure { margin: 1.5rem 0; } img { max-width: 100%; background: #fff; }
"""


def page(report: Report, title: str, figures: Mapping[str, bytes] | None = None) -> str:
    """The report as a complete document; every name in it stays text, whatever letters it has.

    ``figures``: PNG pictures by caption, kept inside the page.
    """
    body = "\n".join([*_body(report, title), *_figures(figures or {})])
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _body(report: Report, title: str) -> Iterator[str]:
    yield f"<h1>{_text(title)}</h1>"
    yield from (f"<p>{_text(line)}</p>" for line in report.head)
    for sheet in report.sheets:
        yield f"<h2>{_text(sheet.title)}</h2>"
        yield from _table(sheet)
        yield from (f'<p class="note">{_text(note)}</p>' for note in sheet.notes)
    if report.notices:
        yield "<h2>Notices</h2>\n<ul>"
        yield from (f"<li>{_text(notice)}</li>" for notice in report.notices)
        yield "</ul>"


def _figures(figures: Mapping[str, bytes]) -> Iterator[str]:
    if figures:
        yield "<h2>Figures</h2>"
    for caption, png in figures.items():
        source = f"data:image/png;base64,{b64encode(png).decode()}"
        yield f'<figure><img src="{source}" alt="{_text(caption)}"><figcaption>{_text(caption)}</figcaption></figure>'


def _table(sheet: Sheet) -> Iterator[str]:
    kinds = [' class="text"' if words else "" for words in text_columns(sheet)]
    yield '<div class="scroll"><table>\n<thead>'
    yield _row("th", sheet.headers, kinds)
    yield "</thead>\n<tbody>"
    yield from (_row("td", row, kinds) for row in sheet.rows)
    yield "</tbody>\n</table></div>"


def _row(tag: str, cells: tuple[str, ...], kinds: list[str]) -> str:
    return "<tr>" + "".join(f"<{tag}{kind}>{_text(c)}</{tag}>" for c, kind in zip(cells, kinds, strict=True)) + "</tr>"


def _text(text: str) -> str:
    return escape(clean(text))
