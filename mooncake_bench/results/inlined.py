"""Prompts that decode instances computed in their steps: which prefills those are, and what must hold of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench.errors import InvariantError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mooncake_bench.results.records import Records
    from mooncake_bench.results.steps import Bools, Ints, Segments


def on_prefill_instances(columns: Mapping[str, Any], started: str = "start_ps") -> Bools:
    """Which prefills began on a prefill instance: of a replay's columns, or of its lost attempts."""
    began: Bools = columns[started] >= 0
    return began & ~columns["inlined"] if "inlined" in columns else began


def check_inlined(records: Records) -> None:
    """A step computes one such prompt, on the instance where it decodes, and lasts from its start to its first token.

    So either a segment of one step is that step, or no segment overlaps it. What was hit was fetched.
    """
    raw = records.replay.columns
    if "inlined" not in raw:
        return
    rows = np.flatnonzero(raw["inlined"])
    place, start = raw["prefill_instance"][rows].astype(np.int64), raw["start_ps"][rows]
    ends = raw["first_token_ps"][rows]
    fine = place == raw["decode_instance"][rows]
    fine &= records.replay.is_decode[place] & (raw["hit_tokens"][rows] == raw["fetched_tokens"][rows])
    _each(fine, rows, "on its decode instance, which has only what it fetched")
    done = ends >= 0
    rows, place, start, ends = rows[done], place[done], start[done], ends[done]
    _each(_alone(place, start, ends), rows, "in a step of its own")
    _each(_fits(records.segments, place, start, ends), rows, "in one whole step of the batch, if there is a batch")


def _alone(place: Ints, start: Ints, ends: Ints) -> Bools:
    """Whether no other prompt is computed on the instance meanwhile."""
    order = np.lexsort((start, place))
    fine = np.ones(len(order), np.bool_)
    before, after = order[:-1], order[1:]
    fine[after] = (place[before] != place[after]) | (ends[before] <= start[after])
    return fine


def _fits(segments: Segments, place: Ints, start: Ints, ends: Ints) -> Bools:
    """Whether the instance's decode steps of that time are one, of the same start and end."""
    last = latest_before(segments, place, ends)
    some = segments[np.maximum(last, 0)] if len(segments) else segments
    if not len(some):
        return np.ones(len(place), np.bool_)
    same: Bools = (some.start_ps == start) & (some.steps == 1) & (some.end_ps == ends)
    return (last < 0) | (some.end_ps <= start) | same


def latest_before(segments: Segments, place: Ints, time_ps: Ints) -> Ints:
    """Index of the last segment of an instance that begins before a time, for each of several; -1 where none does."""
    found = np.full(len(place), -1, np.int64)
    for instance in np.unique(place).tolist():
        first, beyond = np.searchsorted(segments.instance, (instance, instance + 1))
        mine = np.flatnonzero(place == instance)
        at = np.searchsorted(segments.start_ps[first:beyond], time_ps[mine], "left") - 1
        found[mine] = np.where(at < 0, -1, first + at)
    return found


def _each(fine: Bools, rows: Ints, rule: str) -> None:
    if not fine.all():
        row = rows[int(np.argmin(fine))]
        raise InvariantError(
            f"{int((~fine).sum())} prompts break a rule (an inlined prompt is computed {rule}): row {row}"
        )
