"""Goodput against the SLO threshold: what share of the offered requests would count if the SLO were another."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mooncake_bench.errors import SetupError, nearest
from mooncake_bench.report.figure import Axis, Figure, Panel
from mooncake_bench.report.figures._curves import axis, cumulative, reach, sentences, slo_guides, thinned, until
from mooncake_bench.report.figures._judged import MS_PER_S, metric_words, tbt_ms, ttft_s
from mooncake_bench.results.facts import Facts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mooncake_bench.results import Run
    from mooncake_bench.results.steps import Bools, Floats

NAME = "goodput"
TITLE = "Goodput against the SLO threshold"
DESCRIPTION = (
    "Share of the offered requests that completed within a threshold of x and the other SLO, where these could be "
    "measured, a curve a run: as in FAST'25, figure 1."
)
TAKES = "runs"
SHOWN = 3.0  # times the SLO: thresholds up to there are shown
OPTIONS = {"x": "the threshold that varies: tbt or ttft [default: tbt]"}


class Threshold(NamedTuple):
    """One of the two: its values, and which completed requests keep the other SLO."""

    label: str
    unit: str
    ms: float  # in a unit
    values: Callable[[Facts, Run], Floats]
    others_kept: Callable[[Facts], Bools]
    other: str


def _ttft_kept(facts: Facts) -> Bools:
    return facts.true("slo_ttft_ok")[facts.completed]


def _tbt_kept(facts: Facts) -> Bools:
    """What has no gap is not judged."""
    return (facts.true("slo_tbt_ok") | ~facts.known("slo_tbt_ok"))[facts.completed]


THRESHOLDS = {
    "tbt": Threshold("TBT threshold, ms", "ms", 1, tbt_ms, _ttft_kept, "TTFT"),
    "ttft": Threshold("TTFT threshold, s", "s", MS_PER_S, ttft_s, _tbt_kept, "TBT"),
}


def draw(runs: Sequence[Run], labels: Sequence[str], x: str = "tbt") -> Figure:
    """The curves; at the run's own SLO each is its goodput. A policy might decide otherwise under another SLO."""
    if x not in THRESHOLDS:
        raise SetupError(f"--x: expected one of {', '.join(THRESHOLDS)}, got {x!r}{nearest(x, THRESHOLDS)}")
    chosen = THRESHOLDS[x]
    facts = [Facts(run.manifest, run) for run in runs]
    kept = [chosen.values(each, run)[chosen.others_kept(each)] for each, run in zip(facts, runs, strict=True)]
    known = [each[~np.isnan(each)] for each in kept]
    if not any(len(each) for each in known):
        measured = "" if not any(len(each) for each in kept) else " with a token gap"
        words = f"no request{measured} completed within the {chosen.other} SLO"
        return Figure(NAME, TITLE, (), tuple(labels), empty=words)
    guides = slo_guides(runs, x, chosen.unit, chosen.ms)
    end = reach(known, guides)
    series = tuple(
        until(end, cumulative(values, each.offered, label, run, before=len(all_kept) - len(values)))
        for run, (values, all_kept, each, label) in enumerate(zip(known, kept, facts, labels, strict=True))
        if each.offered
    )
    share = Axis("share of offered", low=0, high=1)
    across, beyond = axis(chosen.label, known, guides, SHOWN)
    panel = Panel("", across, share, series, guides)
    note = sentences(
        f"Completed within the {chosen.other} SLO and the threshold.",
        metric_words(runs) if x == "tbt" else "",
        "A request without a token gap is within every TBT.",
        "The policies decided under the SLOs of their runs.",
        beyond,
        thinned([len(each) for each in known]),
    )
    return Figure(NAME, TITLE, (panel,), tuple(labels), note)
