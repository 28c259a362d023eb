"""The geometry of decoding: which steps exist, how long each lasted, and which a request took part in.

A *segment* is a stretch of steps of one instance at constant batch: its step ``j`` lasts ``step_ps + j * growth_ps``.
A *stay* is a request's time in one batch: whole segments, so many steps from ``first_step`` on. All times are
integer ps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mooncake_bench import spool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

SEGMENT_COLUMNS = ("instance", "start_ps", "first_step", "steps", "step_ps", "growth_ps", "batch", "tokens")
STAY_COLUMNS = ("request", "instance", "join_ps", "first_step", "steps")


@dataclass(frozen=True)
class Segments:
    """Decode segments as columns, sorted by instance and then by step number."""

    instance: Ints
    start_ps: Ints
    first_step: Ints
    steps: Ints
    step_ps: Ints
    growth_ps: Ints
    batch: Ints
    tokens: Ints
    pause_ps: Ints  # since the end of the instance's segment before it; -1: there is none

    @classmethod
    def of(cls, columns: Mapping[str, Ints]) -> Segments:
        """Segments in any order, sorted; the very columns when they are in order."""
        if not _in_order(columns["instance"], columns["first_step"]):
            columns = _taken(columns, np.lexsort((columns["first_step"], columns["instance"])), SEGMENT_COLUMNS)
        found = {name: np.asarray(columns[name], np.int64) for name in SEGMENT_COLUMNS}
        return cls(**found, pause_ps=_pauses(found))

    def __len__(self) -> int:
        return len(self.instance)

    def __getitem__(self, at: Any) -> Segments:
        """Some of them: a slice, or their indices in rising order."""
        return Segments(*(getattr(self, name)[at] for name in (*SEGMENT_COLUMNS, "pause_ps")))

    @property
    def end_ps(self) -> Ints:
        """When the last step of each segment ended."""
        return self.start_ps + elapsed_ps(self.steps, self.step_ps, self.growth_ps)

    def durations_ps(self) -> Ints:
        """Length of every single step, segment after segment: shape (sum of steps,)."""
        before = np.cumsum(self.steps) - self.steps
        place = np.arange(int(self.steps.sum())) - np.repeat(before, self.steps)
        place *= np.repeat(self.growth_ps, self.steps)
        place += np.repeat(self.step_ps, self.steps)
        return place

    def gaps_ps(self) -> Ints:
        """The gap that ends with every single step, for who was there before: its length, and the pause before it.

        A batch pauses on coupled instances only, while they prefill; elsewhere nobody was there before a pause.
        """
        gaps = self.durations_ps()
        first = np.cumsum(self.steps) - self.steps
        worked = self.steps > 0
        gaps[first[worked]] += np.maximum(self.pause_ps[worked], 0)
        return gaps

    def find(self, instance: Ints, step: Ints) -> Ints:
        """Index of the segment that holds each (instance, step number); -1 where none does."""
        if not len(self):
            return np.full(len(instance), -1, np.int64)
        most, keys = self._most, self._keys
        at = np.searchsorted(keys, instance * (most + 1) + np.minimum(step, most), "right") - 1
        first, steps = self.first_step[at], self.steps[at]
        inside = (self.instance[at] == instance) & (step >= first) & (step < first + steps)
        return np.where((at >= 0) & inside, at, -1)

    @cached_property
    def _most(self) -> int:
        """No step has a larger number."""
        return max(int((self.first_step[part] + self.steps[part]).max()) for part in spool.parts(len(self)))

    @cached_property
    def _keys(self) -> Ints:
        """Instance and first step in one number, which rises."""
        keys = spool.empty(len(self), np.int64)
        for part in spool.parts(len(self)):
            keys[part] = self.instance[part] * (self._most + 1) + self.first_step[part]
        return keys


def _pauses(columns: Mapping[str, Ints]) -> Ints:
    """From the end of each segment's predecessor on its instance to its start; -1 for the first of an instance."""
    instance, start_ps = columns["instance"], columns["start_ps"]
    steps, step_ps, growth_ps = columns["steps"], columns["step_ps"], columns["growth_ps"]
    pauses = spool.full(len(instance), -1, np.int64)
    for part in spool.parts(max(len(instance) - 1, 0)):
        before, after = part, slice(part.start + 1, part.stop + 1)
        ends = start_ps[before] + elapsed_ps(steps[before], step_ps[before], growth_ps[before])
        same = instance[before] == instance[after]
        pauses[after] = np.where(same, start_ps[after] - ends, -1)
    return pauses


