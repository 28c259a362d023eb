"""``plot``: stored runs, or a sweep, as one picture for a paper."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mooncake_bench.cli import options
from mooncake_bench.cli.listing import render_list
from mooncake_bench.cli.options import Example, argument, option
from mooncake_bench.cli.output import answer, tell
from mooncake_bench.errors import ResultError, SetupError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.cli.options import Commands
    from mooncake_bench.report.figure import Figure
    from mooncake_bench.report.figures import Kind
    from mooncake_bench.results import Run

STDOUT = "-"
IN_PER = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72.27}  # pt: TeX's
LEAST_IN, MOST_IN = 1.0, 40.0
LEAST_DPI, MOST_DPI = 30, 1200
IDLE_WITH_LIST = (
    "kind", "runs", "out", "csv", "script", "width", "height", "x", "y", "force", "results", "force_compare", "dpi",
)  # fmt: skip
IDLE_WITH_SWEEP = {"results": "--results", "force_compare": "--force-compare"}
EXAMPLES = (
    Example("plot ttft-cdf @last:2 -o ttft.pdf --width 3.33in", "the two latest runs, for a column of a paper"),
    Example("plot load @last -o load.png --script load.py", "one run, and a script that redraws it"),
    Example("plot --list", "which kinds there are, and what each shows"),
)

_output = partial(option, panel="Output")


class Size(NamedTuple):
    """Of a picture, inches; a height of None is as the picture needs. ``dpi``: dots an inch, None for the usual."""

    width_in: float
    height_in: float | None
    dpi: int | None


@options.takes(
    argument("kind", str | None, "Kind of picture; --list says which there are", None),
    argument(
        "runs", list[str] | None,
        "Runs: a folder, a number, a --name, @last or @last:N; for pareto and sweep the folder of a sweep", None,
        metavar="RUN",
    ),
    option("list", bool, ("--list",), "Say which kinds there are, and draw nothing [default: off]", False),
    option(
        "x", str | None, ("--x",),
        "What lies across, where a kind has a choice: a threshold, a varied setting, a metric [default: the kind's]",
        metavar="NAME",
    ),
    option("y", str | None, ("--y",), "The same for what goes up [default: the kind's]", metavar="NAME"),
    option(
        "results", Path | None, ("--results",),
        "Folder in which numbers, names and @last are looked up [default: results]", metavar="DIR",
    ),
    option(
        "force_compare", bool, ("--force-compare",), "Draw even runs of different work together [default: off]", False,
    ),
    _output("out", str | None, ("-o", "--out"), "Picture to write: .png, .svg or .pdf [default: none]", metavar="FILE"),
    _output(
        "width", str | None, ("--width",), "Width of the picture, such as 3.33in; in, cm, mm or pt [default: 7in]",
        metavar="SIZE",
    ),
    _output("height", str | None, ("--height",), "Its height [default: as it needs]", metavar="SIZE"),
    _output("dpi", int | None, ("--dpi",), "Dots an inch of a .png [default: 300]", metavar="N"),
    _output("csv", str | None, ("--csv",), "Write its numbers as CSV, - is stdout [default: none]", metavar="FILE"),
    _output(
        "script", Path | None, ("--script",),
        "Write a Python script that redraws it with Matplotlib alone, and its numbers beside it [default: none]",
        metavar="FILE.py",
    ),
    _output("force", bool, ("--force",), "Overwrite existing files [default: off]", False),
    _output("quiet", bool, ("-q", "--quiet"), "No notes on stderr [default: off]", False),
)  # fmt: skip
def plot(**given: Any) -> None:
    """Draw stored runs, or a sweep, as a picture fit for a paper.

    Fonts are embedded, and lines and bars differ in grey as well as for any colour vision. What a picture leaves out or
    means is noted on stderr, and in the file. Needs Matplotlib: pip install 'mooncake-bench[plots]'.
    """
    from mooncake_bench.report import figures

    if given["list"]:
        _refuse_beside_list(given)
        answer(render_list("Pictures", [_item(kind) for kind in figures.kinds().values()], "table"))
        return
    if not given["kind"]:
        raise SetupError("no kind of picture named; `mooncake-bench plot --list` says which there are")
    kind = figures.choose(given["kind"])
    size = _check(given)
    figure = _figure(kind, given)
    _write(figure, size, given)
    for line in (figure.empty, figure.note):
        if line:
            tell(given, f"{kind.NAME}: {line}")


def _item(kind: Kind) -> dict[str, str]:
    from mooncake_bench.report.figures import options_of

    choices = " ".join(f"--{name}: {text}." for name, text in options_of(kind).items())
    return {"kind": kind.NAME, "of": kind.TAKES, "shows": f"{kind.DESCRIPTION} {choices}".strip()}


def _figure(kind: Kind, given: dict[str, Any]) -> Figure:
    """The picture; that runs of different work were put together goes with it."""
    from mooncake_bench.report import figures

    source = _source(kind, given)
    apart = _different_work(source, given) if kind.TAKES == "runs" else []
    figure = figures.make(kind.NAME, source, **_choices(given))
    said = f"Runs of different work: {'; '.join(apart)}." if apart else ""
    return replace(figure, note=" ".join(each for each in (said, figure.note) if each))


def _choices(given: dict[str, Any]) -> dict[str, str]:
    return {name: given[name] for name in ("x", "y") if given[name] is not None}


def _source(kind: Kind, given: dict[str, Any]) -> Any:
    """The runs, or the sweep, to be drawn."""
    names = given["runs"] or []
    if kind.TAKES == "sweep":
        if len(names) != 1:
            raise SetupError(f"plot {kind.NAME}: expected the folder of one sweep, got {len(names) or 'none'}")
        for name, flag in IDLE_WITH_SWEEP.items():
            if given[name]:
                raise SetupError(f"{flag}: no effect on plot {kind.NAME}, which is given a folder; drop it")
        from mooncake_bench.results.sweep import open_sweep

        return open_sweep(names[0])
    if not names:
        raise SetupError(f"plot {kind.NAME}: no run named; give a folder, a number, a --name, or @last")
    from mooncake_bench.results.run import open_runs

    return open_runs(names, *([given["results"]] if given["results"] else []))


def _different_work(runs: Sequence[Run], given: dict[str, Any]) -> list[str]:
    """In what the runs' work differs. Raises ResultError where it does and nobody said that it may."""
    from mooncake_bench.results.compare import differing_work

    apart = list(dict.fromkeys(line for run in runs for line in differing_work(runs[0], run)))
    if apart and not given["force_compare"]:
        raise ResultError(f"the runs are not comparable: {'; '.join(apart)} (--force-compare draws them anyway)")
    return apart


