"""FAST'25 figure 9: the hit ratio of one cache against its capacity."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mooncake_bench.cache import lru_curve, optimum
from mooncake_bench.report import plots
from mooncake_bench.report.sheets import Sheet
from mooncake_bench.results.words import counted
from mooncake_bench.studies.reproduce.outcome import CLOSE, NEAR, Claim, Result, Row
from mooncake_bench.studies.reproduce.sources import content_sha256

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from mooncake_bench.cache import Curve, TouchOrder
    from mooncake_bench.studies.reproduce.outcome import Used
    from mooncake_bench.studies.reproduce.sources import Traces
    from mooncake_bench.trace import Trace

ID = "F25-F9"
TITLE = "hit ratio of one LRU cache against its capacity"
SOURCE = "FAST'25, figure 9"

# Capacity in tokens: hit ratio, read off the figure by eye. Its third trace, tool&agent, was not read.
POINTS: dict[str, dict[int, float]] = {
    "conversation": {
        10_000: 0.045, 100_000: 0.075, 1_000_000: 0.087, 3_000_000: 0.165, 5_000_000: 0.25, 10_000_000: 0.325,
        50_000_000: 0.40,
    },
    "synthetic": {
        10_000: 0.002, 100_000: 0.013, 1_000_000: 0.147, 3_000_000: 0.304, 5_000_000: 0.43, 10_000_000: 0.59,
        50_000_000: 0.66,
    },
}  # fmt: skip
READING_ERROR = 0.01
GRID = 16  # further capacities at which the optimum is computed for the figure: the line between two is then true
MARKED, LARGEST = 3_000_000, 50_000_000  # tokens: what the text speaks of
OF_MAXIMUM = {"conversation": 0.41, "synthetic": 0.46}  # at MARKED, over the value at LARGEST
OF_MAXIMUM_ERROR = 0.03  # 0.01 of two readings

DEFINITIONS = {  # of the hit ratio, which the paper does not give: what each divides
    "tokens": "leading tokens found / prompt tokens",
    "blocks": "leading blocks found / blocks",
    "full blocks": "leading blocks found / full blocks",
}


@dataclass(frozen=True)
class Reading:
    """One way to measure: which end of a prompt is touched first, whether the first half only warms, the ratio."""

    touch_order: TouchOrder
    warm: bool
    definition: str

    @property
    def words(self) -> str:
        order = "head first" if self.touch_order == "forward" else "tail first"
        return f"{self.definition}, {order}{', 2nd half' if self.warm else ''}"


# Of the readings the one nearest to the points, and to table 2 of the same paper; the others stand beside it.
CHOSEN = Reading("reverse", False, "full blocks")
READINGS = [
    Reading(order, warm, name) for warm in (False, True) for order in ("forward", "reverse") for name in DEFINITIONS
]


class Measured(NamedTuple):
    """Hit ratios of one trace: by reading, at the published capacities (tokens) and without limit."""

    trace: Trace
    curve: Curve  # of the chosen reading
    ratios: dict[Reading, dict[int, float]]
    ceilings: dict[Reading, float]
    bound: dict[int, float]  # what the offline optimum finds, by the chosen reading

    @property
    def chosen(self) -> dict[int, float]:
        return self.ratios[CHOSEN]


def points_of(trace: Trace) -> dict[int, float] | None:
    """The published hit ratios of this very trace, by capacity in blocks; None for another trace."""
    for name, points in POINTS.items():
        if trace.sha256 == content_sha256(name):
            return {_blocks(tokens, trace.block_tokens): ratio for tokens, ratio in points.items()}
    return None


def _blocks(tokens: int, block_tokens: int) -> int:
    """A capacity in tokens to the nearest block."""
    return max(1, round(tokens / block_tokens))


def run(traces: Traces) -> Result:
    """LRU at the published capacities on the conversation and the synthetic trace, under every reading."""
    found = {name: traces.get(name) for name in POINTS}
    measured = {name: _measure(trace, POINTS[name]) for name, (trace, _) in found.items() if trace is not None}
    return Result(
        rows=tuple(row for name in POINTS for row in _rows(name, measured.get(name), found[name][1].stand_in)),
        claims=tuple(_claims(measured)),
        used=tuple(used for _, used in found.values()),
        parameters=tuple(_parameters(measured)),
        notes=tuple(_notes(found, measured)),
        sheets=tuple(_sheet(name, each) for name, each in measured.items()),
        draw=partial(_draw, measured) if measured else None,
        measured=tuple(_values(measured)),
    )


# ---- measuring


def _measure(trace: Trace, points: Mapping[int, float]) -> Measured:
    ratios, ceilings = {}, {}
    for order, warm in dict.fromkeys((reading.touch_order, reading.warm) for reading in READINGS):
        curve = lru_curve(trace, touch_order=order, warm_requests=len(trace) // 2 if warm else 0)
        if (order, warm) == (CHOSEN.touch_order, CHOSEN.warm):
            chosen = curve
        for name in DEFINITIONS:
            hits, whole = _hits(curve, name)
            reading = Reading(order, warm, name)
            at = _places(curve, [_blocks(tokens, trace.block_tokens) for tokens in points])
            ratios[reading] = {
                tokens: float(hits[place]) / whole if place >= 0 else 0.0
                for tokens, place in zip(points, at, strict=True)
            }
            ceilings[reading] = float(hits[-1]) / whole if len(hits) else 0.0
    return Measured(trace, chosen, ratios, ceilings, _bound(trace, points))


def _bound(trace: Trace, points: Iterable[int]) -> dict[int, float]:
    found = [optimum(trace, _blocks(tokens, trace.block_tokens)) for tokens in points]
    return {tokens: point.prefix_blocks_over_full_blocks or 0.0 for tokens, point in zip(points, found, strict=True)}


def _hits(curve: Curve, definition: str) -> tuple[Any, int]:
    """Hits at each capacity of a curve, and what they are divided by."""
    if definition == "tokens":
        return curve.prefix_tokens, curve.tokens
    return curve.prefix_blocks, curve.full_blocks if definition == "full blocks" else curve.blocks


def _places(curve: Curve, capacities: Sequence[int]) -> list[int]:
    """Where a curve, which names only the capacities at which a count grows, says what each capacity gives."""
    places: list[int] = (curve.capacities.searchsorted(capacities, side="right") - 1).tolist()
    return places


# ---- what to say


def _rows(name: str, measured: Measured | None, stand_in: bool) -> Iterator[Row]:
    for tokens, published in POINTS[name].items():
        ours = None if measured is None else measured.chosen[tokens]
        yield Row(
            name, f"LRU of {_short(tokens)} tokens", published, ours, reading_error=READING_ERROR, stand_in=stand_in
        )
    part = None if measured is None else _of_maximum(measured, MARKED)
    what = f"{_short(MARKED)} tokens over {_short(LARGEST)}"
    yield Row(name, what, OF_MAXIMUM[name], part, reading_error=OF_MAXIMUM_ERROR, stand_in=stand_in)


def _short(tokens: int) -> str:
    return f"{tokens // 1_000_000} M" if tokens >= 1_000_000 else f"{tokens // 1_000} k"


def _of_maximum(measured: Measured, tokens: int, reading: Reading = CHOSEN) -> float:
    most = measured.ratios[reading][LARGEST]
    return measured.ratios[reading][tokens] / most if most else 0.0


def _claims(measured: Mapping[str, Measured]) -> Iterator[Claim]:
    yield _claim(
        f"{_short(MARKED)} tokens find less than half of what {_short(LARGEST)} find",
        measured,
        lambda each, reading: _of_maximum(each, MARKED, reading) < 0.5,
    )
    yield _claim(
        f"{_short(LARGEST)} tokens find nearly all that can be found (98 %)",
        measured,
        lambda each, reading: each.ratios[reading][LARGEST] >= 0.98 * each.ceilings[reading],
    )
    yield _claim(
        "every larger published capacity finds more",
        measured,
        lambda each, reading: all(low < high for low, high in pairwise(each.ratios[reading].values())),
    )
    yield _crossing(measured)


def _claim(text: str, measured: Mapping[str, Measured], holds: Any) -> Claim:
    if not measured:
        return Claim(text, None, "no trace at hand")
    by_reading = {reading: all(holds(each, reading) for each in measured.values()) for reading in READINGS}
    return Claim(text, by_reading[CHOSEN], f"on {', '.join(measured)}; {_range(by_reading)}")


def _range(by_reading: Mapping[Reading, bool]) -> str:
    """Under which of the readings a claim holds, those under which it does not named by what they share."""
    failing = {reading for reading, holds in by_reading.items() if not holds}
    count = f"holds under {len(by_reading) - len(failing)} of {len(by_reading)} readings"
    if not failing or len(failing) == len(by_reading):
        return count
    shared = {
        "if the first half only warms the cache": {reading for reading in by_reading if reading.warm},
        "if every request counts": {reading for reading in by_reading if not reading.warm},
        "touched head first": {reading for reading in by_reading if reading.touch_order == "forward"},
        "touched tail first": {reading for reading in by_reading if reading.touch_order == "reverse"},
    }
    for words, readings in shared.items():
        if readings == failing:
            return f"{count}, not {words}"
    return f"{count}, not under: {'; '.join(reading.words for reading in READINGS if reading in failing)}"


def _crossing(measured: Mapping[str, Measured]) -> Claim:
    text = "conversation finds more than synthetic up to 100 k tokens, less from 1 M on"
    if len(measured) < len(POINTS):
        return Claim(text, None, f"only {', '.join(measured) or 'no trace'} at hand")
    conversation, synthetic = (measured[name] for name in ("conversation", "synthetic"))
    by_reading = {
        reading: all(
            (conversation.ratios[reading][tokens] > synthetic.ratios[reading][tokens]) == (tokens <= 100_000)
            for tokens in POINTS["conversation"]
        )
        for reading in READINGS
    }
    return Claim(text, by_reading[CHOSEN], _range(by_reading))


def _parameters(measured: Mapping[str, Measured]) -> Iterator[str]:
    yield (
        f"what the ratio divides, which the paper does not say; judged here: {DEFINITIONS[CHOSEN.definition]}, the "
        "reading nearest to the points and to table 2"
    )
    yield "touch order: tail first; also tried: head first. Counted: every request; also tried: the second half"
    yield (
        "assumed: requests served at once, in trace order; a capacity is rounded to the nearest block (the command "
        "cache rounds down)"
    )
    for name, each in measured.items():
        near, far = ([_within(name, each, reading, part) for reading in READINGS] for part in (CLOSE, NEAR))
        yield (
            f"{name}: under the {len(READINGS)} readings {min(near)} to {max(near)} of {len(POINTS[name])} points are "
            f"within 10 %, {min(far)} to {max(far)} within 25 %"
        )


def _within(name: str, measured: Measured, reading: Reading, part: float) -> int:
    ours = measured.ratios[reading]
    return sum(abs(ours[tokens] - published) <= part * published for tokens, published in POINTS[name].items())


def _notes(found: Mapping[str, tuple[Trace | None, Used]], measured: Mapping[str, Measured]) -> Iterator[str]:
    for name, (_, used) in found.items():
        if used.stand_in:
            yield (
                f"{name}: the stand-in's parameters were chosen after LRU hit ratios of the published trace, so its "
                "curve is no evidence; give the published file with --traces"
            )
    for name, each in measured.items():
        yield from _misfit(name, each)
    yield "the points were read by eye, to about ±0.01; below 1 M tokens that is much of their value"


def _misfit(name: str, measured: Measured) -> Iterator[str]:
    off = {
        tokens: published
        for tokens, published in POINTS[name].items()
        if abs(measured.chosen[tokens] - published) > max(CLOSE * published, READING_ERROR)
    }
    if not off:
        return
    sizes = [f"{_capacity_for(measured, ratio)} instead of {_short(tokens)}" for tokens, ratio in off.items()]
    further = f"{counted(len(off), 'point')} further off than 10 % and the reading error"
    yield f"{name}: {further}; LRU finds as much here at: {'; '.join(sizes)}"
    shares = [
        f"{_short(tokens)} {ratio / bound:.0%} and {measured.chosen[tokens] / bound:.0%}"
        for tokens, ratio in off.items()
        if (bound := measured.bound[tokens])
    ]
    yield f"{name}: of what the offline optimum finds here, the published value and our LRU are: {', '.join(shares)}"


def _capacity_for(measured: Measured, ratio: float) -> str:
    """How large a cache finds this share of the tokens here, as a multiple of what was published."""
    hits, whole = _hits(measured.curve, CHOSEN.definition)
    reached = hits / whole >= ratio
    if not reached.any():
        return "at no size"
    return f"{_tokens(int(measured.curve.capacities[reached.argmax()]) * measured.trace.block_tokens)}"


def _tokens(tokens: int) -> str:
    return f"{tokens / 1e6:.2g} M" if tokens >= 1_000_000 else f"{tokens / 1e3:.3g} k"


def _sheet(name: str, measured: Measured) -> Sheet:
    points = POINTS[name]
    rows = [("published", *(f"{ratio:.3f}" for ratio in points.values()), "")]
    rows += [
        (reading.words, *(f"{ratio:.3f}" for ratio in ratios.values()), f"{measured.ceilings[reading]:.3f}")
        for reading, ratios in measured.ratios.items()
    ]
    rows.append(("optimum, as judged", *(f"{measured.bound[tokens]:.3f}" for tokens in points), ""))
    headers = ("LRU of so many tokens", *map(_short, points), "inf")
    notes = (
        f"judged: {CHOSEN.words}; 2nd half: the first half of the requests only warms the cache",
        "optimum: what no policy can beat",
    )
    return Sheet(f"{name} ({measured.trace.name}): hit ratio under each reading", headers, tuple(rows), notes)


def _values(measured: Mapping[str, Measured]) -> Iterable[dict[str, Any]]:
    for name, each in measured.items():
        for reading, ratios in each.ratios.items():
            for tokens, ratio in ratios.items():
                yield {
                    "trace": name,
                    "trace_sha256": each.trace.sha256,
                    "reading": reading.words,
                    "capacity_tokens": tokens,
                    "capacity_blocks": _blocks(tokens, each.trace.block_tokens),
                    "hit_ratio": ratio,
                }


# ---- the figure


def _draw(measured: Mapping[str, Measured]) -> Any:
    figure, panels = plots.figure(columns=len(measured))
    for axes, (name, each) in zip(panels, measured.items(), strict=True):
        _panel(axes, name, each)
    panels[0].set_ylabel(DEFINITIONS[CHOSEN.definition])
    panels[-1].legend(loc="upper left")
    return figure


def _panel(axes: Any, name: str, measured: Measured) -> None:
    curve, points = measured.curve, POINTS[name]
    tokens = curve.capacities * measured.trace.block_tokens
    hits, whole = _hits(curve, CHOSEN.definition)
    axes.plot(tokens, hits / whole, label="LRU, ours", drawstyle="steps-post", **plots.series(0))
    sizes = sorted({*points, *map(round, np.geomspace(min(points), max(points), GRID).tolist())})
    axes.plot(sizes, list(_bound(measured.trace, sizes).values()), label="optimum, ours", **plots.series(2))
    axes.errorbar(
        list(points), list(points.values()), yerr=READING_ERROR, color=plots.BOUND, linestyle="", marker="x",
        capsize=2, linewidth=0.8, label="published (by eye, ±0.01)",
    )  # fmt: skip
    axes.axhline(measured.ceilings[CHOSEN], color=plots.FAINT, linestyle="--", linewidth=0.9,
                 label="infinite cache, ours")  # fmt: skip
    axes.axvline(MARKED, color=plots.FAINT, linestyle=":", linewidth=0.9)
    axes.set_xscale("log")
    axes.set_xlim(min(points) / 1.5, max(points) * 1.5)
    axes.set_ylim(bottom=0)
    plots.compact(axes.xaxis)
    axes.set_xlabel("capacity, tokens")
    axes.set_title(f"{name} ({measured.trace.name})" if measured.trace.name != name else name)