def _in_order(first: Ints, then: Ints) -> bool:
    """Whether rows are sorted by two columns, all different."""
    for part in spool.parts(max(len(first) - 1, 0)):
        rows = slice(part.start, part.stop + 1)
        apart = np.diff(first[rows])
        rises = (apart > 0) | ((apart == 0) & (np.diff(then[rows]) > 0))
        if not rises.all():
            return False
    return True


def _taken(columns: Mapping[str, Ints], order: Ints, names: Sequence[str]) -> dict[str, Ints]:
    """Some rows of some columns, in a given order."""
    made = {name: spool.empty(len(order), np.int64) for name in names}
    for part in spool.parts(len(order)):
        for name, column in made.items():
            column[part] = columns[name][order[part]]
    return made


def elapsed_ps(steps: Ints, step_ps: Ints, growth_ps: Ints) -> Ints:
    """Duration of so many consecutive steps (rule 7's closed form)."""
    return steps * step_ps + growth_ps * (steps * (steps - 1) // 2)


@dataclass(frozen=True)
class Stays:
    """Stays of at least one step, sorted by request and then by time, with the segments they cover."""

    request: Ints
    instance: Ints
    join_ps: Ints
    first_step: Ints
    steps: Ints
    first: Ints  # index of the segment of its first step; -1: there is none
    last: Ints  # index of the segment of its last step; -1: there is none

    @classmethod
    def of(cls, columns: Mapping[str, Ints], segments: Segments) -> Stays:
        """Stays in any order, located among the segments."""
        if not _in_order(columns["request"], columns["join_ps"]) or not (columns["steps"] > 0).all():
            order = np.lexsort((columns["join_ps"], columns["request"]))
            columns = _taken(columns, order[columns["steps"][order] > 0], STAY_COLUMNS)
        request, instance, join_ps, first_step, steps = (np.asarray(columns[name], np.int64) for name in STAY_COLUMNS)
        first, last = spool.empty(len(request), np.int64), spool.empty(len(request), np.int64)
        for part in spool.parts(len(request)):
            first[part] = segments.find(instance[part], first_step[part])
            last[part] = segments.find(instance[part], first_step[part] + steps[part] - 1)
        return cls(request, instance, join_ps, first_step, steps, first, last)

    def __len__(self) -> int:
        return len(self.request)

    @property
    def opens(self) -> Bools:
        """True for the first stay of each request."""
        return np.concatenate(([True], self.request[1:] != self.request[:-1])) if len(self) else np.zeros(0, np.bool_)

    def __getitem__(self, at: Any) -> Stays:
        """Some of them: a slice, or their indices in rising order. The segments stay what they were."""
        return Stays(*(getattr(self, name)[at] for name in (*STAY_COLUMNS, "first", "last")))

    def end_ps(self, segments: Segments) -> Ints:
        """When the last step of each stay ended."""
        return segments[self.last].end_ps

    def gap_ps(self, segments: Segments, first_token_ps: Ints) -> Ints:
        """The gap that ends with the first step of each stay.

        It began at the request's first token, or at the last token of its previous stay: transfer, waiting and
        preemption are part of it. ``first_token_ps`` has one entry a request.
        """
        if not len(self) or not len(segments):
            return np.zeros(len(self), np.int64)
        gaps, opens = spool.empty(len(self), np.int64), self.opens
        for part in spool.parts(len(self)):
            before = self[max(part.start - 1, 0) : part.stop - 1].end_ps(segments)
            previous = before if part.start else np.concatenate(([0], before))
            since = np.where(opens[part], first_token_ps[self.request[part]], previous)
            first = self.first[part]
            gaps[part] = segments.start_ps[first] + segments.step_ps[first] - since
        return gaps

    def taking_part(self, segments: Segments, chosen: Bools, amount: Ints | None = None) -> Ints:
        """Sum over the chosen stays of ``amount`` (default 1 each), for every segment they cover."""
        change = np.zeros(len(segments) + 1, np.int64)
        for part in spool.parts(len(self)):
            mine = chosen[part]
            amounts = 1 if amount is None else amount[part][mine]
            np.add.at(change, self.first[part][mine], amounts)
            np.subtract.at(change, self.last[part][mine] + 1, amounts)
        np.cumsum(change, out=change)
        return change[:-1]
