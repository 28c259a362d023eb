"""``--plot [KIND=]FILE`` of the commands that have runs at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mooncake_bench.cli.options import option
from mooncake_bench.errors import SetupError

if TYPE_CHECKING:
    import inspect
    from collections.abc import Sequence
    from pathlib import Path

    from mooncake_bench.results import Run

DEFAULT = "overview"


class Picture(NamedTuple):
    """One picture asked for: its kind and its file."""

    kind: str
    path: Path


def plot_option() -> inspect.Parameter:
    """``--plot``, for commands that end with runs."""
    text = (
        "Draw the runs into this .png, .svg or .pdf file: an overview, or a KIND of `plot --list`; an existing file is "
        "replaced; repeatable [default: none]"
    )
    return option("plot", list[str] | None, ("--plot",), text, panel="Output", metavar="[KIND=]FILE")


def asked(given: Sequence[str] | None) -> list[Picture]:
    """The pictures that ``--plot`` asks for, looked at before any work is done. Raises SetupError."""
    found = [_picture(text) for text in given or ()]
    paths = [picture.path for picture in found]
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise SetupError(f"--plot: {str(twice)!r} is named twice; a file holds one picture")
    return found


def _picture(text: str) -> Picture:
    from mooncake_bench.report import plots
    from mooncake_bench.report.figures import choose

    kind, equals, path = text.partition("=")
    if not equals or not kind.replace("-", "").isalpha():  # a path may hold an equals sign, as ./a=b.png
        kind, path = DEFAULT, text
    if choose(kind).TAKES != "runs":
        raise SetupError(f"--plot {text}: {kind!r} is a picture of a sweep; use: mooncake-bench plot {kind} SWEEP")
    return Picture(kind, plots.check_target(path, force=True))


def draw(pictures: Sequence[Picture], runs: Sequence[Run]) -> list[str]:
    """Draw them all; a line for each file written."""
    from mooncake_bench.report import drawing, figures

    lines = []
    for kind, path in pictures:
        figure = figures.make(kind, runs)
        drawing.write(figure, path, force=True, flag="--plot")
        lines += [f"written: {path}", *([f"{kind}: {figure.empty}"] if figure.empty else [])]
    return lines
