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
    from mooncake_bench.studies.reproduce import Published
    from mooncake_bench.studies.reproduce.outcome import Result

FORMATS = ("table", "json", "markdown", "latex")

PARAMETERS = [
    argument("ids", list[str] | None, "Published results, such as F25-F9 [default: all]", None, metavar="ID"),
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
        "Folder for each result's numbers (ID.parquet) and figure (ID.png) [default: none]",
        panel="Output",
        metavar="DIR",
    ),
    option("force", bool, ("--force",), "Overwrite files in --out [default: off]", False, panel="Output"),
    option("quiet", bool, ("-q", "--quiet"), "No notices or paths on stderr [default: off]", False, panel="Output"),
]
_IDLE_WITH_LIST = ("traces", "out", "force", "quiet")


@options.takes(*PARAMETERS)
def reproduce(**given: Any) -> None:
    """Reproduce results of the Mooncake papers: published value, ours, their ratio, and the verdict.

    Where a published trace is not at hand a bundled one stands in, which the answer says.
    """
    shown = options.chosen_format(given["format"], *FORMATS)
    from mooncake_bench.studies.reproduce import choose
    from mooncake_bench.studies.reproduce.sources import Traces

    chosen = choose(given["ids"] or ())
    if given["list"]:
        _refuse_idle(given)
        answer(render_list("Published results", [_item(one) for one in chosen], shown))
        return
    if given["force"] and given["out"] is None:
        raise SetupError("--force: no effect without -o DIR; drop it, or name a folder")
    traces = Traces(given["traces"] or _fetched())
    places = _places(chosen, given["out"], given["force"])
    _tell_found(traces, given)
    done: list[tuple[Published, Result]] = []
    for one in chosen:
        result = one.run(traces)
        done.append((one, result))
        if shown != "json":
            answer(("" if len(done) == 1 else "\n") + _text(one, result, shown))
        for path in places and _store(one, result, places[one.ID], given):
            tell(given, f"written: {path}")
    _finish(done, shown)


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
    return {"id": one.ID, "result": f"{one.TITLE} ({one.SOURCE})"}


def _tell_found(traces: Any, given: dict[str, Any]) -> None:
    if given["traces"] is not None and not traces.found:
        tell(given, f"--traces {str(given['traces'])!r}: holds none of the published trace files")
    for key, path in traces.found.items():
        tell(given, f"{key}: {path}")


def _places(chosen: Sequence[Published], out: Path | None, force: bool) -> dict[str, tuple[Path, Path]]:
    """Where each result's table and figure go, looked at before any work is done."""
    if out is None:
        return {}
    from mooncake_bench.results.cache_store import check_file

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(f"-o {str(out)!r}: cannot be made: {error.strerror}") from None
    places = {one.ID: (out / f"{one.ID}.parquet", out / f"{one.ID}.png") for one in chosen}
    for table, figure in places.values():
        check_file(table, force=force)
        check_file(figure, force=force, ending=".png")
    return places


def _store(one: Published, result: Result, places: tuple[Path, Path], given: dict[str, Any]) -> list[Path]:
    from mooncake_bench.report import plots
    from mooncake_bench.results.cache_store import write_table
    from mooncake_bench.studies.reproduce.show import as_table

    table, figure = places
    written = [write_table(as_table(one, result), table, force=given["force"])]
    if result.draw is not None:
        try:
            with plots.style():
                written.append(plots.save(result.draw(), figure, force=given["force"], flag="-o"))
        except SetupError as error:  # Matplotlib is an extra: the numbers are kept without it
            note(f"{one.ID}: no figure: {error}")
    return written


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
    Example("reproduce F25-T2 --format json", "the same, for a program"),
)
COMMANDS: Commands = (("reproduce", reproduce, EXAMPLES),)
