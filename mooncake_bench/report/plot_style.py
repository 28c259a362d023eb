"""How our pictures look: colours, line styles, markers and Matplotlib settings. Nothing here imports Matplotlib.

The colours are those of Okabe and Ito, told apart by readers with any colour vision; yellow is left out, for it is lost
on white paper. In grey several of them look alike, so a line also has a style and a marker of its own.
"""

from __future__ import annotations

from typing import Any

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5D3A1A")
"""Colours of lines and bars, in the order of use: blue, vermilion, green, purple, orange, sky blue, brown."""

BOUND = "#000000"
"""What nothing can pass or what others published: black."""

FAINT = "#7F7F7F"
"""Guide lines and remarks."""

LINE_STYLES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)), (0, (8, 3)))
"""Solid, dashed, dotted, dash-dotted, long-dashed, as Matplotlib takes them. Five of them and seven colours: the
first 35 lines differ."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""Markers of points, in the order of use."""

HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "||||", "----")
"""Hatches of bars, in the order of use: they tell bars apart in grey."""

SETTINGS: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with Matplotlib: the same picture on every machine
    "font.size": 8.0,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.labelsize": 8.0,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.use_mathtext": False,
    "axes.formatter.useoffset": False,
    "axes.xmargin": 0.02,
    "axes.prop_cycle": f"cycler('color', {list(PALETTE)})",
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.5,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "legend.fontsize": 7.5,
    "legend.frameon": True,
    "legend.framealpha": 0.85,
    "legend.edgecolor": "none",
    "legend.handlelength": 2.6,  # long enough to show a dash pattern
    "legend.borderaxespad": 0.3,
    "lines.linewidth": 1.4,
    "lines.markersize": 3.5,
    "figure.constrained_layout.use": True,
    "figure.dpi": 100.0,
    "savefig.dpi": 300.0,  # what a print of a column needs
    "savefig.facecolor": "white",
    "pdf.fonttype": 42,  # TrueType, embedded: text can be searched, and journals take it
    "svg.fonttype": "path",  # letters as outlines: the same picture where the font is missing
    "svg.hashsalt": "mooncake-bench",  # names inside the file that do not change from run to run
}


def series(index: int) -> dict[str, Any]:
    """Colour and line style of the ``index``-th line (from 0), as keywords of ``Axes.plot``.

    Lines differ in grey too, up to the fifth; a legend's order does the rest.
    """
    return {"color": PALETTE[index % len(PALETTE)], "linestyle": LINE_STYLES[index % len(LINE_STYLES)]}


def marker(index: int) -> str:
    """The marker of the ``index``-th line (from 0)."""
    return MARKERS[index % len(MARKERS)]
