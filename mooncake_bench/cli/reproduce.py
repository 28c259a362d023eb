"""``reproduce``: the papers' results beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mooncake_bench.cli import options
from mooncake_bench.cli.listing import render_list, render_report
from mooncake_bench.cli.options import Example, argument, option
from mooncake_bench.cli.output import answer, json_answer, note, tell
from mooncake_bench.errors import NothingToConclude, SetupError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.cli.options import Commands
    from mooncake_bench.report.sheets import Report
    from mooncake_bench.studies.reproduce import Published
    from mooncake_bench.studies.reproduce.outcome import Result
    from mooncake_bench.studies.reproduce.sources import Traces

FORMATS = ("table", "json", "markdown", "latex")

PARAMETERS = [
    argument("ids", list[str] | None, "Published results, such as F25-F9 [default: none]", None, metavar="ID"),
    option("all", bool, ("--all",), "Every published result, which takes minutes [default: off]", False),
    option("list", bool, ("--list",), "List the results that can be reproduced, run none [default: off]", False),
    option(
        "traces",
        Path | None,
        ("--traces",),
        "Folder searched for the published trace files, which are known by their content [default: where traces fetch "
        "puts them]",
        metavar="DIR",
    ),
    options.format_option(*FORMATS),
    option(
        "out",
        Path | None,
        ("-o", "--out"),
        "Folder for each result's numbers (ID.parquet), what they rest on (ID.measured.parquet) and figure (ID.png), "
        "and for a summary as Markdown, LaTeX and HTML (summary.md, .tex, .html) [default: none]",
        panel="Output",
        metavar="DIR",
    ),
    option("force", bool, ("--force",), "Overwrite files in --out [default: off]", False, panel="Output"),
    option("quiet", bool, ("-q", "--quiet"), "No notices or paths on stderr [default: off]", False, panel="Output"),
]
_IDLE_WITH_LIST = ("all", "traces", "out", "force", "quiet")
SUMMARIES = ("summary.md", "summary.tex", "summary.html")


@options.takes(*PARAMETERS)
def reproduce(**given: Any) -> None:
    """Reproduce results of the Mooncake papers.

    Prints the published value, ours, their ratio, and the verdict.

    Where a published trace is not at hand a bundled one stands in, which the answer says.
    """
    shown = options.chosen_format(given["format"], *FORMATS)
    from mooncake_bench.studies.reproduce import choose
    from mooncake_bench.studies.reproduce.sources import Traces

    if given["list"]:
        _refuse_idle(given)
        answer(render_list("Published results", [_item(one) for one in choose(given["ids"] or ())], shown))
        return
    chosen = choose(_wanted(given))
    if given["force"] and given["out"] is None:
        raise SetupError("--force: no effect without -o DIR; drop it, or name a folder")
    traces = Traces(given["traces"] or _fetched())
    files = _files(chosen, given["out"], given["force"])
    _tell_found(traces, given)
    done: list[tuple[Published, Result]] = []
    for number, one in enumerate(chosen, start=1):
        if len(chosen) > 1:
            tell(given, f"{one.ID} ({number} of {len(chosen)}): {one.TITLE}")
        result = _run(one, traces)
        done.append((one, result))
        if shown != "json":
            answer(("" if len(done) == 1 else "\n") + _text(one, result, shown))
        for path in files and _store(one, result, given):
            tell(given, f"written: {path}")
    for path in files and _store_summary(done, given):
        tell(given, f"written: {path}")
    _finish(done, shown)


def _wanted(given: dict[str, Any]) -> Sequence[str]:
    """The IDs asked for; none stands for all."""
    ids: Sequence[str] = given["ids"] or ()
    if ids and given["all"]:
        raise SetupError("--all: no effect beside IDs; drop one of the two")
    if not ids and not given["all"]:
        raise SetupError("no published result named; give IDs such as F25-F9, or --all; `reproduce --list` says which")
    return ids


def _run(one: Published, traces: Traces) -> Result:
    """A result; an empty one that says why where no trace at hand can tell anything."""
    from mooncake_bench.studies.reproduce.outcome import Result

    try:
        return one.run(traces)
    except NothingToConclude as nothing:
        return Result((), (), (), (), (str(nothing),))


def _fetched() -> Path | None:
    from mooncake_bench.trace.public import default_folder

    try:
        folder = default_folder()
    except SetupError:  # no home: nothing was fetched
        return None
    return folder if folder.is_dir() else None


def _refuse_idle(given: dict[str, Any]) -> None:
    for name in _IDLE_WITH_LIST:
        if given[name]:
            raise SetupError(f"--{name}: no effect with --list, which runs nothing; drop one of the two")


def _item(one: Published) -> dict[str, str]:
    from mooncake_bench.studies.reproduce import names

    return {"id": ", ".join(names(one)), "result": f"{one.TITLE} ({one.SOURCE})"}


def _tell_found(traces: Any, given: dict[str, Any]) -> None:
    if given["traces"] is not None and not traces.found:
        tell(given, f"--traces {str(given['traces'])!r}: holds none of the published trace files")
    for key, path in traces.found.items():
        tell(given, f"{key}: {path}")


def _files(chosen: Sequence[Published], out: Path | None, force: bool) -> list[Path]:
    """Every file that will be written, looked at before any work is done."""
    if out is None:
        return []
    from mooncake_bench.results.cache_store import check_file

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(f"-o {str(out)!r}: cannot be made: {error.strerror}") from None
    files = [out / f"{one.ID}{ending}" for one in chosen for ending in (".parquet", ".measured.parquet", ".png")]
    files += [out / name for name in SUMMARIES]
    for file in files:
        check_file(file, force=force, ending=file.suffix)
    return files


def _store(one: Published, result: Result, given: dict[str, Any]) -> list[Path]:
    from mooncake_bench.report import plots
    from mooncake_bench.results.cache_store import write_table
    from mooncake_bench.studies.reproduce.show import as_table, measured_table

    out, force = given["out"], given["force"]
    written = [write_table(as_table(one, result), out / f"{one.ID}.parquet", force=force)]
    if result.measured:
        written.append(write_table(measured_table(result), out / f"{one.ID}.measured.parquet", force=force))
    if result.draw is not None:
        try:
            with plots.style():
                written.append(plots.save(result.draw(), out / f"{one.ID}.png", force=force, flag="-o"))
        except SetupError as error:  # Matplotlib is an extra: the numbers are kept without it
            note(f"{one.ID}: no figure: {error}")
    return written


def _store_summary(done: Sequence[tuple[Published, Result]], given: dict[str, Any]) -> list[Path]:
    from mooncake_bench import outfile
    from mooncake_bench.report import markup
    from mooncake_bench.studies.reproduce.show import full_summary

    report = full_summary(done)
    texts = (markup.markdown(report), markup.latex(report), _page(report, done, given["out"]))
    written = []
    for name, text in zip(SUMMARIES, texts, strict=True):
        if text is None:
            continue
        target = given["out"] / name
        label = f"-o {str(target)!r}"
        with outfile.writing(target, force=given["force"], label=label, error=SetupError) as partial:
            partial.write_text(text, encoding="utf-8")
        written.append(target)
    return written


def _page(report: Report, done: Sequence[tuple[Published, Result]], out: Path) -> str | None:
    """The summary as a page with the figures that were drawn; None, told, without Jinja2, which is an extra."""
    from mooncake_bench.report.html.page import of_report, render

    pictures = {f"{one.ID}: {one.TITLE}": out / f"{one.ID}.png" for one, result in done if result.draw}
    figures = {caption: path.read_bytes() for caption, path in pictures.items() if path.is_file()}
    try:
        return render(of_report(report, "The Mooncake papers' results, reproduced", figures))
    except SetupError as error:
        note(f"no summary.html: {error}")
        return None


def _text(one: Published, result: Result, shown: str) -> str:
    from mooncake_bench.studies.reproduce.show import report

    return render_report(report(one, result), shown)


def _finish(done: Sequence[tuple[Published, Result]], shown: str) -> None:
    from mooncake_bench.studies.reproduce.show import as_json, summary

    if shown == "json":
        answer(json_answer([as_json(one, result) for one, result in done]))
    elif len(done) > 1:
        answer("\n" + render_report(summary(done), shown))
    if not any(result.concluded for _, result in done):
        raise NothingToConclude("nothing could be measured: no trace at hand; give the published files with --traces")


EXAMPLES = (
    Example("reproduce --list", "which published results there are"),
    Example("reproduce F25-T2", "one, on the bundled stand-ins; --traces DIR takes the published files"),
    Example("reproduce F25-T2 -o papers", "the same, with parquet, and a summary as Markdown, LaTeX and HTML"),
)
COMMANDS: Commands = (("reproduce", reproduce, EXAMPLES),)
