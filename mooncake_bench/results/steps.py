"""The geometry of decoding: which steps exist, how long each lasted, and which a request took part in.

A *segment* is a stretch of steps of one instance at constant batch: its step ``j`` lasts ``step_ps + j * growth_ps``.
A *stay* is a request's time in one batch: whole segments, so many steps from ``first_step`` on. All times are
integer ps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Mapping

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

    @classmethod
    def of(cls, columns: Mapping[str, Ints]) -> Segments:
        """Segments in any order, sorted."""
        order = np.lexsort((columns["first_step"], columns["instance"]))
        return cls(*(np.asarray(columns[name], np.int64)[order] for name in SEGMENT_COLUMNS))

    def __len__(self) -> int:
        return len(self.instance)

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

    def find(self, instance: Ints, step: Ints) -> Ints:
        """Index of the segment that holds each (instance, step number); -1 where none does."""
        if not len(self):
            return np.full(len(instance), -1, np.int64)
        at = np.searchsorted(self._key(self.instance, self.first_step), self._key(instance, step), "right") - 1
        inside = (self.instance[at] == instance) & (step >= self.first_step[at]) & (step < self._after[at])
        return np.where((at >= 0) & inside, at, -1)

    @property
    def _after(self) -> Ints:
        return self.first_step + self.steps

    def _key(self, instance: Ints, step: Ints) -> Ints:
        return instance * (int(self._after.max()) + 1) + np.minimum(step, int(self._after.max()))


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
        table = {name: np.asarray(columns[name], np.int64) for name in STAY_COLUMNS}
        order = np.lexsort((table["join_ps"], table["request"]))
        order = order[table["steps"][order] > 0]
        request, instance, join_ps, first_step, steps = (table[name][order] for name in STAY_COLUMNS)
        first = segments.find(instance, first_step)
        last = segments.find(instance, first_step + steps - 1)
        return cls(request, instance, join_ps, first_step, steps, first, last)

    def __len__(self) -> int:
        return len(self.request)

    @property
    def opens(self) -> Bools:
        """True for the first stay of each request."""
        return np.concatenate(([True], self.request[1:] != self.request[:-1])) if len(self) else np.zeros(0, np.bool_)

    def end_ps(self, segments: Segments) -> Ints:
        """When the last step of each stay ended."""
        return segments.end_ps[self.last]

    def gap_ps(self, segments: Segments, first_token_ps: Ints) -> Ints:
        """The gap that ends with the first step of each stay.

        It began at the request's first token, or at the last token of its previous stay: transfer, waiting and
        preemption are part of it. ``first_token_ps`` has one entry a request.
        """
        if not len(self) or not len(segments):
            return np.zeros(len(self), np.int64)
        previous = np.concatenate(([0], self.end_ps(segments)[:-1]))
        since = np.where(self.opens, first_token_ps[self.request], previous)
        return segments.start_ps[self.first] + segments.step_ps[self.first] - since

    def taking_part(self, segments: Segments, chosen: Bools, amount: Ints | None = None) -> Ints:
        """Sum over the chosen stays of ``amount`` (default 1 each), for every segment they cover."""
        change = np.zeros(len(segments) + 1, np.int64)
        amounts = np.ones(len(self), np.int64) if amount is None else amount
        np.add.at(change, self.first[chosen], amounts[chosen])
        np.subtract.at(change, self.last[chosen] + 1, amounts[chosen])
        return np.cumsum(change[:-1])
