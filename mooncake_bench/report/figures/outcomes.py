"""What became of the requests, and of the prompt tokens, as bars."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mooncake_bench.report.figure import Axis, Figure, Panel, Series
from mooncake_bench.results.facts import Facts
from mooncake_bench.results.records import STAGES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mooncake_bench.results import Run
    from mooncake_bench.results.steps import Bools

NAME = "outcomes"
TITLE = "What became of the requests"
DESCRIPTION = (
    "Bars of the requests, and of their prompt tokens: offered, completed, completed within the SLOs, rejected by "
    "stage and failed."
)
TAKES = "runs"


class Outcome(NamedTuple):
    """One group of bars: its name, which requests it counts, and whether it stands there when all its bars are 0."""

    name: str
    where: Callable[[Facts], Bools]
    always: bool = False


OUTCOMES = (
    Outcome("offered", lambda facts: np.ones(facts.offered, np.bool_), always=True),
    Outcome("completed", lambda facts: facts.completed, always=True),
    Outcome("within SLOs", lambda facts: facts.completed & facts.true("slo_ok"), always=True),
    *(
        Outcome(f"rejected at {stage}", lambda facts, stage=stage: facts.rejected_at(stage))  # type: ignore[misc]
        for stage in STAGES[1:]
    ),
    Outcome("failed", lambda facts: facts.status("failed")),
    Outcome("unfinished", lambda facts: facts.status("unfinished")),
)


def draw(runs: Sequence[Run], labels: Sequence[str]) -> Figure:
    """Two panels: by requests, and by their prompt tokens, for shedding long prompts looks good by requests."""
    facts = [Facts(run.manifest, run) for run in runs]
    if not any(each.offered for each in facts):
        return Figure(NAME, TITLE, (), tuple(labels), empty="no request was offered")
    found = [[outcome.where(each) for outcome in OUTCOMES] for each in facts]
    tokens = [each.column("input_tokens") for each in facts]
    shown = [i for i, outcome in enumerate(OUTCOMES) if outcome.always or any(each[i].any() for each in found)]
    requests = [[int(each[i].sum()) for i in shown] for each in found]
    sums = [[int(size[each[i]].sum()) for i in shown] for each, size in zip(found, tokens, strict=True)]
    names = tuple(OUTCOMES[i].name for i in shown)
    panels = (
        _panel("Requests", "requests", names, requests, labels),
        _panel("Prompt tokens", "prompt tokens", names, sums, labels),
    )
    absent = [outcome.name for i, outcome in enumerate(OUTCOMES) if i not in shown]
    note = f"No request was {' or '.join(absent)}." if absent else ""
    return Figure(NAME, TITLE, panels, tuple(labels), note)


def _panel(title: str, unit: str, names: tuple[str, ...], counts: list[list[int]], labels: Sequence[str]) -> Panel:
    places = tuple(float(i) for i in range(len(names)))
    series = tuple(
        Series(label, places, tuple(map(float, bars)), run, "bars")
        for run, (label, bars) in enumerate(zip(labels, counts, strict=True))
    )
    return Panel(title, Axis("", categories=names), Axis(unit, low=0), series)
