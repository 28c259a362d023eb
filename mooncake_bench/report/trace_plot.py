"""A trace in one picture: arrivals, lengths, reuse, working set.

The two lower panels share their axis, a time ``t``: keep blocks for ``t`` after their last use, and the left one says
which share of references then finds its block, the right one how many blocks are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mooncake_bench.report import plots
from mooncake_bench.results.words import counted, integer, share
from mooncake_bench.trace.sharing import Walk
from mooncake_bench.trace.stats import NO_PREFIX_IDS

if TYPE_CHECKING:
    from pathlib import Path

    from mooncake_bench.trace.model import Floats, Ints, Trace

STEPS = (1, 2, 5)  # windows of a decade of the working-set curve
SHORTEST_MS = 100.0
ARRIVAL_WINDOWS = 120  # at most, of the first panel
NICE_MS = (1, 10, 100, 1_000, 2_000, 5_000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000, 1_800_000,
           3_600_000, 7_200_000, 21_600_000, 86_400_000)  # fmt: skip
CDF_POINTS = 2_000
WALK_ROWS = 1_000_000  # above so many requests fewer windows are drawn, for each holds two numbers a request


def draw(trace: Trace, path: str | Path, *, force: bool = False) -> Path:
    """Draw the trace into a .png, .svg or .pdf file and return its path.

    Raises SetupError where it cannot be written, or Matplotlib is missing.
    """
    with plots.style():
        figure, (arrivals, lengths, reuse, working_set) = plots.figure(2, 2, height_in=5.2)
        figure.suptitle(_title(trace), x=0.01, ha="left", fontsize=9, parse_math=False)
        _arrivals(arrivals, trace)
        _lengths(lengths, trace)
        if trace.has_prefix_ids:
            walk = Walk(trace, _windows(trace))
            _reuse(reuse, trace, walk)
            _working_set(working_set, trace, walk)
        else:
            _nothing(reuse, "Reuse of blocks")
            _nothing(working_set, "Working set")
        return plots.save(figure, path, force=force)


def _title(trace: Trace) -> str:
    name = trace.name if len(trace.name) <= 60 else f"{trace.name[:60]}…"
    return f"{name}: {counted(len(trace), 'request')} in {trace.span_ms / 1000:,.0f} s"


# ---- arrivals and lengths


def _arrivals(axes: Any, trace: Trace) -> None:
    window_ms = next((nice for nice in NICE_MS if trace.span_ms / nice <= ARRIVAL_WINDOWS), NICE_MS[-1])
    slot = (trace.arrival_ms // window_ms).astype(np.int64)
    counts = np.bincount(slot)
    unit_ms, unit = next((each for each in ((3_600_000, "h"), (60_000, "min"), (1_000, "s"), (1, "ms"))
                          if trace.span_ms >= 3 * each[0]), (1, "ms"))  # fmt: skip
    edges = np.arange(len(counts) + 1) * window_ms / unit_ms
    whole = max(1, int(trace.span_ms // window_ms))  # the last window may be cut off by the end of the trace
    axes.stairs(counts, edges, fill=True, color=plots.PALETTE[0], alpha=0.35)
    axes.stairs(counts, edges, color=plots.PALETTE[0], linewidth=0.8)
    mean = counts[:whole].mean()
    axes.axhline(mean, color=plots.BOUND, linestyle=plots.LINE_STYLES[1], linewidth=0.8, label=f"mean {mean:,.1f}")
    axes.set(title="Arrivals", xlabel=f"time [{unit}]", ylabel=f"requests in {_clock(window_ms)}", ylim=(0, None))
    axes.legend(loc="lower right")


def _lengths(axes: Any, trace: Trace) -> None:
    for i, (name, values) in enumerate((("input", trace.input_tokens), ("output", trace.output_tokens))):
        known = values[values > 0]  # a logarithmic axis has no zero
        x, y = _cdf(known)
        label = f"{name}: median {np.median(known):,.0f}" if len(known) else name
        axes.plot(x, y, label=label, drawstyle="steps-post", **plots.series(i))
    axes.set(title="Lengths", xlabel="tokens", ylabel="share of requests", xscale="log", ylim=(0, 1.32))
    axes.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1])  # above: room for the legend
    plots.compact(axes.xaxis)
    axes.legend(loc="upper left")


def _cdf(values: Ints | Floats) -> tuple[Floats, Floats]:
    """Points of the distribution function, at most CDF_POINTS of them."""
    ordered = np.sort(values)
    at = np.unique(np.linspace(0, len(ordered) - 1, min(len(ordered), CDF_POINTS)).astype(np.int64))
    return np.append(ordered[:1], ordered[at]).astype(np.float64), np.append(0, at + 1) / len(ordered)


# ---- reuse and working set


def _windows(trace: Trace) -> list[float]:
    """Windows from SHORTEST_MS to the span: 1, 2, 5 a decade, of long traces one a decade."""
    steps = STEPS if len(trace) <= WALK_ROWS else STEPS[:1]
    windows, decade = [], SHORTEST_MS
    while decade < trace.span_ms:
        windows += [decade * step for step in steps if decade * step < trace.span_ms]
        decade *= 10
    return [*windows, max(trace.span_ms, SHORTEST_MS)]


def _reuse(axes: Any, trace: Trace, walk: Walk) -> None:
    gaps = np.sort(walk.gaps_ms) / 1000
    references = len(trace.block_ids)
    x = np.geomspace(SHORTEST_MS / 1000, max(trace.span_ms, 10 * SHORTEST_MS) / 1000, 400)
    y = np.searchsorted(gaps, x, side="right") / references
    most = len(gaps) / references
    axes.plot(x, y, label="last use at most t ago", **plots.series(0))
    axes.axhline(most, color=plots.BOUND, linestyle=plots.LINE_STYLES[1], linewidth=0.8, label=f"ever: {share(most)}")
    axes.set(title="Reuse of blocks", ylabel="share of references", xscale="log", ylim=(0, max(1.45 * most, 0.01)))
    _time_axis(axes, x)
    axes.legend(loc="upper left" if most else "center")


def _working_set(axes: Any, trace: Trace, walk: Walk) -> None:
    lines = walk.working_set()[:-1]
    x = np.array([line["window_ms"] for line in lines]) / 1000
    axes.plot(x, [line["max_blocks"] for line in lines], label="most at any time", marker=plots.marker(0),
              **plots.series(0))  # fmt: skip
    if lines[0]["mean_blocks"] is not None:
        mean = np.array([line["mean_blocks"] for line in lines])
        axes.plot(x, np.where(mean > 0, mean, np.nan), label="mean over time", marker=plots.marker(1),
                  **plots.series(1))  # fmt: skip
    axes.axhline(walk.unique_blocks, color=plots.BOUND, linestyle=plots.LINE_STYLES[2], linewidth=0.8,
                 label=f"all distinct: {integer(walk.unique_blocks)}")  # fmt: skip
    axes.set(
        title="Working set", ylabel=f"blocks of {counted(trace.block_tokens, 'token')}", xscale="log", yscale="log"
    )
    _time_axis(axes, np.array([SHORTEST_MS, max(trace.span_ms, 10 * SHORTEST_MS)]) / 1000)
    plots.compact(axes.yaxis)
    axes.legend(loc="lower right")


def _time_axis(axes: Any, x: Floats) -> None:
    """Seconds on a logarithmic axis, read as people read them."""
    axes.set_xlim(x[0] * 0.9, x[-1] * 1.1)
    ticks = [0.1, 1, 10, 60, 600, 3_600, 36_000, 360_000, 3_600_000]
    axes.set_xticks([tick for tick in ticks if tick <= x[-1] * 1.1])
    axes.xaxis.set_major_formatter(lambda value, _: _clock(value * 1000))
    axes.minorticks_off()
    axes.set_xlabel("t, time since a block's last use")


def _nothing(axes: Any, title: str) -> None:
    axes.set_title(title)
    axes.set_axis_off()
    axes.text(0.5, 0.5, NO_PREFIX_IDS.replace(": ", ":\n", 1).replace(", and", ",\nand"), ha="center", va="center",
              transform=axes.transAxes, color=plots.FAINT)  # fmt: skip


def _clock(ms: float) -> str:
    unit, word = next((each for each in ((3_600_000, "h"), (60_000, "min"), (1_000, "s")) if ms >= each[0]), (1, "ms"))
    return f"{ms / unit:g} {word}"
