"""Every rule against every policy: passed, failed, inconclusive, or nothing to compare with.

Numbers are compared ``once`` (a simulated run is exact), ``paired`` (replays of the same jittered arrivals: the median
of what the pairs say) or ``ranked`` (measured times: a change too large **and** a rank test that tells them apart).
"""

from __future__ import annotations

from decimal import Decimal
from statistics import median
from typing import TYPE_CHECKING, Literal, NamedTuple

from mooncake_bench.results.gate.rules import UP, Bound, Move, rounded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from fractions import Fraction

    from mooncake_bench.results.gate.rules import Change, Rule
    from mooncake_bench.results.metric import Number

PASS, FAIL, INCONCLUSIVE, NO_BASELINE = "pass", "fail", "inconclusive", "no baseline"
SIGNIFICANCE = 0.05
DIGITS, MOST_DIGITS = 6, 17  # of a number that is shown; 17 tell any two floats apart
How = Literal["once", "paired", "ranked"]
ONCE: How = "once"
PAIRED: How = "paired"
RANKED: How = "ranked"


class Sample(NamedTuple):
    """A metric on one side: the number that is shown, and each replay's or measurement's."""

    value: Number
    each: tuple[Number, ...]
    unit: str

    @classmethod
    def one(cls, value: Number, unit: str) -> Sample:
        """Of a single run."""
        return cls(value, (value,), unit)

    @classmethod
    def many(cls, values: Sequence[Number], unit: str) -> Sample:
        """Of several, shown by their median; undefined where one of them is."""
        known = [value for value in values if value is not None]
        return cls(median(known) if known and len(known) == len(values) else None, tuple(values), unit)


class Pair(NamedTuple):
    """A policy (or benchmark) on both sides; a side is None where it has no such policy."""

    label: str
    base: Mapping[str, Sample] | None
    new: Mapping[str, Sample] | None
    how: How = "once"


class Check(NamedTuple):
    """One rule on one policy."""

    policy: str
    rule: Rule
    verdict: str
    base: Number
    new: Number
    reason: str = ""  # empty where it passed
    move: Move | None = None  # None where a side is undefined
    p_value: float | None = None  # of the rank test


class Verdict(NamedTuple):
    """What a rule says of two samples."""

    word: str
    reason: str = ""
    move: Move | None = None
    p_value: float | None = None


def judge(rules: Sequence[Rule], pairs: Sequence[Pair]) -> list[Check]:
    """Every rule on every policy, policy by policy."""
    return [_check(rule, pair) for pair in pairs for rule in rules]


def _check(rule: Rule, pair: Pair) -> Check:
    base, new = (None if side is None else side.get(rule.metric.name) for side in (pair.base, pair.new))
    found = _verdict(rule, pair, base, new)
    before, after = (None if sample is None else sample.value for sample in (base, new))
    return Check(pair.label, rule, found.word, before, after, found.reason, found.move, found.p_value)


def _verdict(rule: Rule, pair: Pair, base: Sample | None, new: Sample | None) -> Verdict:
    """What cannot be judged fails, except for want of a baseline."""
    if pair.new is None:
        return Verdict(FAIL, "not in NEW")
    if fault := _fault(rule, new, "NEW"):
        return Verdict(FAIL, fault)
    if isinstance(rule, Bound):
        return _bound(rule, _value(new))
    if pair.base is None:
        return Verdict(NO_BASELINE, "not in BASE")
    if fault := _fault(rule, base, "BASE"):
        return Verdict(FAIL, fault)
    assert base is not None
    assert new is not None
    return _change(rule, base, new, pair.how)


def _fault(rule: Rule, sample: Sample | None, side: str) -> str:
    """Why a side has no number to judge; empty where it has one."""
    if sample is None:
        return f"missing in {side}"
    if sample.unit != rule.metric.unit:
        return f"in {sample.unit or 'no unit'} in {side}, and in {rule.metric.unit} here"
    undefined = sum(value is None for value in sample.each)
    if sample.value is None or undefined:
        many = f" in {undefined} of {len(sample.each)} replays" if len(sample.each) > 1 else ""
        return f"undefined in {side}{many}: nothing was measured"
    return ""


