"""Runs of the same work side by side: refused when the work differs, paired request by request.

A ranking by latency alone is refused between policies that completed different requests: whoever drops the hard ones
looks fast. Paired differences are taken over the requests that both completed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mooncake_bench.errors import ResultError
from mooncake_bench.results import advice
from mooncake_bench.results.headline import cost_line
from mooncake_bench.results.metrics import LATENCY_NAMES, find
from mooncake_bench.results.uncertainty import interval, kept
from mooncake_bench.results.words import counted
from mooncake_bench.sim.setup import Setup

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from mooncake_bench.results.metrics import Value
    from mooncake_bench.results.run import Run
    from mooncake_bench.results.steps import Floats, Ints
    from mooncake_bench.results.uncertainty import Interval

SAME_WORK = {  # what must agree -> where it stands in the manifest
    "trace": ("trace", "sha256"),
    "block size": ("trace", "block_tokens"),
    "TTFT SLO": ("setup", "slo.ttft_ms"),
    "TBT SLO": ("setup", "slo.tbt_ms"),
    "TBT metric": ("setup", "slo.tbt_metric"),
    "first gap": ("setup", "slo.first_gap"),
    "warm-up": ("setup", "warmup_ms"),
}
PAIRED = ("ttft_ms", "tbt_ms", "e2e_ms")
DECISIONS = (  # queue_ms: also in which order an instance took its queue
    "status", "reject_stage", "reject_reason", "prefill_instance", "decode_instance", "hit_blocks", "fetched_tokens",
    "queue_ms",
)  # fmt: skip


class Difference(NamedTuple):
    """How one latency differs from the reference's on the requests that both completed."""

    n: int
    mean_ms: float
    median_ms: float
    ratio: float | None  # mean over the reference's mean
    low_ms: float | None  # 95 % interval of mean_ms, by a block bootstrap over time; None: too few requests
    high_ms: float | None


class Pairing(NamedTuple):
    """A run against the reference, request by request."""

    both: int  # completed by both
    only_reference: int
    only_this: int
    differences: Mapping[str, Difference]  # by column; absent where no pair has the number
    goodput: Interval | None = None  # change of the share within SLOs, of all requests that both were offered


@dataclass(frozen=True)
class Comparison:
    """Runs with their metrics, relative to a reference."""

    runs: tuple[Run, ...]
    labels: tuple[str, ...]
    metrics: tuple[Mapping[str, Value], ...]
    reference: int
    pairs: tuple[Pairing | None, ...]  # None at the reference
    notices: tuple[str, ...]
    forced: bool

    def ratio(self, name: str, run: int) -> float | None:
        """A metric of one run over the reference's; None where either is undefined or the reference's is 0, and
        against a run that was interrupted: it is of other requests."""
        if run != self.reference and (self.runs[run].interrupted or self.runs[self.reference].interrupted):
            return None
        mine, base = self.metrics[run][name].value, self.metrics[self.reference][name].value
        return None if mine is None or not base else mine / base

    @property
    def completed_alike(self) -> bool:
        """True when every run completed the same requests."""
        return all(pair is None or not (pair.only_reference or pair.only_this) for pair in self.pairs)

    def rank(self, name: str) -> list[int]:
        """Runs from best to worst by one metric; undefined ones last.

        Raises ResultError for a metric without a better side, and for a latency when the runs completed different
        requests (unless the comparison was forced).
        """
        metric = find(name)
        if metric.better == "none":
            raise ResultError(f"{metric.name}: neither more nor less of it is better, so runs cannot be ranked by it")
        if metric.name in LATENCY_NAMES and not self.completed_alike and not self.forced:
            raise ResultError(
                f"{metric.name}: the runs completed different requests, and dropping work looks fast; rank by "
                "request_goodput_ratio, or use --force"
            )
        sign = -1 if metric.better == "higher" else 1
        values = [run[metric.name].value for run in self.metrics]
        return sorted(range(len(values)), key=lambda i: (values[i] is None, sign * (values[i] or 0)))


def compare(runs: Sequence[Run], *, reference: int = 0, force: bool = False) -> Comparison:
    """Put runs side by side, ``runs[reference]`` as the reference.

    Raises ResultError when there is none, or when trace, block size, SLOs or warm-up differ and ``force`` is off.
    """
    if not runs:
        raise ResultError("nothing to compare: name at least one run")
    base = runs[reference]
    labels = tuple(distinct_labels(runs))
    problems = [line for run in runs for line in differing_work(base, run)]
    if problems and not force:
        raise ResultError(
            f"the runs are not comparable: {'; '.join(dict.fromkeys(problems))} (--force compares anyway)"
        )
    pairs = tuple(None if i == reference else pair(base, run) for i, run in enumerate(runs))
    notices = [f"forced: {line}" for line in dict.fromkeys(problems)]
    notices += _notices(runs, labels, reference, pairs)
    return Comparison(
        tuple(runs), labels, tuple(run.metrics() for run in runs), reference, pairs, tuple(notices), force
    )


