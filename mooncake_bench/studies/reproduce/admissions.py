"""What admission does under overload, of one replay: who is turned away, who is served in time, how the loads swing."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mooncake_bench.results.records import Records
from mooncake_bench.results.timeline import timeline
from mooncake_bench.studies import replays

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.sim.replay import Replay

RAMP = 0.1  # share of the arrival span left out of the statistics of loads: both pools fill up from empty
INTERVAL_MS = 1_000.0  # between two samples of the loads
LOW, HIGH = 0.05, 0.95  # quantiles that say how far a load swings
PS_PER_MS = 1e9


class Fates(NamedTuple):
    """Requests of one replay by what became of them."""

    offered: int
    rejected: int
    at_decode: int  # of the rejected: after their prefill, which was wasted
    good: int  # completed within both SLOs; the first gap, from first to second token, does not count
    good_first_gap: int  # the same if it does


def fates(replay: Replay) -> Fates:
    """Count them; a request's TBT is the mean of its longest 10 % of gaps."""
    counts, without = replays.metrics(replay), replays.judged(replay, first_gap="exclude")
    names = ("offered_requests", "rejected_requests", "rejected_decode_requests")
    offered, rejected, at_decode = (int(counts[name] or 0) for name in names)
    good, good_first_gap = (int(each["good_requests"] or 0) for each in (without, counts))
    return Fates(offered, rejected, at_decode, good, good_first_gap)


class Loads(NamedTuple):
    """Both pools' loads over time, from the first arrival to the last, and what became of the requests."""

    time_s: list[float]
    prefill: list[float]
    decode: list[float]
    since: int  # the first sample that counts
    rejected: int

    @property
    def correlation(self) -> float | None:
        """Of the two loads; None where one does not move, or there are too few samples."""
        prefill, decode = self.counted
        if len(prefill) < 3 or np.ptp(prefill) == 0 or np.ptp(decode) == 0:
            return None
        return float(np.corrcoef(prefill, decode)[0, 1])

    @property
    def counted(self) -> tuple[list[float], list[float]]:
        """Prefill and decode load without the ramp."""
        return self.prefill[self.since :], self.decode[self.since :]

    @property
    def deviations(self) -> tuple[float, float]:
        """Standard deviations of the prefill and of the decode load."""
        prefill, decode = self.counted
        return float(np.std(prefill)), float(np.std(decode))

    @property
    def ranges(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """From the 5th to the 95th percentile of the prefill, then of the decode load."""
        return _range(self.counted[0]), _range(self.counted[1])


def _range(load: Sequence[float]) -> tuple[float, float]:
    low, high = np.quantile(load, (LOW, HIGH)).tolist()
    return low, high


def loads(replay: Replay) -> Loads:
    """Sample the loads every second."""
    sampled = timeline(Records.of(replay), INTERVAL_MS)
    time_ms = sampled.column("time_ms").to_numpy()
    last_ms = float(replay.columns["arrival_ps"].max()) / PS_PER_MS
    until = int((time_ms <= last_ms).sum())
    prefill, decode = (
        sampled.column(f"{pool}_load_ratio").to_numpy()[:until].tolist() for pool in ("prefill", "decode")
    )
    rejected = int(replays.metrics(replay)["rejected_requests"] or 0)
    since = int((time_ms[:until] < RAMP * last_ms).sum())
    return Loads((time_ms[:until] / 1e3).tolist(), prefill, decode, since, rejected)
