"""One policy's numbers on one side of a gate: from stored runs, or from a baseline file."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from mooncake_bench.errors import ResultError
from mooncake_bench.results.compare import differing_work, distinct_labels, other_settings
from mooncake_bench.results.gate.judge import ONCE, PAIRED, RANKED, Pair, Sample
from mooncake_bench.results.metrics import LATENCY_NAMES
from mooncake_bench.results.run import Run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mooncake_bench.results.gate.judge import How
    from mooncake_bench.results.gate.rules import Rule
    from mooncake_bench.results.metric import Number

ROUNDING = 1e-9
COMPLETED = "completed_ratio"
OF_WORK = ("completed", "rejected", "failed", "unfinished", "good", "request_goodput", "output_goodput")
KEPT = ("status", "simulator_version", "policy", "trace", "setup", "cluster", "cost", "content_sha256")


class Jittered(NamedTuple):
    """A setup's metrics over replays with jittered arrivals, one value a seed, seeds from 0."""

    replays: int
    jitter_ms: float
    values: Mapping[str, Sequence[Number]]


@dataclass(frozen=True)
class Side:
    """A policy's numbers, and what they are of (parts of a run's manifest)."""

    label: str
    manifest: Mapping[str, Any]
    samples: Mapping[str, Sample]
    jittered: Jittered | None = None
    runs: int = 1  # behind the samples

    @property
    def run(self) -> Run:
        """As a run without tables, of which all questions about its manifest can be asked."""
        return Run(dict(self.manifest), {})

    @property
    def measured(self) -> bool:
        """Whether its durations were measured, and so differ from one run to the next."""
        return bool(self.manifest["setup"].get("cost") == "live")


class Matched(NamedTuple):
    """The same policy on both sides, by label; None where a side lacks it."""

    label: str
    base: Side | None
    new: Side | None


@dataclass(frozen=True)
class Matching:
    """All policies of both sides, and what a person should know of them."""

    rows: tuple[Matched, ...]
    notices: tuple[str, ...] = field(default=())


# ---- from runs


def sides_of(runs: Sequence[Run]) -> list[Side]:
    """A side a policy. Runs of measured durations that share policy and setup are repeats of one another."""
    groups: dict[str, list[Run]] = {}
    for label, run in zip(_labels(runs), runs, strict=True):
        groups.setdefault(label, []).append(run)
    return [_side(label, group) for label, group in groups.items()]


def _labels(runs: Sequence[Run]) -> list[str]:
    """Distinct labels; repeats keep theirs in common."""
    first = [_first_like(runs, i) for i in range(len(runs))]
    kept = sorted(set(first))
    named = dict(zip(kept, distinct_labels([runs[i] for i in kept]), strict=True))
    return [named[i] for i in first]


def _first_like(runs: Sequence[Run], i: int) -> int:
    """The first run that this one repeats: of the same policy and setup, its durations measured anew."""
    setup = runs[i].manifest["setup"]
    if setup.get("cost") != "live":
        return i
    return next(j for j, run in enumerate(runs) if (run.label, run.manifest["setup"]) == (runs[i].label, setup))


def _side(label: str, runs: Sequence[Run]) -> Side:
    manifest = {key: runs[0].manifest[key] for key in KEPT if key in runs[0].manifest}
    found = [run.metrics() for run in runs]
    samples = {
        name: Sample.many([each[name].value for each in found], value.unit)
        if len(runs) > 1
        else Sample.one(value.value, value.unit)
        for name, value in found[0].items()
    }
    return Side(label, manifest, samples, runs=len(runs))


# ---- both sides


def match(base: Sequence[Side], new: Sequence[Side], only: Sequence[str] = ()) -> Matching:
    """Policies of both sides by label, those of BASE first; one on each side are matched whatever their labels.

    ``only`` keeps these labels. Raises ResultError for a label that neither side has.
    """
    if len(base) == 1 and len(new) == 1 and base[0].label != new[0].label and not only:
        notice = f"different policies: {new[0].label} is gated against {base[0].label}"
        return Matching((Matched(new[0].label, base[0], new[0]),), (notice,))
    ours, theirs = ({side.label: side for side in sides} for sides in (base, new))
    labels = list(dict.fromkeys([*ours, *theirs]))
    unknown = [label for label in only if label not in labels]
    if unknown:
        raise ResultError(f"--only {unknown[0]}: neither side has this policy; known: {', '.join(labels)}")
    kept = [label for label in labels if not only or label in only]
    if base and not any(label in ours and label in theirs for label in kept):
        raise ResultError(
            f"no policy is on both sides: BASE has {', '.join(ours)}, NEW has {', '.join(theirs)}; "
            "give them the same labels, or one run on each side"
        )
    return Matching(tuple(Matched(label, ours.get(label), theirs.get(label)) for label in kept))


