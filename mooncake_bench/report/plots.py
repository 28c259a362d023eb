"""The room where pictures are made: one look, three kinds of file, the same bytes each time.

Draw like this, all inside :func:`style`, for text and lines take their looks when they are made::

    with plots.style():
        figure, axes = plots.figure(rows=1, columns=2)
        axes[0].plot(x, y, label="lru", **plots.series(0))
        plots.save(figure, "curve.pdf")

Matplotlib (the extra ``plots``) is imported on first use, without pyplot and without a display; what a person set in a
matplotlibrc does not count here, and is as before afterwards.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mooncake_bench import outfile
from mooncake_bench.errors import SetupError
from mooncake_bench.report.plot_style import (
    BOUND,
    FAINT,
    LINE_STYLES,
    MARKERS,
    PALETTE,
    SETTINGS,
    marker,
    series,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "BOUND",
    "FAINT",
    "LINE_STYLES",
    "MARKERS",
    "PALETTE",
    "check_target",
    "compact",
    "figure",
    "marker",
    "save",
    "series",
    "style",
]

WIDTH_IN = 7.0  # of a figure across a page of two columns
HEIGHT_IN = 2.6  # of one row of panels
# Kind of file -> what is kept out of it: dates, and versions that change the bytes
METADATA: dict[str, dict[str, Any]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
MISSING = "pictures need Matplotlib, which is not installed: pip install 'mooncake-bench[plots]'"
UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@contextmanager
def style() -> Iterator[None]:
    """While inside: Matplotlib's own defaults with our settings on top. Raises SetupError without Matplotlib."""
    matplotlib = _matplotlib()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        yield


def figure(
    rows: int = 1, columns: int = 1, *, width_in: float = WIDTH_IN, height_in: float | None = None
) -> tuple[Any, list[Any]]:
    """A figure and its ``rows * columns`` axes, row by row in one flat list; to be called inside :func:`style`.

    ``width_in`` and ``height_in`` (default: 2.6 a row) are the paper's, in inches.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(width_in, HEIGHT_IN * rows if height_in is None else height_in))
    FigureCanvasAgg(made)
    axes = made.subplots(rows, columns, squeeze=False)
    return made, [panel for row in axes for panel in row]


def check_target(path: str | Path, *, force: bool = False, flag: str = "--plot") -> Path:
    """The path a picture is to be written to, looked at before any work is done.

    Raises SetupError, naming ``flag``, for an ending other than .png, .svg or .pdf, a folder that is not there, or an
    existing file unless ``force``; and where Matplotlib is missing.
    """
    target = Path(path)
    if target.suffix.lower() not in METADATA:
        found = "the name is empty" if str(path) in ("", ".") else repr(str(path))
        raise SetupError(f"{flag} {found}: expected a file name that ends in {', '.join(METADATA)}")
    outfile.check_target(target, force=force, label=f"{flag} {str(path)!r}", error=SetupError)
    _matplotlib()
    return target


def save(
    made: Any, path: str | Path, *, force: bool = False, flag: str = "--plot", title: str = "", note: str = "",
    dpi: int | None = None,
) -> Path:  # fmt: skip
    """Write a figure as .png, .svg or .pdf, whichever the name ends in, and return the path.

    ``title`` and ``note`` are kept inside the file, where a reader's program may show them. ``dpi``: dots an inch of a
    .png, 300 unless given.
    The file appears complete or not at all, and depends on the figure and Matplotlib's version only: no date. Raises
    SetupError as :func:`check_target` does, and where the file cannot be written.
    """
    target = check_target(path, force=force, flag=flag)
    ending = target.suffix.lower()
    label = f"{flag} {str(path)!r}"
    with outfile.writing(target, force=force, label=label, error=SetupError) as partial, style():
        metadata = METADATA[ending] | _about(ending, title, note)
        made.savefig(partial, format=ending[1:], metadata=metadata, **({"dpi": dpi} if dpi else {}))
    return target


def _about(ending: str, title: str, note: str) -> dict[str, str]:
    """Title and note under the names that a kind of file has for them."""
    words = {"Title": title, "Subject" if ending == ".pdf" else "Description": note}
    return {name: text for name, text in words.items() if text}


def compact(axis: Any) -> None:
    """Label the ticks of ``axes.xaxis`` or ``axes.yaxis`` as 500, 2k, 1.5M; on a log axis powers of ten alone."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axis.set_minor_formatter(NullFormatter())


def short(value: float) -> str:
    """A number as a tick shows it: 0, 0.5, 500, 2k, 1.5M."""
    for unit, letter in UNITS:
        if abs(value) >= unit:
            return f"{value / unit:.4g}{letter}"
    return f"{value:.4g}"


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise SetupError(MISSING) from None
    return matplotlib
