"""Splitting a run's requests into groups: ``--by input_tokens|session|priority``."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mooncake_bench.errors import ResultError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable

    from mooncake_bench.results.run import Run
    from mooncake_bench.results.steps import Bools, Ints

EDGES = (0, 1_000, 4_000, 16_000, 64_000)  # of prompt lengths, tokens
SESSIONS = 8  # shown on their own; the others are one group

Groups = list[tuple[str, "Bools"]]


def split(run: Run, by: str) -> Groups:
    """Groups of requests as (name, one truth a row), empty ones left out.

    Raises ResultError for another key, or one that the trace does not have.
    """
    check_key(by)
    return [(name, rows) for name, rows in KEYS[by].groups(run) if rows.any()]


def check_key(by: str) -> None:
    """Raises ResultError when requests cannot be split by this."""
    if by not in KEYS:
        raise ResultError(f"--by {by!r}: expected one of {', '.join(KEYS)}{nearest(by, KEYS)}")


def _by_input(run: Run) -> Groups:
    tokens = run.requests.column("input_tokens").to_numpy()
    bounds = [*pairwise(EDGES), (EDGES[-1], None)]
    return [(_span(low, high), (tokens >= low) & (tokens < (high or np.inf))) for low, high in bounds]


def _span(low: int, high: int | None) -> str:
    return f"{low:,} and more" if high is None else f"{low:,} to {high - 1:,}" if low else f"below {high:,}"


def _by_priority(run: Run) -> Groups:
    priority, given = _numbers(run, "priority")
    known = np.unique(priority[given])
    return [*((f"priority {value}", given & (priority == value)) for value in known.tolist()), ("none given", ~given)]


def _by_session(run: Run) -> Groups:
    session, given = _numbers(run, "session_id")
    names, sizes = np.unique(session[given], return_counts=True)
    largest = names[np.argsort(-sizes, kind="stable")][:SESSIONS]
    shown = [(f"session {value}", given & (session == value)) for value in largest.tolist()]
    return [*shown, ("other sessions", given & ~np.isin(session, largest)), ("none given", ~given)]


def _numbers(run: Run, column: str) -> tuple[Ints, Bools]:
    """A nullable column and where it has a number; all null means the trace has none.

    Never through float: ids that differ in the last of 64 bits are different.
    """
    values = run.requests.column(column)
    given: Bools = values.is_valid().to_numpy()
    if not given.any():
        trace = run.manifest["trace"]["name"]
        raise ResultError(f"--by {column.removesuffix('_id')}: the requests of trace {trace!r} have none")
    return values.fill_null(0).to_numpy(), given


class Key(NamedTuple):
    """What requests can be split by: how, and the column of a trace that this needs."""

    groups: Callable[[Run], Groups]
    column: str | None = None


KEYS: dict[str, Key] = {
    "input_tokens": Key(_by_input),
    "session": Key(_by_session, "session_id"),
    "priority": Key(_by_priority, "priority"),
}