def differing_work(base: Run, run: Run) -> Iterator[str]:
    """Why two runs are not of the same work, by their manifests; nothing where they are."""
    for what, (section, key) in SAME_WORK.items():
        ours, theirs = base.manifest[section].get(key), run.manifest[section].get(key)
        if ours != theirs:
            if what == "trace" and _decodes(base) != _decodes(run):
                yield "in one of them nothing decodes, so that its answers end at the first token"
                continue
            yield f"{what} differs ({_shown(ours)} and {_shown(theirs)})"


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value[:12] if len(value) == 64 else value  # a hash
    return f"{value:g}" if isinstance(value, int | float) else str(value)


# ---- labels


def distinct_labels(runs: Sequence[Run]) -> list[str]:
    """The policies' labels; runs that share one are told apart by the settings in which they differ, or a number."""
    labels = [run.label for run in runs]
    twins = [i for i, label in enumerate(labels) if labels.count(label) > 1]
    keys = _varying([runs[i].manifest["setup"] for i in twins])
    settings = {i: ", ".join(f"{key} {_shown(_value(runs[i].manifest['setup'], key))}" for key in keys) for i in twins}
    named = [f"{label} ({settings[i]})" if settings.get(i) else label for i, label in enumerate(labels)]
    return [
        f"{label} #{named[: i + 1].count(label)}" if named.count(label) > 1 else label for i, label in enumerate(named)
    ]


def _varying(setups: Sequence[Mapping[str, Any]]) -> list[str]:
    if not setups:
        return []
    usual = Setup().to_dict()  # what a run had before there was the setting
    shared = [key for key in {**setups[0], **usual} if all(key in {*setup, *usual} for setup in setups)]
    return [key for key in shared if key != "policy" and len({_value(setup, key) for setup in setups}) > 1]


def _value(setup: Mapping[str, Any], key: str) -> Any:
    """A setting of a run, or its default where the run is older than the setting."""
    return setup[key] if key in setup else Setup().to_dict().get(key)


# ---- pairs


def pair(base: Run, run: Run) -> Pairing:
    """Match two runs by request id and compare the requests that both completed, warm-up left out."""
    ours, theirs = matching_rows(base, run)
    counted = _column(base, "arrival_ms")[ours] >= float(base.manifest["setup"]["warmup_ms"])
    ours, theirs = ours[counted], theirs[counted]
    a, b = (_column(base, "status") == "completed")[ours], (_column(run, "status") == "completed")[theirs]
    both = a & b
    found = {name: _difference(_column(base, name)[ours][both], _column(run, name)[theirs][both]) for name in PAIRED}
    differences = {name: difference for name, difference in found.items() if difference is not None}
    goodput = interval(kept(run)[theirs].astype(np.float64) - kept(base)[ours])
    return Pairing(int(both.sum()), int((a & ~b).sum()), int((b & ~a).sum()), differences, goodput)


def _column(run: Run, name: str) -> NDArray[Any]:
    column: NDArray[Any] = run.requests.column(name).to_numpy()
    return column


def matching_rows(base: Run, run: Run) -> tuple[Ints, Ints]:
    """Row numbers in both runs of the requests they share: by id, or by row where one trace gives no ids."""
    ours, theirs = base.requests.column("request_id"), run.requests.column("request_id")
    traces = base.manifest["trace"], run.manifest["trace"]
    without_ids = all(trace.get("request_ids") == "source rows" for trace in traces)
    if ours.equals(theirs) or (without_ids and traces[0]["sha256"] == traces[1]["sha256"]):
        rows = np.arange(len(ours))
        return rows, rows
    places = {name: row for row, name in enumerate(theirs.to_pylist())}
    shared = [(row, places[name]) for row, name in enumerate(ours.to_pylist()) if name in places]
    matched = np.array(shared, np.int64).reshape(-1, 2)
    return matched[:, 0], matched[:, 1]


def _difference(ours: Floats, theirs: Floats) -> Difference | None:
    measured = ~np.isnan(ours) & ~np.isnan(theirs)
    if not measured.any():
        return None
    change = (theirs - ours)[measured]
    base = float(ours[measured].mean())
    found = interval(change)
    assert found is not None
    ratio = float(theirs[measured].mean()) / base if base else None
    return Difference(len(change), found.mean, float(np.median(change)), ratio, found.low, found.high)


