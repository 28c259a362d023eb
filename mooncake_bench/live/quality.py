"""How good measurements are, in words: rounds, spread, scaling, and how many are noisy."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mooncake_bench.live.measurement import Measurement


def quality(used: Sequence[Measurement], bends: Sequence[float] = ()) -> str:
    """How good measurements are, in words; ``bends``: by how much steps are no straight lines in their context."""
    if not used:
        return "no shape yet"
    return "; ".join((", ".join((*_rounds(used), *_errors(used, bends))), f"noisy: {sum(one.noisy for one in used)}"))


def _rounds(used: Sequence[Measurement]) -> Iterator[str]:
    """Of how many rounds each shape's time is the median, those of too few for a spread by themselves."""
    yield f"{len(used)} shapes"
    several = sorted(one.samples for one in used if one.spread is not None)
    if several:
        often = f"{several[0]} to {several[-1]} rounds" if several[0] < several[-1] else f"{several[0]} rounds"
        yield f"{often} each" if len(several) == len(used) else f"{len(several)} of {often}"
    if len(several) < len(used):
        yield f"{len(used) - len(several)} of one or two rounds (spread not known)"


def _errors(used: Sequence[Measurement], bends: Sequence[float]) -> Iterator[str]:
    spreads = [one.spread for one in used if one.spread is not None]
    if spreads:
        yield f"spread {100 * median(spreads):.1f} % (worst {100 * max(spreads):.1f} %)"
    depths = [one.depth_error for one in used if one.depth_error is not None]
    if depths:
        yield f"depth scaling off by {median(depths):.1f} % (worst {max(depths):.1f} %)"
    else:
        yield "all layers run"
    if bends:
        yield f"a step's context as a straight line off by up to {100 * max(bends):.1f} %"
