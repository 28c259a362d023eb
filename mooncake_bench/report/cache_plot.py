"""A cache analysis as a picture: hit ratio against capacity, the bound above, what others published beside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mooncake_bench.report import plots
from mooncake_bench.results.cache_analysis import BOUND, REFERENCE_TOKENS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mooncake_bench.cache import Curve
    from mooncake_bench.results.cache_analysis import Analysis, Definition

LRU = "lru"
FEW = 6  # lines whose names find room inside the picture
HEIGHT_IN = 3.6
LEGEND_LINE_IN = 0.165
GUIDES = 4  # lines of a legend beside the policies: the bound, the ceiling, what was published, and some air
MARGIN = 1.06  # of the ceiling, above which nothing is drawn


def draw(
    analysis: Analysis,
    definition: Definition,
    curve: Curve | None = None,
    published: Mapping[int, float] | None = None,
    source: str = "published",
) -> Any:
    """The figure, to be drawn inside :func:`mooncake_bench.report.plots.style`.

    ``curve``: LRU at every capacity, drawn in place of its points. ``published``: hit ratios by capacity in blocks.
    """
    figure, (axes,) = plots.figure(height_in=max(HEIGHT_IN, LEGEND_LINE_IN * (len(analysis.labels) + GUIDES)))
    for number, label in enumerate(analysis.labels):
        if label == LRU and curve is not None:
            _curve(axes, curve, definition, number)
        else:
            _points(axes, analysis, label, definition, number)
    sizes = [size.blocks for size in analysis.finite()]
    bound = [definition.ratio(analysis.bounds[size]) for size in sizes]
    axes.plot(sizes, bound, color=plots.BOUND, linestyle="-", linewidth=1.8, label=f"{BOUND} (bound, offline)")
    if published:
        axes.plot(*zip(*published.items(), strict=True), color=plots.BOUND, linestyle="", marker="x", markersize=5,
                  label=source)  # fmt: skip
    _guides(axes, analysis, definition, published or {})
    _legend(figure, axes, len(analysis.labels))
    return figure


def _points(axes: Any, analysis: Analysis, label: str, definition: Definition, number: int) -> None:
    sizes = [size.blocks for size in analysis.finite()]
    ratios = [definition.ratio(analysis.points[label, size]) for size in sizes]
    axes.plot(sizes, ratios, label=label, marker=plots.marker(number), markersize=3, **plots.series(number))


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
    axes.set_title(f"{analysis.trace_name}: hit ratio against capacity ({definition.name})")


def _legend(figure: Any, axes: Any, policies: int) -> None:
    if policies <= FEW:
        axes.legend(loc="upper left")
    else:
        figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper")
