"""A cache analysis as a picture: hit ratio against capacity, the bound above, what others published beside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mooncake_bench.report import plots
from mooncake_bench.report.cache_tables import bound_name
from mooncake_bench.results.cache_analysis import REFERENCE_TOKENS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mooncake_bench.cache import Curve, Point
    from mooncake_bench.results.cache_analysis import Analysis, Definition

LRU = "lru"
HEIGHT_IN = 3.6
LEGEND_LINE_IN = 0.165
GUIDES = 6  # lines of a legend beside the policies: its title, the bound, the ceiling, what was published, and some air
COMPUTED = "policies: computed at the\nmarkers, which lines only join"
FILLS = ("full", "none", "bottom")  # of markers: one for every time that the colours come round
MARGIN = 1.06  # of the ceiling, above which nothing is drawn


def draw(
    analysis: Analysis,
    definition: Definition,
    bound: Mapping[int, Point],
    curve: Curve | None = None,
    published: Mapping[int, float] | None = None,
    source: str = "published",
) -> Any:
    """The figure, to be drawn inside :func:`mooncake_bench.report.plots.style`.

    ``bound``: the optimum by capacity of each pool, ascending, at so many that the line between two is true. ``curve``:
    LRU at every capacity, drawn in place of its points. ``published``: hit ratios by capacity in blocks.
    """
    figure, (axes,) = plots.figure(height_in=max(HEIGHT_IN, LEGEND_LINE_IN * (len(analysis.labels) + GUIDES)))
    for number, label in enumerate(analysis.labels):
        if label == LRU and curve is not None:
            _curve(axes, curve, definition, number)
        else:
            _points(axes, analysis, label, definition, number)
    most = [definition.ratio(point) for point in bound.values()]
    label = f"{bound_name(analysis.model)} (bound)".replace(", ", ",\n")
    axes.plot(list(bound), most, color=plots.BOUND, linestyle="-", linewidth=1.8, label=label)
    if published:
        axes.plot(*zip(*published.items(), strict=True), color=plots.BOUND, linestyle="", marker="x", markersize=5,
                  label=source)  # fmt: skip
    _guides(axes, analysis, definition, published or {})
    _legend(figure, axes)
    return figure


def _points(axes: Any, analysis: Analysis, label: str, definition: Definition, number: int) -> None:
    sizes = [size.blocks for size in analysis.finite()]
    ratios = [definition.ratio(analysis.points[label, size]) for size in sizes]
    fill = FILLS[number // len(plots.PALETTE) % len(FILLS)]
    axes.plot(
        sizes, ratios, label=label, marker=plots.marker(number), linewidth=0.7, fillstyle=fill, **plots.series(number)
    )


def _curve(axes: Any, curve: Curve, definition: Definition, number: int) -> None:
    whole = getattr(curve, definition.of)
    hits = getattr(curve, definition.hits) / whole if whole else 0 * curve.capacities
    axes.plot(curve.capacities, hits, label=LRU, drawstyle="steps-post", **plots.series(number))


def _guides(axes: Any, analysis: Analysis, definition: Definition, published: Mapping[int, float]) -> None:
    """Scales and names of the axes, the ceiling, and the capacity of 3 M tokens."""
    ceiling = definition.ratio(analysis.ceiling) or 0.0
    axes.axhline(ceiling, color=plots.FAINT, linestyle="--", linewidth=0.9, label="infinite cache")
    sizes = [*(size.blocks for size in analysis.finite() if size.blocks is not None), *published]
    axes.set_xscale("log")
    axes.set_xlim(min(sizes) / 1.15, max(sizes) * 1.15)
    axes.set_ylim(0, max([ceiling, *published.values(), 0.01]) * MARGIN)
    plots.compact(axes.xaxis)
    reference = REFERENCE_TOKENS / analysis.ceiling.block_tokens
    if min(sizes) <= reference <= max(sizes):
        axes.axvline(reference, color=plots.FAINT, linestyle=":", linewidth=0.9)
        axes.annotate("3 M tokens", (reference, 0), xytext=(3, 3), textcoords="offset points", color=plots.FAINT,
                      fontsize=7)  # fmt: skip
    pools = analysis.model.pools
    each = "" if pools == 1 else f" of each of {pools} pools"
    axes.set_xlabel(f"capacity{each}, blocks of {analysis.ceiling.block_tokens} tokens")
    axes.set_ylabel(f"{definition.found},\nshare of all {definition.whole}")
    axes.set_title(f"{analysis.trace_name}: hit ratio ({definition.name})")


def _legend(figure: Any, axes: Any) -> None:
    """Beside the picture, where it covers no line."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", title=COMPUTED, title_fontsize=7, alignment="left")
