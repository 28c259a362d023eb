"""Splitting a run's requests into groups: ``--by input_tokens|session|priority``."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.errors import ResultError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_bench.results.run import Run
    from mooncake_bench.results.steps import Bools, Floats

EDGES = (0, 1_000, 4_000, 16_000, 64_000)  # of prompt lengths, tokens
SESSIONS = 8  # shown on their own; the others are one group

Groups = list[tuple[str, "Bools"]]


def split(run: Run, by: str) -> Groups:
    """Groups of requests as (name, one truth a row), empty ones left out.

    Raises ResultError for another key, or one that the trace does not have.
    """
    if by not in KEYS:
        raise ResultError(f"--by {by!r}: expected one of {', '.join(KEYS)}{nearest(by, KEYS)}")
    return [(name, rows) for name, rows in KEYS[by](run) if rows.any()]


def _by_input(run: Run) -> Groups:
    tokens = run.requests.column("input_tokens").to_numpy()
    bounds = [*pairwise(EDGES), (EDGES[-1], None)]
    return [(_span(low, high), (tokens >= low) & (tokens < (high or np.inf))) for low, high in bounds]


def _span(low: int, high: int | None) -> str:
    return f"{low:,} and more" if high is None else f"{low:,} to {high - 1:,}" if low else f"below {high:,}"


def _by_priority(run: Run) -> Groups:
    priority = _numbers(run, "priority")
    known = np.unique(priority[~np.isnan(priority)])
    return [(f"priority {value:g}", priority == value) for value in known.tolist()] + _without(priority)


def _by_session(run: Run) -> Groups:
    session = _numbers(run, "session_id")
    names, sizes = np.unique(session[~np.isnan(session)], return_counts=True)
    largest = names[np.argsort(-sizes, kind="stable")][:SESSIONS]
    others = ~np.isin(session, largest) & ~np.isnan(session)
    shown = [(f"session {value:.0f}", session == value) for value in largest.tolist()]
    return [*shown, ("other sessions", others), *_without(session)]


def _numbers(run: Run, column: str) -> Floats:
    """A nullable column; all null means the trace has none."""
    values: Floats = run.requests.column(column).to_numpy().astype(np.float64)
    if np.isnan(values).all():
        trace = run.manifest["trace"]["name"]
        raise ResultError(f"--by {column.removesuffix('_id')}: the requests of trace {trace!r} have none")
    return values


def _without(values: Floats) -> Groups:
    return [("none given", np.isnan(values))]


KEYS: dict[str, Callable[[Run], Groups]] = {
    "input_tokens": _by_input,
    "session": _by_session,
    "priority": _by_priority,
}