def _value(sample: Sample | None) -> float:
    assert sample is not None
    assert sample.value is not None
    return sample.value


def _bound(rule: Bound, new: float) -> Verdict:
    if not rule.crossed(new):
        return Verdict(PASS)
    return Verdict(FAIL, f"is {number(new, rounded(rule.limit))}{_unit(rule)}")


def _change(rule: Change, base: Sample, new: Sample, how: How) -> Verdict:
    move = _paired(base, new) if how == PAIRED else Move.of(_value(base), _value(new))
    if not rule.broken(move):
        return Verdict(PASS, "", move)
    said = _moved(rule, move, _value(base), _value(new))
    return _ranked(rule, move, base, new, said) if how == RANKED else Verdict(FAIL, said, move)


def _paired(base: Sample, new: Sample) -> Move:
    pairs = zip(base.each, new.each, strict=True)
    return Move.typical([Move.of(a, b) for a, b in pairs if a is not None and b is not None])


def _ranked(rule: Change, move: Move, base: Sample, new: Sample, said: str) -> Verdict:
    """A change that is too large counts if the measurements behind it can be told apart."""
    counts = f"{len(base.each)} and {len(new.each)} measurements"
    if min(len(base.each), len(new.each)) < 2:
        return Verdict(INCONCLUSIVE, f"{said}, but {counts} are too few to tell it from noise", move)
    p_value = _p_value(rule, base.each, new.each)
    if p_value < SIGNIFICANCE:
        return Verdict(FAIL, f"{said}; rank test of {counts}: {_chance(p_value)}", move, p_value)
    reason = f"{said}, but {counts} cannot be told apart (rank test: {_chance(p_value)})"
    return Verdict(INCONCLUSIVE, reason, move, p_value)


def _p_value(rule: Change, base: Sequence[Number], new: Sequence[Number]) -> float:
    """Mann-Whitney's: how likely the new measurements would lie so far the rule's way by chance."""
    from scipy.stats import mannwhitneyu

    side = "two-sided" if len(rule.ways) > 1 else "greater" if UP in rule.ways else "less"
    return float(mannwhitneyu(new, base, alternative=side).pvalue)


def _chance(p_value: float) -> str:
    return f"p = {p_value:.2g}" if p_value >= 0.0001 else "p < 0.0001"


def _moved(rule: Change, move: Move, base: float, new: float) -> str:
    """What happened, in words; the rule beside it says what was allowed."""
    if rule.relative and move.relative is not None:
        by = f"{part(100 * abs(move.relative))} %"
    else:
        by = f"{part(abs(move.change), DIGITS)}{_unit(rule)}"
    verb = "grew" if move.change > 0 else "fell"
    return f"{verb} by {by}, from {number(base, new)} to {number(new, base)}{_unit(rule)}"


def part(size: Fraction, digits: int = 3) -> str:
    """A change with so many digits that count, however large."""
    value = rounded(size)
    if value is None:
        return f"{Decimal(size.numerator) / Decimal(size.denominator):.{digits - 1}e}"
    return _digits(value, digits)


def _unit(rule: Rule) -> str:
    return "" if rule.metric.unit in ("", "ratio") else f" {rule.metric.unit}"


def number(value: float, *others: float | None) -> str:
    """A number with six digits that count, or so many more that it does not look like ``others`` that it is not."""
    apart = [other for other in others if other is not None and other != value]
    texts = (_digits(value, count) for count in range(DIGITS, MOST_DIGITS + 1) if _tells(value, apart, count))
    return next(texts, repr(value))


def _tells(value: float, others: Sequence[float], count: int) -> bool:
    return all(_digits(other, count) != _digits(value, count) for other in others)


def _digits(value: float, count: int) -> str:
    """With so many digits that count; whole numbers in full up to 15 digits."""
    if not 1e6 <= abs(value) < 1e15:
        return f"{value:,.{count}g}"
    text = f"{value:,.{max(0, count - len(str(abs(int(value)))))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
