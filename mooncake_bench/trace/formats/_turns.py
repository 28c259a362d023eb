"""Turns of a session: delays after answers, and turns that have nothing but a delay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.trace.model import NO_SESSION

if TYPE_CHECKING:
    from mooncake_bench.trace.formats._rows import Gathered
    from mooncake_bench.trace.model import Ints
    from mooncake_bench.trace.schema import RawColumns


def tell_sessions(gathered: Gathered, raw: RawColumns) -> RawColumns:
    """Adds what a person should know of sessions, by their name in the file."""
    if raw.session_id is not None:
        names = gathered.names("session_id")
        if names.missing:
            name = raw.fields.get("session_id", "session_id")
            raw.notices.append(f"{raw.label}: {names.missing:,} rows have no {name}: each stands alone")
        if names.numbered is not None:
            raw.metadata["session_ids"] = f"{names.numbered} names numbered by first appearance"
    return raw


def place_by_delay(raw: RawColumns) -> None:
    """Settles delays: ``raw.follows``, 1 where a row has no timestamp, becomes the row that it follows.

    Adds what a person should know. Raises TraceError for a turn without a timestamp that follows none.
    """
    assert raw.delay_ms is not None
    label, known = raw.label, int((~np.isnan(raw.delay_ms)).sum())
    alone = 0 if raw.session_id is None else int((~np.isnan(raw.delay_ms) & (raw.session_id == NO_SESSION)).sum())
    if raw.session_id is None or alone:
        raw.notices.append(
            f"{label}: {alone or known:,} rows have a delay and no session_id: there is no answer that it could follow"
        )
    if known:
        raw.notices.append(
            f"{label}: delays after answers are kept ({known:,} rows); "
            "a replay goes by the arrival times, but in a closed loop"
        )
    if raw.follows is not None:
        _place(raw, raw.follows.astype(bool))


def _place(raw: RawColumns, without: np.typing.NDArray[np.bool_]) -> None:
    before = _previous_turns(raw)
    for row in np.flatnonzero(without & (before < 0)).tolist():
        found = "none, and a delay after no earlier turn of its session"
        raise raw.error(row, "timestamp", found, "a number >= 0 (ms) in the first turn of each session")
    raw.follows = np.where(without, before, -1)
    stamps = raw.timestamp.copy()
    for row in np.flatnonzero(without).tolist():
        stamps[row] = stamps[before[row]]  # never read, but it must not be earlier than all others
    raw.timestamp = stamps
    raw.notices.append(
        f"{raw.label}: {int(without.sum()):,} later turns have a delay and no timestamp: placed at the previous turn's "
        "arrival + delay, the earliest they can be, for when an answer ends is not known"
    )


def _previous_turns(raw: RawColumns) -> Ints:
    """The row of the session's previous turn, in file order; -1 where there is none."""
    before = np.full(len(raw.timestamp), -1, np.int64)
    if raw.session_id is None:
        return before
    order = np.argsort(raw.session_id, kind="stable")
    sessions = raw.session_id[order]
    same = (sessions[1:] == sessions[:-1]) & (sessions[1:] != NO_SESSION)
    before[order[1:][same]] = order[:-1][same]
    return before
