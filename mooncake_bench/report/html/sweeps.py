"""What the page of a sweep says: its trade-offs and trends, its points with their metrics, and what it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mooncake_bench.report import figures, sweep_sheets
from mooncake_bench.report.html.facts import setting_text
from mooncake_bench.report.html.page import Illustration, Page, Section
from mooncake_bench.report.html.tables import tables
from mooncake_bench.report.sheets import Sheet
from mooncake_bench.results.words import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mooncake_bench.results.sweep import Sweep


def of_sweep(sweep: Sweep, title: str | None = None) -> Page:
    """The page of a stored sweep, finished or not."""
    content = sweep_sheets.results(sweep)
    drawn = [
        Illustration(figures.make(name, sweep), kind.DESCRIPTION)
        for name, kind in figures.kinds().items()
        if kind.TAKES == "sweep"
    ]
    facts = [_policies(sweep), _setup(sweep.manifest), _sources(sweep.manifest)]
    sections = [
        Section("Figures", notices=content.notices, figures=drawn),
        Section("Results", tables=tables(content.sheets)),
        Section("In full", folded=tables(facts, words=True)),
    ]
    files = {"sweep.csv": sweep_sheets.as_csv(sweep)}
    return Page(title or f"Sweep {sweep.name}", content.head, sections, files, _about(sweep))


def _policies(sweep: Sweep) -> Sheet:
    """What each label stands for."""
    found = dict.fromkeys((str(point["policy_label"]), str(point["policy"])) for point in sweep.points)
    return Sheet("Policies", ("policy", "SPEC"), tuple(found))


def _setup(manifest: Mapping[str, Any]) -> Sheet:
    rows = tuple((key, setting_text(key, value)) for key, value in manifest["setup"].items())
    return Sheet("What all points share", ("setting", "value"), rows)


def _sources(manifest: Mapping[str, Any]) -> Sheet:
    return Sheet("Policy files", ("file", "sha256"), tuple((str(k), str(v)) for k, v in manifest["sources"].items()))


def _about(sweep: Sweep) -> str:
    points, version = counted(len(sweep.points), "point"), sweep.manifest.get("simulator_version")
    return f"Made by mooncake-bench report from a sweep of {points}, simulator version {version}."