def check_comparable(rows: Sequence[Matched], *, force: bool) -> list[str]:
    """What makes sides of other work, as notices with ``force``. Raises ResultError for it without."""
    problems = list(dict.fromkeys(line for row in rows for line in _problems(row)))
    if problems and not force:
        raise ResultError(f"BASE and NEW are not comparable: {'; '.join(problems)} (--force compares anyway)")
    return [f"forced: {line}" for line in problems]


def _problems(row: Matched) -> Iterator[str]:
    for side, name in ((row.base, "BASE"), (row.new, "NEW")):
        if side is not None and side.manifest.get("status") == "interrupted":
            yield f"{row.label} was interrupted in {name}"
    if row.base is None or row.new is None:
        return
    yield from differing_work(row.base.run, row.new.run)
    yield from _contradictions(row.label, row.base, row.new)
    ours, theirs = (side.manifest.get("simulator_version") for side in (row.base, row.new))
    if ours != theirs:
        yield f"simulator version differs ({ours} and {theirs}): write the baseline anew with this version"


def _contradictions(label: str, base: Side, new: Side) -> Iterator[str]:
    """Numbers that differ though the tables behind them do not; sums may round otherwise on another machine."""
    if not _same_tables(base, new):
        return
    for name, sample in base.samples.items():
        other = new.samples.get(name)
        if other is not None and other.unit == sample.unit and not _as_good_as(sample.value, other.value):
            yield (
                f"{label}: {name} is {sample.value} in BASE and {other.value} in NEW, from the same tables: edited by "
                "hand, or counted by another version of mooncake-bench; write it anew"
            )
            return


def _as_good_as(one: Number, other: Number) -> bool:
    return one == other if one is None or other is None else math.isclose(one, other, rel_tol=ROUNDING)


def remarks(rows: Sequence[Matched]) -> list[str]:
    """What else is not the same on both sides: allowed, but to be known."""
    found = [line for row in rows for line in _remarks(row)]
    return list(dict.fromkeys(found))


def _remarks(row: Matched) -> Iterator[str]:
    if row.base is None or row.new is None:
        return
    yield from (line for line in other_settings([row.base.run, row.new.run]) if "simulator version" not in line)
    ours, theirs = (side.manifest["cost"] for side in (row.base, row.new))
    if (ours["name"], ours["version"]) != (theirs["name"], theirs["version"]):
        shown = " and ".join(f"{cost['name']} ({cost['version']})" for cost in (ours, theirs))
        yield f"the cost model differs between BASE and NEW: {shown}"


def dropped(rows: Sequence[Matched], rules: Sequence[Rule]) -> list[str]:
    """Who completes less than before, where rules look at latencies alone: whoever turns work away looks fast."""
    names = [rule.metric.name for rule in rules]
    if not LATENCY_NAMES.intersection(names) or any(name.startswith(OF_WORK) for name in names):
        return []
    return [line for row in rows for line in _fewer(row)]


def _fewer(row: Matched) -> Iterator[str]:
    base, new = _completed(row.base), _completed(row.new)
    if base is not None and new is not None and new < base:
        yield (
            f"{row.label} completes {100 * new:.4g} % of the requests, and {100 * base:.4g} % in BASE: latencies of "
            "fewer requests look good; add a rule such as completed_ratio:0%"
        )


def _completed(side: Side | None) -> Number:
    sample = None if side is None else side.samples.get(COMPLETED)
    return None if sample is None else sample.value


def unchanged(row: Matched) -> bool:
    """Whether both sides hold the same tables, to the last bit."""
    if row.base is None or row.new is None:
        return False
    return _same_tables(row.base, row.new) and not any(_contradictions(row.label, row.base, row.new))


def _same_tables(base: Side, new: Side) -> bool:
    return base.runs == new.runs == 1 and base.manifest["content_sha256"] == new.manifest["content_sha256"]


def pairs_of(rows: Sequence[Matched], *, jittered: bool = False) -> list[Pair]:
    """What the judge sees of matched sides: their runs' numbers, or those of their jittered replays."""
    return [_pair(row, jittered=jittered) for row in rows]


def _pair(row: Matched, *, jittered: bool) -> Pair:
    samples = _jittered_samples if jittered else _samples
    base, new = (None if side is None else samples(side) for side in (row.base, row.new))
    return Pair(row.label, base, new, PAIRED if jittered else _how(row))


def _how(row: Matched) -> How:
    """Measured durations need a rank test, unless both sides replayed with the very same measurements."""
    if row.base is None or row.new is None or not (row.base.measured or row.new.measured):
        return ONCE
    same = row.base.manifest["cost"]["version"] == row.new.manifest["cost"]["version"]
    return ONCE if same and row.base.runs == row.new.runs == 1 else RANKED


def _samples(side: Side) -> Mapping[str, Sample]:
    return side.samples


def _jittered_samples(side: Side) -> Mapping[str, Sample]:
    assert side.jittered is not None
    units = {name: sample.unit for name, sample in side.samples.items()}
    return {name: Sample.many(values, units.get(name, "")) for name, values in side.jittered.values.items()}
