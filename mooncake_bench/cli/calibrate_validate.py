"""``calibrate validate``: predictions beside end-to-end measurements and the papers' figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mooncake_bench.cli import options
from mooncake_bench.cli.listing import render_list, render_report
from mooncake_bench.cli.options import Example, argument, option
from mooncake_bench.cli.output import answer, json_answer, note, tell
from mooncake_bench.errors import NothingToConclude, SetupError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mooncake_bench.cli.options import Commands
    from mooncake_bench.studies.validate import Check
    from mooncake_bench.studies.validate.outcome import Done

GROWN = 1  # exit code: a gate failed
PARAMETERS = [
    argument("ids", list[str] | None, "Checks, such as F25-FIG14-PREFILL [default: all]", None, metavar="ID"),
    option("list", bool, ("--list",), "List the checks and the files that each reads, run none [default: off]", False),
    option(
        "measurements",
        Path | None,
        ("--measurements",),
        "Folder of the measured tables; a check whose file it lacks is skipped, and said so [default: none, so that "
        "only checks without a file run]",
        metavar="DIR",
    ),
    option(
        "ceilings",
        Path | None,
        ("--ceilings",),
        "TOML file of the most that each row's errors may be; exit 1 when one has grown beyond, or a row and its "
        "ceiling are not both there [default: none]",
        panel="Gate",
        metavar="FILE",
    ),
    option(
        "write_ceilings",
        Path | None,
        ("--write-ceilings",),
        "Write such a file from today's errors, with 2 % to spare [default: none]",
        panel="Gate",
        metavar="FILE",
    ),
    options.format_option(),
    option(
        "out",
        Path | None,
        ("-o", "--out"),
        "Folder for rows.parquet, points.parquet and a picture (ID.png) a check; errors that a preset's file records "
        "have no points to store or draw [default: none]",
        panel="Output",
        metavar="DIR",
    ),
    option("force", bool, ("--force",), "Overwrite files that are written [default: off]", False, panel="Output"),
    option("quiet", bool, ("-q", "--quiet"), "No notices or paths on stderr [default: off]", False, panel="Output"),
]
_IDLE_WITH_LIST = ("measurements", "ceilings", "write_ceilings", "out", "force", "quiet")


@options.takes(*PARAMETERS)
def validate(**given: Any) -> None:
    """Compare predictions with end-to-end measurements and the papers' figures: errors, what is claimed, the verdict.

    Every row says whether a coefficient was chosen with its points in sight (in-sample) and which engine it is for.
    """
    shown = options.chosen_format(given["format"])
    from mooncake_bench.studies import validate as study

    chosen = study.choose(given["ids"] or ())
    if given["list"]:
        _refuse_idle(given)
        answer(render_list("Checks", [_item(one) for one in chosen], shown))
        return
    if given["force"] and not (given["out"] or given["write_ceilings"]):
        raise SetupError("--force: no effect without -o DIR or --write-ceilings FILE; drop it, or name one")
    if given["ceilings"] and given["write_ceilings"]:
        raise SetupError("--ceilings and --write-ceilings: one judges, the other gives in; drop one of the two")
    from mooncake_bench.studies.validate import ceilings, files

    known = ceilings.read_ceilings(given["ceilings"]) if given["ceilings"] else None
    places = _places(chosen, given)
    folder = None if given["measurements"] is None else files.Measurements(given["measurements"])
    done = study.validate(chosen, folder)
    answer(_text(done, shown))
    for path in _stored(done, places, given):
        tell(given, f"written: {path}")
    breached = False
    if known is not None:
        findings = ceilings.compare(done, known, list(study.checks()))
        for hint in findings.hints:
            tell(given, hint)
        for breach in findings.breaches:
            note(f"grown: {breach}")
        breached = bool(findings.breaches)
    if breached:
        raise typer.Exit(GROWN)
    _refuse_nothing(done, given)


def _refuse_idle(given: dict[str, Any]) -> None:
    for name in _IDLE_WITH_LIST:
        if given[name]:
            flag = name.replace("_", "-")
            raise SetupError(f"--{flag}: no effect with --list, which runs nothing; drop one of the two")


def _item(one: Check) -> dict[str, str]:
    return {"id": one.ID, "check": f"{one.TITLE} ({one.SOURCE}); reads {', '.join(one.FILES) or 'no file'}"}


def _places(chosen: Sequence[Check], given: dict[str, Any]) -> dict[str, Path]:
    """Where every file goes, looked at before any work is done."""
    from mooncake_bench import outfile
    from mooncake_bench.results.cache_store import check_file

    force, out = given["force"], given["out"]
    if given["write_ceilings"] is not None:
        label = f"--write-ceilings {str(given['write_ceilings'])!r}"
        outfile.check_target(given["write_ceilings"], force=force, label=label, error=SetupError)
    if out is None:
        return {}
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(f"-o {str(out)!r}: cannot be made: {error.strerror}") from None
    tables = {name: check_file(out / f"{name}.parquet", force=force) for name in ("rows", "points")}
    return tables | {one.ID: check_file(out / f"{one.ID}.png", force=force, ending=".png") for one in chosen}


def _text(done: Sequence[Done], shown: str) -> str:
    from mooncake_bench.studies.validate import show

    if shown == "json":
        return json_answer(show.as_json(done))
    if shown == "csv":
        return render_list("Checks", show.as_items(done), shown)

    report = show.report(done)
    return render_report(report, shown)


def _stored(done: Sequence[Done], places: dict[str, Path], given: dict[str, Any]) -> list[Path]:
    from mooncake_bench.studies.validate import ceilings, show

    force, written = given["force"], []
    if places:
        from mooncake_bench.results.cache_store import write_table

        written += [write_table(show.rows_table(done), places["rows"], force=force)]
        written += [write_table(show.points_table(done), places["points"], force=force)]
        written += _drawn(done, places, force)
    if given["write_ceilings"] is not None:
        written.append(ceilings.write_ceilings(done, given["write_ceilings"], force=force))
    return written


def _drawn(done: Sequence[Done], places: dict[str, Path], force: bool) -> list[Path]:
    from mooncake_bench.report import plots
    from mooncake_bench.studies.validate.picture import draw

    written = []
    try:
        with plots.style():
            for one in done:
                made = draw(one)
                if made is not None:
                    written.append(plots.save(made, places[one.id], force=force, flag="-o"))
    except SetupError as error:  # Matplotlib is an extra: the numbers are kept without it
        note(f"no pictures: {error}")
    return written


def _refuse_nothing(done: Sequence[Done], given: dict[str, Any]) -> None:
    """Raises NothingToConclude where every check that reads a file was skipped."""
    reading = [one for one in done if one.files]
    if reading and all(one.outcome is None for one in reading):
        where = f"{str(given['measurements'])!r} holds none of their files" if given["measurements"] else "no folder"
        raise NothingToConclude(
            f"no check could read what it compares with: {where}; give the folder of the measured tables with "
            "--measurements DIR (--list says which files each check reads)"
        )


EXAMPLES = (
    Example("calibrate validate --list", "which checks there are, and the files that each reads"),
    Example("calibrate validate F25-EQ2 HELDOUT", "two that need no file; --measurements DIR runs the others"),
    Example("calibrate validate F25-EQ2 --format json", "one, for a program"),
)
COMMANDS: Commands = (("validate", validate, EXAMPLES),)
