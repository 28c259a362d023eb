"""``export``: stored runs in the formats of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mooncake_bench.cli import options
from mooncake_bench.cli.listing import render_list
from mooncake_bench.cli.options import Example, argument, option
from mooncake_bench.cli.output import answer
from mooncake_bench.errors import SetupError

if TYPE_CHECKING:
    from mooncake_bench.cli.options import Commands
    from mooncake_bench.results.exporters import Exporter


@options.takes(
    argument("format_name", str | None, "The format; see --list", None, metavar="FORMAT"),
    argument("runs", list[str] | None, "Runs: folders, numbers, names, @last or @last:N", None, metavar="RUN"),
    option("file", Path | None, ("-o", "--output"), "Write to this file [default: stdout]", metavar="FILE"),
    option("force", bool, ("--force",), "Replace the file of -o [default: off]", False),
    option("list", bool, ("--list",), "List the formats and leave [default: off]", False),
    option(
        "out",
        Path | None,
        ("--out",),
        "Folder in which numbers, names and @last are looked up [default: results]",
        metavar="DIR",
    ),
)
def export(**given: Any) -> None:
    """Write stored runs in the format of another tool.

    Numbers are those of the run's own metrics; what such a format wants and a simulation does not know is null or left
    out, as that format has it.
    """
    from mooncake_bench.results.exporters import exporter, exporters
    from mooncake_bench.results.run import open_runs

    if given["list"]:
        _refuse_idle(given)
        items = [{"format": each.NAME, "what": each.DESCRIPTION} for each in exporters().values()]
        answer(render_list("Formats", items, "table"))
        return
    if not given["format_name"] or not given["runs"]:
        raise SetupError("export: expected FORMAT RUN..., such as vllm-json @last; --list shows the formats")
    chosen = exporter(given["format_name"])
    _check(chosen, given)
    text = chosen.export(open_runs(given["runs"], *([given["out"]] if given["out"] else [])))
    _write(text, given)


def _refuse_idle(given: dict[str, Any]) -> None:
    for name, word in (("format_name", "FORMAT"), ("file", "-o"), ("force", "--force"), ("out", "--out")):
        if given[name]:
            raise SetupError(f"{word}: no effect with --list, which writes nothing; drop one of the two")


def _check(chosen: Exporter, given: dict[str, Any]) -> None:
    """Raises SetupError for a file that cannot be written, before anything is read."""
    from mooncake_bench import outfile

    target = given["file"]
    if target is None:
        if given["force"]:
            raise SetupError("--force: no effect without -o; drop it, or name a file")
        return
    if target.suffix.lower() != chosen.EXTENSION:
        raise SetupError(f"-o {str(target)!r}: expected a name that ends in {chosen.EXTENSION} for {chosen.NAME}")
    outfile.check_target(target, force=given["force"], label=f"-o {str(target)!r}", error=SetupError)


def _write(text: str, given: dict[str, Any]) -> None:
    from mooncake_bench import outfile

    target = given["file"]
    if target is None:
        answer(text)
        return
    with outfile.writing(target, force=given["force"], label=f"-o {str(target)!r}", error=SetupError) as partial:
        partial.write_text(text, encoding="utf-8")
    answer(f"{target}: {len(text.encode('utf-8')):,} bytes")


EXAMPLES = (
    Example("export --list", "which formats there are"),
    Example("export vllm-json @last", "the latest run, as vllm bench serve would have saved it"),
    Example("export requests-csv @last -o requests.csv", "one line a request, for a spreadsheet"),
)
COMMANDS: Commands = (("export", export, EXAMPLES),)
