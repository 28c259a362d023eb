"""The cluster's state as columns over instances: what a view shows and what the engine keeps up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mooncake_bench.sim.stretch import steps_within

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Bools = NDArray[np.bool_]
    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


FEW = 48  # busy instances up to which plain Python is faster than numpy


class DecodeColumns:
    """The running stretch of every instance: enough to know its step and context sum at any moment.

    Changes are noted as they come; arrays are made when somebody looks.
    """

    def __init__(self, instances: int) -> None:
        # (start, step, growth, batch, tokens, steps) of each instance, ps and tokens; batch 0: idle
        self._rows: list[tuple[int, int, int, int, int, int]] = [(0, 1, 0, 0, 0, 0)] * instances
        self._table = np.array(self._rows, np.int64).T.copy()
        self._changed: set[int] = set()
        self.version = 0
        self.journal: list[tuple[int, tuple[int, ...]]] | None = None  # (instance, what was set), if anyone asks

    def set(self, instance: int, start: int, step: int, growth: int, batch: int, tokens: int, steps: int) -> None:
        """A new stretch begins on ``instance``; an idle one has batch 0."""
        self._rows[instance] = (start, step or 1, growth, batch, tokens, steps)
        self._changed.add(instance)
        self.version += 1
        if self.journal is not None:
            self.journal.append((instance, self._rows[instance]))

    def load(self, instance: int) -> tuple[int, int]:
        """Requests and context tokens at the start of the present stretch."""
        return self._rows[instance][3], self._rows[instance][4]

    def batches(self) -> Ints:
        """Requests in each running batch, copied."""
        batch: Ints = self._columns()[3].copy()
        return batch

    def at(self, now: int) -> tuple[Ints, Ints | list[int]]:
        """Context sum of each batch, and the steps each instance has done, at ``now``; few ask for these."""
        if len(self._rows) > FEW:
            return self._many_at(now)
        tokens, steps = [], []
        for start, step, growth, batch, context, before in self._rows:
            done = steps_within(now - start, step, growth) if batch else 0
            tokens.append(context + batch * done)
            steps.append(before + done)
        return np.array(tokens), steps

    def _many_at(self, now: int) -> tuple[Ints, Ints]:
        """:meth:`at` for a large cluster: a float root, corrected by one in integers."""
        start, step, growth, batch, tokens, before = self._columns()
        gone, busy = now - start, batch > 0
        half = step - 0.5 * growth
        root = (gone + gone) / (half + np.sqrt(half * half + (2.0 * growth) * gone))
        done = np.where(busy, root, 0.0).astype(np.int64)
        done -= done * step + growth * (done * (done - 1) // 2) > gone
        more = done + 1
        done += (more * step + growth * (more * done // 2) <= gone) & busy
        return tokens + batch * done, before + done

    def _columns(self) -> Ints:
        if self._changed:
            changed = list(self._changed)
            self._table[:, changed] = np.array([self._rows[i] for i in changed], np.int64).T
            self._changed.clear()
        return self._table


class Table:
    """Requests of one state as columns of integers. Changes are noted as they come and applied when somebody looks.

    Rows are in no particular order: the last one moves into the gap that a removed one leaves.
    """

    def __init__(self, width: int) -> None:
        self._columns = np.zeros((width, 64), np.int64)
        self._rows: list[int] = []
        self._slot: dict[int, int] = {}
        self._added: dict[int, tuple[int, ...]] = {}
        self._removed: dict[int, None] = {}  # of the columns, in order
        self.version = 0
        # what changed, if anyone asks: (row, values; None: it left)
        self.journal: list[tuple[int, tuple[int, ...] | None]] | None = None

    def __len__(self) -> int:
        return len(self._rows) + len(self._added) - len(self._removed)

    @property
    def rows(self) -> Sequence[int]:
        """The request of each row, as :meth:`columns` last gave them."""
        return self._rows

    def put(self, row: int, *values: int) -> None:
        """Request ``row`` enters this state, or what is known of it changes."""
        if row in self._slot:
            self._removed[row] = None
        self._added[row] = values
        self.version += 1
        if self.journal is not None:
            self.journal.append((row, values))

    def remove(self, row: int) -> None:
        """Request ``row`` leaves this state."""
        self._added.pop(row, None)
        if row in self._slot:
            self._removed[row] = None
        self.version += 1
        if self.journal is not None:
            self.journal.append((row, None))

    def columns(self) -> Ints:
        """(width, rows), copied."""
        for row in self._removed:
            self._take_out(row)
        self._removed.clear()
        if self._added:
            self._put_in()
        return self._columns[:, : len(self._rows)].copy()

    def _take_out(self, row: int) -> None:
        slot = self._slot.pop(row)
        last = self._rows.pop()
        if last != row:
            self._rows[slot] = last
            self._slot[last] = slot
            self._columns[:, slot] = self._columns[:, len(self._rows)]

    def _put_in(self) -> None:
        size, end = len(self._rows), len(self._rows) + len(self._added)
        while end > self._columns.shape[1]:
            self._columns = np.concatenate([self._columns, np.zeros_like(self._columns)], axis=1)
        self._columns[:, size:end] = np.array(list(self._added.values()), np.int64).T
        self._slot.update(zip(self._added, range(size, end), strict=True))
        self._rows += self._added
        self._added.clear()


class ClusterState:
    """Everything that happens, as columns over all instances (times in ps).

    The tables of single requests are kept only once somebody has looked at one: most policies never do.
    """

    def __init__(self, prefill: Bools, decode: Bools) -> None:
        """``prefill``, ``decode``: (N,) whether each instance has the role now; a coupled one has both."""
        self.is_prefill, self.is_decode = prefill.copy(), decode.copy()
        self.instances = instances = len(prefill)
        self.table = np.zeros((4, instances), np.int64)
        # when the work routed so far would be done; prefill time of everything ever routed there
        self.work_end, self.work_routed, self.queue_requests, self.routed_tokens = self.table
        self.decode = DecodeColumns(instances)
        self.tracked = False
        self.rebuild: Callable[[], None] | None = None  # fills the tables when tracking starts
        self._joined = Table(3)  # decode instance, join, context minus the instance's step count at the join
        self._waiting = Table(3)  # decode instance, KV arrival, context
        # decode instance, tokens, prefill instance, and the value of its work_routed with this request; once the
        # prefill has ended: -1, and when it did
        self._promised = Table(4)
        self.line_ends: Callable[[int], dict[int, int]] | None = None  # predicted prefill ends of the queued, by row

    @staticmethod
    def instances_of(role: Bools) -> list[int]:
        """Ids of the instances that a mask marks."""
        found: list[int] = np.flatnonzero(role).tolist()
        return found

    def _track(self) -> None:
        if not self.tracked:
            self.tracked = True
            if self.rebuild is not None:
                self.rebuild()

    @property
    def joined(self) -> Table:
        """Requests in a decode batch."""
        self._track()
        return self._joined

    @property
    def waiting(self) -> Table:
        """Requests whose KV has arrived and that are in no batch."""
        self._track()
        return self._waiting

    @property
    def promised(self) -> Table:
        """Requests whose KV is still to come."""
        self._track()
        return self._promised

    def promised_columns(self, now: int) -> tuple[Ints, Ints, Ints]:
        """Decode instance, (predicted) prefill end and tokens of every promised request.

        By the queue as it stands: the work routed to its instance ends at ``work_end``, and what was routed after it
        comes after it. Where a policy orders the queues, somebody has to look.
        """
        decode, tokens, prefill, mark = self.promised.columns()
        if self.line_ends is None:
            behind = self.work_routed[prefill] - mark
            ends = np.maximum(self.work_end, now)[prefill] - behind
            return decode, np.where(prefill < 0, mark, ends), tokens
        line = self.line_ends(now)
        return decode, np.where(prefill < 0, mark, [line.get(row, now) for row in self.promised.rows]), tokens
