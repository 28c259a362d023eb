"""Why the mean TTFT of two runs differs: split into its parts, and into the requests that made it.

TTFT = queue + fetch + prefill, after a retry + the wait until then (:mod:`mooncake_bench.results.records`). So the
difference of two means over the same requests is the sum of the differences of these parts; in whole picoseconds, as
the simulator counts, exactly. What remains of the difference between all completed requests of one run and all of the
other comes of their not being the same requests.

Some requests become slower and others faster. Where the two sides nearly cancel out, a part of their sum means nothing,
so the requests are counted side by side, and each one's share is of its own side.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mooncake_bench.errors import ResultError
from mooncake_bench.results.compare import matching_rows
from mooncake_bench.results.repeat import name_of
from mooncake_bench.results.uncertainty import interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from mooncake_bench.results.compare import Comparison
    from mooncake_bench.results.run import Run
    from mooncake_bench.results.steps import Bools, Ints
    from mooncake_bench.results.uncertainty import Interval

PS_PER_MS = 1e9
PARTS = ("queue", "fetch", "prefill", "retry_wait")
MOST = 0.8  # of a difference, whose requests are counted
CANCELS = 0.2  # of the sum of all changes' sizes: a sum below it is what is left of two sides that cancel out
SLACK_PS = 4  # by which a TTFT in ms, a double, may miss the sum of its parts


class Moved(NamedTuple):
    """One request and what its TTFT differs by; pairs are (in the reference, in this run)."""

    request_id: str
    change_ms: float
    parts_ms: dict[str, float]
    share_of_side: float  # of what all slower, or all faster, requests changed by
    prefill_instance: tuple[int, int]
    hit_tokens: tuple[int, int]
    queue_ms: tuple[float, float]


class Side(NamedTuple):
    """The slower requests, or the faster ones."""

    requests: int
    change_ps: int  # sum of their changes
    most: int  # least number of them whose changes make MOST of that sum


@dataclass(frozen=True)
class Sets:
    """Mean TTFT of all completed requests, against those that both runs completed; ms, None where there are none."""

    all_reference_ms: float | None
    all_this_ms: float | None
    both_reference_ms: float | None
    both_this_ms: float | None
    only_reference: int
    only_reference_ms: float | None
    only_this: int
    only_this_ms: float | None

    @property
    def change_ms(self) -> float | None:
        """Of the difference between all completed, what is not on those that both completed."""
        known = self.all_this_ms, self.both_this_ms, self.all_reference_ms, self.both_reference_ms
        if None in known:
            return None
        all_this, both_this, all_reference, both_reference = (float(value or 0) for value in known)
        return (all_this - both_this) - (all_reference - both_reference)


@dataclass(frozen=True)
class Why:
    """A run against the reference, over the requests that both completed, warm-up left out."""

    label: str
    both: int
    changes_ps: dict[str, int]  # sums over them by part; they add up to ``change_ps``
    interval: Interval | None  # of the mean change, ms; None without requests
    slower: Side
    faster: Side
    most: int | None  # least number of requests whose changes make MOST of the sum; None where the sides cancel out
    sets: Sets
    requests: tuple[
        Moved, ...
    ]  # that made it, first those that added most; where the sides cancel out, that moved most

    @property
    def change_ps(self) -> int:
        """Sum of the changes of TTFT."""
        return sum(self.changes_ps.values())

    @property
    def gross_ps(self) -> int:
        """Sum of the sizes of the changes of TTFT."""
        return self.slower.change_ps - self.faster.change_ps

    @property
    def cancels(self) -> bool:
        """True where the sum is small against what the slower and the faster requests changed by."""
        return _cancels(self.change_ps, self.gross_ps)

    def mean_ms(self, part: str | None = None) -> float | None:
        """Mean change of TTFT, or of a part; None without requests."""
        total = self.change_ps if part is None else self.changes_ps[part]
        return total / PS_PER_MS / self.both if self.both else None

    def to_dict(self) -> dict[str, Any]:
        """As JSON carries it."""
        means = {"ttft": self.mean_ms(), **{part: self.mean_ms(part) for part in PARTS}}
        low, high = (None, None) if self.interval is None else self.interval[1:]
        return {
            "label": self.label,
            "both": self.both,
            "change_ms": means,
            "ttft_interval_ms": {"low": low, "high": high},
            "change_sum_ps": {"ttft": self.change_ps, **self.changes_ps},
            "slower": _side_json(self.slower),
            "faster": _side_json(self.faster),
            "nearly_cancel_out": self.cancels,
            "requests_that_make_80_percent": self.most,
            "sets": {**asdict(self.sets), "change_ms": self.sets.change_ms},
            "requests": [moved._asdict() for moved in self.requests],
        }


def _side_json(side: Side) -> dict[str, int]:
    return {
        "requests": side.requests, "change_sum_ps": side.change_ps, "requests_that_make_80_percent": side.most,
    }  # fmt: skip


def why(comparison: Comparison, top: int = 10) -> list[Why]:
    """Every other run of a comparison against its reference; of each, the ``top`` requests that made the difference."""
    base = comparison.runs[comparison.reference]
    return [
        why_of(base, run, label, top)
        for i, (run, label) in enumerate(zip(comparison.runs, comparison.labels, strict=True))
        if i != comparison.reference
    ]


def why_of(base: Run, run: Run, label: str, top: int = 10) -> Why:
    """One run against the reference. Raises ResultError where a TTFT is not the sum of its parts."""
    ours, theirs = matching_rows(base, run)
    counted = _column(base, "arrival_ms")[ours] >= float(base.manifest["setup"]["warmup_ms"])
    ours, theirs = ours[counted], theirs[counted]
    done = _completed(base)[ours], _completed(run)[theirs]
    both = done[0] & done[1]
    sets = _sets(base, run, (ours, theirs), done)
    ours, theirs = ours[both], theirs[both]
    before, after = _parts_ps(base, ours), _parts_ps(run, theirs)
    changes = {part: after[part] - before[part] for part in PARTS}
    change = _sum(changes)
    slower, faster = _side(change[change > 0]), _side(change[change < 0])
    order = _by_weight(change)
    requests = [_moved(base, run, int(ours[i]), int(theirs[i]), changes, change, int(i)) for i in order[:top]]
    most = None if _cancels(int(change.sum()), int(np.abs(change).sum())) else _most(change[order])
    return Why(
        label, len(ours), {part: int(values.sum()) for part, values in changes.items()}, interval(change / PS_PER_MS),
        slower, faster, most, sets, tuple(requests),
    )  # fmt: skip


def _column(run: Run, name: str) -> NDArray[Any]:
    found: NDArray[Any] = run.requests.column(name).to_numpy()
    return found


def _completed(run: Run) -> Bools:
    found: Bools = _column(run, "status") == "completed"
    return found


def _ps(run: Run, name: str, rows: Ints) -> Ints:
    return np.rint(_column(run, name)[rows] * PS_PER_MS).astype(np.int64)


def _sum(parts: dict[str, Ints]) -> Ints:
    found: Ints = np.array(list(parts.values())).sum(axis=0)
    return found


def _parts_ps(run: Run, rows: Ints) -> dict[str, Ints]:
    parts = {part: _ps(run, f"{part}_ms", rows) for part in PARTS}
    off = np.abs(_ps(run, "ttft_ms", rows) - _sum(parts))
    if (off > SLACK_PS).any():
        row = int(rows[int(off.argmax())])
        name = run.requests.column("request_id")[row].as_py()
        raise ResultError(
            f"{name_of(run)}: the TTFT of request {name!r} is not queue + fetch + prefill; replay it again"
        )
    return parts


def _cancels(total: int, gross: int) -> bool:
    return abs(total) < CANCELS * gross


def _by_weight(change: Ints) -> Ints:
    """Requests that moved, by what they add to the sum of all changes; by size where the two sides cancel out."""
    total = int(change.sum())
    key = -np.abs(change) if _cancels(total, int(np.abs(change).sum())) else -change if total > 0 else change
    order = np.argsort(key, kind="stable")
    moved: Ints = order[change[order] != 0]
    return moved


def _side(changes: Ints) -> Side:
    """Of changes of one sign."""
    largest_first = -np.sort(-np.abs(changes))
    return Side(len(changes), int(changes.sum()), _most(largest_first))


def _most(ordered: Ints) -> int:
    """How many of the changes, the largest shares first, make most of their sum; 0 where there are none."""
    if not len(ordered):
        return 0
    total = abs(int(ordered.sum()))
    return int(np.argmax(np.abs(np.cumsum(ordered)) >= MOST * total)) + 1


def _moved(
    base: Run, run: Run, our: int, their: int, changes: dict[str, Ints], change: Ints, place: int
) -> Moved:  # fmt: skip
    columns = ("request_id", "prefill_instance", "hit_tokens", "queue_ms")
    before, after = (
        each.requests.select(columns).slice(row, 1).to_pylist()[0] for each, row in ((base, our), (run, their))
    )
    moved = int(change[place])
    side = int(change[change > 0].sum() if moved > 0 else change[change < 0].sum())
    return Moved(
        before["request_id"], moved / PS_PER_MS,
        {part: int(values[place]) / PS_PER_MS for part, values in changes.items()},
        moved / side,
        (before["prefill_instance"], after["prefill_instance"]), (before["hit_tokens"], after["hit_tokens"]),
        (before["queue_ms"], after["queue_ms"]),
    )  # fmt: skip


def _sets(base: Run, run: Run, rows: tuple[Ints, Ints], done: tuple[Bools, Bools]) -> Sets:
    ours, theirs = (_column(each, "ttft_ms")[where] for each, where in zip((base, run), rows, strict=True))
    a, b = done
    return Sets(
        _mean(ours[a]), _mean(theirs[b]), _mean(ours[a & b]), _mean(theirs[a & b]),
        int((a & ~b).sum()), _mean(ours[a & ~b]), int((b & ~a).sum()), _mean(theirs[b & ~a]),
    )  # fmt: skip


def _mean(values: Sequence[float] | NDArray[Any]) -> float | None:
    return float(np.mean(values)) if len(values) else None
