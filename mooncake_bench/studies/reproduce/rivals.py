"""Mooncake's clusters and the coupled ones that the papers compare them with: setups, and what a replay shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mooncake_bench.results.gaps import gap_stats
from mooncake_bench.results.invariants import check
from mooncake_bench.results.records import COMPLETED, Records
from mooncake_bench.sim.setup import Setup
from mooncake_bench.studies import replays

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mooncake_bench.sim.replay import Replay
    from mooncake_bench.trace import Trace

MOONCAKE = "Mooncake"
VLLM, CACHING, CHUNKED = "vLLM", "+ prefix caching", "+ chunked prefill"
RIVALS: dict[str, dict[str, Any]] = {
    VLLM: {"prefix_cache": "off"},
    CACHING: {"prefix_cache": "on"},
    CHUNKED: {"schedule": "chunked", "prefix_cache": "off"},
}
ROUTING = "round-robin"  # over coupled instances; neither paper says how requests reach them
TRACES = {"conversation": "conversation", "toolagent": "tool&agent", "synthetic": "synthetic"}

SLO_TTFT_MS = 30_000.0
THRESHOLDS_MS = (100.0, 200.0, 300.0)  # of a request's TBT
PS_PER_MS = 1e9


def mooncake(prefill: int, decode: int, **changes: Any) -> Setup:
    """Mooncake on so many nodes of each kind, under Algorithm 1."""
    return Setup(cluster=f"{prefill}P+{decode}D", **changes)


def rival(name: str, nodes: int, **changes: Any) -> Setup:
    """A coupled cluster of so many nodes: one of RIVALS."""
    return Setup(**({"cluster": f"{nodes}M", "policy": ROUTING} | RIVALS[name] | changes))


class Seen(NamedTuple):
    """What a replay shows of its requests; TBT of one: the mean of its longest 10 % of gaps."""

    within: float  # share with their first token in time
    effective: tuple[float, ...]  # share of those in time, with a TBT within each threshold
    patient: tuple[float, ...]  # the same where the gap from first to second token does not count
    ttft_ms: float  # mean
    gpu_ms: float  # mean prefill time of a request; in a step that decodes too, what it adds to that
    steps_ms: float  # mean time of the steps that a request's prefill took part in
    hit_ratio: float  # prefix tokens found over prompt tokens


def seen(replay: Replay) -> Seen:
    """Judge every request of a replay at every threshold. Raises InvariantError where it contradicts itself."""
    records = Records.of(replay)
    check(records)
    columns, done = replay.columns, replay.columns["status"] == COMPLETED
    ttft_ms = (columns["first_token_ps"] - columns["arrival_ps"]) / PS_PER_MS
    in_time = done & (ttft_ms <= SLO_TTFT_MS)
    steps_ms = (columns["first_token_ps"] - columns["start_ps"])[done] / PS_PER_MS
    return Seen(
        float(in_time.mean()), _effective(records, done, in_time, exclude_first=False),
        _effective(records, done, in_time, exclude_first=True), float(ttft_ms[done].mean()),
        float(columns["prefill_ps"][done].mean()) / PS_PER_MS, float(steps_ms.mean()),
        float(columns["hit_tokens"][done].sum() / replay.trace.input_tokens[done].sum()),
    )  # fmt: skip


def _effective(records: Records, done: Any, in_time: Any, *, exclude_first: bool) -> tuple[float, ...]:
    gaps = gap_stats(records.segments, records.stays, records.gap_ps, done, exclude_first=exclude_first, p99=False)
    tbt_ms = np.nan_to_num(gaps.metric_ms("tail10"))  # a request without gaps keeps every threshold
    return tuple(float((in_time & (tbt_ms <= limit)).mean()) for limit in THRESHOLDS_MS)


_PLAYED: dict[tuple[str, Setup], Seen] = {}  # of this process: several results look at the same replays


def play(trace: Trace, setups: Sequence[Setup]) -> list[Seen]:
    """What each setup shows, in order; what this process has replayed before is not replayed again."""
    wanted = list(dict.fromkeys(setup for setup in setups if (trace.sha256, setup) not in _PLAYED))
    for setup, each in zip(wanted, replays.each(trace, wanted, seen) if wanted else (), strict=True):
        _PLAYED[trace.sha256, setup] = each
    return [_PLAYED[trace.sha256, setup] for setup in setups]


def gain(ours: float, theirs: float) -> float | None:
    """How many more: 0.59 for +59 %; None over nothing."""
    return ours / theirs - 1 if theirs else None


def percent(value: float | None) -> str:
    """A gain as the papers print it: +498 %."""
    return "–" if value is None else f"{value:+.0%}".replace("%", " %")


def gains(ours: Seen, theirs: Seen) -> tuple[float | None, ...]:
    """Of effective requests, at each threshold."""
    return tuple(gain(*pair) for pair in zip(ours.effective, theirs.effective, strict=True))


def values(group: str, rate: float, found: Mapping[str, Seen]) -> list[dict[str, Any]]:
    """What several clusters showed at one rate, as plain values."""
    return [{"trace": group, "speedup": rate, "system": name, **plain(each)} for name, each in found.items()]


def plain(each: Seen) -> dict[str, Any]:
    """A :class:`Seen` with a column a threshold."""
    kept = {name: value for name, value in each._asdict().items() if name not in ("effective", "patient")}
    for name in ("effective", "patient"):
        shares = zip(THRESHOLDS_MS, getattr(each, name), strict=True)
        kept |= {f"{name}_{limit:g}ms": share for limit, share in shares}
    return kept
