"""What makes a gate fail: ``METRIC:CHANGE`` against the baseline, or ``METRIC>BOUND`` on the new numbers alone.

Rules are judged in exact arithmetic on the decimals that are printed: growth by exactly 2 % is not more than 2 %.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from mooncake_bench.errors import SetupError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

UP, DOWN = 1, -1
_SIGNS = {"+": (UP,), "-": (DOWN,), "+-": (UP, DOWN), "±": (UP, DOWN)}
_BAD_WAY = {"lower": (UP,), "higher": (DOWN,)}
_MS = {"us": Fraction(1, 1000), "ms": Fraction(1), "s": Fraction(1000)}
_NUMBER = r"(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)\s*(?P<unit>%|[a-zA-Z]*)"
_CHANGE = re.compile(rf"\s*(?P<metric>[^:<>=!]*?)\s*:\s*(?P<sign>\+-|[+±-]?)\s*{_NUMBER}\s*")
_BOUND = re.compile(rf"\s*(?P<metric>[^:<>=!]*?)\s*(?P<comparator><=|>=|<|>)\s*(?P<minus>-?){_NUMBER}\s*")
FORMS = "METRIC:CHANGE such as p99_ttft_ms:+2%, or a bound in quotes such as 'rejected_ratio>0.05'"


class Declared(NamedTuple):
    """What a rule may be about: a metric, its unit, and which way is better (``higher``, ``lower`` or ``none``)."""

    name: str
    unit: str
    better: str


class Move(NamedTuple):
    """How a metric went from BASE to NEW: where it was, by how much it moved, and by what part of its size (if any)."""

    base: Fraction
    change: Fraction
    relative: Fraction | None

    @classmethod
    def of(cls, base: float, new: float) -> Move:
        """From one number to another."""
        before = exact(base)
        change = exact(new) - before
        return cls(before, change, change / abs(before) if before else None)

    @classmethod
    def typical(cls, moves: Sequence[Move]) -> Move:
        """The medians of paired moves; relative where each has a size to be relative to."""
        parts = [move.relative for move in moves if move.relative is not None]
        relative = median(parts) if len(parts) == len(moves) else None
        return cls(median(move.base for move in moves), median(move.change for move in moves), relative)


@dataclass(frozen=True)
class Change:
    """Fails when a metric moved by more than ``allowed`` in one of ``ways``, against the baseline."""

    text: str
    metric: Declared
    ways: tuple[int, ...]
    allowed: Fraction  # a part of the baseline's value, or in the metric's unit
    relative: bool

    def broken(self, move: Move) -> bool:
        """Whether it moved too far. From 0, any change is more than any part of it."""
        if self.relative and move.relative is not None:
            return any(way * move.relative > self.allowed for way in self.ways)
        slack = self.allowed * abs(move.base) if self.relative else self.allowed
        return any(way * move.change > slack for way in self.ways)


@dataclass(frozen=True)
class Bound:
    """Fails when the new value stands in this relation to ``limit``."""

    text: str
    metric: Declared
    comparator: str
    limit: Fraction

    def crossed(self, new: float) -> bool:
        """Whether the value is what the rule forbids."""
        value = exact(new)
        return {
            ">": value > self.limit,
            ">=": value >= self.limit,
            "<": value < self.limit,
            "<=": value <= self.limit,
        }[self.comparator]


Rule = Change | Bound


def rounded(number: Fraction) -> float | None:
    """A fraction as a float; None where it is beyond what one holds."""
    try:
        return float(number)
    except OverflowError:
        return None


def exact(value: float) -> Fraction:
    """A number as its shortest decimal says, so that 0.1 is a tenth."""
    return Fraction(value) if isinstance(value, int) else Fraction(str(float(value)))


def parse_rules(texts: Sequence[str], known: Mapping[str, Declared]) -> list[Rule]:
    """The rules of ``--fail-if``, by the metrics (and aliases) that there are.

    Raises SetupError for one that is no rule, whose metric is unknown, whose sign is the metric's good way, or that is
    given twice.
    """
    rules = [_parse(text, known) for text in texts]
    for i, rule in enumerate(rules):
        if rule in rules[:i]:
            raise SetupError(f"--fail-if {rule.text!r}: given twice; keep one")
    return rules


def doubts(rules: Sequence[Rule]) -> list[str]:
    """Bounds on the good side of a metric: they fail at once when they are a mistake, so they are only told of."""
    good = {"lower": "<", "higher": ">"}
    return [
        f"--fail-if {rule.text!r} fails when {rule.metric.name} is good: {rule.metric.better} is better"
        for rule in rules
        if isinstance(rule, Bound) and rule.comparator[0] == good.get(rule.metric.better)
    ]


def _parse(text: str, known: Mapping[str, Declared]) -> Rule:
    if match := _CHANGE.fullmatch(text):
        return _change(text, match, _declared(text, match["metric"], known))
    if match := _BOUND.fullmatch(text):
        metric = _declared(text, match["metric"], known)
        sign = -1 if match["minus"] else 1
        return Bound(text.strip(), metric, match["comparator"], sign * _amount(text, match, metric, of_bound=True))
    hint = "; in a shell, > and < need quotes" if text.strip() in known else ""
    raise SetupError(f"--fail-if {text!r}: expected {FORMS}{hint}")


def _declared(text: str, name: str, known: Mapping[str, Declared]) -> Declared:
    if name not in known:
        raise SetupError(f"--fail-if {text!r}: no metric {name!r}{nearest(name, known) or _names(known)}")
    return known[name]


def _names(known: Mapping[str, Declared]) -> str:
    few = len(known) <= 12
    return f"; known: {', '.join(known)}" if few else "; list them with: mooncake-bench metrics list"


def _change(text: str, match: re.Match[str], metric: Declared) -> Change:
    bad = _BAD_WAY.get(metric.better)
    ways = _SIGNS[match["sign"]] if match["sign"] else bad
    if ways is None:
        raise SetupError(
            f"--fail-if {text!r}: neither more nor less of {metric.name} is better; say which way: + (grew), "
            "- (fell) or +- (either)"
        )
    amount = f"{match['number']}{match['unit']}"
    if bad is not None and len(ways) == 1 and ways != bad:
        sign = "+" if bad == (UP,) else "-"
        raise SetupError(
            f"--fail-if {text!r}: would fail only when {metric.name} gets better ({metric.better} is better), and pass "
            f"however bad it gets; write {metric.name}:{sign}{amount}, or {metric.name}:+-{amount} for either way"
        )
    relative = match["unit"] == "%"
    return Change(text.strip(), metric, ways, _amount(text, match, metric), relative)


def _amount(text: str, match: re.Match[str], metric: Declared, *, of_bound: bool = False) -> Fraction:
    """A number in the metric's unit, or as a part of 1."""
    number, unit = Fraction(match["number"]), match["unit"].lower()
    if unit == "%":
        if of_bound and metric.unit != "ratio":
            raise SetupError(f"--fail-if {text!r}: a bound on {metric.name} is in {_unit(metric)}, not in %")
        return number / 100
    if unit == metric.unit.lower() or not unit:
        return number
    if unit in _MS and metric.unit in _MS:
        return number * _MS[unit] / _MS[metric.unit]
    units = " or ".join(filter(None, (_units(metric), "" if of_bound and metric.unit != "ratio" else "%")))
    forms = f"a number alone or with {units}" if units else "a number alone"
    raise SetupError(
        f"--fail-if {text!r}: {metric.name} is in {_unit(metric)}; expected {forms}, got {match['unit']!r}"
    )


def _units(metric: Declared) -> str:
    """Units that a number may carry, % apart."""
    return ", ".join(_MS) if metric.unit in _MS else "" if metric.unit in ("", "ratio") else metric.unit


def _unit(metric: Declared) -> str:
    return {"": "a number without unit", "ratio": "parts of 1"}.get(metric.unit, metric.unit)
