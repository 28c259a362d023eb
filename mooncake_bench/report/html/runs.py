"""What the page of some runs says, in its order: what was replayed, the tables, the pictures."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mooncake_bench.report import figures, markup
from mooncake_bench.report.html import facts
from mooncake_bench.report.html.page import Illustration, Page, Section
from mooncake_bench.report.html.tables import tables
from mooncake_bench.report.sheets import report
from mooncake_bench.results.words import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mooncake_bench.results.compare import Comparison

FIRST = ("outcomes", "ttft-cdf", "tbt-cdf", "goodput", "load", "queue", "cache")
"""Kinds of figure in the order in which a reader wants them; others follow by name."""
TITLE_LETTERS = 80


def of_runs(comparison: Comparison, title: str | None = None) -> Page:
    """The page of one or several runs, the reference first."""
    content = report(comparison)
    replayed = Section(
        "What was replayed",
        notices=content.notices,
        tables=tables([*facts.differing(comparison), facts.policies(comparison)], words=True),
    )
    sections = [
        replayed,
        Section("Results", tables=tables(content.sheets)),
        Section("Figures", figures=list(illustrations(comparison))),
        Section("In full", folded=tables([each(comparison) for each in FOLDED], words=True)),
    ]
    kept = _without_folders(comparison)
    files = {"metrics.csv": markup.table_csv(kept), "metrics.json": markup.table_json(kept)}
    return Page(title or usual_title(comparison), content.head, sections, files, _about(comparison))


FOLDED = (facts.setup, facts.traces, facts.costs, facts.sources, facts.origins)


def usual_title(comparison: Comparison) -> str:
    """Which policies, or how many where that is long, on which trace."""
    labels = list(dict.fromkeys(run.label for run in comparison.runs))
    shown = ", ".join(labels[:-1]) + " and " + labels[-1] if len(labels) > 1 else labels[0]
    names = ", ".join(dict.fromkeys(str(run.manifest["trace"]["name"]) for run in comparison.runs))
    return f"{shown if len(shown) <= TITLE_LETTERS else counted(len(comparison.runs), 'run')} on {names}"


def illustrations(comparison: Comparison) -> Iterator[Illustration]:
    """Every kind of figure of runs, those made of other kinds left out."""
    known = figures.kinds()
    for name in [*(name for name in FIRST if name in known), *(name for name in known if name not in FIRST)]:
        kind = known[name]
        if kind.TAKES == "runs" and not getattr(kind, "COMBINES", ()):
            yield Illustration(figures.make(name, comparison.runs, comparison.labels), kind.DESCRIPTION)


def _without_folders(comparison: Comparison) -> Comparison:
    """The same runs, each in a folder of its name alone: those above it are private."""
    runs = [copy(run) for run in comparison.runs]
    for run in runs:
        run.path = run.path and Path(run.path.name)
    return replace(comparison, runs=tuple(runs))


def _about(comparison: Comparison) -> str:
    versions = dict.fromkeys(str(run.manifest.get("simulator_version")) for run in comparison.runs)
    made = counted(len(comparison.runs), "run")
    return f"Made by mooncake-bench report from {made}, simulator version {', '.join(versions)}."