# ---- what to say about it


def _notices(
    runs: Sequence[Run], labels: Sequence[str], reference: int, pairs: Sequence[Pairing | None]
) -> Iterator[str]:
    base, name = runs[reference], labels[reference]
    apart = []
    for run, label, paired in zip(runs, labels, pairs, strict=True):
        if paired is None:
            continue
        if decided_alike(base, run):
            same = f"{label} and {name} decided identically on all {counted(len(run.requests), 'request')}"
            yield same + _what_would_part(base, run)
        if paired.only_reference or paired.only_this:
            apart.append(f"{label} {paired.only_this:,} more and {paired.only_reference:,} fewer")
    if apart:
        counts = ", ".join(apart)
        yield f"not the same requests completed as under {name} ({counts}): latencies alone do not rank them"
    partial = [label for run, label in zip(runs, labels, strict=True) if run.interrupted]
    if partial and len(runs) > 1:
        yield f"{', '.join(partial)}: interrupted, so no ratio is shown against it"
    yield from other_settings(runs)
    yield from _other_costs(runs, labels, reference)
    yield from _other_sources(runs, labels)


def _what_would_part(base: Run, run: Run) -> str:
    """Under what other conditions the parts in which two policies differ would matter."""
    ours, theirs = (each.manifest["policy"].get("parts") or {} for each in (base, run))
    apart = {kind for kind in {*ours, *theirs} if ours.get(kind) != theirs.get(kind)}
    if ours and theirs and not apart and _code(base) == _code(run):
        return ": they are the same policies with the same parameters"
    words = advice.eviction_advice(base) if "eviction" in apart else ""
    return words if apart == {"eviction"} else f"; {advice.pools(base)}{advice.advice(base)}{words}"


def decided_alike(base: Run, run: Run) -> bool:
    """True when two runs made every decision alike: where, in which order, from which cache, admitted or not."""
    return base.requests.num_rows == run.requests.num_rows and all(
        base.requests.column(name).equals(run.requests.column(name)) for name in DECISIONS
    )


def _decodes(run: Run) -> bool:
    return bool(run.manifest["cluster"]["decode_instances"])


def other_settings(runs: Sequence[Run]) -> Iterator[str]:
    """Settings in which comparable runs differ: allowed, but to be known."""
    compared = {key for section, key in SAME_WORK.values() if section == "setup"}
    setups = [run.manifest["setup"] for run in runs]
    for key in _varying(setups):
        if key not in compared and not key.startswith("trace."):
            yield f"{key} differs between the runs: {', '.join(_shown(_value(setup, key)) for setup in setups)}"
    versions = [str(run.manifest.get("simulator_version")) for run in runs]
    if len(set(versions)) > 1:
        yield f"the runs come from different simulator versions: {', '.join(versions)}"


def _other_costs(runs: Sequence[Run], labels: Sequence[str], reference: int) -> Iterator[str]:
    """The cost model of each run that has another than the reference, whose own stands at the report's head."""
    base = runs[reference].manifest["cost"]
    for run, label in zip(runs, labels, strict=True):
        cost = run.manifest["cost"]
        if (cost["name"], cost["version"]) != (base["name"], base["version"]):
            yield f"{label} has another cost model: {cost_line(cost)}"


def _other_sources(runs: Sequence[Run], labels: Sequence[str]) -> Iterator[str]:
    """Policy files whose code is not the same in all runs that used them."""
    found: dict[str, dict[str, list[str]]] = {}
    named: dict[tuple[str, ...], dict[frozenset[str], list[str]]] = {}
    for run, label in zip(runs, labels, strict=True):
        for name, digest in (run.manifest["policy"].get("sources") or {}).items():
            found.setdefault(name, {}).setdefault(digest, []).append(label)
        if parts := run.manifest["policy"].get("parts"):
            names = tuple(part["name"] for part in parts.values())
            named.setdefault(names, {}).setdefault(_code(run), []).append(label)
    for name, users in sorted(found.items()):
        if len(users) > 1:
            shown = "; ".join(f"{_shown(digest)} in {', '.join(each)}" for digest, each in users.items())
            yield f"the code of policy file {name} differs between the runs (sha256 {shown})"
    for names, codes in named.items():
        if len(codes) > 1:
            shown = "; ".join(", ".join(each) for each in codes.values())
            yield f"policies of the same names ({', '.join(names)}) have different code: {shown}"


def _code(run: Run) -> frozenset[str]:
    """The hashes of a run's policy files, whatever their names."""
    return frozenset((run.manifest["policy"].get("sources") or {}).values())
