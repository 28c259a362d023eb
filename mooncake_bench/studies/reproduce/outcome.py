"""What reproducing one published result gave: rows beside the paper's, claims that hold or not, and what was chosen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mooncake_bench.report.sheets import Sheet

CLOSE, NEAR = 0.10, 0.25  # of the published value
ROUNDING = 1e-12  # of floating point: 0.36 is within 10 % of 0.40


@dataclass(frozen=True)
class Row:
    """One published number and ours."""

    group: str  # usually the trace
    what: str  # such as "LRU of 5,859 blocks"
    published: float
    ours: float | None  # None: could not be measured, and a note of the result says why
    unit: str = "ratio"  # ratio, tokens, requests, ms
    reading_error: float = 0.0  # how far a published value may be from what was meant, in its unit
    stand_in: bool = False  # ours comes from a trace that is not the published one

    @property
    def ratio(self) -> float | None:
        """Ours over the published value."""
        return self.ours / self.published if self.ours is not None and self.published else None

    @property
    def verdict(self) -> str:
        """``within 10 %``, ``within 25 %``, ``off``, ``reading error`` or ``not measured``.

        ``reading error``: further off than 10 %, and no further than the published value may have been misread.
        """
        if self.ours is None:
            return "not measured"
        distance = abs(self.ours - self.published) - ROUNDING
        size = abs(self.published)
        if distance <= CLOSE * size:
            return "within 10 %"
        if distance <= self.reading_error:
            return "reading error"
        return "within 25 %" if distance <= NEAR * size else "off"


@dataclass(frozen=True)
class Claim:
    """What the paper says with its numbers, an order or a shape, and whether it holds here."""

    text: str
    holds: bool | None  # None: cannot be said, and ``detail`` says why
    detail: str = ""  # the numbers that decide, and the range of the free parameters over which it holds

    @property
    def verdict(self) -> str:
        return "not decided" if self.holds is None else "holds" if self.holds else "does not hold"


@dataclass(frozen=True)
class Used:
    """A trace that the result rests on."""

    wanted: str  # the published trace
    name: str | None  # of the trace used; None: none at hand
    sha256: str | None  # of its content
    stand_in: bool  # not the published one
    words: str  # where it comes from


@dataclass(frozen=True)
class Result:
    """Everything a reproduction says."""

    rows: tuple[Row, ...]
    claims: tuple[Claim, ...]
    used: tuple[Used, ...]
    parameters: tuple[str, ...]  # free parameters and definitions, each with what was chosen
    notes: tuple[str, ...]  # what does not match, and why
    sheets: tuple[Sheet, ...] = ()  # tables in the paper's form
    draw: Callable[[], Any] | None = field(default=None, compare=False)  # a figure in the paper's form
    measured: tuple[dict[str, Any], ...] = ()  # every number that was computed, a dict a parquet row

    @property
    def concluded(self) -> bool:
        """Whether at least one number was measured."""
        return any(row.ours is not None for row in self.rows)

    @property
    def verdict(self) -> str:
        """One line: how many numbers are near, on the published traces and on stand-ins, and how many claims hold."""
        counts = [
            f"{_near(rows)}{where}"
            for stand_in, where in ((False, ""), (True, " on stand-in traces"))
            if (rows := [row for row in self.rows if row.stand_in == stand_in and row.ours is not None])
        ]
        holds = sum(claim.holds is True for claim in self.claims)
        return "; ".join([*counts, f"{holds} of {len(self.claims)} claims hold"]) if counts else "not measured"


def _near(rows: Sequence[Row]) -> str:
    within = sum(row.verdict == "within 10 %" for row in rows)
    further = sum(row.verdict == "within 25 %" for row in rows)
    misread = sum(row.verdict == "reading error" for row in rows)
    text = f"of {len(rows)} numbers {within} within 10 %, {within + further} within 25 %"
    return text + (f", {misread} within their reading error" if misread else "")