# ---- what to write


def _check(given: dict[str, Any]) -> Size:
    """Raises SetupError for what could not be written or has no effect, before any work is done."""
    from mooncake_bench import outfile
    from mooncake_bench.report import plots

    if not any(given[name] for name in ("out", "csv", "script")):
        raise SetupError("nothing to write: give -o FILE.pdf (or .png, .svg), --csv FILE or --script FILE.py")
    if given["out"] is None and given["script"] is None:
        for name in ("width", "height"):
            if given[name] is not None:
                raise SetupError(f"--{name}: no effect without a picture or a script; give -o FILE, or drop it")
    if given["out"] is not None:
        plots.check_target(given["out"], force=given["force"], flag="-o")
    for flag, path in _texts(given):
        outfile.check_target(path, force=given["force"], label=f"{flag} {str(path)!r}", error=SetupError)
    if given["force"] and given["out"] is None and not _texts(given):
        raise SetupError("--force: no effect where no file is written; drop it")
    width = _inches(given["width"], "--width")
    _check_dpi(given)
    return Size(plots.WIDTH_IN if width is None else width, _inches(given["height"], "--height"), given["dpi"])


def _check_dpi(given: dict[str, Any]) -> None:
    dpi = given["dpi"]
    if dpi is None:
        return
    if given["out"] is None or Path(given["out"]).suffix.lower() != ".png":
        raise SetupError("--dpi: no effect without a .png, for .svg and .pdf have no dots; drop it")
    if not LEAST_DPI <= dpi <= MOST_DPI:
        raise SetupError(f"--dpi {dpi}: expected {LEAST_DPI} to {MOST_DPI}")


def _texts(given: dict[str, Any]) -> list[tuple[str, Path]]:
    """Files of text to be written: the flag and the path of each."""
    found = []
    if given["script"] is not None:
        script = given["script"]
        if script.suffix != ".py":
            raise SetupError(f"--script {str(script)!r}: expected a file name that ends in .py")
        found += [("--script", script), ("--script's numbers", script.with_suffix(".csv"))]
    if given["csv"] is not None and given["csv"] != STDOUT:
        found.append(("--csv", Path(given["csv"])))
    paths = [path for _, path in found]
    if len(set(paths)) < len(paths):
        raise SetupError(f"--csv {given['csv']}: is what --script writes already; drop --csv")
    return found


def _inches(text: str | None, flag: str) -> float | None:
    """A length such as 3.33in, in inches; None for none. Raises SetupError."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]+)", text.strip().lower())
    if not match or match[2] not in IN_PER:
        raise SetupError(f"{flag} {text!r}: expected a number and one of {', '.join(IN_PER)}, such as 3.33in")
    length = float(match[1]) * IN_PER[match[2]]
    if not LEAST_IN <= length <= MOST_IN:
        raise SetupError(f"{flag} {text!r}: expected {LEAST_IN:g}in to {MOST_IN:g}in")
    return length


def _write(figure: Figure, size: Size, given: dict[str, Any]) -> None:
    from mooncake_bench.report import drawing, redraw

    if given["out"] is not None:
        drawing.write(figure, given["out"], size.width_in, size.height_in, force=given["force"], dpi=size.dpi)
        _say_written(given["out"], given)
    numbers = redraw.numbers(figure)
    if given["csv"] == STDOUT:
        answer(numbers)
    for flag, path in _texts(given):
        text = numbers if path.suffix != ".py" or flag == "--csv" else redraw.script(figure, path.stem, *size[:2])
        _write_text(text, path, flag, given)


def _write_text(text: str, path: Path, flag: str, given: dict[str, Any]) -> None:
    from mooncake_bench import outfile

    label = f"{flag} {str(path)!r}"
    with outfile.writing(path, force=given["force"], label=label, error=SetupError) as partial_path:
        partial_path.write_text(text, encoding="utf-8", newline="")
    _say_written(path, given)


def _say_written(path: str | Path, given: dict[str, Any]) -> None:
    """The answer, unless that is the numbers."""
    if given["csv"] == STDOUT:
        tell(given, f"written: {path}")
    else:
        answer(f"written: {path}")


def _refuse_beside_list(given: dict[str, Any]) -> None:
    for name in IDLE_WITH_LIST:
        if given[name]:
            shown = name.upper() if name in ("kind", "runs") else f"--{name.replace('_', '-')}"
            raise SetupError(f"{shown}: no effect with --list, which draws nothing; drop one of the two")


COMMANDS: Commands = (("plot", plot, EXAMPLES),)
