"""The four pictures to look at first, on one page."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mooncake_bench.report.figure import Figure
from mooncake_bench.report.figures import goodput, outcomes, tbt_cdf, ttft_cdf
from mooncake_bench.report.figures._curves import sentences

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.results import Run

NAME = "overview"
TITLE = "Overview"
DESCRIPTION = "What became of the requests, TTFT, TBT, and goodput against the TBT threshold, on one page."
TAKES = "runs"
COMBINES = ("outcomes", "ttft-cdf", "tbt-cdf", "goodput")
TITLES = ("Requests", "TTFT", "TBT", "Goodput")


def draw(runs: Sequence[Run], labels: Sequence[str]) -> Figure:
    """The first panel of each; one that is empty is left out, and the note says why."""
    made: list[Figure] = [module.draw(runs, labels) for module in (outcomes, ttft_cdf, tbt_cdf, goodput)]
    panels = [replace(each.panels[0], title=title) for title, each in zip(TITLES, made, strict=True) if not each.empty]
    why = [f"{title}: {each.empty}." for title, each in zip(TITLES, made, strict=True) if each.empty]
    if not panels:
        return replace(made[0], kind=NAME, title=TITLE)
    said = (f"{sentence.strip('. ')}." for each in made for sentence in each.note.split(". ") if sentence)
    return Figure(NAME, TITLE, tuple(panels), tuple(labels), sentences(*dict.fromkeys([*why, *said])))
